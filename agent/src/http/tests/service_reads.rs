//! Reads of services, as the contract with Consul's clients requires. Time only advances during
//! waits.

use super::{Reply, Stand};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

impl Stand {
    /// Registers a service with this id and name, and returns its index.
    async fn serve(&self, node: &str, id: &str, name: &str) -> u64 {
        self.enter(json!({"Node": node, "Service": {"ID": id, "Service": name}})).await;
        self.get(&format!("/v1/health/service/{name}")).await.index()
    }

    async fn enter(&self, mut registration: Value) {
        let fields = registration.as_object_mut().unwrap();
        fields.entry("Address").or_insert("10.0.0.1".into());
        self.put("/v1/catalog/register", &registration.to_string()).await.is(200, "true");
    }

    async fn leave(&self, deregistration: Value) {
        self.put("/v1/catalog/deregister", &deregistration.to_string()).await.is(200, "true");
    }

    async fn check(&self, node: &str, id: &str, service: &str, status: &str) {
        let check = json!({"CheckID": id, "ServiceID": service, "Status": status});
        self.enter(json!({"Node": node, "SkipNodeUpdate": true, "Check": check})).await;
    }

    async fn index(&self, path: &str) -> u64 {
        self.get(path).await.index()
    }

    /// Reads until the index exceeds `index`, for at most ten seconds; the reply and its delay.
    async fn watch(&self, path: &str, index: u64) -> (Reply, Duration) {
        let start = Instant::now();
        let joint = if path.contains('?') { '&' } else { '?' };
        let reply = self.get(&format!("{path}{joint}index={index}&wait=10s")).await;
        (reply, start.elapsed())
    }
}

fn ids(reply: &Reply) -> Vec<String> {
    let rows = reply.json();
    let id = |row: &Value| match row.get("Service") {
        Some(service) => {
            format!("{}/{}", row["Node"]["Node"].as_str().unwrap(), service["ID"].as_str().unwrap())
        }
        None => format!("{}/{}", row["Node"].as_str().unwrap(), row["ServiceID"].as_str().unwrap()),
    };
    rows.as_array().unwrap().iter().map(id).collect()
}

/// Contract: 107.
#[tokio::test(start_paused = true)]
async fn unknown_name_empty_missing_name_rejected() {
    let stand = Stand::new();
    stand.serve("n1", "web", "web").await;
    for (path, text) in [
        ("/v1/health/service/", "Missing service name"),
        ("/v1/health/connect/", "Missing service name"),
        ("/v1/health/ingress/", "Missing service name"),
        ("/v1/health/checks/", "Missing service name"),
        ("/v1/catalog/service/", "Missing service name"),
        ("/v1/catalog/connect/", "Missing service name"),
        ("/v1/catalog/gateway-services/", "Missing gateway name"),
        ("/v1/health/node/", "Missing node name"),
        ("/v1/catalog/node/", "Missing node name"),
        ("/v1/catalog/node-services/", "Missing node name"),
        ("/v1/health/state/", "Missing check state"),
    ] {
        stand.get(path).await.is(400, text);
        let empty = match path {
            "/v1/catalog/node/" => "null",
            "/v1/catalog/node-services/" => r#"{"Node":null,"Services":null}"#,
            _ => "[]",
        };
        let unknown = stand.get(&format!("{path}nonsense")).await;
        unknown.is(200, empty);
        assert!(unknown.index() >= 1);
    }
    for path in ["/v1/health/service/WEB", "/v1/catalog/service/WEB"] {
        assert_eq!(ids(&stand.get(path).await), ["n1/web"]);
    }
}

