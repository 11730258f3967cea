//! `lockmesh dev`: a whole cluster in one command, for trials and tests.
//!
//! | file | is |
//! |---|---|
//! | `kill.rs` | `dev kill`: kills one process of it, and shows what becomes of its locks or its lead |
//! | `follow.rs` | what becomes of locks, out of one look at them after the other |

mod follow;
mod kill;

use super::arguments::{ValueError, pair};
use super::error::CliError;
use super::runtime::forbid_core_dumps;
use crate::dev::{DevOptions, MOST_NODES};
use crate::telemetry;
use lockmesh_agent::config::{AgentConfig, HttpConfig};
use lockmesh_agent::http::Listeners;
use lockmesh_net::config::{LogConfig, LogFormat, NodeConfig, Section};
use lockmesh_protocol::acl::{AclMode, DefaultPolicy};
use lockmesh_protocol::duration;
use lockmesh_server::config::AclConfig;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Start a cluster on this machine: a server and an agent in one process, or several of each
///
/// Runs the real thing on one machine: write-ahead log, QUIC with mutual TLS, sessions, locks.
/// Without --data-dir the data is deleted at the end.
///
/// --servers 3 starts the servers s1, s2 and s3 as processes, --nodes 5 also the agents n1 to n5 of
/// five hosts. Each process has a folder in the data folder with its configuration, log, process id
/// and, for an agent, its Unix socket: DIR/n2/agent.sock. All end with this command. A killed
/// process is not restarted automatically; `lockmesh dev kill` kills one and shows the failover.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Listen address for HTTP, of n1 with --nodes; port 0 for any free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8500")]
    http: SocketAddr,
    /// Allow an address that other hosts can reach; there is no access control
    #[arg(long)]
    allow_non_loopback: bool,
    /// Path of the Unix socket [default: agent.sock in the data folder]
    #[arg(long, value_name = "PATH", conflicts_with = "nodes")]
    socket: Option<PathBuf>,
    /// Data folder [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Number of servers, each its own process: 1, 3 or 5 [default with --nodes: 3]
    #[arg(long, value_name = "COUNT", value_parser = servers)]
    servers: Option<u8>,
    /// Number of agents, each its own process, as are the servers: 1 to 16
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_NODES)))]
    nodes: Option<u8>,
    /// Node name [default: host name]
    #[arg(long, value_name = "NAME", conflicts_with = "nodes")]
    node: Option<String>,
    /// Node UUID [default: random, kept with the data]
    #[arg(long, value_name = "UUID", conflicts_with = "nodes")]
    node_id: Option<String>,
    /// Metadata of the node; repeat it for several pairs
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "nodes", value_parser = pair)]
    node_meta: Vec<(String, String)>,
    /// Datacenter name
    #[arg(long, value_name = "NAME", default_value = "dc1")]
    datacenter: String,
    /// Minimum session TTL
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    session_ttl_min: Duration,
    /// Secret of the management token; enforces access control lists
    #[arg(long, value_name = "SECRET")]
    initial_management: Option<String>,
    /// Reaction to requests without a rule, with --initial-management: allow or deny
    #[arg(long, value_name = "POLICY", default_value = "deny", requires = "initial_management", value_parser = default_policy)]
    acl_default_policy: DefaultPolicy,
    /// Log format: text or json; LOCKMESH_LOG sets the level
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = log_format)]
    log_format: LogFormat,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Kill(kill::Args),
}

/// Runs until a signal stops the process; or kills a running one.
///
/// # Errors
/// As [`crate::dev::run`]. After an invalid flag nothing was started. A process was not killed, or
/// the failover was not complete in time.
pub async fn run(args: Args) -> Result<ExitCode, CliError> {
    if let Some(Command::Kill(args)) = args.command {
        telemetry::start(&telemetry::for_commands()).map_err(CliError::usage)?;
        return kill::run(args).await;
    }
    telemetry::start(&LogConfig { format: args.log_format, ..LogConfig::default() })
        .map_err(CliError::usage)?;
    let options = options(args)?;
    refuse_busy(&options)?;
    forbid_core_dumps();
    let ran = crate::dev::run(options).await;
    ran.map_err(|error| CliError::failed(in_flags(&error.to_string())))?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: Args) -> Result<DevOptions, CliError> {
    let node = NodeConfig {
        name: args.node.unwrap_or_default(),
        id: args.node_id.unwrap_or_default(),
        datacenter: args.datacenter,
    };
    node.check_at("node").map_err(CliError::usage)?;
    let options = DevOptions {
        http: args.http,
        allow_non_loopback: args.allow_non_loopback,
        socket: args.socket,
        data_dir: args.data_dir,
        node,
        node_meta: args.node_meta.into_iter().collect(),
        session_ttl_min: args.session_ttl_min,
        servers: args.servers,
        nodes: args.nodes,
        acl: acl(args.initial_management, args.acl_default_policy),
        log_format: args.log_format,
    };
    // Checked here already, where an error can name the flag instead of a key.
    let http = HttpConfig {
        tcp: Some(options.http),
        allow_non_loopback: options.allow_non_loopback,
        session_ttl_min: options.session_ttl_min,
        ..HttpConfig::default()
    };
    let agent = AgentConfig { http, node_meta: options.node_meta.clone(), ..AgentConfig::default() };
    agent.check().map_err(|error| CliError::usage(in_flags(&error.to_string())))?;
    Ok(options)
}

