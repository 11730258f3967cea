//! Restore: a backup replaces all data. Its parts are gathered first, then all rows change in one
//! command.
//!
//! Rows of this cluster itself stay: its id, its servers, its agents and the replies kept for them.
//! No later index or fencing token may equal one from before the restore or from the backup.
//!
//! A restore changes every key that it writes, so the key's index is the restore's. With the
//! backup's index, a blocking query with an index from before the restore would sleep until the
//! next change. A minimum index for all answers would not help: in Consul a key's `ModifyIndex` is
//! the index of its query, and clients wait with it (Patroni does). They would all return at once,
//! in a loop.
//!
//! **A lock that was held before the restore and is free in the backup stays closed for a while.**
//! Its holder lost it by an operator's action and may not know yet: a guard that receives nothing
//! relies on its last deadline. So a lock-delay closes it: for the longest window of a node, or the
//! session's TTL if it depends on no node, and never for less than the session's own lock-delay.
//! Like every lock-delay it lasts a minute at most: a guard whose session has only a longer TTL is
//! stopped by its fencing token alone. The same is true for a guard whose lock the backup gives to
//! another session: that session holds it at once, as clients of Consul expect.

use super::State;
use super::agent::alive_check;
use super::check::ensure_check;
use super::entry::lock_of;
use super::error::RestoreError;
use super::invalidation::MAX_LOCK_DELAY;
use super::member::is_living;
use super::node::{SERF_HEALTH, delete_node, ensure_node, set_node_id};
use super::pages::Pages;
use super::rows::TABLES;
use super::step::{Step, reply_or_refusal};
use bytes::Bytes;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::RestoreStep;
use lockmesh_protocol::format;
use lockmesh_protocol::id::{CheckId, Fence, Key, LogIndex};
use lockmesh_protocol::lease::{HealthWindow, RESTART_WINDOW};
use lockmesh_protocol::record::{Agent, Entry, LockDelay, LockMode, LossCause, Node, Session};
use lockmesh_protocol::reply::Reply;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of parts of a backup, each about 1 MiB.
pub const RESTORE_PARTS_MAX: u32 = 16_384;

/// The part number that records the start of a restore, so that it survives a restart.
const BEGUN: u32 = u32::MAX;

/// The increase of the fence if the backup is from another or a lost cluster: more than that
/// cluster can have granted since the backup.
const FENCE_JUMP: u64 = 1 << 32;

/// The largest number accepted from a backup: some clients keep indexes in 63 bits.
const NUMBER_MAX: u64 = 1 << 62;

pub(super) fn restore(step: &mut Step<'_>, part: &RestoreStep) -> Reply {
    let outcome = match part {
        RestoreStep::Begin { id } => {
            begin_restore(step, *id);
            Ok(())
        }
        RestoreStep::Part { id, number, rows } => gather_part(step, *id, *number, rows),
        RestoreStep::Commit { id, parts } => commit_restore(step, *id, *parts),
    };
    reply_or_refusal(outcome.map(|()| Reply::Done))
}

fn begin_restore(step: &mut Step<'_>, id: u64) {
    // One restore at a time: a newer one replaces the gathered parts, or abandoned parts would
    // stay forever.
    for (other, number) in step.state.restore_parts.keys().copied().collect::<Vec<_>>() {
        step.set(Change::RestorePart(other, number, None));
    }
    step.set(Change::RestorePart(id, BEGUN, Some(Bytes::new())));
}

fn gather_part(step: &mut Step<'_>, id: u64, number: u32, rows: &[Change]) -> Result<(), RestoreError> {
    step.state.restore_has_begun(id)?;
    if number >= RESTORE_PARTS_MAX {
        return Err(RestoreError::TooManyParts);
    }
    // A backup is untrusted input: a row that clears or deletes would take effect when loaded.
    if !rows.iter().all(is_row) {
        return Err(RestoreError::NotARow(number));
    }
    let wanted: Vec<Change> =
        rows.iter().filter(|row| is_data(row) || is_of_cluster(row) || is_of_acl(row)).cloned().collect();
    step.set(Change::RestorePart(id, number, Some(format::encode(&wanted).into())));
    Ok(())
}

