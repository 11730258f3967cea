//! Keeps one connection to a server: finds one, connects again for ever, registers the agent before anybody else
//! is heard.

use super::backoff::Backoff;
use super::table::{Admission, CallError, CallTable};
use super::window::{Life, Window};
use super::{UpstreamCounters, UpstreamOptions};
use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Close, Connection, Endpoint, LinkError, Purpose, Role};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::AgentNumber;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{ReplyFrame, Request, Response};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// How long one attempt to connect may take.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// How often calls that got no answer are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How long a registration's answer is waited for.
const REGISTER_TIME: Duration = Duration::from_secs(10);

/// What the callers need to know of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkState {
    /// Whether calls are taken.
    pub(super) is_up: bool,
    /// Whether there will never be a connection again.
    pub(super) is_closed: bool,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) table: CallTable,
    pub(super) window: Window,
    pub(super) endpoint: Endpoint,
    pub(super) counters: UpstreamCounters,
    state: watch::Sender<LinkState>,
    options: UpstreamOptions,
    is_forgotten: AtomicBool,
    register_again: Notify,
    stop: Notify,
}

impl Link {
    pub(super) fn new(endpoint: Endpoint, options: UpstreamOptions) -> Arc<Self> {
        Arc::new(Self {
            table: CallTable::default(),
            window: Window::default(),
            endpoint,
            counters: UpstreamCounters::default(),
            state: watch::Sender::default(),
            options,
            is_forgotten: AtomicBool::new(false),
            register_again: Notify::new(),
            stop: Notify::new(),
        })
    }

