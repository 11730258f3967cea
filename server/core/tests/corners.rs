//! Limits and corner cases of the state machine, each in isolation.

use bytes::Bytes;
use lockmesh_core::state::{
    LOSS_KEYS_KEPT, LOSSES_KEPT, Listing, NODE_SESSIONS_MAX, REPLIES_KEPT, RESTORE_PARTS_MAX, WAITERS_MAX,
    query_view, view,
};
use lockmesh_core::{Proposal, State};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::{
    AgentRegistration, Command, KvCommand, KvVerb, NewEntry, NewQuery, QueryCommand, RestoreStep, TxnKv,
    TxnOp,
};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{
    AgentNumber, CheckId, Fence, Generation, Key, LogIndex, NodeName, QueryId, RequestId, ServerId,
    SessionId, Term, WallTime,
};
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::prepared_query::{PreparedQuery, QUERIES_MAX, QUERY_BYTES_MAX, QuerySpec};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::record::{
    Behavior, Coordinate, Entry, Finite, Lock, LockDelay, Loss, LossCause, NewServer, Node, ProcessBinding,
    SessionSpec, SharedHold, Waiter,
};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::sync::Arc;
use std::time::Duration;

mod names;
use names::session;

/// A cluster with one agent, number 1 in its first generation, on node `n1`.
struct Cluster {
    state: State,
    index: u64,
}

impl Cluster {
    fn new() -> Self {
        let mut cluster = Self { state: State::new(), index: 0 };
        cluster.apply(Command::Bootstrap {
            cluster_id: "here".into(),
            servers: Vec::new(),
            lease_key: LeaseKey([7; 32]),
        });
        cluster.apply(Command::RegisterAgent(AgentRegistration::of(node())));
        cluster
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.request(None, command)
    }

    fn request(&mut self, request: Option<RequestId>, command: Command) -> Reply {
        self.index += 1;
        let proposal = Proposal::new(request, WallTime(7), command);
        self.state.apply(LogIndex(self.index), Term(1), &proposal, &mut Vec::new()).reply.clone()
    }

    fn create_session(&mut self, id: &str) {
        let spec = SessionSpec {
            id: session(id),
            name: String::new(),
            node: NodeName::from("n1"),
            lock_delay: Duration::from_secs(15),
            behavior: Behavior::Release,
            ttl_text: String::new(),
            ttl: None,
            checks: Vec::new(),
            node_checks: vec![CheckId::from("serfHealth")],
            service_checks: None,
            health_window: Default::default(),
        };
        assert_eq!(self.apply(Command::CreateSession(spec)), Reply::Session(session(id)));
    }

    fn losses(&self) -> Vec<Arc<Loss>> {
        let (_, Rows::Losses(losses)) = self.state.query(&Query::Losses) else { panic!("not losses") };
        losses
    }

    fn locks(&self) -> usize {
        let (_, Rows::Locks(locks)) = self.state.query(&Query::Locks(Key::from(""))) else {
            panic!("not locks")
        };
        locks.len()
    }
}

fn node() -> Node {
    Node::of(NodeName::from("n1"), "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa".into(), "10.0.0.1")
}

fn put(key: &str) -> Command {
    Command::Kv(KvCommand::Set(entry(key)))
}

fn acquire(key: &str, holder: &str) -> Command {
    Command::Kv(KvCommand::Acquire(entry(key), session(holder)))
}

fn entry(key: &str) -> NewEntry {
    NewEntry { key: Key::from(key), value: Bytes::from_static(b"1"), flags: 0 }
}

fn request(sequence: u64) -> Option<RequestId> {
    Some(RequestId { agent: AgentNumber(1), generation: Generation(1), sequence, lowest: 1 })
}

fn forgotten() -> Reply {
    Reply::Refused(Refusal::Forgotten)
}

