//! Formats replies and rows as readable lines.

use lockmesh_protocol::change::Change;
use lockmesh_protocol::deadlock::Deadlock;
use lockmesh_protocol::id::{AgentNumber, CellNumber, LogIndex, NodeName, SessionId};
use lockmesh_protocol::prepared_query::PreparedQuery;
use lockmesh_protocol::record::{
    Agent, Check, Coordinate, Entry, LockDelay, LockMode, LockRequest, Loss, LossCause, MemberStatus, Node,
    RequestedLock, Service, Session, Waiter,
};
use lockmesh_protocol::reply::{Reply, TxnError, TxnResult};
use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};

/// A reply, on one or more lines.
pub(crate) fn reply(reply: &Reply) -> Vec<String> {
    let line = match reply {
        Reply::Done => "done".into(),
        Reply::Succeeded(flag) => flag.to_string(),
        Reply::Granted { fence } => format!("true, fence {fence}"),
        Reply::Delayed { remaining } => format!("false, closed for {remaining:?}"),
        Reply::Queued { queue_position } => format!("queued, position {queue_position}"),
        Reply::Session(id) => format!("session {id}"),
        Reply::Txn(results) if results.is_empty() => "no results".into(),
        Reply::Txn(results) => return results.iter().map(txn_result).collect(),
        Reply::TxnFailed(errors) => return txn_errors(errors),
        Reply::Agent { number, generation, .. } => format!("agent {number}, life {generation}"),
        Reply::Server(id) => format!("server {id}"),
        Reply::Refused(refusal) => format!("refused: {refusal}"),
        Reply::GossipKey(number) => format!("gossip key {number}"),
        Reply::Token(row) => super::acl::show_token(row),
        Reply::Policy(row) => super::acl::show_policy(row),
        Reply::Role(row) => super::acl::show_role(row),
        Reply::AuthMethod(row) => super::acl::show_method(row),
        Reply::BindingRule(row) => super::acl::show_binding(row),
        Reply::GrantedAll(fences) => {
            let fences: Vec<String> = fences.iter().map(ToString::to_string).collect();
            format!("true, fences {}", fences.join(", "))
        }
    };
    vec![line]
}

/// One element of a transaction's results.
pub(crate) fn txn_result(result: &TxnResult) -> String {
    match result {
        TxnResult::Kv(row) => entry(row),
        TxnResult::Node(row) => node(row),
        TxnResult::Service(row) => service(row),
        TxnResult::Check(row) => check(row),
    }
}

/// The errors of a failed transaction.
pub(crate) fn txn_errors(errors: &[TxnError]) -> Vec<String> {
    errors.iter().map(|error| format!("operation {} failed: {}", error.op_index, error.what)).collect()
}

fn agent(number: &AgentNumber, row: &Agent) -> String {
    let Agent { node, node_id, generation, lease_began, .. } = row;
    let mut text = format!(
        "agent {number}: node {node} ({}), life {generation}, lease from {lease_began}",
        &node_id[..8]
    );
    if row.cell != CellNumber(0) {
        write!(text, ", cell {}", row.cell).expect("writing to a string never fails");
    }
    if row.status != MemberStatus::Alive {
        write!(text, ", {:?}", row.status).expect("writing to a string never fails");
    }
    if let Some(until) = row.former_sessions_until {
        write!(text, ", sessions from before {until} are another host's")
            .expect("writing to a string never fails");
    }
    if let Some(announced_at) = row.restart_announced {
        write!(text, ", restart announced at {announced_at}").expect("writing to a string never fails");
    }
    text
}

/// A prepared query.
pub(crate) fn query(row: &PreparedQuery) -> String {
    let PreparedQuery { id, spec, create_index, modify_index } = row;
    let kind = if spec.is_template() { "template" } else { "query" };
    let mut text = format!("{kind} {id} {:?} for {}", spec.name, spec.service.service);
    if let Some(session) = spec.session {
        write!(text, ", ends with {session}").expect("writing to a string never fails");
    }
    write!(text, ", created {create_index}, modified {modify_index}")
        .expect("writing to a string never fails");
    text
}

/// A change that stands in the line of the reply: an index that became the command's own, or the
/// fence counter.
pub(crate) fn short(change: &Change, own: LogIndex) -> Option<String> {
    match change {
        Change::TableIndex(table, index) if *index == own => Some(format!("{table:?}")),
        Change::NodeIndex(name, Some(index)) if *index == own => Some(format!("index of {name}")),
        Change::Fence(fence) => Some(format!("fence counter {fence}")),
        _ => None,
    }
}

