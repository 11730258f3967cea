//! Random commands, compared with a naive model and with invariants of any run.

mod names;
mod storm;

use lockmesh_core::state::DeadlockCounts;
use lockmesh_core::{Proposal, State};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{AgentRegistration, Command, RestoreStep};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{
    AgentNumber, Fence, Generation, Key, LogIndex, NodeName, RequestId, SessionId, Term, WallTime,
};
use lockmesh_protocol::lease::{HealthWindow, LeaseKey};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{LockRequest, RequestedLock, Waiter};
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use proptest::prelude::{Just, Strategy, any, prop};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};
use std::collections::BTreeSet;
use std::sync::Arc;
use storm::actions::{Action, KEYS, NODES, SESSIONS, actions, contention, node};
use storm::locks::{self, Locks};
use storm::model::Model;

/// A state with its history.
#[derive(Default)]
struct Run {
    state: State,
    rebuilt: State,
    index: u64,
}

/// The formats of the cluster whose rules differ.
fn formats() -> impl Strategy<Value = u8> {
    format::FIRST..=format::NEWEST
}

impl Run {
    /// A state of this format.
    fn at(format: u8) -> Self {
        let mut run = Self::default();
        run.apply(None, Command::RaiseFormat(format));
        assert_eq!(run.state.format(), format);
        run
    }

    fn apply(&mut self, request: Option<RequestId>, command: Command) -> (Arc<Applied>, Vec<Change>) {
        self.index += 1;
        let proposal = Proposal::new(request, WallTime(self.index), command);
        let mut changes = Vec::new();
        let applied = self.state.apply(LogIndex(self.index), TERM, &proposal, &mut changes);
        changes.iter().for_each(|change| self.rebuilt.load(change.clone()));
        (applied, changes)
    }

    /// Restores a backup in this many parts; returns the last step's reply.
    fn restore(&mut self, id: u64, backup: &[Change], parts: usize) -> Reply {
        let begun = self.apply(None, Command::Restore(RestoreStep::Begin { id })).0;
        assert_eq!(begun.reply, Reply::Done);
        let size = backup.len().div_ceil(parts).max(1);
        let mut count = 0;
        for rows in backup.chunks(size) {
            let step = RestoreStep::Part { id, number: count, rows: rows.to_vec() };
            assert_eq!(self.apply(None, Command::Restore(step)).0.reply, Reply::Done);
            count += 1;
        }
        self.apply(None, Command::Restore(RestoreStep::Commit { id, parts: count })).0.reply.clone()
    }
}

const TERM: Term = Term(3);