/// An agent that never raises its lowest sequence loses its oldest replies, and may not reuse their
/// numbers.
#[test]
fn replies_kept_per_agent_bounded() {
    let mut cluster = Cluster::new();
    let most = REPLIES_KEPT as u64;
    for sequence in 1..=most + 10 {
        assert_eq!(cluster.request(request(sequence), put("a")), Reply::Succeeded(true));
    }
    let kept = cluster.state.rows().filter(|row| matches!(row, Change::Reply(..))).count();
    assert_eq!(kept, REPLIES_KEPT);
    assert_eq!(cluster.state.check(), Ok(()));
    assert_eq!(cluster.request(request(10), put("b")), forgotten());
    assert_eq!(cluster.request(request(11), put("b")), Reply::Succeeded(true), "the oldest one kept");
    let absent = cluster.state.query(&Query::Entry(Key::from("b"))).1;
    assert_eq!(absent, Rows::Entries(Vec::new()), "it returned the kept reply and was not executed");
}

/// Requests of an unregistered agent or of a later generation are rejected.
#[test]
fn requests_need_registered_generation() {
    let mut cluster = Cluster::new();
    let of = |agent, generation| {
        Some(RequestId {
            agent: AgentNumber(agent),
            generation: Generation(generation),
            sequence: 1,
            lowest: 1,
        })
    };
    for stranger in [of(2, 1), of(1, 0), of(1, 2)] {
        assert_eq!(cluster.request(stranger, put("a")), forgotten());
    }
    assert_eq!(cluster.request(of(1, 1), put("a")), Reply::Succeeded(true));
}

/// A session with very many locks releases all at one index, and its loss names only some.
#[test]
fn session_end_releases_10000_locks() {
    let mut cluster = Cluster::new();
    cluster.create_session("s1");
    for number in 0..10_000 {
        let granted = cluster.apply(acquire(&format!("lock/{number:05}"), "s1"));
        assert_eq!(granted, Reply::Granted { fence: Fence(number + 1) });
    }
    assert_eq!(cluster.apply(Command::DestroySession(session("s1"))), Reply::Done);
    let ended_at = LogIndex(cluster.index);
    let (index, Rows::Entries(entries)) = cluster.state.query(&Query::Entries(Key::from("lock/"))) else {
        panic!("not entries")
    };
    assert_eq!((index, entries.len()), (ended_at, 10_000));
    assert!(entries.iter().all(|entry| entry.lock.session.is_none() && entry.modify_index == ended_at));
    assert_eq!(
        cluster.state.delays().filter(|(_, delay)| delay.started_at_index == ended_at).count(),
        10_000
    );
    let loss = &cluster.losses()[0];
    assert_eq!((loss.keys.len(), loss.key_count), (LOSS_KEYS_KEPT, 10_000));
    assert_eq!(loss.keys[1], (Key::from("lock/00001"), Fence(2)));
    assert_eq!(cluster.state.check(), Ok(()));
}

/// The loss history keeps the newest entries.
#[test]
fn loss_history_keeps_newest() {
    let mut cluster = Cluster::new();
    for number in 0..LOSSES_KEPT + 5 {
        cluster.create_session(&format!("s{number}"));
        cluster.apply(Command::DestroySession(session(&format!("s{number}"))));
    }
    let losses = cluster.losses();
    assert_eq!(losses.len() as u64, LOSSES_KEPT);
    assert_eq!(losses[0].session, session(&format!("s{}", LOSSES_KEPT + 4)));
    assert_eq!(losses.last().map(|loss| loss.session), Some(session("s5")));
}

