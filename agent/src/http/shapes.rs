//! From the state's records to the JSON that clients see. Renders only, without look-ups.

use crate::go::duration::format_duration;
use lockmesh_agent_core::definitions::service_mesh::{MeshFields, visible_meta};
use lockmesh_agent_core::session_events::SessionEvent;
use lockmesh_client::shape::{self, Blob};
use lockmesh_protocol::deadlock::{AwaitedLock, Deadlock, DeadlockPolicy, DeadlockedSession, LockWait};
use lockmesh_protocol::gossip::event::UserEvent;
use lockmesh_protocol::id::SessionId;
use lockmesh_protocol::lease::{HealthWindow, NodeLease};
use lockmesh_protocol::prepared_query::{PreparedQuery, QuerySpec};
use lockmesh_protocol::query::{Instance, LockInfo};
use lockmesh_protocol::record::{Behavior, Check, Coordinate, Entry, Node, Service, Session};
use lockmesh_protocol::reply::TxnResult;
use lockmesh_protocol::time::Time;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn entry(entry: &Entry) -> shape::kv::Entry {
    shape::kv::Entry {
        lock_index: entry.lock.index,
        key: entry.key.to_string(),
        flags: entry.flags,
        value: Blob::unless_empty(entry.value.clone()),
        session: entry.lock.session.as_ref().map(ToString::to_string).unwrap_or_default(),
        create_index: entry.create_index.0,
        modify_index: entry.modify_index.0,
        // The entry keeps the token of its last grant, with which nothing is protected any more.
        fence: entry.lock.session.is_some().then_some(entry.lock.fence.0),
    }
}

pub(super) fn session(session: &Session) -> shape::session::Session {
    let service_check = |check: &lockmesh_protocol::record::ServiceCheck| shape::session::ServiceCheck {
        id: check.id.to_string(),
        namespace: check.namespace.clone(),
    };
    let Session { spec, create_index, .. } = session;
    shape::session::Session {
        id: spec.id.to_string(),
        name: spec.name.clone(),
        node: spec.node.to_string(),
        lock_delay: i64::try_from(spec.lock_delay.as_nanos()).unwrap_or(i64::MAX),
        behavior: behavior(spec.behavior).into(),
        ttl: spec.ttl_text.clone(),
        node_checks: spec.node_checks.iter().map(ToString::to_string).collect(),
        service_checks: spec.service_checks.as_ref().map(|list| list.iter().map(service_check).collect()),
        checks: spec.checks.iter().map(ToString::to_string).collect(),
        // Consul has no such field: a session with the default window looks like one of Consul's.
        health_window: match spec.health_window {
            HealthWindow::Default => String::new(),
            window => window.as_str().into(),
        },
        create_index: create_index.0,
        modify_index: create_index.0,
        node_lease: None,
    }
}

/// Returns a node's lease, and when the node's silence exceeds this window.
pub(super) fn node_lease(lease: &NodeLease, window: Option<HealthWindow>) -> shape::agent::NodeLease {
    let milliseconds = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    shape::agent::NodeLease {
        id: format!("{}-{}", lease.lease.agent, lease.lease.began),
        health_window: window.map(HealthWindow::as_str).unwrap_or_default().into(),
        deadline_in_ms: window.and_then(|window| lease.ends_in(window)).map(milliseconds),
        last_heard_ago_ms: lease.heard_ago.map(milliseconds),
        servers_unreachable: lease.lacks_renewals(),
        probes_fail: lease.has_failed_probes(),
        suspected_by: lease.suspecting_nodes().map(ToString::to_string).collect(),
    }
}

/// Returns a session's state for guards, at this time.
pub fn session_event(session: SessionId, event: &SessionEvent, now: Time) -> shape::session::SessionEvent {
    let nanoseconds = |time: Option<Time>| time.unwrap_or_default().0.saturating_mul(1_000);
    let remaining = event.deadline.map(|deadline| deadline.since(now)).unwrap_or_default();
    shape::session::SessionEvent {
        session: session.to_string(),
        state: event.state.as_str().into(),
        deadline: nanoseconds(event.deadline),
        jeopardy_at: nanoseconds(event.jeopardy_at),
        remaining_ms: u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX),
        reason: event.reason.clone(),
        index: event.index,
    }
}

