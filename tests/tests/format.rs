//! Everything that is stored or replicated stays readable forever. `format/v1.txt`, and `v2.txt`,
//! `v3.txt`, `v5.txt` to `v11.txt` for data that older versions cannot represent, have one encoded
//! sample per line, in hexadecimal after its name. If a variant was removed, renamed or moved, or a
//! struct was changed, the sample with that name fails. The newest version's samples must also
//! encode to the same bytes, and every variant has one. `UPDATE_SAMPLES=1` adds missing samples and
//! never changes a line.

use lockmesh_core::Proposal;
use lockmesh_core::raft::log::LogBatch;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format::{self, Stored};
use lockmesh_tests::fuzz::samples;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// Returns the samples of all versions with their names. Two versions may have the same one.
fn recorded() -> Vec<(String, String)> {
    let texts = [
        include_str!("format/v1.txt"),
        include_str!("format/v2.txt"),
        include_str!("format/v3.txt"),
        include_str!("format/v5.txt"),
        include_str!("format/v6.txt"),
        include_str!("format/v7.txt"),
        include_str!("format/v8.txt"),
        include_str!("format/v9.txt"),
        include_str!("format/v10.txt"),
        include_str!("format/v11.txt"),
    ];
    let lines = texts.into_iter().flat_map(str::lines).filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once(' ').expect("a line is a name and its bytes"));
    pairs.map(|(name, bytes)| (name.to_owned(), bytes.to_owned())).collect()
}

/// Returns the present encoding of every sample, by its name in the code.
fn current() -> BTreeMap<String, Vec<u8>> {
    let rows = samples::of::<Change>().into_iter().map(|row| (name("row", &row), format::encode(&row)));
    let entries = samples::of::<Proposal>().into_iter().map(|entry| {
        let kind = if entry.request.is_some() { "entry" } else { "own" };
        (name(kind, &entry.command), format::encode(&entry))
    });
    let log = LogBatch(samples::of());
    let log = (name("log", &log), format::encode(&log));
    numbered(rows.chain(entries).chain([log]))
}

/// Numbers samples of the same name.
fn numbered(samples: impl Iterator<Item = (String, Vec<u8>)>) -> BTreeMap<String, Vec<u8>> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let number = |(name, bytes): (String, Vec<u8>)| {
        let count = counts.entry(name.clone()).or_default();
        *count += 1;
        // Earlier samples have plain numbers.
        (format!("{name}/g{count}"), bytes)
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
fn recorded_samples_reencode_identically() {
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
fn current_encoding_is_recorded() {
    let recorded = recorded();
    let stem = |name: &str| name.rsplit_once('/').map(|(stem, _)| stem.to_owned());
    // Of older versions one of each name: which ones are drawn changes with every new variant.
    let is_recorded = |name: &str, bytes: &[u8]| match bytes[0] {
        format::NEWEST => recorded.iter().any(|(_, known)| *known == hex(bytes)),
        _ => recorded.iter().any(|(known, _)| stem(known) == stem(name)),
    };
    let missing: Vec<(u8, String)> = current()
        .into_iter()
        .filter(|(name, bytes)| !is_recorded(name, bytes))
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
