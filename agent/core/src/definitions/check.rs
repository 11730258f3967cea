//! Definitions of checks: the kind that the fields describe, and the rules of Consul.

use super::{CheckKind, HttpTarget, MIN_INTERVAL, NewCheck, Probe, Target, Thresholds, TlsTarget};
use super::{DefinitionError, Spelling, check_id, duration_field, folded};
use crate::go::duration::clamped;
use crate::go::json::{JsonError, Object, first_value};
use lockmesh_protocol::id::{CheckId, NodeName, ServiceId};
use lockmesh_protocol::record::{CheckStatus, SERF_HEALTH};
use serde_json::Value;
use std::time::Duration;

/// Fields of every check; its id and its service have other names in other places.
const FIELDS: &[&str] = &[
    "Name",
    "Notes",
    "Status",
    "Token",
    "TTL",
    "Interval",
    "Timeout",
    "HTTP",
    "Header",
    "Method",
    "Body",
    "DisableRedirects",
    "TCP",
    "TCPUseTLS",
    "UDP",
    "GRPC",
    "GRPCUseTLS",
    "H2PING",
    "H2PingUseTLS",
    "Args",
    "ScriptArgs",
    "Shell",
    "DockerContainerID",
    "AliasNode",
    "AliasService",
    "OSService",
    "TLSServerName",
    "TLSSkipVerify",
    "SuccessBeforePassing",
    "FailuresBeforeWarning",
    "FailuresBeforeCritical",
    "DeregisterCriticalServiceAfter",
    "OutputMaxSize",
];

/// The kinds that the agent does not run.
const OTHER_KINDS: [(&str, &str); 2] = [
    ("DockerContainerID", "Docker checks are not supported: use a script check that calls `docker exec`"),
    ("OSService", "OSService checks are not implemented on this system: use a script check"),
];

/// Parses the body of a check's registration.
///
/// # Errors
/// The client has to change its request. Nothing was registered.
pub fn parse_check_registration(body: &[u8]) -> Result<NewCheck, DefinitionError> {
    let value = first_value(body)?;
    if !value.is_object() {
        return Err(
            JsonError::Whole { found: crate::go::json::kind(&value), wanted: "CheckDefinition" }.into()
        );
    }
    parse_check(&value, Spelling::Api)
}

/// Parses a check of the node, or of a service by its id.
///
/// # Errors
/// The definition has to be changed.
pub fn parse_check(value: &Value, spelling: Spelling) -> Result<NewCheck, DefinitionError> {
    let value = folded(value, spelling);
    let object = Object::new("CheckDefinition", &value)?;
    object.refuse_unknown(&[FIELDS, &["ID", "ServiceID"]].concat())?;
    let fields = Fields::read(&object, spelling)?;
    let (name, id, service) = (object.string("Name")?, object.string("ID")?, object.string("ServiceID")?);
    if name.is_empty() {
        return Err(DefinitionError::Wrong("Missing check name".into()));
    }
    let status = match fields.status {
        // Nothing is known yet.
        "" => CheckStatus::Critical,
        word => CheckStatus::parse(word).ok_or_else(|| DefinitionError::Wrong("Bad check status".into()))?,
    };
    let id = CheckId::from(if id.is_empty() { name } else { id });
    let new = NewCheck {
        name: name.into(),
        service: (!service.is_empty()).then(|| ServiceId::from(service)),
        shows_unset_durations: true,
        ..NewCheck::of(id, status, fields.kind()?)
    };
    fields.complete(new)
}