/// Contract: 108.
#[tokio::test(start_paused = true)]
async fn connect_reads_exclude_plain_services() {
    let stand = Stand::new();
    stand.serve("n1", "web", "web").await;
    for path in ["health/connect", "health/ingress", "catalog/connect", "catalog/gateway-services"] {
        stand.get(&format!("/v1/{path}/web")).await.is(200, "[]");
    }
    stand.get("/v1/catalog/node-services/n9").await.is(200, r#"{"Node":null,"Services":null}"#);
    let found = stand.get("/v1/catalog/node-services/N1").await.json();
    assert_eq!((&found["Node"]["Node"], &found["Services"][0]["ID"]), (&json!("n1"), &json!("web")));

    // A proxy is found by the service that it is for, and not by its own name.
    let proxy = json!({"Kind": "connect-proxy", "ID": "p", "Service": "envoy",
        "Proxy": {"DestinationServiceName": "web"}});
    stand.enter(json!({"Node": "n1", "Service": proxy})).await;
    let other = json!({"Service": "other-sidecar-proxy", "Kind": "connect-proxy",
        "Proxy": {"DestinationServiceName": "third"}});
    stand.enter(json!({"Node": "n1", "Service": other})).await;
    stand.enter(json!({"Node": "n2", "Service": {"Service": "db", "Connect": {"Native": true}}})).await;
    for kind in ["health", "catalog"] {
        assert_eq!(ids(&stand.get(&format!("/v1/{kind}/connect/Web")).await), ["n1/p"]);
        assert_eq!(ids(&stand.get(&format!("/v1/{kind}/connect/db")).await), ["n2/db"]);
        stand.get(&format!("/v1/{kind}/connect/other")).await.is(200, "[]");
    }
    let index = stand.index("/v1/health/connect/web").await;
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stand.leave(json!({"Node": "n1", "ServiceID": "p"})).await;
    };
    let ((reply, after), ()) = tokio::join!(stand.watch("/v1/health/connect/web", index), change);
    reply.is(200, "[]");
    assert_eq!(after, Duration::from_secs(1));
    assert!(reply.index() > index);
}

/// Contract: 109.
#[tokio::test(start_paused = true)]
async fn instances_sorted_by_node_then_id() {
    let stand = Stand::new();
    for (node, id) in [("zb", "s2"), ("zb", "s1"), ("za", "s2"), ("zb", "S0"), ("za", "S0"), ("za", "s1")] {
        stand.serve(node, id, "web").await;
    }
    let sorted = ["za/S0", "za/s1", "za/s2", "zb/S0", "zb/s1", "zb/s2"];
    assert_eq!(ids(&stand.get("/v1/catalog/service/web").await), sorted);
    assert_eq!(ids(&stand.get("/v1/health/service/web").await), sorted);
    stand.check("za", "up", "s1", "critical").await;
    let passing = ["za/S0", "za/s2", "zb/S0", "zb/s1", "zb/s2"];
    assert_eq!(ids(&stand.get("/v1/health/service/web?passing").await), passing);
    stand.check("za", "on-node", "", "passing").await;
    let checks = stand.get("/v1/health/service/web").await.json()[1]["Checks"].clone();
    assert_eq!((&checks[0]["CheckID"], &checks[1]["CheckID"]), (&json!("on-node"), &json!("up")));
}

/// Contract: 110.
#[tokio::test(start_paused = true)]
async fn passing_requires_all_checks() {
    let stand = Stand::new();
    for (node, id) in [("n1", "a"), ("n1", "b"), ("n2", "c")] {
        stand.serve(node, id, "web").await;
    }
    stand.check("n1", "disk", "", "warning").await;
    for (query, count) in
        [("passing", 1), ("passing=1", 1), ("passing=true", 1), ("passing=0", 3), ("passing=false", 3)]
    {
        let found = stand.get(&format!("/v1/health/service/web?{query}")).await;
        assert_eq!(ids(&found).len(), count, "{query}");
    }
    for path in ["service", "connect", "ingress"] {
        let refused = stand.get(&format!("/v1/health/{path}/web?passing=x")).await;
        refused.is(400, "Invalid value for ?passing");
    }
}

