//! What servers tell each other before they are a quorum, and how a server that comes later finds
//! one.

use crate::id::{NodeName, ServerId};
use crate::record::{NewServer, Server};
use serde::{Deserialize, Serialize};

/// A cluster's id and first servers. Each of these promises it once, durably, before any of them
/// votes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootstrapPlan {
    /// The cluster's id, a UUID.
    pub cluster_id: String,
    /// The servers that vote at first, in order of their ids.
    pub servers: Vec<Server>,
}

impl BootstrapPlan {
    /// A server by its instance id.
    pub fn server(&self, instance_id: &str) -> Option<&Server> {
        self.servers.iter().find(|server| server.instance_id == instance_id)
    }

    /// A server by its node's name, in whatever case.
    pub fn node(&self, name: &NodeName) -> Option<&Server> {
        let folded = name.folded();
        self.servers.iter().find(|server| server.node.folded() == folded)
    }
}

/// Who a server is and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// Who it is.
    pub server: NewServer,
    /// How many servers it wants to found a cluster with; 0 to found none.
    pub expect: u32,
    /// How far it has come.
    pub standing: Standing,
    /// Where other servers are that it has heard lately.
    pub knows: Vec<String>,
}

/// How far a server has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It belongs to nothing.
    Free,
    /// It has promised to found this cluster and no other.
    Promised(BootstrapPlan),
    /// It belongs to a cluster.
    Member {
        /// The cluster.
        cluster_id: String,
        /// Its id there.
        server: ServerId,
    },
}
