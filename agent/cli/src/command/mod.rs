//! The command line: one module per command, each with its `Args` and one `run`.
//!
//! Commands are applications: they reach the agent over its socket through `lockmesh-client`, never
//! through this crate (except the format of a backup file). They do not panic on a closed pipe,
//! print data on stdout and messages on stderr, and exit with the codes of [`error`].
//!
//! | module | contents |
//! |---|---|
//! | `arguments` | values of options that several commands have |
//! | [`spelling`] | Consul's spelling of options, and options before the command |
//! | `absent` | Consul's commands and options that Lockmesh does not have, with a remedy |
//! | [`help`] | examples and exit codes on the help pages |
//! | [`context`] | the address of the agent, from flags and environment |
//! | [`error`], [`output`] | errors and exit codes, tables and JSON |
//! | [`dev`], [`agent`], [`server`] | long-running processes |
//! | [`lock`], [`elect`], [`semaphore`], [`locks`], [`session`], [`kv`], [`watch`], [`event`], [`services`], [`checks`], [`catalog`], [`query`] | commands for applications |
//! | [`supervise`] | starts and ends the programs of `lock`, `elect`, `semaphore` and `watch` |
//! | [`acl`], [`whoami`] | access control |
//! | [`members`], [`leave`], [`force_leave`], [`join`], [`maint`], [`operator`], [`reload`], [`config`], [`migrate`], [`monitor`], [`bench`], [`version`], [`completions`] | commands for operators |

mod absent;
pub mod acl;
pub mod agent;
mod arguments;
pub mod bench;
pub mod catalog;
pub mod checks;
pub mod completions;
pub mod config;
mod confirm;
pub mod context;
pub mod dev;
pub mod elect;
pub mod error;
pub mod event;
pub mod force_leave;
pub mod help;
mod instant;
pub mod join;
pub mod kv;
pub mod leave;
pub mod lock;
pub mod locks;
pub mod maint;
pub mod members;
pub mod migrate;
pub mod monitor;
mod node_lease;
pub mod operator;
pub mod output;
pub mod query;
pub mod reload;
mod runtime;
pub mod semaphore;
pub mod server;
pub mod services;
pub mod session;
pub mod spelling;
pub mod supervise;
pub mod version;
pub mod watch;
pub mod whoami;

pub use context::{Address, Context};
pub use error::{CliError, ExitCodes};

use crate::{stdio, telemetry};
use clap::{CommandFactory, FromArgMatches, Parser};
use context::ConnectionArgs;
use lockmesh_net::owner;
use runtime::runtime;
use std::ffi::OsString;
use std::process::ExitCode;

/// The parsed command line.
#[derive(Parser, Debug)]
#[command(name = "lockmesh", version, about = "A distributed lock service with a Consul-compatible HTTP API")]
#[command(arg_required_else_help = true, max_term_width = 100)]
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
    Services(Online<services::Args>),
    Checks(Online<checks::Args>),
    Catalog(Online<catalog::Args>),
    Query(Online<query::Args>),
    Acl(Online<acl::Args>),
    Whoami(Online<whoami::Args>),
    Members(Online<members::Args>),
    Monitor(Online<monitor::Args>),
    Leave(Online<leave::Args>),
    ForceLeave(Online<force_leave::Args>),
    Join(Online<join::Args>),
    Maint(Online<maint::Args>),
    Operator(operator::Args),
    Reload(Online<reload::Args>),
    #[command(hide = true)]
    Snapshot(operator::snapshot::Args),
    Migrate(Online<migrate::Args>),
    Bench(Online<bench::Args>),
    #[command(hide = true)]
    Supervise(supervise::Args),
    #[command(name = supervise::start::COMMAND, hide = true)]
    Start(supervise::start::Args),
    Config(config::Args),
    Version(version::Args),
    Completions(completions::Args),
}

// A command that connects to the agent. Its own arguments come last, and this is no doc comment,
// because the last description becomes the help.
#[derive(clap::Args, Debug)]
pub(crate) struct Online<T: clap::Args> {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    #[command(flatten)]
    pub(crate) args: T,
}

/// The tree of all commands and options.
pub fn command() -> clap::Command {
    help::complete(Invocation::command())
}

/// Parses the arguments.
///
/// # Errors
/// The exit code. Help, version or the error was printed, and there is no command to execute.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, ExitCode> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    understand(arguments.clone()).map_err(|error| {
        if error.use_stderr() {
            stdio::message(error.render().to_string().into());
            stdio::finish();
            return ExitCode::from(codes_of(arguments).usage());
        }
        // Without stdout there is no place to print help.
        let _ = error.print();
        ExitCode::SUCCESS
    })
}

