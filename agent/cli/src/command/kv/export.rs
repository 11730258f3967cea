//! `lockmesh kv export`: a tree of keys in the JSON that `consul kv export` writes.
//!
//! Only keys, flags and values are exported: a lock belongs to a session, and a session to its
//! cluster.

use super::super::context::ConsistencyArgs;
use super::super::error::CliError;
use super::super::output::warn;
use super::value;
use crate::stdio;
use lockmesh_client::{Client, Entry};
use serde::Serialize;
use std::io::{IsTerminal, stderr, stdout};
use std::mem;
use std::time::{Duration, Instant};

/// Print keys and values as JSON
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Key prefix [default: all keys]
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    consistency: ConsistencyArgs,
}

/// An exported key; the value is base64.
#[derive(Debug, Serialize)]
struct Parcel {
    key: String,
    flags: u64,
    value: String,
}

/// The interval between two reports of progress on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The size of one write to stdout, in bytes.
const PIECE: usize = 64 << 10;

pub(super) async fn run(args: Args, client: &Client) -> Result<(), CliError> {
    let prefix = args.prefix.trim_start_matches('/');
    let mut entries = client.kv().entries(prefix, &args.consistency.read()).await?;
    let mut progress = ExportProgress::new(stderr().is_terminal() && !stdout().is_terminal());
    let (mut piece, mut count) = (Vec::new(), 0);
    while let Some(entry) = entries.next().await? {
        piece.extend_from_slice(if count == 0 { b"[\n" } else { b",\n" });
        pack(&entry, &mut piece)?;
        count += 1;
        if piece.len() >= PIECE {
            let bytes = piece.len();
            stdio::print(mem::take(&mut piece)).await?;
            progress.report(count, bytes);
        }
    }
    piece.extend_from_slice(if count == 0 { b"[]\n" } else { b"\n]\n" });
    Ok(stdio::print(piece).await?)
}

/// Renders an entry as an item of the array.
fn pack(entry: &Entry, into: &mut Vec<u8>) -> Result<(), CliError> {
    let value = value::encode(&entry.value);
    let parcel = Parcel { key: entry.key.clone(), flags: entry.flags, value };
    let mut text = Vec::new();
    let tabs = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, tabs);
    parcel.serialize(&mut serializer).map_err(CliError::failed)?;
    // One level deeper: no string contains a line break.
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        into.push(b'\t');
        into.extend_from_slice(line);
    }
    Ok(())
}

/// The progress of an export whose output is not on the terminal.
struct ExportProgress {
    is_shown: bool,
    bytes: usize,
    next: Instant,
}

impl ExportProgress {
    fn new(is_shown: bool) -> Self {
        Self { is_shown, bytes: 0, next: Instant::now() + PROGRESS_INTERVAL }
    }

    fn report(&mut self, keys: u64, bytes: usize) {
        self.bytes += bytes;
        if self.is_shown && Instant::now() >= self.next {
            self.next = Instant::now() + PROGRESS_INTERVAL;
            warn(&format!("{keys} keys, {} MB so far", self.bytes / 1_000_000));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn export_matches_consul_format() {
        let entry = |key: &str, value: &'static str, flags| Entry {
            key: key.into(),
            value: value.into(),
            flags,
            ..Entry::default()
        };
        let mut text = Vec::new();
        pack(&entry("t/a", "", 0), &mut text).expect("it is encodable");
        text.extend_from_slice(b",\n");
        pack(&entry("t/b", "{\"x\":1}", u64::MAX), &mut text).expect("it is encodable");
        let expected = "\t{\n\t\t\"key\": \"t/a\",\n\t\t\"flags\": 0,\n\t\t\"value\": \"\"\n\t},\n\t{\n\t\t\
                        \"key\": \"t/b\",\n\t\t\"flags\": 18446744073709551615,\n\t\t\"value\": \"eyJ4IjoxfQ==\"\n\
                        \t}";
        assert_eq!(String::from_utf8(text).expect("it is text"), expected);
    }
}
