//! This agent as a juror: it challenges another agent for a server that may be partitioned from it,
//! and passes on the reply. It sends the challenge over a connection and as a datagram of the mesh
//! at the same time. The datagram needs no handshake; the connection needs no mesh and no luck.
//!
//! The juror decides nothing, and reports nothing about a node that does not answer.
//! **Invariants:** a server waits no longer than for a challenge of its own; a reply that was not
//! made for the challenge does not count.

use crate::mesh_questions::MeshQuestions;
use crate::metrics::JUROR_QUESTIONS;
use lockmesh_net::Endpoint;
use lockmesh_net::node::NodeConnection;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::NodeQuestion;
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// The maximum number of challenges under way.
const MAX_QUESTIONS: usize = 64;

/// The timeout for connecting to a node and for its reply: the server waits 500 ms.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);

/// The time without a challenge after which a connection is closed at the next challenge.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Challenges other agents.
#[derive(Debug)]
pub(crate) struct Juror {
    endpoint: Arc<Endpoint>,
    mesh: MeshQuestions,
    permits: Semaphore,
    /// The established connections, and the last use of each.
    connections: Mutex<HashMap<(NodeName, String), (NodeConnection, Instant)>>,
}

impl Juror {
    /// Creates a juror that uses the agent's listening socket and this mesh.
    pub(crate) fn new(endpoint: Arc<Endpoint>, mesh: MeshQuestions) -> Self {
        Self { endpoint, mesh, permits: Semaphore::new(MAX_QUESTIONS), connections: Mutex::default() }
    }

    /// Returns a node's reply.
    pub(crate) async fn challenge(&self, question: NodeQuestion) -> Response {
        // Rejected instead of queued: the server would not wait for a late reply.
        let Ok(_permit) = self.permits.try_acquire() else {
            JUROR_QUESTIONS.with_label_values(&["refused"]).inc();
            let reason = format!("this agent challenges at most {MAX_QUESTIONS} others at a time");
            return Response::Unavailable(Unavailable::Overloaded(reason));
        };
        let NodeQuestion { challenge, node, address } = question;
        let connection = self.connection(node, address);
        let connected = async {
            let answer = connection.answer(Request::Challenge(challenge), challenge, ANSWER_TIMEOUT);
            answer.await.map(|answer| (answer, "answered"))
        };
        let by_datagram =
            async { self.mesh.challenge(challenge).await.map(|answer| (answer, "answered_by_datagram")) };
        match timeout(ANSWER_TIMEOUT, first_of(connected, by_datagram)).await.ok().flatten() {
            Some((answer, outcome)) => {
                JUROR_QUESTIONS.with_label_values(&[outcome]).inc();
                Response::alive(answer)
            }
            None => {
                JUROR_QUESTIONS.with_label_values(&["unanswered"]).inc();
                let reason = format!("node {} does not answer this agent", connection.node());
                Response::Unavailable(Unavailable::Unknown(reason))
            }
        }
    }

    fn connection(&self, node: NodeName, address: String) -> NodeConnection {
        let now = Instant::now();
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|_, (_, used)| now.duration_since(*used) < IDLE_TIMEOUT);
        let kept = connections.entry((node, address)).or_insert_with_key(|(node, address)| {
            let endpoint = Arc::clone(&self.endpoint);
            (NodeConnection::new(endpoint, node.clone(), address.clone()), now)
        });
        kept.1 = now;
        kept.0.clone()
    }
}

/// Returns the first result of two futures; `None` if neither has one.
async fn first_of<T>(
    one: impl Future<Output = Option<T>>,
    other: impl Future<Output = Option<T>>,
) -> Option<T> {
    tokio::select! {
        Some(found) = one => Some(found),
        Some(found) = other => Some(found),
        else => None,
    }
}