/// A change, indented.
pub(crate) fn change(change: &Change) -> String {
    let line = match change {
        Change::Entry(key, row) => row_or_gone(format!("entry {key}"), row.as_deref().map(entry)),
        Change::Session(id, row) => row_or_gone(format!("session {id}"), row.as_deref().map(session)),
        Change::Node(name, row) => row_or_gone(format!("node {name}"), row.as_deref().map(node)),
        Change::NodeIndex(name, index) => set_or_gone(format!("index of node {name}"), index.as_ref()),
        Change::Service(node, id, row) => {
            row_or_gone(format!("service {id} on {node}"), row.as_deref().map(service))
        }
        Change::Check(node, id, row) => {
            row_or_gone(format!("check {id} on {node}"), row.as_deref().map(check))
        }
        Change::Coordinate(node, row) => {
            row_or_gone(format!("coordinate of {node}"), row.as_deref().map(|row| coordinate(node, row)))
        }
        Change::Tombstone(key, index) => set_or_gone(format!("tombstone {key}"), index.as_ref()),
        Change::LockDelay(key, row) => {
            set_or_gone(format!("lock-delay of {key}"), row.as_ref().map(delay).as_ref())
        }
        Change::Waiter(key, queue_position, row) => set_or_gone(
            format!("place {queue_position} in the queue of {key}"),
            row.as_deref().map(waiter).as_ref(),
        ),
        Change::LockRequest(..) | Change::SharedHold(..) | Change::SharedDelay(..) | Change::Deadlocks(_) => {
            shared(change)
        }
        Change::Agent(number, row) => {
            row_or_gone(format!("agent {number}"), row.as_deref().map(|row| agent(number, row)))
        }
        Change::Reply(agent, sequence, row) => {
            let reply = row.as_ref().map(|row| reply(&row.reply).join("; "));
            set_or_gone(format!("reply {sequence} to agent {agent}"), reply.as_ref())
        }
        Change::LowestSequence(agent, lowest) => format!("agent {agent} is answered from {lowest} on"),
        Change::Loss(number, row) => row_or_gone(format!("loss {number}"), row.as_deref().map(loss)),
        Change::TableIndex(table, index) => format!("{table:?} table: {index}"),
        Change::Fence(fence) => format!("fence counter: {fence}"),
        Change::Format(format) => format!("format: {format}"),
        Change::ForgottenTombstones(index) => format!("forgotten tombstones: up to {index}"),
        Change::LastAgent(number) => format!("last agent: {number}"),
        Change::IndexBase(base) => format!("index base: {base}"),
        Change::ClusterId(id) => format!("cluster: {id}"),
        Change::LeaseKey(_) => "lease key".into(),
        Change::GossipKey(number) => format!("gossip key: {number}"),
        Change::Binding(node, id, row) => {
            set_or_gone(format!("process of {id} on {node}"), row.as_ref().map(|row| row.pid).as_ref())
        }
        Change::PreparedQuery(id, row) => row_or_gone(format!("query {id}"), row.as_deref().map(query)),
        Change::Server(id, row) => row_or_gone(
            format!("server {id}"),
            row.as_ref()
                .map(|row| format!("server {id}: {} at {}, born {}", row.node, row.address, row.instance_id)),
        ),
        Change::LastServer(id) => format!("last server: {id}"),
        Change::OperatorHosts(hosts) => operator_hosts(hosts),
        Change::Autopilot(autopilot, index) => {
            format!("autopilot: at least {} voters, since {index}", autopilot.min_quorum)
        }
        Change::RestorePart(id, number, rows) => restore_part(*id, *number, rows.is_some()),
        Change::Cleared => "everything that was there is gone".into(),
        Change::TreeDeleted(prefix) => format!("everything under {prefix:?} is gone"),
        of_acl => super::acl::row(of_acl),
    };
    format!("  {line}")
}

fn restore_part(id: u64, number: u32, is_there: bool) -> String {
    match number {
        u32::MAX => set_or_gone(format!("restore {id}"), is_there.then_some("begun").as_ref()),
        _ => set_or_gone(format!("part {number} of restore {id}"), is_there.then_some("gathered").as_ref()),
    }
}

