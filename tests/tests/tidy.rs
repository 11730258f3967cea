//! Style checks: an untidy tree fails. The tables define what is allowed where; each rule is also
//! tested on a bad snippet, to show that it can fail. Checks must never decide questions that
//! require human judgement.

use lockmesh_tests::tidy::weight::Lines;
use lockmesh_tests::tidy::{Fault, Source, rules, test_names, tree, weight};

/// Maximum length of a file, in lines. Aim at 300.
const FILE_LINES: usize = 1000;

/// Maximum width of a comment line, in characters.
const COMMENT_COLUMNS: usize = 100;

/// Maximum length of a function, in lines. Aim at 40.
const FUNCTION_LINES: usize = 70;

/// Maximum lines of code in all `impl` blocks of a type together. Aim at 300.
const IMPL_LINES: usize = 700;

/// The most lines of code of each crate, blank lines and comments apart. Raise a number only in the
/// commit that needs it, with the reason.
const CEILINGS: [weight::Ceiling; 11] = [
    ("protocol", most(4_560, 1_090)),
    ("protocol/net", most(2_500, 1_290)),
    ("server/core", most(17_600, 16_600)),
    ("server", most(9_340, 4_800)),
    ("agent/client", most(7_430, 3_580)),
    ("agent/core", most(10_780, 7_900)),
    ("agent", most(17_500, 11_200)),
    ("agent/cli", most(12_200, 4_280)),
    ("agent/migrate", most(2_790, 1_360)),
    ("tests", most(0, 41_950)),
    ("tests/bench/compare", most(0, 1_170)),
];

const fn most(product: usize, tests: usize) -> Lines {
    Lines { product, tests }
}

/// Maximum length of a test's name, in words, and of the median of all.
const TEST_NAME_WORDS: usize = 8;
const TEST_NAME_MEDIAN: usize = 5;

/// First words of names that narrate.
const TEST_NAME_OPENINGS: &[&str] = &["what", "who", "whoever", "how", "where", "whether"];

/// Types that are larger, and their limits, which only get lower.
const LARGE_TYPES: &[(&str, &str, usize)] = &[];

/// Everything that the top folder may contain besides dotfiles.
const TOP: [&str; 10] = [
    "Cargo.toml",
    "Cargo.lock",
    "README.md",
    "LICENSE",
    "agent",
    "server",
    "protocol",
    "tests",
    "deploy",
    "target",
];

/// Our crates: the folder, and our crates that it may depend on.
const CRATES: [(&str, &[&str]); 10] = [
    ("protocol", &[]),
    ("protocol/net", &["lockmesh-protocol"]),
    ("server/core", &["lockmesh-protocol"]),
    ("server", &["lockmesh-protocol", "lockmesh-net", "lockmesh-core"]),
    ("agent/client", &[]),
    ("agent/core", &["lockmesh-protocol"]),
    ("agent", &["lockmesh-protocol", "lockmesh-net", "lockmesh-client", "lockmesh-agent-core"]),
    (
        "agent/migrate",
        &[
            "lockmesh-protocol",
            "lockmesh-net",
            "lockmesh-client",
            "lockmesh-agent",
            "lockmesh-agent-core",
            "lockmesh-server",
        ],
    ),
    (
        "agent/cli",
        &[
            "lockmesh-protocol",
            "lockmesh-net",
            "lockmesh-client",
            "lockmesh-agent",
            "lockmesh-server",
            "lockmesh-migrate",
        ],
    ),
    (
        "tests",
        &[
            "lockmesh-protocol",
            "lockmesh-net",
            "lockmesh-core",
            "lockmesh-server",
            "lockmesh-client",
            "lockmesh-agent",
            "lockmesh-agent-core",
            "lockmesh-cli",
        ],
    ),
];

