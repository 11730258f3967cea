//! The event loop that replaces the driver until this server belongs to a quorum: it answers calls
//! and completes the bootstrap.

use super::decide::{Bootstrap, Decision};
use super::discovery::Discovery;
use super::join::join;
use super::{BootstrapEvent, BootstrapState, Record, RecordError};
use crate::event_queue::{DriverEvent, EventReceiver, EventSender, ReplySink, WakeList};
use crate::health::Health;
use lockmesh_net::Endpoint;
use lockmesh_protocol::bootstrap::{Introduction, Standing};
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::record::NewServer;
use lockmesh_protocol::rpc::{CallId, Request, Response, Status, Unavailable};
use lockmesh_protocol::time::Time;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The longest wait for an event before the present servers are evaluated again.
const INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of events per turn.
const EVENTS_PER_TURN: usize = 1_024;

/// The inputs of the bootstrap.
#[derive(Debug)]
pub(crate) struct BootstrapLoop {
    pub(crate) folder: PathBuf,
    pub(crate) record: Record,
    pub(crate) me: NewServer,
    pub(crate) expect: u32,
    /// The addresses of other servers.
    pub(crate) join: Vec<String>,
    /// The id under which this server founds a cluster, if one is configured.
    pub(crate) cluster_id: Option<String>,
    /// The health that monitoring sees meanwhile.
    pub(crate) health: Health,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) sender: EventSender,
    pub(crate) runtime: Handle,
}

/// The bootstrap loop at work.
struct RunningLoop<'a> {
    bootstrap_loop: &'a mut BootstrapLoop,
    bootstrap: Bootstrap,
    discovery: Discovery,
    wakes: WakeList,
    /// The task that asks a cluster for admission, and its addresses.
    joining: Option<(watch::Sender<Vec<String>>, AbortHandle)>,
    log: LogOnChange,
    began: Instant,
}

impl BootstrapLoop {
    /// Waits until this server belongs to a quorum, and records that durably; its store is made
    /// next. `None` if the server is stopped.
    pub(crate) fn wait(mut self, receiver: &EventReceiver) -> Result<Option<Record>, RecordError> {
        let standing = match &self.record.state {
            BootstrapState::Promised(plan) => Standing::Promised(plan.clone()),
            // Nothing to find out: a crash came between the record and the store, or the server was
            // a member before.
            BootstrapState::Admitted(_) | BootstrapState::Member(_) => return Ok(Some(self.record)),
            BootstrapState::Free => Standing::Free,
        };
        let bootstrap = Bootstrap::new(self.me.clone(), self.expect, standing)
            .configured(self.cluster_id.clone(), !self.join.is_empty());
        let introduction = bootstrap.introduction(Time(0));
        let (endpoint, sender, runtime) =
            (Arc::clone(&self.endpoint), self.sender.clone(), self.runtime.clone());
        let mut discovery = Discovery::new(endpoint, sender, runtime, introduction);
        self.join.iter().for_each(|name| discovery.look_at(name));
        // The others of the plan may not be in `quorum.join`, and the plan needs them to begin.
        if let BootstrapState::Promised(plan) = &self.record.state {
            plan.servers.iter().for_each(|server| discovery.look_at(&server.address));
        }
        let (wakes, log, began) = (WakeList::default(), LogOnChange::default(), Instant::now());
        let waiting =
            RunningLoop { bootstrap_loop: &mut self, bootstrap, discovery, wakes, joining: None, log, began };
        Ok(waiting.run(receiver)?.then_some(self.record))
    }
}

