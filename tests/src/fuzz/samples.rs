//! Well-formed values, at least one of each kind, as seeds for fuzzers. They are not consistent
//! with each other.

use bytes::Bytes;
use lockmesh_core::Proposal;
use lockmesh_core::raft::log::{EntryKind, LogEntry, Membership, SnapshotMeta};
use lockmesh_core::raft::message::{MessageKind, PeerMessage};
use lockmesh_core::setback::LogPosition;
use lockmesh_protocol::bootstrap::{BootstrapPlan, Introduction, Standing};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::{
    AgentRegistration, CatalogVerb, Command, Deregistration, KvCommand, KvVerb, NewEntry, NewQuery,
    NodeFailure, NodeLeave, QueryCommand, Registration, RestoreStep, TxnKv, TxnOp,
};
use lockmesh_protocol::format;
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::event::LamportTime;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::roster::{Roster, RosterDigest, RosterMember};
use lockmesh_protocol::gossip::seal::KeyRing;
use lockmesh_protocol::gossip::verdict::{Verdict, VerdictSigner};
use lockmesh_protocol::id::{
    AgentNumber, CellNumber, CheckId, Fence, Generation, Key, LogIndex, NodeName, QueryId, RequestId,
    ServerId, ServiceId, SessionId, Term, WallTime,
};
use lockmesh_protocol::lease::{
    Challenge, HealthWindow, LeaseId, LeaseKey, NodeLease, NodeLeaseQuery, NodeLeases, NodeQuestion,
};
use lockmesh_protocol::prepared_query::{
    NAME_PREFIX_MATCH, PreparedQuery, QueryService, QuerySpec, QueryTarget, QueryTemplate,
};
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Instance, LockInfo, Query, Rows};
use lockmesh_protocol::record::{
    Agent, Autopilot, Behavior, Check, CheckStatus, Coordinate, Entry, Finite, Incarnation, Lock, LockDelay,
    Loss, LossCause, MemberStatus, NewServer, Node, Service, ServiceAddress, ServiceCheck, Session,
    SessionSpec, Waiter,
};
use lockmesh_protocol::reply::{Applied, Refusal, Reply, TxnError, TxnResult};
use lockmesh_protocol::rpc::{
    BackupPart, Call, CallFrame, CallId, Joined, ReplyFrame, Request, Response, ServerStatus, SnapshotPart,
    Status, Unavailable,
};
use lockmesh_server::peers::Hello;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Returns the beginnings of streams between servers.
pub fn hellos() -> Vec<Hello> {
    let hello = |cluster_id: &str| Hello {
        from: ServerId(1),
        to: ServerId(2),
        cluster_id: cluster_id.into(),
        address: "10.0.0.5:8300".into(),
        version: "0.1.0".into(),
        position: LogPosition { term: Term(7), last_index: LogIndex(650) },
        remembers: (!cluster_id.is_empty()).then_some(LogPosition::default()),
    };
    vec![hello("6f7e1c3e"), hello("")]
}

/// Returns rows of a snapshot as servers send them: each preceded by its length.
pub fn snapshot_rows() -> Vec<u8> {
    let mut bytes = Vec::new();
    for change in changes() {
        let mut row = Vec::new();
        format::encode_into(&change, &mut row);
        bytes.extend((row.len() as u32).to_be_bytes());
        bytes.extend(row);
    }
    bytes
}

fn introduction() -> Introduction {
    let plan =
        BootstrapPlan { cluster_id: "6f7e1c3e".into(), servers: vec![new_server().with_id(ServerId(1))] };
    Introduction {
        server: new_server(),
        expect: 3,
        standing: Standing::Promised(plan),
        knows: vec!["10.0.0.6:8300".into()],
    }
}

/// Returns callers' frames: one for each request, and one that contains several.
pub fn call_frames() -> Vec<CallFrame> {
    let calls = requests().into_iter().zip(1..).map(|(request, number)| Call::Begin(CallId(number), request));
    let calls: Vec<Call> = calls.chain([Call::Cancel(CallId(u64::MAX))]).collect();
    let together = CallFrame(calls.iter().take(4).cloned().collect());
    calls.into_iter().map(|call| CallFrame(vec![call])).chain([together, CallFrame(Vec::new())]).collect()
}