/// The folders where each dependency may be named outside of tests: replacing a library affects one
/// place.
const HOMES: &[(&str, &[&str])] = &[
    ("lockmesh_agent", &["agent/cli/src/", "agent/migrate/src/"]),
    ("lockmesh_cli", &["agent/cli/src/main.rs"]),
    ("lockmesh_migrate", &["agent/cli/src/command/"]),
    ("lockmesh_server", &["agent/cli/src/", "agent/migrate/src/config/"]),
    ("base64", &["agent/client/src/shape/blob.rs", "agent/src/probes/http.rs"]),
    ("bincode", &["protocol/src/wire.rs"]),
    ("chacha20poly1305", &["protocol/src/gossip/seal.rs"]),
    ("clap", &["agent/cli/src/command/"]),
    ("clap_complete", &["agent/cli/src/command/"]),
    ("ed25519_dalek", &["protocol/src/gossip/verdict.rs"]),
    ("flate2", &["agent/src/http/", "agent/src/probes/http.rs"]),
    ("foca", &["agent/core/src/gossip/engine.rs"]),
    ("fastrand", &["agent/client/src/"]),
    ("futures_util", &["agent/client/src/election.rs"]),
    ("getrandom", &["protocol/net/src/random.rs"]),
    ("h2", &["agent/src/probes/http2.rs"]),
    ("hdrhistogram", &["agent/cli/src/command/bench/figures.rs"]),
    ("http", &["agent/src/http/", "server/src/http.rs"]),
    (
        "http_body_util",
        &[
            "agent/src/http/",
            "agent/src/probes/http.rs",
            "agent/client/src/connection.rs",
            "server/src/http.rs",
        ],
    ),
    ("hmac", &["protocol/src/lease.rs"]),
    (
        "hyper",
        &["agent/src/http/", "agent/src/probes/", "agent/client/src/connection.rs", "server/src/http.rs"],
    ),
    (
        "hyper_util",
        &[
            "agent/src/http/",
            "agent/src/probes/http.rs",
            "agent/client/src/connection.rs",
            "server/src/http.rs",
        ],
    ),
    ("mimalloc", &["agent/cli/src/main.rs"]),
    ("prometheus", &["agent/src/metrics.rs", "protocol/net/src/metrics/", "server/src/metrics.rs"]),
    ("protobuf", &["server/core/src/raft/engine.rs"]),
    ("quinn", &["protocol/net/src/quic.rs"]),
    ("raft", &["server/core/src/raft/engine.rs"]),
    ("rcgen", &["protocol/net/src/certificate.rs"]),
    ("rand_core", &["agent/core/src/gossip/engine.rs"]),
    ("redb", &["server/src/store/"]),
    ("regex_lite", &["agent/core/src/pattern.rs"]),
    (
        "rustix",
        &[
            "agent/src/",
            "agent/cli/src/",
            "agent/client/src/",
            "server/src/background.rs",
            "protocol/net/src/metrics/process.rs",
            "protocol/net/src/owner.rs",
            "server/src/store/disk.rs",
            "server/src/store/origin.rs",
            "tests/src/guards/",
            "tests/src/hosts/belief.rs",
        ],
    ),
    ("rustls", &["protocol/net/src/tls.rs"]),
    ("rustls_native_certs", &["agent/src/probes/tls.rs"]),
    (
        "sha2",
        &[
            "agent/migrate/src/kv/ledger.rs",
            "agent/src/http/",
            "agent/src/incarnation.rs",
            "agent/src/registry/folder.rs",
            "protocol/src/acl/mod.rs",
            "protocol/src/gossip/roster.rs",
            "protocol/src/lease.rs",
            "server/core/src/acl_upkeep.rs",
            "server/core/src/durability/checksum.rs",
            "server/src/snapshot/digest.rs",
        ],
    ),
    ("slog", &["server/core/src/raft/engine.rs"]),
    ("socket2", &["protocol/net/src/quic.rs", "agent/cli/src/dev/ports.rs"]),
    ("strsim", &["agent/cli/src/config/unknown.rs"]),
    ("tar", &["agent/src/http/"]),
    (
        "time",
        &[
            "protocol/net/src/certificate.rs",
            "server/src/store/origin.rs",
            "agent/src/",
            "agent/cli/src/command/",
        ],
    ),
    ("todc_utils", &["tests/src/history/independent.rs"]),
    ("tokio_rustls", &["agent/migrate/src/kv/tls.rs", "agent/src/probes/tls.rs"]),
    ("toml", &["agent/cli/src/config/mod.rs", "tests/src/hunt/table.rs"]),
    ("tracing_subscriber", &["agent/cli/src/telemetry.rs"]),
    ("twox_hash", &["server/src/store/log/"]),
    ("uuid", &["protocol/src/id.rs", "agent/src/"]),
    ("winnow", &["agent/src/http/filter/grammar.rs"]),
    ("x509_parser", &["protocol/net/src/certificate.rs"]),
];