impl RunningLoop<'_> {
    /// Returns `true` at the end of the bootstrap, `false` on a stop.
    fn run(mut self, receiver: &EventReceiver) -> Result<bool, RecordError> {
        let mut events = Vec::new();
        loop {
            if self.decide()? {
                return Ok(true);
            }
            // After the decision, so that a new promise is announced at once.
            self.discovery.set_introduction(self.bootstrap.introduction(self.now()));
            receiver.take(&mut events, EVENTS_PER_TURN, Instant::now() + INTERVAL);
            let mut has_joined = false;
            for event in events.drain(..) {
                match event {
                    DriverEvent::Call { call, request, replies, .. } => self.answer(call, request, &replies),
                    DriverEvent::Bootstrap(BootstrapEvent::Joined(joined)) => {
                        // Durable before it is announced, and before the store exists.
                        self.record_state(BootstrapState::Admitted(joined.into()))?;
                        has_joined = true;
                    }
                    DriverEvent::Bootstrap(BootstrapEvent::Introduced(introduction)) => {
                        self.note_introduction(introduction);
                    }
                    DriverEvent::Bootstrap(BootstrapEvent::Resolved(name, addresses)) => {
                        self.discovery.resolved(&name, addresses);
                    }
                    // A server without a cluster has no leadership to hand over; the dropped sender
                    // reports that.
                    DriverEvent::Leave(_) => {}
                    DriverEvent::Stop => return Ok(false),
                    _ => {}
                }
            }
            self.wakes.deliver();
            // Only after every received event is answered: no other task knows of these calls.
            if has_joined {
                return Ok(true);
            }
        }
    }

    /// Shows the reason of the wait. Returns `true` unless the last wait had the same.
    fn waits_for_another(&mut self, reason: &str) -> bool {
        self.bootstrap_loop.health.wait(reason);
        self.log.is_new(reason)
    }

    /// Carries out the next steps; returns `true` when the quorum can begin.
    fn decide(&mut self) -> Result<bool, RecordError> {
        loop {
            match self.bootstrap.decide(self.now()) {
                Decision::Promise(plan) => {
                    tracing::info!(cluster = plan.cluster_id, "promised to found the cluster");
                    // On disk before it is announced: a promise lost in a crash could be given to
                    // another plan.
                    self.record_state(BootstrapState::Promised(plan.clone()))?;
                    for server in &plan.servers {
                        self.discovery.look_at(&server.address);
                    }
                    self.bootstrap.promised(plan);
                }
                Decision::Begin(plan) => {
                    tracing::info!(
                        cluster = plan.cluster_id,
                        "all founders have promised; starting the cluster"
                    );
                    return Ok(true);
                }
                Decision::Join(cluster_id, addresses) => {
                    self.begin_to_join(cluster_id, addresses);
                    return Ok(false);
                }
                Decision::Wait(what) => {
                    if self.waits_for_another(&what) {
                        tracing::info!("{what}");
                    }
                    return Ok(false);
                }
                Decision::Trouble(what) => {
                    let what = format!("cluster bootstrap is blocked: {what}");
                    if self.waits_for_another(&what) {
                        tracing::error!("{what}");
                    }
                    return Ok(false);
                }
            }
        }
    }

    fn begin_to_join(&mut self, cluster_id: String, addresses: Vec<String>) {
        self.bootstrap.joins();
        self.bootstrap_loop.health.wait(&format!("waiting to join the cluster {cluster_id}"));
        if let Some((known, _)) = &self.joining {
            known.send_replace(addresses);
            return;
        }
        tracing::info!("found a cluster; requesting admission");
        let BootstrapLoop { endpoint, sender, me, runtime, .. } = &*self.bootstrap_loop;
        let (known, addresses) = watch::channel(addresses);
        let task =
            runtime.spawn(join(Arc::clone(endpoint), sender.clone(), me.clone(), (cluster_id, addresses)));
        self.joining = Some((known, task.abort_handle()));
    }

    fn note_introduction(&mut self, introduction: Introduction) {
        self.discovery.look_at(&introduction.server.address);
        // So that each founder finds all others, even if it is configured with only one.
        introduction.knows.iter().for_each(|address| self.discovery.look_at(address));
        self.bootstrap.note_introduction(self.now(), introduction);
    }

    fn answer(&mut self, call: CallId, request: Request, replies: &ReplySink) {
        let response = match request {
            Request::Introduce(introduction) => {
                // A caller counts like a server that was called: one direction is enough if a
                // firewall blocks the other.
                self.note_introduction(introduction);
                Response::Introduced(self.bootstrap.introduction(self.now()))
            }
            // Only before it has promised a plan: a founder that joins another cluster would leave
            // its own without a vote.
            Request::Invite(addresses) if self.bootstrap.is_free() => {
                tracing::info!(addresses = addresses.join(" "), "received servers to join from an operator");
                addresses.iter().for_each(|address| self.discovery.look_at(address));
                self.bootstrap.invited();
                Response::Done
            }
            Request::Invite(_) => {
                let why = "this server founds a cluster: it cannot join another one";
                Response::Unavailable(Unavailable::Denied(why.into()))
            }
            Request::Status => Response::Status(Status::default()),
            _ => Response::Unavailable(Unavailable::NotLeader { leader: None }),
        };
        self.wakes.answer(replies, call, response);
    }

    fn record_state(&mut self, state: BootstrapState) -> Result<(), RecordError> {
        self.bootstrap_loop.record.state = state;
        self.bootstrap_loop.record.write(&self.bootstrap_loop.folder)
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_micros() as u64)
    }
}

