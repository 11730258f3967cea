//! Metrics and health of servers and agents, as monitoring reads them: over HTTP, while servers
//! crash and are paused.

use lockmesh_net::metrics::table::Row;
use lockmesh_tests::figures::Figures;
use lockmesh_tests::fleet::{Fleet, wait_until};
use lockmesh_tests::http::{Address, Client};
use lockmesh_tests::process::{Process, run};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

const SERVERS: [&str; 3] = ["s1", "s2", "s3"];

fn figures(client: &Client) -> Figures {
    Figures::parse(client.get("/metrics").expect(200).text())
}

fn is_ready(client: &Client) -> bool {
    client.get("/health/ready").status == 200
}

#[test]
fn readiness_requires_quorum() {
    let dev = Fleet::new("3", &[]);
    let (agent, leader) = (dev.client(), dev.leader());
    let survivor = SERVERS.into_iter().rev().find(|server| *server != leader).expect("there are three");
    let watched = dev.monitor(survivor);
    SERVERS.into_iter().for_each(|server| wait_until(|| is_ready(&dev.monitor(server))));
    wait_until(|| is_ready(&agent));
    let changes = figures(&watched).value("lockmesh_server_leader_changes_total");

    let lost: Vec<&str> = SERVERS.into_iter().filter(|server| *server != survivor).collect();
    for server in &lost {
        dev.kill_process(server);
    }
    wait_until(|| !is_ready(&watched));
    wait_until(|| watched.get("/health/ready").text() == "no leader is known\n");
    assert_eq!(watched.get("/health/live").expect(200).text(), "live\n");
    wait_until(|| figures(&watched).value("lockmesh_server_leader_known") == 0.0);
    assert_eq!(figures(&watched).value("lockmesh_server_ready"), 0.0);
    wait_until(|| agent.get("/health/ready").status == 503);
    agent.get("/health/live").expect(200);

    let back: Vec<Process> = lost.iter().map(|server| dev.restart(server)).collect();
    wait_until(|| is_ready(&watched) && is_ready(&agent));
    wait_until(|| figures(&watched).value("lockmesh_server_leader_known") == 1.0);
    assert!(figures(&watched).value("lockmesh_server_leader_changes_total") > changes);
    for process in back {
        process.signal("TERM");
        assert_eq!(process.ends(), 0);
    }
    dev.stop();
}

#[test]
fn work_shows_in_the_figures() {
    let dev = Fleet::new("1", &[]);
    let (client, watched) = (dev.client(), dev.monitor("s1"));
    let before = figures(&watched);
    for series in [
        "lockmesh_server_losses_total{cause=\"check_critical\"}",
        "lockmesh_server_locks_lost_total{cause=\"destroyed\"}",
        "lockmesh_server_writes_total{outcome=\"queued\"}",
        "lockmesh_server_request_seconds_count{kind=\"blocking\"}",
        "lockmesh_server_lock_wait_seconds_count",
        "lockmesh_server_locks_held",
        "lockmesh_rpc_refused_malformed_total",
    ] {
        assert_eq!(before.value(series), 0.0, "{series} exists from the start");
    }
    let at_the_start = figures(&client);
    assert_eq!(at_the_start.value("lockmesh_http_refusals_total{reason=\"queue_full\"}"), 0.0);
    assert_eq!(at_the_start.value("lockmesh_http_requests_total{endpoint=\"/v1/txn\",status=\"500\"}"), 0.0);

    let session = client.put("/v1/session/create", r#"{"LockDelay":"0s"}"#).expect(200).json();
    let session = session["ID"].as_str().expect("an id").to_owned();
    client.put(&format!("/v1/kv/lock?acquire={session}"), "mine").expect(200);
    wait_until(|| figures(&watched).value("lockmesh_server_locks_held") == 1.0);
    client.put(&format!("/v1/session/destroy/{session}"), "").expect(200);
    wait_until(|| figures(&watched).value("lockmesh_server_locks_held") == 0.0);
    let after = figures(&watched);
    assert_eq!(after.value("lockmesh_server_losses_total{cause=\"destroyed\"}"), 1.0);
    assert_eq!(after.value("lockmesh_server_locks_lost_total{cause=\"destroyed\"}"), 1.0);
    for name in ["commit", "fsync", "apply", "queue_wait"] {
        let count = format!("lockmesh_server_{name}_seconds_count");
        assert!(after.value(&count) > before.value(&count), "{name}");
    }
    let writes = "lockmesh_server_request_seconds_count{kind=\"write\"}";
    assert!(after.value(writes) >= before.value(writes) + 3.0);
    let last_backup = || figures(&watched).value("lockmesh_server_last_backup_timestamp_seconds");
    assert_eq!(last_backup(), 0.0);
    client.get("/v1/snapshot").expect(200);
    assert!(last_backup() > 1.5e9, "{}", last_backup());
    let agent = figures(&client);
    assert!(agent.value("lockmesh_http_request_seconds_count{group=\"session\"}") >= 2.0);
    assert!(after.value("process_start_time_seconds") > 1.5e9 && after.value("process_open_fds") > 3.0);
    dev.stop();
}

#[test]
fn taken_port_error_names_key() {
    let dev = Fleet::new("1", &[]);
    let Address::Tcp(taken) = dev.monitor("s1").address else { panic!("it is a TCP port") };
    let config = dev.folder.join("s1/server.toml");
    let (data, listen) =
        (format!("data_dir={}", dev.folder.join("other").display()), format!("http.listen={taken}"));
    let free = "rpc.listen=127.0.0.1:0";
    let settings = ["--set", &data, "--set", &listen, "--set", free, "--set", "pid_file="];
    let command = ["server", "--config", config.to_str().expect("text")];
    let (code, _, said) = run(&[&command[..], &settings[..]].concat());
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("choose another `http.listen`") && said.contains(&taken.to_string()), "{said}");
    dev.stop();
}

