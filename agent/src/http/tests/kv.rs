//! Keys and locks.

use super::{Reply, Stand};
use crate::http::HttpLimits;
use http::Request;
use serde_json::{Value, json};

async fn entry(stand: &Stand, key: &str) -> Value {
    stand.get(&format!("/v1/kv/{key}")).await.json()[0].clone()
}

#[tokio::test]
async fn absent_key_404_has_index_headers() {
    let stand = Stand::new();
    for path in ["/v1/kv/none", "/v1/kv/none?raw", "/v1/kv/?recurse", "/v1/kv/none?keys"] {
        let absent = stand.get(path).await;
        absent.is(404, "");
        assert!(absent.index() >= 1);
        assert_eq!(absent.header("x-consul-knownleader"), Some("true"));
        assert_eq!(absent.header("x-consul-lastcontact"), Some("0"));
        assert_eq!(absent.header("x-consul-query-backend"), Some("blocking-query"));
        assert_eq!(absent.header("x-consul-effective-consistency"), None);
        assert_eq!(absent.header("content-type"), None);
    }
    stand.get("/v1/kv/?keys").await.is(200, "[]");
}

#[tokio::test]
async fn put_get_round_trip() {
    let stand = Stand::new();
    let put = stand.put("/v1/kv/a/b?flags=18446744073709551615", "test").await;
    put.is(200, "true");
    assert_eq!(put.header("content-type"), Some("application/json"));
    assert_eq!(put.header("x-consul-index"), None);
    let index: u64 = put.header("x-lockmesh-index").unwrap().parse().unwrap();
    let expected = format!(
        "[{{\"LockIndex\":0,\"Key\":\"a/b\",\"Flags\":18446744073709551615,\"Value\":\"dGVzdA==\",\
         \"CreateIndex\":{index},\"ModifyIndex\":{index}}}]"
    );
    let read = stand.get("/v1/kv/a/b").await;
    read.is(200, &expected);
    assert_eq!(read.index(), index);

    stand.put("/v1/kv/a/b", "").await.is(200, "true");
    let emptied = entry(&stand, "a/b").await;
    assert_eq!((&emptied["Value"], &emptied["Flags"]), (&json!(null), &json!(0)));
}

