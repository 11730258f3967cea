//! Bad input: each request gets a clear error and changes nothing.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::http::{Answer, Client};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Returns all state that bad input could have changed.
fn everything(client: &Client) -> Value {
    let paths = ["kv/?recurse", "session/list", "catalog/nodes", "health/state/any", "agent/checks"];
    let all = paths.map(|path| client.get(&format!("/v1/{path}")).expect(200).json());
    json!(all)
}

/// Fails unless the reply is an error with a message and the state is unchanged.
#[track_caller]
fn refused(client: &Client, before: &Value, what: &str, answer: Answer, statuses: &[u16]) {
    assert!(statuses.contains(&answer.status), "{what}: {answer:?}");
    assert!(!answer.text().trim().is_empty(), "{what}: the message is missing: {answer:?}");
    assert_eq!(&everything(client), before, "{what} changed something");
}

/// A server with a key, a held lock and a session.
fn server() -> (Dev, Client, Value) {
    let server = Dev::start(&[]);
    let client = server.client();
    client.set("bad/key", "value");
    let session = client.session();
    assert!(client.acquire("bad/lock", &session));
    let before = everything(&client);
    (server, client, before)
}

#[test]
fn requests_that_make_no_sense() {
    let (_server, client, before) = server();
    let unknown = "adf4238a-882b-9ddc-4a9d-5b6758e4159e";
    for (what, method, path, body, status) in [
        ("an unknown method", "BREW", "/v1/kv/bad/key", "", 405),
        ("an unknown path", "PUT", "/v1/kvs/bad/key", "x", 404),
        ("negative flags", "PUT", "/v1/kv/bad/key?flags=-1", "x", 500),
        ("overflowing flags", "PUT", "/v1/kv/bad/key?flags=18446744073709551616", "x", 500),
        ("a negative cas", "PUT", "/v1/kv/bad/key?cas=-1", "x", 500),
        ("a cas that is no number", "DELETE", "/v1/kv/bad/key?cas=x", "", 500),
        ("an overflowing cas", "DELETE", "/v1/kv/bad/key?cas=99999999999999999999", "", 500),
        ("a negative index", "GET", "/v1/kv/bad/key?index=-1", "", 400),
        ("an overflowing index", "GET", "/v1/kv/bad/key?index=18446744073709551616", "", 400),
        ("an overflowing wait", "GET", "/v1/kv/bad/key?index=1&wait=9999999999999999h", "", 400),
        ("an unknown session", "PUT", &format!("/v1/kv/bad/key?acquire={unknown}"), "x", 500),
        ("no session", "PUT", "/v1/kv/bad/key?release=", "x", 500),
        ("an unknown session's renewal", "PUT", &format!("/v1/session/renew/{unknown}"), "", 404),
        ("an unknown check", "PUT", "/v1/agent/check/pass/none", "", 404),
    ] {
        refused(&client, &before, what, client.ask(method, path, body.as_bytes()), &[status]);
    }
}

#[test]
fn a_listing_that_is_longer_than_a_frame() {
    let (_server, client, _) = server();
    let value = "x".repeat(500 << 10);
    for number in 0..17 {
        client.set(&format!("bad/long/{number:02}"), &value);
    }
    let before = client.get("/v1/kv/bad/long/16").expect(200).json();
    let whole = client.get("/v1/kv/bad/long/?recurse").expect(200).json();
    assert_eq!((whole.as_array().map(Vec::len), &whole[16]), (Some(17), &before[0]), "it is sent in parts");
    let tree = r#"[{"KV":{"Verb":"get-tree","Key":"bad/long/"}}]"#;
    let refused = client.put("/v1/txn", tree).expect(413);
    assert!(refused.text().contains("ask for less at a time"), "{refused:?}");
    assert_eq!(client.get("/v1/kv/bad/long/?keys").expect(200).json().as_array().map(Vec::len), Some(17));
    assert_eq!(client.get("/v1/kv/bad/long/1?recurse").expect(200).json()[6], before[0]);
}