fn commit_restore(step: &mut Step<'_>, id: u64, parts: u32) -> Result<(), RestoreError> {
    let mut backup = step.state.gathered(id, parts)?;
    let newest = backup.table_indexes.iter().max().copied().unwrap_or_default();
    // Above the newest index here in any case: the base distinguishes this restore's rows from
    // former rows.
    step.index = step.index.next().max(newest.next());
    backup.raise_indexes(step.index);
    let ours = std::mem::take(step.state);
    // The first change: store, timers and readers drop everything before the new rows follow.
    step.set(Change::Cleared);
    step.state.catalog.indexes.raise(step.index);
    keep_ours(step, &ours, &backup);
    backup.rows().filter(is_data).for_each(|row| step.set(row));
    // Each table has changed for its readers, even if the backup has no row of it.
    let format = ours.format();
    for table in TABLES.into_iter().filter(|table| table.since() <= format) {
        step.touch(table);
    }
    ours.members.agents.values().for_each(|agent| bring_back(step, agent, &ours));
    close_what_was_held(step, &ours);
    Ok(())
}

/// Closes the locks that were held before the restore: their holders may rely on them for a
/// while.
fn close_what_was_held(step: &mut Step<'_>, ours: &State) {
    for (key, holder) in &ours.keys.holders {
        // A holder from the backup holds the lock again: that is the purpose of a restore.
        if lock_of(step.state.keys.entry(key).as_ref()).session.is_none() {
            close_for(step, key, ours.belief_of(&ours.sessions.rows[holder]));
        }
    }
    for (key, holder) in
        ours.keys.shared.iter().flat_map(|(key, holders)| holders.keys().map(move |id| (key, id)))
    {
        if lock_of(step.state.keys.entry(key).as_ref()).session.is_none() {
            close_for(step, key, ours.belief_of(&ours.sessions.rows[holder]));
        }
    }
    // A lock-delay from before the restore continues, unless the backup has a holder.
    for (key, delay) in ours.keys.delays.iter().chain(&ours.keys.shared_delays) {
        if lock_of(step.state.keys.entry(key).as_ref()).session.is_none() {
            close_for(step, key, delay.duration);
        }
    }
}

/// Closes a key for this duration, or for the backup's delay if longer.
fn close_for(step: &mut Step<'_>, key: &Key, duration: Duration) {
    let known =
        step.state.keys.delay(key, LockMode::Exclusive).map_or(Duration::ZERO, |delay| delay.duration);
    if step.state.keys.shared_delays.contains_key(key) {
        step.set(Change::SharedDelay(key.clone(), None));
    }
    let delay = LockDelay { started_at_index: step.index, duration: duration.max(known) };
    step.set(Change::LockDelay(key.clone(), Some(delay)));
}

fn keep_ours(step: &mut Step<'_>, ours: &State, backup: &State) {
    let is_of_this_cluster = !backup.cluster_id.is_empty() && backup.cluster_id == ours.cluster_id;
    // Another cluster may have granted tokens after its backup, an unknown number of them.
    let theirs = backup.fence.0 + if is_of_this_cluster { 0 } else { FENCE_JUMP };
    step.set(Change::ClusterId(ours.cluster_id.clone()));
    step.set(Change::IndexBase(step.index.0 - step.log_index.0));
    // The larger of both: a token must be above all that were ever granted, here or there.
    step.set(Change::Fence(ours.fence.max(Fence(theirs))));
    ours.rows().filter(is_ours).for_each(|row| step.set(row));
    // A backup neither opens the cluster nor brings back a deleted token.
    let acl = if ours.acl.is_in_use() { &ours.acl } else { &backup.acl };
    acl.rows().for_each(|row| step.set(row));
}

/// Restores a current agent's node as alive, against the backup.
fn bring_back(step: &mut Step<'_>, agent: &Agent, ours: &State) {
    let folded = agent.node.folded();
    if let Some(node) = ours.catalog.nodes.get(&folded) {
        if step.state.passes_names_on() && ours.is_present(agent) {
            bring_back_node(step, node, ours);
        } else if !step.state.catalog.nodes.contains_key(&folded) {
            // The name may rightfully belong to another node of the backup; then this agent has
            // no node.
            let _ = ensure_node(step, node);
        }
    }
    if step.state.catalog.nodes.contains_key(&folded) {
        let health = ours.catalog.check_of(&folded, &CheckId::from(SERF_HEALTH));
        let health = health.map_or_else(|| alive_check(&agent.node), |check| (**check).clone());
        ensure_check(step, &health).expect("the node is there, and this check is about no service");
    }
}

