//! The programs that `lock` and `watch` start: reports of their exit, and their end together with
//! the process that started them.

use lockmesh_tests::dev::{Dev, Shared};
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::process::{Process, run};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

fn shared() -> Shared {
    static SERVER: OnceLock<Dev> = OnceLock::new();
    Dev::shared(&SERVER, &[])
}

/// The option that selects the agent.
fn at(server: &Dev) -> String {
    format!("--http-addr={}", server.http)
}

/// A shell script that prints each process that runs; a zombie does not count.
const SAY_WHO_RUNS: &str = "for pid in $pids; do \
    if [ -d /proc/$pid ] && ! grep -q 'State:.Z' /proc/$pid/status; then echo $pid runs; fi; done";

#[test]
fn orphan_ignoring_sigterm_ends_before_handover() {
    let server = shared();
    // No lock-delay, so that only the session's TTL matters.
    let lock = ["lock", &at(&server), "--ttl=10s", "--lock-delay=0s", "children/killed", "--", "sh", "-c"];
    let deaf = "trap '' TERM; sleep 1000 & echo family $$ $!; wait; wait";
    let holder = Process::lockmesh(&[&lock[..], &[deaf]].concat());
    let family = holder.says("family ");
    let family = family.strip_prefix("family ").expect("the line starts with it");
    holder.signal("KILL");
    let next = format!("pids='{family}'; {SAY_WHO_RUNS}; echo next");
    let next = Process::lockmesh(&[&lock[..], &[&next]].concat());
    next.says("next");
    assert!(!next.said().contains("runs"), "the program of the dead holder has ended: {}", next.said());
}

#[test]
fn shared_locks_overlap_and_exclude_writer() {
    let server = shared();
    let lock = ["lock", &at(&server), "--lock-delay=0s", "children/shared"];
    let reader = |text: &str| Process::lockmesh(&[&lock[..], &["--shared", "--", "sh", "-c", text]].concat());
    let first = reader("echo first; sleep 1000");
    first.says("first");
    let second = reader("echo second; sleep 1000");
    second.says("second");
    let (code, _, said) = run(&[&lock[..], &["--once", "--", "true"]].concat());
    assert_eq!(code, 120, "{said}");
    first.signal("TERM");
    second.signal("TERM");
    let (code, _, said) = run(&[&lock[..], &["--", "true"]].concat());
    assert_eq!(code, 0, "{said}");
}

#[test]
fn several_locks_never_deadlock_or_overlap() {
    let server = shared();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    // It fails if another holder of one of its locks has the folder.
    let script = "mkdir \"$1\" \"$2\" || exit 9; sleep 0.01; rmdir \"$1\" \"$2\"";
    std::thread::scope(|scope| {
        for [one, other] in [["a", "b"], ["b", "a"], ["b", "c"], ["c", "a"]] {
            let (server, path) = (&server, &path);
            scope.spawn(move || {
                let names = [one, other].map(|name| format!("children/several/{name}"));
                let lock = ["lock", &at(server), "--timeout=60s", "--lock-delay=0s", &names[0], &names[1]];
                let command = ["--", "sh", "-c", script, "sh", &path(one), &path(other)];
                let run_once = [&lock[..], &command].concat();
                for _ in 0..5 {
                    let (code, _, said) = run(&run_once);
                    assert_eq!(code, 0, "{said}");
                }
            });
        }
    });
}