/// Neither a flood of sessions without locks nor one of another cause pushes out a loss.
#[test]
fn loss_history_survives_other_cause_flood() {
    let mut cluster = Cluster::new();
    cluster.apply(Command::RaiseFormat(3));
    let mut lose = |name: &str, keys: &[&str], end: fn(SessionId) -> Command| {
        cluster.create_session(name);
        keys.iter().for_each(|key| drop(cluster.apply(acquire(key, name))));
        cluster.apply(end(session(name)));
    };
    lose("given-up", &["a"], |session| Command::GiveUpSession {
        session,
        silent_for: Duration::from_secs(3),
    });
    for number in 0..LOSSES_KEPT + 5 {
        lose(&format!("idle-{number}"), &[], Command::DestroySession);
    }
    for number in 0..LOSSES_KEPT {
        lose(&format!("destroyed-{number}"), &[&format!("b/{number}")], Command::DestroySession);
    }
    let losses = cluster.losses();
    assert_eq!(losses.len() as u64, LOSSES_KEPT);
    assert_eq!(losses.last().map(|loss| loss.session), Some(session("given-up")));
    let idle = losses.iter().filter(|loss| loss.key_count == 0).count() as u64;
    assert!(idle.abs_diff(LOSSES_KEPT / 2) <= 1, "both floods keep their newest: {idle}");
    assert_eq!(cluster.state.check(), Ok(()));
}

/// A key that is deleted while a session holds it is a loss of that session, which lives on.
#[test]
fn deleted_key_is_holder_loss() {
    let mut cluster = Cluster::new();
    cluster.create_session("s1");
    let contender = format!("sem/{}", session("s1"));
    for key in ["a", "tree/a", "tree/b", &contender] {
        cluster.apply(acquire(key, "s1"));
    }
    let delete = |key: &str| Command::Kv(KvCommand::Delete(Key::from(key)));
    cluster.apply(delete("a"));
    assert_eq!(cluster.losses(), [], "an older build in the cluster could not read it");
    cluster.apply(Command::RaiseFormat(3));
    cluster.apply(acquire("a", "s1"));
    cluster.apply(delete("a"));
    cluster.apply(delete("a"));
    cluster.apply(delete(&contender));
    cluster.apply(Command::Kv(KvCommand::DeleteTree(Key::from("tree/"))));
    let losses = cluster.losses();
    let keys = |loss: &Loss| loss.keys.iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>();
    assert_eq!(
        losses.iter().map(|loss| keys(loss)).collect::<Vec<_>>(),
        [vec!["tree/a", "tree/b"], vec!["a"]]
    );
    assert!(losses.iter().all(|loss| loss.cause == LossCause::KeyDeleted && loss.session == session("s1")));
    assert_eq!(losses[1].keys[0].1, Fence(5), "the fence of the deleted grant");
    cluster.apply(Command::DestroySession(session("s1")));
    assert_eq!(cluster.losses()[0].key_count, 0, "nothing was held at its end");
    assert_eq!(cluster.state.check(), Ok(()));
}

/// The gathered parts of a restore survive a restart.
#[test]
fn restore_parts_survive_restart() {
    let mut cluster = Cluster::new();
    cluster.create_session("s1");
    cluster.apply(acquire("a", "s1"));
    let rows: Vec<Change> = cluster.state.rows().collect();
    let half = rows.len() / 2;
    cluster.apply(Command::DestroySession(session("s1")));
    let step = |cluster: &mut Cluster, step| {
        assert_eq!(cluster.apply(Command::Restore(step)), Reply::Done);
        let mut restarted = State::new();
        cluster.state.rows().for_each(|row| restarted.load(row));
        cluster.state = restarted;
    };
    step(&mut cluster, RestoreStep::Begin { id: 4 });
    // Parts may arrive in any order, and twice.
    step(&mut cluster, RestoreStep::Part { id: 4, number: 1, rows: rows[half..].to_vec() });
    step(&mut cluster, RestoreStep::Part { id: 4, number: 0, rows: rows[..half].to_vec() });
    step(&mut cluster, RestoreStep::Part { id: 4, number: 1, rows: rows[half..].to_vec() });
    step(&mut cluster, RestoreStep::Commit { id: 4, parts: 2 });
    assert_eq!(cluster.locks(), 1);
    assert!(cluster.state.session(session("s1")).is_some());
    assert_eq!(cluster.state.check(), Ok(()));
    assert!(!cluster.state.rows().any(|row| matches!(row, Change::RestorePart(..))), "nothing is left over");
}

