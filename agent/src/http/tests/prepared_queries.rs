//! Prepared queries as clients see them, and as a Consul agent answers the same requests.

use super::{Reply, Stand};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

impl Stand {
    async fn post(&self, path: &str, body: impl ToString) -> Reply {
        self.call("POST", path, body.to_string()).await
    }

    /// Creates a query and returns its id.
    async fn query(&self, body: Value) -> String {
        let created = self.post("/v1/query", body).await;
        assert_eq!(created.status, 200, "{created:?}");
        created.json()["ID"].as_str().unwrap().to_owned()
    }

    async fn instance(&self, node: &str, service: &str, status: &str) {
        let body = json!({
            "Node": node, "Address": "10.0.0.1", "Service": {"ID": service, "Service": service},
            "Check": {"CheckID": "c", "ServiceID": service, "Status": status},
        });
        self.put("/v1/catalog/register", &body.to_string()).await.is(200, "true");
    }

    /// The nodes that an execution returns, in its order.
    async fn executed(&self, path: &str) -> Vec<String> {
        let reply = self.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.index()), (200, 1), "{reply:?}");
        let nodes = reply.json()["Nodes"].take();
        let name = |row: &Value| row["Node"]["Node"].as_str().unwrap().to_owned();
        nodes.as_array().unwrap().iter().map(name).collect()
    }
}

/// The answers that a Consul agent gave, request by request. Differences:
/// - fields of newer versions are not in its answers;
/// - the text after `parse error: syntax error` names what to write, and that after `error parsing
///   regexp:` is that of our parser;
/// - an id that is no UUID is unknown (D16).
#[tokio::test]
async fn responses_match_recorded_consul() {
    let recorded: Value = serde_json::from_str(include_str!("prepared_queries.json")).unwrap();
    let stand = Stand::new();
    for registration in recorded["catalog"].as_array().unwrap() {
        stand.put("/v1/catalog/register", registration.as_str().unwrap()).await.is(200, "true");
    }
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    for step in recorded["steps"].as_array().unwrap() {
        let filled = |text: &str| {
            ids.iter().fold(text.to_owned(), |text, (name, id)| text.replace(&format!("{{{name}}}"), id))
        };
        let request = step["request"].as_str().unwrap();
        let (method, path) = request.split_once(' ').unwrap();
        let body = filled(step["body"].as_str().unwrap_or_default());
        let reply = stand.call(method, &filled(path), body).await;
        if let Some(name) = step["creates"].as_str() {
            ids.insert(name.into(), reply.json()["ID"].as_str().unwrap().into());
        }
        let named = ids.iter().fold(reply.text().to_owned(), |text, (name, id)| {
            text.replace(id.as_str(), &format!("{{{name}}}"))
        });
        let answer = serde_json::from_str(&named).map_or(Value::String(named), comparable);
        let expected = &step["answer"];
        let is_unknown = request == "GET /v1/query/none";
        let (status, differs) = match expected.as_str() {
            Some(_) if is_unknown => (404, answer == "Query not found"),
            Some(text) => {
                let ends = ["parse error: syntax error", "error parsing regexp: "];
                let end = ends.iter().find_map(|end| text.find(end).map(|at| at + end.len()));
                let same = end.is_some_and(|end| answer.as_str().unwrap().starts_with(&text[..end]));
                (step["status"].as_u64().unwrap(), same)
            }
            None => (200, false),
        };
        assert_eq!(u64::from(reply.status.as_u16()), status, "{step}: {reply:?}");
        assert!(differs || answer == *expected, "{step}\n{answer}");
        for (name, value) in step["headers"].as_object().into_iter().flatten().filter(|_| !is_unknown) {
            assert_eq!(reply.header(name), value.as_str(), "{step}: {name}");
        }
    }
    assert_eq!(ids.len(), 3);
}