proptest! {
    /// For any commands in any order, the state replies like the model, and has the same contents.
    #[test]
    fn state_matches_model(format in formats(), actions in actions(1..80)) {
        let (mut run, mut model) = (Run::at(format), Model::default());
        for action in actions {
            let command = action.command(&model);
            let expected = model.apply(LogIndex(run.index + 1), TERM, &command);
            let (applied, _) = run.apply(None, command.clone());
            prop_assert_eq!(&applied.reply, &expected, "{:?}", command);
            prop_assert_eq!(rows(&run.state, Query::Entries(Key::from(""))), Rows::Entries(model.sorted_entries()));
            prop_assert_eq!(rows(&run.state, Query::Sessions), Rows::Sessions(model.sorted_sessions()));
            let delays: Vec<_> = run.state.delays().map(|(key, delay)| (key.clone(), *delay)).collect();
            prop_assert_eq!(delays, model.sorted_delays());
            prop_assert_eq!(waiters(&run.state), model.sorted_waiters());
        }
    }

    /// After every command the invariants hold, and changes and rows describe the whole state.
    #[test]
    fn state_equals_replayed_changes(format in formats(), actions in actions(1..60)) {
        let (mut run, mut model) = (Run::at(format), Model::default());
        for action in actions {
            let command = action.command(&model);
            model.apply(LogIndex(run.index + 1), TERM, &command);
            run.apply(None, command);
            prop_assert_eq!(run.state.check(), Ok(()));
            prop_assert_eq!(&run.state, &run.rebuilt);
        }
        let mut from_rows = State::new();
        run.state.rows().for_each(|row| from_rows.load(row));
        prop_assert_eq!(&run.state, &from_rows);
    }

    /// If all sessions compete for one lock, and transactions pass it on past its queue, no session
    /// waits for a lock that it holds.
    #[test]
    fn contended_lock_matches_model(format in formats(), actions in contention(1..40)) {
        let (mut run, mut model) = (Run::at(format), Model::default());
        for action in actions {
            let command = action.command(&model);
            let expected = model.apply(LogIndex(run.index + 1), TERM, &command);
            let (applied, _) = run.apply(None, command.clone());
            prop_assert_eq!(&applied.reply, &expected, "{:?}", command);
            prop_assert_eq!(waiters(&run.state), model.sorted_waiters());
            prop_assert_eq!(run.state.check(), Ok(()));
        }
    }

    /// Locks in both modes, several at once, are granted as a search from the start would grant
    /// them: no two holds conflict, all or none, upgrades first, then by position.
    #[test]
    fn shared_locks_match_model(actions in locks::actions()) {
        let (mut run, mut model) = (Run::at(format::NEWEST), Locks::default());
        for command in locks::beginning() {
            run.apply(None, command);
        }
        for action in actions {
            let command = model.command(&action);
            let (applied, _) = run.apply(None, command.clone());
            model.apply(applied.index, &command, &applied.reply);
            let held = |key: &str, id| Some((Key::from(key), id, run.state.mode_held(&Key::from(key), id)?));
            let of_key = |key| locks::OWNERS.into_iter().filter_map(move |name| held(key, names::session(name)));
            let holds: BTreeSet<_> = locks::LOCKS.into_iter().flat_map(of_key).collect();
            prop_assert_eq!(holds, model.holds(), "{:?}", command);
            let positions = run.state.requests().iter().map(|(position, request)| (*position, request.session));
            prop_assert_eq!(positions.collect::<BTreeSet<_>>(), model.positions(), "{:?}", command);
            prop_assert_eq!(DeadlockCounts::of(&run.state).found, model.found, "{:?}", command);
            prop_assert_eq!(run.state.check(), Ok(()));
            prop_assert_eq!(&run.state, &run.rebuilt);
        }
        let mut from_rows = State::new();
        run.state.rows().for_each(|row| from_rows.load(row));
        prop_assert_eq!(&run.state, &from_rows);
    }

    /// The same log gives the same replies, changes and state.
    #[test]
    fn replay_is_deterministic(format in formats(), actions in actions(1..60)) {
        let (mut once, mut twice, mut model) = (Run::at(format), Run::at(format), Model::default());
        for action in actions {
            let command = action.command(&model);
            model.apply(LogIndex(once.index + 1), TERM, &command);
            prop_assert_eq!(once.apply(None, command.clone()), twice.apply(None, command));
        }
        prop_assert_eq!(once.state, twice.state);
    }

    /// A reader that waits beyond its known index misses nothing: every change has a higher index.
    /// No index goes back, except where tombstones are reaped.
    #[test]
    fn index_advances_with_every_change(format in formats(), actions in actions(1..60)) {
        let (mut run, mut model) = (Run::at(format), Model::default());
        an_index_tells_of(&mut run, &mut model, actions)?;
    }

    /// A repeated command changes nothing and gets the same reply, unless the lock that it acquired
    /// is lost.
    #[test]
    fn repeated_command_is_idempotent(format in formats(), actions in actions(1..60), deliveries in deliveries()) {
        let (mut run, mut model) = (Run::at(format), Model::default());
        run.apply(None, Command::RegisterAgent(AgentRegistration::of(node("agent", "a"))));
        let mut sent: Vec<(RequestId, Command, Option<Arc<Applied>>)> = Vec::new();
        for (action, delivery) in actions.into_iter().zip(deliveries.into_iter().cycle()) {
            let command = action.command(&model);
            model.apply(LogIndex(run.index + 1), TERM, &command);
            let sequence = sent.len() as u64 + 1;
            let lowest = if delivery.forgets { sequence.saturating_sub(5).max(1) } else { 1 };
            let request = RequestId { agent: AgentNumber(1), generation: Generation(1), sequence, lowest };
            let answer = delivery.arrives.then(|| run.apply(Some(request), command.clone()).0);
            sent.push((request, command, answer));
            let (request, command, answer) = sent[delivery.again.index(sent.len())].clone();
            if let Some(answer) = answer {
                let before = run.state.clone();
                let (again, _) = run.apply(Some(request), command);
                prop_assert_eq!(&run.state, &before);
                prop_assert!(is_as_good(&run.state, &answer, &again), "{:?} then {:?}", answer, again);
            }
            prop_assert_eq!(run.state.check(), Ok(()));
        }
    }
}