pub(super) fn event(event: &UserEvent) -> shape::event::Event {
    shape::event::Event {
        id: event.id.to_string(),
        name: event.name.clone(),
        payload: Blob::unless_empty(event.payload.clone()),
        node_filter: event.filters.node.clone(),
        service_filter: event.filters.service.clone(),
        tag_filter: event.filters.tag.clone(),
        version: event.version.into(),
        lamport_time: event.time.0,
    }
}

fn behavior(behavior: Behavior) -> &'static str {
    match behavior {
        Behavior::Release => "release",
        Behavior::Delete => "delete",
    }
}

pub(super) fn node(node: &Node) -> shape::catalog::Node {
    shape::catalog::Node {
        id: node.id.clone(),
        node: node.name.to_string(),
        address: node.address.clone(),
        datacenter: node.datacenter.clone(),
        tagged_addresses: unless_empty(&node.tagged_addresses),
        meta: unless_empty(&node.meta),
        create_index: node.create_index.0,
        modify_index: node.modify_index.0,
    }
}

fn unless_empty(map: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then(|| map.clone())
}

pub(super) fn service(service: &Service) -> shape::catalog::Service {
    let mesh = MeshFields::of(service);
    shape::catalog::Service {
        kind: mesh.kind,
        id: service.id.to_string(),
        service: service.name.clone(),
        tags: Some(service.tags.clone()),
        address: service.address.clone(),
        tagged_addresses: tagged_addresses(service),
        meta: Some(visible_meta(service)).filter(|meta| !meta.is_empty()),
        port: service.port,
        socket_path: mesh.socket_path,
        weights: weights(service),
        enable_tag_override: service.enable_tag_override,
        locality: locality(mesh.locality),
        proxy: stored(mesh.proxy),
        connect: mesh.connect,
        create_index: service.create_index.0,
        modify_index: service.modify_index.0,
    }
}

/// Returns a service as its agent has it, without a content hash.
pub(super) fn agent_service(service: &Service, datacenter: &str) -> shape::agent::Service {
    let mesh = MeshFields::of(service);
    let shows_proxy = mesh.shows_proxy();
    shape::agent::Service {
        kind: mesh.kind,
        id: service.id.to_string(),
        service: service.name.clone(),
        tags: service.tags.clone(),
        meta: visible_meta(service),
        port: service.port,
        address: service.address.clone(),
        socket_path: mesh.socket_path,
        tagged_addresses: tagged_addresses(service),
        weights: weights(service),
        enable_tag_override: service.enable_tag_override,
        content_hash: String::new(),
        proxy: shows_proxy.then(|| stored(mesh.proxy)),
        connect: mesh.connect,
        datacenter: datacenter.into(),
        locality: locality(mesh.locality),
    }
}

fn stored<T: Default + DeserializeOwned>(fields: Map<String, Value>) -> T {
    serde_json::from_value(Value::Object(fields)).unwrap_or_default()
}

fn locality(fields: Map<String, Value>) -> Option<shape::catalog::Locality> {
    (!fields.is_empty()).then(|| stored(fields))
}

fn weights(service: &Service) -> shape::catalog::Weights {
    let (passing, warning) = service.weights;
    shape::catalog::Weights { passing, warning }
}

fn tagged_addresses(service: &Service) -> BTreeMap<String, shape::catalog::ServiceAddress> {
    let address = |address: &lockmesh_protocol::record::ServiceAddress| shape::catalog::ServiceAddress {
        address: address.address.clone(),
        port: address.port,
    };
    service.tagged_addresses.iter().map(|(tag, known)| (tag.clone(), address(known))).collect()
}

