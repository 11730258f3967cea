//! The agent's own services by the API, as the contract with Consul's clients requires. Time only
//! advances during sleeps.

use super::{Reply, Stand};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

impl Stand {
    async fn register(&self, service: &Value) {
        self.put("/v1/agent/service/register", &service.to_string()).await.is(200, "");
    }

    async fn register_fails(&self, service: &Value, status: u16, text: &str) {
        let refused = self.put("/v1/agent/service/register", &service.to_string()).await;
        assert_eq!(refused.status, status, "{service}: {refused:?}");
        assert!(refused.text().contains(text), "{service}: {}", refused.text());
        let (services, checks) = (self.get("/v1/agent/services").await, self.get("/v1/agent/checks").await);
        assert_eq!((services.json(), checks.json()), (json!({}), json!({})), "it leaves no trace");
    }

    /// Returns a field of a service, as the agent shows it.
    async fn service(&self, id: &str) -> Value {
        self.get(&format!("/v1/agent/service/{id}")).await.json()
    }

    async fn own_check(&self, id: &str) -> Value {
        self.get("/v1/agent/checks").await.json()[id].clone()
    }
}

fn web() -> Value {
    json!({"ID": "web-1", "Name": "web", "Port": 80, "Check": {"TTL": "1h", "Status": "passing"}})
}

/// Contract: 71.
#[tokio::test(start_paused = true)]
async fn undecodable_body_rejected() {
    let stand = Stand::new();
    stand.register_fails(&json!({}), 400, "Missing service name").await;
    stand.register_fails(&json!({"Name": "x", "Foo": 1}), 400, "unknown field \"Foo\"").await;
    stand
        .register_fails(&json!({"Name": "x", "Port": "80"}), 400, "Request decode failed: json: cannot")
        .await;
    let deep = json!({"Name": "x", "Check": {"TTL": "1s", "check_id": "c"}});
    stand.register_fails(&deep, 400, "unknown field \"check_id\"").await;
    stand.register_fails(&json!({"Name": "x", "Namespace": "n"}), 400, "unknown field").await;
    stand.put("/v1/agent/service/register", "").await.is(400, "Request decode failed: EOF");
    assert_eq!(stand.call("POST", "/v1/agent/service/register", "{}").await.status, 405);
}

/// Contract: 72.
#[tokio::test(start_paused = true)]
async fn absent_fields_use_defaults() {
    let stand = Stand::new();
    stand.register(&json!({"name": "x", "tags": null, "check": null})).await;
    let shown = stand.get("/v1/agent/services").await.json();
    assert_eq!(
        shown,
        json!({"x": {"ID": "x", "Service": "x", "Tags": [], "Meta": {}, "Port": 0, "Address": "",
            "Weights": {"Passing": 1, "Warning": 1}, "EnableTagOverride": false, "Datacenter": "dc1"}})
    );
}

/// Contract: 73.
#[tokio::test(start_paused = true)]
async fn invalid_values_rejected() {
    let stand = Stand::new();
    for address in ["0.0.0.0", "::"] {
        stand.register_fails(&json!({"Name": "x", "Address": address}), 400, "Invalid service address").await;
    }
    for (key, text) in [
        ("a b", "Key contains invalid characters"),
        ("", "Key cannot be blank"),
        ("consul-x", "Key prefix 'consul-' is reserved"),
    ] {
        stand.register_fails(&json!({"Name": "x", "Meta": {key: "v"}}), 400, text).await;
    }
    let long = json!({"Name": "x", "Meta": {"k": "v".repeat(513)}});
    stand.register_fails(&long, 400, "Value is too long (limit: 512 characters)").await;
    for (weights, text) in [
        (json!({"Passing": 0}), "Invalid Weights: Passing must be greater than 0"),
        (json!({"Passing": 1, "Warning": -1}), "Warning must be greater or equal than 0"),
        (json!({"Passing": 65536}), "DNS Weight must be between 0 and 65535"),
    ] {
        stand.register_fails(&json!({"Name": "x", "Weights": weights}), 400, text).await;
    }
    for port in [-1, 65_536] {
        stand.register_fails(&json!({"Name": "x", "Port": port}), 400, "Port").await;
    }
}

