//! Access control of the running program: the management token of its configuration, and the users
//! of the host.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::process::run;
use serde_json::Value;

const ROOT: &str = "root";

fn start() -> Dev {
    Dev::start(&["--initial-management", ROOT])
}

/// Contract: 134.
#[test]
fn initial_management_secret_works() {
    let dev = start();
    if dev.is_foreign() {
        return;
    }
    let ask = |token: &str| dev.client().ask_with("GET", "/v1/acl/tokens", &[("X-Consul-Token", token)], &[]);
    // The leader creates the lists once it serves.
    wait_until(|| ask(ROOT).status != 401);
    let tokens = ask(ROOT).expect(200).json();
    assert_eq!(tokens.as_array().map(Vec::len), Some(2), "{tokens}");
    let is_initial =
        |token: &Value| token["Description"] == "Initial Management Token" && token["SecretID"] == ROOT;
    assert!(tokens.as_array().is_some_and(|tokens| tokens.iter().any(is_initial)), "{tokens}");
    ask("other").expect_text(403, "ACL not found");
    assert!(dev.client().put("/v1/acl/bootstrap", "").expect(403).text().contains("no longer allowed"));
}

#[test]
fn bound_user_acts_without_token() {
    let dev = start();
    if dev.is_foreign() {
        return;
    }
    let unix = dev.unix_client();
    let address = format!("unix://{}", dev.socket.as_ref().expect("it has a socket").display());
    let lockmesh = |token: &[&str], words: &[&str]| run(&[words, &["--http-addr", &address], token].concat());
    let as_root = |words: &[&str]| {
        let (code, text, said) = lockmesh(&["--token", ROOT], words);
        assert_eq!(code, 0, "{words:?}: {said}");
        text
    };
    wait_until(|| unix.put("/v1/kv/jobs/x", "1").status == 403);
    let (code, text, _) = lockmesh(&[], &["whoami"]);
    assert!(code == 0 && text.starts_with("anonymous: no token was sent"), "{text}");
    unix.put("/v1/kv/jobs/x", "1").expect(403);
    as_root(&["acl", "auth-method", "create", "--name", "host", "--type", "unix-peer"]);
    let rules = "key_prefix \"jobs/\" { policy = \"write\" }\nsession \"${node}\" { policy = \"write\" }";
    as_root(&["acl", "policy", "create", "--name", "jobs", "--rules", rules]);
    let rule =
        ["acl", "binding-rule", "create", "--method", "host", "--bind-type", "policy", "--bind-name", "jobs"];
    assert!(as_root(&rule).contains("BindName:     jobs"));
    unix.put("/v1/kv/jobs/x", "1").expect_text(200, "true");
    dev.client().put("/v1/kv/jobs/x", "1").expect(403);
    let (code, text, said) = lockmesh(&[], &["whoami"]);
    assert!(code == 0 && text.contains("unix peer") && text.contains("(uid "), "{text}{said}");
    assert!(!text.contains("anonymous"), "{text}");
    let (code, text, said) = lockmesh(&[], &["whoami", "--can", "key:write", "jobs/x"]);
    assert_eq!((code, text.trim_end()), (0, "allowed  key:write jobs/x"), "{said}");
    let id = as_root(&["acl", "binding-rule", "list", "--format", "json"]);
    let id = serde_json::from_str::<Value>(&id).expect("JSON")[0]["ID"].clone();
    as_root(&["acl", "binding-rule", "delete", "--id", id.as_str().expect("an id")]);
    unix.put("/v1/kv/jobs/x", "1").expect(403);
}
