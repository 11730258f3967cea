//! `lockmesh completions`: a script that teaches a shell our commands. The one file that names
//! clap_complete.

use super::error::CliError;
use super::output::print_bytes;
use clap_complete::Shell;
use std::process::ExitCode;

/// Print a completion script for a shell
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Shell: bash, zsh, fish, elvish or powershell
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    shell: Shell,
}

/// Runs the command: writes the script for the tree of all commands.
///
/// # Errors
/// The script could not be printed whole.
pub async fn run(args: Args, command: &mut clap::Command) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "lockmesh", &mut script);
    print_bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
