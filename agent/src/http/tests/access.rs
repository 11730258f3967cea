//! The rules of `[access]`, as clients of each listener see them: every verb of every endpoint, and
//! the requests that name keys in their path, query or body.

use super::{LOCAL, Reply, Stand};
use crate::config::{AccessConfig, Level, Scripts, UserRule};
use crate::http::access::Rules;
use crate::http::endpoint::table::{ROUTES, Right};
use crate::http::{Body, Peer};
use http::Request;
use lockmesh_protocol::id::LogIndex;

fn stand(config: AccessConfig) -> Stand {
    let mut stand = Stand::new();
    let api = std::sync::Arc::get_mut(&mut stand.api).expect("nothing else has it");
    api.access.rules = Rules::new(&config).expect("its users are known").into();
    stand
}

fn peer(address: &str) -> Peer {
    Peer::Tcp(format!("{address}:4711").parse().expect("an address"))
}

async fn send(stand: &Stand, peer: Peer, request: &str, body: &str) -> Reply {
    let (method, path) = request.split_once(' ').expect("a method and a path");
    let head = Request::builder().method(method).uri(path).header("host", "localhost");
    let head = head.header("content-length", body.len());
    stand.send_from(peer, head.body(Body::from(body.to_owned())).unwrap()).await
}

/// Returns the highest index of the state.
fn index(stand: &Stand) -> LogIndex {
    LogIndex(stand.quorum.state.lock().unwrap().1)
}

/// Requests whose level depends on the query.
const CONDITIONAL: [(&str, Level); 9] = [
    ("PUT /v1/kv/x?acquire=s", Level::Locks),
    ("PUT /v1/kv/x?release=s", Level::Locks),
    ("PUT /v1/kv/x?cas=1", Level::Locks),
    ("PUT /v1/kv/x?flags=1&wait=1s", Level::All),
    ("PUT /v1/kv/x", Level::All),
    ("DELETE /v1/kv/x?cas=1", Level::Locks),
    ("DELETE /v1/kv/x?acquire=s", Level::All),
    ("DELETE /v1/kv/x?recurse", Level::All),
    ("DELETE /v1/kv/x", Level::All),
];

/// Returns every verb of the table with the lowest level that permits it. Except for operator
/// requests the level does not come from the table, but from the lists here.
fn every_request() -> Vec<(String, Level)> {
    let mut requests: Vec<_> = CONDITIONAL.map(|(request, level)| (request.to_owned(), level)).into();
    let locks = [
        "session/create",
        "session/destroy/",
        "session/renew/",
        "agent/check/",
        "agent/service/",
        "lockmesh/acquire",
    ];
    let reads = [
        "PUT /v1/lockmesh/fence/verify",
        "PUT /v1/txn",
        "POST /v1/acl/templated-policy/preview/x",
        "POST /v1/internal/acl/authorize",
        "POST /v1/acl/login",
        "POST /v1/acl/logout",
        "HEAD /metrics",
        "HEAD /health/live",
        "HEAD /health/ready",
    ];
    for route in ROUTES {
        for verb in route.verbs.iter().filter(|verb| !matches!(verb.right, Right::WriteUnless(..))) {
            // Without a stream that stays open.
            let path = route.path.replace('*', "x").replace("/monitor", "/monitor?loglevel=x");
            let request = format!("{} {path}{}", verb.method, if path.ends_with('/') { "x" } else { "" });
            let is_lock = locks
                .iter()
                .any(|path| route.path.strip_prefix("/v1/").is_some_and(|rest| rest.starts_with(path)));
            let level = match (verb.method.as_str(), verb.right) {
                (_, Right::Operate) => Level::All,
                ("GET", _) => Level::Read,
                _ if reads.contains(&request.as_str()) => Level::Read,
                _ if is_lock => Level::Locks,
                _ => Level::All,
            };
            requests.push((request, level));
        }
    }
    requests
}