/// Parses a check inside a service. `default_id` is its id unless it has its own.
pub(super) fn parse_check_of_service(
    value: &Value,
    spelling: Spelling,
    service: &str,
    default_id: String,
) -> Result<NewCheck, DefinitionError> {
    let value = folded(value, spelling);
    let object = Object::new("CheckType", &value)?;
    // The API has another name for the id here; a file has the same as in a check of its own.
    let id = if spelling == Spelling::Api { "CheckID" } else { "ID" };
    object.refuse_unknown(&[FIELDS, &[id, "ServiceID"]].concat())?;
    let fields = Fields::read(&object, spelling)?;
    let (name, id) = (object.string("Name")?, object.string(id)?);
    let kind = fields.kind()?;
    let status = match fields.status {
        "" => CheckStatus::Critical,
        word => CheckStatus::parse(word).ok_or_else(|| {
            DefinitionError::Wrong("Status for checks must 'passing', 'warning', 'critical'".into())
        })?,
    };
    let id = if id.is_empty() { CheckId::from(default_id) } else { CheckId::from(id) };
    let name = if name.is_empty() { format!("Service '{service}' check") } else { name.into() };
    fields.complete(NewCheck { name, shows_unset_durations: false, ..NewCheck::of(id, status, kind) })
}

/// The decoded fields of a check.
struct Fields<'v> {
    object: Object<'v>,
    status: &'v str,
    ttl: i64,
    interval: i64,
    timeout: i64,
    deregister_after: i64,
    args: Vec<&'v str>,
    output_max_size: i64,
    thresholds: [i64; 3],
}

impl<'v> Fields<'v> {
    /// Decodes every field, before any rule is applied.
    fn read(object: &Object<'v>, spelling: Spelling) -> Result<Self, JsonError> {
        for name in
            ["Name", "Notes", "Token", "HTTP", "Method", "Body", "TCP", "UDP", "GRPC", "H2PING", "Shell"]
        {
            object.string(name)?;
        }
        for name in ["DockerContainerID", "AliasNode", "AliasService", "OSService", "TLSServerName"] {
            object.string(name)?;
        }
        for name in ["DisableRedirects", "TCPUseTLS", "GRPCUseTLS", "H2PingUseTLS", "TLSSkipVerify"] {
            object.bool(name)?;
        }
        headers(object)?;
        let args = object.strings("Args")?;
        Ok(Self {
            object: *object,
            status: object.string("Status")?,
            ttl: duration_field(object, "TTL", spelling)?,
            interval: duration_field(object, "Interval", spelling)?,
            timeout: duration_field(object, "Timeout", spelling)?,
            deregister_after: duration_field(object, "DeregisterCriticalServiceAfter", spelling)?,
            args: if args.is_empty() { object.strings("ScriptArgs")? } else { args },
            output_max_size: object.i64("OutputMaxSize")?,
            thresholds: [
                object.i64("SuccessBeforePassing")?,
                object.i64("FailuresBeforeWarning")?,
                object.i64("FailuresBeforeCritical")?,
            ],
        })
    }

    /// Returns the kind that the fields describe, if they follow the rules.
    fn kind(&self) -> Result<CheckKind, DefinitionError> {
        self.check_rules().map_err(|reason| DefinitionError::Wrong(format!("Invalid check: {reason}")))?;
        if self.ttl > 0 {
            return Ok(CheckKind::Ttl(clamped(self.ttl)));
        }
        if let Some(target) = self.target() {
            return Ok(CheckKind::Probe(Probe {
                target,
                interval: clamped(self.interval).max(MIN_INTERVAL),
                timeout: (self.timeout > 0).then(|| clamped(self.timeout)),
            }));
        }
        if let Some((_, reason)) = OTHER_KINDS.iter().find(|(name, _)| self.has(name)) {
            return Err(DefinitionError::Unusable((*reason).into()));
        }
        let node = self.text("AliasNode");
        let service = self.text("AliasService");
        Ok(CheckKind::Alias {
            node: (!node.is_empty()).then(|| NodeName::from(node)),
            service: (!service.is_empty()).then(|| ServiceId::from(service)),
        })
    }

