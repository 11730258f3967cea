//! Migrations between two small HTTP servers.

pub(crate) mod fake;

use super::report::Report;
use super::tls::TlsOptions;
use super::{Migration, Options};
use crate::MigrateError;
use fake::Fake;
use lockmesh_client::Client;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::mpsc;

pub(super) struct Pair {
    pub(super) consul: Fake,
    pub(super) lockmesh: Fake,
    folder: TempDir,
}

async fn begin(options: &Options, target: Client) -> Result<Migration, MigrateError> {
    Migration::new(options.clone(), target, |_| ()).await
}

impl Pair {
    async fn start() -> Self {
        Self::with(Fake::start(false).await).await
    }

    pub(super) async fn with(consul: Fake) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { consul, lockmesh: Fake::start(true).await, folder }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A file with this token.
    fn token_file(&self, token: &str) -> PathBuf {
        let path = self.folder.path().join("token");
        std::fs::write(&path, token).expect("written");
        path
    }

    pub(super) fn args(&self) -> Options {
        Options {
            from: format!("http://127.0.0.1:{}", self.consul.port),
            from_token_file: None,
            tls: TlsOptions::default(),
            prefixes: vec!["a/".into()],
            to_prefix: String::new(),
            overwrite: false,
            allow_deletes: false,
            dry_run: false,
            verify_only: false,
            state: self.state(),
        }
    }

    pub(super) async fn migrate(&self, args: &Options) -> Result<Report, String> {
        let told = |error: MigrateError| error.to_string();
        let mut migration = begin(args, self.lockmesh.client()).await.map_err(told)?;
        // Nothing is repeated, so that no test waits.
        migration.retry_timeout = Duration::ZERO;
        migration.run(None).await.map_err(told)
    }

    /// Consul's keys `a/0` to `a/N`, and one outside of the prefix.
    pub(super) fn fill(&self, count: usize) {
        let mut world = self.consul.world();
        for number in 0..count {
            world.keys.put(&format!("a/{number:03}"), format!("v{number}").as_bytes(), number as u64);
        }
        world.keys.put("other", b"x", 0);
    }

    pub(super) fn assert_equal(&self) {
        let mut source = self.consul.world().keys.values();
        source.retain(|key, _| key.starts_with("a/"));
        assert_eq!(self.lockmesh.world().keys.values(), source);
    }
}

#[tokio::test]
async fn changes_during_copy_converge() {
    let pair = Pair::start().await;
    pair.fill(200);
    let mut rounds = 0;
    pair.consul.world().hook = Some(Box::new(move |keys| {
        rounds += 1;
        match rounds {
            // After the comparison, the first and the second pass.
            1 => keys.put("a/100", b"changed", 1),
            2 => {
                keys.put("a/100", b"changed again", 2);
                keys.put("a/new", b"", 3);
                keys.delete("a/005");
            }
            3 => keys.delete("a/new"),
            _ => {}
        }
    }));
    let report = pair.migrate(&pair.args()).await.expect("it ends");
    pair.assert_equal();
    let (written, found) = (&report.written, &report.comparison);
    assert_eq!((written.copied, written.updated, written.deleted, written.passes), (201, 1, 2, 4));
    assert_eq!((found.equal, found.differing.count), (199, 0));
    assert!(pair.lockmesh.world().transactions < 10, "keys are written in batches");
    let again = pair.migrate(&pair.args()).await.expect("it ends");
    assert_eq!((again.written.total(), again.comparison.equal), (0, 199), "nothing is written twice");
}

#[tokio::test]
async fn resumes_after_consul_outage() {
    let pair = Pair::start().await;
    pair.fill(200);
    let plan = Options { dry_run: true, ..pair.args() };
    let planned = pair.migrate(&plan).await.expect("it ends");
    assert_eq!((planned.comparison.missing, planned.written.total()), (200, 0));
    assert!(!pair.state().exists() && pair.lockmesh.world().keys.entries.is_empty());
    // The comparison gets its list, the first pass half of it.
    let mut migration = begin(&pair.args(), pair.lockmesh.client()).await.expect("it begins");
    migration.retry_timeout = Duration::ZERO;
    migration.plan().await.expect("no conflict");
    pair.consul.world().broken_lists = 1;
    let error = migration.copy(&mut None).await.expect_err("Consul is lost").to_string();
    assert!(
        error.starts_with("lost Consul at ")
            && error.ends_with("run the same command again, which continues")
    );
    drop(migration);
    let copied = pair.lockmesh.world().keys.entries.len();
    assert!((1..200).contains(&copied), "{copied}");
    // What the first run copied may be updated and deleted by the second.
    pair.consul.world().keys.put("a/000", b"newest", 1);
    pair.consul.world().keys.delete("a/001");
    let report = pair.migrate(&pair.args()).await.expect("it ends");
    pair.assert_equal();
    let written = &report.written;
    assert_eq!((written.copied, written.updated, written.deleted), (200 - copied as u64, 1, 1));
}