/// A backup made during another restore does not include its parts.
#[test]
fn foreign_restore_parts_are_dropped() {
    let mut cluster = Cluster::new();
    cluster.apply(put("a"));
    cluster.apply(Command::Restore(RestoreStep::Begin { id: 1 }));
    let rows: Vec<Change> = cluster.state.rows().collect();
    assert!(rows.iter().any(|row| matches!(row, Change::RestorePart(..))));
    cluster.apply(Command::Restore(RestoreStep::Begin { id: 2 }));
    cluster.apply(Command::Restore(RestoreStep::Part { id: 2, number: 0, rows }));
    assert_eq!(cluster.apply(Command::Restore(RestoreStep::Commit { id: 2, parts: 1 })), Reply::Done);
    assert!(!cluster.state.rows().any(|row| matches!(row, Change::RestorePart(..))));
}

#[test]
fn full_node_rejects_new_session() {
    let mut cluster = Cluster::new();
    cluster.apply(Command::RaiseFormat(format::NEWEST));
    cluster.create_session("first");
    let row = cluster.state.session(session("first")).expect("it was created").clone();
    for number in 1..NODE_SESSIONS_MAX as u128 {
        let id = SessionId::from_random(number.to_be_bytes());
        cluster.state.load(Change::Session(id, Some(row.clone())));
    }
    let create = |node: &str| {
        let spec = SessionSpec { id: session("last"), node: node.into(), ..row.spec.clone() };
        Command::CreateSession(spec)
    };
    let full = Refusal::TooManySessions("N1".into(), NODE_SESSIONS_MAX);
    assert_eq!(cluster.apply(create("N1")), Reply::Refused(full));
    cluster.apply(Command::DestroySession(session("first")));
    assert_eq!(cluster.apply(create("N1")), Reply::Session(session("last")));
}

/// A queue has a maximum length; sessions in it may repeat their requests.
#[test]
fn full_queue_rejects_new_waiter() {
    let mut cluster = Cluster::new();
    let name = |number: usize| format!("s{number}");
    let enqueue = |number| {
        let new = NewEntry { key: Key::from("a"), value: Bytes::new(), flags: 0 };
        let wait = Duration::from_secs(30);
        Command::Kv(KvCommand::Enqueue { new, session: session(&name(number)), wait })
    };
    (0..WAITERS_MAX + 2).for_each(|number| cluster.create_session(&name(number)));
    assert!(matches!(cluster.apply(enqueue(0)), Reply::Granted { .. }));
    for number in 1..=WAITERS_MAX {
        assert!(matches!(cluster.apply(enqueue(number)), Reply::Queued { .. }));
    }
    let newcomer = WAITERS_MAX + 1;
    assert_eq!(cluster.apply(enqueue(newcomer)), Reply::Refused(Refusal::QueueFull(WAITERS_MAX)));
    assert!(matches!(cluster.apply(enqueue(WAITERS_MAX)), Reply::Queued { .. }));
    cluster.apply(Command::DestroySession(session(&name(5))));
    assert!(matches!(cluster.apply(enqueue(newcomer)), Reply::Queued { .. }));
    assert_eq!(cluster.state.check(), Ok(()));
}