pub(super) fn service_node(instance: &Instance) -> shape::catalog::ServiceNode {
    let (node, service) = (&instance.node, &instance.service);
    let mesh = MeshFields::of(service);
    shape::catalog::ServiceNode {
        id: node.id.clone(),
        node: node.name.to_string(),
        address: node.address.clone(),
        datacenter: node.datacenter.clone(),
        tagged_addresses: unless_empty(&node.tagged_addresses),
        node_meta: unless_empty(&node.meta),
        service_kind: mesh.kind,
        service_id: service.id.to_string(),
        service_name: service.name.clone(),
        service_tags: service.tags.clone(),
        service_address: service.address.clone(),
        service_tagged_addresses: tagged_addresses(service),
        service_weights: weights(service),
        service_meta: visible_meta(service),
        service_port: service.port,
        service_socket_path: mesh.socket_path,
        service_enable_tag_override: service.enable_tag_override,
        service_proxy: stored(mesh.proxy),
        service_connect: mesh.connect,
        service_locality: locality(mesh.locality),
        create_index: service.create_index.0,
        modify_index: service.modify_index.0,
    }
}

pub(crate) fn check(check: &Check) -> shape::health::Check {
    shape::health::Check {
        node: check.node.to_string(),
        check_id: check.id.to_string(),
        name: check.name.clone(),
        status: check.status.as_str().into(),
        notes: check.notes.clone(),
        output: check.output.clone(),
        service_id: check.service_id.as_ref().map(ToString::to_string).unwrap_or_default(),
        service_name: check.service_name.clone(),
        service_tags: Some(check.service_tags.clone()),
        kind: check.kind.clone(),
        interval: check.interval.clone(),
        timeout: check.timeout.clone(),
        exposed_port: check.exposed_port,
        definition: definition(&check.definition),
        create_index: check.create_index.0,
        modify_index: check.modify_index.0,
    }
}

fn definition(text: &str) -> Map<String, Value> {
    let mut definition: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
    // Internal to Lockmesh: Consul's definitions have no such field.
    definition.remove(lockmesh_agent_core::definitions::DEFINITION_TTL);
    definition
}

pub(super) fn instance(instance: &Instance) -> shape::health::ServiceInstance {
    shape::health::ServiceInstance {
        node: node(&instance.node),
        service: service(&instance.service),
        checks: instance.checks.iter().map(|known| check(known)).collect(),
    }
}

/// Returns the coordinate of a node.
pub(super) fn coordinate(node: &str, coordinate: &Coordinate) -> shape::catalog::NodeCoordinate {
    shape::catalog::NodeCoordinate {
        node: node.into(),
        segment: String::new(),
        coord: shape::catalog::Coordinate {
            vec: coordinate.vec.map(f64::from).to_vec(),
            error: coordinate.error.into(),
            adjustment: coordinate.adjustment.into(),
            height: coordinate.height.into(),
        },
    }
}

pub(super) fn prepared_query(query: &PreparedQuery) -> shape::prepared_query::PreparedQuery {
    let QuerySpec { name, session, token, template, service, dns_ttl } = &query.spec;
    let target = |target: &lockmesh_protocol::prepared_query::QueryTarget| shape::prepared_query::Target {
        peer: target.peer.clone(),
        datacenter: target.datacenter.clone(),
    };
    shape::prepared_query::PreparedQuery {
        id: query.id.to_string(),
        name: name.clone(),
        session: session.as_ref().map(ToString::to_string).unwrap_or_default(),
        token: token.clone(),
        template: shape::prepared_query::Template {
            kind: template.kind.clone(),
            regexp: template.regexp.clone(),
            remove_empty_tags: template.remove_empty_tags,
        },
        service: shape::prepared_query::Service {
            service: service.service.clone(),
            sameness_group: String::new(),
            failover: shape::prepared_query::Failover {
                nearest_n: service.nearest_n,
                datacenters: service.datacenters.clone(),
                targets: service.targets.as_ref().map(|targets| targets.iter().map(target).collect()),
            },
            only_passing: service.only_passing,
            ignore_check_ids: service.ignore_check_ids.clone(),
            near: service.near.clone(),
            tags: service.tags.clone(),
            node_meta: service.node_meta.clone(),
            service_meta: service.service_meta.clone(),
            connect: service.connect,
            peer: service.peer.clone(),
        },
        dns: shape::prepared_query::Dns { ttl: dns_ttl.clone() },
        create_index: query.create_index.0,
        modify_index: query.modify_index.0,
    }
}