/// Dependencies that are common to the whole tree, used only in tests, or our own.
const FREE: &[&str] = &[
    "bytes",
    "lockmesh_agent_core",
    "lockmesh_client",
    "lockmesh_core",
    "lockmesh_net",
    "lockmesh_protocol",
    "proptest",
    "serde",
    "serde_json",
    "tempfile",
    "thiserror",
    "tokio",
    "tracing",
];

/// The crates, folders and files without clock, disk, socket, thread, randomness or hash order.
const PURE: [&str; 6] = [
    "protocol/src/",
    "server/core/src/",
    "agent/core/src/",
    "agent/src/http/filter/",
    "agent/client/src/holder/",
    "agent/client/src/backoff.rs",
];

/// Names that a pure crate must not use.
const IMPURE: &[&str] = &[
    "HashMap",
    "HashSet",
    "RandomState",
    "Instant",
    "SystemTime",
    "UNIX_EPOCH",
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::sync::mpsc",
    "std::thread",
    "thread_local",
    "thread_rng",
    "getrandom",
    "tokio",
];

/// The modules of the server's core that the replicated state may use. What it reads decides what
/// every replica holds.
const REPLICATED: &[&str] = &["crate::state::", "crate::proposal::", "crate::fault_injection::"];

/// Markers of unfinished code, and of output that waits for its reader, with the remedy.
const UNFINISHED: &[(&str, &str)] = &[
    ("todo!", "finish it"),
    ("unimplemented!", "finish it"),
    ("dbg!", "use `tracing`"),
    ("eprintln!", "use `stdio::report`, which waits for no reader"),
    (".unwrap()", "use `expect(\"why it cannot happen\")`, or an error"),
    ("unbounded_channel", "everything has a limit: name one"),
    ("mpsc::channel()", "everything has a limit: use `sync_channel`"),
];

/// Words that have a standard replacement. Only this file may contain them.
const REPLACED: &[(&str, &str)] = &[
    ("asker", "caller, or origin"),
    ("compass", "leader tracker"),
    ("desk", "writer state"),
    ("disappoint", "fail"),
    ("flee", "step down"),
    ("helm", "connections"),
    ("lobby", "bootstrap"),
    ("mailbox", "event queue"),
    ("patience", "timeout, or wait limit"),
    ("portrait", "own record"),
    ("postman", "wake list"),
    ("sabotage", "fault injection"),
    ("seam", "fault point"),
    ("steer", "update"),
];