#[test]
fn killed_holder_passes_all_locks_on() {
    let server = shared();
    let lock = ["lock", &at(&server), "--lock-delay=0s"];
    let names = ["children/all/a", "children/all/b"];
    let text = "echo \"$LOCKMESH_FENCE\" $LOCKMESH_FENCES; sleep 1000";
    let holder = Process::lockmesh(&[&lock[..], &names, &["--", "sh", "-c", text]].concat());
    let said = holder.says("children/all/b/.lock=");
    let fence = said.split(' ').next().expect("a fence");
    assert!(said.starts_with(&format!("{fence} children/all/a/.lock={fence} children/all/b/")), "{said}");
    let (code, _, said) = run(&[&lock[..], &["--once", "children/all/c", names[1], "--", "true"]].concat());
    assert!(code == 120 && said.contains("children/all/b: held by \"sh\" on "), "{code} {said}");
    server.client().get("/v1/kv/children/all/c/.lock").expect(404);
    let next = Process::lockmesh(&[&lock[..], &["--verbose", names[1], names[0], "--", "true"]].concat());
    next.says("waiting for children/all/b, children/all/a: children/all/b: held by ");
    holder.signal("KILL");
    assert_eq!(next.ends(), 0);
}

#[test]
fn lock_reports_program_exit_status() {
    let server = shared();
    for (text, code) in [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        let lock = ["lock", &at(&server), "children/ends", "--", "sh", "-c", text];
        assert_eq!(run(&lock).0, code, "{text}");
    }
    let lock =
        |option: &str| run(&["lock", &at(&server), option, "children/ends", "--", "sh", "-c", "exit 3"]).0;
    assert_eq!([lock("--ignore-exit-code"), lock("--child-exit-code")], [0, 2]);
    let (code, _, said) = run(&["lock", &at(&server), "children/ends", "--", "/no/such/program"]);
    assert_eq!(code, 127);
    assert!(said.contains("cannot start /no/such/program: No such file"), "{said}");
    let (code, _, said) = run(&["lock", &at(&server), "children/ends", "--", "/etc/passwd"]);
    assert_eq!(code, 126, "{said}");
}

#[test]
fn lock_errors_use_distinct_codes() {
    let server = shared();
    let (address, name) = (at(&server), "children/codes");
    let sleep = ["lock", &address, "--name", "the holder", name, "--", "sleep", "600"];
    let holder = Process::lockmesh(&[&sleep[..1], &["--verbose"], &sleep[1..]].concat());
    holder.says("holding it, fence ");
    let (code, _, said) = run(&["lock", &address, "--once", name, "--", "true"]);
    assert_eq!(code, 120);
    assert!(said.contains("children/codes not acquired: held by \"the holder\" on "), "{said}");
    assert_eq!(run(&["lock", &address, "--child-exit-code", "--once", name, "--", "true"]).0, 1);
    let waiter = Process::lockmesh(&["lock", &address, "--verbose", name, "--", "true"]);
    waiter.says("waiting for children/codes: held by \"the holder\" on ");
    waiter.signal("INT");
    assert_eq!(waiter.ends(), 122);
    let sessions = server.client().get("/v1/lockmesh/locks?prefix=children/codes").expect(200).json();
    let session = sessions[0]["Session"].as_str().expect("it is held").to_owned();
    assert_eq!(run(&["session", "destroy", &address, &session]).0, 0);
    assert_eq!(holder.ends(), 121);
    let (code, _, said) = run(&["session", "destroy", &address, &session]);
    assert!(code == 1 && said.contains("not found"), "{code} {said}");
    let (code, _, said) = run(&["lock", &address, "--once", name, "--", "true"]);
    assert!(code == 120 && said.contains("lock-delay, about "), "{code} {said}");
    assert_eq!(run(&["--http-addr=127.0.0.1:1", "lock", name, "--", "true"]).0, 123);
    assert_eq!(run(&["lock", &address, "--nonsense", name, "--", "true"]).0, 125);
}