/// A harmful backup is refused.
#[test]
fn a_harmful_backup_is_refused() {
    let mut cluster = Cluster::new();
    cluster.apply(put("a"));
    let good: Vec<Change> = cluster.state.rows().collect();
    cluster.apply(Command::Restore(RestoreStep::Begin { id: 1 }));
    for (number, row) in [(0, Change::Cleared), (1, Change::Entry(Key::from("a"), None))] {
        let step = RestoreStep::Part { id: 1, number, rows: vec![row] };
        assert!(matches!(cluster.apply(Command::Restore(step)), Reply::Refused(Refusal::Restore(_))));
    }
    let far = RestoreStep::Part { id: 1, number: RESTORE_PARTS_MAX, rows: Vec::new() };
    assert!(matches!(cluster.apply(Command::Restore(far)), Reply::Refused(Refusal::Restore(_))));
    let stray = |key: &str, fence| Change::Entry(Key::from(key), Some(Arc::new(unlocked(key, fence))));
    let harmful = [
        Change::TableIndex(Table::Entries, LogIndex(u64::MAX)),
        Change::Fence(Fence(u64::MAX)),
        stray("b", Fence(9)),
        Change::LockDelay(
            Key::from("b"),
            Some(LockDelay { started_at_index: LogIndex(1), duration: Duration::from_secs(61) }),
        ),
    ];
    for row in harmful {
        let before: Vec<Change> =
            cluster.state.rows().filter(|row| !matches!(row, Change::RestorePart(..))).collect();
        let rows = good.iter().cloned().chain([row.clone()]).collect();
        cluster.apply(Command::Restore(RestoreStep::Part { id: 1, number: 0, rows }));
        let reply = cluster.apply(Command::Restore(RestoreStep::Commit { id: 1, parts: 1 }));
        assert!(matches!(reply, Reply::Refused(Refusal::Restore(_))), "{row:?}: {reply:?}");
        let after: Vec<Change> =
            cluster.state.rows().filter(|row| !matches!(row, Change::RestorePart(..))).collect();
        assert_eq!(before, after);
    }
}

/// The invariants detect rows that violate them.
#[test]
fn broken_rows_are_found_out() {
    let sentence = |rows: Vec<Change>| {
        let mut cluster = Cluster::new();
        cluster.create_session("s1");
        cluster.apply(acquire("a", "s1"));
        assert_eq!(cluster.state.check(), Ok(()));
        rows.into_iter().for_each(|row| cluster.state.load(row));
        cluster.state.check().expect_err("an invariant is violated").to_string()
    };
    let delay = LockDelay { started_at_index: LogIndex(1), duration: Duration::from_secs(1) };
    let hold = SharedHold {
        granted_index: LogIndex(1),
        queue_position: LogIndex(0),
        granted_at: WallTime(1),
        granted_for: None,
    };
    let node = NodeName::from("n1");
    let cases = [
        (Change::Session(session("s1"), None), "every holder of a lock"),
        (Change::Entry(Key::from("b"), Some(Arc::new(unlocked("c", Fence(0))))), "under its own key"),
        (Change::TableIndex(Table::Entries, LogIndex(0)), "newer than its table"),
        (Change::Fence(Fence(0)), "fencing token"),
        (Change::LockDelay(Key::from("a"), Some(delay)), "has no holder"),
        (Change::SharedDelay(Key::from("a"), Some(delay)), "without another delay or an exclusive holder"),
        (Change::SharedHold(Key::from("b"), session("s1"), Some(hold)), "never beside another"),
        (Change::SharedHold(Key::from("a"), session("s9"), Some(hold)), "every holder of a lock"),
        (waits("b", "s1"), "without passing another"),
        (waits("a", "s9"), "a session that lives"),
        (waits("a", "s1"), "has a use for it"),
        (Change::Check(node.clone(), CheckId::from("serfhealth"), None), "every session's node"),
        (Change::NodeIndex(node, None), "no two nodes"),
        (Change::Coordinate("n9".into(), Some(Arc::default())), "coordinate is of a registered node"),
        (Change::TableIndex(Table::Sessions, LogIndex(0)), "a session never changes"),
        (binding("n1", "s9"), "of a session that lives"),
        (binding("n9", "s1"), "of a session that lives"),
        (Change::LastAgent(AgentNumber(0)), "replies are kept"),
        (query(1, "q", Some("s9")), "its session lives"),
    ];
    let table = Change::TableIndex(Table::PreparedQueries, LogIndex(1));
    let found = sentence(vec![table, query(1, "q", None), query(2, "Q", None)]);
    assert!(found.contains("a name in common"), "{found}");
    for (row, words) in cases {
        let found = sentence(vec![row.clone()]);
        assert!(found.contains(words), "{row:?}: {found}");
    }
}

