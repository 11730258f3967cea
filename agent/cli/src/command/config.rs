//! `lockmesh config`: checks a configuration file as `agent` or `server` would, and converts those
//! of Consul.

use super::error::CliError;
use super::output::{JsonArgs, print_bytes, print_json, print_line, warn};
use crate::config::{Role, Sources, load, text_of};
use crate::telemetry::check_level;
use lockmesh_agent::config::AgentConfig;
use lockmesh_migrate::config::{Conversion, convert};
use lockmesh_server::config::ServerConfig;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check configuration files, and convert Consul's
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
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Convert a Consul agent's configuration to agent.toml and, of a server, server.toml
    ///
    /// Keys that are not converted are listed on stderr, each with its line and a remedy.
    FromConsul {
        /// Consul's .hcl and .json files, and folders with them; later ones override
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Folder for agent.toml and server.toml, instead of stdout
        #[arg(long, value_name = "FOLDER")]
        output: Option<PathBuf>,
        /// Overwrite files in the folder; they keep their owner and mode
        #[arg(long, requires = "output")]
        force: bool,
        /// Print the configuration and the list of keys that are not converted as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
///
/// # Errors
/// The configuration is invalid, or the output has no reader.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    match args.command {
        Command::Validate { file, role, output } => {
            let roles = verdict(&file, role.as_deref())?;
            let line = format!("{}: configuration is valid ({})", file.display(), roles.join(" and "));
            output.print(&serde_json::json!({ "Valid": true, "Roles": roles }), &line)?;
        }
        Command::FromConsul { files, output, force, json } => {
            let converted = convert(&files).map_err(|error| fail_with(error.to_string()))?;
            let written = output.map(|folder| write(&converted, &folder, force)).transpose()?;
            match json {
                true => print_json(&converted)?,
                false => report(&converted, written.as_deref())?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The files and their texts.
fn texts(converted: &Conversion) -> Vec<(&'static str, String)> {
    let title = |text: String| format!("# Converted from the configuration of a Consul agent.\n{text}");
    let agent = ("agent.toml", title(text_of(&converted.agent)));
    let server = converted.server.as_ref().map(|server| ("server.toml", title(text_of(server))));
    [agent].into_iter().chain(server).collect()
}

/// Writes the files, readable by their owner only, because headers of checks may hold secrets. A
/// replaced file's owner and mode are kept: an agent must be able to read what root converts.
fn write(converted: &Conversion, folder: &Path, force: bool) -> Result<Vec<PathBuf>, CliError> {
    let cannot = |path: &Path, error: &dyn std::fmt::Display| {
        CliError::failed(format!("cannot write {}: {error}", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|error| cannot(folder, &error))?;
    let texts = texts(converted);
    let taken = texts.iter().map(|(name, _)| folder.join(name)).find(|path| path.exists());
    if let Some(path) = taken.filter(|_| !force) {
        return Err(CliError::failed(format!("{} exists: overwrite it with --force", path.display())));
    }
    let mut paths = Vec::new();
    for (name, text) in texts {
        let path = folder.join(name);
        // A failed write must not leave half a file in the place of a good one.
        let mut part = tempfile::NamedTempFile::new_in(folder).map_err(|error| cannot(&path, &error))?;
        part.write_all(text.as_bytes()).map_err(|error| cannot(&path, &error))?;
        if let Ok(replaced) = path.metadata() {
            let file = part.as_file();
            fchown(file, Some(replaced.uid()), Some(replaced.gid()))
                .and_then(|()| file.set_permissions(replaced.permissions()))
                .map_err(|error| cannot(&path, &error))?;
        }
        // Another process may have made the file since the check above.
        let written = if force { part.persist(&path) } else { part.persist_noclobber(&path) };
        written.map_err(|error| cannot(&path, &error.error))?;
        paths.push(path);
    }
    Ok(paths)
}

/// Prints the names of the files or, if none was written, their texts; then the keys that are not
/// converted.
fn report(converted: &Conversion, written: Option<&[PathBuf]>) -> Result<(), CliError> {
    match written {
        Some(paths) => paths.iter().try_for_each(|path| print_line(&format!("Wrote {}", path.display())))?,
        None => texts(converted)
            .iter()
            .try_for_each(|(name, text)| print_bytes(format!("# {name}\n{text}").as_bytes()))?,
    }
    for finding in &converted.findings {
        warn(&format!("{}: {}", finding.place, finding.advice));
    }
    Ok(())
}

fn fail_with(complaint: String) -> CliError {
    CliError::usage(complaint.trim_end())
}

/// The roles for which a file is a valid configuration, at least one.
fn verdict(file: &Path, role: Option<&str>) -> Result<Vec<&'static str>, CliError> {
    match role {
        Some("agent") => complaint::<AgentConfig>(file).map_or(Ok(vec!["agent"]), fail),
        Some(_) => complaint::<ServerConfig>(file).map_or(Ok(vec!["server"]), fail),
        None => match (complaint::<AgentConfig>(file), complaint::<ServerConfig>(file)) {
            (None, None) => Ok(vec!["agent", "server"]),
            (None, Some(_)) => Ok(vec!["agent"]),
            (Some(_), None) => Ok(vec!["server"]),
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
    Err(fail_with(complaint))
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
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};

    fn judged(text: &str, role: Option<&str>) -> Result<Vec<&'static str>, String> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it can be written");
        verdict(file.path(), role).map_err(|error| error.to_string())
    }

    #[test]
    fn role_inferred_from_keys() {
        assert_eq!(judged("[http]\ntcp = \"\"\n", None).expect("good"), ["agent"]);
        assert_eq!(judged("[limits]\nwatches = 5\n", None).expect("good"), ["server"]);
        assert_eq!(judged("[node]\nname = \"n\"\n", None).expect("good"), ["agent", "server"]);
    }

    #[test]
    fn converted_config_reads_back() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let consul = folder.path().join("a.hcl");
        let text = "server = true\nbootstrap_expect = 3\nbind_addr = \"10.0.0.5\"\nnode_name = \"n\"\n\
                    retry_join = [\"10.0.0.6\"]\nnode_meta { rack = \"r1\" }\nreconnect_timeout = \"96h\"\n\
                    enable_local_script_checks = true\nservice {\n name = \"web\"\n tags = [\"v1\"]\n\
                    meta { team = \"shop\" }\n weights { passing = 2 warning = 1 }\n\
                    check { http = \"http://localhost\" interval = \"10s\" header { a = [\"b\"] } }\n}\n\
                    checks { name = \"disk\" args = [\"df\"] interval = \"1m\" }\n";
        std::fs::write(&consul, text).expect("it can be written");
        let converted = convert(&[consul]).expect("it is converted");
        write(&converted, folder.path(), false).expect("there is none yet");
        let sources = |name| Sources { file: Some(folder.path().join(name)), ..Sources::default() };
        assert_eq!(load::<AgentConfig>(&sources("agent.toml")).expect("it is valid"), converted.agent);
        let server = load::<ServerConfig>(&sources("server.toml")).expect("it is valid");
        assert_eq!(Some(server), converted.server);
    }

    #[test]
    fn overwrite_keeps_owner_and_mode() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let consul = folder.path().join("a.hcl");
        std::fs::write(&consul, "node_name = \"n\"\n").expect("it can be written");
        let converted = convert(&[consul]).expect("it is converted");
        let path = folder.path().join("agent.toml");
        let rights = || {
            let found = path.metadata().expect("it exists");
            (found.uid(), found.gid(), found.mode() & 0o777)
        };
        write(&converted, folder.path(), false).expect("there is none yet");
        assert_eq!(rights().2, 0o600);
        let exists = write(&converted, folder.path(), false).expect_err("it exists");
        assert!(exists.to_string().contains("overwrite it with --force"), "{exists}");
        std::fs::write(&path, "").expect("it can be written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("its mode is set");
        // Only root may give files away.
        let _ = chown(&path, Some(7), Some(7));
        let before = rights();
        write(&converted, folder.path(), true).expect("it is replaced");
        assert_eq!(rights(), before);
        assert!(std::fs::read_to_string(&path).is_ok_and(|text| text.contains("name = \"n\"")));
    }

    #[test]
    fn invalid_file_error_includes_line() {
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
