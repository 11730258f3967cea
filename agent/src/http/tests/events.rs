//! User events of an agent outside the mesh: a fired event is listed.

use super::Stand;
use http::Request;
use serde_json::{Value, json};

impl Stand {
    /// Fires an event and returns its id.
    async fn fire(&self, name_and_query: &str, payload: &str) -> String {
        let reply = self.put(&format!("/v1/event/fire/{name_and_query}"), payload).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["ID"].as_str().expect("an id").to_owned()
    }

    async fn listed(&self, query: &str) -> Vec<String> {
        let Value::Array(events) = self.get(&format!("/v1/event/list{query}")).await.json() else {
            panic!("no list");
        };
        events.iter().map(|event| event["ID"].as_str().expect("an id").to_owned()).collect()
    }
}

/// The index that Consul's clients derive from an id.
fn index_of(id: &str) -> u64 {
    let digits = id.replace('-', "");
    let half = |range| u64::from_str_radix(&digits[range], 16).expect("hexadecimal");
    half(0..16) ^ half(16..32)
}

/// Contract: 128.
#[tokio::test]
async fn fired_event_returned_then_listed() {
    let stand = Stand::new();
    stand.get("/v1/event/list").await.is(200, "[]");
    assert_eq!(stand.get("/v1/event/list").await.index(), 1);
    let fired = stand.put("/v1/event/fire/deploy?node=^node-", "v1.2").await;
    let mut event = fired.json();
    let id = event["ID"].as_str().expect("an id").to_owned();
    let text = fired.text().replace(&id, "ID");
    let expected = r#"{"ID":"ID","Name":"deploy","Payload":"djEuMg==","NodeFilter":"^node-","ServiceFilter":"","TagFilter":"","Version":1,"LTime":0}"#;
    assert_eq!((text.as_str(), fired.header("x-consul-index")), (expected, None));
    let listed = stand.get("/v1/event/list").await;
    event["LTime"] = 1.into();
    assert_eq!((listed.json(), listed.index()), (json!([event]), index_of(&id)));
    assert_eq!(listed.header("x-consul-knownleader"), None);
    let next = stand.fire("empty", "").await;
    let listed = stand.get("/v1/event/list?name=empty&service=ignored&dc=ignored").await;
    assert_eq!(
        (listed.json()[0]["Payload"].clone(), listed.json()[0]["LTime"].clone()),
        (Value::Null, 2.into())
    );
    assert_eq!((stand.listed("").await, listed.index()), (vec![id, next.clone()], index_of(&next)));
    stand.get("/v1/event/list?name=emp").await.is(200, "[]");
}

/// Contract: 128.
#[tokio::test]
async fn invalid_event_rejected_like_consul() {
    let stand = Stand::new();
    stand.put("/v1/event/fire/", "").await.is(400, "Missing name");
    let refused = async |query: &str, text: &str| {
        let reply = stand.put(&format!("/v1/event/fire/x{query}"), "").await;
        reply.failed(500, "refused");
        assert!(reply.text().starts_with(text), "{reply:?}");
    };
    refused("?tag=a", "Cannot provide tag filter without service filter").await;
    refused("?node=%5B", "Invalid node filter: error parsing regexp: ").await;
    refused("?service=%28", "Invalid service filter: error parsing regexp: ").await;
    refused("?service=a&tag=*", "Invalid tag filter: error parsing regexp: ").await;
    refused("?dc=elsewhere", "No path to datacenter").await;
    stand.put("/v1/event/fire/x", &"p".repeat(400)).await.text();
    let long = stand.put("/v1/event/fire/x", &"p".repeat(800)).await;
    long.failed(500, "refused");
    assert_eq!(long.text(), "user event exceeds configured limit of 512 bytes before encoding");
    assert_eq!(stand.listed("").await.len(), 1);
    assert_eq!(stand.call("GET", "/v1/event/fire/x", "").await.status, 405);
    assert_eq!(stand.put("/v1/event/list", "").await.status, 405);
    stand.get("/v1/event/list?index=x").await.is(400, "Invalid index");
    stand.get("/v1/event/list?wait=x").await.is(400, "Invalid wait time");
}

/// Contract: 128.
#[tokio::test]
async fn unmatched_event_accepted_not_listed() {
    let stand = Stand::new();
    for filtered in ["x?node=^other", "x?service=nosuch", "x?service=.&tag=.", "_rexec"] {
        stand.fire(filtered, "").await;
    }
    stand.get("/v1/event/list").await.is(200, "[]");
    let id = stand.fire("x?node=(?i)^NODE", "").await;
    assert_eq!(stand.listed("?node=ignored").await, [id]);
}

#[tokio::test(start_paused = true)]
async fn blocking_list_waits_while_unchanged() {
    let stand = Stand::new();
    // Without an event of that name the index is 1, and a query waits for a change of that too.
    let (listed, id) = tokio::join!(stand.listed("?name=a&index=1&wait=60s"), async {
        stand.fire("b", "").await;
        stand.fire("a", "").await
    });
    let there = vec![id.clone()];
    assert_eq!(listed, there);
    // A query with another index than the last one is answered at once, whether it is lower or
    // higher.
    for index in [2, u64::MAX, index_of(&id) - 1, index_of(&id) + 1] {
        assert_eq!(stand.listed(&format!("?name=a&index={index}")).await, there);
    }
    let begun = tokio::time::Instant::now();
    let same = format!("?name=a&index={}", index_of(&id));
    assert_eq!(stand.listed(&format!("{same}&wait=3s")).await, there);
    assert_eq!(begun.elapsed().as_secs(), 3, "without any randomness on top");
    let begun = tokio::time::Instant::now();
    assert_eq!(stand.listed(&same).await, there);
    assert_eq!(begun.elapsed().as_secs(), 600, "ten minutes by default");
    // An agent that stops answers with the current events.
    let begun = tokio::time::Instant::now();
    let (listed, ()) = tokio::join!(stand.listed(&same), async { stand.api.feeds.events.stop() });
    assert_eq!((listed, begun.elapsed().as_secs()), (there, 0));
}

#[tokio::test]
async fn event_rate_limit_rejects_flood() {
    let stand = Stand::new();
    let payload = "p".repeat(400);
    let (mut fired, mut refused) = (0, None);
    while refused.is_none() && fired < 1_000 {
        let request = Request::put("/v1/event/fire/x").body(payload.clone().into());
        let reply = stand.send(request.expect("a request")).await;
        match reply.status.as_u16() {
            200 => fired += 1,
            _ => refused = Some(reply),
        }
    }
    let refused = refused.expect("there is a limit");
    refused.failed(500, "not-done");
    assert!(fired >= 37 && refused.text().starts_with("too many events: "), "{fired} {refused:?}");
    assert_eq!(stand.listed("").await.len(), fired);
}