fn binding(node: &str, id: &str) -> Change {
    let binding = ProcessBinding { pid: 7, started_at: 100, boot_id: [1; 16], keeps_lock_delay: false };
    Change::Binding(node.into(), session(id), Some(binding))
}

fn query(number: u8, name: &str, bound_to: Option<&str>) -> Change {
    let spec = QuerySpec { name: name.into(), session: bound_to.map(session), ..QuerySpec::default() };
    let (id, create_index) = (QueryId::from_random([number; 16]), LogIndex(1));
    let query = PreparedQuery { id, spec, create_index, modify_index: create_index };
    Change::PreparedQuery(id, Some(Arc::new(query)))
}

/// The number and the size of prepared queries are limited here too, for all senders.
#[test]
fn prepared_queries_are_limited() {
    let mut cluster = Cluster::new();
    let create = |number: usize, spec: QuerySpec| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        let new = Box::new(NewQuery { spec, template_error: None });
        Command::PreparedQuery(QueryCommand::Create(QueryId::from_random(id), new))
    };
    let named = |number: usize| QuerySpec { name: format!("q{number}"), ..QuerySpec::default() };
    let refusal = |reply: Reply| match reply {
        Reply::Refused(refusal) => refusal.to_string(),
        other => panic!("it was not refused: {other:?}"),
    };
    let large = QuerySpec { token: "t".repeat(QUERY_BYTES_MAX), ..named(0) };
    let text = "the query has 32770 bytes, the maximum is 32768: use fewer or shorter texts";
    assert_eq!(refusal(cluster.apply(create(0, large))), text);
    for number in 0..QUERIES_MAX {
        assert_eq!(cluster.apply(create(number, named(number))), Reply::Done);
    }
    let full = refusal(cluster.apply(create(QUERIES_MAX, named(QUERIES_MAX))));
    assert_eq!(full, "there are 4096 prepared queries, the maximum: delete one first");
    assert_eq!(cluster.state.check(), Ok(()));
}

fn waits(key: &str, holder: &str) -> Change {
    let (value, wait) = (Bytes::new(), Duration::from_secs(1));
    let waiter = Waiter { session: session(holder), value, flags: 0, wait, enqueued_at_index: LogIndex(1) };
    Change::Waiter(Key::from(key), LogIndex(1), Some(Arc::new(waiter)))
}

fn unlocked(key: &str, fence: Fence) -> Entry {
    Entry {
        key: Key::from(key),
        value: Bytes::new(),
        flags: 0,
        lock: Lock { fence, ..Lock::default() },
        create_index: LogIndex(1),
        modify_index: LogIndex(1),
    }
}

#[test]
fn server_admission_requires_bootstrap() {
    let newcomer = NewServer {
        node: "s2".into(),
        node_id: "2".into(),
        address: "s2:1".into(),
        instance_id: "b".into(),
        format: format::NEWEST,
    };
    let admit = Command::AdmitServer(newcomer.clone());
    let mut cluster = Cluster { state: State::new(), index: 0 };
    let refused = cluster.apply(admit.clone());
    assert!(matches!(refused, Reply::Refused(Refusal::Roster(_))), "{refused:?}");
    let first = NewServer { instance_id: "a".into(), node: "s1".into(), ..newcomer }.with_id(ServerId(1));
    cluster.apply(Command::Bootstrap {
        cluster_id: "here".into(),
        servers: vec![first],
        lease_key: LeaseKey([7; 32]),
    });
    assert_eq!(cluster.apply(admit), Reply::Server(ServerId(2)));
}

