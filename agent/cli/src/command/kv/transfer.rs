//! `lockmesh kv export` and `import`: trees of keys in the JSON that `consul kv export` writes.
//!
//! Only keys, flags and values travel: a lock belongs to a session, and a session to its cluster.

use super::super::context::ConsistencyArgs;
use super::super::error::CliError;
use super::super::output::{print_bytes, print_line};
use super::value;
use lockmesh_client::{Client, Entry};
use serde::{Deserialize, Serialize};

/// Print keys and values as JSON
#[derive(clap::Args, Debug)]
pub(super) struct ExportArgs {
    /// Key prefix [default: all keys]
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    consistency: ConsistencyArgs,
}

/// Write keys and values from JSON
#[derive(clap::Args, Debug)]
pub(super) struct ImportArgs {
    /// Output of `kv export`: @FILE, - for stdin, or the JSON itself
    #[arg(value_name = "DATA")]
    data: Option<String>,
    /// Prefix to add to each key
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
}

/// One key in transit; the value is base64.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Parcel {
    key: String,
    #[serde(default)]
    flags: u64,
    #[serde(default)]
    value: String,
}

pub(super) async fn export(args: ExportArgs, client: &Client) -> Result<(), CliError> {
    let prefix = args.prefix.trim_start_matches('/');
    let entries = client.kv().list(prefix, &args.consistency.read()).await?.value;
    print_bytes(&packed(&entries)?)
}

pub(super) async fn import(args: ImportArgs, client: &Client) -> Result<(), CliError> {
    let said = |text: &str| CliError::in_consuls_words(text);
    let data = args.data.ok_or_else(|| said("Error! Missing DATA argument"))?;
    if data.is_empty() {
        return Err(said("Error! Empty DATA argument"));
    }
    let data = value::bytes_of(&data, &mut std::io::stdin().lock())?;
    // Everything is understood before anything is written.
    for (key, value, flags) in unpacked(&data)? {
        let key = format!("{}{key}", args.prefix);
        client.kv().put(&key, value, flags).await?;
        print_line(&format!("Imported: {key}"))?;
    }
    Ok(())
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

fn unpacked(data: &[u8]) -> Result<Vec<(String, Vec<u8>, u64)>, CliError> {
    let wrong =
        |error: serde_json::Error| CliError::in_consuls_words(format!("Cannot unmarshal data: {error}"));
    let parcels: Vec<Parcel> = serde_json::from_slice(data).map_err(wrong)?;
    let open = |parcel: Parcel| {
        let value = value::decode(parcel.value.as_bytes())
            .map_err(|error| CliError::in_consuls_words(format!("{error} (key {:?})", parcel.key)))?;
        Ok((parcel.key, value, parcel.flags))
    };
    parcels.into_iter().map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_exported_looks_like_consuls_and_can_be_imported() {
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
        assert_eq!(String::from_utf8(text.clone()).expect("it is text"), expected);
        let again = unpacked(&text).expect("it is good");
        assert_eq!(again[0], ("t/a".into(), vec![], 0));
        assert_eq!(again[1], ("t/b".into(), b"{\"x\":1}".to_vec(), u64::MAX));
        assert_eq!(packed(&[]).expect("it is encodable"), b"[]\n");
    }

    #[test]
    fn a_wrong_parcel_is_named() {
        let complaint = |text: &str| unpacked(text.as_bytes()).expect_err("it is wrong").to_string();
        assert!(complaint("x").starts_with("Cannot unmarshal data: "));
        assert!(complaint("[{\"flags\":1}]").contains("key"));
        assert!(complaint("[{\"key\":\"k\",\"flags\":-1}]").contains("-1"));
        assert!(complaint("[{\"key\":\"k\",\"value\":\"!\"}]").contains("(key \"k\")"));
        let more = "[{\"key\":\"k\",\"flags\":1,\"value\":\"aGk=\",\"namespace\":\"default\"}]";
        assert!(unpacked(more.as_bytes()).is_ok(), "newer Consuls write more");
    }
}