/// Returns servers' frames: one for each response.
pub fn reply_frames() -> Vec<ReplyFrame> {
    let replies = responses().into_iter().zip(1..).map(|(response, number)| (CallId(number), response));
    replies.map(|reply| ReplyFrame(vec![reply])).chain([ReplyFrame(Vec::new())]).collect()
}

/// Returns proposals for the leader's log.
pub fn proposals() -> Vec<Proposal> {
    let request =
        RequestId { agent: AgentNumber(3), generation: Generation(2), sequence: 70_000, lowest: 69_990 };
    let whole = |command| Proposal { request: Some(request), at: WallTime(1_760_000_000_000), command };
    let own = Proposal { request: None, ..whole(Command::ReapTombstones { up_to: LogIndex(9) }) };
    commands().into_iter().map(whole).chain([own]).collect()
}

/// Returns entries of the log on disk.
pub fn log_entries() -> Vec<LogEntry> {
    let kinds = [EntryKind::Normal, EntryKind::Membership, EntryKind::JointMembership];
    let entry = |(index, kind)| LogEntry {
        index: LogIndex(index),
        term: Term(7),
        kind,
        data: Bytes::from_static(b"data"),
        context: Bytes::new(),
    };
    (1..).zip(kinds).map(entry).collect()
}

/// Returns a message of each kind between servers.
pub fn peer_messages() -> Vec<PeerMessage> {
    let kinds = [
        MessageKind::Append,
        MessageKind::AppendResponse,
        MessageKind::RequestVote,
        MessageKind::RequestVoteResponse,
        MessageKind::RequestPreVote,
        MessageKind::RequestPreVoteResponse,
        MessageKind::Heartbeat,
        MessageKind::HeartbeatResponse,
        MessageKind::Snapshot,
        MessageKind::TimeoutNow,
        MessageKind::ReadIndex,
        MessageKind::ReadIndexResponse,
        MessageKind::Checksum,
        MessageKind::ChecksumResponse,
        MessageKind::Corrupt,
        MessageKind::LeaseRenewals,
        MessageKind::LeaseAnswers,
        MessageKind::CheckNodes,
        MessageKind::NodeReports,
        MessageKind::Accusations,
        MessageKind::Event,
        MessageKind::ClusterTime,
        MessageKind::DiskRefuses,
    ];
    let membership = Membership { voters: vec![ServerId(1), ServerId(2)], ..Membership::default() };
    let mark = SnapshotMeta { index: LogIndex(100), term: Term(4), membership };
    let message = |kind| PeerMessage {
        kind,
        to: ServerId(1),
        from: ServerId(2),
        term: Term(5),
        log_term: Term(4),
        index: LogIndex(99),
        entries: if kind == MessageKind::Append { log_entries() } else { Vec::new() },
        commit: LogIndex(98),
        commit_term: Term(4),
        snapshot: (kind == MessageKind::Snapshot).then(|| mark.clone()),
        request_snapshot: LogIndex(0),
        reject: kind == MessageKind::AppendResponse,
        reject_hint: LogIndex(90),
        context: Bytes::from_static(b"context"),
        priority: -1,
    };
    kinds.into_iter().map(message).collect()
}