/// Standard terms, and the file that implements each: its first lines contain the term, so that a
/// search finds it.
const DECIDED_IN: &[(&str, &str)] = &[
    ("leader discovery", "agent/core/src/leader_tracker/mod.rs"),
    ("request id", "agent/core/src/request_ids.rs"),
    ("idempotent", "agent/core/src/request_ids.rs"),
    ("coalesced read", "agent/core/src/quorum_client/shared_reads.rs"),
    ("single-flight", "agent/core/src/quorum_client/shared_reads.rs"),
    ("bootstrap", "server/src/bootstrap/decide/mod.rs"),
    ("compaction", "server/core/src/durability/write_queue.rs"),
    ("snapshot transfer", "server/src/snapshot/download.rs"),
    ("autopilot", "server/core/src/autopilot/mod.rs"),
    ("read index", "server/core/src/read_index.rs"),
    ("backpressure", "server/core/src/frontend/admission.rs"),
    ("slow clients", "agent/src/http/guard.rs"),
    ("ttl", "server/core/src/time/timers.rs"),
    ("lock-delay", "server/core/src/state/invalidation.rs"),
    ("fencing", "server/core/src/state/lock.rs"),
    ("blocking quer", "server/core/src/frontend/watches.rs"),
    ("transaction", "server/core/src/state/txn.rs"),
    ("tombstone", "server/core/src/state/tombstone.rs"),
    ("semaphore", "agent/client/src/semaphore/mod.rs"),
    ("failure detector", "server/core/src/judge/mod.rs"),
    ("heartbeat", "server/core/src/judge/mod.rs"),
    ("failover", "server/core/src/judge/verdict.rs"),
    ("split brain", "server/core/src/judge/majority.rs"),
    ("anti-entropy", "server/core/src/judge/upkeep.rs"),
    ("group commit", "server/core/src/proposals.rs"),
    ("exactly once", "server/core/src/state/replies.rs"),
    ("failure detector", "agent/core/src/gossip/mod.rs"),
    ("swim", "agent/core/src/gossip/engine.rs"),
    ("suspicion", "agent/core/src/gossip/driver.rs"),
    ("suspicion", "server/core/src/judge/suspicions.rs"),
    ("refutation", "agent/core/src/gossip/driver.rs"),
    ("anti-entropy", "agent/core/src/gossip/schedule.rs"),
    ("anti-entropy", "agent/core/src/registry/sync.rs"),
    ("health check", "agent/core/src/registry/mod.rs"),
    ("flapping", "agent/core/src/registry/thresholds.rs"),
    ("key rotation", "server/core/src/state/gossip.rs"),
    ("replay protection", "protocol/src/gossip/seal.rs"),
    ("linearizable", "server/core/src/read_index.rs"),
    ("network coordinates", "server/core/src/state/node.rs"),
    ("rolling upgrade", "server/core/src/upgrade.rs"),
    ("leader election", "server/core/src/raft/engine.rs"),
    ("log replication", "server/core/src/raft/engine.rs"),
    ("joint consensus", "server/core/src/raft/engine.rs"),
    ("write-ahead log", "server/src/store/log/mod.rs"),
    ("torn write", "server/src/store/log/recovery.rs"),
    ("clock skew", "server/core/src/mesh/clock.rs"),
    ("prepared query", "agent/core/src/prepared_query/execution.rs"),
    ("blocking quer", "server/core/src/frontend/reads.rs"),
];

/// Names that begin with `get_` because the word is Consul's.
const GET_WORDS: &[&str] = &["get_tree", "get_or_empty"];

/// Files whose tests may sleep, with the reason.
const SLEEPERS: &[(&str, &str)] = &[
    ("tests/src/bin/crowd.rs", "retries while more clients connect than the agent has admitted"),
    ("tests/src/dialect.rs", "the one place where tests sleep, with the rule for it"),
    ("tests/src/bin/crowd.rs", "retries while more clients connect than were admitted so far"),
    (
        "tests/bench/compare/src/",
        "a program that measures for a while, with clients that hold locks for a while",
    ),
    ("tests/tests/upstream/figures.rs", "an election takes a while, and the time after it is measured"),
    ("tests/clients/", "a contender must hold the lock for a while, so that another could violate it"),
];

fn sources() -> Vec<Source> {
    tree::sources()
}

