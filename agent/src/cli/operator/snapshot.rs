//! `lockmesh operator snapshot`: backups of the whole state.

use super::super::context::{ConsistencyArgs, Context};
use super::super::error::CliError;
use super::super::output::print_line;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::fs::File;

/// Save and restore backups of the whole state
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Write a backup to a file
    Save {
        /// The file; one that is there is replaced once the backup is whole
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        consistency: ConsistencyArgs,
    },
    /// Replace the whole state by a backup; everything since is gone
    Restore {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Runs the command.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    match args.command {
        Command::Save { file, consistency } => {
            let part = part_beside(&file)?;
            let handle = part.reopen().map_err(|error| cannot("write", part.path(), &error))?;
            let (index, bytes) =
                client.operator().save_snapshot(&mut File::from_std(handle), &consistency.read()).await?;
            part.as_file().sync_all().map_err(|error| cannot("write", &file, &error))?;
            part.persist(&file).map_err(|error| cannot("write", &file, &error.error))?;
            print_line(&format!("Saved {}: {bytes} bytes, index {index}", file.display()))?;
        }
        Command::Restore { file } => {
            let mut source = File::open(&file).await.map_err(|error| cannot("read", &file, &error))?;
            client.operator().restore_snapshot(&mut source).await?;
            print_line(&format!("Restored {}", file.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A file of ours in the same folder, readable for its owner alone, that goes away unless it is renamed.
fn part_beside(file: &Path) -> Result<tempfile::NamedTempFile, CliError> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(".lockmesh-snapshot-")
        .tempfile_in(folder)
        .map_err(|error| cannot("write to", folder, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> CliError {
    CliError::failed(format!("cannot {what} {}: {error}", path.display()))
}