/// Returns an element of a transaction's results; only there Consul writes `null` for an empty list
/// of tags.
pub(super) fn txn_result(result: &TxnResult) -> shape::txn::TxnResult {
    let mut shaped = shape::txn::TxnResult::default();
    match result {
        TxnResult::Kv(known) => shaped.kv = Some(entry(known)),
        TxnResult::Node(known) => shaped.node = Some(node(known)),
        TxnResult::Service(known) => {
            let mut service = service(known);
            service.tags = service.tags.filter(|tags| !tags.is_empty());
            shaped.service = Some(service);
        }
        TxnResult::Check(known) => {
            let mut check = check(known);
            check.service_tags = check.service_tags.filter(|tags| !tags.is_empty());
            shaped.check = Some(check);
        }
    }
    shaped
}

pub(super) fn lock(lock: &LockInfo) -> shape::lockmesh::Lock {
    let holder = lock.session.as_deref();
    shape::lockmesh::Lock {
        key: lock.key.to_string(),
        session: holder.map(|session| session.spec.id.to_string()).unwrap_or_default(),
        session_name: holder.map(|session| session.spec.name.clone()).unwrap_or_default(),
        node: holder.map(|session| session.spec.node.to_string()).unwrap_or_default(),
        fence: lock.fence.0,
        lock_index: lock.lock_index,
        modify_index: lock.modify_index.0,
        // The time of the last grant is meaningless without a holder.
        granted_at_ms: if holder.is_some() { lock.granted_at.0 } else { 0 },
        lock_delay: lock.delay.map(|delay| format_duration(delay.duration)).unwrap_or_default(),
        waiters: lock.waiters,
    }
}

pub(super) fn lock_wait(wait: &LockWait) -> shape::lockmesh::Wait {
    let spec = &wait.session.spec;
    shape::lockmesh::Wait {
        session: spec.id.to_string(),
        session_name: spec.name.clone(),
        node: spec.node.to_string(),
        queue_position: wait.queue_position.0,
        since_ms: wait.enqueued_at.0,
        wait: format_duration(wait.wait),
        deadlocked: wait.is_deadlocked,
        locks: wait.locks.iter().map(awaited_lock).collect(),
    }
}

fn awaited_lock(lock: &AwaitedLock) -> shape::lockmesh::AwaitedLock {
    shape::lockmesh::AwaitedLock {
        key: lock.key.to_string(),
        mode: lock.mode.as_str().into(),
        ahead: lock.ahead,
        blocked_by: lock.blocked_by.iter().map(ToString::to_string).collect(),
    }
}

pub(super) fn deadlocks(
    policy: DeadlockPolicy,
    rows: &[(Arc<Deadlock>, bool)],
) -> shape::lockmesh::Deadlocks {
    let policy = match policy {
        DeadlockPolicy::Report => shape::lockmesh::DeadlockPolicy::Report,
        DeadlockPolicy::Refuse => shape::lockmesh::DeadlockPolicy::Refuse,
    };
    let shaped = |(deadlock, exists): &(Arc<Deadlock>, bool)| shape::lockmesh::Deadlock {
        index: deadlock.index.0,
        at_ms: deadlock.found_at.0,
        refused: deadlock.is_refused,
        exists: *exists,
        length: deadlock.length,
        waits: deadlock.waits.iter().map(deadlocked_session).collect(),
    };
    shape::lockmesh::Deadlocks { policy, deadlocks: rows.iter().map(shaped).collect() }
}

fn deadlocked_session(wait: &DeadlockedSession) -> shape::lockmesh::DeadlockedSession {
    shape::lockmesh::DeadlockedSession {
        session: wait.session.to_string(),
        session_name: wait.name.clone(),
        node: wait.node.to_string(),
        waits_for: wait.key.to_string(),
    }
}

pub(super) fn deadlock_policy(policy: shape::lockmesh::DeadlockPolicy) -> DeadlockPolicy {
    match policy {
        shape::lockmesh::DeadlockPolicy::Report => DeadlockPolicy::Report,
        shape::lockmesh::DeadlockPolicy::Refuse => DeadlockPolicy::Refuse,
    }
}
