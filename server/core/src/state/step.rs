//! One command in execution. The rules in the other files are methods of [`Step`].
//!
//! Only [`Step::set`] changes a row: the change is made and listed together, so that the state and
//! its changes never diverge.

use super::State;
use super::removed::{Removed, TreeBefore};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{Key, LogIndex, Term, WallTime};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::collections::BTreeSet;

/// One command in execution on the state.
pub(super) struct Step<'a> {
    pub(super) state: &'a mut State,
    /// The command's index as clients see it.
    pub(super) index: LogIndex,
    /// The command's index in the log.
    pub(super) log_index: LogIndex,
    /// The term that wrote the command.
    pub(super) term: Term,
    /// The time of the proposal, for display only.
    pub(super) at: WallTime,
    changes: &'a mut Vec<Change>,
    /// The rows that were removed in bulk.
    removed: &'a mut Removed,
    /// The keys with a queue that this command may have freed.
    pub(super) freed: BTreeSet<Key>,
    /// The undo list of the current attempt, in the order of its changes.
    undo: Option<Vec<Undo>>,
}

/// The inverse of a change.
enum Undo {
    Row(Change),
    Tree(TreeBefore),
}

impl<'a> Step<'a> {
    pub(super) fn new(
        state: &'a mut State,
        log_index: LogIndex,
        term: Term,
        at: WallTime,
        (changes, removed): (&'a mut Vec<Change>, &'a mut Removed),
    ) -> Self {
        // With the base before this command: a restore changes it explicitly.
        let index = LogIndex(log_index.0 + state.index_base);
        let freed = BTreeSet::new();
        Self { state, index, log_index, term, at, changes, removed, freed, undo: None }
    }

    /// Executes a new command, and grants every lock with waiters that it freed.
    pub(super) fn execute(&mut self, command: &Command) -> Reply {
        let reply = self.carry_out(command);
        // Last: no lock is granted that the same command acquires, or to a session that it ends.
        self.grant_freed();
        reply
    }

    fn carry_out(&mut self, command: &Command) -> Reply {
        match command {
            Command::Kv(command) => self.kv(command),
            Command::CreateSession(session) => self.create_session(session),
            Command::DestroySession(session) => self.destroy_session(*session),
            Command::GiveUpSession { session, silent_for } => self.give_up_session(*session, *silent_for),
            Command::Txn(ops) => self.txn(ops),
            Command::Register(registration) => self.register(registration),
            Command::Deregister(deregistration) => self.deregister(deregistration),
            Command::RegisterAgent(registration) => self.register_agent(registration),
            Command::ExpireSession { session, term, base } => self.expire_session(*session, *term, *base),
            Command::EndLockDelay { key, started_at_index, base } => {
                self.end_lock_delay(key, *started_at_index, *base)
            }
            Command::EndWait { key, queue_position, enqueued_at_index } => {
                self.end_wait(key, *queue_position, *enqueued_at_index)
            }
            Command::ReapTombstones { up_to } => self.reap_tombstones(*up_to),
            Command::Restore(step) => self.restore(step),
            Command::Bootstrap { cluster_id, servers, lease_key } => {
                self.bootstrap(cluster_id, servers, *lease_key)
            }
            Command::AdmitServer(server) => self.admit_server(server),
            Command::UpdateServer(server) => self.update_server(server),
            Command::ForgetServer(id) => self.forget_server(*id),
            Command::ConfigureAutopilot(autopilot, expected) => {
                self.configure_autopilot(autopilot, *expected)
            }
            Command::CorruptionCheck => Reply::Done,
            Command::RaiseFormat(format) => self.raise_format(*format),
            Command::FailNode(failure) => self.fail_node(failure),
            Command::EndFormerSessions { lease, window, term, base } => {
                self.end_former_sessions(*lease, *window, *term, *base)
            }
            Command::LeaveNode(leave) => self.leave_node(leave),
            Command::AnnounceRestart(lease) => self.announce_restart(*lease),
            Command::Reconcile { members, strangers } => self.reconcile(members, strangers),
            Command::ReapMember { lease, term, base } => self.reap_member(*lease, *term, *base),
            Command::EndRestart { agent, announced_at, term, base } => {
                self.end_restart(*agent, *announced_at, *term, *base)
            }
            Command::RotateGossipKey { from } => self.rotate_gossip_key(*from),
        }
    }

    /// Changes a row, or removes a tree.
    pub(super) fn set(&mut self, change: Change) {
        if let Some(undo) = &mut self.undo {
            undo.push(match &change {
                Change::TreeDeleted(prefix) => Undo::Tree(self.state.tree_before(prefix)),
                change => Undo::Row(self.state.inverse(change)),
            });
        }
        debug_assert!(!self.state.makes_again(&change), "it is made once: {change:?}");
        self.note_freed(&change);
        match &change {
            // Handed over instead of freed: freeing very many rows would block the loop.
            Change::TreeDeleted(prefix) => self.removed.push(self.state.take_tree(prefix)),
            change => self.state.load(change.clone()),
        }
        self.changes.push(change);
    }

    /// Records that this command changed a table.
    pub(super) fn touch(&mut self, table: Table) {
        // Once per command, so that a large one does not list the same row repeatedly.
        if self.state.table_index(table) != self.index {
            self.set(Change::TableIndex(table, self.index));
        }
    }

    /// Runs `work` and rolls its changes back if it fails.
    pub(super) fn attempt<T, E>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        debug_assert!(self.undo.is_none(), "attempts are not nested");
        let listed = self.changes.len();
        self.undo = Some(Vec::new());
        let outcome = work(self);
        let undo = self.undo.take().unwrap_or_default();
        if outcome.is_err() {
            // In reverse: a later change may be of a row that an earlier one set.
            undo.into_iter().rev().for_each(|undo| self.state.undo(undo));
            self.changes.truncate(listed);
        }
        outcome
    }
}

impl State {
    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Row(change) => self.load(change),
            Undo::Tree(before) => self.bring_tree_back(before),
        }
    }
}

/// The reply to a command that may be refused.
pub(super) fn reply_or_refusal(outcome: Result<Reply, Refusal>) -> Reply {
    outcome.unwrap_or_else(Reply::Refused)
}
