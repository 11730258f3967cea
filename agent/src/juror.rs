//! This agent as a juror: it asks another one whether it lives, for a server that may be cut off
//! from it, and hands on what that answers. It asks over a connection and by a datagram of the mesh
//! at once: a datagram needs no handshake, and a connection neither a mesh nor luck.
//!
//! Nothing is decided here, and nothing is said of a node that does not answer. **Invariants:** a
//! server waits no longer than it would for a node of its own; an answer that was not made for the
//! question is none.

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

/// How many questions may be under way.
const MAX_QUESTIONS: usize = 64;

/// How long a node's answer is waited for, and to connect to it: the server waits 500 ms.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);

/// A connection over which nothing was asked for so long is given up when the next question comes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks other agents.
#[derive(Debug)]
pub(crate) struct Juror {
    endpoint: Arc<Endpoint>,
    mesh: MeshQuestions,
    permits: Semaphore,
    /// The connections that stand, and when each was used last.
    connections: Mutex<HashMap<(NodeName, String), (NodeConnection, Instant)>>,
}

impl Juror {
    /// Asks from the socket on which this agent listens, and in the mesh.
    pub(crate) fn new(endpoint: Arc<Endpoint>, mesh: MeshQuestions) -> Self {
        Self { endpoint, mesh, permits: Semaphore::new(MAX_QUESTIONS), connections: Mutex::default() }
    }

    /// What a node answers.
    pub(crate) async fn ask(&self, question: NodeQuestion) -> Response {
        let Ok(_permit) = self.permits.try_acquire() else {
            JUROR_QUESTIONS.with_label_values(&["refused"]).inc();
            let reason = format!("this agent asks {MAX_QUESTIONS} others at a time");
            return Response::Unavailable(Unavailable::Overloaded(reason));
        };
        let NodeQuestion { challenge, node, address } = question;
        let connection = self.connection(node, address);
        let connected = async {
            let answer = connection.answer(Request::Challenge(challenge), challenge, ANSWER_TIMEOUT);
            answer.await.map(|answer| (answer, "answered"))
        };
        let by_datagram =
            async { self.mesh.ask(challenge).await.map(|answer| (answer, "answered_by_datagram")) };
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

/// What one of two comes to first; none where neither comes to anything.
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
