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
}

impl Client {
    /// Returns the requests about nodes, services and checks.
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog { client: self }
    }
}

impl Catalog<'_> {
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
        self.client.read(Target::new("/v1/catalog/nodes").read(read)).await
    }

    /// Returns a node with its services; `None` if no node has that name.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn node(&self, name: &str, read: &Read) -> Result<Answer<Option<NodeServices>>, Error> {
        self.client.read(Target::new("/v1/catalog/node/").name(name).read(read)).await
    }

    /// Returns the names of all services with their tags.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn services(&self, read: &Read) -> Result<Answer<BTreeMap<String, Vec<String>>>, Error> {
        self.client.read(Target::new("/v1/catalog/services").read(read)).await
    }

    /// Returns the nodes on which a service runs.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn service(&self, name: &str, read: &Read) -> Result<Answer<Vec<ServiceNode>>, Error> {
        self.client.read(Target::new("/v1/catalog/service/").name(name).read(read)).await
    }

    /// Returns the checks of a node.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn node_checks(&self, node: &str, read: &Read) -> Result<Answer<Vec<Check>>, Error> {
        self.client.read(Target::new("/v1/health/node/").name(node).read(read)).await
    }

    /// Returns the checks of a service.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn service_checks(&self, service: &str, read: &Read) -> Result<Answer<Vec<Check>>, Error> {
        self.client.read(Target::new("/v1/health/checks/").name(service).read(read)).await
    }

    /// Returns the checks in a state: `passing`, `warning`, `critical` or `any`.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn checks_in_state(&self, state: &str, read: &Read) -> Result<Answer<Vec<Check>>, Error> {
        self.client.read(Target::new("/v1/health/state/").name(state).read(read)).await
    }

    /// Returns the instances of a service with their checks.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn instances(&self, service: &str, read: &Read) -> Result<Answer<Vec<ServiceInstance>>, Error> {
        self.client.read(Target::new("/v1/health/service/").name(service).read(read)).await
    }
}