/// Returns changes of every kind, covering every field of a row.
pub fn changes() -> Vec<Change> {
    let applied = |reply| Arc::new(Applied { index: LogIndex(4), reply });
    let replies = (10..)
        .zip(replies())
        .map(|(sequence, reply)| Change::Reply(AgentNumber(1), sequence, Some(applied(reply))));
    let tables =
        [Table::Entries, Table::Tombstones, Table::Sessions, Table::Nodes, Table::Services, Table::Checks];
    let tables = tables.map(|table| Change::TableIndex(table, LogIndex(3)));
    let causes = [
        LossCause::Destroyed,
        LossCause::TtlExpired,
        LossCause::CheckDeregistered("serfHealth".into()),
        LossCause::NodeDeregistered,
        LossCause::NodeFailed {
            window: HealthWindow::Default,
            confirmed_by: vec!["server-one".into(), "server-two".into()],
            silent_for: Duration::from_millis(5_100),
        },
        LossCause::HostReplaced,
        LossCause::NodeLeft,
        LossCause::NodeForcedToLeave,
        LossCause::NodeReaped,
        LossCause::GivenUp { silent_for: Duration::from_millis(3_000) },
        LossCause::KeyDeleted,
        LossCause::CheckFailed { check: "web".into(), output: "connection refused".into() },
    ];
    let statuses = [MemberStatus::Restarting, MemberStatus::Left, MemberStatus::Failed].map(|status| {
        let agent = Agent { status, ..(*agent()).clone() };
        Change::Agent(AgentNumber(1), Some(Arc::new(agent)))
    });
    let losses = (2..)
        .zip(causes)
        .map(|(number, cause)| Change::Loss(number, Some(Arc::new(Loss { cause, ..(*loss()).clone() }))));
    let checks = [CheckStatus::Passing, CheckStatus::Warning, CheckStatus::Critical].map(|status| {
        let check = Check { status, ..(*check()).clone() };
        Change::Check("node-one".into(), CheckId::from("serfhealth"), Some(Arc::new(check)))
    });
    // Of newer formats: the samples of a restore stay as they are.
    let newer = [
        Change::Coordinate("node-one".into(), Some(Arc::new(coordinate()))),
        Change::TableIndex(Table::Coordinates, LogIndex(3)),
        Change::TableIndex(Table::PreparedQueries, LogIndex(11)),
        Change::PreparedQuery(query_id(), Some(prepared_query())),
        Change::PreparedQuery(query_id(), None),
    ];
    let kinds = one_change_of_each_kind().into_iter().chain(newer);
    kinds.chain(replies).chain(tables).chain(losses).chain(checks).chain(statuses).collect()
}

fn one_change_of_each_kind() -> Vec<Change> {
    let (key, node) = (Key::from("job/leader"), NodeName::from("node-one"));
    vec![
        Change::Entry(key.clone(), Some(entry())),
        Change::Entry(key.clone(), None),
        Change::TreeDeleted(key.clone()),
        Change::Session(session_id(), Some(session())),
        Change::Node(node.clone(), Some(self::node())),
        Change::Service(node.clone(), ServiceId::from("web"), Some(service())),
        Change::Check(node.clone(), CheckId::from("serfHealth"), Some(check())),
        Change::Tombstone(key.clone(), Some(LogIndex(300))),
        Change::LockDelay(key, Some(delay())),
        Change::Waiter("a".into(), LogIndex(7), Some(waiter())),
        Change::Agent(AgentNumber(1), Some(agent())),
        Change::Reply(AgentNumber(1), 5, Some(Arc::new(Applied { index: LogIndex(4), reply: Reply::Done }))),
        Change::LowestSequence(AgentNumber(1), 4),
        Change::Loss(1, Some(loss())),
        Change::NodeIndex(node, Some(LogIndex(9))),
        Change::TableIndex(Table::NodeDeletions, LogIndex(70_000)),
        Change::Fence(Fence(1 << 40)),
        Change::LastAgent(AgentNumber(8)),
        Change::IndexBase(u64::MAX),
        Change::ClusterId("6f7e1c3e-2f0a-4d35-8a60-0f4b2ac7a001".into()),
        Change::Server(ServerId(1), Some(Arc::new(new_server().with_id(ServerId(1))))),
        Change::LastServer(ServerId(1)),
        Change::Autopilot(Autopilot::default(), LogIndex(4)),
        Change::RestorePart(1, 0, Some(Bytes::from_static(&[1, 2, 3]))),
        Change::Cleared,
        Change::Format(1),
        Change::ForgottenTombstones(LogIndex(12)),
        Change::LeaseKey(LeaseKey([3; 32])),
        Change::GossipKey(2),
    ]
}

