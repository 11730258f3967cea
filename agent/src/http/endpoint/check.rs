//! `/v1/agent/checks` and `/v1/agent/check/…`: the checks that applications of this machine report
//! to this agent.
//!
//! A write is answered when the catalog is updated, or after a short while if the catalog cannot be
//! reached.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::super::go::duration::{clamped, parse};
use super::super::go::json::{JsonError, Object, first_value};
use super::super::go::number::parse_bool;
use super::super::shapes;
use http::Response;
use lockmesh_agent_core::checks::{CheckError, CheckKind, NewCheck};
use lockmesh_protocol::id::CheckId;
use lockmesh_protocol::record::CheckStatus;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum time that a write waits for the catalog.
const CATALOG_TIMEOUT: Duration = Duration::from_secs(2);

/// Fields of every kind of check, and fields of unsupported kinds that have no effect alone.
const FIELDS: &[&str] = &[
    "ID",
    "Name",
    "Notes",
    "ServiceID",
    "Status",
    "Token",
    "TTL",
    "Interval",
    "Timeout",
    "Header",
    "Method",
    "Body",
    "DisableRedirects",
    "TCPUseTLS",
    "GRPCUseTLS",
    "H2PingUseTLS",
    "TLSServerName",
    "TLSSkipVerify",
    "SuccessBeforePassing",
    "FailuresBeforeWarning",
    "FailuresBeforeCritical",
    "DeregisterCriticalServiceAfter",
    "OutputMaxSize",
];
/// Fields that select a kind of check that is not supported here.
const OTHER_KINDS: &[&str] = &[
    "HTTP",
    "TCP",
    "UDP",
    "GRPC",
    "H2PING",
    "Args",
    "ScriptArgs",
    "Script",
    "Shell",
    "DockerContainerID",
    "AliasNode",
    "AliasService",
    "OSService",
];

/// The reason why a check's registration is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// 400, with this text.
    Bad(String),
    /// 404: there is no such service.
    NoService(String),
}

/// Parses the body of a check's registration.
///
/// # Errors
/// The client has to change its request. Nothing was registered.
pub fn parse_registration(body: &[u8]) -> Result<NewCheck, Refused> {
    let undecodable = |error: JsonError| Refused::Bad(format!("Request decode failed: {error}"));
    let value = first_value(body).map_err(undecodable)?;
    let Value::Object(fields) = value else {
        return Err(Refused::Bad("Request decode failed: json: expected an object".into()));
    };
    // Clients also write `service_id` and the like.
    let folded = fields.into_iter().map(|(name, value)| (name.replace('_', ""), value)).collect();
    let value = Value::Object(folded);
    let object = Object::new("CheckDefinition", &value).map_err(undecodable)?;
    let known: Vec<&str> = FIELDS.iter().chain(OTHER_KINDS).copied().collect();
    object.refuse_unknown(&known).map_err(undecodable)?;
    let ttl = duration_field(&object, "TTL").map_err(undecodable)?;
    // A TTL check does not use them, but invalid values are rejected in any case.
    for name in ["Interval", "Timeout", "DeregisterCriticalServiceAfter"] {
        duration_field(&object, name).map_err(undecodable)?;
    }
    let text = |name: &str| object.string(name).map_err(undecodable);
    let (name, id, service) = (text("Name")?, text("ID")?, text("ServiceID")?);
    if name.is_empty() {
        return Err(Refused::Bad("Missing check name".into()));
    }
    let status = match text("Status")? {
        // The application has not reported yet.
        "" => CheckStatus::Critical,
        word => CheckStatus::parse(word).ok_or_else(|| Refused::Bad("Bad check status".into()))?,
    };
    if !service.is_empty() {
        return Err(Refused::NoService(format!("ServiceID {service:?} does not exist")));
    }
    let max_output_bytes = object.u64("OutputMaxSize").map_err(undecodable)?;
    Ok(NewCheck {
        id: CheckId::from(if id.is_empty() { name } else { id }),
        name: name.into(),
        notes: text("Notes")?.into(),
        status,
        kind: CheckKind::Ttl(ttl_of(&object, ttl)?),
        max_output_bytes: usize::try_from(max_output_bytes).ok().filter(|size| *size > 0),
    })
}

/// Returns the TTL, if it is a TTL check.
fn ttl_of(object: &Object<'_>, ttl: i64) -> Result<Duration, Refused> {
    let says = |value: &Value| {
        !matches!(value, Value::String(text) if text.is_empty()) && *value != Value::Array(vec![])
    };
    let other = OTHER_KINDS.iter().find(|name| object.value(name).is_some_and(says));
    if let Some(kind) = other {
        return Err(Refused::Bad(format!(
            "Invalid check: {kind} checks do not run in this version: use a TTL check and report to it"
        )));
    }
    if ttl <= 0 {
        return Err(Refused::Bad("Invalid check: TTL must be > 0 for TTL checks".into()));
    }
    Ok(clamped(ttl))
}

/// Reads a duration as text, or as a number of nanoseconds; 0 if absent or empty.
fn duration_field(object: &Object<'_>, name: &str) -> Result<i64, JsonError> {
    match object.value(name) {
        None => Ok(0),
        Some(Value::String(text)) if text.is_empty() => Ok(0),
        Some(Value::String(text)) => parse(text).map_err(|error| JsonError::Value(error.to_string())),
        Some(Value::Number(number)) => {
            number.as_i64().ok_or_else(|| JsonError::Value(format!("time: invalid duration \"{number}\"")))
        }
        Some(other) => Err(object.wrong(name, other, "time.Duration")),
    }
}

