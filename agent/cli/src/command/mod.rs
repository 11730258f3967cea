//! The command line: one module a command, each with its `Args` and one `run`.
//!
//! Commands are applications: they reach the agent over its socket through `lockmesh-client`, never
//! by reaching into this crate (but for the format of a backup file). They never panic on a closed
//! pipe, print data on stdout and everything else on stderr, and exit with 0 (done), 1 (failed or
//! refused) or 2 (not understood).
//!
//! | module | is |
//! |---|---|
//! | [`spelling`] | Consul's spelling of options, made ours |
//! | `absent` | Consul's commands and options that Lockmesh does not have, with a remedy |
//! | [`context`] | where the agent is, from flags and environment |
//! | [`error`], [`output`] | what is said on stderr and stdout |
//! | [`dev`], [`agent`], [`server`] | the processes that stay |
//! | [`lock`], [`elect`], [`semaphore`], [`locks`], [`session`], [`kv`], [`watch`], [`event`] | what applications do |
//! | [`supervise`] | what starts the programs of `lock`, `elect`, `semaphore` and `watch`, and ends them |
//! | [`members`], [`leave`], [`force_leave`], [`join`], [`operator`], [`reload`], [`config`], [`bench`], [`version`], [`completions`] | what operators do |

mod absent;
pub mod agent;
pub mod bench;
pub mod completions;
pub mod config;
mod confirm;
pub mod context;
pub mod dev;
pub mod elect;
pub mod error;
pub mod event;
pub mod force_leave;
mod instant;
pub mod join;
pub mod kv;
pub mod leave;
pub mod lock;
pub mod locks;
pub mod members;
mod node_lease;
pub mod operator;
pub mod output;
pub mod reload;
mod runtime;
pub mod semaphore;
pub mod server;
pub mod session;
pub mod spelling;
pub mod supervise;
pub mod version;
pub mod watch;

pub use context::{Address, Context};
pub use error::CliError;

use crate::telemetry;
use clap::{CommandFactory, FromArgMatches, Parser};
use context::ConnectionArgs;
use runtime::runtime;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Everything that was said on the command line.
#[derive(Parser, Debug)]
#[command(name = "lockmesh", version, about = "A distributed lock service with a Consul-compatible HTTP API")]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Invocation {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Dev(dev::Args),
    Agent(agent::Args),
    Server(server::Args),
    Lock(Online<lock::Args>),
    Elect(Online<elect::Args>),
    Semaphore(Online<semaphore::Args>),
    Locks(Online<locks::Args>),
    Session(Online<session::Args>),
    Kv(Online<kv::Args>),
    Watch(Online<watch::Args>),
    Event(Online<event::Args>),
    Members(Online<members::Args>),
    Leave(Online<leave::Args>),
    ForceLeave(Online<force_leave::Args>),
    Join(Online<join::Args>),
    Operator(Online<operator::Args>),
    Reload(Online<reload::Args>),
    #[command(hide = true)]
    Snapshot(Online<operator::snapshot::Args>),
    Bench(Online<bench::Args>),
    #[command(hide = true)]
    Supervise(supervise::Args),
    Config(config::Args),
    Version(version::Args),
    Completions(completions::Args),
}

// A command that talks to the agent. Its own arguments come last, and this is no doc comment,
// because the last description stands as the help.
#[derive(clap::Args, Debug)]
struct Online<T: clap::Args> {
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(flatten)]
    args: T,
}

/// The whole tree of commands and options.
pub fn command() -> clap::Command {
    Invocation::command()
}

/// Understands the arguments; otherwise help, version or the complaint is printed and the exit code
/// given.
///
/// # Errors
/// The exit code: nothing is left to carry out, since help or version was asked for, or the
/// arguments make no sense. All that is to be said was printed.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, ExitCode> {
    understand(arguments).map_err(|error| {
        // Nobody is left to tell when even this cannot be printed.
        let _ = error.print();
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
    })
}

/// Carries a command out on a runtime of its own.
///
/// # Errors
/// The command did not do what was asked. [`report`] tells the person at the keyboard, and gives
/// the exit code.
pub fn execute(invocation: Invocation) -> Result<ExitCode, CliError> {
    match invocation.command {
        // Their configuration says how many threads they run on.
        Command::Agent(args) => agent::run(args),
        Command::Server(args) => server::run(args),
        command => runtime(command.threads())?.block_on(command.run()),
    }
}

