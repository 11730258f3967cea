//! `?filter=` of each endpoint. The language itself is tested beside its parser.

use super::{Reply, Stand};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Duration, Instant};

const PREFIX: &str = "Failed to create boolean expression evaluator: ";

impl Stand {
    async fn filtered(&self, path: &str, filter: &str) -> Reply {
        self.get(&format!("{path}?filter={}", encoded(filter))).await
    }

    /// Returns the text of the error, without its prefix.
    async fn filter_error(&self, path: &str, filter: &str) -> String {
        let refused = self.filtered(path, filter).await;
        assert_eq!(refused.status, 500, "{path} {filter}: {refused:?}");
        let text = refused.text().strip_prefix(PREFIX);
        text.unwrap_or_else(|| panic!("{path} {filter}: {refused:?}")).to_owned()
    }

    async fn add(&self, mut registration: Value) {
        registration.as_object_mut().unwrap().entry("Address").or_insert("10.0.0.1".into());
        self.put("/v1/catalog/register", &registration.to_string()).await.is(200, "true");
    }

    /// Two instances of `web`, one of `db`, on two nodes, with three checks.
    async fn fleet() -> Self {
        let stand = Self::new();
        let web = |id: &str, tag: &str, meta: Value| json!({"ID": id, "Service": "web", "Port": 80, "Tags": [tag], "Meta": meta});
        stand.add(json!({"Node": "n1", "NodeMeta": {"rack": "r1"}, "Service": web("w1", "prod", json!({"a-b": "1"}))})).await;
        stand.add(json!({"Node": "n2", "Service": web("w2", "canary", json!({}))})).await;
        let db = json!({"ID": "d1", "Service": "db", "Port": 5432, "Tags": ["prod", "v1"]});
        stand.add(json!({"Node": "n2", "SkipNodeUpdate": true, "Service": db})).await;
        for (node, id, service, status) in
            [("n1", "c1", "w1", "critical"), ("n1", "c2", "w1", "passing"), ("n2", "c3", "w2", "passing")]
        {
            let check = json!({"CheckID": id, "ServiceID": service, "Status": status});
            stand.add(json!({"Node": node, "SkipNodeUpdate": true, "Check": check})).await;
        }
        stand
    }
}

fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'(' | b'.' | b'=' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => encoded.push(byte.into()),
            b' ' => encoded.push('+'),
            _ => write!(encoded, "%{byte:02X}").unwrap(),
        }
    }
    encoded
}

/// Returns a field of each row: `Node.Node` is that of the field `Node`.
fn column(reply: &Reply, field: &str) -> Vec<String> {
    assert_eq!(reply.status, 200, "{reply:?}");
    let rows = reply.json();
    let value = |row: &Value| {
        let value = field.split('.').fold(row, |value, name| &value[name]);
        value.as_str().unwrap_or_else(|| panic!("{field}: {row}")).to_owned()
    };
    match &rows {
        Value::Object(rows) => rows.values().map(value).collect(),
        rows => rows.as_array().unwrap().iter().map(value).collect(),
    }
}

