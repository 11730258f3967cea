//! The API as its clients see it, in one process: real parsing, the real replicated state, and a
//! stand-in for the connection between them.

mod access;
mod acl;
mod acl_contract;
mod acl_peers;
mod agent;
mod bad_input;
mod bound_sessions;
mod catalog;
mod checks;
mod connections;
mod conventions;
mod coordinates;
mod events;
mod filters;
mod kv;
mod listings;
mod membership;
mod operator;
mod prepared_queries;
mod queue;
mod service_reads;
mod services;
mod session;
mod session_events;
mod snapshot;
mod speed;
mod txn;

use super::body::Body;
use super::router::respond;
use super::{Api, HttpLimits, Peer};
use crate::boot_clock::BootClock;
use crate::config::HostPattern;
use crate::node::{Identity, NodeMeta};
use crate::own_address::OwnAddress;
use crate::registry::Registry;
use crate::session_watches::SessionWatches;
use crate::upstream::{self, BoxFuture, Upstream};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use lockmesh_agent_core::lease::LeaseState;
use lockmesh_agent_core::quorum_client::{Answered, EndReason, LocalCall};
use lockmesh_agent_core::registry::Limits;
use lockmesh_client::Clock;
use lockmesh_core::state::{Listing, check_query, own_rows, query_view};
use lockmesh_core::{Proposal, State};
use lockmesh_protocol::acl::{Access, AclMode, Caller, Resource};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{AgentRegistration, Command, KvCommand};
use lockmesh_protocol::format;
use lockmesh_protocol::id::{
    AgentNumber, Generation, LogIndex, RequestId, ServerId, SessionId, Term, WallTime,
};
use lockmesh_protocol::lease::{LeaseId, LeaseKey, NodeLease, NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::query::{Answer, Blocking, Query, Rows};
use lockmesh_protocol::record::{Node, RequestedLock};
use lockmesh_protocol::reply::{Applied, Reply as StateReply};
use lockmesh_protocol::rpc::{
    AnswerPart, BackupPart, Request as Call, Response, ServerStatus, Status, Unavailable, ViewId,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

const NODE_ID: &str = "40e4a748-2192-161a-0510-9bf59fe950b5";
const SERVER_ADDRESS: &str = "127.0.0.1:8300";

/// A client on the Unix socket.
const LOCAL: Peer = Peer::Unix { uid: Some(1000), gid: Some(100), pid: Some(7), accepted_at: Duration::ZERO };

/// A quorum of one, without a log, a disk or a network.
#[derive(Debug)]
pub(super) struct Quorum {
    state: Mutex<(State, u64)>,
    /// The servers' wall clock, in milliseconds.
    wall: AtomicU64,
    news: watch::Sender<u64>,
    /// Reads that wait for news.
    waiting: watch::Sender<usize>,
    /// The failure of every request, if any.
    broken: Mutex<Option<Unavailable>>,
    /// The denial of an operator's orders, if any.
    denied: Mutex<Option<Unavailable>>,
    /// The operator's orders so far.
    orders: Mutex<Vec<Call>>,
    status: Mutex<Status>,
    /// The leader's view of nodes' leases.
    leases: Mutex<Vec<NodeLease>>,
    /// The number of requests for them.
    leases_asked: AtomicUsize,
    lease: watch::Sender<LeaseState>,
    /// For each failed attempt to leave, `true` if the node may have left.
    stays: Mutex<Vec<bool>>,
    /// The number of rows above which an answer is too long, if any.
    rows_at_once: Mutex<Option<usize>>,
    /// The answers that are read in parts.
    views: watch::Sender<BTreeMap<u64, Answer>>,
    /// The number of the next one.
    views_begun: AtomicUsize,
    /// The number of parts that were read.
    parts_read: AtomicUsize,
}

impl Quorum {
    fn apply(&self, command: Command) -> Response {
        self.apply_as(Caller::Agent, command)
    }

    /// Applies a command of a client; as in a server, entries have a caller only with access
    /// control.
    fn apply_as(&self, caller: Caller, command: Command) -> Response {
        let mut guard = self.state.lock().unwrap();
        let (state, index) = &mut *guard;
        *index += 1;
        // The state knows the node of a client by its agent, which is the first.
        let is_judged = state.acl().settings().mode != AclMode::Off;
        let caller = if is_judged { caller } else { Caller::Agent };
        let has_origin = caller != Caller::Agent || matches!(command, Command::Restricted(_));
        let request = has_origin.then_some(RequestId {
            agent: AgentNumber(1),
            generation: Generation(1),
            sequence: *index,
            lowest: *index,
        });
        let proposal = Proposal { request, at: self.wall(), command, caller };
        let applied = state.apply(LogIndex(*index), Term(1), &proposal, &mut Vec::new());
        state.check().expect("the state's invariants hold after every command");
        self.news.send_replace(*index);
        Response::Applied((*applied).clone())
    }

    fn query(&self, query: &Query) -> Answer {
        self.query_as(Caller::Agent, query).expect("the agent may read it")
    }

    /// Answers a query as a server does.
    fn query_as(&self, caller: Caller, query: &Query) -> Result<Answer, Unavailable> {
        let (state, _) = &*self.state.lock().unwrap();
        let rights = match state.acl().settings().mode {
            AclMode::Enforce => {
                let rights = state.acl().rights(&caller, &"node-one".into(), self.wall());
                let judged = rights.and_then(|rights| check_query(&rights, query).map(|()| rights));
                Some(Arc::new(judged.map_err(Unavailable::NoAccess)?))
            }
            _ => None,
        };
        let (index, listing) = query_view(state, query, usize::MAX, rights.as_ref());
        let own = own_rows(state, &caller, rights.as_deref(), query);
        let (rows, is_filtered) = match (own, listing) {
            (Some(own), _) => (own, false),
            (None, Listing::Rows(rows, is_filtered)) => (rows, is_filtered),
            (None, Listing::View(view)) => view.rows(usize::MAX).expect("there is no limit"),
            (None, Listing::TooLong) => unreachable!("there is no limit"),
        };
        let status = self.status.lock().unwrap();
        let last_contact = status.last_contact.unwrap_or_default();
        Ok(Answer { index, rows, known_leader: status.leader.is_some(), last_contact, is_filtered })
    }

    /// Checks a right of a caller as a server does.
    fn judge(&self, caller: &Caller, need: (Resource, Access, &str)) -> Result<(), Unavailable> {
        let (state, _) = &*self.state.lock().unwrap();
        if state.acl().settings().mode != AclMode::Enforce {
            return Ok(());
        }
        let rights = state.acl().rights(caller, &"node-one".into(), self.wall());
        let (resource, access, name) = need;
        rights.and_then(|rights| rights.check(resource, access, name)).map_err(Unavailable::NoAccess)
    }

    fn renew(&self, caller: &Caller, id: SessionId) -> Response {
        let session = self.state.lock().unwrap().0.session(id).cloned();
        let judged = session.as_ref().map_or(Ok(()), |session| {
            self.judge(caller, (Resource::Session, Access::Write, session.spec.node.as_str()))
        });
        judged.map_or_else(Response::Unavailable, |()| Response::Renewed(session))
    }

    fn wall(&self) -> WallTime {
        WallTime(self.wall.load(Ordering::Relaxed))
    }

    fn whole(&self, answer: Answer) -> Response {
        match *self.rows_at_once.lock().unwrap() {
            Some(most) if answer.rows.len() > most => {
                Response::Unavailable(Unavailable::AnswerTooLong { limit: 8 << 20 })
            }
            _ => Response::answer(answer).received(),
        }
    }

    /// One row of an answer.
    fn part(&self, number: u64, after: u64) -> Response {
        self.parts_read.fetch_add(1, Ordering::Relaxed);
        let views = self.views.borrow();
        let Some(answer) = views.get(&number) else {
            return Response::Unavailable(Unavailable::Overloaded("the answer is incomplete".into()));
        };
        let (rows, next) = answer.rows.part(after as usize, 1);
        let answer = Answer { rows, ..answer.clone() };
        let view = ViewId { server: ServerId(1), number };
        Response::AnswerPart(Box::new(AnswerPart { answer, view, next: next.map(|next| next as u64) }))
    }

    async fn blocking_query(
        &self,
        caller: Caller,
        query: Query,
        blocking: Blocking,
    ) -> Result<Answer, Unavailable> {
        // The agent's own reads are not those of a client.
        let is_of_a_client = !matches!(query, Query::Bindings(_) | Query::AclSettings);
        let _parked = is_of_a_client.then(|| {
            self.waiting.send_modify(|waiting| *waiting += 1);
            Parked(&self.waiting)
        });
        let mut news = self.news.subscribe();
        let end = tokio::time::Instant::now() + blocking.wait;
        loop {
            let answer = self.query_as(caller.clone(), &query)?;
            if answer.index > blocking.index {
                return Ok(answer);
            }
            if tokio::time::timeout_at(end, news.changed()).await.is_err() {
                return Ok(answer);
            }
        }
    }

    fn order(&self, order: Call) -> Response {
        self.orders.lock().unwrap().push(order);
        self.denied.lock().unwrap().clone().map_or(Response::Done, Response::Unavailable)
    }

    fn first_status() -> Status {
        let server = ServerStatus {
            id: ServerId(1),
            node_id: NODE_ID.into(),
            node: "node-one".into(),
            address: SERVER_ADDRESS.into(),
            voter: true,
            last_index: LogIndex(9),
            last_contact: Some(Duration::ZERO),
            healthy: true,
            stable_since: Some(WallTime(1_795_250_472_999)),
            version: "0.1.0".into(),
        };
        let caller = Some(AgentNumber(1));
        let one = ServerId(1);
        Status { leader: Some(one), server: one, servers: vec![server], caller, ..Status::default() }
    }

    /// If there are several, one at a time.
    fn leases_of(&self, query: &NodeLeaseQuery) -> NodeLeases {
        self.leases_asked.fetch_add(1, Ordering::Relaxed);
        let (state, _) = &*self.state.lock().unwrap();
        let leases = self.leases.lock().unwrap();
        let mut known = leases.iter().filter(|known| match query {
            NodeLeaseQuery::Of(node) => {
                state.member(&node.folded()).is_some_and(|member| member.lease() == known.lease)
            }
            NodeLeaseQuery::From(first) => known.lease.agent >= *first,
        });
        NodeLeases {
            leases: known.by_ref().take(1).cloned().collect(),
            next: known.next().map(|next| next.lease.agent),
        }
    }

    fn backup_part(&self, number: u32) -> Response {
        let guard = self.state.lock().unwrap();
        let rows: Vec<_> = guard.0.rows().collect();
        let pieces: Vec<_> = rows.chunks(4).collect();
        Response::BackupPart(BackupPart {
            backup: 7,
            cluster_id: guard.0.cluster_id().into(),
            index: LogIndex(guard.1),
            term: Term(1),
            number,
            last: number as usize + 1 == pieces.len(),
            rows: pieces[number as usize].to_vec(),
        })
    }

    /// Waits until this many reads are parked.
    pub(super) async fn parked(&self, count: usize) {
        let mut waiting = self.waiting.subscribe();
        waiting.wait_for(|waiting| *waiting == count).await.unwrap();
    }

    fn read(&self, answer: Result<Answer, Unavailable>) -> Response {
        answer.map_or_else(Response::Unavailable, |answer| self.whole(answer))
    }

    async fn answer(&self, caller: Caller, request: Call) -> Response {
        if let Some(unavailable) = self.broken.lock().unwrap().clone() {
            return Response::Unavailable(unavailable);
        }
        let need = match request {
            Call::BackupPart { .. } => Some((Resource::Acl, Access::Write, "")),
            Call::TransferLeader(_) | Call::RemoveServer(_) => Some((Resource::Operator, Access::Write, "")),
            Call::Autopilot => Some((Resource::Operator, Access::Read, "")),
            _ => None,
        };
        if let Some(refused) = need.and_then(|need| self.judge(&caller, need).err()) {
            return Response::Unavailable(refused);
        }
        match request {
            Call::Propose(_, command) => self.apply_as(caller, command),
            Call::Read { query, blocking: Some(blocking), .. } => {
                self.read(self.blocking_query(caller, query, blocking).await)
            }
            Call::Read { query, .. } => self.read(self.query_as(caller, &query)),
            Call::ReadParts { query, .. } => {
                let answer = self.query_as(caller, &query).expect("only permitted reads are long");
                let number = self.views_begun.fetch_add(1, Ordering::Relaxed) as u64;
                self.views.send_modify(|views| drop(views.insert(number, answer)));
                self.part(number, 0)
            }
            Call::ReadPart { view, after, .. } => self.part(view.number, after),
            Call::EndView(view, _) => {
                self.views.send_modify(|views| drop(views.remove(&view.number)));
                Response::Done
            }
            Call::Renew(id) => self.renew(&caller, id),
            Call::Status => Response::Status(self.status.lock().unwrap().clone()),
            Call::NodeLeases(query) => Response::NodeLeases(self.leases_of(&query)),
            Call::BackupPart { number, .. } => self.backup_part(number),
            order @ (Call::TransferLeader(_) | Call::RemoveServer(_) | Call::Invite(_)) => self.order(order),
            Call::Autopilot => {
                let guard = self.state.lock().unwrap();
                let (autopilot, index) = guard.0.autopilot();
                Response::Autopilot(autopilot.clone(), index)
            }
            other => unreachable!("only servers ask this: {other:?}"),
        }
    }

    /// A lock wait without failures.
    async fn acquire(
        &self,
        caller: Caller,
        locks: Vec<RequestedLock>,
        session: SessionId,
        wait: Duration,
    ) -> Result<Answered, Unavailable> {
        let keys: Vec<_> = locks.iter().map(|lock| lock.key.clone()).collect();
        let key = keys[0].clone();
        let enqueue = Command::AcquireLocks { locks, session, wait };
        let (enqueued_at_index, queue_position) =
            match self.answer(caller, Call::Propose(None, enqueue)).await {
                Response::Applied(Applied { index, reply: StateReply::Queued { queue_position } }) => {
                    (index, queue_position)
                }
                Response::Applied(applied) => return Ok(Answered::Acquired(applied.index, applied)),
                Response::Unavailable(unavailable) => return Err(unavailable),
                other => panic!("no answer to a command: {other:?}"),
            };
        let leave = KvCommand::Leave { key: key.clone(), session, enqueued_at_index };
        let mut leaving = Leaving(self, Some(Command::Kv(leave)));
        // The servers' clock ends a wait; it is absent here, so the agent's own does, a moment
        // later.
        let blocking = Blocking { index: queue_position, wait: wait + Duration::from_secs(1) };
        let answer = self
            .blocking_query(
                Caller::Agent,
                Query::RequestOutcome { keys, session, queue_position, enqueued_at_index },
                blocking,
            )
            .await?;
        let applied = match answer.rows {
            Rows::QueuePosition(reply @ (StateReply::Granted { .. } | StateReply::GrantedAll(_))) => {
                leaving.1 = None;
                Applied { index: answer.index, reply }
            }
            Rows::QueuePosition(StateReply::Queued { .. }) => {
                Applied { index: enqueued_at_index, reply: StateReply::Succeeded(false) }
            }
            Rows::QueuePosition(reply) => Applied { index: enqueued_at_index, reply },
            other => panic!("no position: {other:?}"),
        };
        Ok(Answered::Acquired(enqueued_at_index, applied))
    }
}

fn end(session: SessionId, reason: EndReason) -> Command {
    match reason {
        EndReason::Closed | EndReason::Unconfirmed => Command::DestroySession(session),
        EndReason::ProcessExited => Command::EndOfProcess(session),
        EndReason::Confirmed(silent_for) => Command::GiveUpSession { session, silent_for },
        EndReason::GivenUp(silent_for) => {
            Command::GiveUpSession { session, silent_for: silent_for.unwrap_or_default() }
        }
    }
}

impl upstream::Quorum for Quorum {
    fn call(self: Arc<Self>, caller: Caller, call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
        Box::pin(async move {
            let request = match call {
                LocalCall::Propose(command) => Call::Propose(None, command),
                LocalCall::Ask(request) | LocalCall::AskHome(request) => request,
                LocalCall::Read { query, consistency, blocking } => {
                    Call::Read { query, consistency, blocking }
                }
                LocalCall::EndSession { session, reason } => {
                    let end = Call::Propose(None, end(session, reason).restricted());
                    let ended = self.answer(caller, end).await;
                    return Ok(Answered::Response(match reason {
                        EndReason::Closed | EndReason::ProcessExited => ended,
                        // Answered at once.
                        _ => Response::Done,
                    }));
                }
                LocalCall::Acquire { locks, session, wait } => {
                    return self.acquire(caller, locks, session, wait).await;
                }
            };
            match self.answer(caller, request).await {
                Response::Unavailable(unavailable) => Err(unavailable),
                response => Ok(Answered::Response(response)),
            }
        })
    }

    fn invite(
        self: Arc<Self>,
        _address: String,
        servers: Vec<String>,
    ) -> BoxFuture<Result<Response, Unavailable>> {
        Box::pin(async move { Ok(self.answer(Caller::Agent, Call::Invite(servers)).await) })
    }

    fn lease(&self) -> watch::Receiver<LeaseState> {
        self.lease.subscribe()
    }

    fn join(self: Arc<Self>, address: String) -> BoxFuture<Result<(), Unavailable>> {
        let reason = Unavailable::Denied(format!("no server is reached at {address}"));
        Box::pin(std::future::ready(if address == SERVER_ADDRESS { Ok(()) } else { Err(reason) }))
    }

    fn registered_lease(&self) -> Option<LeaseId> {
        let (state, _) = &*self.state.lock().unwrap();
        Some(state.member(&"node-one".into())?.lease())
    }

    fn stay(self: Arc<Self>, may_have_left: bool) {
        self.stays.lock().unwrap().push(may_have_left);
    }
}

/// Gives up a position in a queue when its waiter is dropped.
struct Leaving<'a>(&'a Quorum, Option<Command>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(leave) = self.1.take() {
            self.0.apply(leave);
        }
    }
}