#[tokio::test]
async fn every_verb_judged_by_level() {
    for given in [Level::Read, Level::Locks, Level::All] {
        let config = AccessConfig { socket: given, tcp: given, remote: given, ..AccessConfig::default() };
        let stand = stand(config);
        for (request, level) in every_request() {
            for client in [LOCAL, peer("127.0.0.1"), peer("10.0.0.7")] {
                let before = index(&stand);
                let reply = send(&stand, client, &request, "").await;
                let refused = reply.status == 403;
                assert_eq!(refused, level > given, "{request} of {client} with {given}: {reply:?}");
                if refused {
                    reply.failed(403, "refused");
                    let reason = format!("needs the right \"{level}\", which `access.");
                    assert!(reply.text().contains(&reason), "{reply:?}");
                    assert_eq!(index(&stand), before, "nothing was done: {request}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn prefixes_limit_every_named_key() {
    let prefixes = vec!["jobs/".to_owned(), "web".to_owned()];
    let stand = stand(AccessConfig { tcp_prefixes: prefixes, ..AccessConfig::default() });
    for (allowed, request, body) in [
        (true, "GET /v1/kv/jobs/a", ""),
        (true, "GET /v1/kv/%6Aobs%2Fa", ""),
        (true, "GET /v1/kv/website?keys&separator=/", ""),
        (true, "GET /v1/kv/jobs/?recurse", ""),
        (true, "PUT /v1/kv/jobs/a", "x"),
        (true, "DELETE /v1/kv/jobs/?recurse", ""),
        (false, "GET /v1/kv/jobs?recurse", ""),
        (false, "GET /v1/kv/?keys", ""),
        (false, "GET /v1/kv/?recurse&separator=jobs/", ""),
        (false, "GET /v1/kv/other?index=5&wait=10s", ""),
        (false, "GET /v1/kv/other%2Fjobs%2F", ""),
        (false, "GET /v1/kv/Jobs/a?raw", ""),
        (false, "GET /v1/kv/%ffjobs/a", ""),
        (false, "PUT /v1/kv/other?cas=0", "x"),
        (false, "DELETE /v1/kv/?recurse", ""),
        (true, "GET /v1/lockmesh/locks?prefix=jobs/x", ""),
        (false, "GET /v1/lockmesh/locks?prefix=jobs", ""),
        (false, "GET /v1/lockmesh/locks?prefix=&prefix=jobs/", ""),
        (false, "GET /v1/lockmesh/locks", ""),
        (true, "GET /v1/lockmesh/waits?prefix=web", ""),
        (false, "GET /v1/lockmesh/waits", ""),
        (false, "GET /v1/lockmesh/losses?prefix=jobs/", ""),
        (false, "GET /v1/lockmesh/deadlocks", ""),
        (false, "GET /v1/snapshot", ""),
        (false, "PUT /v1/snapshot", ""),
        (false, "GET /v1/agent/monitor?loglevel=x", ""),
        (true, "PUT /v1/txn", r#"[{"KV": {"Verb": "set", "Key": "jobs/a", "Value": "eA=="}}]"#),
        (true, "PUT /v1/txn", r#"[{"Node": {"Verb": "get", "Node": {"Node": "node-one"}}}]"#),
        (false, "PUT /v1/txn", r#"[{"KV": {"Verb": "get-tree", "Key": "jobs"}}]"#),
        (
            false,
            "PUT /v1/txn",
            r#"[{"KV": {"Verb": "set", "Key": "jobs/a"}}, {}, {"kv": {"Verb": "set", "Key": "o"}}]"#,
        ),
        (
            false,
            "PUT /v1/lockmesh/acquire",
            r#"{"Session": "s", "Locks": [{"Key": "jobs/a"}, {"Key": "o"}]}"#,
        ),
        (true, "PUT /v1/lockmesh/fence/verify", r#"[{"Key": "jobs/a", "Fence": 1}]"#),
        (
            false,
            "PUT /v1/lockmesh/fence/verify?wait=9s",
            r#"[{"Key": "jobs/a", "Fence": 1}, {"Key": "o", "Fence": 1}]"#,
        ),
        (true, "GET /v1/session/list", ""),
        (true, "PUT /v1/session/create", ""),
        (true, "GET /v1/agent/self", ""),
        (true, "GET /v1/catalog/nodes", ""),
        (true, "OPTIONS /v1/kv/other", ""),
    ] {
        let before = index(&stand);
        let reply = send(&stand, peer("127.0.0.1"), request, body).await;
        assert_eq!(reply.status != 403, allowed, "{request} {body}: {reply:?}");
        if !allowed {
            assert_eq!(index(&stand), before, "nothing was done: {request} {body}");
        }
        assert_ne!(send(&stand, LOCAL, request, body).await.status, 403, "the socket may: {request} {body}");
    }
    let unclean = send(&stand, peer("127.0.0.1"), "GET /v1/kv/jobs/..%2Fother", "").await;
    assert_eq!((unclean.status.as_u16(), unclean.header("location")), (301, Some("/v1/kv/other")));
}

#[tokio::test]
async fn operations_judged_one_by_one() {
    let levels = [
        ("get get-or-empty get-tree check-session check-index check-not-exists", Level::Read),
        ("lock unlock cas delete-cas", Level::Locks),
        ("set delete delete-tree no-verb", Level::All),
    ];
    let verbs = |words: &'static str| words.split(' ');
    let operation = |verb: &str| format!(r#"{{"KV": {{"Verb": "{verb}", "Key": "a"}}}}"#);
    let catalog = [
        (r#"{"Node": {"Node": {"Node": "n"}, "Verb": ""#, r#""}}"#),
        (r#"{"Service": {"Node": "n", "Service": {"Service": "s"}, "Verb": ""#, r#""}}"#),
        (r#"{"Check": {"Check": {"Node": "n", "CheckID": "c"}, "Verb": ""#, r#""}}"#),
    ];
    let mut cases: Vec<_> = levels
        .into_iter()
        .flat_map(|(words, level)| verbs(words).map(move |verb| (operation(verb), level)))
        .collect();
    for (before, after) in catalog {
        let of = |verb: &str, level| (format!("{before}{verb}{after}"), level);
        cases.push(of("get", Level::Read));
        cases.extend(verbs("set cas delete delete-cas no-verb").map(|verb| of(verb, Level::All)));
    }
    for given in [Level::Read, Level::Locks, Level::All] {
        let stand = stand(AccessConfig { socket: given, ..AccessConfig::default() });
        for (operation, level) in &cases {
            let before = index(&stand);
            let reply = stand.put("/v1/txn", &format!("[{}, {operation}]", cases[0].0)).await;
            assert_eq!(reply.status == 403, *level > given, "{operation} with {given}: {reply:?}");
            assert!(reply.status != 403 || index(&stand) == before, "{operation}");
        }
    }
}

#[tokio::test]
async fn refusal_names_rule_and_remedy() {
    let user = UserRule { user: "1000".into(), rights: Level::Read, ..UserRule::default() };
    let mut config = AccessConfig {
        tcp: Level::Locks,
        tcp_prefixes: vec!["jobs/".into()],
        remote: Level::Read,
        users: vec![user],
        ..AccessConfig::default()
    };
    for (key, place) in [
        ("access.tcp", "line 7 of /etc/lockmesh/agent.toml"),
        ("access.remote", "--set access.remote=read"),
        ("access.users[0]", "line 12 of /etc/lockmesh/agent.toml"),
    ] {
        config.origins.insert(key, place.into());
    }
    let mut stand = stand(config);
    let api = std::sync::Arc::get_mut(&mut stand.api).expect("nothing else has it");
    api.access.operator_socket = Some("/run/a.sock".into());
    let refusals = || crate::metrics::LIMITS.with_label_values(&["access"]).get();
    let before = refusals();
    let socket = "use the Unix socket with CONSUL_HTTP_ADDR=unix:///run/a.sock, or";
    let change = "change this rule in the agent's configuration";
    let locks = "`access.tcp = \"locks\"` (line 7 of /etc/lockmesh/agent.toml)";
    for (client, request, text) in [
        (
            peer("127.0.0.1"),
            "PUT /v1/kv/jobs/a",
            format!(
                "PUT /v1/kv/jobs/a needs the right \"all\", which {locks} does not give: \
                 add `acquire`, `release` or `cas` to the query, or {socket} {change}"
            ),
        ),
        (
            peer("127.0.0.1"),
            "PUT /v1/agent/leave?token=t",
            format!(
                "PUT /v1/agent/leave needs the right \"all\", which {locks} does not give: {socket} {change}"
            ),
        ),
        (
            peer("127.0.0.1"),
            "GET /v1/kv/web?raw",
            format!(
                "GET /v1/kv/web names the key \"web\", which `access.tcp_prefixes = [\"jobs/\"]` (the default) \
                 does not include: use a key below one of these prefixes, or {socket} {change}"
            ),
        ),
        (
            peer("[::ffff:10.0.0.7]"),
            "DELETE /v1/kv/a",
            format!(
                "DELETE /v1/kv/a needs the right \"all\", which `access.remote = \"read\"` \
                 (--set access.remote=read) does not give: {change}"
            ),
        ),
        (
            LOCAL,
            "PUT /v1/session/create",
            format!(
                "PUT /v1/session/create needs the right \"locks\", which `rights = \"read\"` of user \"1000\" in \
                 `access.users` (line 12 of /etc/lockmesh/agent.toml) does not give: {change}"
            ),
        ),
    ] {
        send(&stand, client, request, "").await.is(403, &text);
    }
    assert!(refusals() >= before + 5);
}

#[tokio::test]
async fn replaced_rules_judge_next_request() {
    let stand = stand(AccessConfig { tcp: Level::Locks, ..AccessConfig::default() });
    let put = || send(&stand, peer("127.0.0.1"), "PUT /v1/kv/a", "");
    put().await.failed(403, "refused");
    stand.api.access.rules.replace(Rules::default());
    put().await.is(200, "true");
}

#[tokio::test]
async fn script_check_needs_all_rights() {
    let body = r#"{"Name": "c", "Args": ["true"], "Interval": "1h"}"#;
    for (level, status) in [(Level::Locks, 403), (Level::All, 200)] {
        let mut stand = stand(AccessConfig { socket: level, ..AccessConfig::default() });
        let api = std::sync::Arc::get_mut(&mut stand.api).expect("nothing else has it");
        api.access.scripts = Scripts::UnixSocket;
        let reply = stand.put("/v1/agent/check/register", body).await;
        assert_eq!(reply.status, status, "{reply:?}");
        let plain = stand.put("/v1/agent/check/register", r#"{"Name": "t", "TTL": "1h"}"#).await;
        assert_eq!(plain.status, 200, "{plain:?}");
    }
}
