//! Reading the catalog and the health of the fleet.

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
    /// Requests about nodes, services and checks.
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog { client: self }
    }
}

impl Catalog<'_> {
    /// All datacenters.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn datacenters(&self) -> Result<Vec<String>, Error> {
        Ok(self.client.read(Target::new("/v1/catalog/datacenters")).await?.value)
    }

    /// All nodes.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn nodes(&self, read: &Read) -> Result<Answer<Vec<Node>>, Error> {
        self.client.read(Target::new("/v1/catalog/nodes").read(read)).await
    }

    /// One node with its services; `None` when there is none of that name.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn node(&self, name: &str, read: &Read) -> Result<Answer<Option<NodeServices>>, Error> {
        self.client.read(Target::new("/v1/catalog/node/").name(name).read(read)).await
    }

    /// The names of all services with their tags.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn services(&self, read: &Read) -> Result<Answer<BTreeMap<String, Vec<String>>>, Error> {
        self.client.read(Target::new("/v1/catalog/services").read(read)).await
    }

    /// The nodes on which a service runs.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn service(&self, name: &str, read: &Read) -> Result<Answer<Vec<ServiceNode>>, Error> {
        self.client.read(Target::new("/v1/catalog/service/").name(name).read(read)).await
    }

    /// The checks of a node.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn node_checks(&self, node: &str, read: &Read) -> Result<Answer<Vec<Check>>, Error> {
        self.client.read(Target::new("/v1/health/node/").name(node).read(read)).await
    }

    /// The checks of a service.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn service_checks(&self, service: &str, read: &Read) -> Result<Answer<Vec<Check>>, Error> {
        self.client.read(Target::new("/v1/health/checks/").name(service).read(read)).await
    }

    /// The checks in a state: `passing`, `warning`, `critical` or `any`.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn checks_in_state(&self, state: &str, read: &Read) -> Result<Answer<Vec<Check>>, Error> {
        self.client.read(Target::new("/v1/health/state/").name(state).read(read)).await
    }

    /// The instances of a service with their checks.
    ///
    /// # Errors
    /// Nothing was changed, whatever the error: ask again where [`Error::is_transient`] says so.
    pub async fn instances(&self, service: &str, read: &Read) -> Result<Answer<Vec<ServiceInstance>>, Error> {
        self.client.read(Target::new("/v1/health/service/").name(service).read(read)).await
    }
}