/// Texts that no file may cite, assembled here so that this file does not contain them.
fn citations() -> Vec<String> {
    let pieces = [
        ("shared", "/"),
        ("design", ".md"),
        ("consul-behaviour", ".md"),
        ("raft-contract", ".md"),
        ("issue", " 3"),
    ];
    let mut citations: Vec<String> = pieces.iter().map(|(front, back)| format!("{front}{back}")).collect();
    citations.push('\u{a7}'.to_string());
    citations
}

#[track_caller]
fn assert_tidy(faults: impl IntoIterator<Item = Fault>) {
    let lines: Vec<String> = faults.into_iter().map(|fault| fault.to_string()).collect();
    assert!(lines.is_empty(), "{} faults\n{}\n", lines.len(), lines.join("\n"));
}

fn assert_everywhere(rule: impl Fn(&Source) -> Vec<Fault>) {
    assert_tidy(sources().iter().flat_map(rule));
}

/// A Rust file on which a rule is tested.
fn snippet(text: &str) -> Source {
    Source::new("server/core/src/snippet.rs", text)
}

#[test]
fn files_open_with_module_doc() {
    assert_everywhere(rules::opens_with_a_module_doc);
    assert_eq!(rules::opens_with_a_module_doc(&snippet("use std::fmt;\n//! Too late.")).len(), 1);
    assert_eq!(rules::opens_with_a_module_doc(&snippet("//!\n")).len(), 1);
}

#[test]
fn files_are_short() {
    assert_everywhere(|source| rules::file_is_short(source, FILE_LINES));
    assert_eq!(rules::file_is_short(&snippet("//! a\n//! b\n//! c"), 2).len(), 1);
}

#[test]
fn functions_are_short() {
    assert_everywhere(|source| rules::functions_are_short(source, FUNCTION_LINES));
    let long =
        snippet("fn short() {\n}\nasync fn long(a: [u8; 2])\n{\n  if x {\n \"}\"\n }\n}\nfn short_too() {}");
    let faults = rules::functions_are_short(&long, 4);
    assert_eq!(faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [3]);
}

#[test]
fn types_are_short() {
    let all = sources();
    for (krate, _) in CRATES {
        let inner = CRATES.iter().filter(|(other, _)| other.starts_with(&format!("{krate}/")));
        let inner: Vec<_> = inner.map(|(other, _)| format!("{other}/")).collect();
        let is_own = |source: &&Source| {
            source.path.starts_with(&format!("{krate}/"))
                && !inner.iter().any(|other| source.path.starts_with(other.as_str()))
        };
        let own: Vec<_> = all.iter().filter(is_own).collect();
        assert_tidy(rules::types_are_short(krate, &own, IMPL_LINES, LARGE_TYPES));
    }
    let parts = [
        snippet(
            "impl<'a, T: Into<A>> Big<'a, T> {\n fn a() {}\n\n}\nimpl fmt::Display for Big<'_, B> {\n}\n",
        ),
        snippet("struct Big;\nimpl a::Big {\n // c\n fn b() {}\n}\nimpl Small {\n}\n"),
    ];
    let parts: Vec<_> = parts.iter().collect();
    assert_eq!(rules::impl_lines(&parts), [("Big".into(), 8), ("Small".into(), 2)].into());
    assert_eq!(rules::types_are_short("a", &parts, 7, &[]).len(), 1);
    assert!(rules::types_are_short("a", &parts, 7, &[("a", "Big", 8)]).is_empty());
}

#[test]
fn crates_keep_their_weight() {
    assert_tidy(weight::crates_keep_their_weight(&sources(), &CEILINGS));
    let source = snippet("//! a\nfn x() {}\n\n#[cfg(test)]\nmod tests {\n    // b\n    fn y() {}\n}\n");
    let faults = |product, tests| {
        weight::crates_keep_their_weight(
            std::slice::from_ref(&source),
            &[("server/core", most(product, tests))],
        )
    };
    assert_eq!((faults(1, 4).len(), faults(0, 4).len(), faults(1, 3).len()), (0, 1, 1));
}

