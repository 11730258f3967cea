//! Messages between servers during bootstrap, discovery and join.

use crate::id::{NodeName, ServerId};
use crate::record::{NewServer, Server};
use serde::{Deserialize, Serialize};

/// A cluster's id and first servers. Each of these servers promises the plan once, durably, before
/// any of them votes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootstrapPlan {
    /// The cluster's id, a UUID.
    pub cluster_id: String,
    /// The initial voters, in ascending order of their ids.
    pub servers: Vec<Server>,
}

impl BootstrapPlan {
    /// Returns a server by its instance id.
    pub fn server(&self, instance_id: &str) -> Option<&Server> {
        self.servers.iter().find(|server| server.instance_id == instance_id)
    }

    /// Returns a server by its node's name, case-insensitively.
    pub fn node(&self, name: &NodeName) -> Option<&Server> {
        let folded = name.folded();
        self.servers.iter().find(|server| server.node.folded() == folded)
    }
}

/// A server's identity and its bootstrap state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The server.
    pub server: NewServer,
    /// The number of servers with which it bootstraps a cluster; 0 to bootstrap none.
    pub expect: u32,
    /// Its bootstrap state.
    pub standing: Standing,
    /// The addresses of other servers that it had contact with recently.
    pub knows: Vec<String>,
}

/// The bootstrap state of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It belongs to no cluster.
    Free,
    /// It has promised to bootstrap this cluster and no other.
    Promised(BootstrapPlan),
    /// It belongs to a cluster.
    Member {
        /// The cluster.
        cluster_id: String,
        /// Its id there.
        server: ServerId,
    },
}
