//! `lockmesh config validate`: reads a configuration file as `agent` or `server` would, and starts
//! nothing.

use super::error::CliError;
use super::output::print_line;
use crate::config::{Role, Sources, load};
use lockmesh_agent::config::AgentConfig;
use lockmesh_server::config::ServerConfig;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Look at configuration files
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Check a configuration file; the environment is left out
    Validate {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Whose configuration it is: agent or server [default: whichever it fits]
        #[arg(long, value_name = "ROLE", value_parser = ["agent", "server"])]
        role: Option<String>,
    },
}

/// Runs the command.
///
/// # Errors
/// The file cannot be used, and what is wrong with it; or the verdict could not be printed. The
/// file is as it was.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    let Command::Validate { file, role } = args.command;
    print_line(&verdict(&file, role.as_deref())?)?;
    Ok(ExitCode::SUCCESS)
}

fn verdict(file: &Path, role: Option<&str>) -> Result<String, CliError> {
    let good = |role: &str| format!("{} is a good configuration of {role}", file.display());
    match role {
        Some("agent") => complaint::<AgentConfig>(file).map_or(Ok(good("an agent")), fail),
        Some(_) => complaint::<ServerConfig>(file).map_or(Ok(good("a server")), fail),
        None => match (complaint::<AgentConfig>(file), complaint::<ServerConfig>(file)) {
            (None, None) => Ok(good("an agent, and of a server")),
            (None, Some(_)) => Ok(good("an agent")),
            (Some(_), None) => Ok(good("a server")),
            // What is wrong for both, as with a file that cannot be read, is said once.
            (Some(agent), Some(server)) if agent == server => fail(agent),
            (Some(agent), Some(server)) => fail(format!(
                "neither an agent's nor a server's.\nAs an agent's: {agent}\nAs a server's: {server}"
            )),
        },
    }
}

fn fail<T>(complaint: String) -> Result<T, CliError> {
    Err(CliError::failed(complaint.trim_end()))
}

fn complaint<T: Role>(file: &Path) -> Option<String> {
    let sources = Sources { file: Some(file.into()), ..Sources::default() };
    load::<T>(&sources).err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str, role: Option<&str>) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it can be written");
        verdict(file.path(), role).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_is_known_by_its_keys() {
        assert!(judged("[http]\ntcp = \"\"\n", None).expect("good").ends_with("an agent"));
        assert!(judged("[limits]\nwatches = 5\n", None).expect("good").ends_with("a server"));
        assert!(judged("[node]\nname = \"n\"\n", None).expect("good").ends_with("an agent, and of a server"));
    }

    #[test]
    fn a_wrong_file_is_refused_with_the_line() {
        let refused = judged("[http]\ntcpp = \"\"\n", Some("agent")).expect_err("no such key");
        assert!(refused.contains("line 2") && refused.contains("`http.tcpp`"), "{refused}");
        let refused = judged("[http]\ntcpp = \"\"\n", None).expect_err("no such key");
        assert!(refused.contains("As an agent's: ") && refused.contains("As a server's: "), "{refused}");
        assert!(judged("[http]\ntcp = \"\"\n", Some("server")).is_err());
        let refused = verdict(Path::new("/nowhere.toml"), None).expect_err("there is none").to_string();
        assert_eq!(refused.matches("/nowhere.toml").count(), 1, "{refused}");
    }
}
