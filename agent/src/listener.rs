//! The agent's QUIC listener. Servers challenge this agent here, have it challenge others as a
//! juror, and send news of the mesh. Other agents challenge it here as jurors.
//!
//! Its socket is also the one from which the agent calls servers. **Invariants:** the role in a
//! peer's certificate decides: a server may challenge, request a juror and send news, an agent may
//! challenge, and all else is rejected. Agents never displace servers. An idle connection is not
//! kept.

use crate::juror::Juror;
use crate::mesh_questions::MeshQuestions;
use crate::metrics::{REFUSED_CONNECTIONS, RETRIED_CONNECTIONS};
use crate::upstream::Upstream;
use lockmesh_net::admission::{Admission, Admitted, HandshakeTurn, NodeConnections, Place};
use lockmesh_net::frame::FrameQueue;
use lockmesh_net::quic::{Arrival, FrameReceiver, FrameSender};
use lockmesh_net::{Close, Connection, Endpoint, LinkError, Purpose, Role};
use lockmesh_protocol::rpc::{Call, CallFrame, Request, Response, Unavailable};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The maximum number of concurrent handshakes.
const MAX_HANDSHAKES: usize = 64;

/// The maximum number of connections of servers.
const MAX_SERVERS: usize = 192;

/// The maximum number of connections of other agents.
const MAX_AGENTS: usize = 64;

/// The maximum number of connections of one of them: it needs one, and those of its earlier life
/// end by a timeout.
const MAX_OF_AGENT: usize = 4;

/// The timeout of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time without a new stream after which a connection is closed; each challenge has its own
/// stream.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum number of calls of one frame that are answered.
const CALLS_PER_FRAME: usize = 16;

/// Answers challenges until the endpoint is closed.
#[derive(Clone, Debug)]
pub struct Listener {
    endpoint: Arc<Endpoint>,
    upstream: Upstream,
    juror: Arc<Juror>,
    mesh: MeshQuestions,
    admission: Admission,
    servers: Arc<Semaphore>,
    agents: Arc<Mutex<NodeConnections<Connection>>>,
}

impl Listener {
    /// Creates a listener on this endpoint, for the lease of this upstream and this mesh.
    pub fn new(endpoint: Arc<Endpoint>, upstream: Upstream, mesh: MeshQuestions) -> Self {
        let juror = Arc::new(Juror::new(Arc::clone(&endpoint), mesh.clone()));
        let admission = Admission::new(MAX_HANDSHAKES);
        let servers = Arc::new(Semaphore::new(MAX_SERVERS));
        let agents = Arc::new(Mutex::new(NodeConnections::new(MAX_AGENTS, MAX_OF_AGENT)));
        Self { endpoint, upstream, juror, mesh, admission, servers, agents }
    }

    /// Accepts connections until the endpoint is closed.
    pub async fn run(self) {
        while let Some(arrival) = self.endpoint.accept().await {
            match self.admission.admit(arrival) {
                Admitted::Yes(arrival, turn) => drop(tokio::spawn(self.clone().welcome(arrival, turn))),
                Admitted::Retried => RETRIED_CONNECTIONS.inc(),
                Admitted::Refused => REFUSED_CONNECTIONS.inc(),
            }
        }
    }

