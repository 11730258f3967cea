//! Everything that is stored or replicated stays readable forever. `format/v1.txt`, and `v2.txt`,
//! `v3.txt`, `v5.txt` and `v6.txt` for data that older versions cannot represent, have one encoded
//! sample per line, in hexadecimal after its name. If a variant was removed, renamed or moved, or a
//! struct was changed, the sample with that name fails. The newest version's samples must also
//! encode to the same bytes, and every variant has one. `UPDATE_SAMPLES=1` adds missing samples and
//! never changes a line.

use lockmesh_core::Proposal;
use lockmesh_core::raft::log::{EntryKind, LogBatch};
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::command::{CatalogVerb, Command, KvCommand, KvVerb, QueryCommand, RestoreStep, TxnOp};
use lockmesh_protocol::format::{self, Stored};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::record::{Behavior, CheckStatus, LossCause, MemberStatus};
use lockmesh_protocol::reply::{Refusal, Reply, TxnResult};
use lockmesh_protocol::wire;
use lockmesh_tests::fuzz::samples;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// Returns the samples of all versions, by name.
fn recorded() -> BTreeMap<String, String> {
    let texts = [
        include_str!("format/v1.txt"),
        include_str!("format/v2.txt"),
        include_str!("format/v3.txt"),
        include_str!("format/v5.txt"),
        include_str!("format/v6.txt"),
    ];
    let lines = texts.into_iter().flat_map(str::lines).filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once(' ').expect("a line is a name and its bytes"));
    pairs.map(|(name, bytes)| (name.to_owned(), bytes.to_owned())).collect()
}

/// Returns the present encoding of every sample, by its name in the code.
fn current() -> BTreeMap<String, Vec<u8>> {
    let rows = samples::changes().into_iter().map(|row| (name("row", &row), format::encode(&row)));
    let entries = samples::proposals().into_iter().map(|entry| {
        let kind = if entry.request.is_some() { "entry" } else { "own" };
        (name(kind, &entry.command), format::encode(&entry))
    });
    let log = LogBatch(samples::log_entries());
    let log = (name("log", &log), format::encode(&log));
    numbered(rows.chain(entries).chain([log]))
}

/// Numbers samples of the same name.
fn numbered(samples: impl Iterator<Item = (String, Vec<u8>)>) -> BTreeMap<String, Vec<u8>> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let number = |(name, bytes): (String, Vec<u8>)| {
        let count = counts.entry(name.clone()).or_default();
        *count += 1;
        (format!("{name}/{count}"), bytes)
    };
    samples.map(number).collect()
}