#[tokio::test]
async fn unanswered_write_is_no_conflict() {
    let pair = Pair::start().await;
    pair.fill(100);
    pair.lockmesh.world().lost_answers = 1;
    let mut migration = begin(&pair.args(), pair.lockmesh.client()).await.expect("it begins");
    migration.retry_timeout = Duration::ZERO;
    let error = migration.run(None).await.expect_err("the answer is lost").to_string();
    assert!(error.starts_with("Lockmesh: no reply"), "{error}");
    // The first batch was written and not noted; its keys change in Consul before the next run.
    pair.consul.world().keys.put("a/000", b"newer", 0);
    pair.consul.world().keys.delete("a/001");
    let report = pair.migrate(&pair.args()).await.expect("it continues");
    pair.assert_equal();
    assert_eq!((report.written.updated, report.written.deleted), (1, 1));
}

#[tokio::test]
async fn unanswered_write_survives_another_pass() {
    let pair = Pair::start().await;
    pair.fill(100);
    pair.lockmesh.world().lost_answers = usize::MAX;
    let mut lists = 0;
    pair.consul.world().hook = Some(Box::new(move |keys| {
        lists += 1;
        // The pass has read it and writes it.
        if lists == 2 {
            keys.delete("a/001");
        }
    }));
    let mut migration = begin(&pair.args(), pair.lockmesh.client()).await.expect("it begins");
    migration.retry_timeout = Duration::from_millis(300);
    let error = migration.run(None).await.expect_err("all answers are lost").to_string();
    assert!(error.starts_with("Lockmesh: no reply") && error.ends_with("which continues"), "{error}");
    assert!(pair.lockmesh.world().keys.entries.contains_key("a/001"));
    pair.lockmesh.world().lost_answers = 0;
    assert_eq!(pair.migrate(&pair.args()).await.expect("it continues").written.deleted, 1);
    pair.assert_equal();
}

#[tokio::test]
async fn foreign_keys_not_overwritten_or_deleted() {
    let pair = Pair::start().await;
    pair.fill(3);
    {
        let keys = &mut pair.lockmesh.world().keys;
        keys.put("a/000", b"mine", 0);
        keys.put("a/001", b"v1", 1);
        keys.put("a/mine", b"mine", 0);
    }
    let before = pair.lockmesh.world().keys.values();
    let error = pair.migrate(&pair.args()).await.expect_err("a conflict");
    assert!(
        error
            .starts_with("1 key with other values in Lockmesh:\n  a/000: values differ\nNothing was written")
    );
    assert!(error.contains("--overwrite") && pair.lockmesh.world().keys.values() == before);
    let forced = Options { overwrite: true, ..pair.args() };
    let report = pair.migrate(&forced).await.expect("it may overwrite");
    assert_eq!((report.written.copied, report.written.updated), (1, 1));
    assert_eq!((report.comparison.equal, report.comparison.only_in_lockmesh.count), (3, 1));
    // Deleted in Consul: only what was copied or overwritten goes.
    for key in ["a/000", "a/001", "a/002"] {
        pair.consul.world().keys.delete(key);
    }
    pair.consul.world().keys.put("a/009", b"x", 0);
    let report = pair.migrate(&pair.args()).await.expect("it ends");
    assert_eq!(report.written.deleted, 2);
    let left: Vec<_> = pair.lockmesh.world().keys.entries.keys().cloned().collect();
    assert_eq!(left, ["a/001", "a/009", "a/mine"]);
    assert!(report.comparison.differing.keys[0].reason.contains("in Lockmesh before the migration"));
    assert!(report.verdict(false).is_err(), "the two sides differ");
    // A copied key that was changed in Lockmesh is a conflict of the next run.
    pair.lockmesh.world().keys.put("a/009", b"y", 0);
    let error = pair.migrate(&pair.args()).await.expect_err("a conflict");
    assert!(error.contains("a/009: values differ"), "{error}");
}

