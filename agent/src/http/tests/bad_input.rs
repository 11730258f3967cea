//! Bad input to the endpoints of prepared queries, coordinates and the agent itself, where Consul's
//! status and text are known.

use super::{Reply, Stand};
use serde_json::json;

const ID: &str = "11111111-1111-1111-1111-111111111111";

const DECODE: &str = "Request decode failed: ";

/// A node with the prepared query `q`.
async fn stand() -> Stand {
    let stand = Stand::new();
    let query = json!({"Name": "q", "Service": {"Service": "web"}});
    assert_eq!(stand.call("POST", "/v1/query", query.to_string()).await.status, 200);
    stand
}

fn fails(reply: &Reply, status: u16, text: &str, request: &str) {
    assert_eq!(reply.status, status, "{request}: {reply:?}");
    assert!(reply.text().starts_with(text), "{request}: {reply:?}");
}

#[tokio::test(start_paused = true)]
async fn unsupported_method_rejected() {
    let stand = stand().await;
    for (path, allow) in [
        ("/v1/query", "OPTIONS,GET,POST"),
        ("/v1/query/q", "OPTIONS,GET,PUT,DELETE"),
        ("/v1/query/q/execute", "OPTIONS,GET"),
        ("/v1/query/q/explain", "OPTIONS,GET"),
        ("/v1/coordinate/datacenters", "OPTIONS,GET"),
        ("/v1/coordinate/nodes", "OPTIONS,GET"),
        ("/v1/coordinate/node/node-one", "OPTIONS,GET"),
        ("/v1/coordinate/update", "OPTIONS,PUT"),
        ("/v1/agent/monitor", "OPTIONS,GET"),
        ("/v1/agent/metrics", "OPTIONS,GET"),
        ("/v1/agent/host", "OPTIONS,GET"),
        ("/v1/agent/version", "OPTIONS,GET"),
    ] {
        let reply = stand.call("PATCH", path, "{}").await;
        reply.is(405, "method PATCH not allowed");
        assert_eq!(reply.header("allow"), Some(allow), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_parameters_ignored() {
    let stand = stand().await;
    for path in [
        "/v1/query",
        "/v1/query/q/execute",
        "/v1/query/q/explain",
        "/v1/coordinate/datacenters",
        "/v1/coordinate/nodes",
        "/v1/coordinate/node/node-one",
        "/v1/agent/version",
    ] {
        let plain = stand.get(path).await;
        assert_eq!(plain.status, 200, "{path}");
        for parameters in ["nosuch=1&x", "filter=(((", "near=nosuch"] {
            stand.get(&format!("{path}?{parameters}")).await.is(200, plain.text());
        }
    }
    for path in ["/v1/agent/host", "/v1/agent/metrics"] {
        let sent = stand.call("GET", &format!("{path}?nosuch=1&filter=((("), vec![b'x'; 2 << 20]).await;
        assert_eq!(sent.status, 200, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn known_parameters_validated() {
    let stand = stand().await;
    for path in ["/v1/query", "/v1/query/q/execute", "/v1/query/q/explain", "/v1/coordinate/nodes"] {
        for (parameters, status, text) in [
            ("index=-1", 400, "Invalid index"),
            ("index=99999999999999999999", 400, "Invalid index"),
            ("index=1&wait=x", 400, "Invalid wait time"),
            ("stale&consistent", 400, "Cannot specify ?stale with ?consistent"),
            ("dc=nope", 500, "No path to datacenter"),
            ("%ff", 500, "Invalid query string"),
        ] {
            let request = format!("{path}?{parameters}");
            fails(&stand.get(&request).await, status, text, &request);
        }
    }
    for (request, status, text) in [
        ("/v1/query/q/execute?limit=x", 500, r#"Bad limit: strconv.Atoi: parsing "x": invalid syntax"#),
        ("/v1/query/q/explain?limit=x", 500, r#"Bad limit: strconv.Atoi: parsing "x": invalid syntax"#),
        (
            "/v1/query/q/execute?limit=99999999999999999999",
            500,
            r#"Bad limit: strconv.Atoi: parsing "99999999999999999999": value out of range"#,
        ),
        ("/v1/query/q/execute?connect=maybe", 500, "Error parsing 'connect' value: strconv.ParseBool"),
        ("/v1/agent/monitor?loglevel=nonsense", 400, "Unknown log level: nonsense"),
        ("/v1/agent/metrics?format=xml", 415, "unknown metrics format"),
    ] {
        fails(&stand.get(request).await, status, text, request);
    }
}

#[tokio::test(start_paused = true)]
async fn undecodable_bodies_rejected() {
    let stand = stand().await;
    let update = format!("/v1/query/{ID}");
    let requests = [("POST", "/v1/query"), ("PUT", &update), ("PUT", "/v1/coordinate/update")];
    for (method, path) in requests {
        for (body, text) in [
            (&b"{"[..], "unexpected EOF"),
            (b"[]", "json: cannot unmarshal array into Go value of type "),
            (br#"{"Nope":1}"#, r#"json: unknown field "Nope""#),
            (b"{\"Node\":\"\xff\"}", "invalid unicode code point"),
        ] {
            let request = format!("{method} {path} {body:?}");
            fails(&stand.call(method, path, body).await, 400, &format!("{DECODE}{text}"), &request);
        }
        let long = stand.call(method, path, vec![b' '; (1 << 20) + 1]).await;
        fails(&long, 413, "Request body too large, max size: 1048576 bytes.", path);
    }
    for number in ["99999999999999999999", "1e3", "0.5"] {
        let body = format!(r#"{{"Service":{{"Service":"w","Failover":{{"NearestN":{number}}}}}}}"#);
        let reply = stand.call("POST", "/v1/query", body).await;
        fails(&reply, 400, &format!("{DECODE}json: cannot unmarshal number into"), number);
    }
}