#[test]
fn rebuilt_cluster_starts_above_old_indexes() {
    const OLD: &str = "6f2d0b6e-3c60-4d3f-9d5c-000000000001";
    let founder = |instance_id: &str| {
        let server = NewServer {
            node: "s1".into(),
            node_id: "1".into(),
            address: "s1:1".into(),
            instance_id: instance_id.into(),
            format: format::NEWEST,
        };
        server.with_id(ServerId(1))
    };
    let found = |instance_id: &str| {
        let mut cluster = Cluster { state: State::new(), index: 0 };
        let (servers, lease_key) = (vec![founder(instance_id)], LeaseKey([7; 32]));
        cluster.apply(Command::Bootstrap { cluster_id: OLD.into(), servers, lease_key });
        cluster
    };
    let drawn = found(OLD);
    assert_eq!((drawn.state.index_base(), drawn.state.fence()), (0, Fence(0)), "the id is the founder's own");
    let mut rebuilt = found("6f2d0b6e-3c60-4d3f-9d5c-000000000002");
    assert_eq!((rebuilt.state.index_base(), rebuilt.state.fence()), (1 << 32, Fence(1 << 32)));
    assert_eq!(rebuilt.state.cluster_id(), OLD);
    // The index of this answer shows an agent the base before it registers.
    let (index, _) = rebuilt.state.query(&Query::NodeChecks("web-1".into()));
    assert_eq!(index, LogIndex((1 << 32) + 1));
    rebuilt.state.check().expect("the state is valid");

    // A backup of another cluster brings neither its id nor lower numbers.
    let rows = vec![Change::ClusterId("of the backup".into()), Change::Fence(Fence(3))];
    for step in [
        RestoreStep::Begin { id: 1 },
        RestoreStep::Part { id: 1, number: 0, rows },
        RestoreStep::Commit { id: 1, parts: 1 },
    ] {
        assert_eq!(rebuilt.apply(Command::Restore(step)), Reply::Done);
    }
    assert_eq!(rebuilt.state.cluster_id(), OLD, "the id is never taken from a backup");
    assert!(rebuilt.state.fence() >= Fence(1 << 32) && rebuilt.state.index_base() >= 1 << 32);
}

/// A cluster with 2,000 keys under a prefix, and one other key.
fn crowded() -> Cluster {
    let mut cluster = Cluster::new();
    (0..2_000).for_each(|number| drop(cluster.apply(put(&format!("many/{number:05}")))));
    cluster.apply(put("few/1"));
    cluster
}

/// The size of an encoded answer, in bytes.
fn encoded(rows: &Rows) -> usize {
    let mut bytes = Vec::new();
    lockmesh_protocol::wire::encode_into(rows, &mut bytes);
    bytes.len()
}

#[test]
fn long_listing_is_consistent_view() {
    const LIMIT: usize = 1 << 20;
    let queries = [
        Query::Entries(Key::from("many/")),
        Query::Keys { prefix: Key::from(""), separator: String::new() },
        Query::Keys { prefix: Key::from(""), separator: "/".into() },
    ];
    for query in queries {
        let mut cluster = crowded();
        let (index, rows) = cluster.state.query(&query);
        let (same_index, listing) = query_view(&cluster.state, &query, LIMIT, None);
        let Listing::View(view) = listing else { panic!("{query:?} is about very many rows") };
        cluster.apply(Command::Kv(KvCommand::DeleteTree(Key::from("many/0"))));
        cluster.apply(put("many/new"));
        assert_eq!(view.rows(LIMIT), Some((rows.clone(), false)), "it contains no later writes");
        assert_eq!(index, same_index);
        assert_eq!(cluster.state.index_of(&query), cluster.state.query(&query).0);
    }
    let (_, few) = query_view(&crowded().state, &Query::Entries(Key::from("few/")), LIMIT, None);
    assert!(
        matches!(few, Listing::Rows(Rows::Entries(rows), false) if rows.len() == 1),
        "few rows are built at once"
    );
}

