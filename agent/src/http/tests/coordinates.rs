//! `/v1/coordinate/…`, and `?near=` where rows are listed.

use super::{Reply, SERVER_ADDRESS, Stand};
use crate::http::Peer;
use crate::http::body::Body;
use http::Request;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The coordinate of a node that is this far from the origin, in milliseconds.
fn coord(distance: u32) -> Value {
    let mut vec = [0.0; 8];
    vec[3] = f64::from(distance) / 1_000.0;
    json!({"Vec": vec, "Error": 0.5, "Adjustment": 0, "Height": 0.00001})
}

impl Stand {
    async fn update(&self, node: &str, distance: u32) {
        let body = json!({"Node": node, "Coord": coord(distance)});
        self.put("/v1/coordinate/update", &body.to_string()).await.is(200, "");
    }

    /// Registers a node with a service and a check of it.
    async fn web_on(&self, node: &str, address: &str) {
        let check = json!({"CheckID": "up", "Status": "passing", "ServiceID": "web"});
        let service = json!({"Service": "web"});
        let body = json!({"Node": node, "Address": address, "Service": service, "Check": check});
        self.put("/v1/catalog/register", &body.to_string()).await.is(200, "true");
    }

    /// Three nodes around the agent's own, at other distances than their names suggest.
    async fn three_nodes() -> Self {
        let stand = Self::new();
        for (node, address, distance) in [("a", "10.0.0.1", 30), ("b", "10.0.0.2", 20), ("c", "10.0.0.3", 10)]
        {
            stand.web_on(node, address).await;
            stand.update(node, distance).await;
        }
        stand
    }
}

/// The nodes of the rows that have a service `web`, in their order.
fn nodes(reply: &Reply) -> Vec<String> {
    let node = |row: &Value| match &row["Node"] {
        Value::String(name) => name.clone(),
        node => node["Node"].as_str().unwrap().to_owned(),
    };
    reply.json().as_array().unwrap().iter().map(node).filter(|node| node != "node-one").collect()
}

const LISTS: [&str; 5] = [
    "/v1/catalog/nodes",
    "/v1/catalog/service/web",
    "/v1/health/service/web",
    "/v1/health/checks/web",
    "/v1/health/state/any",
];

/// Contract: 129.
#[tokio::test(start_paused = true)]
async fn coordinate_update_round_trip() {
    let stand = Stand::new();
    let zero = json!({"Vec": vec![0.0; 8], "Error": 1.5, "Adjustment": 0.0, "Height": 0.00001});
    let own = json!([{"Node": "node-one", "Segment": "", "Coord": zero}]);
    let map = &stand.get("/v1/coordinate/datacenters").await.json()[0];
    assert_eq!((&map["Datacenter"], &map["AreaID"]), (&json!("dc1"), &json!("wan")));
    assert_eq!(map["Coordinates"][0]["Node"], "node-one");
    assert_eq!(map["Coordinates"][0]["Coord"], zero);
    let all = stand.get("/v1/coordinate/nodes").await;
    assert_eq!(all.json(), own);
    stand.get("/v1/coordinate/nodes?segment=x").await.is(200, "[]");
    assert_eq!(stand.get("/v1/coordinate/nodes?segment=").await.json(), own);
    // A node without an agent has none, until a client stores one.
    stand.web_on("Ext", "10.0.0.1").await;
    for node in ["ext", "stranger"] {
        let absent = stand.get(&format!("/v1/coordinate/node/{node}")).await;
        absent.is(404, "");
        assert!(absent.index() > 0);
    }
    stand.update("ext", 20).await;
    stand.update("stranger", 20).await;
    let stored = json!([{"Node": "Ext", "Segment": "", "Coord": coord(20)}]);
    let read = stand.get("/v1/coordinate/node/EXT").await.json();
    assert_eq!(read[0]["Coord"]["Vec"], stored[0]["Coord"]["Vec"]);
    assert_eq!((&read[0]["Node"], &read[0]["Coord"]["Error"]), (&json!("Ext"), &json!(0.5)));
    stand.get("/v1/coordinate/node/stranger").await.is(404, "");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_update_is_refused() {
    let stand = Stand::new();
    let short = json!({"Node": "node-one", "Coord": {"Vec": [1, 2]}});
    let unknown = json!({"Node": "node-one", "Coord": {"Vec": [0, 0, 0, 0, 0, 0, 0, 0], "X": 1}});
    let word = json!({"Node": "node-one", "Coord": {"Height": "1"}});
    let segment = json!({"Node": "node-one", "Segment": "s", "Coord": coord(1)});
    for (body, status, text) in [
        ("{", 400, "Request decode failed: unexpected EOF"),
        ("", 400, "Request decode failed: EOF"),
        (&unknown.to_string(), 400, "unknown field \"X\""),
        (
            &word.to_string(),
            400,
            "cannot unmarshal string into Go struct field Coordinate.Coord.Height of type float64",
        ),
        (r#"{"Node":"node-one","Coord":"x"}"#, 400, "Go struct field CoordinateUpdateRequest.Coord of type"),
        (r#"{"Node":"node-one","Coord":{"Height":1e999}}"#, 400, "number out of range"),
        (&segment.to_string(), 400, "segments"),
        (r#"{"Node":"node-one"}"#, 400, "Missing Coord"),
        (r#"{"Node":"node-one","Coord":{}}"#, 500, "incompatible coordinate"),
        (&short.to_string(), 500, "incompatible coordinate"),
    ] {
        let reply = stand.put("/v1/coordinate/update", body).await;
        assert_eq!(reply.status.as_u16(), status, "{body}");
        assert!(reply.text().contains(text), "{body}: {}", reply.text());
    }
    assert_eq!(stand.get("/v1/coordinate/node/node-one").await.json()[0]["Coord"]["Error"], 1.5);
}

#[tokio::test(start_paused = true)]
async fn blocking_read_wakes_on_update() {
    let stand = Stand::new();
    let index = stand.get("/v1/coordinate/nodes").await.index();
    let path = format!("/v1/coordinate/nodes?index={index}&wait=60s");
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stand.put("/v1/kv/k", "v").await;
        stand.update("node-one", 7).await;
    };
    let (reply, ()) = tokio::join!(stand.get(&path), change);
    assert_eq!(reply.json()[0]["Coord"]["Vec"][3], 0.007);
    assert!(reply.index() > index);
}

#[tokio::test(start_paused = true)]
async fn near_sorts_by_distance() {
    let stand = Stand::three_nodes().await;
    for path in LISTS {
        for (query, order) in [
            ("", ["a", "b", "c"]),
            ("near=", ["a", "b", "c"]),
            ("near=_agent", ["c", "b", "a"]),
            ("near=NODE-one", ["c", "b", "a"]),
            ("near=_ip", ["c", "b", "a"]),
        ] {
            assert_eq!(nodes(&stand.get(&format!("{path}?{query}")).await), order, "{path}?{query}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn near_ip_uses_client_node() {
    let stand = Stand::three_nodes().await;
    for (ip, order) in [
        ("10.0.0.2", ["b", "a", "c"]),
        ("::ffff:10.0.0.2", ["b", "a", "c"]),
        ("127.0.0.1", ["c", "b", "a"]),
        ("10.0.0.77", ["c", "b", "a"]),
    ] {
        let peer = Peer::Tcp(SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 4_000));
        let request = Request::get("/v1/catalog/service/web?near=_ip").header("host", SERVER_ADDRESS);
        let reply = stand.send_from(peer, request.body(Body::empty()).unwrap()).await;
        assert_eq!(nodes(&reply), order, "{ip}");
    }
}
