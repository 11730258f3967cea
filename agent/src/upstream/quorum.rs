//! What the rest of the agent needs of the quorum, whoever plays it.

use super::counters::UpstreamCounters;
use lockmesh_agent_core::cluster::ClusterChoice;
use lockmesh_agent_core::lease::LeaseState;
use lockmesh_agent_core::quorum_client::{Answered, Load, LocalCall, NotReady};
use lockmesh_net::Identity;
use lockmesh_protocol::lease::{Challenge, LeaseId};
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

    /// Looks whether a server of this agent's cluster answers at `address`, and knows it from then
    /// on; or says why not.
    fn join(self: Arc<Self>, address: String) -> BoxFuture<Result<(), Unavailable>> {
        let reason = Unavailable::Denied(format!("no server is reached at {address}"));
        Box::pin(std::future::ready(Err(reason)))
    }

    /// The lease under which this agent is registered now.
    fn registered_lease(&self) -> Option<LeaseId> {
        None
    }

    /// The same; and if there is one, the agent does not register again until it stays.
    fn begin_leaving(self: Arc<Self>) -> Option<LeaseId> {
        self.registered_lease()
    }

    /// The agent's node did not leave, as far as is known; or it may have, and is to come back.
    fn stay(self: Arc<Self>, _may_have_left: bool) {}

    /// The agent's node has left: nothing is kept of its cluster.
    fn has_left(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }

    /// The configuration names another cluster, or none.
    fn choose_cluster(self: Arc<Self>, _choice: ClusterChoice) {}

    /// Whether the agent has registered since it started.
    fn is_registered(&self) -> bool {
        true
    }

    /// Why this agent cannot have requests answered now; nothing where it can.
    fn not_ready(&self) -> Vec<NotReady> {
        Vec::new()
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