#[test]
fn each_dependency_has_one_home() {
    let sources = sources();
    assert_tidy(sources.iter().flat_map(|source| rules::crates_stay_home(source, HOMES)));
    let away = snippet("use std::{fmt, time};\nuse redb::Database;\nfn a() { raft::Config::new(); }\n");
    let lines: Vec<usize> = rules::crates_stay_home(&away, HOMES).iter().map(|fault| fault.line).collect();
    assert_eq!(lines, [3, 2]);
}

#[test]
fn every_dependency_has_a_home() {
    let sources = sources();
    let manifest = sources.iter().find(|source| source.path == "Cargo.toml").expect("a top manifest");
    assert_tidy(rules::homes_are_complete(manifest, &sources, HOMES, FREE));
    let bad = Source::new("Cargo.toml", "[workspace.dependencies]\nnew-one = \"1\"\nidle = \"1\"\n[other]\n");
    let faults = rules::homes_are_complete(&bad, &[snippet("//! x")], &[("idle", &["server/"])], &["gone"]);
    assert_eq!(faults.len(), 3, "one without a home, one gone, one whose home is empty: {faults:?}");
}

#[test]
fn pure_crates_are_pure() {
    let why = "here time, randomness and order are arguments, and effects are return values";
    let rule = |source: &Source| rules::names_nothing_forbidden(source, IMPURE, why);
    let sources = sources();
    let pure = sources.iter().filter(|source| PURE.iter().any(|folder| source.path.starts_with(folder)));
    assert_tidy(pure.flat_map(rule));
    let bad =
        "use std::{fmt, fs, time::Instant};\nfn a() { std::thread::yield_now(); }\n#[tokio::main]\nfn b() {}";
    assert_eq!(rule(&snippet(bad)).len(), 4);
    assert_eq!(rule(&snippet("// std::fs\n#[cfg(test)]\nmod tests { use std::fs; }")), []);
}

#[test]
fn replicated_state_reads_nothing_else() {
    let sources = sources();
    let rule = |source: &Source| rules::imports_only(source, REPLICATED);
    let state = sources.iter().filter(|source| source.path.starts_with("server/core/src/state/"));
    assert_tidy(state.flat_map(rule));
    let bad = "use crate::observed::number_of;\nuse crate::state::State;\nfn a() { crate::judge::ask() }";
    assert_eq!(rule(&snippet(bad)).len(), 2);
}

#[test]
fn nothing_is_unfinished() {
    assert_everywhere(|source| rules::holds_nothing_unfinished(source, UNFINISHED));
    let bad =
        "fn a() { todo!() }\nfn b() { dbg!(c.unwrap()); }\nfn d() { \"todo!\" }\nfn e() { not_todo!() }";
    let lines: Vec<usize> =
        rules::holds_nothing_unfinished(&snippet(bad), UNFINISHED).iter().map(|fault| fault.line).collect();
    assert_eq!(lines, [1, 2, 2]);
}

#[test]
fn names_have_no_get() {
    assert_everywhere(|source| rules::names_have_no_get(source, GET_WORDS));
    let bad = snippet("fn get_x() {}\nfn forget_x() {}\nfn get_tree() {}");
    assert_eq!(rules::names_have_no_get(&bad, GET_WORDS).len(), 1);
}

#[test]
fn test_names_are_short() {
    let rule =
        |source: &Source| test_names::test_names_are_short(source, TEST_NAME_WORDS, TEST_NAME_OPENINGS);
    assert_everywhere(rule);
    let sources = sources();
    let names = sources.iter().flat_map(test_names::tests);
    let mut lengths: Vec<usize> = names.map(|(_, name)| name.split('_').count()).collect();
    lengths.sort_unstable();
    assert!(lengths[lengths.len() / 2] <= TEST_NAME_MEDIAN, "the median name has too many words");
    let bad =
        snippet("#[test]\nfn what_is() {}\n#[tokio::test]\nasync fn a_b_c_d_e_f_g_h_i() {}\nfn how() {}");
    assert_eq!(rule(&bad).iter().map(|fault| fault.line).collect::<Vec<_>>(), [2, 4]);
}

