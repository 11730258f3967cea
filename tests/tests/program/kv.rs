//! Contract 1–18: keys and values. The numbers are those of `tests/contract.md`.

use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::dialect::number;
use lockmesh_tests::ledger::base64;
use lockmesh_tests::process::run;
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::time::Duration;

/// One server for all tests of this file that do not read the whole store. Each test has its own
/// prefix.
fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

/// Contract: 1.
#[test]
fn absent_key_404_has_headers() {
    let answer = shared().client().get("/v1/kv/a01/absent").expect(404).expect_meta();
    assert!(answer.body.is_empty(), "{answer:?}");
}

/// Contract: 2.
#[test]
fn put_key_reads_back_with_one_index() {
    let client = shared().client();
    let put = client.put("/v1/kv/a02/key", "test").expect(200);
    assert_eq!(put.text().trim_end(), "true");
    assert_eq!(put.header("X-Consul-Index"), None, "a write carries no index");
    assert_eq!(put.any_case("content-type"), Some("application/json"));

    let answer = client.get("/v1/kv/a02/key").expect(200).expect_meta();
    assert_eq!(answer.any_case("content-type"), Some("application/json"));
    let index = answer.index();
    let expected = json!([{
        "LockIndex": 0, "Key": "a02/key", "Flags": 0, "Value": "dGVzdA==", "CreateIndex": index, "ModifyIndex": index,
    }]);
    assert_eq!(answer.json(), expected);
}

/// Contract: 3.
#[test]
fn second_put_moves_only_modify_index() {
    let client = shared().client();
    client.set("a03/key", "one");
    let first = client.entry("a03/key");
    client.set("a03/key", "two");
    let second = client.entry("a03/key");
    assert_eq!(number(&second, "CreateIndex"), number(&first, "CreateIndex"));
    assert!(number(&second, "ModifyIndex") > number(&first, "ModifyIndex"));
}

/// Contract: 3.
#[test]
fn identical_put_changes_and_wakes_nothing() {
    let client = shared().client();
    client.set("a03b/key", "same");
    let before = client.entry("a03b/key");
    let index = number(&before, "ModifyIndex");
    let watch = client.watch(&format!("/v1/kv/a03b/key?index={index}&wait=1500ms"));
    for _ in 0..20 {
        client.set("a03b/key", "same");
    }
    let (answer, took) = watch.timed_answer();
    assert!(took >= Duration::from_millis(1500), "woken after {took:?} by a write that changed nothing");
    assert_eq!(answer.index(), index);
    assert_eq!(client.entry("a03b/key"), before);
}

/// Contract: 4.
#[test]
fn put_without_flags_clears_flags() {
    let client = shared().client();
    client.put("/v1/kv/a04/key?flags=42", "x").expect(200);
    assert_eq!(number(&client.entry("a04/key"), "Flags"), 42);
    client.set("a04/key", "x");
    assert_eq!(number(&client.entry("a04/key"), "Flags"), 0);
}

/// Contract: 5.
#[test]
fn flags_and_cas_parse_as_u64() {
    let client = shared().client();
    client.put("/v1/kv/a05/key?flags=18446744073709551615", "x").expect(200);
    assert_eq!(number(&client.entry("a05/key"), "Flags"), u64::MAX);
    for (bad, why) in [
        ("-1", "invalid syntax"),
        ("abc", "invalid syntax"),
        ("", "invalid syntax"),
        ("1.5", "invalid syntax"),
        ("18446744073709551616", "value out of range"),
    ] {
        let text = format!("strconv.ParseUint: parsing \"{bad}\": {why}");
        client.put(&format!("/v1/kv/a05/bad?flags={bad}"), "x").expect_text(500, &text);
        client.put(&format!("/v1/kv/a05/bad?cas={bad}"), "x").expect_text(500, &text);
    }
    client.get("/v1/kv/a05/bad").expect(404);
}

/// Contract: 6.
#[test]
fn empty_body_stores_null_value() {
    let client = shared().client();
    client.set("a06/key", "");
    assert_eq!(client.entry("a06/key")["Value"], Value::Null);
    let raw = client.get("/v1/kv/a06/key?raw").expect(200);
    assert!(raw.body.is_empty(), "{raw:?}");
}