/// Executes a command on its own runtime, prints its error, and returns the exit code.
pub fn execute(invocation: Invocation) -> ExitCode {
    stdio::report_panics();
    // Agents and servers follow their configuration, which includes the variable.
    owner::allow_others(std::env::var(owner::ALLOW_VARIABLE).is_ok_and(|value| value == "true"));
    let codes = invocation.command.exit_codes();
    let outcome = match invocation.command {
        // Their configuration has the number of threads.
        Command::Agent(args) => agent::run(args),
        Command::Server(args) => server::run(args),
        // Without a runtime: it becomes another program.
        Command::Start(args) => supervise::start::run(&args),
        command => match runtime(command.threads()) {
            Ok(runtime) => runtime.block_on(command.run()),
            Err(error) => Err(error),
        },
    };
    let code = outcome.unwrap_or_else(|error| report(&error, codes));
    stdio::finish();
    code
}

/// The exit codes of arguments that cannot be parsed.
fn codes_of(arguments: Vec<OsString>) -> ExitCodes {
    let mut command = command();
    command.build();
    // With options before the command moved behind it.
    let arguments = spelling::rewrite(arguments, &command);
    let words: Vec<_> = arguments.iter().take_while(|word| *word != "--").collect();
    let has = |option: &str| words.iter().any(|word| *word == option);
    match words.get(1).and_then(|word| word.to_str()) {
        Some("elect") if has("--show") || has("--observe") => ExitCodes::Plain,
        Some("lock" | "semaphore") if has("--child-exit-code") => ExitCodes::Consul,
        Some("lock" | "semaphore" | "elect") => ExitCodes::Holder,
        _ => ExitCodes::Plain,
    }
}

/// Prints an error; returns its exit code.
fn report(error: &CliError, codes: ExitCodes) -> ExitCode {
    match error {
        CliError::ClosedPipe => {}
        CliError::InConsulsWords(text) => stdio::message(format!("{text}\n").into()),
        error => stdio::report(error),
    }
    error.exit_code(codes)
}

fn understand(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match understand_process(&arguments) {
        Some(invocation) => Ok(invocation),
        None => understand_any(arguments),
    }
}

/// Parses the arguments of a long-running process alone, because the tree of all commands would
/// stay in its memory. `None` for other commands, for errors and for help.
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
        supervise::start::COMMAND => Command::Start(alone(own)?),
        _ => return None,
    };
    Some(Invocation { command })
}

fn understand_any(arguments: Vec<OsString>) -> Result<Invocation, clap::Error> {
    let mut command = command();
    command.build();
    let rewritten = spelling::rewrite(arguments.clone(), &command);
    let matches = command
        .try_get_matches_from_mut(&rewritten)
        .map_err(|error| absent::explained(spelling::as_typed(error, &arguments), &rewritten, &command))?;
    Invocation::from_arg_matches(&matches)
}

impl Command {
    /// The exit codes of the command's own errors.
    fn exit_codes(&self) -> ExitCodes {
        match self {
            Self::Lock(online) => online.args.exit_codes(),
            Self::Semaphore(online) => online.args.exit_codes(),
            Self::Elect(online) => online.args.exit_codes(),
            _ => ExitCodes::Plain,
        }
    }

    /// The number of threads: the work of a command must not delay a guard's renewals.
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
            Self::Services(online) => services::run(online.args, &online.connection.context()?).await,
            Self::Checks(online) => checks::run(online.args, &online.connection.context()?).await,
            Self::Query(online) => query::run(online.args, &online.connection.context()?).await,
            Self::Catalog(online) => catalog::run(online.args, &online.connection.context()?).await,
            Self::Acl(online) => acl::run(online.args, &online.connection.context()?).await,
            Self::Whoami(online) => whoami::run(online.args, &online.connection.context()?).await,
            Self::Members(online) => members::run(online.args, &online.connection.context()?).await,
            Self::Monitor(online) => monitor::run(online.args, &online.connection.context()?).await,
            Self::Leave(online) => leave::run(online.args, &online.connection.context()?).await,
            Self::ForceLeave(online) => force_leave::run(online.args, &online.connection.context()?).await,
            Self::Join(online) => join::run(online.args, &online.connection.context()?).await,
            Self::Maint(online) => maint::run(online.args, &online.connection.context()?).await,
            Self::Operator(args) => operator::run(args).await,
            Self::Reload(online) => reload::run(online.args, &online.connection.context()?).await,
            Self::Snapshot(args) => operator::snapshot::run(args).await,
            Self::Migrate(online) => migrate::run(online.args, &online.connection.context()?).await,
            Self::Bench(online) => bench::run(online.args, &online.connection.context()?).await,
            Self::Supervise(args) => supervise::run(args).await,
            Self::Start(args) => supervise::start::run(&args),
            Self::Config(args) => config::run(args).await,
            Self::Version(args) => version::run(args).await,
            Self::Completions(args) => completions::run(args, &mut command()).await,
        }
    }
}