fn requests() -> Vec<Request> {
    let request = RequestId { agent: AgentNumber(1), generation: Generation(1), sequence: 1, lowest: 1 };
    let blocking = Some(Blocking { index: LogIndex(12), wait: Duration::from_secs(300) });
    let proposals = commands().into_iter().map(|command| Request::Propose(Some(request), command));
    let reads = queries().into_iter().map(|query| Request::Read {
        query,
        consistency: Consistency::Stale,
        blocking: None,
    });
    let others = [
        Request::Read { query: Query::Sessions, consistency: Consistency::Default, blocking },
        Request::Renew(session_id()),
        Request::Status,
        Request::BackupPart { backup: Some(4), number: 1, stale: true },
        Request::TransferLeader(None),
        Request::RemoveServer(ServerId(3)),
        Request::AddServer(new_server()),
        Request::Autopilot,
        Request::Introduce(introduction()),
        Request::Invite(vec!["10.0.0.5:8300".into()]),
        Request::Announce(new_server().with_id(ServerId(4))),
        Request::SnapshotPart { snapshot: Some(3), number: 1, least: LogIndex(9) },
        Request::AskNode(NodeQuestion {
            challenge: Challenge { lease: lease(), nonce: 5 },
            node: "node-two".into(),
            address: "10.0.0.2:8301".into(),
        }),
        Request::SyncMesh(RosterDigest(vec![0, 251])),
        Request::Accuse(vec![lease()]),
        Request::NodeLeases(NodeLeaseQuery::Of("node-one".into())),
        Request::Spread(Bytes::from_static(b"an event")),
        Request::NodeLeases(NodeLeaseQuery::From(AgentNumber(257))),
        Request::TellMesh(vec![Bytes::from_static(b"an event"), Bytes::from_static(b"a verdict")]),
    ];
    proposals.chain(reads).chain(others).collect()
}

fn commands() -> Vec<Command> {
    let new = || NewEntry { key: "a".into(), value: Bytes::from_static(b"value"), flags: 42 };
    let writes = [
        KvCommand::Set(new()),
        KvCommand::Cas(new(), None),
        KvCommand::Cas(new(), Some(LogIndex(7))),
        KvCommand::Acquire(new(), session_id()),
        KvCommand::Enqueue { new: new(), session: session_id(), wait: Duration::from_secs(30) },
        KvCommand::Leave { key: "a".into(), session: session_id(), enqueued_at_index: LogIndex(3) },
        KvCommand::StopWaiting { key: "a".into(), session: session_id(), enqueued_at_index: LogIndex(3) },
        KvCommand::Release(new(), session_id()),
        KvCommand::Delete("a".into()),
        KvCommand::DeleteCas("a".into(), LogIndex(1 << 33)),
        KvCommand::DeleteTree("".into()),
    ];
    let others = [
        Command::CreateSession(session_spec()),
        Command::CreateSession(SessionSpec { behavior: Behavior::Release, ttl: None, ..session_spec() }),
        Command::CreateSession(SessionSpec { health_window: HealthWindow::Safe, ..session_spec() }),
        Command::DestroySession(session_id()),
        Command::Txn(txn_ops()),
        Command::Register(Registration {
            node: (*node()).clone(),
            skip_node_update: true,
            service: Some((*service()).clone()),
            checks: vec![(*check()).clone()],
        }),
        Command::Deregister(Deregistration {
            node: "node-one".into(),
            service: Some("web".into()),
            check: None,
        }),
        Command::RegisterAgent(AgentRegistration {
            node: (*node()).clone(),
            services: vec![(*service()).clone()],
            incarnation: incarnation(),
            port: 8301,
            gossip: "10.0.0.7:8302".parse().ok(),
            version: "0.1.0".into(),
        }),
        Command::ExpireSession { session: session_id(), term: Term(3), base: 0 },
        Command::EndLockDelay { key: "a".into(), started_at_index: LogIndex(2), base: 0 },
        Command::EndWait { key: "a".into(), queue_position: LogIndex(2), enqueued_at_index: LogIndex(3) },
        Command::ReapTombstones { up_to: LogIndex(200) },
        Command::Restore(RestoreStep::Begin { id: 1 }),
        Command::Restore(RestoreStep::Part { id: 1, number: 0, rows: one_change_of_each_kind() }),
        Command::Restore(RestoreStep::Commit { id: 1, parts: 1 }),
        Command::Bootstrap {
            cluster_id: "6f7e1c3e-2f0a-4d35-8a60-0f4b2ac7a001".into(),
            servers: vec![new_server().with_id(ServerId(1))],
            lease_key: LeaseKey([3; 32]),
        },
        Command::AdmitServer(new_server()),
        Command::UpdateServer(new_server().with_id(ServerId(1))),
        Command::ForgetServer(ServerId(2)),
        Command::CorruptionCheck,
        Command::RaiseFormat(2),
        Command::ConfigureAutopilot(Autopilot::default(), Some(LogIndex(3))),
    ];
    writes.into_iter().map(Command::Kv).chain(others).chain(member_commands()).collect()
}