/// Contract: 7.
#[test]
fn raw_returns_sandboxed_plain_text() {
    let server = shared();
    let client = server.client();
    let value: Vec<u8> = (0..=255).collect();
    client.put("/v1/kv/a07/key", &value).expect(200);
    let raw = client.get("/v1/kv/a07/key?raw").expect(200).expect_meta();
    assert_eq!(raw.body, value);
    assert_eq!(raw.header("Content-Type").or(raw.any_case("content-type")), Some("text/plain"));
    assert_eq!(raw.any_case("content-length"), Some("256"));
    assert_eq!(raw.any_case("x-content-type-options"), Some("nosniff"));
    assert_eq!(raw.any_case("content-security-policy"), Some("sandbox"));
    assert_eq!(client.get("/v1/kv/a07/key?raw=0").expect(200).body, value, "the flag's value is ignored");

    let absent = client.get("/v1/kv/a07/absent?raw").expect(404).expect_meta();
    assert!(absent.body.is_empty());
    assert_eq!(client.get("/v1/kv/a07/?raw&recurse").keys(), ["a07/key"], "raw is ignored with recurse");
}

/// Contract: 8.
#[test]
fn recurse_matches_and_orders_bytes() {
    let client = shared().client();
    for key in ["a08/a/b", "a08/ab", "a08/a", "a08/b", "a08/a%C3%A9"] {
        client.set(key, "x");
    }
    let answer = client.get("/v1/kv/a08/a?recurse").expect(200).expect_meta();
    assert_eq!(answer.keys(), ["a08/a", "a08/a/b", "a08/ab", "a08/aé"]);
    let none = client.get("/v1/kv/a08/zzz?recurse").expect(404).expect_meta();
    assert!(none.body.is_empty());
    assert_eq!(client.get("/v1/kv/a08/a?recurse=false").keys().len(), 4, "the flag's value is ignored");
}

/// Contract: 8.
#[test]
fn recurse_on_empty_store_returns_404() {
    let server = Dev::start(&[]);
    let none = server.client().get("/v1/kv/?recurse").expect(404).expect_meta();
    assert!(none.body.is_empty());
}

/// Contract: 9.
#[test]
fn empty_keys_404_except_at_root() {
    let server = Dev::start(&[]);
    let client = server.client();
    let keys = client.get("/v1/kv/?keys").expect(200).expect_meta();
    assert_eq!(keys.json(), json!([]));
    let keys = client.get("/v1/kv/a09?keys").expect(404).expect_meta();
    assert!(keys.body.is_empty());
}

/// Contract: 10.
#[test]
fn separator_cuts_keys_after_prefix() {
    let client = shared().client();
    for key in ["a/b", "a/c/d", "a/c/e", "ab"] {
        client.set(&format!("a10/{key}"), "x");
    }
    let expected = ["a10/a/b", "a10/a/c/"];
    assert_eq!(client.get("/v1/kv/a10/a/?keys&separator=/").keys(), expected);
    assert_eq!(client.get("/v1/kv/a10/a/?keys&seperator=/").keys(), expected, "the historical misspelling");
    assert_eq!(client.get("/v1/kv/a10/a/?keys&seperator=b&separator=/").keys(), expected);
    assert_eq!(client.get("/v1/kv/a10/?keys&separator=/").keys(), ["a10/a/", "a10/ab"]);
    let all = ["a10/a/b", "a10/a/c/d", "a10/a/c/e", "a10/ab"];
    assert_eq!(client.get("/v1/kv/a10/a?keys").keys(), all);
    assert_eq!(client.get("/v1/kv/a10/a?keys&recurse").keys(), all, "keys beats recurse");
}

/// Contract: 11.
#[test]
fn cas_requires_current_index() {
    let client = shared().client();
    assert!(client.put("/v1/kv/a11/key?cas=0", "one").is_true());
    assert!(!client.put("/v1/kv/a11/key?cas=0", "two").is_true());
    let one = client.entry("a11/key");
    assert_eq!(one["Value"], "b25l");
    let index = number(&one, "ModifyIndex");

    assert!(!client.put(&format!("/v1/kv/a11/key?cas={}", index + 1), "two").is_true());
    assert_eq!(client.entry("a11/key"), one, "a refused write changes nothing");
    assert!(client.put(&format!("/v1/kv/a11/key?cas={index}"), "two").is_true());
    let two = client.entry("a11/key");
    assert_eq!(two["Value"], "dHdv");
    assert!(!client.put(&format!("/v1/kv/a11/key?cas={index}"), "three").is_true());
    assert_eq!(client.entry("a11/key"), two);
    assert!(!client.put("/v1/kv/a11/absent?cas=7", "x").is_true());
}

