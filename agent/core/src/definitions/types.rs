//! Services and checks as they are registered, by applications and in configuration files.

use lockmesh_protocol::duration::{format, parse};
use lockmesh_protocol::id::{CheckId, NodeName, ServiceId};
use lockmesh_protocol::record::{Check, CheckStatus, NODE_MAINTENANCE, SERVICE_MAINTENANCE, Service};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The field of a check's definition that holds its TTL; the catalog does not show it.
pub const DEFINITION_TTL: &str = "TTL";

/// The minimum interval between runs; a shorter one is raised to it.
pub const MIN_INTERVAL: Duration = Duration::from_secs(1);

const TTL_KIND: &str = "ttl";
const MAINTENANCE_KIND: &str = "maintenance";

/// The registration of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRegistration {
    /// The service. Its node is the agent's.
    pub service: Service,
    /// Its checks.
    pub checks: Vec<NewCheck>,
    /// Set to deregister its other checks.
    pub replaces_checks: bool,
    /// The proxy that is registered with it.
    pub sidecar: Option<Sidecar>,
}

/// A proxy that is registered with its service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// The proxy; a port of 0 is replaced by a free one of
    /// [`SIDECAR_PORTS`](crate::registry::SIDECAR_PORTS).
    pub service: Service,
    /// Its checks. Without any it gets two: its port is open, and its service is healthy.
    pub checks: Vec<NewCheck>,
    /// The host to which the first of these two checks connects.
    pub host: String,
}

/// The services and checks of the configuration files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// Services with their checks.
    pub services: Vec<ServiceRegistration>,
    /// Checks of the node, or of a service by its id.
    pub checks: Vec<NewCheck>,
}

/// A check as it is registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewCheck {
    /// Its id, unique on this agent.
    pub id: CheckId,
    /// Its display name.
    pub name: String,
    /// Notes about it.
    #[serde(default)]
    pub notes: String,
    /// Its initial status; ignored if the check is registered again.
    pub status: CheckStatus,
    /// Its kind.
    pub kind: CheckKind,
    /// The service that it belongs to; `None` for the node itself.
    #[serde(default)]
    pub service: Option<ServiceId>,
    /// The numbers of results after which the status changes.
    #[serde(default)]
    pub thresholds: Thresholds,
    /// The time in critical state after which its service is deregistered.
    #[serde(default)]
    pub deregister_after: Option<Duration>,
    /// The maximum size of its output, if that is less than the agent's limit.
    #[serde(default)]
    pub max_output_bytes: Option<usize>,
    /// Set if the catalog shows an interval and a timeout that are unset as `0s`.
    #[serde(default)]
    pub shows_unset_durations: bool,
}

/// The kind of a check: the way in which its status is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckKind {
    /// An application reports within this time, or the check turns critical. Longer than zero.
    Ttl(Duration),
    /// The agent runs it.
    Probe(Probe),
    /// It follows the checks of a service, or of a node.
    Alias {
        /// The node; `None` for this agent's.
        node: Option<NodeName>,
        /// The service on that node; `None` to follow the checks of the node itself.
        service: Option<ServiceId>,
    },
    /// The node or the service is in maintenance: critical until the check is removed.
    Maintenance,
}

/// A check that the agent runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What is probed, and how.
    pub target: Target,
    /// The time from the end of a run to the start of the next one. At least [`MIN_INTERVAL`].
    pub interval: Duration,
    /// The maximum duration of a run; `None` for the default of the target's kind.
    pub timeout: Option<Duration>,
}

/// The target of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// An HTTP request. 2xx is passing, 429 a warning, everything else critical.
    Http(HttpTarget),
    /// A TCP connection, with a TLS handshake if given.
    Tcp {
        /// `host:port`.
        address: String,
        /// The options of the handshake.
        tls: Option<TlsTarget>,
    },
    /// An empty datagram. Only an error is critical: many servers do not reply to it.
    Udp {
        /// `host:port`.
        address: String,
    },
    /// The gRPC health protocol.
    Grpc {
        /// `host:port`, or `host:port/service`.
        target: String,
        /// The options of the handshake.
        tls: Option<TlsTarget>,
    },
    /// An HTTP/2 ping.
    H2Ping {
        /// `host:port`.
        address: String,
        /// The options of the handshake.
        tls: Option<TlsTarget>,
    },
    /// A command. Exit code 0 is passing, 1 a warning, everything else critical.
    Script {
        /// The program and its arguments; never empty.
        args: Vec<String>,
    },
}