#[test]
fn bodies_that_make_no_sense() {
    let (_server, client, before) = server();
    let set = |rest: &str| format!(r#"[{{"KV":{{"Verb":"set","Key":"bad/new"{rest}}}}}]"#);
    for (what, path, body, status) in [
        ("broken JSON", "session/create", "{\"Name\":".to_owned(), 400),
        ("deep JSON", "session/create", "[".repeat(100_000), 400),
        ("a name that is a number", "session/create", json!({"Name": 7}).to_string(), 400),
        ("a TTL that is a number", "session/create", json!({"TTL": 15}).to_string(), 400),
        ("a negative TTL", "session/create", json!({"TTL": "-10s"}).to_string(), 500),
        ("an overflowing TTL", "session/create", json!({"TTL": "9999999999h"}).to_string(), 500),
        ("an overflowing lock-delay", "session/create", json!({"LockDelay": "9999999999h"}).to_string(), 400),
        ("an unknown behavior", "session/create", json!({"Behavior": "explode"}).to_string(), 500),
        ("an unknown node", "session/create", json!({"Node": "nowhere"}).to_string(), 500),
        ("an unknown check", "session/create", json!({"NodeChecks": ["none"]}).to_string(), 500),
        ("a transaction that is no list", "txn", "{}".to_owned(), 400),
        ("an unknown verb", "txn", r#"[{"KV":{"Verb":"paint","Key":"bad/new"}}]"#.to_owned(), 409),
        ("an unknown field", "txn", set(r#","Colour":"red""#), 400),
        ("bad base64", "txn", set(r#","Value":"=!=""#), 400),
        ("base64 without padding", "txn", set(r#","Value":"eA""#), 400),
        ("a value that is a number", "txn", set(r#","Value":7"#), 400),
        ("negative flags", "txn", set(r#","Flags":-1"#), 400),
        ("overflowing flags", "txn", set(r#","Flags":18446744073709551616"#), 400),
        ("flags with a fraction", "txn", set(r#","Flags":1.5"#), 400),
        ("an unknown field", "catalog/register", json!({"Node": "n", "Colour": 1}).to_string(), 400),
        ("no address", "catalog/register", json!({"Node": "n"}).to_string(), 500),
        ("no node", "catalog/deregister", json!({}).to_string(), 500),
        ("a check without a name", "agent/check/register", json!({"TTL": "10s"}).to_string(), 400),
        ("a negative TTL", "agent/check/register", json!({"Name": "n", "TTL": "-1s"}).to_string(), 400),
        ("no backup", "snapshot", "this is no backup".to_owned(), 500),
    ] {
        let answer = client.put(&format!("/v1/{path}"), body);
        refused(&client, &before, &format!("{what} ({path})"), answer, &[status]);
    }
}

#[test]
fn more_than_fits() {
    let (_server, client, before) = server();
    let huge = vec![b'v'; 64 << 20];
    for path in ["kv/bad/new", "txn", "session/create", "catalog/register", "agent/check/register"] {
        let answer = client.put(&format!("/v1/{path}"), &huge);
        refused(&client, &before, &format!("64 MiB for {path}"), answer, &[413]);
    }
    let mut promised = client.connect().expect("a connection");
    promised
        .send(b"PUT /v1/kv/bad/new HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        .expect("a head can be sent");
    let answer = promised.answer(false).expect("an answer before the body");
    refused(&client, &before, "100 GB promised", answer, &[413]);

    let mut endless = client.connect().expect("a connection");
    endless
        .send(b"PUT /v1/kv/bad/new HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        .expect("a head can be sent");
    let chunk = [b"10000\r\n".as_slice(), &[b'v'; 0x10000], b"\r\n"].concat();
    // The server closes the connection at its limit.
    let sent = (0..1000).take_while(|_| endless.send(&chunk).is_ok()).count();
    assert!(sent < 1000, "the server accepted 64 MiB in chunks");
    if let Ok(answer) = endless.answer(false) {
        refused(&client, &before, "endless chunks", answer, &[413]);
    }
    assert_eq!(everything(&client), before);
}

#[test]
fn keys_that_are_no_keys() {
    let (_server, client, before) = server();
    let endless = client.try_ask("PUT", &format!("/v1/kv/bad/{}", "k".repeat(1 << 20)), &[], b"x");
    // Such a head may be answered, or the connection closed on it.
    if let Ok(answer) = endless {
        assert!(matches!(answer.status, 400 | 413 | 414 | 431), "{answer:?}");
    }
    for control in ["%00", "%01", "%0A", "%1B", "%7F", "%C2%85"] {
        client.put(&format!("/v1/kv/bad/{control}"), "x").expect(400);
    }
    for path in ["/v1/kv/bad/%FF", "/v1/kv/bad/%zz", "/v1/kv/bad/%"] {
        let answer = client.put(path, "x");
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
    }
    assert_eq!(everything(&client), before);
}

#[test]
fn what_is_not_even_http() {
    let (_server, client, before) = server();
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(),
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"PUT /v1/kv/bad/new HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\nx",
        b"PUT /v1/kv/bad/new HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        b"PUT /v1/kv/bad/new HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n",
        b"PUT /v1/kv/bad/new HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf",
    ] {
        let mut connection = client.connect().expect("a connection");
        connection.send(bytes).expect("bytes can be sent");
        connection.end_writing().expect("a connection can be half closed");
        if let Ok(answer) = connection.answer(false) {
            assert!((400..500).contains(&answer.status), "{answer:?}");
        }
    }
    assert_eq!(everything(&client), before);
}

#[test]
fn slow_senders_hold_nobody_up_and_are_hung_up_on() {
    let (_server, client, before) = server();
    let mut slow = Vec::new();
    for number in 0..200 {
        let mut connection = client.connect().expect("a connection");
        let head = match number % 2 {
            0 => b"GET /v1/kv/bad/key HTTP/1.1\r\nHo".as_slice(),
            _ => b"PUT /v1/kv/bad/new HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf a bo",
        };
        connection.send(head).expect("a part can be sent");
        slow.push(connection);
    }
    for _ in 0..20 {
        assert_eq!(everything(&client), before);
    }
    let begun = Instant::now();
    for mut connection in slow {
        // Reading times out after two minutes of silence, which counts as forever here.
        let waited = Instant::now();
        let ended = connection.answer(false);
        assert!(waited.elapsed() < Duration::from_secs(110), "the server waits forever for a slow sender");
        if let Ok(answer) = ended {
            assert!((400..500).contains(&answer.status), "{answer:?}");
        }
    }
    println!("disconnected all slow senders after {:?}", begun.elapsed());
    assert_eq!(everything(&client), before);
}
