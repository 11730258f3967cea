//! `lockmesh operator gossip`: the encryption key of gossip.

use super::super::context::{ConsistencyArgs, Context};
use super::super::error::CliError;
use super::super::output::{print_json, print_line};
use lockmesh_client::Read;
use std::process::ExitCode;

/// Show and rotate the encryption key of gossip
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Show the number of the current key; the key itself is not shown
    Key {
        /// Print the JSON of the agent's API
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// Rotate to the next key
    ///
    /// Agents get the new key within 30s. Meanwhile they accept the previous and the next key. A
    /// second rotation within a minute is rejected, because it would exclude agents without the
    /// first.
    Rotate,
}

/// Runs the command.
///
/// # Errors
/// The agent did not reply. The key may have been rotated: check with `key`.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let operator = client.operator();
    match args.command {
        Command::Key { json, consistency } => {
            let key = operator.gossip_key(&consistency.read()).await?;
            match json {
                true => print_json(&key)?,
                false => print_line(&format!("gossip key is {}", key.number))?,
            }
        }
        Command::Rotate => {
            // With its number, two rotations at the same time are one.
            let known = operator.gossip_key(&Read::default()).await?;
            let key = operator.rotate_gossip_key(known.number).await?;
            print_line(&format!(
                "gossip key is now {}; agents receive it within 30 s; the next rotation is possible in a minute",
                key.number
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