/// Contract: 111.
#[tokio::test(start_paused = true)]
async fn all_tags_and_metadata_must_match() {
    let stand = Stand::new();
    let service = json!({"Service": "web", "Tags": ["a", "B"]});
    stand.enter(json!({"Node": "n1", "NodeMeta": {"x": "1", "y": ""}, "Service": service})).await;
    for (query, count) in [
        ("tag=A&tag=b", 1),
        ("tag=a&tag=c", 0),
        ("tag=", 0),
        ("node-meta=x:1&node-meta=y", 1),
        ("node-meta=x:1&node-meta=y:2", 0),
        ("node-meta=x", 0),
    ] {
        for kind in ["health", "catalog"] {
            let found = stand.get(&format!("/v1/{kind}/service/web?{query}")).await;
            assert_eq!(ids(&found).len(), count, "{kind} {query}");
        }
    }
    stand.check("n1", "up", "web", "warning").await;
    stand
        .enter(json!({"Node": "n2", "NodeMeta": {"x": "2"}, "Service": {"Service": "web", "Tags": ["c"]}}))
        .await;
    stand.check("N2", "up", "web", "warning").await;
    stand.serve("n3", "db", "db").await;
    for (query, nodes, services) in [
        ("", vec!["n1", "n2"], json!({"web": ["B", "a", "c"], "db": []})),
        ("node-meta=x:1", vec!["n1"], json!({"web": ["B", "a"]})),
        ("node-meta=x:1&node-meta=y", vec!["n1"], json!({"web": ["B", "a"]})),
        ("node-meta=x:2", vec!["n2"], json!({"web": ["c"]})),
        ("node-meta=x:2&filter=c+in+ServiceTags", vec![], json!({"web": ["c"]})),
        ("node-meta=x:1&node-meta=x:2", vec![], json!({})),
        ("node-meta=z", vec![], json!({})),
    ] {
        let found = stand.get(&format!("/v1/catalog/services?{query}")).await;
        assert_eq!(found.json(), services, "{query}");
        if query.contains("filter") {
            continue;
        }
        for path in ["checks/web", "state/warning"] {
            let found = stand.get(&format!("/v1/health/{path}?{query}")).await.json();
            let found = found.as_array().unwrap().iter();
            let found: Vec<_> =
                found.filter_map(|check| check["Node"].as_str()).map(str::to_lowercase).collect();
            assert_eq!(found, nodes, "{path} {query}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn node_metadata_change_wakes_watch() {
    let stand = Stand::new();
    stand.serve("n1", "web", "web").await;
    stand.check("n1", "up", "web", "passing").await;
    for (number, path) in
        ["health/checks/web", "health/state/any", "catalog/services"].into_iter().enumerate()
    {
        let path = format!("/v1/{path}?node-meta=x:{number}");
        let known = stand.get(&path).await;
        let is_empty = |reply: &Reply| ["[]", "{}"].contains(&reply.text());
        assert!(is_empty(&known), "{known:?}");
        let change = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stand.put("/v1/kv/k", "v").await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            stand.enter(json!({"Node": "n1", "NodeMeta": {"x": number.to_string()}})).await;
        };
        let ((reply, after), ()) = tokio::join!(stand.watch(&path, known.index()), change);
        assert_eq!((is_empty(&reply), after), (false, Duration::from_secs(2)), "{path}");
        // Each change of the services, too; nothing else.
        let change = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stand.check("n1", "up", "web", if number == 0 { "warning" } else { "critical" }).await;
            let tags = json!({"ID": "web", "Service": "web", "Tags": [number.to_string()]});
            stand.enter(json!({"Node": "n1", "SkipNodeUpdate": true, "Service": tags})).await;
        };
        let ((_, after), ()) = tokio::join!(stand.watch(&path, reply.index()), change);
        assert_eq!(after, Duration::from_secs(1), "{path}");
        let (_, after) = stand.watch(&path, stand.index(&path).await).await;
        assert!(after >= Duration::from_secs(10), "{path}");
    }
}

/// Contract: 112.
#[tokio::test(start_paused = true)]
async fn empty_fields_match_consul() {
    let stand = Stand::new();
    stand.serve("n1", "web", "web").await;
    stand.check("n1", "up", "web", "passing").await;
    let health = stand.get("/v1/health/service/web").await.json()[0].clone();
    assert_eq!((&health["Service"]["Meta"], &health["Service"]["Tags"]), (&json!(null), &json!([])));
    assert_eq!(health["Checks"][0]["ServiceTags"], json!([]));
    let row = stand.get("/v1/catalog/service/web").await.json()[0].clone();
    assert_eq!((&row["ServiceMeta"], &row["ServiceTags"]), (&json!({}), &json!([])));
    assert_eq!(stand.get("/v1/catalog/services").await.json()["web"], json!([]));
}

/// Contract: 113.
#[tokio::test(start_paused = true)]
async fn parameters_without_effect_accepted() {
    let stand = Stand::new();
    stand.serve("n1", "web", "web").await;
    for path in ["/v1/health/service/web", "/v1/catalog/service/web"] {
        for query in ["near=_agent", "near=nosuch", "merge-central-config"] {
            assert_eq!(ids(&stand.get(&format!("{path}?{query}")).await), ["n1/web"]);
        }
        stand.get(&format!("{path}?peer=x")).await.is(200, "[]");
        for _ in 0..2 {
            assert!(stand.get(&format!("{path}?cached")).await.header("x-cache").is_some());
        }
    }
    for path in ["catalog/nodes", "health/node/n1", "health/checks/web", "health/state/any"] {
        stand.get(&format!("/v1/{path}?peer=x")).await.is(200, "[]");
    }
    stand.get("/v1/catalog/services?peer=x").await.is(200, "{}");
    stand.get("/v1/catalog/node/n1?peer=x").await.is(200, "null");
}

/// Contract: 114.
#[tokio::test(start_paused = true)]
async fn service_index_ignores_unrelated_changes() {
    let stand = Stand::new();
    let first = stand.serve("n1", "a", "a").await;
    let path = "/v1/health/service/a";
    stand.serve("n2", "b", "b").await;
    stand.check("n2", "up", "b", "critical").await;
    stand.put("/v1/kv/k", "v").await;
    stand.session("{}").await;
    assert_eq!(stand.index(path).await, first);
    let mut known = first;
    for change in ["check", "node check", "address"] {
        match change {
            "check" => stand.check("n1", "up", "a", "passing").await,
            "node check" => stand.check("n1", "disk", "", "warning").await,
            _ => stand.enter(json!({"Node": "n1", "Address": "10.0.0.9"})).await,
        }
        let (health, catalog) = (stand.index(path).await, stand.index("/v1/catalog/service/a").await);
        assert!(health > known, "{change}");
        assert_eq!(health, catalog);
        known = health;
    }
}

/// Contract: 115.
#[tokio::test(start_paused = true)]
async fn last_instance_removal_wakes_watch() {
    let stand = Stand::new();
    let path = "/v1/health/service/a";
    let known = stand.serve("n1", "a", "a").await;
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stand.serve("n2", "b", "b").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        stand.leave(json!({"Node": "n1", "ServiceID": "a"})).await;
    };
    let ((reply, after), ()) = tokio::join!(stand.watch(path, known), change);
    reply.is(200, "[]");
    assert_eq!(after, Duration::from_secs(2));
    let removal = reply.index();
    assert!(removal > known);
    stand.serve("n2", "c", "c").await;
    assert_eq!(stand.index(path).await, removal);
}