#[test]
fn contract_is_shown() {
    let sources = sources();
    let table = sources.iter().find(|source| source.path == "tests/contract.md").expect("it is there");
    assert_tidy(test_names::contract_is_shown(table, &sources));
    let table = Source::new("table.md", "| 1 | One. | `one` |\n| 2 | Two. | `two` |");
    let marked = snippet("/// Contract: 1, 3.\n#[test]\nfn one() {}");
    let faults = test_names::contract_is_shown(&table, &[marked]);
    assert_eq!(faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [2, 0]);
}

#[test]
fn nothing_hidden_is_cited() {
    assert_everywhere(|source| rules::cites_nothing_hidden(source, &citations()));
    let bad = format!("//! See {}{} \u{a7}3.", "design", ".md");
    assert_eq!(rules::cites_nothing_hidden(&snippet(&bad), &citations()).len(), 2);
}

#[test]
fn comments_are_wrapped() {
    assert_everywhere(|source| rules::comments_are_narrow(source, COMMENT_COLUMNS));
    let bad = snippet(
        "// This is wide.\n// So.\n// | a table is not wrapped |\nlet a = \"no comment, however wide\";",
    );
    let faults = rules::comments_are_narrow(&bad, 14);
    assert_eq!(faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [1]);
}

#[test]
fn words_are_the_fields() {
    let rule = |source: &Source| rules::says_the_fields_word(source, REPLACED);
    assert_tidy(sources().iter().filter(|source| source.path != "tests/tests/tidy.rs").flat_map(rule));
    let bad = snippet(
        "// Lobbyists seem free.\nstruct EventMailbox;\nfn a() { b.mailboxes_of(MAILBOX_LIMIT) }\n// fleet\n",
    );
    assert_eq!(rule(&bad).iter().map(|fault| fault.line).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn modules_name_their_standard_term() {
    let sources = sources();
    for (word, path) in DECIDED_IN {
        let source = sources.iter().find(|source| source.path == *path).expect("the file is there");
        assert_tidy(rules::opens_with_the_word(source, word));
    }
    assert_eq!(rules::opens_with_the_word(&snippet("//! Locks.\n\n\n// tombstone"), "tombstone").len(), 1);
}

#[test]
fn tests_wait_without_sleeping() {
    assert_everywhere(|source| rules::tests_wait_for_something(source, SLEEPERS));
    let bad = snippet(
        "fn a() { sleep(b); }\n#[cfg(test)]\nmod tests {\n fn c() { std::thread::sleep(d);\n while e() {\n sleep(f);\n } }\n}",
    );
    let faults = rules::tests_wait_for_something(&bad, &[]);
    assert_eq!(faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [4]);
    assert_eq!(rules::tests_wait_for_something(&bad, &[("server/core/", "it is a snippet")]), []);
}

#[test]
fn exceptions_have_reasons() {
    assert_everywhere(rules::exceptions_have_reasons);
    let bad = snippet("#[allow(dead_code)]\nfn a() {}\n#[expect(unused, reason = \"\")]\nfn b() {}");
    assert_eq!(rules::exceptions_have_reasons(&bad).len(), 1);
}

#[test]
fn top_folder_is_fixed() {
    let strange = |name: &String| !name.starts_with('.') && !TOP.contains(&name.as_str());
    let strangers: Vec<String> = tree::top_names().into_iter().filter(strange).collect();
    assert_eq!(strangers, [] as [String; 0], "the top folder is fixed: move these below it");
}

#[test]
fn crates_depend_downwards() {
    let sources = sources();
    for (krate, allowed) in CRATES {
        let path = format!("{krate}/Cargo.toml");
        let manifest = sources.iter().find(|source| source.path == path).expect("every crate has a manifest");
        assert_tidy(rules::crates_of_ours(manifest, "lockmesh-", allowed));
        assert_tidy(rules::manifest_follows_the_workspace(manifest));
    }
    let bad =
        Source::new("protocol/Cargo.toml", "[dependencies]\nlockmesh-net.workspace = true\nx = \"1\"\n");
    assert_eq!(rules::crates_of_ours(&bad, "lockmesh-", &[]).len(), 1);
    assert_eq!(rules::manifest_follows_the_workspace(&bad).len(), 2);
}

#[test]
fn crates_use_what_they_list() {
    let sources = sources();
    for (krate, _) in CRATES {
        let path = format!("{krate}/Cargo.toml");
        let manifest = sources.iter().find(|source| source.path == path).expect("every crate has a manifest");
        let inner = CRATES.iter().filter(|(other, _)| other.starts_with(&format!("{krate}/")));
        let inner: Vec<String> = inner.map(|(other, _)| format!("{other}/")).collect();
        let is_own = |source: &&Source| {
            source.path.starts_with(&format!("{krate}/"))
                && !inner.iter().any(|other| source.path.starts_with(other.as_str()))
        };
        let own: Vec<&Source> = sources.iter().filter(is_own).collect();
        assert_tidy(rules::dependencies_are_used(manifest, &own));
    }
    let bad = Source::new(
        "server/Cargo.toml",
        "[dependencies]\nredb.workspace = true\n[dev-dependencies]\nx = \"1\"\n",
    );
    let used = snippet("use redb::Database;");
    assert_eq!(rules::dependencies_are_used(&bad, &[&used]).len(), 1);
}

#[test]
fn crate_docs_map_every_module() {
    let sources = sources();
    for (krate, _) in CRATES {
        let root = root(krate, &sources);
        assert_tidy(rules::map_is_complete(root, krate, &modules(krate, &sources)));
    }
    let bad =
        Source::new("server/src/lib.rs", "//! | `a.rs` | y |\n//! | `b/` | z |\n\nmod c;\n// | `c.rs` | y |");
    let faults = rules::map_is_complete(&bad, "server", &["a.rs".into(), "c.rs".into()]);
    assert_eq!(faults.len(), 2, "one that is missing and one that is gone: {faults:?}");
}

/// Returns the file with a crate's docs: `lib.rs`, or `main.rs` of a crate that is only a program.
fn root<'a>(krate: &str, sources: &'a [Source]) -> &'a Source {
    let file = |name: &str| sources.iter().find(|source| source.path == format!("{krate}/src/{name}.rs"));
    file("lib").or_else(|| file("main")).expect("every crate has a root")
}

/// Returns the modules that the code map must name: folders below `src`, and files directly in it.
fn modules(krate: &str, sources: &[Source]) -> Vec<String> {
    let home = format!("{krate}/src/");
    let files = sources.iter().filter_map(|source| source.path.strip_prefix(&home));
    let own = root(krate, sources).path.strip_prefix(&home);
    let files = files.filter(|file| file.ends_with(".rs") && !file.contains('/') && Some(*file) != own);
    let folders = tree::folders(&home);
    let below =
        folders.iter().filter_map(|folder| folder.strip_prefix(&home)).map(|folder| format!("{folder}/"));
    files.map(str::to_owned).chain(below).collect()
}

#[test]
fn samples_show_the_defaults() {
    let sources = sources();
    let samples: Vec<&Source> =
        sources.iter().filter(|source| source.path.starts_with("deploy/config/")).collect();
    assert!(samples.len() >= 2, "deploy/config must hold a sample for each role");
    for sample in samples {
        assert!(
            rules::sample_is_tested(&sample.path, &sources),
            "no test compares {} with the defaults",
            sample.path
        );
    }
    assert!(!rules::sample_is_tested(
        "deploy/config/x.toml",
        &[snippet("fn a() { include_str!(\"x.toml\") }")]
    ));
}