/// Restores the node of a living agent with its own id and address: with the backup's id, the
/// next restart of the agent would be rejected as another node's.
fn bring_back_node(step: &mut Step<'_>, node: &Node, ours: &State) {
    let folded = node.name.folded();
    let known_as = step.state.catalog.node_ids.get(&node.id).filter(|known| **known != folded).cloned();
    // The backup knows it under a former name, which may have another living owner by now.
    if let Some(former) = known_as {
        match ours.members.of_node(&former).filter(|owner| ours.is_present(owner)) {
            Some(owner) => set_node_id(step, &former, &owner.node_id),
            None => delete_node(step, &former, &LossCause::NodeDeregistered),
        }
    }
    set_node_id(step, &node.name, &node.id);
    // Only a name's claim can fail, and the name has its id now.
    let _ = ensure_node(step, node);
}

impl State {
    /// `true` for the agent to which its name belongs, unless it failed or left.
    fn is_present(&self, agent: &Agent) -> bool {
        is_living(agent) && self.members.is_member(agent)
    }

    /// Raises every query's index to `to`, which is newer than all before: any known index becomes
    /// outdated.
    ///
    /// Sessions and the catalog use the indexes of their tables, so their rows keep their own.
    pub fn raise_indexes(&mut self, to: LogIndex) {
        let changed = |entry: &Entry| Arc::new(Entry { modify_index: to, ..entry.clone() });
        let entries: Vec<_> =
            self.keys.entries.iter().map(|(key, entry)| (key.clone(), changed(entry))).collect();
        entries.into_iter().for_each(|(key, entry)| self.load(Change::Entry(key, Some(entry))));
        self.catalog.node_indexes.values_mut().for_each(|index| *index = to);
        // Tombstones keep indexes from going back, and no index is below this one.
        self.keys.tombstones = Pages::default();
        let format = self.format();
        for (table, index) in TABLES.iter().zip(&mut self.table_indexes) {
            // A server of an earlier build cannot read the others.
            if table.since() <= format {
                *index = to;
            }
        }
        self.catalog.indexes.raise(to);
    }

    fn restore_has_begun(&self, id: u64) -> Result<(), RestoreError> {
        if self.restore_parts.contains_key(&(id, BEGUN)) {
            return Ok(());
        }
        Err(RestoreError::NotBegun)
    }

    /// The backup as a state of its own, if it is complete and valid.
    fn gathered(&self, id: u64, parts: u32) -> Result<State, RestoreError> {
        self.restore_has_begun(id)?;
        let mut backup = State::new();
        for number in 0..parts {
            let rows = self.restore_parts.get(&(id, number));
            let rows = rows.ok_or(RestoreError::MissingPart { number, parts })?;
            let rows = format::decode::<Vec<Change>>(rows);
            let rows = rows.map_err(|cause| RestoreError::Unreadable { number, cause })?;
            rows.into_iter().for_each(|row| backup.load(row));
        }
        let count = self.restore_parts.range((id, 0)..(id, BEGUN)).count();
        if count != parts as usize {
            return Err(RestoreError::OtherCount { count, parts });
        }
        let newest = backup.table_indexes.iter().max().copied().unwrap_or_default();
        if newest > LogIndex(NUMBER_MAX) || backup.fence > Fence(NUMBER_MAX) {
            return Err(RestoreError::NumbersTooLarge);
        }
        // Before any of our rows change: a backup is a file, and files can be wrong.
        backup.check().map_err(RestoreError::Inconsistent)?;
        Ok(backup)
    }
}

impl State {
    /// The time for which a guard of this session may rely on its locks without any message, and at
    /// least the session's lock-delay.
    fn belief_of(&self, session: &Session) -> Duration {
        let is_restarting = self
            .members
            .of_node(&session.spec.node.folded())
            .is_some_and(|agent| agent.restart_announced.is_some());
        let longest = if is_restarting { RESTART_WINDOW } else { HealthWindow::Safe.validity() };
        // With its node's lease, the earlier of both deadlines counts.
        let ttl = session.spec.ttl.filter(|_| !Self::depends_on_its_node(session));
        longest.max(ttl.unwrap_or_default()).max(session.spec.lock_delay).min(MAX_LOCK_DELAY)
    }
}