/// Contract: 74.
#[tokio::test(start_paused = true)]
async fn ip_address_fills_tagged_addresses() {
    let stand = Stand::new();
    let wrong = json!({"Name": "x", "TaggedAddresses": {"lan_ipv4": {"Address": "foo"}}});
    stand.register_fails(&wrong, 500, "\"lan_ipv4\" must be a valid ipv4 address").await;
    stand.register(&json!({"Name": "x", "Address": "10.0.0.1", "Port": 80})).await;
    let address = json!({"Address": "10.0.0.1", "Port": 80});
    assert_eq!(
        stand.service("x").await["TaggedAddresses"],
        json!({"lan_ipv4": address, "wan_ipv4": address})
    );
    stand.register(&json!({"Name": "y", "Address": "host.example"})).await;
    assert_eq!(stand.service("y").await["TaggedAddresses"], Value::Null);
}

/// Contract: 75.
#[tokio::test(start_paused = true)]
async fn unnamed_checks_are_numbered() {
    let stand = Stand::new();
    stand
        .register_fails(
            &json!({"Name": "x", "Check": {"TTL": "1s", "Status": "bogus"}}),
            400,
            "Status for checks must 'passing', 'warning', 'critical'",
        )
        .await;
    let two = json!({"Name": "x", "Checks": [{"TTL": "1h"}, {"TTL": "1h", "Status": "passing"}]});
    stand.register(&two).await;
    assert_eq!(stand.own_check("service:x:1").await["Status"], "critical");
    let second = stand.own_check("service:x:2").await;
    assert_eq!((&second["Status"], &second["Name"]), (&json!("passing"), &json!("Service 'x' check")));
    assert_eq!((&second["ServiceID"], &second["Interval"]), (&json!("x"), &json!("")));
    stand.register(&json!({"Name": "y", "Check": {"TTL": "1h"}, "Checks": []})).await;
    assert_eq!(stand.own_check("service:y").await["Status"], "critical");
}

/// Contract: 76.
#[tokio::test(start_paused = true)]
async fn reregistration_keeps_status_and_checks() {
    let stand = Stand::new();
    let checks = json!([{"CheckID": "one", "TTL": "1h"}, {"CheckID": "two", "TTL": "1h"}]);
    stand.register(&json!({"Name": "x", "Checks": checks})).await;
    stand.put("/v1/agent/check/warn/one?note=slow", "").await.is(200, "");
    let again = json!({"Name": "x", "Check": {"CheckID": "one", "TTL": "1h", "Status": "critical"}});
    stand.register(&again).await;
    let one = stand.own_check("one").await;
    assert_eq!((&one["Status"], &one["Output"]), (&json!("warning"), &json!("slow")));
    for (parameter, stays) in [("=1", true), ("=true", false)] {
        let uri = format!("/v1/agent/service/register?replace-existing-checks{parameter}");
        stand.put(&uri, &again.to_string()).await.is(200, "");
        assert_eq!(stand.own_check("two").await.is_object(), stays, "{parameter}");
    }
}

