//! Members, leaving nodes and joining servers.

use super::{Reply, Stand, identity, own_node};
use crate::http::Api;
use crate::reload::{self, Order};
use lockmesh_protocol::command::{AgentRegistration, Command, NodeFailure};
use lockmesh_protocol::id::{ServerId, Term};
use lockmesh_protocol::lease::{HealthWindow, LeaseId, MISSING_RENEWALS, NodeLease};
use lockmesh_protocol::record::Node;
use lockmesh_protocol::rpc::Unavailable;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Stand {
    /// Registers another agent.
    pub(super) fn registers(&self, name: &str, id: &str) {
        let node = Node { name: name.into(), id: id.into(), address: "10.0.0.9".into(), ..own_node() };
        let registration =
            AgentRegistration { port: 8301, version: "1.2.4".into(), ..AgentRegistration::of(node) };
        self.quorum.apply(Command::RegisterAgent(registration));
    }

    /// The lease of a node's agent.
    fn lease(&self, name: &str) -> LeaseId {
        self.quorum.state.lock().unwrap().0.member(&name.into()).unwrap().lease()
    }

    /// Ends the time of a restart that a node announced.
    fn ends_restart(&self, name: &str) {
        let (agent, announced_at) = {
            let state = self.quorum.state.lock().unwrap();
            let member = state.0.member(&name.into()).unwrap();
            (member.number, member.restart_announced.unwrap())
        };
        self.quorum.apply(Command::EndRestart { agent, announced_at, term: Term(1), base: 0 });
    }

    /// Fails a node by a verdict.
    pub(super) fn fails(&self, name: &str) {
        self.quorum.apply(Command::FailNode(NodeFailure {
            lease: self.lease(name),
            window: HealthWindow::Default,
            confirmed_by: vec![ServerId(1)],
            silent_for: Duration::from_micros(5_000_123),
            term: Term(1),
            base: 0,
        }));
    }

    /// The process executes an order to leave, and returns its outcome.
    async fn ask_to_leave(&self) -> Reply {
        let (asking, mut orders) = reload::channel();
        let Api { upstream, limits, registry, .. } = &*self.api;
        let api = Api::new(upstream.clone(), identity(), limits.clone(), registry.clone());
        let api = Api { reload: asking, ..api };
        let request = http::Request::builder().method("PUT").uri("/v1/agent/leave");
        let request = request.body(crate::http::Body::from(bytes::Bytes::new())).unwrap();
        let process = async {
            let Some(Order::Leave(order)) = orders.recv().await else { panic!("it was not asked to leave") };
            order.carried_out(upstream.leave(&"node-one".into()).await);
        };
        let (response, ()) = tokio::join!(crate::http::router::respond(&api, super::LOCAL, request), process);
        super::reply(response).await
    }
}

/// A member by its name.
async fn member(stand: &Stand, name: &str) -> Value {
    let members = stand.get("/v1/agent/members?lease").await.json();
    members.as_array().unwrap().iter().find(|member| member["Name"] == name).cloned().unwrap_or_default()
}

#[tokio::test]
async fn member_state_follows_roster() {
    let stand = Stand::new();
    stand.registers("web-3", "f0000000-0000-0000-0000-000000000003");
    let alive = member(&stand, "web-3").await;
    assert_eq!(
        (&alive["Status"], &alive["State"], &alive["Port"]),
        (&json!(1), &json!("alive"), &json!(8301))
    );
    assert_eq!((&alive["Addr"], &alive["SinceMs"]), (&json!("10.0.0.9"), &json!(1_000)));
    assert_eq!((&alive["Tags"]["build"], &alive["Tags"]["role"]), (&json!("1.2.4"), &json!("node")));

    let lease = stand.lease("web-3");
    stand.quorum.apply(Command::AnnounceRestart(lease));
    let restarting = member(&stand, "web-3").await;
    assert_eq!((&restarting["Status"], &restarting["State"]), (&json!(1), &json!("restarting")));

    stand.ends_restart("web-3");
    stand.fails("web-3");
    let failed = member(&stand, "web-3").await;
    assert_eq!((&failed["Status"], &failed["State"]), (&json!(4), &json!("failed")));

    stand.put("/v1/agent/force-leave/web-3", "").await.is(200, "");
    let left = member(&stand, "web-3").await;
    assert_eq!(
        (&left["Status"], &left["State"], &left["Addr"]),
        (&json!(3), &json!("left"), &json!("10.0.0.9"))
    );
    stand.get("/v1/catalog/node/web-3").await.is(200, "null");

    stand.put("/v1/agent/force-leave/web-3?prune", "").await.is(200, "");
    assert_eq!(member(&stand, "web-3").await, Value::Null, "it is forgotten");
}