#[tokio::test]
async fn raw_values_are_guarded() {
    let stand = Stand::new();
    stand.put("/v1/kv/a", "<script>").await;
    let raw = stand.get("/v1/kv/a?raw=0").await;
    raw.is(200, "<script>");
    assert_eq!(raw.header("content-type"), Some("text/plain"));
    assert_eq!(raw.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(raw.header("content-security-policy"), Some("sandbox"));
    assert!(raw.index() > 1);
    assert!(stand.get("/v1/kv/?raw&recurse").await.json().is_array());
}

#[tokio::test]
async fn names_are_listed_and_cut() {
    let stand = Stand::new();
    for key in ["a/b", "a/c/d", "a/c/e", "ab"] {
        stand.put(&format!("/v1/kv/{key}"), "x").await;
    }
    stand.get("/v1/kv/a/?keys&separator=/").await.is(200, r#"["a/b","a/c/"]"#);
    stand.get("/v1/kv/a/?keys&seperator=/").await.is(200, r#"["a/b","a/c/"]"#);
    stand.get("/v1/kv/a/?keys&seperator=x&separator=/&recurse").await.is(200, r#"["a/b","a/c/"]"#);
    assert_eq!(stand.get("/v1/kv/a?recurse=false").await.json().as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn keys_stored_verbatim() {
    let stand = Stand::new();
    for (path, key) in [("a+b", "a+b"), ("a%2Fb", "a/b"), ("a%20b", "a b"), ("%C3%A7/", "ç/"), ("a%25", "a%")]
    {
        stand.put(&format!("/v1/kv/{path}"), "x").await.is(200, "true");
        assert_eq!(entry(&stand, path).await["Key"], key);
    }
    for method in ["GET", "PUT", "DELETE"] {
        stand.call(method, "/v1/kv/", "").await.is(400, "Missing key name");
    }
}

#[tokio::test]
async fn numbers_are_judged_before_sizes() {
    let stand = Stand::with_limits(HttpLimits { kv_max_value_size: 8, ..HttpLimits::default() });
    for (query, error) in [
        ("flags=-1", "strconv.ParseUint: parsing \"-1\": invalid syntax"),
        ("flags=", "strconv.ParseUint: parsing \"\": invalid syntax"),
        ("cas=abc", "strconv.ParseUint: parsing \"abc\": invalid syntax"),
        (
            "cas=18446744073709551616",
            "strconv.ParseUint: parsing \"18446744073709551616\": value out of range",
        ),
    ] {
        stand.put(&format!("/v1/kv/a?{query}"), "longer than eight bytes").await.is(500, error);
    }
    stand
        .call("DELETE", "/v1/kv/a?cas=x", "")
        .await
        .is(500, "strconv.ParseUint: parsing \"x\": invalid syntax");
    stand.put("/v1/kv/a?cas=1&acquire=x", "").await.is(400, "Conflicting flags: acquire=x&cas=1\n");
    stand.call("DELETE", "/v1/kv/a?recurse&cas=1", "").await.is(400, "Conflicting flags: cas=1&recurse=\n");
}

#[tokio::test]
async fn value_limit_covers_chunked_bodies() {
    let stand = Stand::with_limits(HttpLimits { kv_max_value_size: 8, ..HttpLimits::default() });
    stand.put("/v1/kv/a", "12345678").await.is(200, "true");
    let help = "https://developer.hashicorp.com/docs/agent/config/config-files#kv_max_value_size";
    let text = format!("Request body(9 bytes) too large, max size: 8 bytes. See {help}.");
    stand.put("/v1/kv/a", "123456789").await.is(413, &text);
    // Without a content length, like a chunked body.
    let chunked = |body: &'static str| Request::put("/v1/kv/a").body(crate::http::Body::from(body)).unwrap();
    let text = format!("Request body too large, max size: 8 bytes. See {help}.");
    stand.send(chunked("123456789")).await.is(413, &text);
    assert_eq!(entry(&stand, "a").await["Value"], "MTIzNDU2Nzg=");
    stand.send(chunked("87654321")).await.is(200, "true");
    assert_eq!(entry(&stand, "a").await["Value"], "ODc2NTQzMjE=");
}

#[tokio::test]
async fn cas_compares_modify_index() {
    let stand = Stand::new();
    stand.put("/v1/kv/a?cas=0", "1").await.is(200, "true");
    stand.put("/v1/kv/a?cas=0", "2").await.is(200, "false");
    let index = entry(&stand, "a").await["ModifyIndex"].as_u64().unwrap();
    stand.put(&format!("/v1/kv/a?cas={index}"), "3").await.is(200, "true");
    stand.call("DELETE", &format!("/v1/kv/a?cas={index}"), "").await.is(200, "false");
    stand.call("DELETE", "/v1/kv/none?cas=5", "").await.is(200, "true");
    stand.call("DELETE", "/v1/kv/?recurse", "").await.is(200, "true");
    stand.get("/v1/kv/a").await.is(404, "");
}

fn fence(reply: &Reply) -> Option<u64> {
    reply.header("x-lockmesh-fence").map(|value| value.parse().unwrap())
}

#[tokio::test]
async fn grant_returns_fence_denial_returns_delay() {
    let stand = Stand::new();
    let first = stand.session(r#"{"LockDelay":"15s"}"#).await;
    let second = stand.session("").await;
    let granted = stand.put(&format!("/v1/kv/lock?acquire={first}"), "me").await;
    granted.is(200, "true");
    let fence_of_first = fence(&granted).unwrap();
    let again = stand.put(&format!("/v1/kv/lock?acquire={}", first.to_uppercase()), "me").await;
    assert_eq!(fence(&again), Some(fence_of_first), "the same hold, and ids in any case");

    let refused = stand.put(&format!("/v1/kv/lock?acquire={second}"), "you").await;
    refused.is(200, "false");
    assert_eq!((fence(&refused), refused.header("x-lockmesh-lock-delay")), (None, None));
    stand.put(&format!("/v1/kv/lock?release={second}"), "").await.is(200, "false");

    stand.put(&format!("/v1/session/destroy/{first}"), "").await.is(200, "true");
    let delayed = stand.put(&format!("/v1/kv/lock?acquire={second}"), "you").await;
    delayed.is(200, "false");
    assert_eq!(delayed.header("x-lockmesh-lock-delay"), Some("15s"));
    let other = stand.put(&format!("/v1/kv/other?acquire={second}"), "").await;
    assert!(fence(&other).unwrap() > fence_of_first);
    stand.put(&format!("/v1/kv/other?release={second}"), "").await.is(200, "true");
    assert_eq!(entry(&stand, "other").await.get("Session"), None);
}

#[tokio::test]
async fn missing_or_invalid_session_rejected() {
    let stand = Stand::new();
    stand.put("/v1/kv/a?acquire=nobody", "").await.is(500, "invalid session \"nobody\"");
    stand.put("/v1/kv/a?acquire=", "").await.is(500, "missing session");
    stand.put("/v1/kv/a?release=", "").await.is(500, "missing session");
}

#[tokio::test(start_paused = true)]
async fn blocking_query_waits_with_jitter() {
    let stand = Stand::new();
    stand.put("/v1/kv/a", "1").await;
    let index = stand.get("/v1/kv/a").await.index();
    for (wait, least, most) in
        [("1s", 1.0, 1.0625), ("10m", 600.0, 637.5), ("2h", 600.0, 637.5), ("0s", 300.0, 318.75)]
    {
        let begun = tokio::time::Instant::now();
        let same = stand.get(&format!("/v1/kv/a?index={index}&wait={wait}")).await;
        let waited = begun.elapsed().as_secs_f64();
        assert_eq!(same.index(), index);
        assert!((least..=most + 0.01).contains(&waited), "{wait}: {waited}");
    }
}

#[tokio::test]
async fn write_wakes_watcher_drop_frees_it() {
    let stand = std::sync::Arc::new(Stand::new());
    stand.put("/v1/kv/a", "1").await;
    let index = stand.get("/v1/kv/a").await.index();
    let watching = |stand: std::sync::Arc<Stand>| {
        tokio::spawn(async move { stand.get(&format!("/v1/kv/a?index={index}&wait=60s")).await })
    };
    let (kept, dropped) = (watching(stand.clone()), watching(stand.clone()));
    stand.quorum.parked(2).await;
    dropped.abort();
    stand.quorum.parked(1).await;
    stand.put("/v1/kv/a", "2").await;
    assert!(kept.await.unwrap().index() > index);
    stand.quorum.parked(0).await;
}

#[tokio::test]
async fn held_key_rows_include_fence() {
    let stand = Stand::new();
    let session = stand.session("").await;
    stand.put("/v1/kv/f/free", "x").await.is(200, "true");
    let granted = stand.put(&format!("/v1/kv/f/held?acquire={session}"), "x").await;
    let fence = fence(&granted).expect("a grant");
    let row = async |path: &str, number: usize| stand.get(path).await.json()[number]["Fence"].clone();
    assert_eq!(row("/v1/kv/f/held", 0).await, fence);
    assert_eq!(row("/v1/kv/f/?recurse", 0).await, Value::Null, "no session holds it");
    assert_eq!(row("/v1/kv/f/?recurse", 1).await, fence);
    let read = stand.put("/v1/txn", r#"[{"KV": {"Verb": "get-tree", "Key": "f/"}}]"#).await.json();
    assert_eq!(read["Results"][0]["KV"].get("Fence"), None);
    assert_eq!(read["Results"][1]["KV"]["Fence"], fence);
    let body = format!(r#"[{{"KV": {{"Verb": "lock", "Key": "f/free", "Session": "{session}"}}}}]"#);
    let locked = stand.put("/v1/txn", &body).await.json();
    assert_eq!(locked["Results"][0]["KV"]["Fence"], fence + 1);
    stand.put(&format!("/v1/kv/f/held?release={session}"), "x").await.is(200, "true");
    let entry = stand.get("/v1/kv/f/held").await.json();
    assert_eq!((&entry[0]["LockIndex"], entry[0].get("Fence")), (&Value::from(1), None));
}
