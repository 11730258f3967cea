//! `lockmesh dev`: a whole Lockmesh in one command, for trying things out and for tests.
//!
//! | file | is |
//! |---|---|
//! | `kill.rs` | `dev kill`: kills one process of it, and shows what becomes of its locks or its lead |
//! | `follow.rs` | what becomes of locks, out of one look at them after the other |

mod follow;
mod kill;

use super::error::CliError;
use crate::dev::{DevOptions, MOST_NODES};
use crate::telemetry;
use lockmesh_agent::config::HttpConfig;
use lockmesh_net::config::{LogConfig, LogFormat, NodeConfig};
use lockmesh_protocol::duration;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Start a whole Lockmesh: a server and an agent in one process, or several of each
///
/// Everything is real, only that all of it is on one machine: write-ahead log, QUIC with mutual
/// TLS, sessions, locks. Without --data-dir everything is forgotten when the process ends.
///
/// With --servers 3 the servers are processes of their own (s1, s2, s3), with --nodes 5 the agents
/// too (n1 to n5): a cluster of as many hosts on one machine. Each has its folder in the data
/// folder, with its configuration, its log, a file with its process number and, for an agent, its
/// Unix socket: DIR/n2/agent.sock. They end with this command. One that dies before is not started
/// again; `lockmesh dev kill` kills one and shows what that does.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where to listen for HTTP, with --nodes that of n1; port 0 takes any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8500")]
    http: SocketAddr,
    /// Let --http be an address that other hosts can reach; there is no access control
    #[arg(long)]
    allow_non_loopback: bool,
    /// Where to put the Unix socket [default: agent.sock in the data folder]
    #[arg(long, value_name = "PATH", conflicts_with = "nodes")]
    socket: Option<PathBuf>,
    /// Where to keep the data [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Run so many servers as processes of their own, which can be killed one by one: 1, 3 or 5
    /// [default with --nodes: 3]
    #[arg(long, value_name = "COUNT", value_parser = servers)]
    servers: Option<u8>,
    /// Run so many agents, and the servers, as processes of their own, which can be killed one by
    /// one: 1 to 16
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_NODES)))]
    nodes: Option<u8>,
    /// The node's name [default: the host's name]
    #[arg(long, value_name = "NAME", conflicts_with = "nodes")]
    node: Option<String>,
    /// The node's UUID [default: drawn once and kept with the data]
    #[arg(long, value_name = "UUID", conflicts_with = "nodes")]
    node_id: Option<String>,
    /// The datacenter's name
    #[arg(long, value_name = "NAME", default_value = "dc1")]
    datacenter: String,
    /// The shortest TTL that a session may ask for
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration::parse)]
    session_ttl_min: Duration,
    /// How log lines look: text or json; LOCKMESH_LOG says what is logged
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = log_format)]
    log_format: LogFormat,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Kill(kill::Args),
}

/// Runs until the process is told to stop; or kills one that runs.
///
/// # Errors
/// As [`crate::dev::run`]; or a flag makes no sense, and then nothing was started. What was to be
/// killed was not, or it was and not all that follows from that came about in time.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    if let Some(Command::Kill(args)) = args.command {
        telemetry::start(&telemetry::for_commands()).map_err(CliError::usage)?;
        return kill::run(args).await;
    }
    telemetry::start(&LogConfig { format: args.log_format, ..LogConfig::default() })
        .map_err(CliError::usage)?;
    let options = options(args)?;
    crate::dev::run(options).await.map_err(CliError::failed)?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: Args) -> Result<DevOptions, CliError> {
    let node = NodeConfig {
        name: args.node.unwrap_or_default(),
        id: args.node_id.unwrap_or_default(),
        datacenter: args.datacenter,
    };
    node.check().map_err(CliError::usage)?;
    let options = DevOptions {
        http: args.http,
        allow_non_loopback: args.allow_non_loopback,
        socket: args.socket,
        data_dir: args.data_dir,
        node,
        session_ttl_min: args.session_ttl_min,
        servers: args.servers,
        nodes: args.nodes,
        log_format: args.log_format,
    };
    // Checked here already, where an error can name the flag instead of a key.
    let http = HttpConfig {
        tcp: Some(options.http),
        allow_non_loopback: options.allow_non_loopback,
        session_ttl_min: options.session_ttl_min,
        ..HttpConfig::default()
    };
    http.check().map_err(|error| CliError::usage(in_flags(&error.to_string())))?;
    Ok(options)
}

/// A complaint about a key of a file, said of the flag that sets it here.
fn in_flags(complaint: &str) -> String {
    complaint
        .replace("`http.tcp`", "--http")
        .replace("`http.allow_non_loopback`", "--allow-non-loopback")
        .replace("`http.session_ttl_min`", "--session-ttl-min")
}

fn servers(text: &str) -> Result<u8, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err("must be 1, 3 or 5: an even number bears no more deaths than the odd one below it".into()),
    }
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("must be `text` or `json`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};

    fn parsed(line: &[&str]) -> Result<DevOptions, CliError> {
        let command = Args::augment_args(clap::Command::new("dev").no_binary_name(true));
        let matches = command.try_get_matches_from(line).map_err(CliError::usage)?;
        options(Args::from_arg_matches(&matches).map_err(CliError::usage)?)
    }

    #[test]
    fn without_flags_it_is_the_default() {
        assert_eq!(parsed(&[]).expect("it is good"), DevOptions::default());
    }

    #[test]
    fn an_open_door_must_be_asked_for_by_name() {
        let refused = parsed(&["--http", "0.0.0.0:8500"]).expect_err("it is open").to_string();
        assert!(
            refused.starts_with("--http is 0.0.0.0:8500") && refused.contains("--allow-non-loopback"),
            "{refused}"
        );
        let options = parsed(&["--http", "[::]:0", "--allow-non-loopback"]).expect("it is meant");
        assert!(options.allow_non_loopback);
    }

    #[test]
    fn wrong_values_are_refused() {
        for line in [
            ["--servers", "2"],
            ["--nodes", "0"],
            ["--nodes", "17"],
            ["--session-ttl-min", "10"],
            ["--session-ttl-min", "0s"],
            ["--node-id", "x"],
            ["--http", ":1"],
        ] {
            assert!(parsed(&line).is_err(), "{line:?}");
        }
        let options =
            parsed(&["--session-ttl-min", "500ms", "--node", "n1", "--servers", "3", "--log-format", "json"]);
        let options = options.expect("it is good");
        assert_eq!((options.servers, options.log_format), (Some(3), LogFormat::Json));
        assert_eq!((options.session_ttl_min.as_millis(), options.node.name.as_str()), (500, "n1"));
    }
    #[test]
    fn agents_of_their_own_have_names_and_sockets_of_their_own() {
        let options =
            parsed(&["--nodes", "16", "--http", "127.0.0.1:0", "--datacenter", "d"]).expect("it is good");
        assert_eq!((options.nodes, options.servers), (Some(16), None));
        let options = parsed(&["--nodes", "1", "--servers", "5"]).expect("it is good");
        assert_eq!((options.nodes, options.servers), (Some(1), Some(5)));
        for flag in [["--socket", "/s"], ["--node", "x"], ["--node-id", "x"]] {
            let line = [["--nodes", "3"], flag].concat();
            assert!(parsed(&line).is_err(), "{line:?}");
        }
    }
}