/// Contract: 84.
#[tokio::test(start_paused = true)]
async fn agent_services_filtered() {
    let stand = Stand::new();
    for service in [json!({"Name": "web", "Port": 80}), json!({"Name": "web", "ID": "w2", "Port": 81})] {
        stand.put("/v1/agent/service/register", &service.to_string()).await.is(200, "");
    }
    let path = "/v1/agent/services";
    assert_eq!(column(&stand.filtered(path, "Service == web and Port == 80").await, "ID"), ["web"]);
    assert_eq!(column(&stand.filtered(path, "Service != consul").await, "ID"), ["w2", "web"]);
    assert_eq!(stand.filter_error(path, "Foo == v").await, r#"Selector "Foo" is not valid"#);
    stand.filtered(path, "Service == nosuch").await.is(200, "{}");
}

/// Contract: 118.
#[tokio::test(start_paused = true)]
async fn every_list_filtered() {
    let stand = Stand::fleet().await;
    for (path, filter, field, expected) in [
        (
            "catalog/service/web",
            r#""prod" in ServiceTags and not ServiceMeta["a-b"] == 2"#,
            "ServiceID",
            "w1",
        ),
        ("catalog/service/web", r#""prod" in ServiceTags and not ServiceMeta["a-b"] == 1"#, "ServiceID", ""),
        ("catalog/service/web", r#"ServiceName matches "^w""#, "ServiceID", "w1 w2"),
        ("catalog/service/web", "ServicePort == 81 or Node == n2 and NodeMeta is empty", "ServiceID", "w2"),
        ("catalog/service/web", "Node == n1 or Node == n2 and ServicePort == 81", "ServiceID", "w1"),
        ("catalog/connect/web", "ServiceName == web", "ServiceID", ""),
        ("catalog/nodes", "Meta.rack == r1", "Node", "n1"),
        (
            "catalog/nodes",
            r#"Node matches "^n[0-9]$" and Datacenter == dc1 and TaggedAddresses is empty"#,
            "Node",
            "n1 n2",
        ),
        ("health/service/web", "Checks.Status == critical", "Service.ID", "w1"),
        ("health/service/web", "Checks.Status != critical", "Service.ID", "w1 w2"),
        (
            "health/service/web",
            "Node.Meta.rack == r1 and Service.Proxy.Upstreams is empty",
            "Service.ID",
            "w1",
        ),
        ("health/connect/web", "Service.Connect.Native == false", "Service.ID", ""),
        ("health/ingress/web", "Service.Kind == \"\"", "Service.ID", ""),
        ("health/checks/web", "Status == passing", "CheckID", "c2 c3"),
        ("health/node/n1", "Status != passing and web in ServiceName", "CheckID", "c1"),
        ("health/state/any", "prod in ServiceTags", "CheckID", "c1 c2"),
        ("health/state/passing", "Node == n1", "CheckID", "c2"),
    ] {
        let found = column(&stand.filtered(&format!("/v1/{path}"), filter).await, field);
        assert_eq!(found.join(" "), expected, "{path} {filter}");
    }
    let check = json!({"Name": "disk", "TTL": "1h", "Status": "passing"});
    stand.put("/v1/agent/check/register", &check.to_string()).await.is(200, "");
    assert_eq!(column(&stand.filtered("/v1/agent/checks", "Name == disk").await, "CheckID"), ["disk"]);
    stand.filtered("/v1/agent/checks", "Status == critical").await.is(200, "{}");
    let passing = stand.get("/v1/health/service/web?passing&filter=Checks.Status==passing").await;
    assert_eq!(column(&passing, "Service.ID"), ["w2"]);
}

/// Contract: 120.
#[tokio::test(start_paused = true)]
async fn invalid_filter_fails_without_rows() {
    let stand = Stand::new();
    for (filter, text) in [
        (
            "ServicePort == v",
            r#"Failed to coerce value "v" for selector "ServicePort": strconv.ParseInt: parsing "v": invalid syntax"#,
        ),
        ("ServicePort matches v", r#"Invalid match operator "Matches" for selector "ServicePort""#),
        ("(a == b", r#"1:8 (7): rule "grouping": Unmatched parentheses"#),
        ("CreateIndex == 1", r#"Selector "CreateIndex" is not valid"#),
        (
            "ServiceProxy.Upstreams.DestinationName is empty",
            r#"Invalid match operator "Is Empty" for selector "ServiceProxy.Upstreams.DestinationName""#,
        ),
    ] {
        assert_eq!(stand.filter_error("/v1/catalog/service/nosuch", filter).await, text);
    }
    for path in [
        "agent/services",
        "agent/checks",
        "catalog/nodes",
        "catalog/services",
        "catalog/service/x",
        "catalog/connect/x",
        "catalog/node/x",
        "catalog/node-services/x",
        "health/node/x",
        "health/checks/x",
        "health/service/x",
        "health/connect/x",
        "health/ingress/x",
        "health/state/any",
    ] {
        let error = stand.filter_error(&format!("/v1/{path}"), "Nonsense == 1").await;
        assert_eq!(error, r#"Selector "Nonsense" is not valid"#, "{path}");
    }
    let members = stand.filter_error("/v1/agent/members", "Name == x").await;
    assert!(members.starts_with("members cannot be filtered"), "{members}");
}

/// Contract: 121.
#[tokio::test(start_paused = true)]
async fn filtered_services_keep_selected_tags() {
    let stand = Stand::fleet().await;
    let all = stand.get("/v1/catalog/services").await;
    for (filter, expected) in [
        (r#""prod" in ServiceTags"#, r#"{"db":["prod","v1"],"web":["prod"]}"#),
        ("Node == n2", r#"{"db":["prod","v1"],"web":["canary"]}"#),
        ("ServiceName == nosuch", "{}"),
    ] {
        let found = stand.filtered("/v1/catalog/services", filter).await;
        found.is(200, expected);
        assert_eq!(found.index(), all.index(), "a filter changes no index");
    }
    let node = stand.filtered("/v1/catalog/node/n2", "Service == db").await.json();
    assert_eq!(node["Node"]["Node"], "n2");
    assert_eq!(node["Services"].as_object().unwrap().keys().collect::<Vec<_>>(), ["d1"]);
    let none = stand.filtered("/v1/catalog/node-services/n2", "Service == nosuch").await.json();
    assert_eq!((&none["Node"]["Node"], &none["Services"]), (&json!("n2"), &json!([])));
    stand.filtered("/v1/catalog/node/nosuch", "Service == db").await.is(200, "null");
}

#[tokio::test(start_paused = true)]
async fn filtered_blocking_query_wakes() {
    let stand = Stand::fleet().await;
    let path = "/v1/health/service/web?filter=Service.ID==w9";
    let first = stand.get(path).await;
    first.is(200, "[]");
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stand.add(json!({"Node": "n3", "Service": {"ID": "w9", "Service": "web"}})).await;
    };
    let blocked = format!("{path}&wait=10s&index={}", first.index());
    let (found, ()) = tokio::join!(stand.get(&blocked), change);
    assert_eq!(column(&found, "Service.ID"), ["w9"]);
    assert!(found.index() > first.index());
}

#[tokio::test]
async fn hostile_filters_are_answered_soon() {
    let stand = Stand::fleet().await;
    let limited = crate::metrics::LIMITS.with_label_values(&["filter"]);
    let before = limited.get();
    let started = Instant::now();
    let deep = stand.filter_error("/v1/catalog/service/web", &"(".repeat(60_000)).await;
    assert!(deep.starts_with("the filter nests deeper than "), "{deep}");
    assert!(limited.get() > before);
    for filter in ["not ".repeat(15_000), "a==a and ".repeat(6_000), "Node.".repeat(12_000)] {
        stand.filter_error("/v1/catalog/service/web", &filter).await;
    }
    for pattern in ["(a+)+$", "(a|a)*$", "(.*a){12}", r"(\w+\s?)*$", "(a{90}){90}", &"(".repeat(1_000)] {
        let found =
            stand.filtered("/v1/catalog/service/web", &format!("ServiceName matches `{pattern}`")).await;
        assert!([200, 500].contains(&found.status.as_u16()), "{found:?}");
    }
    // It takes some 10 ms on an idle machine, and would take hours with backtracking.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}