fn member_commands() -> Vec<Command> {
    vec![
        Command::FailNode(NodeFailure {
            lease: lease(),
            window: HealthWindow::Fast,
            confirmed_by: vec![ServerId(1), ServerId(3)],
            silent_for: Duration::from_millis(1_600),
            term: Term(3),
            base: 0,
        }),
        Command::EndFormerSessions { lease: lease(), window: HealthWindow::Safe, term: Term(3), base: 0 },
        Command::LeaveNode(NodeLeave { node: "node-one".into(), lease: Some(lease()), prune: false }),
        Command::AnnounceRestart(lease()),
        Command::Reconcile { members: vec![AgentNumber(1)], strangers: vec!["node-two".into()] },
        Command::ReapMember { lease: lease(), term: Term(3), base: 0 },
        Command::EndRestart { agent: AgentNumber(1), announced_at: LogIndex(8), term: Term(3), base: 0 },
        Command::RotateGossipKey { from: 1 },
        Command::GiveUpSession { session: session_id(), silent_for: Duration::from_millis(3_000) },
        Command::UpdateCoordinate { node: "node-one".into(), coordinate: coordinate() },
        Command::PreparedQuery(QueryCommand::Create(query_id(), Box::new(new_query()))),
        Command::PreparedQuery(QueryCommand::Update(query_id(), Box::new(new_query()))),
        Command::PreparedQuery(QueryCommand::Delete(query_id())),
    ]
}

fn coordinate() -> Coordinate {
    let vec = std::array::from_fn(|place| Finite::try_from(place as f64 / -1_000.0).expect("it is finite"));
    Coordinate { vec, ..Coordinate::default() }
}

fn txn_ops() -> Vec<TxnOp> {
    let kv = |verb| TxnKv {
        verb,
        key: "a/b".into(),
        value: Bytes::from_static(&[0, 255]),
        flags: 1,
        index: LogIndex(251),
        session: Some(session_id().to_string()),
    };
    let verbs = KvVerb::WORDS.into_iter().map(|(_, verb)| verb).chain([KvVerb::Unknown("odd".into())]);
    let (expected, verb) = (LogIndex(5), CatalogVerb::Cas);
    let catalog = [
        TxnOp::Node { verb: verb.clone(), node: (*node()).clone(), expected },
        TxnOp::Service { verb: verb.clone(), service: (*service()).clone(), expected },
        TxnOp::Check { verb, check: (*check()).clone(), expected },
    ];
    let verbs_of_nodes = [
        CatalogVerb::Get,
        CatalogVerb::Set,
        CatalogVerb::Delete,
        CatalogVerb::DeleteCas,
        CatalogVerb::Unknown("odd".into()),
    ];
    let nodes = verbs_of_nodes.map(|verb| TxnOp::Node { verb, node: (*node()).clone(), expected });
    verbs.map(|verb| TxnOp::Kv(kv(verb))).chain(catalog).chain(nodes).collect()
}

/// Returns a query of each kind.
pub fn queries() -> Vec<Query> {
    vec![
        Query::Entry("a".into()),
        Query::Entries("a/".into()),
        Query::Keys { prefix: "".into(), separator: "/".into() },
        Query::Session(session_id()),
        Query::Sessions,
        Query::NodeSessions("node-one".into()),
        Query::Nodes,
        Query::Node("node-one".into()),
        Query::NodeChecks("node-one".into()),
        Query::ServiceChecks("web".into()),
        Query::ChecksInState(Some(CheckStatus::Warning)),
        Query::Services,
        Query::ServiceInstances("web".into()),
        Query::Txn(txn_ops()),
        Query::Locks("".into()),
        Query::Losses,
        Query::Agents,
        Query::QueuePosition {
            key: "a".into(),
            session: session_id(),
            queue_position: LogIndex(2),
            enqueued_at_index: LogIndex(3),
        },
        Query::GossipKey,
        Query::Coordinates,
        Query::PreparedQueries,
        Query::PreparedQuery(query_id()),
        Query::ResolvePreparedQuery("geo-web".into()),
    ]
}