/// An HTTP request of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpTarget {
    /// The URL, as registered; an invalid one makes the check critical.
    pub url: String,
    /// The method; empty for GET.
    pub method: String,
    /// Additional headers, which replace the defaults.
    pub header: BTreeMap<String, Vec<String>>,
    /// The body.
    pub body: String,
    /// Set to treat a redirect as the result.
    pub disable_redirects: bool,
    /// The options of the handshake, for an `https` URL.
    pub tls: TlsTarget,
}

/// The options of a TLS handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsTarget {
    /// The name that the certificate must have; empty for the target's host.
    pub server_name: String,
    /// Set to accept any certificate.
    pub skip_verify: bool,
}

/// The numbers of consecutive results after which a check's status changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Successes before it is passing.
    pub success_before_passing: u32,
    /// Failures before it is a warning; 0 for as many as before it is critical.
    pub failures_before_warning: u32,
    /// Failures before it is critical.
    pub failures_before_critical: u32,
}

/// Returns the id or the name of the sidecar proxy of a service with this one.
pub fn sidecar_of(service: &str) -> String {
    format!("{service}-sidecar-proxy")
}

impl ServiceRegistration {
    /// Returns its checks and its sidecar's.
    pub fn all_checks(&self) -> impl Iterator<Item = &NewCheck> {
        self.checks.iter().chain(self.sidecar.iter().flat_map(|sidecar| &sidecar.checks))
    }
}

impl Target {
    /// Returns the name of the kind in the API.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Tcp { .. } => "tcp",
            Self::Udp { .. } => "udp",
            Self::Grpc { .. } => "grpc",
            Self::H2Ping { .. } => "h2ping",
            Self::Script { .. } => "script",
        }
    }

    /// Returns the timeout of a run, unless the check has its own.
    pub fn default_timeout(&self) -> Duration {
        Duration::from_secs(if matches!(self, Self::Script { .. }) { 30 } else { 10 })
    }
}

impl CheckKind {
    /// Returns the kind of a check in the catalog that this agent can adopt: one that an
    /// application reports, and maintenance. Checks that the agent would have to run are never
    /// taken from the catalog.
    pub fn adoptable(check: &Check) -> Option<Self> {
        let maintained = check
            .service_id
            .as_ref()
            .map_or_else(|| NODE_MAINTENANCE.to_owned(), |service| format!("{SERVICE_MAINTENANCE}{service}"));
        match check.kind.as_str() {
            TTL_KIND => defined_ttl(&check.definition).map(Self::Ttl),
            MAINTENANCE_KIND => (check.id.as_str() == maintained).then_some(Self::Maintenance),
            _ => None,
        }
    }

    /// Returns the maximum interval between reports; `None` for a kind without reports.
    pub fn ttl(&self) -> Option<Duration> {
        match self {
            Self::Ttl(ttl) => Some(*ttl),
            _ => None,
        }
    }

    /// Returns what the agent runs; `None` for a kind that it does not run.
    pub fn probe(&self) -> Option<&Probe> {
        match self {
            Self::Probe(probe) => Some(probe),
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Ttl(_) => TTL_KIND,
            Self::Probe(probe) => probe.target.kind(),
            Self::Alias { .. } => "alias",
            Self::Maintenance => MAINTENANCE_KIND,
        }
    }
}

impl NewCheck {
    /// Returns a check of the node, with defaults for everything else.
    pub fn of(id: CheckId, status: CheckStatus, kind: CheckKind) -> Self {
        Self {
            name: id.to_string(),
            id,
            notes: String::new(),
            status,
            kind,
            service: None,
            thresholds: Thresholds::default(),
            deregister_after: None,
            max_output_bytes: None,
            shows_unset_durations: true,
        }
    }