proptest! {
    /// A backup restores its contents, whatever happened since, and no index or token is reused.
    #[test]
    fn a_backup_brings_everything_back(format in formats(), before in actions(1..40), since in actions(1..40), parts in 1usize..5) {
        let (mut run, mut model) = (Run::at(format), Model::default());
        run.apply(None, Command::Bootstrap { cluster_id: "here".into(), servers: Vec::new(), lease_key: LeaseKey([7; 32]) });
        run.apply(None, Command::RegisterAgent(AgentRegistration::of(node("agent", "a"))));
        play(&mut run, &mut model, before);
        let backup: Vec<Change> = run.state.rows().collect();
        let (saved, mut saved_model) = (run.state.clone(), model.clone());
        play(&mut run, &mut model, since.clone());
        // Held and closed locks stay closed: the next storm covers that.
        let_go(&mut run);
        let (fence, index) = (run.state.fence(), LogIndex(run.index));
        prop_assert_eq!(run.restore(1, &backup, parts), Reply::Done);
        for query in [Query::Entries(Key::from("")), Query::Sessions, Query::Nodes, Query::ChecksInState(None)] {
            let (restored_at, restored) = run.state.query(&query);
            prop_assert_eq!(restored, changed_at(restored_at, rows(&saved, query)));
            prop_assert!(restored_at > index);
        }
        prop_assert!(run.state.delays().eq(saved.delays()));
        prop_assert_eq!(run.state.fence(), fence);
        prop_assert_eq!(run.state.check(), Ok(()));
        prop_assert_eq!(&run.state, &run.rebuilt);
        prop_assert_eq!(run.state.waiters().count(), 0);
        // The run continues from there. Waiters must request again.
        saved_model.forget_waiters();
        play(&mut run, &mut saved_model, since);
        prop_assert_eq!(run.state.check(), Ok(()));
    }

    /// The holder of a lock before a restore may rely on it: if the backup has no holder, the lock
    /// cannot be acquired at once. All other locks are as in the backup.
    #[test]
    fn restore_delays_previously_held_locks(format in formats(), before in actions(1..40), since in actions(1..40)) {
        let (mut run, mut model) = (Run::at(format), Model::default());
        run.apply(None, Command::Bootstrap { cluster_id: "here".into(), servers: Vec::new(), lease_key: LeaseKey([7; 32]) });
        play(&mut run, &mut model, before);
        let (backup, saved): (Vec<Change>, _) = (run.state.rows().collect(), run.state.clone());
        play(&mut run, &mut model, since);
        let ours = run.state.clone();
        prop_assert_eq!(run.restore(1, &backup, 2), Reply::Done);
        prop_assert_eq!(run.state.check(), Ok(()));
        for key in held_keys(&ours) {
            let (saved, is) = (grant_of(&saved, &key), grant_of(&run.state, &key));
            prop_assert_eq!(&is, &saved, "{} is held as in the backup", key);
            let closed = run.state.lock_delay(&key).is_some_and(|delay| delay.duration >= HealthWindow::Safe.validity());
            prop_assert!(is.is_some() || closed, "{} was held, and can be acquired at once", key);
        }
        for key in held_keys(&saved) {
            prop_assert_eq!(grant_of(&run.state, &key), grant_of(&saved, &key), "{} is lost", key);
        }
    }

    /// A restore is new to every query, whatever index it knows: from before, or from the backup.
    #[test]
    fn restore_wakes_every_query(format in formats(), before in actions(1..40), since in actions(1..40)) {
        let (mut run, mut model) = (Run::at(format), Model::default());
        run.apply(None, Command::Bootstrap { cluster_id: "here".into(), servers: Vec::new(), lease_key: LeaseKey([7; 32]) });
        play(&mut run, &mut model, before);
        let backup: Vec<Change> = run.state.rows().collect();
        play(&mut run, &mut model, since.clone());
        let newest = LogIndex(run.index);
        prop_assert_eq!(run.restore(1, &backup, 2), Reply::Done);
        for query in queries().into_iter().chain([Query::Agents, Query::Locks(Key::from("a"))]) {
            prop_assert!(run.state.index_of(&query) > newest, "{:?} does not wake after the restore", query);
        }
        an_index_tells_of(&mut run, &mut model, since)?;
    }

    /// A backup with missing rows is rejected or restored to a valid state; it never does harm.
    #[test]
    fn incomplete_backup_keeps_state_valid(format in formats(), before in actions(1..40), kept in prop::collection::vec(any::<bool>(), 1..40)) {
        let (mut run, mut model) = (Run::at(format), Model::default());
        run.apply(None, Command::RegisterAgent(AgentRegistration::of(node("agent", "a"))));
        play(&mut run, &mut model, before.clone());
        let rows = run.state.rows().zip(kept.iter().cycle()).filter(|(_, kept)| **kept).map(|(row, _)| row);
        let backup: Vec<Change> = rows.collect();
        let entries = self::rows(&run.state, Query::Entries(Key::from("")));
        if run.restore(1, &backup, 2) != Reply::Done {
            prop_assert_eq!(self::rows(&run.state, Query::Entries(Key::from(""))), entries);
        }
        play(&mut run, &mut model, before);
        prop_assert_eq!(run.state.check(), Ok(()));
        prop_assert_eq!(&run.state, &run.rebuilt);
    }
}

