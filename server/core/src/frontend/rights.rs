//! The judgement of requests by the access control lists, from this server's applied state.
//!
//! Commands are judged by the state, at their log entry. Here are queries, which are judged when
//! they are answered (blocking ones again when they wake), and requests that are neither. In the
//! mode `log` nothing is refused: each refusal is a line with the target `acl`, at most
//! [`LINES_PER_SECOND`] on average.

use super::Frontend;
use crate::state::{State, check_query, judge};
use lockmesh_protocol::acl::{Access, AclMode, Caller, Resource, Rights};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::peer::{Peer, Role};
use lockmesh_protocol::query::Query;
use lockmesh_protocol::reply::{Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Unavailable};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::token_bucket::TokenBucket;
use std::sync::Arc;

/// The maximum number of lines at once, and per second on average.
const LINES_AT_ONCE: u64 = 100;
/// See [`LINES_AT_ONCE`].
const LINES_PER_SECOND: u64 = 10;

/// The first format of entries with callers.
const CALLERS_SINCE: u8 = 11;

/// The refusal of a query about lists that are not in use.
const NO_LISTS: &str = "ACL support disabled";

/// The quota of lines in the mode `log`.
#[derive(Debug)]
pub(super) struct DryRun {
    quota: TokenBucket,
    suppressed: u64,
}

impl Default for DryRun {
    fn default() -> Self {
        Self { quota: TokenBucket::full(Time(0), LINES_AT_ONCE, LINES_PER_SECOND), suppressed: 0 }
    }
}

impl DryRun {
    fn log(&mut self, now: Time, node: &NodeName, why: &str) {
        if !self.quota.takes(now, 1) {
            self.suppressed += 1;
            return;
        }
        let suppressed = Some(std::mem::take(&mut self.suppressed)).filter(|count| *count > 0);
        tracing::warn!(target: "acl", %node, reason = ?why, suppressed, "request would be refused");
    }
}

/// Returns the rights with which a query is answered; `None` if they do not limit it.
pub(super) fn rights_to_read(
    frontend: &mut Frontend,
    now: Time,
    (node, client): (&NodeName, &Caller),
    query: &Query,
) -> Result<Option<Arc<Rights>>, Unavailable> {
    let state = frontend.core.replica().state();
    let mode = state.acl().settings().mode;
    if mode == AclMode::Off {
        let is_of_lists = query.is_of_acl_tables();
        return if is_of_lists { Err(Unavailable::Denied(NO_LISTS.into())) } else { Ok(None) };
    }
    let node = state.registered_name(node);
    let rights = state.acl().rights(client, node, frontend.wall_at(now));
    let judged = rights.and_then(|rights| check_query(&rights, query).map(|()| rights));
    // The lists themselves are never open: what they show now would count later.
    let is_enforced = mode == AclMode::Enforce || query.is_of_acl_tables();
    match judged {
        Ok(rights) if is_enforced => Ok(Some(Arc::new(rights))),
        Ok(_) => Ok(None),
        Err(why) if is_enforced => Err(Unavailable::NoAccess(why)),
        Err(why) => {
            let node = node.clone();
            frontend.dry_run.log(now, &node, &why.to_string());
            Ok(None)
        }
    }
}

/// Checks that a caller is within the limits of one: it is part of its log entries.
pub(super) fn check_caller(client: &Caller) -> Result<(), Unavailable> {
    match client {
        Caller::Peer(peer) if !peer.is_within_limits() => {
            Err(Unavailable::Denied("the user has too many groups, or too long names".into()))
        }
        _ => Ok(()),
    }
}

/// Checks a request that is neither a command nor a query.
pub(super) fn check_rights(
    frontend: &mut Frontend,
    now: Time,
    (peer, client): (&Peer, &Caller),
    request: &Request,
) -> Result<(), Unavailable> {
    let state = frontend.core.replica().state();
    let mode = state.acl().settings().mode;
    if mode == AclMode::Off || peer.role == Role::Server && *client == Caller::Agent {
        return Ok(());
    }
    let Some((resource, access, name)) = need(state, request) else { return Ok(()) };
    // Another server executes it, and judges it by a newer state.
    if !frontend.core.replica().is_serving() && !matches!(request, Request::BackupPart { stale: true, .. }) {
        return Ok(());
    }
    let rights = state.acl().rights(client, &peer.node, frontend.wall_at(now));
    match rights.and_then(|rights| rights.check(resource, access, &name)) {
        Err(why) if mode == AclMode::Enforce => Err(Unavailable::NoAccess(why)),
        Err(why) => {
            frontend.dry_run.log(now, &peer.node, &why.to_string());
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Logs a command that would be refused, in the mode `log`. Returns the caller for its log
/// entry.
pub(super) fn caller_of(
    frontend: &mut Frontend,
    now: Time,
    (node, client): (&NodeName, &Caller),
    command: &Command,
) -> Caller {
    let state = frontend.core.replica().state();
    let mode = state.acl().settings().mode;
    // Also while nothing is judged: the entry may follow one that begins it.
    if state.format() < CALLERS_SINCE {
        return Caller::Agent;
    }
    if mode == AclMode::Log
        && let Some(refused) = judge(state, client, node, frontend.wall_at(now), command)
    {
        frontend.dry_run.log(now, node, &in_words(&refused));
    }
    client.clone()
}

fn in_words(refused: &Reply) -> String {
    match refused {
        Reply::Refused(Refusal::NoAccess(why)) => why.to_string(),
        Reply::TxnFailed(errors) => errors.first().map(|error| error.what.clone()).unwrap_or_default(),
        other => format!("{other:?}"),
    }
}

/// The right that a request needs, and the object; `None` for those of agents and servers for
/// themselves, and for commands and queries, which are judged elsewhere.
fn need(state: &State, request: &Request) -> Option<(Resource, Access, String)> {
    let single = |resource, access| Some((resource, access, String::new()));
    match request {
        Request::Renew(id) => {
            let node = &state.session(*id)?.spec.node;
            Some((Resource::Session, Access::Write, state.registered_name(node).to_string()))
        }
        Request::BackupPart { .. } => single(Resource::Acl, Access::Write),
        Request::TransferLeader(_) | Request::RemoveServer(_) => single(Resource::Operator, Access::Write),
        Request::Autopilot => single(Resource::Operator, Access::Read),
        _ => None,
    }
}