/// Tells the person at the keyboard what went wrong.
pub fn report(error: &CliError) -> ExitCode {
    let mut stderr = std::io::stderr();
    // Nobody is left to tell when even this cannot be printed.
    let _ = match error {
        CliError::ClosedPipe => Ok(()),
        CliError::InConsulsWords(text) => writeln!(stderr, "{text}"),
        error => writeln!(stderr, "lockmesh: {error}"),
    };
    error.exit_code()
}

fn understand(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match understand_process(&arguments) {
        Some(invocation) => Ok(invocation),
        None => understand_any(arguments),
    }
}

/// A process that stays, on its own: the tree of all commands would leave its traces in memory for
/// as long as that. None for anything else, and for whatever is to be complained about or
/// explained.
fn understand_process(arguments: &[OsString]) -> Option<Invocation> {
    fn alone<T: clap::Args>(arguments: &[OsString]) -> Option<T> {
        let command = T::augment_args(clap::Command::new("lockmesh"));
        T::from_arg_matches(&command.try_get_matches_from(arguments).ok()?).ok()
    }
    let (_, own) = arguments.split_first()?;
    let command = match own.first()?.to_str()? {
        "agent" => Command::Agent(alone(own)?),
        "server" => Command::Server(alone(own)?),
        supervise::COMMAND => Command::Supervise(alone(own)?),
        _ => return None,
    };
    Some(Invocation { command })
}

fn understand_any(arguments: Vec<OsString>) -> Result<Invocation, clap::Error> {
    let mut command = command();
    command.build();
    let arguments = spelling::rewrite(arguments, &command);
    let matches = command
        .try_get_matches_from_mut(&arguments)
        .map_err(|error| absent::explained(error, &arguments, &command))?;
    Invocation::from_arg_matches(&matches)
}

impl Command {
    /// How many threads the command runs on: what it does itself must not hold up a guard's
    /// renewals.
    fn threads(&self) -> usize {
        if matches!(self, Self::Lock(_) | Self::Elect(_) | Self::Semaphore(_)) { 2 } else { 1 }
    }

    async fn run(self) -> Result<ExitCode, CliError> {
        match self {
            Self::Dev(args) => dev::run(args).await,
            Self::Agent(args) => agent::run(args),
            Self::Server(args) => server::run(args),
            Self::Lock(online) => lock::run(online.args, &online.connection.context()?).await,
            Self::Elect(online) => elect::run(online.args, &online.connection.context()?).await,
            Self::Semaphore(online) => semaphore::run(online.args, &online.connection.context()?).await,
            Self::Kv(online) => kv::run(online.args, &online.connection.context()?).await,
            Self::Locks(online) => locks::run(online.args, &online.connection.context()?).await,
            Self::Session(online) => session::run(online.args, &online.connection.context()?).await,
            Self::Watch(online) => watch::run(online.args, &online.connection.context()?).await,
            Self::Event(online) => event::run(online.args, &online.connection.context()?).await,
            Self::Members(online) => members::run(online.args, &online.connection.context()?).await,
            Self::Leave(online) => leave::run(online.args, &online.connection.context()?).await,
            Self::ForceLeave(online) => force_leave::run(online.args, &online.connection.context()?).await,
            Self::Join(online) => join::run(online.args, &online.connection.context()?).await,
            Self::Operator(online) => operator::run(online.args, &online.connection.context()?).await,
            Self::Reload(online) => reload::run(online.args, &online.connection.context()?).await,
            Self::Snapshot(online) => {
                operator::snapshot::run(online.args, &online.connection.context()?).await
            }
            Self::Bench(online) => bench::run(online.args, &online.connection.context()?).await,
            Self::Supervise(args) => supervise::run(args).await,
            Self::Config(args) => config::run(args).await,
            Self::Version(args) => version::run(args).await,
            Self::Completions(args) => completions::run(args, &mut command()).await,
        }
    }
}

