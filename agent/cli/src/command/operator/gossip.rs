//! `lockmesh operator gossip`: the key of the mesh.

use super::super::context::{ConsistencyArgs, Context};
use super::super::error::CliError;
use super::super::output::{print_json, print_line};
use lockmesh_client::Read;
use std::process::ExitCode;

/// See and change the key that the agents' mesh is sealed with
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Show the number of the key that is in use; the key itself is shown nowhere
    Key {
        /// Print JSON as the agent's API has it
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// Go on to the next key
    ///
    /// Agents learn of it within 30 s and understand each other meanwhile: each has the key before
    /// and the one after, too. A second rotation within a minute is refused: it would cut off those
    /// who have not heard of the first.
    Rotate,
}

/// Runs the command.
///
/// # Errors
/// The agent gave no answer. The key may have been changed: `key` tells.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let operator = client.operator();
    match args.command {
        Command::Key { json, consistency } => {
            let key = operator.gossip_key(&consistency.read()).await?;
            match json {
                true => print_json(&key)?,
                false => print_line(&format!("the mesh uses key {}", key.number))?,
            }
        }
        Command::Rotate => {
            let known = operator.gossip_key(&Read::default()).await?;
            let key = operator.rotate_gossip_key(known.number).await?;
            print_line(&format!(
                "the mesh uses key {} now; agents hold it within 30 s; it can be rotated again in a minute",
                key.number
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