impl Drop for RunningLoop<'_> {
    fn drop(&mut self) {
        if let Some((_, joining)) = &self.joining {
            joining.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_queue::{Begun, Caller, event_queue};
    use lockmesh_net::{Development, Peer, QuicOptions, Role};
    use lockmesh_protocol::format;
    use lockmesh_protocol::id::ServerId;
    use lockmesh_protocol::rpc::Joined;

    #[tokio::test]
    async fn call_behind_join_is_answered() {
        let folder = tempfile::tempdir().expect("a folder");
        let certificates = Development::prepare(folder.path(), &"s1".into()).expect("they can be made");
        let identity = certificates.identity(Role::Server).expect("a certificate");
        let endpoint = Endpoint::dial_only(&identity, &QuicOptions::default()).expect("a socket");
        let me = NewServer {
            node: "s1".into(),
            node_id: String::new(),
            address: "127.0.0.1:1".into(),
            instance_id: "instance".into(),
            format: format::NEWEST,
        };
        let id = ServerId(4);
        let joined = Joined { server: id, cluster_id: "c".into(), servers: vec![me.clone().with_id(id)] };
        let (sender, receiver) = event_queue(16);
        let replies = ReplySink::new(Caller(1), Peer { role: Role::Agent, node: "web-1".into() }, 4);
        let call = CallId(1);
        assert!(matches!(replies.begin(call, Instant::now()), Begun::Yes));
        let events = [
            DriverEvent::Bootstrap(BootstrapEvent::Joined(joined)),
            DriverEvent::Call {
                call,
                client: lockmesh_protocol::acl::Caller::Agent,
                request: Request::Status,
                replies: replies.clone(),
            },
        ];
        for event in events {
            assert!(sender.post(event).is_ok(), "there is room");
        }
        let bootstrap_loop = BootstrapLoop {
            folder: folder.path().into(),
            record: Record::fresh("instance".into()),
            me,
            expect: 3,
            join: Vec::new(),
            cluster_id: None,
            health: Health::default(),
            endpoint: Arc::new(endpoint),
            sender,
            runtime: Handle::current(),
        };
        let ended = tokio::task::spawn_blocking(move || bootstrap_loop.wait(&receiver)).await;
        let record = ended.expect("no panic").expect("it is kept").expect("it joined");
        assert!(matches!(record.state, BootstrapState::Admitted(_)));
        let answers = tokio::time::timeout(Duration::from_secs(10), replies.ready()).await;
        assert_eq!(answers.expect("no other task knows of the call").len(), 1);
    }
}