impl ConnectionArgs {
    /// The context of a command. The client library logs warnings only, unless LOCKMESH_LOG is set.
    pub(crate) fn context(&self) -> Result<Context, CliError> {
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
    fn usage_error_follows_exit_code_mode() {
        let codes = |line: &str| codes_of(line.split(' ').map(OsString::from).collect());
        assert_eq!(codes("lockmesh lock --bogus n -- x --child-exit-code"), ExitCodes::Holder);
        assert_eq!(codes("lockmesh lock -child-exit-code --bogus n -- x"), ExitCodes::Consul);
        assert_eq!(codes("lockmesh semaphore --slots no n -- x"), ExitCodes::Holder);
        assert_eq!(codes("lockmesh elect --show --bogus n"), ExitCodes::Plain);
        assert_eq!(codes("lockmesh kv get --bogus"), ExitCodes::Plain);
    }

    #[test]
    fn process_parser_matches_full_parser() {
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
    fn accepts_consul_command_lines() {
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
            &["services", "register", "-name=web", "-port=80", "-tag=a", "-tag=b", "-meta=k=v"],
            &["services", "register", "web.json", "db.toml"],
            &["services", "deregister", "-id=web-1"],
            &["services", "list", "-json"],
            &["checks", "-status=critical"],
            &["catalog", "services", "-tags", "-node=n1"],
            &["catalog", "nodes", "-service=web", "-near=_agent", "-detailed", "-stale"],
            &["catalog", "datacenters"],
            &["query", "create", "-json", "@web.json"],
            &["query", "update", "web", "-"],
            &["query", "execute", "web", "-limit=3", "-near=_agent", "-stale"],
            &["maint"],
            &["maint", "-enable", "-reason=new disk", "-service=web-1"],
            &["maint", "-disable"],
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
            &["monitor", "-log-level=debug", "-log-json"],
            &["dev", "-nodes=5", "-data-dir", "/d"],
            &["dev", "kill", "n4", "-data-dir", "/d", "-timeout=1m", "-json"],
            &["force-leave", "-prune", "web-3"],
            &["join", "10.0.0.1"],
            &["leave"],
            &["-http-addr=h:1", "kv", "get", "key"],
            &["--http-addr", "h:1", "-token", "t", "operator", "raft", "list-peers"],
            &["operator", "--http-addr", "h:1", "snapshot", "save", "file"],
            &["snapshot", "-http-addr=h:1", "save", "file"],
        ] {
            let understood = understood(line);
            assert!(understood.is_ok(), "{line:?}: {understood:?}");
        }
    }

    #[test]
    fn invalid_lines_exit_with_code_2() {
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
            &["services"],
            &["services", "register"],
            &["services", "deregister"],
            &["services", "deregister", "-id=web-1", "web.json"],
            &["checks", "-status=sick"],
            &["catalog"],
            &["query", "create"],
            &["query", "execute", "web", "-limit=x"],
            &["maint", "-enable", "-disable"],
            &["maint", "-disable", "-reason=r"],
            &["maint", "-service=web-1"],
            &["force-leave"],
            &["join"],
            &["session", "create", "--no-node-checks", "--node-check", "a"],
            &["dev", "kill", "n4"],
            &["dev", "kill", "-data-dir=/d"],
            &["dev", "-nodes=5", "kill", "n4", "-data-dir=/d"],
            &["-http-addr=h:1", "version"],
            &["operator", "tls", "init", "--http-addr=h:1"],
            &["operator", "snapshot", "inspect", "-http-addr=h:1", "file"],
            &["operator", "raft", "inspect", "--data-dir=/d", "--token=t"],
            &["nonsense"],
            &[],
        ] {
            assert_eq!(understood(line).expect_err("it makes no sense").exit_code(), 2, "{line:?}");
        }
    }
}