/// An answer without indexes, without the fields of newer versions, and with the names of instances
/// in order.
fn comparable(answer: Value) -> Value {
    match answer {
        Value::Object(fields) => {
            let newer = ["SamenessGroup", "Targets", "Peer", "PeerName"];
            let fields = fields.into_iter().filter(|(name, _)| !newer.contains(&name.as_str()));
            let fields = fields.map(|(name, value)| {
                let value = match (name.as_str(), value) {
                    ("CreateIndex" | "ModifyIndex", _) => 0.into(),
                    ("Nodes", Value::Array(nodes)) => {
                        let text = |value: &Value| value.as_str().unwrap().to_owned();
                        let name = |row: &Value| {
                            format!("{}/{}", text(&row["Node"]["Node"]), text(&row["Service"]["ID"]))
                        };
                        let names: BTreeSet<String> = nodes.iter().map(name).collect();
                        assert_eq!(names.len(), nodes.len());
                        names.into_iter().collect()
                    }
                    (_, value) => comparable(value),
                };
                (name, value)
            });
            Value::Object(fields.collect())
        }
        Value::Array(values) => values.into_iter().map(comparable).collect(),
        value => value,
    }
}

/// Contract: 124.
#[tokio::test]
async fn definition_round_trip_and_replacement() {
    let stand = Stand::new();
    let id = stand.query(json!({"Name": "q", "Token": "t", "Service": {"Service": "web"}})).await;
    let read = stand.get(&format!("/v1/query/{id}")).await;
    let expected = json!([{
        "ID": id, "Name": "q", "Session": "", "Token": "t",
        "Template": {"Type": "", "Regexp": "", "RemoveEmptyTags": false},
        "Service": {
            "Service": "web", "SamenessGroup": "",
            "Failover": {"NearestN": 0, "Datacenters": null, "Targets": null},
            "OnlyPassing": false, "IgnoreCheckIDs": null, "Near": "", "Tags": null, "NodeMeta": null,
            "ServiceMeta": null, "Connect": false, "Peer": "",
        },
        "DNS": {"TTL": ""}, "CreateIndex": read.index(), "ModifyIndex": read.index(),
    }]);
    assert_eq!(read.json(), expected);
    assert_eq!(read.header("x-consul-effective-consistency"), Some("leader"));
    let path = format!("/v1/query/{id}");
    // What a client has read, it may send back.
    stand.put(&path, &expected[0].to_string()).await.is(200, "");
    let target = json!([{"Peer": "p", "Namespace": ""}, {"Datacenter": "dc2"}]);
    let service = json!({"service": "web2", "failover": {"targets": target}, "SamenessGroup": ""});
    stand.put(&path, &json!({"name": "q", "service": service}).to_string()).await.is(200, "");
    let replaced = stand.get(&path).await.json()[0].take();
    assert_eq!((&replaced["Service"]["Service"], &replaced["Token"]), (&json!("web2"), &json!("")));
    assert_eq!(replaced["Service"]["Failover"]["Targets"], json!([{"Peer": "p"}, {"Datacenter": "dc2"}]));
    assert_eq!(replaced["CreateIndex"], expected[0]["CreateIndex"]);
    assert!(replaced["ModifyIndex"].as_u64() > replaced["CreateIndex"].as_u64());
    stand.call("DELETE", &path, "").await.is(200, "");
    let again = stand.call("DELETE", &path, "").await;
    again.is(500, &format!("Cannot modify non-existent prepared query: '{id}'"));
    stand.get(&path).await.is(404, "Query not found");
    for method in ["GET", "DELETE"] {
        stand.call(method, "/v1/query/web", "").await.is(404, "Query not found");
    }
}

#[tokio::test(start_paused = true)]
async fn list_is_blocking_query() {
    let stand = Stand::new();
    stand.get("/v1/query").await.is(200, "[]");
    let id = stand.query(json!({"Name": "q", "Service": {"Service": "web"}})).await;
    let index = stand.get("/v1/query").await.index();
    let path = format!("/v1/query?index={index}&wait=60s");
    let waiting = stand.get(&path);
    let change = async {
        stand.quorum.parked(1).await;
        // A change of another table wakes no reader.
        stand.instance("n1", "web", "passing").await;
        stand.call("DELETE", &format!("/v1/query/{id}"), "").await.is(200, "");
    };
    let (woken, ()) = tokio::join!(waiting, change);
    woken.is(200, "[]");
    assert_eq!(woken.index(), index + 2);
    // A long list is sent in parts.
    for name in ["a", "b", "c"] {
        stand.query(json!({"Name": name, "Service": {"Service": "web"}})).await;
    }
    *stand.quorum.rows_at_once.lock().unwrap() = Some(1);
    let list = stand.get("/v1/query").await;
    assert_eq!(list.json().as_array().unwrap().len(), 3);
    assert_eq!(list.header("x-consul-effective-consistency"), Some("leader"));
}