    /// Waits until calls are taken; `false` when they are not until `deadline`, or never again.
    pub(super) async fn up(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.state.subscribe();
        let up = async {
            state.wait_for(|state| state.is_up || state.is_closed).await.is_ok_and(|state| state.is_up)
        };
        match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), up).await.unwrap_or(false),
            None => up.await,
        }
    }

    /// Whether there will never be a connection again.
    pub(super) fn is_closed(&self) -> bool {
        self.state.borrow().is_closed
    }

    /// A server does not know this life of the agent any more: another one must begin before calls are taken again.
    pub(super) fn forgotten(&self, life: Life) {
        if self.window.life() == Some(life) && !self.is_forgotten.swap(true, Ordering::Relaxed) {
            self.state.send_modify(|state| state.is_up = false);
            self.register_again.notify_one();
        }
    }

    /// Ends [`Link::keep`].
    pub(super) async fn close(&self) {
        self.state.send_modify(|state| *state = LinkState { is_up: false, is_closed: true });
        self.stop.notify_one();
        self.table.admit(Admission::Nobody);
        self.endpoint.close("the agent is shutting down").await;
    }

    /// Keeps a connection until [`Link::close`].
    pub(super) async fn keep(self: Arc<Self>) {
        tokio::select! {
            () = self.keep_on() => {}
            () = self.stop.notified() => {}
        }
    }

    async fn keep_on(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        let (mut next_server, mut said) = (0, String::new());
        loop {
            let reason = match self.connect(&mut next_server).await {
                Ok(connection) => {
                    let (address, peer) = (connection.remote_address(), connection.peer());
                    tracing::info!(%address, %peer, "connected to a server");
                    let (reason, was_up) = self.serve(&connection).await;
                    connection.close(Close::Done, "");
                    if was_up {
                        backoff.reset();
                        said.clear();
                    }
                    format!("lost the server {address}: {reason}")
                }
                Err(reason) => reason,
            };
            // One line for each change: a server that stays away says nothing new.
            if said != reason {
                tracing::warn!("{reason}; trying again until a server answers");
                said = reason;
            }
            tokio::time::sleep(backoff.next()).await;
            self.counters.reconnects.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tries every address of every server once, beginning with the one after the last that failed.
    async fn connect(&self, next_server: &mut usize) -> Result<Connection, String> {
        let servers = &self.options.servers;
        let mut reason = "no server is configured".to_owned();
        for offset in 0..servers.len() {
            let place = (*next_server + offset) % servers.len();
            let server = &servers[place];
            let addresses: Vec<SocketAddr> = match tokio::net::lookup_host(server.as_str()).await {
                Ok(addresses) => addresses.collect(),
                Err(error) => {
                    reason = format!("cannot find the address of the server {server}: {error}");
                    continue;
                }
            };
            for address in addresses {
                let connecting = self.endpoint.connect(address, Role::Server);
                reason = match tokio::time::timeout(CONNECT_TIME, connecting).await {
                    Ok(Ok(connection)) => {
                        // A server that works is the home server; one that fails afterwards makes place for the next.
                        *next_server = place;
                        return Ok(connection);
                    }
                    Ok(Err(error)) => format!("cannot connect to the server {server} ({address}): {error}"),
                    Err(_) => format!("cannot connect to the server {server} ({address}): no answer"),
                };
            }
        }
        *next_server = next_server.wrapping_add(1);
        Err(reason)
    }

    /// Uses the connection until it ends; says why it did, and whether calls were ever taken.
    async fn serve(&self, connection: &Connection) -> (String, bool) {
        let (mut sender, mut receiver) = match connection.open(Purpose::Calls).await {
            Ok(halves) => halves,
            Err(error) => return (error.to_string(), false),
        };
        self.table.admit(Admission::Registration);
        let mut was_up = false;
        let ended = tokio::select! {
            ended = self.send(&mut sender) => ended,
            ended = self.receive(&mut receiver) => ended,
            ended = self.stay_registered(&mut was_up) => ended,
            () = self.sweep() => Ok(()),
        };
        self.state.send_modify(|state| state.is_up = false);
        self.table.admit(Admission::Nobody);
        match ended {
            Ok(()) => ("it finished the stream".into(), was_up),
            Err(error @ LinkError::Malformed(_)) => {
                connection.close(Close::Malformed, &error.to_string());
                (error.to_string(), was_up)
            }
            Err(error) => (error.to_string(), was_up),
        }
    }

    async fn send(&self, sender: &mut FrameSender) -> Result<(), LinkError> {
        loop {
            self.table.ready().await;
            // Callers that are about to run may have something to say as well: let them, so that it shares a frame.
            tokio::task::yield_now().await;
            let frames = self.table.take();
            self.counters.call_frames.fetch_add(frames.len() as u64, Ordering::Relaxed);
            sender.send(frames).await?;
        }
    }

    async fn receive(&self, receiver: &mut FrameReceiver) -> Result<(), LinkError> {
        while let Some(ReplyFrame(answers)) = receiver.receive().await? {
            self.counters.reply_frames.fetch_add(1, Ordering::Relaxed);
            self.table.answer(answers);
        }
        Ok(())
    }

    async fn sweep(&self) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            self.table.expire(Instant::now());
        }
    }

    async fn stay_registered(&self, was_up: &mut bool) -> Result<(), LinkError> {
        loop {
            if self.is_forgotten.load(Ordering::Relaxed) || !self.is_known().await? {
                self.register().await?;
            }
            *was_up = true;
            self.table.admit(Admission::Everybody);
            self.state.send_modify(|state| state.is_up = true);
            self.register_again.notified().await;
            self.table.admit(Admission::Registration);
        }
    }

    /// Whether the quorum still knows the agent's life. Only the leader's word counts: another server may not have
    /// applied the registration yet.
    async fn is_known(&self) -> Result<bool, LinkError> {
        let Some(life) = self.window.life() else { return Ok(false) };
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        loop {
            match self.ask(&Request::Status).await? {
                Response::Status(status) if status.leader == Some(status.server) => {
                    return Ok(status.asker == Some(life.number));
                }
                Response::Status(status) if status.leader.is_some() => return Ok(true),
                _ => tokio::time::sleep(backoff.next()).await,
            }
        }
    }

    async fn register(&self) -> Result<(), LinkError> {
        let request = Request::Propose(None, Command::RegisterAgent(self.options.registration.clone()));
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        let mut said = String::new();
        loop {
            let reason = match self.ask(&request).await? {
                Response::Applied(Applied { reply: Reply::Agent { number, generation }, .. }) => {
                    self.begin_life(number, Life { number, generation });
                    return Ok(());
                }
                Response::Applied(Applied { reply: Reply::Refused(refusal), .. }) => refusal.to_string(),
                Response::Unavailable(unavailable) => unavailable.to_string(),
                other => format!("an answer that fits no registration: {other:?}"),
            };
            if said != reason {
                tracing::warn!("this agent is not registered yet: {reason}");
                said = reason;
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    fn begin_life(&self, number: AgentNumber, life: Life) {
        let node = &self.options.registration.node.name;
        tracing::info!(agent = number.0, generation = life.generation.0, %node, "registered");
        self.window.begin_life(life);
        self.is_forgotten.store(false, Ordering::Relaxed);
        self.counters.registrations.fetch_add(1, Ordering::Relaxed);
    }

    async fn ask(&self, request: &Request) -> Result<Response, LinkError> {
        let call = self.table.call(request, Instant::now() + REGISTER_TIME, Admission::Registration);
        call.await.map_err(|error: CallError| LinkError::Lost(error.to_string()))
    }
}