/// Returns whether a change sets a row of a backup.
fn is_row(change: &Change) -> bool {
    match change {
        Change::Entry(_, row) => row.is_some(),
        Change::Session(_, row) => row.is_some(),
        Change::Node(_, row) => row.is_some(),
        Change::NodeIndex(_, row) => row.is_some(),
        Change::Service(_, _, row) => row.is_some(),
        Change::Check(_, _, row) => row.is_some(),
        Change::Coordinate(_, row) => row.is_some(),
        Change::Tombstone(_, row) => row.is_some(),
        Change::LockDelay(_, row) => row.is_some(),
        Change::Waiter(_, _, row) => row.is_some(),
        Change::Agent(_, row) => row.is_some(),
        Change::Reply(_, _, row) => row.is_some(),
        Change::Loss(_, row) => row.is_some(),
        Change::RestorePart(_, _, row) => row.is_some(),
        Change::Server(_, row) => row.is_some(),
        Change::PreparedQuery(_, row) => row.is_some(),
        Change::Token(_, row) => row.is_some(),
        Change::Policy(_, row) => row.is_some(),
        Change::Role(_, row) => row.is_some(),
        Change::AuthMethod(_, row) => row.is_some(),
        Change::BindingRule(_, row) => row.is_some(),
        Change::Binding(_, _, row) => row.is_some(),
        Change::LockRequest(_, row) => row.is_some(),
        Change::SharedHold(_, _, row) => row.is_some(),
        Change::SharedDelay(_, row) => row.is_some(),
        Change::LowestSequence(..)
        | Change::TableIndex(..)
        | Change::Fence(_)
        | Change::LastAgent(_)
        | Change::IndexBase(_)
        | Change::ClusterId(_)
        | Change::LeaseKey(_)
        | Change::GossipKey(_)
        | Change::LastServer(_)
        | Change::Autopilot(..)
        | Change::Deadlocks(_)
        | Change::OperatorHosts(_)
        | Change::AclSettings(_)
        | Change::Format(_)
        | Change::ForgottenTombstones(_) => true,
        Change::Cleared | Change::TreeDeleted(_) => false,
    }
}

/// Returns whether a row is taken from a backup. Waiters are not: their requests ended long ago.
fn is_data(row: &Change) -> bool {
    matches!(
        row,
        Change::Entry(..)
            | Change::Session(..)
            | Change::Node(..)
            | Change::NodeIndex(..)
            | Change::Service(..)
            | Change::Check(..)
            | Change::Coordinate(..)
            | Change::Tombstone(..)
            | Change::LockDelay(..)
            | Change::Loss(..)
            | Change::PreparedQuery(..)
            | Change::Binding(..)
            | Change::SharedHold(..)
            | Change::SharedDelay(..)
    )
}

/// Returns whether a row of a backup identifies its cluster or that cluster's positions.
fn is_of_cluster(row: &Change) -> bool {
    matches!(row, Change::TableIndex(..) | Change::Fence(_) | Change::ClusterId(_))
}

/// Returns whether a row is of the access control lists.
fn is_of_acl(row: &Change) -> bool {
    matches!(
        row,
        Change::AclSettings(_)
            | Change::Token(..)
            | Change::Policy(..)
            | Change::Role(..)
            | Change::AuthMethod(..)
            | Change::BindingRule(..)
    )
}

/// Returns whether a row belongs to the agents or servers, which stay.
fn is_ours(row: &Change) -> bool {
    matches!(
        row,
        Change::LastAgent(_)
            | Change::Agent(..)
            | Change::LowestSequence(..)
            | Change::Reply(..)
            | Change::LastServer(_)
            | Change::Server(..)
            | Change::Autopilot(..)
            | Change::Deadlocks(_)
            | Change::OperatorHosts(_)
            | Change::Format(_)
            | Change::LeaseKey(_)
            | Change::GossipKey(_)
    )
}