struct Parked<'a>(&'a watch::Sender<usize>);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

/// An agent on its stand-in.
pub(super) struct Stand {
    pub(super) api: Arc<Api>,
    pub(super) quorum: Arc<Quorum>,
    _stop: watch::Sender<bool>,
}

impl Stand {
    pub(super) fn new() -> Self {
        Self::with_limits(HttpLimits::default())
    }

    pub(super) fn with_limits(limits: HttpLimits) -> Self {
        let quorum = Arc::new(Quorum {
            state: Mutex::default(),
            wall: AtomicU64::new(1_000),
            news: watch::channel(0).0,
            waiting: watch::channel(0).0,
            broken: Mutex::default(),
            denied: Mutex::default(),
            orders: Mutex::default(),
            status: Mutex::new(Quorum::first_status()),
            leases: Mutex::default(),
            leases_asked: AtomicUsize::default(),
            lease: watch::channel(LeaseState::default()).0,
            stays: Mutex::default(),
            rows_at_once: Mutex::default(),
            views: watch::channel(BTreeMap::new()).0,
            views_begun: AtomicUsize::new(1),
            parts_read: AtomicUsize::new(0),
        });
        quorum.apply(Command::Bootstrap {
            cluster_id: "cluster-one".into(),
            servers: Vec::new(),
            lease_key: LeaseKey([7; 32]),
        });
        // Without another entry: tests name indexes.
        quorum.state.lock().unwrap().0.load(Change::Format(format::NEWEST));
        quorum.apply(Command::RegisterAgent(AgentRegistration::of(own_node())));
        let upstream = Upstream::new(quorum.clone());
        let registry = Registry::in_memory(upstream.clone(), identity(), Limits::default());
        let (stop, stopping) = watch::channel(false);
        tokio::spawn(registry.clone().run(stopping));
        let mut api = Api::new(upstream.clone(), identity(), limits, registry);
        let (node, most) = (identity().node, api.limits.max_watched_sessions);
        let clock = BootClock(Clock::Virtual(tokio::time::Instant::now()));
        api.feeds.session_watches = SessionWatches::with_clock(upstream, node, most, clock);
        let hosts = ["lock.example", ".svc.cluster.local"].map(HostPattern::parse);
        api.access.allowed_hosts = hosts.map(|host| host.expect("a host name")).into();
        Self { api: Arc::new(api), quorum, _stop: stop }
    }

