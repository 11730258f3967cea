//! `lockmesh kv export`: a tree of keys in the JSON that `consul kv export` writes.
//!
//! Only keys, flags and values are exported: a lock belongs to a session, and a session to its
//! cluster.

use super::super::context::ConsistencyArgs;
use super::super::error::CliError;
use super::super::output::print_bytes;
use super::value;
use lockmesh_client::{Client, Entry};
use serde::Serialize;

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

pub(super) async fn run(args: Args, client: &Client) -> Result<(), CliError> {
    let prefix = args.prefix.trim_start_matches('/');
    let entries = client.kv().list(prefix, &args.consistency.read()).await?.value;
    print_bytes(&packed(&entries)?)
}

fn packed(entries: &[Entry]) -> Result<Vec<u8>, CliError> {
    let parcel = |entry: &Entry| Parcel {
        key: entry.key.clone(),
        flags: entry.flags,
        value: value::encode(&entry.value),
    };
    let parcels: Vec<Parcel> = entries.iter().map(parcel).collect();
    let mut text = Vec::new();
    let tabs = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    parcels
        .serialize(&mut serde_json::Serializer::with_formatter(&mut text, tabs))
        .map_err(CliError::failed)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_exported_looks_like_consuls() {
        let entry = |key: &str, value: &'static str, flags| Entry {
            key: key.into(),
            value: value.into(),
            flags,
            ..Entry::default()
        };
        let text =
            packed(&[entry("t/a", "", 0), entry("t/b", "{\"x\":1}", u64::MAX)]).expect("it is encodable");
        let expected = "[\n\t{\n\t\t\"key\": \"t/a\",\n\t\t\"flags\": 0,\n\t\t\"value\": \"\"\n\t},\n\t{\n\t\t\
                        \"key\": \"t/b\",\n\t\t\"flags\": 18446744073709551615,\n\t\t\"value\": \"eyJ4IjoxfQ==\"\n\
                        \t}\n]\n";
        assert_eq!(String::from_utf8(text).expect("it is text"), expected);
        assert_eq!(packed(&[]).expect("it is encodable"), b"[]\n");
    }
}
