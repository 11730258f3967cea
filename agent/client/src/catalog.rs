//! Requests that read the catalog and the health of the fleet.

use crate::client::{Answer, Client, Target};
use crate::error::Error;
use crate::read::Read;
use crate::shape::catalog::{Node, NodeServices, ServiceNode};
use crate::shape::health::{Check, ServiceInstance};
use std::collections::BTreeMap;

/// Requests about nodes, services and checks. See [`Client::catalog`].
#[derive(Clone, Copy, Debug)]
pub struct Catalog<'a> {
    client: &'a Client,
    filter: &'a str,
    near: &'a str,
}

impl Client {
    /// Returns the requests about nodes, services and checks.
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog { client: self, filter: "", near: "" }
    }
}

impl<'a> Catalog<'a> {
    /// Lists only what this filter selects: an expression such as `Meta.rack == r1` about the
    /// fields of the elements of a list, or of the services of a node.
    #[must_use]
    pub fn filter(self, filter: &'a str) -> Self {
        Self { filter, ..self }
    }

    /// Lists nodes and instances by their estimated round trip time from this node, nearest first;
    /// `_agent` is the agent's own node.
    #[must_use]
    pub fn near(self, near: &'a str) -> Self {
        Self { near, ..self }
    }

    /// Returns all datacenters.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn datacenters(&self) -> Result<Vec<String>, Error> {
        Ok(self.client.read(Target::new("/v1/catalog/datacenters")).await?.value)
    }

    /// Returns all nodes.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn nodes(&self, read: &Read) -> Result<Answer<Vec<Node>>, Error> {
        let target = Target::new("/v1/catalog/nodes").read(read).filter(self.filter);
        self.client.read(target.near(self.near)).await
    }

    /// Returns a node with its services; `None` if no node has that name.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn node(&self, name: &str, read: &Read) -> Result<Answer<Option<NodeServices>>, Error> {
        self.client.read(Target::new("/v1/catalog/node/").name(name).read(read).filter(self.filter)).await
    }

    /// Returns the names of all services with their tags.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn services(&self, read: &Read) -> Result<Answer<BTreeMap<String, Vec<String>>>, Error> {
        self.client.read(Target::new("/v1/catalog/services").read(read).filter(self.filter)).await
    }

    /// Returns the nodes on which a service runs.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn service(&self, name: &str, read: &Read) -> Result<Answer<Vec<ServiceNode>>, Error> {
        let target = Target::new("/v1/catalog/service/").name(name).read(read).filter(self.filter);
        self.client.read(target.near(self.near)).await
    }

    /// Returns the checks of a node.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn node_checks(&self, node: &str, read: &Read) -> Result<Answer<Vec<Check>>, Error> {
        self.client.read(Target::new("/v1/health/node/").name(node).read(read).filter(self.filter)).await
    }

    /// Returns the checks of a service.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn service_checks(&self, service: &str, read: &Read) -> Result<Answer<Vec<Check>>, Error> {
        self.client.read(Target::new("/v1/health/checks/").name(service).read(read).filter(self.filter)).await
    }

    /// Returns the checks in a state: `passing`, `warning`, `critical` or `any`.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn checks_in_state(&self, state: &str, read: &Read) -> Result<Answer<Vec<Check>>, Error> {
        self.client.read(Target::new("/v1/health/state/").name(state).read(read).filter(self.filter)).await
    }

    /// Returns the instances of a service with their checks.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn instances(&self, service: &str, read: &Read) -> Result<Answer<Vec<ServiceInstance>>, Error> {
        self.client
            .read(Target::new("/v1/health/service/").name(service).read(read).filter(self.filter))
            .await
    }
}