/// Returns the variants that a value consists of, from outside in: `row/Reply/Txn`.
fn name(kind: &str, value: &impl Debug) -> String {
    let text = format!("{value:?}");
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    let variants: Vec<&str> =
        words.filter(|word| word.starts_with(|first: char| first.is_ascii_uppercase())).take(3).collect();
    format!("{kind}/{}", variants.join("/"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |place: usize| u8::from_str_radix(&text[place..place + 2], 16).expect("a byte is two digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Decodes a sample as the type in its name, and encodes it again.
fn again<T: Stored + Debug>(name: &str, bytes: &[u8], of: impl Fn(&T) -> String) -> Vec<u8> {
    let value: T =
        format::decode(bytes).unwrap_or_else(|error| panic!("{name} can no longer be decoded: {error}"));
    let (expected, _) = name.rsplit_once('/').expect("a name ends with a number");
    assert_eq!(of(&value), expected, "{name} is decoded as another variant");
    format::encode(&value)
}

#[test]
fn every_sample_of_every_version_is_read_and_the_newest_written_again() {
    for (name, text) in recorded() {
        let bytes = from_hex(&text);
        let written = match name.split_once('/').expect("a name has parts").0 {
            "log" => again::<LogBatch>(&name, &bytes, |log| self::name("log", log)),
            "row" => again::<Change>(&name, &bytes, |row| self::name("row", row)),
            kind => again::<Proposal>(&name, &bytes, |entry| self::name(kind, &entry.command)),
        };
        assert_eq!(
            hex(&written),
            text,
            "{name} has a different encoding: that is a new version of the format"
        );
    }
}

#[test]
fn what_is_stored_now_is_what_was_recorded() {
    let recorded = recorded();
    let missing: Vec<(u8, String)> = current()
        .into_iter()
        .filter(|(_, bytes)| !recorded.values().any(|known| *known == hex(bytes)))
        .map(|(name, bytes)| (bytes[0], format!("{name} {}\n", hex(&bytes))))
        .collect();
    if std::env::var_os("UPDATE_SAMPLES").is_none() {
        assert!(missing.is_empty(), "UPDATE_SAMPLES=1 records these too:\n{missing:?}");
        return;
    }
    for (version, line) in missing {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/format/v{version}.txt"));
        let file = File::options().append(true).open(file);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the samples can be written");
    }
}

/// Returns the number of variants of an enum, as its own decoder reports it.
fn variant_count<T: DeserializeOwned + Debug>() -> usize {
    let error = wire::decode_stored::<T>(&[250]).expect_err("no enum is so long").to_string();
    let count = error.split("0 <= i < ").nth(1).unwrap_or_else(|| panic!("another error: {error}"));
    let digits: String = count.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Checks that every variant has a sample in `shown`.
fn covers<T: DeserializeOwned + Debug>(what: &str, shown: &BTreeSet<String>) {
    assert_eq!(shown.len(), variant_count::<T>(), "{what}: not every variant has a sample: {shown:?}");
}

/// Returns the name of a value's variant: the text before its fields.
fn variant(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    text.chars().take_while(|letter| letter.is_ascii_alphanumeric()).collect()
}

#[test]
fn every_variant_has_a_sample() {
    let set = |names: Vec<String>| -> BTreeSet<String> { names.into_iter().collect() };
    let rows: Vec<Change> = recorded_of("row");
    let commands: Vec<Command> = recorded_of::<Proposal>("entry").into_iter().map(|p| p.command).collect();
    covers::<Change>("rows", &set(rows.iter().map(variant).collect()));
    let own = recorded_of::<Proposal>("own").into_iter().map(|proposal| proposal.command);
    let all = commands.iter().cloned().chain(own).collect::<Vec<_>>();
    covers::<Command>("commands", &set(all.iter().map(variant).collect()));
    let kv = all.iter().filter_map(|command| match command {
        Command::Kv(command) => Some(variant(command)),
        _ => None,
    });
    covers::<KvCommand>("writes of keys", &kv.collect());
    let restores = all.iter().filter_map(|command| match command {
        Command::Restore(step) => Some(variant(step)),
        _ => None,
    });
    covers::<RestoreStep>("steps of a restore", &restores.collect());
    let queries = all.iter().filter_map(|command| match command {
        Command::PreparedQuery(command) => Some(variant(command)),
        _ => None,
    });
    covers::<QueryCommand>("writes of prepared queries", &queries.collect());
    let ops: Vec<TxnOp> = all
        .iter()
        .filter_map(|command| match command {
            Command::Txn(ops) => Some(ops.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    covers::<TxnOp>("operations", &set(ops.iter().map(variant).collect()));
    let verbs = ops.iter().filter_map(|op| match op {
        TxnOp::Kv(op) => Some(variant(&op.verb)),
        _ => None,
    });
    covers::<KvVerb>("verbs", &verbs.collect());
    covers_by_words(&all, &rows);
}

/// Checks nested enums: their variants' names must appear in the debug output of their holders.
fn covers_by_words(commands: &[Command], rows: &[Change]) {
    let shown = format!("{commands:?} {rows:?}");
    let tables = [
        "Entries",
        "Tombstones",
        "Sessions",
        "Nodes",
        "Services",
        "Checks",
        "NodeDeletions",
        "Coordinates",
        "PreparedQueries",
    ];
    has_all::<Table>(&shown, &tables);
    has_all::<Behavior>(&shown, &["Release", "Delete"]);
    has_all::<CheckStatus>(&shown, &["Passing", "Warning", "Critical"]);
    let causes = [
        "Destroyed",
        "TtlExpired",
        "CheckCritical",
        "CheckDeregistered",
        "NodeDeregistered",
        "NodeFailed",
        "HostReplaced",
        "NodeLeft",
        "NodeForcedToLeave",
        "NodeReaped",
        "GivenUp",
        "KeyDeleted",
        "CheckFailed",
    ];
    has_all::<LossCause>(&shown, &causes);
    has_all::<HealthWindow>(&shown, &["Fast", "Default", "Safe"]);
    has_all::<MemberStatus>(&shown, &["Alive", "Restarting", "Left", "Failed"]);
    has_all::<CatalogVerb>(&shown, &["Get", "Set", "Cas", "Delete", "DeleteCas", "Unknown"]);
    has_all::<TxnResult>(&shown, &["Kv", "Node", "Service", "Check"]);
    let replies = [
        "Done",
        "Succeeded",
        "Granted",
        "Delayed",
        "Queued",
        "Session",
        "Txn",
        "TxnFailed",
        "Agent",
        "Server",
        "Refused",
        "GossipKey",
    ];
    has_all::<Reply>(&shown, &replies);
    let refusals = [
        "InvalidSession",
        "SessionIdInUse",
        "MissingNode",
        "MissingCheck",
        "CriticalCheck",
        "QueueFull",
        "Catalog",
        "Forgotten",
        "Roster",
        "Restore",
        "UnknownMember",
        "PreparedQuery",
    ];
    has_all::<Refusal>(&shown, &refusals);
    let log = format!("{:?}", recorded_of::<LogBatch>("log"));
    has_all::<EntryKind>(&log, &["Normal", "Membership", "JointMembership"]);
}

fn has_all<T: DeserializeOwned + Debug>(shown: &str, variants: &[&str]) {
    assert_eq!(variants.len(), variant_count::<T>(), "the list {variants:?} is not complete");
    for variant in variants {
        let words = || shown.split(|letter: char| !letter.is_ascii_alphanumeric());
        assert!(words().any(|word| word == *variant), "{variant} has no sample");
    }
}

fn recorded_of<T: Stored>(kind: &str) -> Vec<T> {
    let of_kind = recorded().into_iter().filter(|(name, _)| name.split('/').next() == Some(kind));
    of_kind.map(|(_, text)| format::decode(&from_hex(&text)).expect("another test checks that")).collect()
}
