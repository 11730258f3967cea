//! `lockmesh kv get`: one key, or all under a prefix.

use super::super::context::ConsistencyArgs;
use super::super::error::CliError;
use super::super::output::{print_bytes, print_json, print_line, printable};
use super::entry::{key_of, shape_of};
use super::value;
use lockmesh_client::{Client, Entry};

/// Print the value of a key, or the keys under a prefix
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Key, or prefix with --recurse or --keys
    #[arg(value_name = "KEY_OR_PREFIX")]
    key: Option<String>,
    /// Print values as base64
    #[arg(long)]
    base64: bool,
    /// Also print indexes, flags and the lock's holder
    #[arg(long)]
    detailed: bool,
    /// Print the names of the keys under the prefix
    #[arg(long)]
    keys: bool,
    /// Print all keys under the prefix with their values
    #[arg(long)]
    recurse: bool,
    /// List names only up to this separator, with --keys
    #[arg(long, value_name = "TEXT", default_value = "/")]
    separator: String,
    /// Print the JSON of the agent's API
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    consistency: ConsistencyArgs,
}

pub(super) async fn run(args: Args, client: &Client) -> Result<(), CliError> {
    let read = args.consistency.read();
    let prefix = || args.key.as_deref().unwrap_or_default().trim_start_matches('/');
    if args.keys {
        let keys = client.kv().keys(prefix(), &args.separator, &read).await?.value;
        return match args.json {
            true => print_json(&keys),
            false => keys.iter().try_for_each(|key| print_line(key)),
        };
    }
    if args.recurse {
        let entries = client.kv().list(prefix(), &read).await?.value;
        return print_entries(&args, &entries);
    }
    let key = key_of(args.key.clone())?;
    match client.kv().get(&key, &read).await?.value {
        Some(entry) => print_entry(&args, &entry),
        None => Err(CliError::in_consuls_words(format!("Error! No key exists at: {key}"))),
    }
}

fn print_entry(args: &Args, entry: &Entry) -> Result<(), CliError> {
    if args.json {
        return print_json(&[shape_of(entry)]);
    }
    let text = match args.detailed {
        true => detailed(entry, args.base64),
        false => shown(entry, args.base64),
    };
    print_bytes(&[text.as_slice(), b"\n"].concat())
}

fn print_entries(args: &Args, entries: &[Entry]) -> Result<(), CliError> {
    if args.json {
        return print_json(&entries.iter().map(shape_of).collect::<Vec<_>>());
    }
    for (number, entry) in entries.iter().enumerate() {
        let text = match args.detailed {
            // A blank line between two, as `consul kv get` has it.
            true if number > 0 => [b"\n".as_slice(), &detailed(entry, args.base64)].concat(),
            true => detailed(entry, args.base64),
            false => [entry.key.as_bytes(), b":", &shown(entry, args.base64)].concat(),
        };
        print_bytes(&[text.as_slice(), b"\n"].concat())?;
    }
    Ok(())
}

fn shown(entry: &Entry, base64: bool) -> Vec<u8> {
    match base64 {
        true => value::encode(&entry.value).into_bytes(),
        false => entry.value.to_vec(),
    }
}

fn detailed(entry: &Entry, base64: bool) -> Vec<u8> {
    // Only for a held key: without it the lines are Consul's.
    let fence = entry.fence.map(|fence| ("Fence", fence.to_string()));
    let lines = [
        Some(("CreateIndex", entry.create_index.to_string())),
        fence,
        Some(("Flags", entry.flags.to_string())),
        Some(("Key", printable(&entry.key))),
        Some(("LockIndex", entry.lock_index.to_string())),
        Some(("ModifyIndex", entry.modify_index.to_string())),
        Some(("Session", entry.session.clone().unwrap_or_else(|| "-".into()))),
    ];
    let lines = lines.iter().flatten();
    let mut text: Vec<u8> =
        lines.flat_map(|(name, value)| format!("{name:<17}{value}\n").into_bytes()).collect();
    text.extend(format!("{:<17}", "Value").into_bytes());
    text.extend(shown(entry, base64));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_match_consul_layout() {
        let entry = Entry {
            key: "a/b".into(),
            value: "hello".into(),
            flags: 42,
            session: None,
            lock_index: 3,
            create_index: 12,
            modify_index: 15,
            fence: None,
        };
        let expected = "CreateIndex      12\nFlags            42\nKey              a/b\nLockIndex        3\n\
                        ModifyIndex      15\nSession          -\nValue            aGVsbG8=";
        assert_eq!(String::from_utf8(detailed(&entry, true)).expect("it is text"), expected);
        assert!(detailed(&entry, false).ends_with(b"Value            hello"));
        let held = Entry { session: Some("s".into()), fence: Some(71), ..entry };
        let held = String::from_utf8(detailed(&held, true)).expect("it is text");
        assert!(
            held.starts_with("CreateIndex      12\nFence            71\nFlags            42\n"),
            "{held}"
        );
    }
}