/// Contract: 12.
#[test]
fn deleting_absent_key_is_noop() {
    let server = Dev::start(&[]);
    let client = server.client();
    client.set("a12/key", "x");
    let before = client.get("/v1/kv/a12/absent").expect(404).index();
    assert!(client.delete("/v1/kv/a12/absent").is_true());
    assert!(client.delete("/v1/kv/a12/absent?cas=5").is_true());
    assert!(client.delete("/v1/kv/a12/nothing?recurse").is_true());
    assert_eq!(client.get("/v1/kv/a12/absent").expect(404).index(), before);

    let index = number(&client.entry("a12/key"), "ModifyIndex");
    assert!(!client.delete("/v1/kv/a12/key?cas=0").is_true());
    assert!(!client.delete(&format!("/v1/kv/a12/key?cas={}", index - 1)).is_true());
    assert_eq!(number(&client.entry("a12/key"), "ModifyIndex"), index);
    assert!(client.delete(&format!("/v1/kv/a12/key?cas={index}")).is_true());
    client.get("/v1/kv/a12/key").expect(404);
}

/// Contract: 13.
#[test]
fn prefix_delete_leaves_tombstone_index() {
    let client = shared().client();
    for key in ["a13/a", "a13/b/c", "a13x"] {
        client.set(key, "x");
    }
    let before = client.get("/v1/kv/a13/?recurse").expect(200).index();
    assert!(client.delete("/v1/kv/a13/?recurse").is_true());
    let gone = client.get("/v1/kv/a13/?recurse").expect(404).expect_meta();
    assert!(gone.index() > before, "the delete came after {before}: {gone:?}");
    assert_eq!(client.entry("a13x")["Value"], "eA==", "outside the prefix");
}

/// Contract: 14.
#[test]
fn conflicting_conditions_rejected() {
    let client = shared().client();
    let session = client.session();
    for query in [
        format!("acquire={session}&cas=0"),
        format!("acquire={session}&release={session}"),
        format!("cas=0&release={session}"),
    ] {
        let answer = client.put(&format!("/v1/kv/a14/key?{query}"), "x");
        assert_eq!(answer.expect(400).text().trim_end(), format!("Conflicting flags: {query}"));
    }
    let answer = client.delete("/v1/kv/a14/key?recurse&cas=1").expect(400);
    assert_eq!(answer.text().trim_end(), "Conflicting flags: cas=1&recurse=");
    client.get("/v1/kv/a14/key").expect(404);
}

/// Contract: 15.
#[test]
fn value_limit_is_512_kib() {
    let server = shared();
    let client = server.client();
    let largest = vec![b'v'; 524_288];
    assert!(client.put("/v1/kv/a15/largest", &largest).is_true());
    assert_eq!(client.get("/v1/kv/a15/largest?raw").expect(200).body, largest);

    let too_large = vec![b'v'; 524_289];
    let answer = client.put("/v1/kv/a15/too-large", &too_large).expect(413);
    assert!(
        answer
            .text()
            .starts_with("Request body(524289 bytes) too large, max size: 524288 bytes. See https://")
    );
    if !server.is_foreign() {
        assert!(answer.text().ends_with("/docs/agent/config/config-files#kv_max_value_size."), "{answer:?}");
    }
    client.get("/v1/kv/a15/too-large").expect(404);
}

/// Contract: 16.
#[test]
fn method_not_allowed_lists_methods() {
    let client = shared().client();
    for (method, path, allowed) in [
        ("POST", "/v1/kv/a16/key", "OPTIONS,GET,PUT,DELETE"),
        ("HEAD", "/v1/kv/a16/key", "OPTIONS,GET,PUT,DELETE"),
        ("POST", "/v1/session/create", "OPTIONS,PUT"),
        ("PUT", "/v1/session/list", "OPTIONS,GET"),
        ("POST", "/v1/txn", "OPTIONS,PUT"),
        ("GET", "/v1/txn", "OPTIONS,PUT"),
    ] {
        let answer = client.ask(method, path, b"").expect(405);
        assert_eq!(answer.any_case("allow"), Some(allowed), "{answer:?}");
        if method != "HEAD" {
            assert_eq!(answer.text(), format!("method {method} not allowed"));
        }
        let options = client.ask("OPTIONS", path, b"").expect(200);
        assert_eq!(options.any_case("allow"), Some(allowed), "{options:?}");
        assert!(options.body.is_empty(), "{options:?}");
    }
    client.get("/v1/kv/a16/key").expect(404);
}

