//! `lockmesh kv list`: the keys under a prefix, at a glance.

use super::super::context::ConsistencyArgs;
use super::super::error::CliError;
use super::super::output::{Table, TableArgs, print_json};
use super::entry::shape_of;
use lockmesh_client::{Client, Entry};

/// List the keys under a prefix with their size and their lock
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Key prefix [default: all keys]
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    /// Print the JSON of the agent's API, with values
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    consistency: ConsistencyArgs,
}

pub(super) async fn run(args: Args, client: &Client) -> Result<(), CliError> {
    let prefix = args.prefix.trim_start_matches('/');
    let entries = client.kv().list(prefix, &args.consistency.read()).await?.value;
    match args.json {
        true => print_json(&entries.iter().map(shape_of).collect::<Vec<_>>()),
        false => args.table.print(&table(&entries)),
    }
}

fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new(["Key", "Bytes", "Flags", "ModifyIndex", "Session"]);
    for entry in entries {
        table.row([
            entry.key.clone(),
            entry.value.len().to_string(),
            entry.flags.to_string(),
            entry.modify_index.to_string(),
            entry.session.clone().unwrap_or_default(),
        ]);
    }
    table
}