/// Contract: 77, 106.
#[tokio::test(start_paused = true)]
async fn only_change_moves_index_sessions_survive() {
    let stand = Stand::new();
    stand.register(&web()).await;
    let session =
        stand.session(r#"{"NodeChecks": ["serfHealth"], "ServiceChecks": [{"ID": "service:web-1"}]}"#).await;
    let index = async || stand.get("/v1/health/service/web").await.index();
    let before = index().await;
    stand.register(&web()).await;
    assert_eq!(index().await, before);
    stand.register(&json!({"ID": "web-1", "Name": "web", "Port": 81, "Check": {"TTL": "1h"}})).await;
    assert!(index().await > before);
    stand.put("/v1/agent/service/maintenance/web-1?enable=true", "").await.is(200, "");
    let lives = async || stand.get(&format!("/v1/session/info/{session}")).await.json() != json!([]);
    assert!(lives().await);
    stand.put("/v1/agent/service/deregister/web-1", "").await.is(200, "");
    assert!(!lives().await, "its check is gone");
}

/// Contract: 78, 79.
#[tokio::test(start_paused = true)]
async fn catalog_follows_registration_immediately() {
    let stand = Stand::new();
    for id in ["web-1", "scope/member"] {
        stand.register(&json!({"ID": id, "Name": "web", "Check": {"TTL": "1h", "Status": "passing"}})).await;
    }
    let shown = stand.get("/v1/health/service/web?passing").await.json();
    assert_eq!(shown.as_array().map(Vec::len), Some(2));
    for id in ["zz", "scope/member", "scope/member"] {
        stand.put(&format!("/v1/agent/service/deregister/{id}"), "").await.is(200, "");
    }
    stand.put("/v1/agent/service/deregister/web%2D1", "").await.is(200, "");
    assert_eq!(stand.get("/v1/health/service/web").await.json(), json!([]));
    assert_eq!(stand.get("/v1/agent/checks").await.json(), json!({}));
}

/// Contract: 80.
#[tokio::test(start_paused = true)]
async fn service_maintenance_is_critical_check() {
    let stand = Stand::new();
    stand.register(&web()).await;
    for (uri, status, text) in [
        ("", 400, "Missing service ID"),
        ("web-1", 400, "Missing value for enable"),
        ("web-1?enable=q", 400, "Invalid value for enable: \"q\""),
        ("zz?enable=true", 404, "No service registered with ID \"zz\""),
    ] {
        let refused = stand.put(&format!("/v1/agent/service/maintenance/{uri}"), "").await;
        assert_eq!(refused.status, status, "{uri}");
        assert!(refused.text().contains(text), "{uri}: {}", refused.text());
    }
    for _ in 0..2 {
        stand.put("/v1/agent/service/maintenance/web-1?enable=true&reason=disk", "").await.is(200, "");
    }
    let check = stand.own_check("_service_maintenance:web-1").await;
    assert_eq!((&check["Notes"], &check["Type"]), (&json!("disk"), &json!("maintenance")));
    assert_eq!((&check["Status"], &check["ServiceID"]), (&json!("critical"), &json!("web-1")));
    for _ in 0..2 {
        stand.put("/v1/agent/service/maintenance/web-1?enable=false", "").await.is(200, "");
    }
    assert_eq!(stand.own_check("_service_maintenance:web-1").await, Value::Null);
}

/// Contract: 81.
#[tokio::test(start_paused = true)]
async fn hash_query_wakes_on_change() {
    let stand = Stand::new();
    stand.get("/v1/agent/service/web-1").await.is(404, "unknown service ID: web-1");
    stand.register(&web()).await;
    let shown = stand.get("/v1/agent/service/web-1").await;
    let hash = shown.json()["ContentHash"].as_str().expect("a hash").to_owned();
    assert_eq!(shown.header("x-consul-contenthash"), Some(hash.as_str()));
    assert_eq!(shown.header("x-consul-index"), None);
    let wait = async |hash: &str, wait: &str| -> (Reply, Duration) {
        let begun = Instant::now();
        let reply = stand.get(&format!("/v1/agent/service/web-1?hash={hash}&wait={wait}")).await;
        (reply, begun.elapsed())
    };
    let (same, took) = wait(&hash, "1s").await;
    assert_eq!(same.json()["ContentHash"], json!(hash));
    assert!((1_000..1_100).contains(&took.as_millis()), "{took:?}");
    assert!(wait("other", "1m").await.1 < Duration::from_millis(200));
    let later = async |put: (&str, String)| {
        sleep(Duration::from_secs(1)).await;
        stand.put(put.0, &put.1).await.is(200, "");
    };
    let change =
        ("/v1/agent/service/register", json!({"ID": "web-1", "Name": "web", "Port": 81}).to_string());
    let ((changed, took), ()) = tokio::join!(wait(&hash, "1m"), later(change));
    assert_eq!(changed.json()["Port"], 81);
    assert!(took < Duration::from_millis(1_200), "{took:?}");
    let hash = changed.json()["ContentHash"].as_str().expect("a hash").to_owned();
    let deregistration = ("/v1/agent/service/deregister/web-1", String::new());
    let ((gone, _), ()) = tokio::join!(wait(&hash, "1m"), later(deregistration));
    assert_eq!(gone.status, 404);
}

/// Contract: 82.
#[tokio::test(start_paused = true)]
async fn service_health_as_status_code() {
    let stand = Stand::new();
    let health = async |status: u16, reason: &str| {
        let reply = stand.get("/v1/agent/health/service/id/web-1").await;
        assert_eq!((reply.status.as_u16(), reply.header("x-consul-reason")), (status, Some(reason)));
        reply.json()
    };
    let unknown = health(404, "ServiceId web-1 not found").await;
    assert_eq!(unknown, json!({"AggregatedStatus": "critical", "Service": null, "Checks": null}));
    stand.register(&json!({"ID": "web-1", "Name": "web"})).await;
    assert_eq!(health(200, "passing").await["Checks"], json!([]));
    stand.register(&web()).await;
    let shown = health(200, "passing").await;
    assert_eq!((&shown["Service"]["ID"], &shown["Checks"][0]["Type"]), (&json!("web-1"), &json!("")));
    stand.put("/v1/agent/check/warn/service:web-1", "").await.is(200, "");
    health(429, "warning").await;
    stand.put("/v1/agent/check/fail/service:web-1", "").await.is(200, "");
    health(503, "critical").await;
    stand.put("/v1/agent/check/pass/service:web-1", "").await.is(200, "");
    stand.put("/v1/agent/check/register", r#"{"Name": "node", "TTL": "1h"}"#).await.is(200, "");
    health(503, "critical").await;
    stand.put("/v1/agent/maintenance?enable=true", "").await.is(200, "");
    health(503, "maintenance").await;
    stand.get("/v1/agent/health/service/id/").await.is(400, "Missing serviceID");
}

/// Contract: 83.
#[tokio::test(start_paused = true)]
async fn name_health_is_worst_instance() {
    let stand = Stand::new();
    stand.get("/v1/agent/health/service/name/").await.is(400, "Missing service Name");
    let unknown = stand.get("/v1/agent/health/service/name/web").await;
    unknown.is(404, "[]");
    assert_eq!(unknown.header("x-consul-reason"), Some("ServiceName web Not Found"));
    for (path, text) in [("name/web", "ServiceName web Not Found"), ("id/x", "ServiceId x not found")] {
        stand.get(&format!("/v1/agent/health/service/{path}?format=text")).await.is(404, text);
    }
    stand.register(&web()).await;
    stand.register(&json!({"ID": "web-2", "Name": "web", "Check": {"TTL": "1h"}})).await;
    let shown = stand.get("/v1/agent/health/service/name/web").await;
    assert_eq!((shown.status.as_u16(), shown.json().as_array().map(Vec::len)), (503, Some(2)));
    stand.get("/v1/agent/health/service/name/web?format=text").await.is(503, "critical");
    stand.get("/v1/agent/health/service/id/web-1?format=text").await.is(200, "passing");
    let request =
        http::Request::get("/v1/agent/health/service/id/web-1").header("accept", "text/plain; q=0.5");
    stand.send(request.body(crate::http::Body::empty()).expect("a request")).await.is(200, "passing");
}

/// Contract: 96.
#[tokio::test(start_paused = true)]
async fn rejected_scripts_leave_no_service() {
    let stand = Stand::new();
    let script = json!({"Name": "x", "Check": {"Args": ["true"], "Interval": "10s"}});
    stand.register_fails(&script, 500, "Scripts are disabled on this agent from remote calls").await;
    for (kind, text) in [("OSService", "OSService"), ("DockerContainerID", "Docker")] {
        let other = json!({"Name": "x", "Check": {kind: "y", "Interval": "10s"}});
        stand.register_fails(&other, 500, text).await;
    }
}

/// Contract: 97.
#[tokio::test(start_paused = true)]
async fn invalid_check_definitions_rejected() {
    let stand = Stand::new();
    for (check, text) in [
        (json!({"TTL": "1s", "Interval": "1s"}), "Invalid check: Interval and TTL cannot both be specified"),
        (json!({"HTTP": "http://localhost"}), "Invalid check: Interval must be > 0 for Script, HTTP"),
        (json!({}), "Invalid check: TTL must be > 0 for TTL checks"),
        (json!({"Interval": "10s"}), "Invalid check: TTL must be > 0 for TTL checks"),
        (json!({"AliasService": "x", "Interval": "1s"}), "Invalid check: Interval cannot be set for Alias"),
        (json!({"AliasService": "x", "TTL": "1s"}), "Invalid check: TTL must be not be set for Alias checks"),
        (json!({"TTL": "1s", "OutputMaxSize": -1}), "Invalid check: MaxOutputMaxSize must be positive"),
        (
            json!({"TTL": "1s", "FailuresBeforeWarning": 2, "FailuresBeforeCritical": 1}),
            "Invalid check: FailuresBeforeWarning can't be higher than FailuresBeforeCritical",
        ),
        (
            json!({"TTL": "1s", "HTTP": "http://localhost"}),
            "Invalid check: Interval must be > 0 for Script, HTTP",
        ),
        (json!({"TTL": "ten"}), "Request decode failed: time: invalid duration \"ten\""),
        (
            json!({"TTL": "1s", "DeregisterCriticalServiceAfter": ""}),
            "Request decode failed: time: invalid duration \"\"",
        ),
        (json!({"TCP": "x:1", "Interval": "5"}), "time: missing unit in duration \"5\""),
    ] {
        stand.register_fails(&json!({"Name": "x", "Checks": [check]}), 400, text).await;
    }
    let shown = async |interval: Value| {
        let check = json!({"Name": "p", "UDP": "127.0.0.1:9", "Interval": interval});
        stand.put("/v1/agent/check/register", &check.to_string()).await.is(200, "");
        stand.own_check("p").await["Interval"].clone()
    };
    assert_eq!((shown(json!("100ms")).await, shown(json!(10)).await), (json!("1s"), json!("1s")));
    assert_eq!(shown(json!("90s")).await, json!("1m30s"));
}

/// Contract: 85, 86.
#[tokio::test(start_paused = true)]
async fn anti_entropy_restores_own_node() {
    let stand = Stand::new();
    stand.register(&json!({"Name": "x", "Tags": ["a"], "EnableTagOverride": true})).await;
    stand.register(&json!({"Name": "y", "Tags": ["a"]})).await;
    let foreign = |name: &str| {
        json!({"Node": "node-one", "SkipNodeUpdate": true,
            "Service": {"ID": name, "Service": name, "Tags": ["b"], "EnableTagOverride": name == "x"}})
    };
    for name in ["x", "y", "foreign"] {
        stand.put("/v1/catalog/register", &foreign(name).to_string()).await.is(200, "true");
    }
    sleep(Duration::from_secs(130)).await;
    let catalog = stand.get("/v1/catalog/services").await.json();
    assert_eq!(catalog, json!({"x": ["b"], "y": ["a"]}));
    assert_eq!(stand.service("x").await["Tags"], json!(["b"]));
    stand.put("/v1/catalog/deregister", r#"{"Node": "node-one", "ServiceID": "y"}"#).await.is(200, "true");
    sleep(Duration::from_secs(130)).await;
    assert_eq!(stand.get("/v1/catalog/services").await.json(), catalog);
}

/// Contract: 105.
#[tokio::test(start_paused = true)]
async fn session_accepts_node_and_service_checks() {
    let stand = Stand::new();
    let check = json!({"CheckID": "c", "TTL": "1h", "Status": "passing"});
    stand.register(&json!({"Name": "x", "Check": check})).await;
    stand.session(r#"{"NodeChecks": [], "ServiceChecks": [{"ID": "c", "Namespace": "foo"}]}"#).await;
    stand.session(r#"{"NodeChecks": ["c"]}"#).await;
    stand.put("/v1/agent/check/fail/c", "").await.is(200, "");
    for wishes in [r#"{"NodeChecks": ["c"]}"#, r#"{"NodeChecks": [], "ServiceChecks": [{"ID": "c"}]}"#] {
        stand.put("/v1/session/create", wishes).await.is(500, "Check 'c' is in critical state");
    }
    assert_eq!(stand.get("/v1/session/list").await.json(), json!([]), "both ended with the check");
}

#[tokio::test(start_paused = true)]
async fn service_definition_error_texts() {
    let stand = Stand::new();
    let many: serde_json::Map<_, _> = (0..65).map(|key| (format!("k{key}"), json!("v"))).collect();
    let pair = "Invalid Service Meta: Couldn't load metadata pair ('";
    let proxy = |name: &str| json!({"Kind": "connect-proxy", "Proxy": {"DestinationServiceName": name}});
    for (fields, status, text) in [
        (
            json!({"Meta": many}),
            400,
            "Invalid Service Meta: Node metadata cannot contain more than 64 key/value pairs",
        ),
        (json!({"Meta": {"k".repeat(129): "v"}}), 400, "Key is too long (limit: 128 characters)"),
        (json!({"Meta": {"a b": "v"}}), 400, &format!("{pair}a b', 'v'): Key contains invalid characters")),
        (json!({"TaggedAddresses": {"wan_ipv4": {"Address": "::1"}}}), 500, "a valid ipv4 address"),
        (json!({"TaggedAddresses": {"lan_ipv6": {"Address": "10.0.0.1"}}}), 500, "a valid ipv6 address"),
        (json!({"TaggedAddresses": {"lan": {"Foo": 1}}}), 400, "unknown field \"Foo\""),
        (json!({"Partition": "p"}), 400, "json: unknown field \"Partition\""),
        (json!({"Locality": {"City": "x"}}), 400, "json: unknown field \"City\""),
        (json!({"Locality": {"Zone": 1}}), 400, "Locality.Zone of type string"),
        (json!({"SocketPath": 1}), 400, "ServiceDefinition.SocketPath of type string"),
        (json!({"Proxy": {"Foo": 1}}), 400, "json: unknown field \"Foo\""),
        (
            proxy(" "),
            400,
            "Validation failed: 1 error occurred:\n\t* Proxy.DestinationServiceName must be non-empty for \
             Connect proxy services\n\n",
        ),
        (proxy("*"), 400, "must not be a wildcard for Connect proxy services"),
        (
            json!({"Connect": {"Native": true}}),
            400,
            "* Port or SocketPath must be set for a Connect native service.",
        ),
        (
            json!({"Kind": "mesh-gateway", "Proxy": {"Upstreams": [{"DestinationName": "x"}]}}),
            400,
            "Validation failed: 2 errors occurred:\n\t* Port must be non-zero for a mesh-gateway\n\t* The \
             Proxy.Upstreams configuration is invalid for a mesh-gateway\n\n",
        ),
    ] {
        let mut service = fields;
        service["Name"] = "x".into();
        stand.register_fails(&service, status, text).await;
    }
}

#[tokio::test(start_paused = true)]
async fn sidecar_error_texts() {
    let stand = Stand::new();
    for (sidecar, status, text) in [
        (json!({"ID": "y"}), 400, "* A SidecarService cannot specify an ID as this is managed by the agent"),
        (
            json!({"Connect": {"SidecarService": {}}}),
            400,
            "Validation failed: 1 error occurred:\n\t* A SidecarService cannot have a nested SidecarService",
        ),
        (json!({"Foo": 1}), 400, "json: unknown field \"Foo\""),
        (json!({"Meta": {"": "v"}}), 400, "Invalid SidecarService: Couldn't load metadata pair ('', 'v')"),
        (json!({"Check": {"TCP": "x:1"}}), 400, "Invalid check in sidecar_service: Interval must be > 0"),
        (json!({"Check": {"TTL": "1s", "Status": "x"}}), 400, "Status for checks must 'passing'"),
        (json!({"Check": {"Args": ["true"], "Interval": "1s"}}), 500, "Scripts are disabled on this agent"),
        (json!({"Kind": "ingress-gateway"}), 400, "Failed Validation: "),
        (json!(7), 400, "ServiceDefinition"),
    ] {
        let service = json!({"Name": "x", "Port": 80, "Connect": {"SidecarService": sidecar}});
        stand.register_fails(&service, status, text).await;
    }
}

#[tokio::test(start_paused = true)]
async fn check_and_deregistration_error_texts() {
    let stand = Stand::new();
    for (path, body, status, text) in [
        ("check/register", r#"{"TTL": "1s"}"#, 400, "Missing check name"),
        ("check/register", r#"{"Name": "c", "TTL": "1s", "Status": "x"}"#, 400, "Bad check status"),
        (
            "check/register",
            r#"{"Name": "c", "TTL": "1s", "ServiceID": "y"}"#,
            500,
            "ServiceID \"y\" does not exist: register the service with this agent first, or omit its ID for a \
             check of the node",
        ),
        ("check/update/c", r#"{"Status": "x"}"#, 400, "Invalid check status: 'x'"),
        ("check/deregister/", "", 500, "CheckID missing"),
        ("service/deregister/", "", 500, "ServiceID missing"),
    ] {
        let refused = stand.put(&format!("/v1/agent/{path}"), body).await;
        assert_eq!(refused.status, status, "{path} {body}");
        assert!(refused.text().contains(text), "{path} {body}: {}", refused.text());
    }
}

#[tokio::test(start_paused = true)]
async fn sidecar_defaults_and_service_lookup() {
    let stand = Stand::new();
    let web = json!({"ID": "web-1", "Name": "web", "Port": 80, "Tags": ["a"], "Meta": {"m": "1"},
        "Address": "10.0.0.1", "Connect": {"SidecarService": {}}});
    stand.register(&web).await;
    let address = json!({"Address": "10.0.0.1", "Port": 21000});
    let shown = stand.service("web-1-sidecar-proxy").await;
    let hash = shown["ContentHash"].clone();
    assert_eq!(
        shown,
        json!({"Kind": "connect-proxy", "ID": "web-1-sidecar-proxy", "Service": "web-sidecar-proxy",
            "Tags": ["a"], "Meta": {"m": "1"}, "Port": 21000, "Address": "10.0.0.1",
            "TaggedAddresses": {"lan_ipv4": address, "wan_ipv4": address},
            "Weights": {"Passing": 1, "Warning": 1}, "EnableTagOverride": false, "ContentHash": hash,
            "Proxy": {"DestinationServiceName": "web", "DestinationServiceID": "web-1",
                "LocalServiceAddress": "127.0.0.1", "LocalServicePort": 80,
                "Mode": "", "MeshGateway": {}, "Expose": {}},
            "Datacenter": "dc1"})
    );
    assert_eq!(
        stand.service("web-1").await.get("Connect"),
        None,
        "the definition is not part of the service"
    );
    let listening = stand.own_check("service:web-1-sidecar-proxy:1").await;
    assert_eq!(
        (&listening["Name"], &listening["Type"]),
        (&json!("Connect Sidecar Listening"), &json!("tcp"))
    );
    let alias = stand.own_check("service:web-1-sidecar-proxy:2").await;
    assert_eq!((&alias["Name"], &alias["Type"]), (&json!("Connect Sidecar Aliasing web-1"), &json!("alias")));
    for kind in ["health", "catalog"] {
        let found = stand.get(&format!("/v1/{kind}/connect/web")).await.json();
        let id = found[0]["Service"]["ID"].as_str().or(found[0]["ServiceID"].as_str());
        assert_eq!(id, Some("web-1-sidecar-proxy"), "{found}");
    }

    let own = json!({"Name": "db", "SocketPath": "/run/db", "Connect": {"sidecar_service": {
        "Name": "envoy", "Port": 9000, "Tags": ["b"], "Check": {"TTL": "1h"},
        "Proxy": {"mesh_gateway": {"Mode": "local"}}}}});
    stand.register(&own).await;
    let shown = stand.service("db-sidecar-proxy").await;
    assert_eq!((&shown["Service"], &shown["Port"]), (&json!("envoy"), &json!(9000)));
    assert_eq!(
        (&shown["Tags"], &shown["Proxy"]["LocalServiceSocketPath"]),
        (&json!(["b"]), &json!("/run/db"))
    );
    assert_eq!(shown["Proxy"]["MeshGateway"], json!({"Mode": "local"}));
    assert_eq!(stand.own_check("service:db-sidecar-proxy").await["Type"], "ttl");
    assert_eq!(stand.get("/v1/health/connect/db").await.json()[0]["Service"]["Service"], "envoy");

    for id in ["web-1", "db"] {
        stand.put(&format!("/v1/agent/service/deregister/{id}"), "").await.is(200, "");
    }
    assert_eq!(stand.get("/v1/agent/services").await.json(), json!({}));
    assert_eq!(stand.get("/v1/agent/checks").await.json(), json!({}));
    stand.get("/v1/health/connect/web").await.is(200, "[]");
}

#[tokio::test(start_paused = true)]
async fn socket_path_and_locality_kept() {
    let stand = Stand::new();
    let locality = json!({"Region": "eu", "Zone": "eu-1"});
    stand.register(&json!({"Name": "x", "SocketPath": "/run/x", "Locality": locality})).await;
    let catalog = json!({"Node": "n1", "Address": "10.0.0.1",
        "Service": {"Service": "y", "SocketPath": "/run/y", "Locality": {"Region": "eu"}}});
    stand.put("/v1/catalog/register", &catalog.to_string()).await.is(200, "true");
    let own = stand.service("x").await;
    assert_eq!((&own["SocketPath"], &own["Locality"]), (&json!("/run/x"), &locality));
    assert_eq!(own["Meta"], json!({}));
    let shown = stand.get("/v1/health/service/x").await.json()[0]["Service"].clone();
    assert_eq!((&shown["SocketPath"], &shown["Locality"]), (&json!("/run/x"), &locality));
    let row = stand.get("/v1/catalog/service/y").await.json()[0].clone();
    assert_eq!(
        (&row["ServiceSocketPath"], &row["ServiceLocality"]["Region"]),
        (&json!("/run/y"), &json!("eu"))
    );
}

#[tokio::test(start_paused = true)]
async fn shutdown_answers_waiting_hash_query() {
    let stand = Stand::new();
    stand.register(&web()).await;
    let hash = stand.service("web-1").await["ContentHash"].as_str().expect("a hash").to_owned();
    let begun = Instant::now();
    let uri = format!("/v1/agent/service/web-1?hash={hash}&wait=5m");
    let (same, ()) = tokio::join!(stand.get(&uri), async {
        sleep(Duration::from_secs(1)).await;
        stand.api.registry.stop();
    });
    assert_eq!((&same.json()["ContentHash"], begun.elapsed()), (&json!(hash), Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn proxy_shown_by_service_kind() {
    let stand = Stand::new();
    let empty = json!({"Mode": "", "MeshGateway": {}, "Expose": {}});
    let plain = json!({"Config": {"a": 1}});
    for (kind, port, sent, shown) in [
        ("", 0, &plain, Value::Null),
        ("other", 0, &plain, Value::Null),
        ("mesh-gateway", 1, &Value::Null, empty.clone()),
        ("ingress-gateway", 0, &Value::Null, empty.clone()),
    ] {
        stand.register(&json!({"Name": "x", "Kind": kind, "Port": port, "Proxy": sent})).await;
        assert_eq!(stand.get("/v1/agent/service/x").await.json()["Proxy"], shown, "{kind}");
        let stored = &stand.get("/v1/catalog/service/x").await.json()[0]["ServiceProxy"];
        assert_eq!(stored.get("Config"), sent.get("Config"), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn unaddressable_id_rejected() {
    let stand = Stand::new();
    for id in ["/x", "a//b", "../x", ".", "a/..", "a\tb"] {
        let service = json!({"ID": id, "Name": "web"});
        stand.register_fails(&service, 400, &format!("Invalid service ID {id:?}: it ")).await;
        let check = json!({"ID": id, "Name": "c", "TTL": "1s"}).to_string();
        let refused = stand.put("/v1/agent/check/register", &check).await;
        assert!(refused.status == 400 && refused.text().starts_with("Invalid check ID "), "{refused:?}");
    }
    stand.get("/v1/agent/services").await.is(200, "{}");
}
