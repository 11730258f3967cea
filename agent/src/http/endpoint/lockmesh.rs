//! `/v1/lockmesh/…`: extensions to Consul's API. Holders of locks, requests that wait, deadlocks,
//! the verification of fencing tokens, and the causes of lost locks.

use super::super::access::{self, Keys, Need};
use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::{Call, ReadOptions};
use super::super::listing::Piece;
use super::super::shapes;
use super::kv;
use crate::config::Level;
use crate::loss;
use crate::upstream::calls::Acquire;
use http::{Method, Response};
use lockmesh_client::shape::json::Layout;
use lockmesh_client::shape::lockmesh::{
    DeadlockSettings, FenceClaim, FenceVerdict, LockClaim, LocksOutcome, LocksRequest, OperatorHosts,
};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{Fence, Key, NodeName};
use lockmesh_protocol::query::{Blocking, Consistency, Grant, Query, Rows};
use lockmesh_protocol::record::{MAX_REQUESTED_LOCKS, RequestedLock};
use lockmesh_protocol::reply::{Applied, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// The maximum number of fencing tokens of a request.
const MAX_FENCES: usize = 64;

pub(super) async fn locks(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let prefix = Key::from(call.params.value("prefix").unwrap_or_default());
    call.list(Query::Locks(prefix), options, rendered).await
}

pub(super) async fn losses(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.list(Query::Losses, call.read_options()?, rendered).await
}

pub(super) async fn waits(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    // Not blocking: no index moves with waits.
    let options = ReadOptions { blocking: None, ..call.read_options()? };
    let prefix = Key::from(call.params.value("prefix").unwrap_or_default());
    call.list(Query::Waits(prefix), options, rendered).await
}

/// Lists the deadlocks found, or changes the policy.
pub(super) async fn deadlocks(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.method() == Method::PUT {
        let wrong = |error| {
            let form = "send {\"Policy\": \"report\"} or {\"Policy\": \"refuse\"}";
            Failure::bad_request(format!("Request decode failed: {error}; {form}"))
        };
        let wanted: DeadlockSettings =
            serde_json::from_slice(&call.small_body(body).await?).map_err(wrong)?;
        return configure(call, Command::ConfigureDeadlocks(shapes::deadlock_policy(wanted.policy))).await;
    }
    let options = ReadOptions { blocking: None, ..call.read_options()? };
    let answer = call.read(Query::Deadlocks, options, None).await?;
    let Rows::Deadlocks(policy, rows) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let shaped = shapes::deadlocks(*policy, rows);
    Ok(answer::with_contact(answer::json(&shaped, call.layout()), &answer))
}

/// Lists the nodes whose agents may send operator requests, or changes them.
pub(super) async fn operator_hosts(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.method() == Method::PUT {
        let wrong = |error| {
            let form = "send {\"Hosts\": [\"NODE\", …]}, or an empty list for all nodes";
            Failure::bad_request(format!("Request decode failed: {error}; {form}"))
        };
        let wanted: OperatorHosts = serde_json::from_slice(&call.small_body(body).await?).map_err(wrong)?;
        let hosts: BTreeSet<NodeName> = wanted.hosts.into_iter().map(NodeName::from).collect();
        let own = &call.api.identity.node;
        // The next change would need another host.
        if !hosts.is_empty() && !hosts.iter().any(|host| host.folded() == own.folded()) {
            let text = format!(
                "Hosts does not contain this node, {own:?}: add it, or send the request on a host of the list"
            );
            return Err(Failure::bad_request(text));
        }
        return configure(call, Command::ConfigureOperatorHosts(hosts)).await;
    }
    let options = ReadOptions { blocking: None, ..call.read_options()? };
    let answer = call.read(Query::OperatorHosts, options, None).await?;
    let Rows::OperatorHosts(rows) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
    let hosts = OperatorHosts { hosts: rows.iter().map(ToString::to_string).collect() };
    Ok(answer::with_contact(answer::json(&hosts, call.layout()), &answer))
}

/// Changes a setting of the cluster.
async fn configure(call: &Call<'_>, command: Command) -> Result<Response<Body>, Failure> {
    let applied = call.propose(command).await?;
    match applied.reply {
        Reply::Done => Ok(answer::with_write_index(answer::json(&true, call.layout()), applied.index)),
        Reply::Refused(refusal) => Err(refusal.into()),
        other => Err(super::misfit::wrong_reply(&other)),
    }
}

/// Verifies fencing tokens with the leader. With `?wait` the response comes once a token is not
/// that of the current grant, or when the wait is over.
pub(super) async fn verify_fences(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.consistency()? == Consistency::Stale {
        let text = "Fencing tokens are verified by the leader: remove ?stale and ?max_stale";
        return Err(Failure::bad_request(text));
    }
    let deadline = call.lock_wait()?.map(|wait| Instant::now() + wait);
    let claims = parse_claims(&call.small_body(body).await?)?;
    check_keys(call, Level::Read, claims.iter().map(|claim| claim.key.as_str()))?;
    let keys: Vec<Key> = claims.iter().map(|claim| Key::from(claim.key.as_str())).collect();
    let mut blocking = None;
    loop {
        let options = ReadOptions { consistency: Consistency::Consistent, blocking };
        let answer = call.read(Query::Grants(keys.clone()), options, None).await?;
        let Rows::Grants(grants) = &answer.rows else { return Err(super::misfit::wrong_rows()) };
        let verdicts: Vec<FenceVerdict> =
            claims.iter().zip(grants).map(|(claim, grant)| verdict(claim, grant)).collect();
        let wait = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match wait.filter(|wait| !wait.is_zero() && verdicts.iter().all(|verdict| verdict.is_current)) {
            Some(wait) => blocking = Some(Blocking { index: answer.index, wait }),
            None => return Ok(answer::with_contact(answer::json(&verdicts, call.layout()), &answer)),
        }
    }
}

/// Acquires several locks, all or none. With `?wait` the request has one position in the queues of
/// all of them.
pub(super) async fn acquire(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let wait = call.lock_wait()?;
    let limit = call.api.limits.kv_max_value_size;
    let too_large =
        |_| format!("The request is longer than {limit} bytes, the maximum: acquire fewer locks at once");
    let request = parse_request(&call.body(body, limit, too_large).await?)?;
    check_keys(call, Level::Locks, request.locks.iter().map(|lock| lock.key.as_str()))?;
    let keys: Vec<Key> = request.locks.iter().map(|lock| lock.key.as_str().into()).collect();
    let (locks, session) = (requested(request.locks)?, kv::named_session(&request.session));
    let sorted: Vec<Key> = locks.iter().map(|lock| lock.key.clone()).collect();
    let applied = match wait {
        Some(wait) => {
            let _waits = crate::metrics::BlockedWatcher::begin();
            call.upstream.call(Acquire { locks, session, wait }).await?.1
        }
        None => call.propose(Command::AcquireLocks { locks, session, wait: Duration::ZERO }).await?,
    };
    let Applied { index, reply } = kv::as_named(Some(&request.session), applied)?;
    let (fences, delay) = match reply {
        Reply::Granted { fence } => (vec![fence], None),
        Reply::GrantedAll(fences) => (fences, None),
        Reply::Refused(refusal) => return Err(refusal.into()),
        Reply::Succeeded(false) => (Vec::new(), None),
        Reply::Delayed { remaining } => (Vec::new(), Some(remaining)),
        other => return Err(super::misfit::wrong_reply(&other)),
    };
    let fences: BTreeMap<Key, Fence> = sorted.into_iter().zip(fences).collect();
    // In the order of the request.
    let grants = keys.iter().filter_map(|key| Some((key.to_string(), fences.get(key)?.0)));
    let outcome = LocksOutcome {
        acquired: !fences.is_empty(),
        fences: grants.map(|(key, fence)| FenceClaim { key, fence }).collect(),
    };
    let response = answer::with_write_index(answer::json(&outcome, call.layout()), index);
    Ok(match delay {
        Some(remaining) => answer::with_lock_delay(response, remaining),
        None => response,
    })
}

/// Rejects a request unless its client may use all of these keys.
fn check_keys<'a>(call: &Call<'_>, level: Level, keys: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    access::check(call, keys.map(|key| Need { level, keys: Keys::Below(key), instead: "" }))
}