/// Returns one response of each kind, and of each kind of answer and reply.
pub fn responses() -> Vec<Response> {
    let applied =
        replies().into_iter().map(|reply| Response::Applied(Applied { index: LogIndex(65_536), reply }));
    let answers = rows().into_iter().map(|rows| {
        Response::Answer(Answer {
            index: LogIndex(7),
            rows,
            known_leader: true,
            last_contact: Duration::from_millis(3),
        })
    });
    let others = [
        Response::Renewed(Some(session())),
        Response::Status(status()),
        Response::BackupPart(BackupPart {
            backup: 1,
            cluster_id: "c".into(),
            index: LogIndex(8),
            term: Term(2),
            number: 0,
            last: true,
            rows: changes(),
        }),
        Response::Done,
        Response::Joined(Joined {
            server: ServerId(4),
            cluster_id: "6f7e1c3e".into(),
            servers: vec![new_server().with_id(ServerId(4))],
        }),
        Response::Autopilot(Autopilot::default(), LogIndex(4)),
        Response::Introduced(introduction()),
        Response::SnapshotPart(SnapshotPart {
            snapshot: 3,
            number: 1,
            mark: Bytes::from_static(b"mark"),
            rows: snapshot_rows().into(),
            digest: [7; 32],
            whole: Some([8; 32]),
        }),
        Response::Unavailable(Unavailable::NotLeader { leader: Some("127.0.0.1:8300".into()) }),
        Response::Unavailable(Unavailable::Overloaded("full".into())),
        Response::Unavailable(Unavailable::Disk("no space".into())),
        Response::Unavailable(Unavailable::Denied("no".into())),
        Response::Unavailable(Unavailable::Unknown("lost".into())),
        Response::Unavailable(Unavailable::AnswerTooLong { limit: 8 << 20 }),
        Response::Unavailable(Unavailable::Removed),
        Response::Unavailable(Unavailable::NotAdmitted("why".into())),
        Response::Unavailable(Unavailable::Corrupt),
        Response::Mesh(Box::new(mesh_news())),
        Response::NodeLeases(NodeLeases { leases: vec![node_lease()], next: Some(AgentNumber(257)) }),
    ];
    applied.chain(answers).chain(others).collect()
}

fn node_lease() -> NodeLease {
    NodeLease {
        lease: lease(),
        shortest: Some(HealthWindow::Fast),
        heard_ago: Some(Duration::from_millis(300)),
        ends_in: Some(HealthWindow::ALL.map(HealthWindow::duration)),
        suspected_by: vec!["node-two".into()],
    }
}

fn mesh_news() -> MeshNews {
    let (secret, signer) = (LeaseKey([3; 32]), VerdictSigner::derived(&LeaseKey([3; 32])));
    let member = RosterMember {
        id: MemberId::of_agent(lease()),
        node: "node-one".into(),
        address: SocketAddr::from(([10, 0, 0, 7], 8302)),
    };
    let verdict = Verdict { lease: lease(), window: HealthWindow::Default, index: LogIndex(300) };
    MeshNews {
        as_of: LogIndex(300),
        seconds: 1_795_000_000,
        ring: KeyRing::derived(&secret, 1),
        verdict_key: signer.key(),
        roster: Roster::of([member]).news(&RosterDigest(Vec::new())),
        items: vec![signer.sign(&verdict).into()],
        event_time: LamportTime(300),
    }
}

fn replies() -> Vec<Reply> {
    let results = vec![
        TxnResult::Kv(entry()),
        TxnResult::Node(node()),
        TxnResult::Service(service()),
        TxnResult::Check(check()),
    ];
    vec![
        Reply::Done,
        Reply::Succeeded(true),
        Reply::Granted { fence: Fence(9) },
        Reply::Delayed { remaining: Duration::from_millis(14_999) },
        Reply::Queued { queue_position: LogIndex(300) },
        Reply::Session(session_id()),
        Reply::Txn(results),
        Reply::TxnFailed(vec![TxnError { op_index: 2, what: "failed".into() }]),
        Reply::Agent {
            number: AgentNumber(1),
            generation: Generation(1),
            lease: lease(),
            secret: LeaseKey([3; 32]).secret(lease()),
        },
        Reply::Server(ServerId(4)),
        Reply::Refused(Refusal::InvalidSession(session_id())),
        Reply::Refused(Refusal::MissingNode),
        Reply::Refused(Refusal::UnknownMember("node-two".into())),
        Reply::Refused(Refusal::SessionIdInUse(session_id())),
        Reply::Refused(Refusal::MissingCheck("serfHealth".into())),
        Reply::Refused(Refusal::CriticalCheck("serfHealth".into())),
        Reply::Refused(Refusal::QueueFull(10_000)),
        Reply::Refused(Refusal::Catalog("odd".into())),
        Reply::Refused(Refusal::Forgotten),
        Reply::Refused(Refusal::Roster("odd".into())),
        Reply::Refused(Refusal::Restore("odd".into())),
        Reply::GossipKey(2),
        Reply::Refused(Refusal::PreparedQuery("odd".into())),
    ]
}

