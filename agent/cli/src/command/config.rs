//! `lockmesh config validate`: checks a configuration file as `agent` or `server` would.

use super::error::CliError;
use super::output::print_line;
use crate::config::{Role, Sources, load};
use crate::telemetry::check_level;
use lockmesh_agent::config::AgentConfig;
use lockmesh_server::config::ServerConfig;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check configuration files
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Check a configuration file as `agent` or `server` would, without the environment
    Validate {
        /// Configuration file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Role: agent or server [default: the one that fits]
        #[arg(long, value_name = "ROLE", value_parser = ["agent", "server"], hide_possible_values = true)]
        role: Option<String>,
    },
}

/// Runs the command.
///
/// # Errors
/// The configuration is invalid, or the output has no reader.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    let Command::Validate { file, role } = args.command;
    print_line(&verdict(&file, role.as_deref())?)?;
    Ok(ExitCode::SUCCESS)
}

fn verdict(file: &Path, role: Option<&str>) -> Result<String, CliError> {
    let good = |role: &str| format!("{}: configuration is valid ({role})", file.display());
    match role {
        Some("agent") => complaint::<AgentConfig>(file).map_or(Ok(good("agent")), fail),
        Some(_) => complaint::<ServerConfig>(file).map_or(Ok(good("server")), fail),
        None => match (complaint::<AgentConfig>(file), complaint::<ServerConfig>(file)) {
            (None, None) => Ok(good("agent and server")),
            (None, Some(_)) => Ok(good("agent")),
            (Some(_), None) => Ok(good("server")),
            // An error of both roles, such as an unreadable file, is printed once.
            (Some(agent), Some(server)) if agent == server => fail(agent),
            (Some(agent), Some(server)) => {
                fail(format!("the configuration is valid for neither role\nagent: {agent}\nserver: {server}"))
            }
        },
    }
}

fn fail<T>(complaint: String) -> Result<T, CliError> {
    // The exit code of an agent or a server with this file.
    Err(CliError::usage(complaint.trim_end()))
}

fn complaint<T: Role>(file: &Path) -> Option<String> {
    let sources = Sources { file: Some(file.into()), ..Sources::default() };
    match load::<T>(&sources) {
        Ok(config) => check_level(config.log()).err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
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
        assert!(judged("[http]\ntcp = \"\"\n", None).expect("good").ends_with("(agent)"));
        assert!(judged("[limits]\nwatches = 5\n", None).expect("good").ends_with("(server)"));
        assert!(judged("[node]\nname = \"n\"\n", None).expect("good").ends_with("(agent and server)"));
    }

    #[test]
    fn a_wrong_file_is_refused_with_the_line() {
        let refused = judged("[http]\ntcpp = \"\"\n", Some("agent")).expect_err("no such key");
        assert!(refused.contains("line 2") && refused.contains("`http.tcpp`"), "{refused}");
        let refused = judged("[http]\ntcpp = \"\"\n", None).expect_err("no such key");
        assert!(refused.contains("\nagent: ") && refused.contains("\nserver: "), "{refused}");
        assert!(judged("[http]\ntcp = \"\"\n", Some("server")).is_err());
        let refused = judged("[log]\nlevel = \"verbose\"\n", None).expect_err("no such level");
        assert!(refused.contains("`log.level`"), "{refused}");
        let refused = verdict(Path::new("/nowhere.toml"), None).expect_err("there is none").to_string();
        assert_eq!(refused.matches("/nowhere.toml").count(), 1, "{refused}");
    }
}