fn parse_request(body: &[u8]) -> Result<LocksRequest, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        Failure::bad_request(format!(
            "Request decode failed: {error}; send {{\"Session\": SESSION, \"Locks\": [{{\"Key\": KEY}}]}}"
        ))
    })
}

/// Returns the locks in the order of their keys.
fn requested(locks: Vec<LockClaim>) -> Result<Vec<RequestedLock>, Failure> {
    if !(1..=MAX_REQUESTED_LOCKS).contains(&locks.len()) {
        let text = format!("Send 1 to {MAX_REQUESTED_LOCKS} locks instead of {}", locks.len());
        return Err(Failure::bad_request(text));
    }
    let mut requested = Vec::with_capacity(locks.len());
    for LockClaim { key, mode, value, flags } in locks {
        let mode = kv::mode(Some(mode.as_str()).filter(|mode| !mode.is_empty()))?;
        if key.is_empty() {
            return Err(Failure::bad_request("Missing key name"));
        }
        requested.push(RequestedLock { key: key.into(), mode, value: value.0, flags });
    }
    requested.sort_by(|one, other| one.key.cmp(&other.key));
    if let Some(twice) = requested.windows(2).find(|both| both[0].key == both[1].key) {
        let text = format!("The key {:?} is in the request twice", twice[0].key.as_str());
        return Err(Failure::bad_request(text));
    }
    Ok(requested)
}

fn parse_claims(body: &[u8]) -> Result<Vec<FenceClaim>, Failure> {
    let claims: Vec<FenceClaim> = serde_json::from_slice(body).map_err(|error| {
        Failure::bad_request(format!(
            "Request decode failed: {error}; send [{{\"Key\": KEY, \"Fence\": FENCE}}]"
        ))
    })?;
    match claims.len() {
        1..=MAX_FENCES => Ok(claims),
        count => {
            Err(Failure::bad_request(format!("Send 1 to {MAX_FENCES} fencing tokens instead of {count}")))
        }
    }
}

fn verdict(claim: &FenceClaim, grant: &Grant) -> FenceVerdict {
    let FenceClaim { key, fence } = claim.clone();
    // A key that was never locked has the token 0, which no grant has.
    let is_current = grant.is_held && grant.fence == Fence(fence);
    FenceVerdict { key, fence, is_current, newest_fence: grant.fence.0 }
}

fn rendered(rows: &Rows, layout: Layout) -> Result<Piece, Failure> {
    match rows {
        Rows::Locks(locks) => Piece::array(locks.iter().map(|lock| Ok(shapes::lock(lock))), layout),
        Rows::Waits(waits) => Piece::array(waits.iter().map(|wait| Ok(shapes::lock_wait(wait))), layout),
        Rows::Losses(losses) => Piece::array(losses.iter().map(|loss| Ok(loss::shape(loss))), layout),
        _ => Err(super::misfit::wrong_rows()),
    }
}