fn rows() -> Vec<Rows> {
    let lock = LockInfo {
        key: "a".into(),
        session: Some(session()),
        fence: Fence(1),
        lock_index: 1,
        modify_index: LogIndex(2),
        delay: Some(delay()),
        waiters: 3,
        granted_at: WallTime(1),
    };
    vec![
        Rows::Entries(vec![entry(), entry()]),
        Rows::Keys(vec!["a".into(), "b/".into()]),
        Rows::Sessions(vec![session()]),
        Rows::Nodes(vec![node()]),
        Rows::Node(Some((node(), vec![service()]))),
        Rows::Checks(vec![check()]),
        Rows::Services(vec![("web".into(), vec!["primary".into()])]),
        Rows::Instances(vec![Instance { node: node(), service: service(), checks: vec![check()] }]),
        Rows::Txn(Err(vec![TxnError { op_index: 0, what: "x".into() }])),
        Rows::Locks(vec![lock]),
        Rows::Losses(vec![loss()]),
        Rows::Agents(vec![agent()]),
        Rows::QueuePosition(Reply::Granted { fence: Fence(9) }),
        Rows::GossipKey(2),
        Rows::Coordinates(vec![("node-one".into(), Arc::new(coordinate()))]),
        Rows::PreparedQueries(vec![prepared_query()]),
    ]
}

fn query_id() -> QueryId {
    QueryId::from_random([7; 16])
}

fn prepared_query() -> Arc<PreparedQuery> {
    let spec = new_query().spec;
    Arc::new(PreparedQuery { id: query_id(), spec, create_index: LogIndex(9), modify_index: LogIndex(11) })
}

fn new_query() -> NewQuery {
    let texts = |text: &str| Some(vec![text.to_owned()]);
    let meta = |key: &str| Some([(key.to_owned(), "a".to_owned())].into());
    let kind = NAME_PREFIX_MATCH.into();
    let spec = QuerySpec {
        name: "geo-".into(),
        session: Some(session_id()),
        token: "t".into(),
        template: QueryTemplate { kind, regexp: "^geo-(.*)$".into(), remove_empty_tags: true },
        service: QueryService {
            service: "${match(1)}".into(),
            nearest_n: 2,
            datacenters: texts("dc2"),
            targets: Some(vec![QueryTarget { peer: "p".into(), datacenter: "dc3".into() }]),
            only_passing: true,
            ignore_check_ids: texts("c"),
            near: "_agent".into(),
            tags: texts("!v1"),
            node_meta: meta("rack"),
            service_meta: meta("zone"),
            connect: true,
            peer: "p".into(),
        },
        dns_ttl: "10s".into(),
    };
    NewQuery { spec, template_error: Some("Bad Regexp".into()) }
}

fn status() -> Status {
    let server = ServerStatus {
        id: ServerId(1),
        node_id: "9b1e".into(),
        node: "node-one".into(),
        address: "127.0.0.1:8300".into(),
        voter: true,
        last_index: LogIndex(10),
        last_contact: Some(Duration::from_millis(20)),
        healthy: true,
        stable_since: Some(WallTime(1_795_250_472_999)),
        version: "0.1.0".into(),
    };
    Status {
        leader: Some(ServerId(1)),
        servers: vec![server],
        caller: Some(AgentNumber(1)),
        ..Status::default()
    }
}

fn new_server() -> NewServer {
    NewServer {
        node: "node-one".into(),
        node_id: "9b1e".into(),
        address: "127.0.0.1:8300".into(),
        instance_id: "5c0d".into(),
        format: 2,
    }
}

fn session_id() -> SessionId {
    SessionId::from_random([0x5a; 16])
}

fn entry() -> Arc<Entry> {
    Arc::new(Entry {
        key: "job/leader".into(),
        value: Bytes::from_static(b"{\"host\":1}"),
        flags: u64::MAX,
        lock: Lock {
            session: Some(session_id()),
            index: 3,
            fence: Fence(17),
            granted_at: WallTime(1_760_000_000_000),
            granted_for: Some(LogIndex(249)),
        },
        create_index: LogIndex(250),
        modify_index: LogIndex(251),
    })
}

