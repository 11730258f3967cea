//! This agent's own health checks: kept here, reported by applications, shown to the cluster through the catalog.

use crate::http::Identity;
use crate::upstream::Upstream;
use std::sync::Arc;
use tokio::sync::watch;

/// The checks of this agent.
#[derive(Debug)]
pub struct Checks {
    upstream: Upstream,
    identity: Identity,
}

impl Checks {
    /// None yet. Nothing reaches the catalog until [`Self::run`] runs.
    pub fn new(upstream: Upstream, identity: Identity) -> Arc<Self> {
        Arc::new(Self { upstream, identity })
    }

    /// Keeps the catalog equal to this list, until `shutdown` holds `true`.
    pub async fn run(self: Arc<Self>, mut shutdown: watch::Receiver<bool>) {
        tracing::debug!(node = %self.identity.node, upstream = ?self.upstream, "no checks run yet");
        let _ = shutdown.wait_for(|closing| *closing).await;
    }
}
