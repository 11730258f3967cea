//! `/v1/operator/autopilot/…`: the configuration of autopilot, and the health of the servers.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use super::operator::leaders_view;
use crate::go::duration::{self, clamped, format_duration, silence};
use crate::go::json::{JsonError, Object, first_value};
use crate::go::number;
use crate::upstream::calls::ReadAutopilot;
use http::{Method, Response, StatusCode};
use lockmesh_client::shape::operator::{AutopilotConfiguration, AutopilotHealth, ServerHealth};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, WallTime};
use lockmesh_protocol::record::Autopilot;
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{ServerStatus, Status};
use serde_json::Value;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Fields of a configuration that have no meaning here.
const OTHER_FIELDS: [&str; 2] = ["CreateIndex", "ModifyIndex"];
/// Fields of Consul's enterprise edition.
const ENTERPRISE_FIELDS: [&str; 3] = ["RedundancyZoneTag", "DisableUpgradeMigration", "UpgradeVersionTag"];
/// Go's notation for an unknown time.
const NEVER: &str = "0001-01-01T00:00:00Z";
/// The maximum number of attempts of a change that conflicts with other changes.
const ATTEMPTS: u32 = 8;

pub(super) async fn configuration(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.method() == Method::PUT {
        return configure(call, body).await;
    }
    let (autopilot, index) = call.upstream.call(ReadAutopilot).await?;
    Ok(answer::json(&shaped(&autopilot, index), call.layout()))
}

fn shaped(autopilot: &Autopilot, index: LogIndex) -> AutopilotConfiguration {
    AutopilotConfiguration {
        cleanup_dead_servers: autopilot.cleanup_dead_servers,
        last_contact_threshold: format_duration(autopilot.last_contact_threshold),
        max_trailing_logs: autopilot.max_trailing_logs,
        min_quorum: autopilot.min_quorum.into(),
        server_stabilization_time: format_duration(autopilot.server_stabilization_time),
        create_index: index.0,
        modify_index: index.0,
        ..AutopilotConfiguration::default()
    }
}

/// Changes the fields that the body names; the others stay unchanged. A conflict is reported only
/// with `?cas`.
async fn configure(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    let cas = call.params.value("cas").map(number::parse_u64).transpose();
    let cas = cas.map_err(|error| Failure::bad_request(format!("Error parsing cas value: {error}")))?;
    let body = call.small_body(body).await?;
    let wrong = |error: JsonError| Failure::bad_request(format!("Error parsing autopilot config: {error}"));
    let body = first_value(&body).map_err(wrong)?;
    // Written with the index that was read: concurrent changes must not be undone.
    for _ in 0..ATTEMPTS {
        let (mut autopilot, index) = call.upstream.call(ReadAutopilot).await?;
        change(&mut autopilot, &body).map_err(wrong)?;
        if cas.is_some_and(|cas| cas != index.0) {
            return Ok(answer::json(&false, call.layout()));
        }
        let applied = call.propose(Command::ConfigureAutopilot(autopilot, Some(index))).await?;
        match applied.reply {
            Reply::Succeeded(true) => {
                return Ok(answer::with_write_index(answer::json(&true, call.layout()), applied.index));
            }
            // With `?cas` a conflict is the result; without it the change is applied on top of the
            // other one.
            Reply::Succeeded(false) if cas.is_some() => return Ok(answer::json(&false, call.layout())),
            Reply::Succeeded(false) => {}
            Reply::Refused(refusal) => return Err(refusal.into()),
            other => return Err(super::misfit::wrong_reply(&other)),
        }
    }
    Err(Failure::not_done("the configuration keeps changing; try again"))
}

/// Applies a body's fields.
fn change(autopilot: &mut Autopilot, body: &Value) -> Result<(), JsonError> {
    const TYPE: &str = "AutopilotConfiguration";
    let object = Object::new(TYPE, body)?;
    let own = [
        "CleanupDeadServers",
        "LastContactThreshold",
        "MaxTrailingLogs",
        "MinQuorum",
        "ServerStabilizationTime",
    ];
    let known: Vec<&str> = own.iter().chain(&ENTERPRISE_FIELDS).chain(&OTHER_FIELDS).copied().collect();
    object.refuse_unknown(&known)?;
    if object.value("CleanupDeadServers").is_some() {
        autopilot.cleanup_dead_servers = object.bool("CleanupDeadServers")?;
    }
    let hour = Duration::from_secs(3600);
    if let Some(time) = length(&object, "LastContactThreshold", Duration::from_millis(10), hour)? {
        autopilot.last_contact_threshold = time;
    }
    if let Some(time) = length(&object, "ServerStabilizationTime", Duration::ZERO, hour)? {
        autopilot.server_stabilization_time = time;
    }
    if let Some(count) = count(&object, "MaxTrailingLogs", 0, u64::MAX)? {
        autopilot.max_trailing_logs = count;
    }
    if let Some(count) = count(&object, "MinQuorum", 0, u64::from(u16::MAX))? {
        autopilot.min_quorum = u32::try_from(count).unwrap_or(u32::MAX);
    }
    // Tools send back all fields that they read, including these unchanged.
    let is_said = |value: &Value| !matches!(value, Value::Bool(false)) && value.as_str() != Some("");
    match ENTERPRISE_FIELDS.iter().find(|name| object.value(name).is_some_and(is_said)) {
        Some(name) => Err(JsonError::Value(format!("{name} is a Consul Enterprise feature"))),
        None => Ok(()),
    }
}

