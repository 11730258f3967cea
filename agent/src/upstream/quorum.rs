//! What the rest of the agent needs of the quorum, whoever plays it.

use super::counters::UpstreamCounters;
use lockmesh_agent_core::lease::LeaseState;
use lockmesh_agent_core::quorum_client::{Answered, Load, LocalCall, NotReady};
use lockmesh_net::Identity;
use lockmesh_protocol::lease::Challenge;
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;

/// A future in a box.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Answers local calls.
pub trait Quorum: Debug + Send + Sync {
    /// Answers a call. To drop the future is to cancel it.
    fn call(self: Arc<Self>, call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>>;

    /// Tells the server at `address`, which belongs to no quorum yet, where the servers are that it
    /// shall join; or says why it is not reached.
    fn invite(
        self: Arc<Self>,
        address: String,
        servers: Vec<String>,
    ) -> BoxFuture<Result<Response, Unavailable>>;

    /// Answers a server that asks whether this agent lives.
    fn challenge(self: Arc<Self>, _challenge: Challenge) -> BoxFuture<Result<Answered, Unavailable>> {
        let why = "no lease is kept here".into();
        Box::pin(std::future::ready(Err(Unavailable::Denied(why))))
    }

    /// What may be believed of the node's lease; where none is kept, nothing, and that is final.
    fn lease(&self) -> watch::Receiver<LeaseState> {
        watch::Sender::default().subscribe()
    }

    /// Whether the agent has registered since it started.
    fn is_registered(&self) -> bool {
        true
    }

    /// Why this agent cannot have requests answered now; nothing where it can.
    fn not_ready(&self) -> Vec<NotReady> {
        Vec::new()
    }

    /// How the lease of this agent's node stands.
    fn lease(&self) -> watch::Receiver<LeaseState> {
        watch::channel(LeaseState::default()).1
    }

    /// What was counted, where anything is.
    fn counters(&self) -> Option<&UpstreamCounters> {
        None
    }

    /// How much is under way now.
    fn load(&self) -> Load {
        Load::default()
    }

    /// Uses other certificates for the next connection.
    fn replace_identity(&self, _identity: &Identity) {}

    /// Blocking reads and waits for locks are answered with what there is, now and from now on.
    fn hurry(self: Arc<Self>) {}

    /// Ends all connections and every call under way.
    fn close(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}