#[tokio::test]
async fn concurrent_lockmesh_change_reported() {
    let pair = Pair::start().await;
    pair.fill(2);
    let mut migration = begin(&pair.args(), pair.lockmesh.client()).await.expect("it begins");
    migration.plan().await.expect("no conflict");
    pair.lockmesh.world().keys.put("a/000", b"meanwhile", 0);
    pair.lockmesh.world().keys.put("a/001", b"v1", 1);
    let report = migration.run(None).await.expect_err("a conflict").to_string();
    assert!(report.contains("1 key with other values"), "the plan sees it again: {report}");
    let mut migration = begin(&pair.args(), pair.lockmesh.client()).await.expect("it begins");
    migration.copy(&mut None).await.expect("the other key is equal");
    assert_eq!(pair.lockmesh.world().keys.values()["a/000"].0, b"meanwhile");
    migration.options.verify_only = true;
    let report = migration.run(None).await.expect("it ends");
    assert_eq!((report.comparison.equal, report.comparison.conflicts.count), (1, 1));
}

#[tokio::test]
async fn unsupported_keys_listed_before_writing() {
    let pair = Pair::start().await;
    pair.fill(2);
    pair.consul.world().keys.put("a/large", &vec![0; (512 << 10) + 1], 0);
    pair.consul.world().keys.put("a//empty", b"", 0);
    pair.consul.world().keys.put("a/\u{fffd}", b"", 0);
    let error = pair.migrate(&pair.args()).await.expect_err("they do not fit");
    for part in [
        "3 keys that Lockmesh cannot have",
        "a/large: the value has 524289 bytes",
        "a//empty: the key ",
        "not UTF-8",
        "Nothing was",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(pair.lockmesh.world().keys.entries.is_empty());
}

#[tokio::test]
async fn extreme_values_copied_to_new_prefix() {
    let pair = Pair::start().await;
    pair.consul.world().keys.put("a/large", &vec![7; 512 << 10], u64::MAX);
    pair.consul.world().keys.put("a/none", b"", 0);
    if let Some(entry) = pair.consul.world().keys.entries.get_mut("a/none") {
        entry.session = "s".into();
    }
    let args = Options { to_prefix: "new".into(), ..pair.args() };
    let report = pair.migrate(&args).await.expect("they fit");
    let expected = pair.consul.world().keys.values();
    let expected: Vec<_> = expected.into_iter().map(|(key, value)| (format!("new/{key}"), value)).collect();
    assert_eq!(pair.lockmesh.world().keys.values().into_iter().collect::<Vec<_>>(), expected);
    let text = report.text();
    assert!(text.contains("1 key locked in Consul.") && text.contains("  new/a/none"), "{text}");
    assert!(text.ends_with("Sessions, locks, services, checks and ACLs are not copied."));
    // The index of the large key is not known, and its next change is still safe.
    pair.consul.world().keys.put("a/large", b"small", 0);
    let report = pair.migrate(&args).await.expect("it ends");
    assert_eq!((report.written.updated, report.comparison.differing.count), (1, 0));
}

#[tokio::test]
async fn errors_include_remedy() {
    let pair = Pair::start().await;
    pair.fill(1);
    let none = Options { prefixes: vec!["b/".into()], ..pair.args() };
    let error = pair.migrate(&none).await.expect_err("no keys");
    assert!(error.contains("no keys under [\"b/\"]") && error.contains("--from-token-file"), "{error}");
    pair.consul.world().refusal = Some((403, "Permission denied"));
    let error = pair.migrate(&pair.args()).await.expect_err("no permission");
    assert!(error.contains("(403): Permission denied; give a token"), "{error}");
    for status in [301, 302, 307, 308] {
        pair.consul.world().proxy = Some((status, ""));
        let error = pair.migrate(&pair.args()).await.expect_err("a redirect");
        assert!(error.ends_with("write https:// in --from, or name the HTTP address of a Consul agent"));
    }
    pair.consul.world().proxy = None;
    let unnamed = Options { prefixes: vec!["a//".into()], ..pair.args() };
    let error = pair.migrate(&unnamed).await.expect_err("no path");
    assert!(error.starts_with("--prefix: \"a//\" begins with a slash, or has an empty part"), "{error}");
    pair.lockmesh.world().proxy = Some((403, "ACLs are not implemented"));
    let error = pair.migrate(&pair.args()).await.expect_err("the token is refused");
    assert_eq!(error, "Lockmesh: refused (403): ACLs are not implemented");
    pair.lockmesh.world().proxy = None;
    let socket = Options { from: "https:///run/consul.sock".into(), ..pair.args() };
    let error = pair.migrate(&socket).await.expect_err("no host");
    assert!(error.contains("https:// needs a host"), "{error}");
    let closed = Options { from: "127.0.0.1:1".into(), ..pair.args() };
    let error = pair.migrate(&closed).await.expect_err("no listener");
    assert!(error.starts_with("cannot connect to Consul at 127.0.0.1:1: "), "{error}");
    let itself = Options { from: format!("127.0.0.1:{}", pair.lockmesh.port), ..pair.args() };
    let error = pair.migrate(&itself).await.expect_err("no Consul");
    assert!(error.contains("is a Lockmesh agent: name a Consul agent with --from"), "{error}");
    let swapped = begin(&pair.args(), pair.consul.client()).await.err().expect("no Lockmesh").to_string();
    assert!(swapped.contains("is no Lockmesh agent: name one with --http-addr"), "{swapped}");
}

#[tokio::test]
async fn empty_consul_list_deletes_nothing() {
    let pair = Pair::start().await;
    pair.fill(3);
    pair.migrate(&pair.args()).await.expect("it ends");
    pair.consul.world().keys.entries.clear();
    let error = pair.migrate(&pair.args()).await.expect_err("it is suspicious");
    assert!(error.starts_with("Consul lists no keys any more"), "{error}");
    assert_eq!(pair.lockmesh.world().keys.entries.len(), 3);
}

#[tokio::test]
async fn filtered_consul_list_changes_nothing() {
    let pair = Pair::start().await;
    pair.fill(3);
    pair.migrate(&pair.args()).await.expect("it ends");
    pair.consul.world().keys.delete("a/001");
    pair.consul.world().is_filtered = true;
    let args = Options { from_token_file: Some(pair.token_file("secret\n")), ..pair.args() };
    let mut migration = begin(&args, pair.lockmesh.client()).await.expect("it begins");
    migration.retry_timeout = Duration::ZERO;
    let error = migration.copy(&mut None).await.expect_err("entries are missing").to_string();
    assert!(error.contains("may not read all of them; give a token"), "{error}");
    assert_eq!(pair.lockmesh.world().keys.entries.len(), 3);
}

#[tokio::test]
async fn different_consul_deletes_nothing() {
    let pair = Pair::start().await;
    pair.fill(30);
    pair.migrate(&pair.args()).await.expect("it ends");
    pair.consul.world().datacenter = "dc2";
    let error = pair.migrate(&pair.args()).await.expect_err("another datacenter");
    let (from, not) = ("belongs to a migration from dc1 at 127.0.0.1:", ", not from dc2 at 127.0.0.1:");
    assert!(error.contains(from) && error.contains(not), "{error}");
    // The same name, but hardly any of its keys.
    pair.consul.world().datacenter = "dc1";
    for number in 0..16 {
        pair.consul.world().keys.delete(&format!("a/{number:03}"));
    }
    let (before, state) = (pair.lockmesh.world().keys.values(), std::fs::read(pair.state()).expect("read"));
    let error = pair.migrate(&pair.args()).await.expect_err("it is suspicious");
    assert!(error.starts_with("16 of 30 copied keys are not in Consul any more"), "{error}");
    assert!(error.ends_with("use --allow-deletes"), "{error}");
    assert_eq!(pair.lockmesh.world().keys.values(), before);
    assert_eq!(std::fs::read(pair.state()).expect("read"), state);
    let args = Options { allow_deletes: true, ..pair.args() };
    assert_eq!(pair.migrate(&args).await.expect("it may").written.deleted, 16);
    pair.assert_equal();
    // Up to half of the keys, or a few of them.
    for (keys, deleted) in [(16..23, 7), (23..30, 7)] {
        pair.consul.world().keys.put(&format!("a/{deleted}"), b"", 0);
        keys.for_each(|number| pair.consul.world().keys.delete(&format!("a/{number:03}")));
        assert_eq!(pair.migrate(&pair.args()).await.expect("it may").written.deleted, deleted);
    }
}

#[tokio::test]
async fn consul_acls_require_token() {
    let pair = Pair::start().await;
    pair.fill(3);
    pair.consul.world().is_filtered = true;
    for reply in [
        (403, "ACL not found"),
        (200, "{\"AccessorID\": \"00000000-0000-0000-0000-000000000002\", \"Policies\": []}"),
    ] {
        pair.consul.world().token = reply;
        let error = pair.migrate(&pair.args()).await.expect_err("its lists may lack keys");
        assert!(error.starts_with("Consul has ACLs") && error.contains("--from-token-file FILE"), "{error}");
    }
    let with = |token| Options { from_token_file: Some(pair.token_file(token)), ..pair.args() };
    let error = pair.migrate(&with(" \n")).await.expect_err("no token");
    assert!(error.starts_with("the token file ") && error.contains(" is empty: write"), "{error}");
    pair.consul.world().is_filtered = false;
    pair.migrate(&with("secret")).await.expect("it may read the keys");
    pair.assert_equal();
    // The agent has a token of its own for such requests, or its version does not know the route.
    for reply in [(200, "{\"AccessorID\": \"3c1b9df7-efd0-e821-a83e-ef87267d0882\"}"), (404, "")] {
        pair.consul.world().token = reply;
        pair.migrate(&pair.args()).await.expect("Consul reports what it hides");
    }
}

#[tokio::test]
async fn change_before_signal_is_copied() {
    let pair = Pair::start().await;
    pair.fill(3);
    pair.migrate(&pair.args()).await.expect("it ends");
    for signals in [1, 2] {
        let mut migration = begin(&pair.args(), pair.lockmesh.client()).await.expect("it begins");
        migration.retry_timeout = Duration::ZERO;
        let (sender, stop) = mpsc::channel(2);
        let mut lists = 0;
        // The list of the pass does not have the key any more.
        pair.consul.world().hook = Some(Box::new(move |keys| {
            lists += 1;
            if lists <= signals {
                keys.put(&format!("a/late{signals}{lists}"), b"", 0);
                sender.try_send(()).expect("there is room");
            }
        }));
        let outcome = migration.copy(&mut Some(stop)).await;
        match signals {
            1 => {
                outcome.expect("it ends");
                pair.assert_equal();
            }
            _ => assert!(outcome.expect_err("at once").to_string().starts_with("interrupted; run")),
        }
    }
}

#[tokio::test]
async fn a_signal_ends_a_comparison() {
    let pair = Pair::start().await;
    pair.fill(3);
    // The list of the first comparison, and that of the last one.
    for (at, passes) in [(1, 0), (4, 2)] {
        let migration = begin(&pair.args(), pair.lockmesh.client()).await.expect("it begins");
        let (sender, stop) = mpsc::channel(1);
        let mut lists = 0;
        pair.consul.world().lists_before_silence = Some(at - 1);
        pair.consul.world().hook = Some(Box::new(move |_| {
            lists += 1;
            if lists == at || passes > 0 && lists == 2 {
                sender.try_send(()).expect("there is room");
            }
        }));
        let error = migration.run(Some(stop)).await.expect_err("it is interrupted").to_string();
        assert!(error.starts_with("interrupted; run the same command again"), "{error}");
        let copied = pair.lockmesh.world().keys.entries.len();
        assert_eq!(copied, if passes == 0 { 0 } else { 3 });
    }
    pair.consul.world().hook = None;
    pair.consul.world().lists_before_silence = None;
    pair.migrate(&pair.args()).await.expect("it continues");
    pair.assert_equal();
}

#[tokio::test]
async fn locked_key_not_updated_or_deleted() {
    let pair = Pair::start().await;
    pair.fill(3);
    pair.migrate(&pair.args()).await.expect("it ends");
    let lock = |key: &str| {
        let keys = &mut pair.lockmesh.world().keys;
        let entry = keys.values()[key].clone();
        keys.put(key, &entry.0, entry.1);
        keys.entries.get_mut(key).expect("it was copied").session = "holder".into();
    };
    lock("a/000");
    lock("a/001");
    lock("a/002");
    // The next run notes the entries with their locks, then the keys change in Consul.
    let mut migration = begin(&pair.args(), pair.lockmesh.client()).await.expect("it begins");
    migration.retry_timeout = Duration::ZERO;
    migration.plan().await.expect("all are equal");
    pair.consul.world().keys.put("a/001", b"newer", 0);
    pair.consul.world().keys.delete("a/002");
    migration.copy(&mut None).await.expect("it ends");
    drop(migration);
    let values = pair.lockmesh.world().keys.values();
    assert_eq!((&values["a/001"].0[..], &values["a/002"].0[..]), (&b"v1"[..], &b"v2"[..]));
    let report = pair.migrate(&Options { verify_only: true, ..pair.args() }).await.expect("it ends");
    let differing: Vec<_> = report.comparison.differing.keys.iter().map(|listed| &listed.key[..]).collect();
    assert_eq!(differing, ["a/001", "a/002"]);
    pair.consul.world().keys.put("a/000", b"newer", 0);
    let forced = Options { overwrite: true, ..pair.args() };
    let error = pair.migrate(&forced).await.expect_err("they are locked");
    assert!(error.starts_with("2 keys locked in Lockmesh:") && error.contains("a/000"), "{error}");
    assert_eq!(&pair.lockmesh.world().keys.values()["a/000"].0[..], b"v0");
}

#[tokio::test]
async fn truncated_name_list_resumes_after_last() {
    let pair = Pair::start().await;
    pair.fill(200);
    pair.migrate(&pair.args()).await.expect("it ends");
    let verify = Options { verify_only: true, ..pair.args() };
    let mut lists = 0;
    {
        let mut world = pair.lockmesh.world();
        world.broken_names = [50, 52, 130, 199].into();
        // Between two lists, keys change before and behind the last name.
        world.hook = Some(Box::new(move |keys| {
            lists += 1;
            match lists {
                1 => {
                    keys.put("a/0000", b"new", 0);
                    keys.delete("a/060");
                }
                2 => keys.put("a/1805", b"new", 0),
                // Its name was listed, its entry is not read yet.
                3 => keys.delete("a/100"),
                _ => {}
            }
        }));
    }
    let found = pair.migrate(&verify).await.expect("it ends").comparison;
    let lines = found.differing.lines("{} differ:");
    assert_eq!(lines, ["2 differ:", "  a/060: not in Lockmesh", "  a/100: not in Lockmesh"]);
    let more = found.only_in_lockmesh.lines("{} more:");
    assert_eq!((found.equal, more), (198, vec!["1 more:".into(), "  a/1805".into()]));
    assert!(pair.lockmesh.world().broken_names.is_empty());
    // The second list does not even get to the place of the first.
    pair.lockmesh.world().broken_names = [50, 40].into();
    let error = pair.migrate(&verify).await.expect_err("it gets no further");
    assert!(error.starts_with("Lockmesh: no reply") && error.contains("the list is incomplete"), "{error}");
}

#[tokio::test]
async fn oversized_reply_read_in_smaller_slices() {
    let pair = Pair::start().await;
    pair.fill(200);
    pair.migrate(&pair.args()).await.expect("it ends");
    for most in [0, 1, 5] {
        pair.lockmesh.world().max_results = most;
        let found = pair.migrate(&pair.args()).await.expect("it ends").comparison;
        assert_eq!((found.equal, found.differing.count), (200, 0));
    }
}

#[tokio::test]
async fn reads_keys_unaddressable_by_path() {
    for key in ["a//x", "a/../y", "a/./z"] {
        let pair = Pair::start().await;
        pair.fill(1);
        pair.lockmesh.world().keys.put(key, b"", 0);
        let found = pair.migrate(&pair.args()).await.expect("it ends").comparison;
        assert_eq!((found.equal, found.only_in_lockmesh.keys[0].key.as_str()), (1, key));
    }
}

#[tokio::test]
async fn state_file_bound_to_destination() {
    let pair = Pair::start().await;
    pair.fill(3);
    pair.migrate(&Options { to_prefix: "copy".into(), ..pair.args() }).await.expect("it ends");
    let error = pair.migrate(&pair.args()).await.expect_err("another path");
    assert!(error.contains("continue with the same sides and --to-prefix"), "{error}");
    assert_eq!(pair.lockmesh.world().keys.entries.len(), 3);
}