fn acl(secret: Option<String>, default_policy: DefaultPolicy) -> AclConfig {
    secret.map_or_else(AclConfig::default, |initial_management| AclConfig {
        mode: AclMode::Enforce,
        default_policy,
        initial_management,
    })
}

fn default_policy(text: &str) -> Result<DefaultPolicy, ValueError> {
    match text {
        "allow" => Ok(DefaultPolicy::Allow),
        "deny" => Ok(DefaultPolicy::Deny),
        _ => Err(ValueError::DefaultPolicy),
    }
}

/// Rejects an address that is in use, before any process is started.
fn refuse_busy(options: &DevOptions) -> Result<(), CliError> {
    let bound = Listeners::bind(&[options.http], None, options.allow_non_loopback);
    bound.map(drop).map_err(|error| CliError::failed(in_flags(&error.to_string())))
}

/// An error about a key of a file, with the flag that sets it here.
fn in_flags(complaint: &str) -> String {
    complaint
        .replace("`http.tcp`", "--http")
        .replace("`http.socket`", "--socket")
        .replace("`http.allow_non_loopback`", "--allow-non-loopback")
        .replace("`http.session_ttl_min`", "--session-ttl-min")
        .replace("`node_meta`", "--node-meta")
}

fn servers(text: &str) -> Result<u8, ValueError> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err(ValueError::Servers),
    }
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, ValueError> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(ValueError::LogFormat),
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
    fn no_flags_yield_defaults() {
        assert_eq!(parsed(&[]).expect("it is good"), DevOptions::default());
    }

    #[test]
    fn non_loopback_http_requires_flag() {
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
            ["--node-meta", "rack"],
            ["--node-meta", "consul-rack=r1"],
        ] {
            assert!(parsed(&line).is_err(), "{line:?}");
        }
        let options =
            parsed(&["--session-ttl-min", "500ms", "--node", "n1", "--servers", "3", "--log-format", "json"]);
        let options = options.expect("it is good");
        assert_eq!((options.servers, options.log_format), (Some(3), LogFormat::Json));
        assert_eq!((options.session_ttl_min.as_millis(), options.node.name.as_str()), (500, "n1"));
    }

    #[tokio::test]
    async fn busy_address_rejected_before_start() {
        let first = Listeners::bind(&["127.0.0.1:0".parse().expect("an address")], None, false);
        let busy = first.as_ref().expect("any port is free").tcp_addresses()[0];
        let options = DevOptions { http: busy, ..DevOptions::default() };
        let text = refuse_busy(&options).expect_err("it is in use").to_string();
        assert!(text.starts_with(&busy.to_string()) && text.ends_with("choose another --http"), "{text}");
        drop(first);
        assert!(refuse_busy(&options).is_ok());
    }

    #[test]
    fn nodes_conflict_with_agent_flags() {
        let options =
            parsed(&["--nodes", "16", "--http", "127.0.0.1:0", "--datacenter", "d"]).expect("it is good");
        assert_eq!((options.nodes, options.servers), (Some(16), None));
        let options = parsed(&["--nodes", "1", "--servers", "5"]).expect("it is good");
        assert_eq!((options.nodes, options.servers), (Some(1), Some(5)));
        for flag in [["--socket", "/s"], ["--node", "x"], ["--node-id", "x"], ["--node-meta", "a=b"]] {
            let line = [["--nodes", "3"], flag].concat();
            assert!(parsed(&line).is_err(), "{line:?}");
        }
    }
}