fn an_index_tells_of(run: &mut Run, model: &mut Model, actions: Vec<Action>) -> Result<(), TestCaseError> {
    let mut known: Vec<_> = queries().iter().map(|query| seen(&run.state, query)).collect();
    for action in actions {
        let command = action.command(model);
        model.apply(LogIndex(run.index + 1), TERM, &command);
        let forgets = matches!(command, Command::ReapTombstones { .. });
        run.apply(None, command);
        for (query, (known_index, known_rows)) in queries().iter().zip(&mut known) {
            let (index, rows) = seen(&run.state, query);
            prop_assert!(rows == *known_rows || index > *known_index, "{:?} from {}", query, known_index);
            prop_assert!(index >= *known_index || forgets, "{:?} went back from {}", query, known_index);
            (*known_index, *known_rows) = (index, rows);
        }
    }
    Ok(())
}

fn play(run: &mut Run, model: &mut Model, actions: Vec<Action>) {
    for action in actions {
        let command = action.command(model);
        model.apply(LogIndex(run.index + 1), TERM, &command);
        run.apply(None, command);
    }
}

/// The fate of a command in the network.
#[derive(Clone, Debug)]
struct Delivery {
    arrives: bool,
    forgets: bool,
    /// The command that is repeated.
    again: prop::sample::Index,
}

fn deliveries() -> impl Strategy<Value = Vec<Delivery>> {
    let arrives = prop_oneof![4 => Just(true), 1 => Just(false)];
    let delivery = (arrives, any::<bool>(), any::<prop::sample::Index>());
    let delivery = delivery.prop_map(|(arrives, forgets, again)| Delivery { arrives, forgets, again });
    prop::collection::vec(delivery, 1..60)
}

/// Returns whether a second reply may follow a first one.
fn is_as_good(state: &State, first: &Applied, again: &Applied) -> bool {
    match (&first.reply, &again.reply) {
        (_, Reply::Refused(Refusal::Forgotten)) => true,
        (Reply::Granted { fence }, Reply::Succeeded(false)) => {
            let Rows::Locks(locks) = rows(state, Query::Locks(Key::from(""))) else { return false };
            locks.iter().all(|lock| lock.fence != *fence || lock.session.is_none())
        }
        _ => first == again,
    }
}

/// The rows if all of them changed at one index. Only a key contains its index.
fn changed_at(index: LogIndex, mut rows: Rows) -> Rows {
    if let Rows::Entries(entries) = &mut rows {
        entries.iter_mut().for_each(|entry| Arc::make_mut(entry).modify_index = index);
    }
    rows
}

fn rows(state: &State, query: Query) -> Rows {
    state.query(&query).1
}