fn operator_hosts(hosts: &BTreeSet<NodeName>) -> String {
    let hosts: Vec<&str> = hosts.iter().map(NodeName::as_str).collect();
    format!("operator hosts: {}", hosts.join(" "))
}

/// A change of locks in shared mode, or of requests.
fn shared(change: &Change) -> String {
    match change {
        Change::LockRequest(queue_position, row) => {
            set_or_gone(format!("place {queue_position}"), row.as_deref().map(request).as_ref())
        }
        Change::SharedHold(key, session, row) => {
            let hold = row.as_ref().map(|row| match row.granted_for {
                Some(index) => format!("from {} for {index}", row.granted_index),
                None => format!("from {}", row.granted_index),
            });
            set_or_gone(format!("shared hold of {key} by {session}"), hold.as_ref())
        }
        Change::SharedDelay(key, row) => {
            let closed = format!("lock-delay of {key} for exclusive requests");
            set_or_gone(closed, row.as_ref().map(delay).as_ref())
        }
        Change::Deadlocks(row) => {
            let newest = row.newest.last().map(|newest| format!(", newest {}", deadlock(newest)));
            let newest = newest.unwrap_or_default();
            format!("deadlocks: {:?}, {} found, {} unknown{newest}", row.policy, row.found, row.unknown)
        }
        other => unreachable!("shown elsewhere: {other:?}"),
    }
}

/// A deadlock.
pub(crate) fn deadlock(row: &Deadlock) -> String {
    let waits: Vec<String> =
        row.waits.iter().map(|wait| format!("{} for {}", wait.session, wait.key)).collect();
    let refused = if row.is_refused { " refused" } else { "" };
    format!("{}{refused}: {}", row.index, waits.join(", "))
}

/// An entry.
pub(crate) fn entry(entry: &Entry) -> String {
    let value = String::from_utf8_lossy(&entry.value);
    let flags = if entry.flags == 0 { String::new() } else { format!(" flags {}", entry.flags) };
    let lock = match &entry.lock.session {
        Some(session) => format!(", held by {session}"),
        None => String::new(),
    };
    let request = entry.lock.granted_for.map(|index| format!(" for {index}")).unwrap_or_default();
    let grants = match entry.lock.index {
        0 => String::new(),
        count => format!(", lock index {count}, fence {}{request}", entry.lock.fence),
    };
    let (created, modified) = (entry.create_index, entry.modify_index);
    format!("entry {} = {value:?}{flags}{lock}{grants}, created {created}, modified {modified}", entry.key)
}

/// A session.
pub(crate) fn session(session: &Session) -> String {
    let checks: Vec<&str> = session.spec.all_checks().map(|check| check.as_str()).collect();
    let checks = if checks.is_empty() { String::new() } else { format!(", checks {}", checks.join(" ")) };
    let ttl = session.spec.ttl.map(|ttl| format!(", ttl {ttl:?}")).unwrap_or_default();
    let delay = match session.spec.lock_delay {
        delay if delay.is_zero() => String::new(),
        delay => format!(", lock-delay {delay:?}"),
    };
    let (id, node, index) = (&session.spec.id, &session.spec.node, session.create_index);
    format!("session {id} on {node}{checks}{ttl}{delay}, {:?}, created {index}", session.spec.behavior)
}

/// A node.
pub(crate) fn node(node: &Node) -> String {
    let id = if node.id.is_empty() { "no id" } else { &node.id[..8] };
    let (created, modified) = (node.create_index, node.modify_index);
    format!("node {} ({id}) at {}, created {created}, modified {modified}", node.name, node.address)
}

/// A service.
pub(crate) fn service(service: &Service) -> String {
    let tags = if service.tags.is_empty() { String::new() } else { format!(" [{}]", service.tags.join(" ")) };
    let (id, node) = (&service.id, &service.node);
    let (created, modified) = (service.create_index, service.modify_index);
    format!("service {id} named {}{tags} on {node}, created {created}, modified {modified}", service.name)
}

/// A check.
pub(crate) fn check(check: &Check) -> String {
    let service = match check.service_name.as_str() {
        "" => String::new(),
        name => format!(" of service {name}"),
    };
    let (id, node, status) = (&check.id, &check.node, check.status.as_str());
    let (created, modified) = (check.create_index, check.modify_index);
    format!("check {id}{service} on {node} is {status}, created {created}, modified {modified}")
}