    async fn welcome(self, arrival: Arrival, turn: HandshakeTurn) {
        let remote = arrival.remote_address();
        let handshake = timeout(HANDSHAKE_TIMEOUT, arrival.handshake()).await;
        // It limits handshakes alone: established connections have limits of their own.
        drop(turn);
        let reason = match handshake {
            Ok(Ok(connection)) => match connection.peer().role {
                Role::Server => return self.serve_server(&connection).await,
                Role::Agent => return self.serve_agent(&connection).await,
            },
            Ok(Err(LinkError::Withdrawn)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the handshake took too long".into(),
        };
        REFUSED_CONNECTIONS.inc();
        // Counted, and logged only at debug level: any host that reaches the port could fill the
        // log.
        tracing::debug!(%remote, reason, "refused a connection");
    }

    async fn serve_server(&self, connection: &Connection) {
        // Its next challenge must get through a flood of strangers.
        self.admission.know(connection.remote_address().ip());
        match self.servers.try_acquire() {
            Ok(_place) => self.serve(connection).await,
            Err(_) => refuse(connection, "too many connections of servers"),
        }
    }

    async fn serve_agent(&self, connection: &Connection) {
        let node = &connection.peer().node;
        let place = self.agents().enter(node, connection.clone());
        match place {
            Place::Number(number, displaced) => {
                if let Some(displaced) = displaced {
                    refuse(&displaced, "this node has too many connections, and opened a newer one");
                }
                self.serve(connection).await;
                self.agents().leave(node, number);
            }
            Place::Full => refuse(connection, "too many connections of agents"),
        }
    }

    fn agents(&self) -> MutexGuard<'_, NodeConnections<Connection>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self, connection: &Connection) {
        loop {
            match timeout(IDLE_TIMEOUT, connection.accept()).await {
                Ok(Ok((Purpose::Calls, sender, receiver))) => {
                    // A juror's challenge takes a while, and must not delay calls on other streams.
                    tokio::spawn(self.clone().answer_all(connection.clone(), sender, receiver));
                }
                Ok(Ok((Purpose::Raft, ..))) => {
                    return connection.close(Close::Denied, "this is an agent, which serves no Raft");
                }
                Ok(Err(LinkError::Malformed(what))) => return connection.close(Close::Malformed, &what),
                Ok(Err(_)) => return,
                Err(_) => return connection.close(Close::Done, "no stream was opened"),
            }
        }
    }

    /// Answers the calls of one stream, until it ends.
    async fn answer_all(self, connection: Connection, mut sender: FrameSender, mut receiver: FrameReceiver) {
        if let Err(LinkError::Malformed(what)) =
            self.answer_frames(&connection, &mut sender, &mut receiver).await
        {
            connection.close(Close::Malformed, &what);
        }
    }

    async fn answer_frames(
        &self,
        connection: &Connection,
        sender: &mut FrameSender,
        receiver: &mut FrameReceiver,
    ) -> Result<(), LinkError> {
        let asked_by = connection.peer().role;
        while let Some(CallFrame(calls)) = receiver.receive().await? {
            let mut answers = FrameQueue::default();
            for (number, call) in calls.into_iter().enumerate() {
                // A call that is answered at once cannot be cancelled.
                let Call::Begin(id, request) = call else { continue };
                let response = match request {
                    _ if number >= CALLS_PER_FRAME => {
                        let reason = "too many calls in one frame";
                        Response::Unavailable(Unavailable::Overloaded(reason.into()))
                    }
                    Request::Challenge(challenge) => self.upstream.answer_challenge(challenge).await,
                    Request::AskNode(question) if asked_by == Role::Server => {
                        self.juror.challenge(question).await
                    }
                    Request::TellMesh(items) if asked_by == Role::Server => match self.mesh.queue(items) {
                        true => Response::Done,
                        false => {
                            let reason = "gossip is disabled on this agent, or its queue is full";
                            Response::Unavailable(Unavailable::Overloaded(reason.into()))
                        }
                    },
                    _ => {
                        let reason = "this is an agent: it answers challenges only";
                        Response::Unavailable(Unavailable::Denied(reason.into()))
                    }
                };
                let response = response.in_dialect(connection.dialect());
                answers.push(&(id, response)).expect("each of these answers is short");
            }
            sender.send(answers.take()).await?;
        }
        Ok(())
    }
}

fn refuse(connection: &Connection, reason: &str) {
    REFUSED_CONNECTIONS.inc();
    let (peer, remote) = (connection.peer(), connection.remote_address());
    tracing::debug!(%remote, %peer, reason, "refused a connection");
    connection.close(Close::Full, reason);
}