    fn check_rules(&self) -> Result<(), &'static str> {
        let has_target = self.target().is_some() || OTHER_KINDS.iter().any(|(name, _)| self.has(name));
        let is_alias = self.has("AliasNode") || self.has("AliasService");
        let [_, before_warning, before_critical] = self.thresholds;
        if self.interval > 0 && self.ttl > 0 {
            Err("Interval and TTL cannot both be specified")
        } else if has_target && self.interval <= 0 {
            Err("Interval must be > 0 for Script, HTTP, H2PING, TCP, UDP or OSService checks")
        } else if is_alias && self.interval > 0 && !has_target {
            Err("Interval cannot be set for Alias checks")
        } else if is_alias && self.ttl > 0 {
            Err("TTL must be not be set for Alias checks")
        } else if !has_target && !is_alias && self.ttl <= 0 {
            Err("TTL must be > 0 for TTL checks")
        } else if self.output_max_size < 0 {
            Err("MaxOutputMaxSize must be positive")
        } else if before_warning > before_critical {
            Err("FailuresBeforeWarning can't be higher than FailuresBeforeCritical")
        } else {
            Ok(())
        }
    }

    /// Returns what the agent runs; the first kind in Consul's order, if there are several.
    fn target(&self) -> Option<Target> {
        let address = |name: &str| self.text(name).to_owned();
        if self.has("HTTP") {
            return Some(Target::Http(self.http()));
        }
        if self.has("TCP") {
            return Some(Target::Tcp { address: address("TCP"), tls: self.tls("TCPUseTLS", false) });
        }
        if self.has("UDP") {
            return Some(Target::Udp { address: address("UDP") });
        }
        if self.has("GRPC") {
            return Some(Target::Grpc { target: address("GRPC"), tls: self.tls("GRPCUseTLS", false) });
        }
        let is_other = OTHER_KINDS.iter().any(|(name, _)| self.has(name));
        if !self.args.is_empty() && !is_other {
            return Some(Target::Script { args: self.args.iter().map(|arg| (*arg).to_owned()).collect() });
        }
        let is_ping = self.has("H2PING") && !is_other;
        is_ping.then(|| Target::H2Ping { address: address("H2PING"), tls: self.tls("H2PingUseTLS", true) })
    }

    fn http(&self) -> HttpTarget {
        HttpTarget {
            url: self.text("HTTP").into(),
            method: self.text("Method").into(),
            header: headers(&self.object).unwrap_or_default().into_iter().collect(),
            body: self.text("Body").into(),
            disable_redirects: self.object.bool("DisableRedirects").unwrap_or_default(),
            tls: self.tls_options(),
        }
    }

    fn tls(&self, name: &str, default: bool) -> Option<TlsTarget> {
        let is_used = self.object.value(name).map_or(default, |value| value.as_bool().unwrap_or(default));
        is_used.then(|| self.tls_options())
    }

    fn tls_options(&self) -> TlsTarget {
        TlsTarget {
            server_name: self.text("TLSServerName").into(),
            skip_verify: self.object.bool("TLSSkipVerify").unwrap_or_default(),
        }
    }

    /// Adds the fields of every kind.
    fn complete(&self, new: NewCheck) -> Result<NewCheck, DefinitionError> {
        if new.id.as_str().eq_ignore_ascii_case(SERF_HEALTH) {
            return Err(DefinitionError::Wrong(format!(
                "Invalid check: {SERF_HEALTH} is the health of the node: use another ID"
            )));
        }
        check_id("check", new.id.as_str())?;
        let [successes, warning, critical] =
            self.thresholds.map(|number| u32::try_from(number).unwrap_or_default());
        let after = Duration::from_nanos(u64::try_from(self.deregister_after).unwrap_or_default());
        Ok(NewCheck {
            notes: self.object.string("Notes")?.into(),
            thresholds: Thresholds {
                success_before_passing: successes,
                failures_before_warning: warning,
                failures_before_critical: critical,
            },
            deregister_after: (!after.is_zero()).then_some(after),
            max_output_bytes: usize::try_from(self.output_max_size).ok().filter(|size| *size > 0),
            ..new
        })
    }

    fn text(&self, name: &str) -> &'v str {
        self.object.string(name).unwrap_or_default()
    }

    fn has(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }
}

/// Reads the headers of an HTTP check: a list of values each.
fn headers(check: &Object<'_>) -> Result<Vec<(String, Vec<String>)>, JsonError> {
    let object = check.object("Header", "map[string][]string")?;
    let values = |name: &str| Ok(object.strings(name)?.into_iter().map(str::to_owned).collect());
    object.names().map(|name| Ok((name.to_owned(), values(name)?))).collect()
}