    /// Returns `true` if it runs a command.
    pub fn runs_script(&self) -> bool {
        self.kind.probe().is_some_and(|probe| matches!(probe.target, Target::Script { .. }))
    }

    /// Returns the check of a node or a service in maintenance.
    pub(crate) fn maintenance(id: CheckId, service: Option<ServiceId>, notes: &str) -> Self {
        let name = if service.is_some() { "Service Maintenance Mode" } else { "Node Maintenance Mode" };
        Self {
            name: name.into(),
            notes: notes.into(),
            service,
            shows_unset_durations: false,
            ..Self::of(id, CheckStatus::Critical, CheckKind::Maintenance)
        }
    }

    /// Returns its record in the catalog, without the service's name and tags.
    pub(crate) fn record(&self, node: &NodeName) -> Check {
        let probe = self.kind.probe();
        let shown = |length: Option<Duration>| match length {
            None if !self.shows_unset_durations => String::new(),
            length => format(length.unwrap_or_default()),
        };
        let definition =
            self.kind.ttl().map(|ttl| serde_json::json!({ DEFINITION_TTL: format(ttl) }).to_string());
        Check {
            name: self.name.clone(),
            notes: self.notes.clone(),
            service_id: self.service.clone(),
            kind: self.kind.name().into(),
            interval: shown(probe.map(|probe| probe.interval)),
            timeout: shown(probe.and_then(|probe| probe.timeout)),
            definition: definition.unwrap_or_default(),
            ..Check::of(node.clone(), self.id.clone(), self.status)
        }
    }
}

/// Returns the TTL with which an agent registered a check of the catalog.
fn defined_ttl(definition: &str) -> Option<Duration> {
    let definition: serde_json::Value = serde_json::from_str(definition).ok()?;
    parse(definition.get(DEFINITION_TTL)?.as_str()?).ok().filter(|ttl| !ttl.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adoptable_check_recovered_from_record() {
        let ttl = CheckKind::Ttl(Duration::from_millis(1_500));
        let in_service =
            NewCheck { service: Some("web".into()), ..NewCheck::of("app".into(), CheckStatus::Passing, ttl) };
        let node = NewCheck::maintenance(NODE_MAINTENANCE.into(), None, "disk");
        let service = NewCheck::maintenance("_service_maintenance:web".into(), Some("web".into()), "disk");
        for check in [in_service, node, service] {
            assert_eq!(
                CheckKind::adoptable(&check.record(&"n1".into())),
                Some(check.kind.clone()),
                "{check:?}"
            );
        }
    }

    #[test]
    fn runnable_checks_are_not_adopted() {
        for (id, kind, definition) in [
            ("app", "", r#"{"TTL":"10s"}"#),
            ("app", "http", r#"{"TTL":"10s"}"#),
            ("app", "script", r#"{"ScriptArgs":["true"],"Interval":"10s"}"#),
            ("app", "ttl", ""),
            ("app", "ttl", r#"{"Interval":"10s"}"#),
            ("app", "ttl", r#"{"TTL":"0s"}"#),
            ("app", "ttl", r#"{"TTL":"ten"}"#),
            ("app", "maintenance", ""),
        ] {
            let record = Check::of("n1".into(), id.into(), CheckStatus::Passing);
            let check = Check { kind: kind.into(), definition: definition.into(), ..record };
            assert_eq!(CheckKind::adoptable(&check), None, "{check:?}");
        }
    }

    #[test]
    fn unset_durations_shown_per_client() {
        let target = Target::Udp { address: "localhost:9".into() };
        let kind = CheckKind::Probe(Probe { target, interval: Duration::from_secs(5), timeout: None });
        let mut check = NewCheck::of("app".into(), CheckStatus::Critical, kind);
        let shown = |check: &NewCheck| {
            let record = check.record(&"n1".into());
            (record.kind, record.interval, record.timeout)
        };
        assert_eq!(shown(&check), ("udp".into(), "5s".into(), "0s".into()));
        check.shows_unset_durations = false;
        assert_eq!(shown(&check), ("udp".into(), "5s".into(), String::new()));
    }
}