/// Returns a file of the `deploy` folder.
pub(crate) fn deployed(file: &str) -> String {
    fs::read_to_string(deploy_path(file)).expect("it is there")
}

fn deploy_path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

/// Returns the tables of the page for operators: title, value of the column *at*, metrics.
fn tables() -> [(&'static str, &'static str, Vec<&'static Row>); 3] {
    [
        ("### Servers", "server", lockmesh_server::metrics::rows().collect()),
        ("### Agents", "agent", lockmesh_agent::metrics::rows().collect()),
        ("### Both", "both", lockmesh_net::metrics::process::rows().collect()),
    ]
}

/// Returns the page with a row for each metric. Meanings are kept by name; that of a new metric is
/// its help.
fn rewritten(page: &str) -> String {
    let is_row = |line: &&str| line.starts_with("| `");
    let meaning = |line: &str| {
        let mut cells = line.splitn(5, '|').skip(1);
        let name = cells.next()?.trim().trim_matches('`').to_owned();
        Some((name, cells.nth(2)?.trim().to_owned()))
    };
    let meanings: BTreeMap<String, String> = page.lines().filter(is_row).filter_map(meaning).collect();
    let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
    for (title, at, rows) in tables() {
        let title = lines.iter().position(|line| line == title).expect("the page has the section");
        let start =
            title + lines[title..].iter().position(|line| is_row(&line.as_str())).expect("it has rows");
        let count = lines[start..].iter().take_while(|line| is_row(&line.as_str())).count();
        let row = |row: &Row| {
            let meaning = meanings.get(row.name).cloned().unwrap_or_else(|| format!("{} | |", row.help));
            for label in row.labels {
                assert!(meaning.contains(&format!("`{label}`")), "`{}` does not explain `{label}`", row.name);
            }
            format!("| `{}` | {} | {at} | {meaning}", row.name, row.kind)
        };
        lines.splice(start..start + count, rows.into_iter().map(row));
    }
    lines.join("\n") + "\n"
}

#[test]
fn metrics_page_matches_tables() {
    let page = deployed("metrics.md");
    let rewritten = rewritten(&page);
    if std::env::var_os("UPDATE_METRICS").is_some() {
        fs::write(deploy_path("metrics.md"), rewritten).expect("the page can be written");
        return;
    }
    let different = page.lines().zip(rewritten.lines()).find(|(old, new)| old != new);
    assert!(page == rewritten, "UPDATE_METRICS=1 rewrites the page: {different:?}");
}

/// Returns the metric names in a file for Prometheus or Grafana.
fn named_in(file: &str) -> BTreeSet<String> {
    let text = deployed(file);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c));
    let named = words.filter(|word| word.starts_with("lockmesh_") || word.starts_with("process_"));
    let of_histogram = |word: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        suffixes.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word).to_owned()
    };
    named.map(of_histogram).collect()
}

#[test]
fn exported_metrics_match_tables() {
    let dev = Fleet::new("3", &[]);
    let families = |clients: &[Client]| -> BTreeMap<String, String> {
        clients.iter().flat_map(|client| figures(client).families).collect()
    };
    let monitors = SERVERS.map(|server| dev.monitor(server));
    // Only the leader exports metrics of other servers, from its first turns on.
    wait_until(|| families(&monitors).contains_key("lockmesh_server_follower_lag_entries"));
    let (servers, agent) = (families(&monitors), families(&[dev.client()]));
    let listed = |role: &str| -> BTreeMap<String, String> {
        let tables = tables().into_iter().filter(|(_, at, _)| *at == role || *at == "both");
        tables.flat_map(|(_, _, rows)| rows).map(|row| (row.name.into(), row.kind.into())).collect()
    };
    assert_eq!(listed("server"), servers);
    assert_eq!(listed("agent"), agent);
    let known: BTreeSet<String> = servers.keys().chain(agent.keys()).cloned().collect();
    for file in ["alerts.yml", "alerts_test.yml", "grafana-dashboard.json"] {
        let named = named_in(file);
        let unknown: Vec<&String> = named.difference(&known).collect();
        assert!(named.len() > 10 && unknown.is_empty(), "{file}: {unknown:?}");
    }
    for (name, kind) in servers.iter().chain(&agent) {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
    }
    dev.stop();
}
