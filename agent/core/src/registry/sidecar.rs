//! Sidecar proxies: each is registered, and deregistered, with the service that it runs beside.

use super::RegistryError;
use super::services::LocalService;
use crate::definitions::{CheckKind, NewCheck, Probe, ServiceRegistration, Sidecar, Target};
use lockmesh_protocol::host_port::join;
use lockmesh_protocol::id::{CheckId, ServiceId};
use lockmesh_protocol::record::{CheckStatus, Service};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The ports for sidecar proxies that are registered without one.
pub const SIDECAR_PORTS: RangeInclusive<u16> = 21_000..=21_255;

const LISTENING_INTERVAL: Duration = Duration::from_secs(10);

/// A service to insert, with its checks.
pub(super) struct Part {
    pub(super) service: Service,
    pub(super) checks: Vec<NewCheck>,
    pub(super) is_sidecar: bool,
}

impl ServiceRegistration {
    /// Returns what to insert.
    ///
    /// # Errors
    /// There is no port for its sidecar, or more than this many services.
    pub(super) fn fitting(
        self,
        services: &BTreeMap<ServiceId, LocalService>,
        max_services: usize,
    ) -> Result<Vec<Part>, RegistryError> {
        let port = self.sidecar_port(services)?;
        let parts = self.parts(port);
        let new = parts.iter().filter(|part| !services.contains_key(&part.service.id.folded())).count();
        match new > 0 && services.len() + new > max_services {
            true => Err(RegistryError::TooManyServices(max_services)),
            false => Ok(parts),
        }
    }

    /// Returns the port of its sidecar; 0 without one.
    fn sidecar_port(&self, services: &BTreeMap<ServiceId, LocalService>) -> Result<u16, RegistryError> {
        let Some(Sidecar { service, .. }) = &self.sidecar else { return Ok(0) };
        if service.port > 0 {
            return Ok(service.port);
        }
        // It keeps its port when it is registered again.
        let own = services.get(&service.id.folded()).map(|known| known.record.port);
        let used: BTreeSet<u16> = services.values().map(|known| known.record.port).collect();
        own.filter(|port| SIDECAR_PORTS.contains(port))
            .or_else(|| SIDECAR_PORTS.into_iter().find(|port| !used.contains(port)))
            .ok_or(RegistryError::NoSidecarPort)
    }

    /// Returns the service, and its sidecar with this port.
    pub(super) fn parts(self, port: u16) -> Vec<Part> {
        let parent = self.service.id.clone();
        let sidecar = self.sidecar.map(|sidecar| sidecar.part(&parent, port));
        let own = Part { service: self.service, checks: self.checks, is_sidecar: false };
        [Some(own), sidecar].into_iter().flatten().collect()
    }
}

impl Sidecar {
    fn part(self, parent: &ServiceId, port: u16) -> Part {
        let Self { service, checks, host } = self;
        let checks = if checks.is_empty() { usual_checks(&service.id, parent, &host, port) } else { checks };
        Part { service: Service { port, ..service }, checks, is_sidecar: true }
    }
}

fn usual_checks(id: &ServiceId, parent: &ServiceId, host: &str, port: u16) -> Vec<NewCheck> {
    let target = Target::Tcp { address: join(host, port), tls: None };
    let listening = CheckKind::Probe(Probe { target, interval: LISTENING_INTERVAL, timeout: None });
    let alias = CheckKind::Alias { node: None, service: Some(parent.clone()) };
    let check = |number: u8, name: String, kind| NewCheck {
        name,
        shows_unset_durations: false,
        ..NewCheck::of(CheckId::from(format!("service:{id}:{number}")), CheckStatus::Critical, kind)
    };
    vec![
        check(1, "Connect Sidecar Listening".into(), listening),
        check(2, format!("Connect Sidecar Aliasing {parent}"), alias),
    ]
}