/// Contract: 16.
#[test]
fn pretty_indents_with_trailing_newline() {
    let server = shared();
    let client = server.client();
    client.set("a16/pretty", "x");
    for flag in ["pretty", "pretty=", "pretty=false"] {
        let pretty = client.get(&format!("/v1/kv/a16/pretty?{flag}")).expect(200);
        assert!(pretty.text().starts_with("[\n    {\n        \"LockIndex\": 0,\n"), "{pretty:?}");
        assert!(pretty.text().ends_with("\n    }\n]\n"), "{pretty:?}");
    }
    let plain = client.get("/v1/kv/a16/pretty").expect(200);
    assert!(server.is_foreign() || plain.text().ends_with(']'), "{plain:?}");
}

/// Contract: 17.
#[test]
fn keys_allow_printable_text_only() {
    let server = shared();
    let client = server.client();
    for (path, key) in [
        ("a17/with%20space", "a17/with space"),
        ("a17/slash%2Finside", "a17/slash/inside"),
        ("a17/plus+plus", "a17/plus+plus"),
        ("a17/%C3%A7a%20va", "a17/ça va"),
        ("a17/folder/", "a17/folder/"),
        ("a17/%25", "a17/%"),
        ("a17/q%3F%26%3D%23", "a17/q?&=#"),
    ] {
        client.set(path, "x");
        assert_eq!(client.entry(path)["Key"], key);
        assert!(client.delete(&format!("/v1/kv/{path}")).is_true());
    }
    for path in ["a17/tab%09", "a17/null%00", "a17/escape%1B", "a17/delete%7F", "a17/line%0A"] {
        let answer = client.put(&format!("/v1/kv/{path}"), "x").expect(400);
        assert_eq!(answer.body.is_empty(), server.is_foreign(), "{answer:?}");
        client.get(&format!("/v1/kv/{path}")).expect(400);
    }
    client.get("/v1/kv/a17/?recurse").expect(404);
}

/// Contract: 18.
#[test]
fn missing_key_name_rejected() {
    let client = shared().client();
    for answer in [client.get("/v1/kv/"), client.put("/v1/kv/", "x"), client.delete("/v1/kv/")] {
        assert_eq!(answer.expect(400).text(), "Missing key name");
    }
}

#[test]
fn import_is_all_or_nothing() {
    let server = shared();
    let client = server.client();
    let folder = tempfile::tempdir().expect("a folder");
    let import = |prefix: &str, entries: &Value| {
        let file = folder.path().join("entries.json");
        std::fs::write(&file, entries.to_string()).expect("a file");
        let (at, data) = (format!("--http-addr={}", server.http), format!("@{}", file.display()));
        run(&["kv", "import", &at, "--prefix", prefix, &data])
    };
    // In base64 the large value fits into no transaction.
    let large = base64(&"x".repeat(500_000));
    let mut entries: Vec<Value> = (0..150)
        .map(|number| json!({"key": format!("app/{number:03}"), "flags": 7, "value": "aGk="}))
        .collect();
    entries.push(json!({"key": "app/large", "flags": 0, "value": large}));
    let (code, out, error) = import("import/copy", &json!(entries));
    assert_eq!((code, out.lines().count()), (0, 151), "{error}");
    let written = client.get("/v1/kv/import/copy/?recurse").expect(200).json();
    let row = |number: usize, field: &str| written[number][field].clone();
    assert_eq!(written.as_array().map(Vec::len), Some(151));
    assert_eq!(
        (row(0, "Key"), row(0, "Flags"), row(0, "Value")),
        (json!("import/copy/app/000"), json!(7), json!("aGk="))
    );
    assert_eq!(row(0, "ModifyIndex"), row(63, "ModifyIndex"), "written together");
    assert_eq!(row(150, "Value"), json!(base64(&"x".repeat(500_000))));
    // The API's own entries.
    let (code, _, error) = import("import/again", &written);
    assert_eq!(code, 0, "{error}");
    client.get("/v1/kv/import/again/import/copy/app/149").expect(200);
    for wrong in [json!({"key": "a//b"}), json!({"key": "long", "value": base64(&"x".repeat(600_000))})] {
        let mut entries = entries.clone();
        entries.push(wrong);
        let (code, _, error) = import("import/bad", &json!(entries));
        assert_eq!(code, 1, "{error}");
        client.get("/v1/kv/import/bad/?keys").expect(404);
    }
}