#[test]
fn listing_parts_form_consistent_answer() {
    let big = || "x".repeat(100_000).into();
    let mut cluster = crowded();
    (0..30).for_each(|number| {
        let key = Key::from(format!("big/{}/{}", number / 4, number % 4).as_str());
        cluster.apply(Command::Kv(KvCommand::Set(NewEntry { key, value: big(), flags: 0 })));
    });
    (0..40).for_each(|number| {
        let key = format!("names/{}/{number:02}/{}", number / 10, "n".repeat(200_000));
        cluster.apply(put(&key));
    });
    let queries = [
        (Query::Entries(Key::from("")), 3),
        (Query::Entries(Key::from("big/")), 3),
        (Query::Entries(Key::from("none/")), 1),
        (Query::Keys { prefix: Key::from("names/"), separator: String::new() }, 7),
        (Query::Keys { prefix: Key::from("names/"), separator: "/".into() }, 7),
        (Query::Nodes, 1),
    ];
    for (query, least_parts) in queries {
        let (index, rows) = cluster.state.query(&query);
        let (same_index, view) = view(&cluster.state, &query, None);
        cluster.apply(put(&format!("later/{index:?}")));
        let (mut parts, mut next) = (Vec::new(), Some(0));
        while let Some(after) = next {
            let (part, following, _) = view.part(after, 1 << 20);
            assert_eq!(view.part(after, 1 << 20).0, part, "a part may be requested again");
            parts.push(part);
            next = following;
        }
        assert!(parts.len() >= least_parts, "{query:?} has {} parts", parts.len());
        assert_eq!((joined(parts), same_index), (rows, index), "{query:?}");
    }
}

fn joined(parts: Vec<Rows>) -> Rows {
    let mut parts = parts.into_iter();
    let first = parts.next().expect("there is a part");
    parts.fold(first, |whole, part| match (whole, part) {
        (Rows::Entries(whole), Rows::Entries(part)) => Rows::Entries([whole, part].concat()),
        (Rows::Keys(whole), Rows::Keys(part)) => Rows::Keys([whole, part].concat()),
        (whole, part) => panic!("{whole:?} and {part:?}"),
    })
}

#[test]
fn replaced_coordinate_counts_toward_view_limit() {
    let mut cluster = Cluster::new();
    let replaced = [1.0, 1.0, 2.0].map(|height| {
        let before = cluster.state.replaced_bytes();
        let height = Finite::try_from(height).expect("it is finite");
        let coordinate = Coordinate { height, ..Coordinate::default() };
        cluster.apply(Command::UpdateCoordinate { node: "n1".into(), coordinate });
        cluster.state.replaced_bytes() - before
    });
    assert_eq!(replaced, [0, 0, size_of::<Coordinate>() as u64]);
}

#[test]
fn oversized_listing_detected_by_pages() {
    let cluster = crowded();
    let query = Query::Entries(Key::from("many/"));
    let whole = encoded(&cluster.state.query(&query).1);
    let is_refused = |query: &Query, limit| {
        matches!(query_view(&cluster.state, query, limit, None), (_, Listing::TooLong))
    };
    assert!(!is_refused(&query, whole), "an answer that fits is never refused");
    assert!(is_refused(&query, whole * 3 / 4), "most answers that do not fit are refused at once");
    let op = |verb| TxnKv {
        verb,
        key: Key::from("many/"),
        value: Default::default(),
        flags: 0,
        index: LogIndex(0),
        session: None,
    };
    let txn = Query::Txn(vec![TxnOp::Kv(op(KvVerb::GetTree))]);
    assert!(!is_refused(&txn, whole) && is_refused(&txn, whole * 3 / 4));
    let names = Query::Keys { prefix: Key::from("many/"), separator: String::new() };
    let (_, Listing::View(view)) = query_view(&cluster.state, &names, 100, None) else {
        panic!("very many names")
    };
    assert_eq!(view.rows(100), None);
}