/// Reads a duration as text, or as a number of nanoseconds.
fn length(
    object: &Object<'_>,
    name: &str,
    least: Duration,
    most: Duration,
) -> Result<Option<Duration>, JsonError> {
    let Some(value) = object.value(name) else { return Ok(None) };
    let nanoseconds = match (value, value.as_i64()) {
        (Value::String(text), _) => {
            duration::parse(text).map_err(|error| JsonError::Value(error.to_string()))?
        }
        (_, Some(nanoseconds)) => nanoseconds,
        _ => return Err(object.wrong(name, value, "time.Duration")),
    };
    let time = clamped(nanoseconds);
    if nanoseconds < 0 || time < least || time > most {
        let (least, most) = (format_duration(least), format_duration(most));
        return Err(JsonError::Value(format!("{name} must be {least} to {most}")));
    }
    Ok(Some(time))
}

fn count(object: &Object<'_>, name: &str, least: u64, most: u64) -> Result<Option<u64>, JsonError> {
    if object.value(name).is_none() {
        return Ok(None);
    }
    let count = object.u64(name)?;
    match (least..=most).contains(&count) {
        true => Ok(Some(count)),
        false => Err(JsonError::Value(format!("{name} must be {least} to {most}"))),
    }
}

/// Returns 200 if all servers are healthy, and 429 otherwise; the body has the same shape.
pub(super) async fn health(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let status = leaders_view(call).await?;
    let shape = health_of(&status);
    let mut response = answer::json(&shape, call.layout());
    if !shape.healthy {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    Ok(response)
}

fn health_of(status: &Status) -> AutopilotHealth {
    let voters = status.servers.iter().filter(|server| server.voter);
    let (all, well) = (voters.clone().count(), voters.filter(|server| server.healthy).count());
    let needed = all / 2 + 1;
    AutopilotHealth {
        healthy: !status.servers.is_empty() && status.servers.iter().all(|server| server.healthy),
        failure_tolerance: well.saturating_sub(needed) as u64,
        servers: status.servers.iter().map(|server| shaped_health(server, status)).collect(),
    }
}

fn shaped_health(server: &ServerStatus, status: &Status) -> ServerHealth {
    ServerHealth {
        id: server.node_id.clone(),
        name: server.node.clone(),
        address: server.address.clone(),
        serf_status: if server.healthy { "alive" } else { "failed" }.into(),
        version: server.version.clone(),
        leader: status.leader == Some(server.id),
        last_contact: server.last_contact.map_or_else(|| "never".into(), silence),
        last_term: status.term.0,
        last_index: server.last_index.0,
        healthy: server.healthy,
        stable_since: server.stable_since.and_then(instant).unwrap_or_else(|| NEVER.into()),
        voter: server.voter,
    }
}

/// Returns a time in Go's notation.
fn instant(WallTime(milliseconds): WallTime) -> Option<String> {
    let nanoseconds = i128::from(milliseconds) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).ok()?.format(&Rfc3339).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            "[-0-9]{0,20}(ns|ms|s|h|)".prop_map(Value::from),
            Just(Value::Null),
            Just(json!([])),
        ]
    }

    #[test]
    fn formats_instant_like_go() {
        assert_eq!(instant(WallTime(1_795_250_472_990)).unwrap(), "2026-11-21T08:41:12.99Z");
        assert_eq!(instant(WallTime(u64::MAX)), None);
    }

    proptest! {
        #[test]
        fn accepted_durations_within_bounds(values in prop::collection::vec(any_value(), 5)) {
            let names = [
                "CleanupDeadServers", "LastContactThreshold", "MaxTrailingLogs", "MinQuorum", "ServerStabilizationTime",
            ];
            let fields = names.into_iter().map(str::to_owned).zip(values).collect();
            let mut autopilot = Autopilot::default();
            if change(&mut autopilot, &Value::Object(fields)).is_ok() {
                let hour = Duration::from_secs(3600);
                prop_assert!((Duration::from_millis(10)..=hour).contains(&autopilot.last_contact_threshold));
                prop_assert!(autopilot.server_stabilization_time <= hour);
            }
        }
    }
}
