//! Conventions of all endpoints: routing, methods, headers, flags, durations, and access.

use lockmesh_tests::dev::{Dev, Shared};
use serde_json::json;
use std::sync::OnceLock;

fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

#[test]
fn paths_that_lead_nowhere_say_so() {
    let server = shared();
    let client = server.client();
    let inside = client.get("/v1/nowhere").expect(404);
    let outside = client.get("/nowhere").expect(404);
    if server.is_foreign() {
        return;
    }
    assert_eq!(inside.text(), "Invalid URL path: not a recognized HTTP API endpoint\n");
    let text = "Invalid URL path: if attempting to use the HTTP API, ensure the path starts with '/v1/'\n";
    assert_eq!(outside.text(), text);
    client.get("/").expect(200);
}

#[test]
fn unclean_paths_are_sent_to_the_clean_one() {
    let client = shared().client();
    for (path, clean) in [
        ("/v1/kv", "/v1/kv/"),
        ("/v1//kv/key", "/v1/kv/key"),
        ("/v1/kv/a//b", "/v1/kv/a/b"),
        ("/v1/kv/a/./b", "/v1/kv/a/b"),
        ("/v1/kv/a/../b", "/v1/kv/b"),
        ("/v1/kv/a//b?raw", "/v1/kv/a/b?raw"),
    ] {
        let answer = client.get(path).expect(301);
        assert_eq!(answer.any_case("location"), Some(clean), "{path}");
        let written = client.put(path, "x").expect(301);
        assert_eq!(written.any_case("location"), Some(clean), "{path}");
    }
}

#[test]
fn a_broken_query_string_is_refused() {
    let client = shared().client();
    let answer = client.get("/v1/kv/broken?a=%zz");
    assert!(matches!(answer.status, 400 | 500), "{answer:?}");
}

#[test]
fn enterprise_words_are_refused_by_name() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let client = server.client();
    for (word, name, plural) in [("ns", "Namespace", "Namespaces"), ("partition", "Partition", "Partitions")]
    {
        let text = format!("Invalid query parameter: \"{word}\" - {plural} are a Consul Enterprise feature");
        client.get(&format!("/v1/kv/ns?{word}=team")).expect_text(400, &text);
        client.put(&format!("/v1/kv/ns?{word}=team"), "x").expect_text(400, &text);
        let header = format!("X-Consul-{name}");
        let answer = client.ask_with("GET", "/v1/kv/ns", &[(&header, "team")], b"");
        answer.expect_text(
            400,
            &format!("Invalid header: \"{header}\" - {plural} are a Consul Enterprise feature"),
        );
        client.get(&format!("/v1/kv/ns?{word}=")).expect(404);
    }
    client.get("/v1/kv/ns?namespace=team&unheard-of=1").expect(404);
}

#[test]
fn any_token_is_let_in() {
    let client = shared().client();
    for headers in [[("X-Consul-Token", "junk")], [("Authorization", "Bearer junk")]] {
        let answer = client.ask_with("PUT", "/v1/kv/token?token=junk", &headers, b"x");
        assert!(answer.is_true());
    }
}

#[test]
fn queries_carry_their_headers_and_writes_do_not() {
    let server = shared();
    let client = server.client();
    for path in [
        "/v1/session/list",
        "/v1/catalog/nodes",
        "/v1/health/state/any",
        "/v1/session/info/adf4238a-882b-9ddc-4a9d-5b6758e4159e",
        "/v1/kv/absent-for-ever",
    ] {
        let answer = client.get(path).expect_meta();
        if server.is_foreign() {
            continue;
        }
        assert_eq!(answer.header("X-Consul-Query-Backend"), Some("blocking-query"), "{answer:?}");
        assert_eq!(answer.header("X-Consul-Default-Acl-Policy"), Some("allow"), "{answer:?}");
        let health = path.starts_with("/v1/catalog") || path.starts_with("/v1/health");
        let consistency = answer.header("X-Consul-Effective-Consistency");
        assert_eq!(consistency, health.then_some("leader"), "{answer:?}");
    }
    let session = client.put("/v1/session/create", "").expect(200);
    assert_eq!(session.header("X-Consul-Index"), None);
    let leader = client.get("/v1/status/leader").expect(200);
    assert_eq!(leader.header("X-Consul-Index"), None);
}

#[test]
fn dangerous_characters_are_escaped_inside_strings() {
    let client = shared().client();
    let session = client.session_of(json!({"Name": "<a>&\u{2028}", "NodeChecks": []}));
    let info = client.get(&format!("/v1/session/info/{session}")).expect(200);
    assert!(info.text().contains(r"\u003ca\u003e\u0026\u2028"), "{info:?}");
    client.destroy(&session);
}

#[test]
fn bodies_may_come_in_chunks() {
    let server = shared();
    let client = server.client();
    let chunked = [("Transfer-Encoding", "chunked")];
    let put = |path: &str, chunks: &[&[u8]]| {
        let mut connection = client.connect().expect("a connection");
        let mut bytes =
            format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\n{}: {}\r\n\r\n", chunked[0].0, chunked[0].1)
                .into_bytes();
        for chunk in chunks {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        // The server may reply and close the connection before it has read everything.
        let _ = connection.send(&bytes);
        connection.answer(false).expect("an answer")
    };
    assert!(put("/v1/kv/chunked/key", &[b"in ", b"two"]).is_true());
    assert_eq!(client.get("/v1/kv/chunked/key?raw").expect(200).text(), "in two");
    if server.is_foreign() {
        return;
    }
    let made =
        put("/v1/session/create", &[br#"{"Name":"in "#, br#"chunks","NodeChecks":[]}"#]).expect(200).json();
    let made = made["ID"].as_str().expect("an id");
    assert_eq!(client.session_info(made).expect("it lives")["Name"], "in chunks");
    let long = vec![b'v'; 200_000];
    let answer = put("/v1/kv/chunked/long", &[&long, &long, &long]).expect(413);
    assert!(answer.text().contains("max size: 524288 bytes"), "{answer:?}");
    client.get("/v1/kv/chunked/long").expect(404);
}

#[test]
fn the_unix_socket_speaks_the_same() {
    let server = shared();
    if server.is_foreign() {
        return;
    }
    let (tcp, unix) = (server.client(), server.unix_client());
    let session = unix.session();
    assert!(unix.acquire("unix/key", &session));
    assert_eq!(tcp.holder("unix/key"), Some(session.clone()));
    let index = unix.get("/v1/kv/unix/key").expect_meta().index();
    let watch = unix.watch(&format!("/v1/kv/unix/key?index={index}&wait=60s"));
    assert!(tcp.release("unix/key", &session));
    assert!(watch.answer().index() > index);
}