fn session_spec() -> SessionSpec {
    SessionSpec {
        id: session_id(),
        name: "worker".into(),
        node: "node-one".into(),
        lock_delay: Duration::from_secs(15),
        behavior: Behavior::Delete,
        ttl_text: "15.0s".into(),
        ttl: Some(Duration::from_secs(15)),
        checks: vec![],
        node_checks: vec!["serfHealth".into()],
        service_checks: None,
        health_window: Default::default(),
    }
}

fn session() -> Arc<Session> {
    let service_checks = Some(vec![ServiceCheck { id: "web".into(), namespace: "".into() }]);
    let spec = SessionSpec { service_checks, ..session_spec() };
    Arc::new(Session { spec, created_at: WallTime(1_760_000_000_000), create_index: LogIndex(5) })
}

fn node() -> Arc<Node> {
    let words = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    Arc::new(Node {
        name: "Node-One".into(),
        id: "6f7e1c3e-2f0a-4d35-8a60-0f4b2ac7a002".into(),
        address: "127.0.0.1".into(),
        datacenter: "dc1".into(),
        tagged_addresses: words("lan", "127.0.0.1"),
        meta: words("rack", "7"),
        create_index: LogIndex(2),
        modify_index: LogIndex(3),
    })
}

fn service() -> Arc<Service> {
    let address = ServiceAddress { address: "10.0.0.1".into(), port: 80 };
    Arc::new(Service {
        node: "node-one".into(),
        id: "web".into(),
        name: "web".into(),
        tags: vec!["primary".into()],
        address: "".into(),
        tagged_addresses: BTreeMap::from([("lan".to_owned(), address)]),
        meta: BTreeMap::new(),
        port: 65_535,
        weights: (1, 1),
        enable_tag_override: false,
        create_index: LogIndex(2),
        modify_index: LogIndex(3),
    })
}

fn check() -> Arc<Check> {
    Arc::new(Check {
        node: "node-one".into(),
        id: "serfHealth".into(),
        name: "Serf Health Status".into(),
        status: CheckStatus::Passing,
        notes: "".into(),
        output: "Agent alive and reachable".into(),
        service_id: None,
        service_name: "".into(),
        service_tags: vec![],
        kind: "ttl".into(),
        interval: "".into(),
        timeout: "10s".into(),
        exposed_port: 0,
        definition: "{}".into(),
        create_index: LogIndex(2),
        modify_index: LogIndex(3),
    })
}

fn delay() -> LockDelay {
    LockDelay { started_at_index: LogIndex(300), duration: Duration::from_secs(15) }
}

fn waiter() -> Arc<Waiter> {
    let (value, wait) = ("v".into(), Duration::from_secs(30));
    Arc::new(Waiter { session: session_id(), value, flags: 1, wait, enqueued_at_index: LogIndex(301) })
}

fn lease() -> LeaseId {
    LeaseId { agent: AgentNumber(1), began: LogIndex(7) }
}

fn incarnation() -> Incarnation {
    Incarnation { process: [1; 16], boot: [2; 16], certificate: [3; 32] }
}

fn agent() -> Arc<Agent> {
    Arc::new(Agent {
        number: AgentNumber(1),
        generation: Generation(4),
        node: "node-one".into(),
        node_id: "6f7e1c3e-2f0a-4d35-8a60-0f4b2ac7a002".into(),
        port: 8301,
        gossip: "10.0.0.7:8302".parse().ok(),
        cell: CellNumber(3),
        version: "0.1.0".into(),
        incarnation: incarnation(),
        lease_began: LogIndex(7),
        former_sessions_until: Some(LogIndex(7)),
        restart_announced: Some(LogIndex(8)),
        status: MemberStatus::Alive,
        status_since: WallTime(1_700_000_000_000),
        address: "10.0.0.7".into(),
    })
}

fn loss() -> Arc<Loss> {
    Arc::new(Loss {
        index: LogIndex(9),
        at: WallTime(1_760_000_000_000),
        session: session_id(),
        session_name: "worker".into(),
        node: "node-one".into(),
        cause: LossCause::CheckCritical("serfHealth".into()),
        keys: vec![("job/leader".into(), Fence(17))],
        key_count: 1,
    })
}
