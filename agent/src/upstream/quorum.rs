//! The interface of the quorum to the rest of the agent; also implemented by test stand-ins.

use super::counters::UpstreamCounters;
use lockmesh_agent_core::cluster::ClusterChoice;
use lockmesh_agent_core::lease::LeaseState;
use lockmesh_agent_core::quorum_client::{Answered, Load, LocalCall, NotReady};
use lockmesh_net::Identity;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::lease::{Challenge, LeaseId};
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;

/// A boxed future.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Answers local calls.
pub trait Quorum: Debug + Send + Sync {
    /// Answers a call, with the rights of a caller. Dropping the future cancels it.
    fn call(self: Arc<Self>, caller: Caller, call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>>;

    /// Asks the server at `address`, which belongs to no quorum yet, to join the quorum of
    /// `servers`; or returns why it is not reached.
    fn invite(
        self: Arc<Self>,
        address: String,
        servers: Vec<String>,
    ) -> BoxFuture<Result<Response, Unavailable>>;

    /// Answers a challenge of a server.
    fn challenge(self: Arc<Self>, _challenge: Challenge) -> BoxFuture<Result<Answered, Unavailable>> {
        let why = "no lease is kept here".into();
        Box::pin(std::future::ready(Err(Unavailable::Denied(why))))
    }

    /// Returns the node's lease; without one, a closed channel with the default state.
    fn lease(&self) -> watch::Receiver<LeaseState> {
        watch::Sender::default().subscribe()
    }

    /// Returns the number of times that a leader was found; without such a count, a closed channel.
    fn leaders(&self) -> watch::Receiver<u64> {
        watch::Sender::default().subscribe()
    }

    /// Returns the number of times that the catalog may have lost what this node had registered;
    /// without such a count, a closed channel.
    fn catalog_losses(&self) -> watch::Receiver<u64> {
        watch::Sender::default().subscribe()
    }

    /// Checks that a server of this agent's cluster answers at `address`, and adds it to the known
    /// servers; or returns why not.
    fn join(self: Arc<Self>, address: String) -> BoxFuture<Result<(), Unavailable>> {
        let reason = Unavailable::Denied(format!("no server is reached at {address}"));
        Box::pin(std::future::ready(Err(reason)))
    }

    /// Returns the lease under which this agent is registered now.
    fn registered_lease(&self) -> Option<LeaseId> {
        None
    }

    /// Returns `true` if no process of this agent came before this one.
    fn is_new_agent(&self) -> bool {
        false
    }

    /// Returns the registered lease; if there is one, the agent does not register again until
    /// [`Self::stay`].
    fn begin_leaving(self: Arc<Self>) -> Option<LeaseId> {
        self.registered_lease()
    }

    /// Resumes after a leave that did not happen; with `may_have_left`, the node may have left and
    /// is registered again.
    fn stay(self: Arc<Self>, _may_have_left: bool) {}

    /// Records that the agent's node has left, and removes the pin of its cluster.
    fn has_left(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }

    /// Applies a configuration that selects another cluster, or none.
    fn choose_cluster(self: Arc<Self>, _choice: ClusterChoice) {}

    /// Registers the agent's node with this metadata.
    fn set_node_meta(self: Arc<Self>, _meta: BTreeMap<String, String>) {}

    /// Returns `true` if the agent has registered since it started.
    fn is_registered(&self) -> bool {
        true
    }

    /// Returns the reasons why this agent cannot serve requests now; empty if it can.
    fn not_ready(&self) -> Vec<NotReady> {
        Vec::new()
    }

    /// Returns the counters, if there are any.
    fn counters(&self) -> Option<&UpstreamCounters> {
        None
    }

    /// Returns the work under way.
    fn load(&self) -> Load {
        Load::default()
    }

    /// Uses other certificates for the next connection.
    fn replace_identity(&self, _identity: &Identity) {}

    /// Answers blocking reads and lock waits with the current state, now and from now on.
    fn hurry(self: Arc<Self>) {}

    /// Ends all connections and every call under way.
    fn close(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}