/// Contract: 116.
#[tokio::test(start_paused = true)]
async fn watch_wakes_when_service_appears() {
    let stand = Stand::new();
    let path = "/v1/catalog/service/late";
    let known = stand.index(path).await;
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stand.serve("n1", "b", "b").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        stand.serve("n1", "late", "Late").await;
    };
    let ((reply, after), ()) = tokio::join!(stand.watch(path, known), change);
    assert_eq!((ids(&reply), after), (vec!["n1/late".to_owned()], Duration::from_secs(2)));
}

/// Contract: 117.
#[tokio::test(start_paused = true)]
async fn service_list_watch_ignores_checks() {
    let stand = Stand::new();
    stand.serve("n1", "a", "a").await;
    let path = "/v1/catalog/services";
    let known = stand.index(path).await;
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stand.check("n1", "up", "a", "critical").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        stand.enter(json!({"Node": "n1", "Service": {"ID": "a", "Service": "a", "Tags": ["z", "b"]}})).await;
    };
    let ((reply, after), ()) = tokio::join!(stand.watch(path, known), change);
    assert_eq!((reply.json(), after), (json!({"a": ["b", "z"]}), Duration::from_secs(2)));
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stand.serve("n1", "new", "new").await;
    };
    let ((_, after), ()) = tokio::join!(stand.watch(path, reply.index()), change);
    assert_eq!(after, Duration::from_secs(1));
}

/// Contract: 122.
#[tokio::test(start_paused = true)]
async fn unknown_check_state_rejected() {
    let stand = Stand::new();
    stand.check("n1", "up", "", "critical").await;
    // Unlike Consul, which stores every word: only a known one is sure to end sessions.
    let weird = json!({"Node": "n1", "Address": "10.0.0.1", "Check": {"CheckID": "up", "Status": "weird"}});
    let refused = stand.put("/v1/catalog/register", &weird.to_string()).await;
    refused.is(400, "Request decode failed: Invalid check status: 'weird': use passing, warning or critical");
    stand.get("/v1/health/state/nonsense").await.is(200, "[]");
    assert_eq!(stand.get("/v1/health/state/critical").await.json()[0]["CheckID"], "up");
}