/// A coordinate, without the last dimensions that are zero.
pub(crate) fn coordinate(node: &NodeName, coordinate: &Coordinate) -> String {
    let mut at: Vec<f64> = coordinate.vec.map(f64::from).to_vec();
    while at.last() == Some(&0.0) {
        at.pop();
    }
    format!("coordinate of {node} is {at:?}, height {}", f64::from(coordinate.height))
}

/// A lock-delay.
pub(crate) fn delay(delay: &LockDelay) -> String {
    format!("{:?} from {}", delay.duration, delay.started_at_index)
}

/// A waiter of a lock.
pub(crate) fn waiter(waiter: &Waiter) -> String {
    let value = String::from_utf8_lossy(&waiter.value);
    let flags = if waiter.flags == 0 { String::new() } else { format!(" flags {}", waiter.flags) };
    format!(
        "{} waits {:?} from {} to write {value:?}{flags}",
        waiter.session, waiter.wait, waiter.enqueued_at_index
    )
}

/// A waiting request.
fn request(request: &LockRequest) -> String {
    let lock = |lock: &RequestedLock| match (lock.mode, &lock.value[..]) {
        (LockMode::Shared, _) => format!("{}:shared", lock.key),
        (LockMode::Exclusive, value) => format!("{} = {:?}", lock.key, String::from_utf8_lossy(value)),
    };
    let locks: Vec<String> = request.locks.iter().map(lock).collect();
    let LockRequest { session, wait, enqueued_at_index, .. } = request;
    format!("{session} waits {wait:?} from {enqueued_at_index} for {}", locks.join(", "))
}

/// A line of the loss history.
pub(crate) fn loss(loss: &Loss) -> String {
    let cause = match &loss.cause {
        LossCause::Destroyed => "was destroyed".into(),
        LossCause::TtlExpired => "was not renewed in time".into(),
        LossCause::CheckCritical(check) => format!("lost its check {check}, which is critical"),
        LossCause::CheckFailed { check, output } => {
            format!("lost its check {check}, which is critical: {output}")
        }
        LossCause::CheckDeregistered(check) => format!("lost its check {check}, which is gone"),
        LossCause::NodeDeregistered => "lost its node".into(),
        LossCause::NodeFailed { window, confirmed_by, .. } => {
            let by: Vec<&str> = confirmed_by.iter().map(NodeName::as_str).collect();
            format!("lost its node, failed ({}) by {}", window.as_str(), by.join(", "))
        }
        LossCause::HostReplaced => "lost its host".into(),
        LossCause::NodeLeft => "lost its node, which left".into(),
        LossCause::NodeForcedToLeave => "lost its node, which was made to leave".into(),
        LossCause::KeyDeleted => "had keys deleted".into(),
        LossCause::GivenUp { silent_for } => {
            format!("was given up, not renewed for {} ms", silent_for.as_millis())
        }
        LossCause::ProcessExited { pid } => format!("lost its process {pid}"),
        LossCause::NodeReaped => "lost its node, which was forgotten".into(),
    };
    let keys: Vec<String> = loss.keys.iter().map(|(key, fence)| format!("{key} (fence {fence})")).collect();
    let keys = if keys.is_empty() { "nothing".into() } else { keys.join(", ") };
    format!("loss at {}: session {} {cause}; it held {keys}", loss.index, loss.session)
}

fn row_or_gone(name: String, row: Option<String>) -> String {
    row.unwrap_or_else(|| format!("{name} is gone"))
}

fn set_or_gone(name: String, value: Option<&impl Display>) -> String {
    match value {
        Some(value) => format!("{name}: {value}"),
        None => format!("{name} is gone"),
    }
}

/// A line with session ids replaced by the script's names.
pub(crate) fn with_words(line: &str) -> String {
    let mut shown = String::new();
    let mut rest = line;
    while let Some(next) = rest.chars().next() {
        let word = rest.get(..36).and_then(SessionId::parse).and_then(word_of);
        shown += &word.clone().unwrap_or_else(|| next.into());
        rest = &rest[word.map_or(next.len_utf8(), |_| 36)..];
    }
    shown
}

/// The name that an id consists of.
fn word_of(id: SessionId) -> Option<String> {
    let text = std::str::from_utf8(id.as_bytes()).ok()?.trim_end_matches('\0');
    let is_word = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then(|| text.to_owned())
}