#[test]
fn broken_pipe_ends_program_before_resignation() {
    let server = shared();
    let client = server.client();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let gate = folder.path().join("gate").display().to_string();
    // The reader goes after the line with the leader; the next change of the value has none.
    let pipeline = r#"{ "$0" "$@"; echo "exit code $?" >&2; } | while read line; do case $line in *" leads "*) exit;; esac; done"#;
    let program = "trap 'echo asked to end >&2; while [ ! -e \"$0\" ]; do sleep 0.05; done; exit' TERM; echo runs >&2; \
                   while :; do sleep 0.05; done";
    let lockmesh = lockmesh_tests::binary::lockmesh().display().to_string();
    let (address, key) = (at(&server), "children/pipe");
    let elect = [&lockmesh, "elect", &address, "--lock-delay=0s", key, "--", "sh", "-c", program, &gate];
    let leader = Process::start(Path::new("sh"), &[&["-c", pipeline], &elect[..]].concat());
    leader.says("runs");
    client.set(key, "changed");
    leader.says("the reader of the output has gone; ending the command");
    leader.says("asked to end");
    assert!(client.holder(key).is_some(), "the program runs, so its lock is held");
    std::fs::write(&gate, "").expect("it can be written");
    leader.says("exit code 141");
    assert_eq!(client.holder(key), None);
}

#[test]
fn interrupt_ends_candidate_after_lock_loss() {
    let server = shared();
    let (client, address) = (server.client(), at(&server));
    for (key, trap) in [("children/ended", ""), ("children/ends", "trap 'echo asked; sleep 100' TERM; ")] {
        let program = format!("{trap}echo runs $$; while :; do sleep 0.05; done");
        let leader = Process::lockmesh(&["elect", &address, key, "--", "sh", "-c", &program]);
        let pid = leader.says("runs ");
        client.destroy(&client.holder(key).expect("it leads"));
        // The lock-delay keeps it from leading again.
        match trap {
            "" => wait_until(|| who_runs(&pid["runs ".len()..]).is_empty()),
            _ => drop(leader.says("asked")),
        }
        leader.signal("INT");
        leader.says(&format!(
            "interrupted while running for {key} again; the command ran before and has ended"
        ));
        assert_eq!(leader.ends(), 122);
    }
}

#[test]
fn watch_feeds_handler_and_reports_failure() {
    let server = shared();
    server.client().put("/v1/kv/children/view", "x").expect(200);
    let watch =
        ["watch", &at(&server), "--type=key", "--key=children/view", "cat; echo index $CONSUL_INDEX; exit 7"];
    let (code, shown, said) = run(&watch);
    assert_eq!(code, 1);
    assert!(shown.contains("\"Key\":\"children/view\"") && shown.contains("index "), "{shown}");
    assert!(said.contains("the handler ended with exit status 7"), "{said}");
}

#[test]
fn signalled_watch_ends_handler_first() {
    let server = shared();
    server.client().put("/v1/kv/children/watched", "x").expect(200);
    for (name, code) in [("TERM", 143), ("INT", 130)] {
        let handler = format!(
            "trap 'echo heard {name}; exit' {name}; sleep 1000 & echo family $$ $!; while :; do sleep 0.05; done"
        );
        let watch =
            ["watch", &at(&server), "--type=key", "--key=children/watched", "--", "sh", "-c", &handler];
        let watch = Process::lockmesh(&watch);
        let family = watch.says("family ");
        watch.signal(name);
        watch.says(&format!("heard {name}"));
        assert_eq!(watch.ends(), code);
        let pids = family.strip_prefix("family ").expect("the line starts with it");
        assert_eq!(who_runs(pids), "", "the handler's process group has ended");
    }
}

#[test]
fn handler_ignoring_sigterm_is_killed() {
    let server = shared();
    server.client().put("/v1/kv/children/deaf", "x").expect(200);
    let handler = "trap '' TERM; echo family $$; while :; do sleep 0.05; done";
    let watch = ["watch", &at(&server), "--type=key", "--key=children/deaf", "--", "sh", "-c", handler];
    let watch = Process::lockmesh(&watch);
    let family = watch.says("family ");
    watch.signal("TERM");
    assert_eq!(watch.ends(), 143);
    let pids = family.strip_prefix("family ").expect("the line starts with it");
    assert_eq!(who_runs(pids), "");
}

fn who_runs(pids: &str) -> String {
    let output = Command::new("sh").args(["-c", &format!("pids='{pids}'; {SAY_WHO_RUNS}")]).output();
    String::from_utf8(output.expect("sh can be started").stdout).expect("text")
}