#[tokio::test]
async fn member_lease_shown_only_with_leader() {
    let stand = Stand::new();
    stand.registers("web-3", "f0000000-0000-0000-0000-000000000003");
    assert_eq!(member(&stand, "web-3").await["NodeLease"], Value::Null, "the leader has no contact with it");
    let known = NodeLease {
        lease: stand.lease("web-3"),
        shortest: Some(HealthWindow::Fast),
        heard_ago: Some(Duration::from_micros(2_345_678)),
        ends_in: Some([1, 5, 15].map(Duration::from_secs)),
        suspected_by: vec!["web-1".into()],
    };
    *stand.quorum.leases.lock().unwrap() = vec![known.clone()];
    let LeaseId { agent, began } = known.lease;
    let shown = member(&stand, "web-3").await["NodeLease"].clone();
    let expected = json!({
        "ID": format!("{agent}-{began}"), "HealthWindow": "fast", "DeadlineInMs": 1_000, "LastHeardAgoMs": 2_345,
        "SuspectedBy": ["web-1"],
    });
    assert_eq!(shown, expected);
    // Missing renewals are not a node, and Consul's status stays.
    let suspected_by = vec![MISSING_RENEWALS.into(), "web-1".into()];
    *stand.quorum.leases.lock().unwrap() = vec![NodeLease { suspected_by, ..known.clone() }];
    let cut_off = member(&stand, "web-3").await;
    assert_eq!((&cut_off["Status"], &cut_off["State"]), (&json!(1), &json!("alive")));
    assert_eq!(cut_off["NodeLease"]["ServersUnreachable"], json!(true));
    assert_eq!(cut_off["NodeLease"]["SuspectedBy"], json!(["web-1"]));
    // While a restart is expected, silence does not count.
    let quiet = NodeLease { shortest: None, ends_in: None, suspected_by: vec![], ..known };
    *stand.quorum.leases.lock().unwrap() = vec![quiet];
    let shown = member(&stand, "web-3").await["NodeLease"].clone();
    let expected = json!({
        "ID": format!("{agent}-{began}"), "HealthWindow": "default", "LastHeardAgoMs": 2_345,
    });
    assert_eq!(shown, expected);
    stand.break_with(Unavailable::NotLeader { leader: None });
    let own = member(&stand, "node-one").await;
    assert_eq!((&own["Status"], &own["NodeLease"]), (&json!(1), &Value::Null));
}

#[tokio::test]
async fn leases_fetched_in_parts_on_request() {
    let stand = Stand::new();
    let known = |name: &str, id: &str| {
        stand.registers(name, id);
        let lease = stand.lease(name);
        NodeLease { lease, shortest: None, heard_ago: None, ends_in: None, suspected_by: vec![] }
    };
    let leases = vec![
        known("web-3", "f0000000-0000-0000-0000-000000000003"),
        known("web-4", "f0000000-0000-0000-0000-000000000004"),
    ];
    *stand.quorum.leases.lock().unwrap() = leases;
    let shown = async |path: &str| {
        let members = stand.get(path).await.json();
        let members = members.as_array().unwrap().clone();
        members.iter().filter(|member| member["NodeLease"].is_object()).count()
    };
    let asked = || stand.quorum.leases_asked.load(Ordering::Relaxed);
    assert_eq!((shown("/v1/agent/members").await, asked()), (0, 0));
    assert_eq!((shown("/v1/agent/members?lease").await, asked()), (2, 2));
}