    /// Every request fails from now on.
    pub(super) fn break_with(&self, unavailable: Unavailable) {
        *self.quorum.broken.lock().unwrap() = Some(unavailable);
    }

    /// Requests are answered again.
    pub(super) fn mend(&self) {
        *self.quorum.broken.lock().unwrap() = None;
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Reply {
        self.send_from(LOCAL, request).await
    }

    pub(super) async fn send_from(&self, peer: Peer, request: Request<Body>) -> Reply {
        reply(respond(&self.api, peer, request).await).await
    }

    pub(super) async fn call(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Reply {
        let body: Bytes = body.into();
        let request = Request::builder().method(method).uri(path).header("content-length", body.len());
        self.send(request.body(Body::from(body)).unwrap()).await
    }

    pub(super) async fn get(&self, path: &str) -> Reply {
        self.call("GET", path, "").await
    }

    pub(super) async fn put(&self, path: &str, body: &str) -> Reply {
        self.call("PUT", path, body.to_owned()).await
    }

    /// Creates a session with this body.
    pub(super) async fn session(&self, body: &str) -> String {
        let created = self.put("/v1/session/create", body).await;
        assert_eq!(created.status, 200, "{created:?}");
        created.json()["ID"].as_str().unwrap().to_owned()
    }
}

async fn reply(response: http::Response<Body>) -> Reply {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let reply = Reply { status: head.status, headers: head.headers, body };
    reply.tells_its_outcome();
    reply
}

fn identity() -> Identity {
    Identity {
        node: "node-one".into(),
        node_id: NODE_ID.into(),
        datacenter: "dc1".into(),
        version: "1.2.3".into(),
        advertise: OwnAddress::fixed([127, 0, 0, 1].into()),
        meta: NodeMeta::from(BTreeMap::from([("rack".into(), "a".into())])),
        server_rpc: Some(SERVER_ADDRESS.parse().unwrap()),
    }
}

fn own_node() -> Node {
    Node {
        meta: BTreeMap::from([("rack".into(), "a".into())]),
        ..Node::of("node-one".into(), NODE_ID.into(), "127.0.0.1")
    }
}

/// The response that a client receives.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Reply {
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(super) fn index(&self) -> u64 {
        self.header("x-consul-index").unwrap_or_else(|| panic!("no index: {self:?}")).parse().unwrap()
    }

    /// Checks that every failure reports its outcome. A missing key, and unhealthy servers, are
    /// answers and not failures.
    fn tells_its_outcome(&self) {
        let is_answer = match self.status.as_u16() {
            _ if self.header("x-consul-reason").is_some() => true,
            404 => self.header("x-consul-index").is_some(),
            429 => self.body.starts_with(b"{"),
            status => status < 400,
        };
        assert_eq!(self.header("x-lockmesh-outcome").is_none(), is_answer, "{self:?}");
        assert!(is_answer || !self.body.is_empty(), "a failure has a text: {self:?}");
    }

    /// Checks a status and the outcome of the request.
    #[track_caller]
    pub(super) fn failed(&self, status: u16, outcome: &str) {
        let told = self.header("x-lockmesh-outcome");
        assert_eq!((self.status.as_u16(), told), (status, Some(outcome)), "{self:?}");
    }

    /// Checks a status and a whole body at once.
    #[track_caller]
    pub(super) fn is(&self, status: u16, text: &str) {
        assert_eq!((self.status.as_u16(), self.text()), (status, text), "{self:?}");
    }
}
