//! `lockmesh services`, `checks`, `catalog` and `maint` with a running agent, and a watch that
//! follows a service.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::dialect::let_pass;
use lockmesh_tests::process::{Process, run};
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

/// Runs a command at the agent, which must succeed; returns what it prints.
#[track_caller]
fn done(dev: &Dev, words: &[&str]) -> String {
    let address = dev.http.to_string();
    let (code, shown, said) = run(&[words, &["--http-addr", &address]].concat());
    assert_eq!(code, 0, "{words:?}: {said}");
    shown
}

fn json_of(dev: &Dev, words: &[&str]) -> Value {
    serde_json::from_str(&done(dev, words)).expect("it is JSON")
}

#[test]
fn service_lifecycle_through_commands() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("db.toml");
    fs::write(&file, "[[services]]\nname = \"db\"\nport = 5432\ncheck = { id = \"db-up\", ttl = \"1h\" }\n")
        .expect("it can be written");
    let (file, dev) = (file.to_str().expect("it is text"), Dev::start(&[]));
    let web = ["services", "register", "-name=web", "-id=web-1", "-port=80", "-tag=v1"];
    assert_eq!(done(&dev, &web), "Registered service: web\n");
    assert_eq!(done(&dev, &["services", "register", file]), "Registered service: db\n");
    let listed = done(&dev, &["services", "list"]);
    let expected = "ID     Name  Address  Tags  Health\n\
                    db     db    :5432    -     critical\n\
                    web-1  web   :80      v1    passing\n";
    assert_eq!(listed, expected, "the TTL of db has no report");
    let critical = json_of(&dev, &["checks", "--status", "critical", "--json"]);
    assert_eq!(
        (&critical["db-up"]["ServiceID"], critical.as_object().map(|c| c.len())),
        (&json!("db"), Some(1))
    );
    assert_eq!(done(&dev, &["catalog", "services"]), "consul\ndb\nweb\n");
    assert!(done(&dev, &["catalog", "nodes", "-service=web"]).contains("node-one"));

    // The handler prints the number of healthy instances at the start and after each change.
    let address = dev.http.to_string();
    let view = ["watch", "-type=service", "-service=web", "-passingonly", "-http-addr", &address];
    let handler = "printf 'instances %s.\\n' $(grep -o '\"ID\":\"web-1\"' | wc -l)";
    let watch = Process::lockmesh(&[&view[..], &[handler]].concat());
    watch.says("instances 1.");
    let enabled = done(&dev, &["maint", "-enable", "-service=web-1", "-reason=new disk"]);
    assert_eq!(enabled, "Service maintenance is now enabled for \"web-1\"\n");
    watch.says("instances 0.");
    assert_eq!(done(&dev, &["maint"]), "Kind     ID     Reason\nservice  web-1  new disk\n");
    assert!(done(&dev, &["services", "list"]).contains("v1    maintenance"));
    done(&dev, &["maint", "-disable", "-service=web-1"]);
    assert_eq!(json_of(&dev, &["maint", "-json"]), json!([]));

    assert_eq!(done(&dev, &["services", "deregister", "-id=web-1"]), "Deregistered service: web-1\n");
    assert_eq!(done(&dev, &["services", "deregister", file]), "Deregistered service: db\n");
    assert_eq!(json_of(&dev, &["services", "list", "--json"]), json!([]));
    // As with Consul, it is done.
    assert_eq!(done(&dev, &["services", "deregister", "-id=web-1"]), "Deregistered service: web-1\n");
    watch.signal("TERM");
}

/// Its agent learns of that with its next renewal, and not with the comparison a minute later.
#[test]
fn lost_node_regains_services() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let backup = folder.path().join("backup").to_str().expect("it is text").to_owned();
    let dev = Dev::start(&[]);
    done(&dev, &["services", "register", "-name=web"]);
    let client = dev.client();
    client.put("/v1/catalog/deregister", r#"{"Node":"node-one"}"#).expect(200);
    let is_soon = |services: &str| {
        let began = Instant::now();
        while done(&dev, &["catalog", "services"]) != services {
            assert!(began.elapsed() < Duration::from_secs(15), "the catalog is not corrected");
            let_pass(Duration::from_millis(50));
        }
    };
    is_soon("consul\nweb\n");
    client.session();
    done(&dev, &["operator", "snapshot", "save", &backup]);
    done(&dev, &["services", "deregister", "-id=web"]);
    done(&dev, &["services", "register", "-name=db"]);
    done(&dev, &["operator", "snapshot", "restore", "--yes", &backup]);
    is_soon("consul\ndb\n");
}