pub(super) fn list(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    call.refuse_filter()?;
    let checks = call.api.checks.list();
    let shapes: BTreeMap<_, _> =
        checks.iter().map(|check| (check.id.to_string(), shapes::check(check))).collect();
    Ok(answer::json(&shapes, call.layout()))
}

pub(super) async fn register(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let new = parse_registration(&body).map_err(|refused| match refused {
        Refused::Bad(text) => Failure::bad_request(text),
        Refused::NoService(text) => Failure::not_found(text),
    })?;
    written(call, call.api.checks.register(new)).await
}

/// `pass`, `warn` and `fail`: the note is the output.
pub(super) async fn report(call: &Call<'_>, status: CheckStatus) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let note = call.params.value("note").unwrap_or_default();
    written(call, call.api.checks.report(&CheckId::from(call.tail), status, note)).await
}

pub(super) async fn update(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let undecodable = |error: JsonError| Failure::bad_request(format!("Request decode failed: {error}"));
    let value = first_value(&body).map_err(undecodable)?;
    let object = Object::new("checkUpdate", &value).map_err(undecodable)?;
    object.refuse_unknown(&["Status", "Output"]).map_err(undecodable)?;
    let word = object.string("Status").map_err(undecodable)?;
    let status = CheckStatus::parse(word)
        .ok_or_else(|| Failure::bad_request(format!("Invalid check status: '{word}'")))?;
    let output = object.string("Output").map_err(undecodable)?;
    written(call, call.api.checks.report(&CheckId::from(call.tail), status, output)).await
}

pub(super) async fn deregister(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    written(call, call.api.checks.deregister(&CheckId::from(call.tail))).await
}

/// Puts the whole node into maintenance, or ends it.
pub(super) async fn maintain(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let word = call.params.value("enable").ok_or_else(|| Failure::bad_request("Missing value for enable"))?;
    let enable = parse_bool(word)
        .ok_or_else(|| Failure::bad_request(format!("Invalid value for enable: {word:?}")))?;
    let reason = call.params.value("reason").unwrap_or_default();
    written(call, Ok(call.api.checks.maintain(enable.then_some(reason)))).await
}

async fn written(call: &Call<'_>, outcome: Result<u64, CheckError>) -> Result<Response<Body>, Failure> {
    let version = outcome.map_err(|error| match error {
        CheckError::Unknown(_) => Failure::not_found(error.to_string()),
        CheckError::NoTtl(_) => Failure::refused(error.to_string()),
        CheckError::TooMany(_) => {
            crate::metrics::LIMITS.with_label_values(&["checks"]).inc();
            Failure::refused(error.to_string())
        }
    })?;
    call.api.checks.wait_written(version, CATALOG_TIMEOUT).await;
    Ok(answer::nothing())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(body: &str) -> String {
        match parse_registration(body.as_bytes()).unwrap_err() {
            Refused::Bad(text) | Refused::NoService(text) => text,
        }
    }

    #[test]
    fn a_ttl_check_is_read_in_any_spelling() {
        let check =
            parse_registration(br#"{"name":"n","ttl":"10s","status":"passing","service_id":""}"#).unwrap();
        assert_eq!((check.id.as_str(), check.kind.ttl()), ("n", Some(Duration::from_secs(10))));
        assert_eq!(check.status, CheckStatus::Passing);
        let check =
            parse_registration(br#"{"ID":"i","Name":"n","TTL":1000000000,"Interval":"","HTTP":""}"#).unwrap();
        assert_eq!((check.id.as_str(), check.kind.ttl()), ("i", Some(Duration::from_secs(1))));
        assert_eq!(check.status, CheckStatus::Critical);
    }

    #[test]
    fn what_is_no_check_is_refused_with_a_reason() {
        assert_eq!(refused(r#"{"TTL":"10s"}"#), "Missing check name");
        assert_eq!(refused(r#"{"Name":"n","TTL":"10s","Status":"unwell"}"#), "Bad check status");
        assert_eq!(
            refused(r#"{"Name":"n","TTL":"ten"}"#),
            "Request decode failed: time: invalid duration \"ten\""
        );
        assert_eq!(refused(r#"{"Name":"n"}"#), "Invalid check: TTL must be > 0 for TTL checks");
        assert_eq!(
            refused(r#"{"Name":"n","CheckID":"x"}"#),
            "Request decode failed: json: unknown field \"CheckID\""
        );
        assert_eq!(refused(r#"{"Name":"n","TTL":"1s","ServiceID":"s"}"#), "ServiceID \"s\" does not exist");
        assert_eq!(refused(""), "Request decode failed: EOF");
    }

    #[test]
    fn a_kind_that_does_not_run_is_refused_by_name() {
        for kind in ["HTTP", "TCP", "GRPC", "AliasNode", "OSService"] {
            let text = refused(&format!("{{\"Name\":\"n\",\"Interval\":\"10s\",\"{kind}\":\"x\"}}"));
            assert!(text.starts_with("Invalid check: ") && text.contains(kind), "{text}");
        }
        assert!(refused(r#"{"Name":"n","Interval":"10s","script_args":["true"]}"#).contains("ScriptArgs"));
    }

    proptest! {
        #[test]
        fn no_body_is_a_panic(body in r#"\{("(Name|TTL|Status|Args)":[{}\[\]",a-z0-9.-]{0,12},?){0,4}\}"#) {
            let _ = parse_registration(body.as_bytes());
        }
    }
}