fn waiters(state: &State) -> Vec<(Key, LogIndex, Waiter)> {
    let waiter = |row: &LockRequest| {
        let RequestedLock { value, flags, .. } = row.locks[0].clone();
        let LockRequest { session, wait, enqueued_at_index, .. } = *row;
        Waiter { session, value, flags, wait, enqueued_at_index }
    };
    state.waiters().map(|(key, position, row)| (key.clone(), position, waiter(row))).collect()
}

/// An answer as clients see it, without the pending-grant mark, which only agents use.
fn seen(state: &State, query: &Query) -> (LogIndex, Rows) {
    let (index, mut rows) = state.query(query);
    if let Rows::Entries(entries) = &mut rows {
        entries.iter_mut().for_each(|entry| Arc::make_mut(entry).lock.granted_for = None);
    }
    (index, rows)
}

fn queries() -> Vec<Query> {
    let keys = KEYS.iter().map(|key| Query::Entry(Key::from(*key)));
    let prefixes = ["", "a", "a/", "a/b", "b", "c"];
    let entries = prefixes.iter().map(|prefix| Query::Entries(Key::from(*prefix)));
    let names =
        prefixes.iter().map(|prefix| Query::Keys { prefix: Key::from(*prefix), separator: "/".into() });
    let sessions = SESSIONS.iter().map(|session| Query::Session(names::session(session)));
    let nodes = NODES.iter().flat_map(|name| {
        let name = NodeName::from(*name);
        [Query::Node(name.clone()), Query::NodeChecks(name.clone()), Query::NodeSessions(name)]
    });
    let whole = [
        Query::Sessions,
        Query::Nodes,
        Query::ChecksInState(None),
        Query::Services,
        Query::ServiceInstances("web".into()),
        Query::ServiceChecks("web".into()),
        Query::Losses,
    ];
    keys.chain(entries).chain(names).chain(sessions).chain(nodes).chain(whole).collect()
}

/// Every kind of action occurs often enough.
#[test]
fn actions_cover_every_reply_kind() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut granted, mut delayed, mut held, mut queued, mut failed, mut done) = (0, 0, 0, 0, 0, 0);
    for _ in 0..200 {
        let actions: Vec<Action> =
            proptest::strategy::ValueTree::current(&actions(40..80).new_tree(&mut runner).expect("actions"));
        let (mut run, mut model) = (Run::at(format::NEWEST), Model::default());
        for action in actions {
            let command = action.command(&model);
            model.apply(LogIndex(run.index + 1), TERM, &command);
            match &run.apply(None, command).0.reply {
                Reply::Granted { .. } => granted += 1,
                Reply::Delayed { .. } => delayed += 1,
                Reply::Succeeded(false) => held += 1,
                Reply::Queued { .. } => queued += 1,
                Reply::TxnFailed(_) => failed += 1,
                Reply::Txn(_) => done += 1,
                _ => {}
            }
        }
    }
    let counts = [granted, delayed, held, queued, failed, done];
    assert!(
        counts.iter().all(|count| *count > 50),
        "granted, delayed, held, queued, failed, done: {counts:?}"
    );
}

/// Ends every session, and every lock-delay.
fn let_go(run: &mut Run) {
    let sessions: Vec<_> = run.state.sessions().map(|session| session.spec.id).collect();
    for session in sessions {
        run.apply(None, Command::DestroySession(session));
    }
    let base = run.state.index_base();
    let delays: Vec<_> =
        run.state.delays().map(|(key, delay)| (key.clone(), delay.started_at_index)).collect();
    for (key, started_at_index) in delays {
        run.apply(None, Command::EndLockDelay { key, started_at_index, base });
    }
}

/// The held keys.
fn held_keys(state: &State) -> Vec<Key> {
    state
        .rows()
        .filter_map(|row| match row {
            Change::Entry(key, Some(entry)) => entry.lock.session.map(|_| key),
            _ => None,
        })
        .collect()
}

/// The holder of a key, and its grant.
fn grant_of(state: &State, key: &Key) -> Option<(SessionId, Fence)> {
    state.rows().find_map(|row| match row {
        Change::Entry(known, Some(entry)) if known == *key => Some((entry.lock.session?, entry.lock.fence)),
        _ => None,
    })
}