impl ConnectionArgs {
    /// What the command is given; logs of the client library are quiet unless asked for.
    fn context(&self) -> Result<Context, CliError> {
        telemetry::start(&telemetry::for_commands()).map_err(CliError::usage)?;
        Context::resolve(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn understood(line: &[&str]) -> Result<Invocation, clap::Error> {
        understand(["lockmesh"].iter().chain(line).map(OsString::from))
    }

    #[test]
    fn a_process_that_stays_is_understood_alone_as_among_all_commands() {
        for line in [
            vec!["agent"],
            vec!["agent", "--config", "a.toml", "--set", "http.tcp=127.0.0.1:1"],
            vec!["server", "--set=rpc.listen=127.0.0.1:1", "--join", "a:1,b:2", "--until-stdin-ends"],
        ] {
            let arguments: Vec<OsString> = ["lockmesh"].iter().chain(&line).map(OsString::from).collect();
            let alone = understand_process(&arguments).expect("it is good");
            let among_all = understand_any(arguments).expect("it is good");
            assert_eq!(format!("{alone:?}"), format!("{among_all:?}"));
        }
        for line in
            [vec![], vec!["agent", "--help"], vec!["server", "--nonsense"], vec!["agent", "-config", "a"]]
        {
            let arguments: Vec<OsString> = ["lockmesh"].iter().chain(&line).map(OsString::from).collect();
            assert!(understand_process(&arguments).is_none(), "{line:?} needs the whole tree");
        }
    }

    #[test]
    fn the_commands_fit_together() {
        command().debug_assert();
    }

    #[test]
    fn lines_are_understood_as_consuls_users_write_them() {
        for line in [
            ["kv", "put", "-cas", "-modify-index=5", "-http-addr=h:1", "key", "value"].as_slice(),
            &["kv", "put", "-flags", "18446744073709551615", "key", "-"],
            &["kv", "put", "key", "-5"],
            &["kv", "get", "-recurse=true", "-stale", "-http-addr", "unix:///s", "prefix"],
            &["kv", "delete", "-recurse", ""],
            &["kv", "delete", "-recurse", "--yes", ""],
            &["snapshot", "restore", "--yes", "file"],
            &["session", "create", "-ttl=10s", "-behavior=delete", "-node-check=a", "-node-check=b"],
            &["watch", "-type=key", "-key=a", "-shell=false", "/bin/sh", "-c", "cat -key"],
            &["watch", "-type=event", "-name=deploy", "cat"],
            &["event", "-name=deploy", "-node=^web-", "-service", "web", "-tag=v[12]", "payload"],
            &["event", "-name", "deploy"],
            &["event", "-name=deploy", "list"],
            &["event", "fire", "deploy", "-", "-node=^web-", "-json"],
            &["event", "list", "-name=deploy", "-json"],
            &["operator", "raft", "list-peers", "-stale"],
            &["operator", "raft", "remove-peer", "-address=10.0.0.5:8300"],
            &["operator", "raft", "transfer-leader", "-id=u"],
            &["operator", "raft", "transfer-leader"],
            &["operator", "raft", "recover", "--data-dir", "/d", "--yes-the-other-servers-are-gone"],
            &["operator", "autopilot", "set-config", "-cleanup-dead-servers=false", "-min-quorum=3"],
            &["operator", "autopilot", "get-config"],
            &["operator", "gossip", "key", "-json"],
            &["operator", "gossip", "rotate"],
            &["snapshot", "save", "file"],
            &["locks", "-losses", "-json"],
            &["dev", "-nodes=5", "-data-dir", "/d"],
            &["dev", "kill", "n4", "-data-dir", "/d", "-timeout=1m", "-json"],
            &["force-leave", "-prune", "web-3"],
            &["join", "10.0.0.1"],
            &["leave"],
        ] {
            let understood = understood(line);
            assert!(understood.is_ok(), "{line:?}: {understood:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_exit_code_two() {
        for line in [
            ["kv", "put", "-acquire", "-release", "key"].as_slice(),
            &["kv", "put", "-acquire", "-cas", "key"],
            &["kv", "get", "-namespace=x", "key"],
            &["operator", "raft", "remove-peer"],
            &["operator", "raft", "remove"],
            &["operator", "raft", "recover"],
            &["operator", "raft", "recover", "--data-dir", "/d", "--config", "/c"],
            &["operator", "autopilot", "set-config"],
            &["operator", "autopilot", "set-config", "-max-trailing-logs=0"],
            &["operator", "raft", "remove-peer", "-id=a", "-address=b:1"],
            &["operator", "gossip"],
            &["event", "payload"],
            &["event", "fire"],
            &["force-leave"],
            &["join"],
            &["session", "create", "--no-node-checks", "--node-check", "a"],
            &["dev", "kill", "n4"],
            &["dev", "kill", "-data-dir=/d"],
            &["dev", "-nodes=5", "kill", "n4", "-data-dir=/d"],
            &["-http-addr=h:1", "kv", "get", "key"],
            &["nonsense"],
            &[],
        ] {
            assert_eq!(understood(line).expect_err("it makes no sense").exit_code(), 2, "{line:?}");
        }
    }
}
