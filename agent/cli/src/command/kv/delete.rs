//! `lockmesh kv delete`: one key, or all under a prefix.

use super::super::confirm::confirm;
use super::super::context::Context;
use super::super::error::CliError;
use super::super::output::print_line;
use super::entry::key_of;
use lockmesh_client::Client;

/// Delete a key, or every key under a prefix
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Key, or prefix with --recurse; '' for all keys
    #[arg(value_name = "KEY_OR_PREFIX")]
    key: Option<String>,
    /// Delete only if the key's modify index is --modify-index
    #[arg(long)]
    cas: bool,
    /// Modify index for --cas
    #[arg(long, value_name = "INDEX")]
    modify_index: Option<u64>,
    /// Delete all keys with the prefix
    #[arg(long)]
    recurse: bool,
    /// Do not ask before all keys are deleted; nothing is asked without a terminal
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(args: Args, client: &Client, context: &Context) -> Result<(), CliError> {
    let said = CliError::in_consuls_words::<String>;
    match (args.cas, args.modify_index) {
        (true, _) if args.recurse => return Err(said("Cannot specify both -cas and -recurse!".into())),
        (true, None | Some(0)) => return Err(said("Must specify -modify-index with -cas!".into())),
        (false, Some(_)) => return Err(said("Cannot specify -modify-index without -cas!".into())),
        _ => {}
    }
    if args.recurse {
        // A forgotten argument must not delete everything.
        let prefix = args.key.as_deref().ok_or_else(|| {
            CliError::usage("missing prefix; to delete all keys: lockmesh kv delete --recurse ''")
        })?;
        // Before the check for all keys, because `/` means all of them, too.
        let prefix = prefix.strip_prefix('/').unwrap_or(prefix);
        if prefix.is_empty() {
            confirm(context, args.yes, "loses every key, and with the keys every lock on them").await?;
        }
        client.kv().delete_tree(prefix).await?;
        return print_line(&format!("Success! Deleted keys with prefix: {prefix}"));
    }
    let key = key_of(args.key)?;
    match args.modify_index {
        None => client.kv().delete(&key).await?,
        Some(index) => {
            if !client.kv().delete_cas(&key, index).await? {
                return Err(said(format!("Error! Did not delete key {key}: CAS failed")));
            }
        }
    }
    print_line(&format!("Success! Deleted key: {key}"))
}