/// Contract: 125.
#[tokio::test]
async fn execution_follows_parameters_never_blocks() {
    let stand = Stand::new();
    for number in 0..8 {
        stand.instance(&format!("n{number}"), "web", "passing").await;
    }
    stand.instance("node-one", "web", "passing").await;
    stand.query(json!({"Name": "q", "Service": {"Service": "Web"}, "DNS": {"TTL": "10s"}})).await;
    let near = json!({"Service": "web", "Near": "_agent"});
    stand.query(json!({"Name": "near", "Service": near})).await;
    let path = "/v1/query/q/execute";
    let mut orders = BTreeSet::new();
    for _ in 0..20 {
        orders.insert(stand.executed(path).await);
    }
    assert!(orders.len() > 10, "each has a seed of its own: {orders:?}");
    assert_eq!(stand.executed(&format!("{path}?limit=-1")).await.len(), 9);
    for near in [format!("{path}?near=_agent&limit=2"), "/v1/query/near/execute?limit=2".into()] {
        let nodes = stand.executed(&near).await;
        assert_eq!((nodes.len(), nodes[0].as_str()), (2, "node-one"), "{near}");
    }
    let unknown = stand.executed(&format!("{path}?near=nobody&index=100000&wait=10m")).await;
    assert_eq!(unknown.len(), 9, "without a wait");
    let executed = stand.get(&format!("{path}?near=n3&limit=1&consistent")).await.json();
    assert_eq!(executed["DNS"], json!({"TTL": "10s"}));
    assert_eq!(executed["Nodes"][0]["Checks"][0]["CheckID"], "c");
    assert_eq!(executed["ConsistencyLevel"], "consistent");
    assert!(stand.executed(&format!("{path}?connect=true")).await.is_empty(), "it has no proxies");
    let peer = json!({"Service": "web", "Peer": "other"});
    stand.query(json!({"Name": "peer", "Service": peer})).await;
    assert!(stand.executed("/v1/query/peer/execute").await.is_empty());
}

/// Contract: 126.
#[tokio::test]
async fn longest_template_prefix_wins() {
    let stand = Stand::new();
    let template = |name: &str, service: &str| {
        json!({
            "Name": name, "Service": {"Service": service},
            "Template": {"Type": "name_prefix_match", "Regexp": "^t-(.*)$"},
        })
    };
    stand.query(template("t-", "short-${match(1)}")).await;
    stand.query(template("t-x-", "long-${match(1)}")).await;
    let service = async |name: &str| {
        let explained = stand.get(&format!("/v1/query/{name}/explain")).await;
        explained.json()["Query"]["Service"]["Service"].as_str().unwrap().to_owned()
    };
    assert_eq!(service("t-a").await, "short-a");
    assert_eq!(service("t-x-a%2Fb").await, "long-x-a/b");
    assert_eq!(service("t-x").await, "short-x");
    let bogus = stand.post("/v1/query", template("t-y", "${bogus}")).await;
    bogus.failed(500, "refused");
    assert!(bogus.text().ends_with("1:3: unknown variable accessed: bogus"), "{bogus:?}");
    let long = stand.get(&format!("/v1/query/{}/execute", "t".repeat(1_025))).await;
    long.is(400, "the name of the query has 1025 bytes, the maximum is 1024: use a shorter one");
}

/// Contract: 127.
#[tokio::test]
async fn session_end_deletes_query() {
    let stand = Stand::new();
    let session = stand.session("{}").await;
    let service = json!({"Service": "web"});
    let id = stand.query(json!({"Session": session, "Service": service})).await;
    stand.query(json!({"Name": "other", "Service": service})).await;
    stand.put(&format!("/v1/session/destroy/{session}"), "").await.is(200, "true");
    stand.get(&format!("/v1/query/{id}")).await.is(404, "Query not found");
    let left = stand.get("/v1/query").await.json();
    assert_eq!(left.as_array().unwrap().len(), 1);
    for unknown in [session.as_str(), "no id"] {
        let refused = stand.post("/v1/query", json!({"Session": unknown, "Service": service})).await;
        refused.is(500, &format!("invalid session {unknown:?}"));
    }
}