#[tokio::test]
async fn session_lease_shown_on_request() {
    let stand = Stand::new();
    stand.registers("web-3", "f0000000-0000-0000-0000-000000000003");
    let known = NodeLease {
        lease: stand.lease("web-3"),
        shortest: Some(HealthWindow::Fast),
        heard_ago: Some(Duration::from_secs(1)),
        ends_in: Some([1, 5, 15].map(Duration::from_secs)),
        suspected_by: vec![],
    };
    *stand.quorum.leases.lock().unwrap() = vec![known];
    let info = async |id: &str, query: &str| {
        let sessions = stand.get(&format!("/v1/session/info/{id}{query}")).await.json();
        sessions[0]["NodeLease"].clone()
    };
    let safe = stand.session(r#"{"Node":"web-3","HealthWindow":"safe"}"#).await;
    assert_eq!(info(&safe, "").await, Value::Null);
    let lease = info(&safe, "?lease").await;
    assert_eq!((&lease["HealthWindow"], &lease["DeadlineInMs"]), (&json!("safe"), &json!(15_000)));
    // Its node's silence does not end this one.
    let free = stand.session(r#"{"Node":"web-3","NodeChecks":[]}"#).await;
    let lease = info(&free, "?lease").await;
    assert_eq!((&lease["HealthWindow"], &lease["DeadlineInMs"]), (&json!(""), &Value::Null));
    assert_eq!(lease["LastHeardAgoMs"], 1_000);
    // A node without a lease at the leader has none, which differs from an unknown lease.
    let other = stand.session("{}").await;
    assert_eq!(info(&other, "?lease").await, json!({ "ID": "", "HealthWindow": "" }));
}

#[tokio::test]
async fn newer_agent_wins_shared_name() {
    let stand = Stand::new();
    stand.registers("web-3", "f0000000-0000-0000-0000-000000000003");
    stand.put("/v1/agent/force-leave/web-3", "").await.is(200, "");
    stand.registers("WEB-3", "f0000000-0000-0000-0000-000000000004");
    assert_eq!(member(&stand, "web-3").await, Value::Null);
    assert_eq!(member(&stand, "WEB-3").await["State"], "alive");
}

#[tokio::test]
async fn force_leave_ends_sessions() {
    let stand = Stand::new();
    stand.registers("web-3", "f0000000-0000-0000-0000-000000000003");
    let id = stand.session(r#"{"Node":"web-3","NodeChecks":[]}"#).await;
    stand.put(&format!("/v1/kv/job?acquire={id}"), "").await.is(200, "true");
    stand.put("/v1/agent/force-leave/Web-3", "").await.is(200, "");
    stand.get(&format!("/v1/session/info/{id}")).await.is(200, "[]");
    let losses = stand.get("/v1/lockmesh/losses").await.json();
    assert_eq!(losses[0]["Cause"], "node-forced-to-leave");
}

#[tokio::test]
async fn force_leave_requires_member() {
    let stand = Stand::new();
    let words = |name: &str| format!("agent: No node found with name '{name}'");
    stand.put("/v1/agent/force-leave/web-9", "").await.is(500, &words("web-9"));
    stand.put("/v1/agent/force-leave/", "").await.is(500, &words(""));
    stand.put("/v1/agent/force-leave/node-one?wan", "").await.is(500, &words("node-one"));
    stand.put("/v1/agent/force-leave/node-one?dc=dc2", "").await.is(500, "No path to datacenter");
    stand.break_with(Unavailable::NotLeader { leader: None });
    let failed = stand.put("/v1/agent/force-leave/node-one", "").await;
    failed.is(500, "No cluster leader");
    failed.failed(500, "not-done");
    stand.mend();
    stand.put("/v1/agent/force-leave/node-one.dc1?wan", "").await.is(200, "");
    assert_eq!(member(&stand, "node-one").await["State"], "left");
}

#[tokio::test]
async fn leave_ends_own_sessions() {
    let stand = Stand::new();
    let id = stand.session("{}").await;
    stand.put(&format!("/v1/kv/job?acquire={id}"), "").await.is(200, "true");
    stand.ask_to_leave().await.is(200, "");
    assert_eq!(member(&stand, "node-one").await["Status"], 3);
    stand.get("/v1/catalog/node/node-one").await.is(200, "null");
    let losses = stand.get("/v1/lockmesh/losses").await.json();
    assert_eq!((&losses[0]["Session"], &losses[0]["Cause"]), (&json!(id), &json!("node-left")));
    assert!(stand.quorum.stays.lock().unwrap().is_empty());
}

#[tokio::test]
async fn failed_leave_keeps_agent_running() {
    let stand = Stand::new();
    stand.break_with(Unavailable::NotLeader { leader: None });
    let failed = stand.ask_to_leave().await;
    failed.is(500, "No cluster leader");
    failed.failed(500, "not-done");
    stand.break_with(Unavailable::Unknown("the leader was lost".into()));
    stand.ask_to_leave().await.failed(500, "unknown");
    assert_eq!(*stand.quorum.stays.lock().unwrap(), [false, true], "after the second it may have left");
    stand.mend();
    assert_eq!(member(&stand, "node-one").await["State"], "alive");
    let other = stand.put("/v1/agent/leave?dc=dc2", "").await;
    other.is(500, "No path to datacenter");
}

#[tokio::test]
async fn leave_rejected_during_shutdown() {
    let stand = Stand::new();
    let refused = stand.put("/v1/agent/leave", "").await;
    // No process executes the orders of this one.
    refused.is(500, "this process cannot leave: it is shutting down");
}

#[tokio::test]
async fn no_catalog_write_after_leave() {
    let stand = Stand::new();
    let registry = &stand.api.registry;
    registry.wait_written(registry.maintain(None).await.unwrap(), Duration::from_secs(60)).await;
    let mut is_silent = registry.silence().await;
    let version = registry.maintain(Some("leaving")).await.unwrap();
    stand.api.upstream.leave(&"node-one".into()).await.unwrap();
    *is_silent = true;
    drop(is_silent);
    // A write to the catalog would be immediate.
    registry.wait_written(version, Duration::ZERO).await;
    stand.get("/v1/catalog/node/node-one").await.is(200, "null");
}

#[tokio::test]
async fn join_server_by_address() {
    let stand = Stand::new();
    for address in ["127.0.0.1:8300", "127.0.0.1"] {
        stand.put(&format!("/v1/agent/join/{address}"), "").await.is(200, "");
    }
    let failed = stand.put("/v1/agent/join/10.0.0.7", "").await;
    failed.is(500, "Failed to join 10.0.0.7:8300: no server is reached at 10.0.0.7:8300");
    failed.failed(500, "refused");
    let nowhere = stand.put("/v1/agent/join/", "").await;
    nowhere.is(500, "Failed to join \"\": name a server as host:port");
    let far = stand.put("/v1/agent/join/127.0.0.1:8300?wan=1", "").await;
    far.is(500, "Failed to join: there is no wide area: a cluster is one datacenter");
    stand.put("/v1/agent/join/127.0.0.1:8300?wan=", "").await.is(200, "");
}

#[tokio::test]
async fn join_known_member_is_noop() {
    let stand = Stand::new();
    let node = Node { name: "web-4".into(), id: "f0000000-0000-0000-0000-000000000004".into(), ..own_node() };
    let registration = AgentRegistration {
        port: 8301,
        gossip: "[2001:db8::4]:8302".parse().ok(),
        ..AgentRegistration::of(Node { address: "2001:db8::4".into(), ..node })
    };
    stand.quorum.apply(Command::RegisterAgent(registration));
    for address in ["[2001:db8::4]:8301", "[2001:db8::4]:8302", "2001:db8::4", "[2001:db8::4]"] {
        stand.put(&format!("/v1/agent/join/{address}"), "").await.is(200, "");
    }
    for address in ["[2001:db8::4]:8303", "[2001:db8::5]:8301", "2001:db8::5"] {
        stand.put(&format!("/v1/agent/join/{address}"), "").await.failed(500, "refused");
    }
    stand.fails("web-4");
    stand.put("/v1/agent/force-leave/web-4", "").await.is(200, "");
    stand.put("/v1/agent/join/[2001:db8::4]:8301", "").await.failed(500, "refused");
}

#[tokio::test]
async fn node_maintenance_until_disabled() {
    let stand = Stand::new();
    let maintain = async |query: &str| stand.put(&format!("/v1/agent/maintenance{query}"), "").await;
    maintain("").await.is(400, "Missing value for enable");
    maintain("?enable=maybe").await.is(400, "Invalid value for enable: \"maybe\"");
    maintain("?enable=").await.is(400, "Invalid value for enable: \"\"");
    maintain("?enable=false").await.is(200, "");
    stand.get("/v1/agent/checks").await.is(200, "{}");

    let lives = stand.session("{}").await;
    maintain("?enable=true&reason=a%20disk").await.is(200, "");
    maintain("?enable=1&reason=another").await.is(200, "");
    let check = stand.get("/v1/agent/checks").await.json()["_node_maintenance"].clone();
    assert_eq!(
        (&check["Name"], &check["Status"], &check["Type"], &check["Notes"]),
        (&json!("Node Maintenance Mode"), &json!("critical"), &json!("maintenance"), &json!("a disk"))
    );
    let catalog = stand.get("/v1/health/node/node-one").await.json();
    assert!(catalog.as_array().unwrap().iter().any(|known| known["CheckID"] == "_node_maintenance"));
    let no_ttl = "CheckID \"_node_maintenance\" does not have associated TTL";
    stand.put("/v1/agent/check/pass/_node_maintenance", "").await.is(500, no_ttl);
    let info = stand.get(&format!("/v1/session/info/{lives}")).await.json();
    assert_eq!(info.as_array().map(Vec::len), Some(1), "a session that does not list it lives");

    maintain("?enable=false").await.is(200, "");
    stand.get("/v1/agent/checks").await.is(200, "{}");
    let catalog = stand.get("/v1/health/node/node-one").await.json();
    assert_eq!(catalog.as_array().map(Vec::len), Some(1), "{catalog}");
    maintain("?enable=t").await.is(200, "");
    let notes = stand.get("/v1/agent/checks").await.json()["_node_maintenance"]["Notes"].clone();
    assert!(notes.as_str().unwrap().contains("this node, but no reason was provided"), "{notes}");
}
