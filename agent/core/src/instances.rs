//! The instances of a service that are listed for its name: its own, or its proxies.

use crate::definitions::service_mesh::MeshFields;
use crate::definitions::sidecar_of;
use lockmesh_protocol::id::{NodeName, ServiceId};
use lockmesh_protocol::query::{Instance, Query};
use lockmesh_protocol::record::Service;
use std::collections::BTreeSet;

/// The instances that are listed for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// The service's own.
    Own,
    /// Its proxies, and its own if they are part of the service mesh themselves.
    Connect,
    /// The instances of its gateways: always empty, because configuration entries assign gateways.
    Gateways,
}

impl Listed {
    /// Returns the queries whose answers have these instances, among others.
    pub fn queries(self, name: &str) -> Vec<Query> {
        let names = match self {
            // Proxies that an earlier version registered are found only by their usual name.
            Self::Connect => vec![name.into(), Service::proxies_of(name), sidecar_of(name)],
            Self::Own | Self::Gateways => vec![name.into()],
        };
        names.into_iter().map(Query::ServiceInstances).collect()
    }
}

/// The instances that are listed for a name, each once: a proxy may be found by more than one name.
#[derive(Clone, Debug)]
pub struct Named {
    listed: Listed,
    /// In lower case.
    name: String,
    seen: BTreeSet<(NodeName, ServiceId)>,
}

impl Named {
    /// Begins with the first instance that the queries for a name return.
    pub fn new(listed: Listed, name: &str) -> Self {
        Self { listed, name: name.to_lowercase(), seen: BTreeSet::new() }
    }

    /// Returns `true` for an instance that is listed, when it comes for the first time.
    pub fn is_new(&mut self, Instance { service, .. }: &Instance) -> bool {
        match self.listed {
            Listed::Own => true,
            Listed::Connect => {
                let mesh = MeshFields::of(service);
                let is_named = || service.name.to_lowercase() == self.name;
                (mesh.is_proxy_of(&self.name) || (mesh.is_native() && is_named()))
                    && self.seen.insert((service.node.clone(), service.id.clone()))
            }
            Listed::Gateways => false,
        }
    }
}

/// Returns `true` if a service has a tag, ignoring case.
pub fn has_tag(service: &Service, tag: &str) -> bool {
    service.tags.iter().any(|known| known.eq_ignore_ascii_case(tag))
}
