//! `lockmesh migrate consul`: the options, the signals and the output of
//! [`lockmesh_migrate::kv`].

use super::context::Context;
use super::error::CliError;
use super::output::{json, warn};
use crate::stdio;
use lockmesh_migrate::kv::{Migration, Options, TlsOptions};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Move data to Lockmesh from another system
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Consul(ConsulArgs),
}

/// Copy keys from a running Consul
///
/// Copies keys with values and flags, follows changes until both sides are equal, and compares all
/// keys. Keys that have other values in Lockmesh are listed and nothing is written. If it is
/// interrupted, run the same command again. Sessions, locks, services and checks are not copied.
/// The exit code is 0 if no key differs, and with --dry-run if nothing prevents the copy. Keys that
/// are only in Lockmesh are listed and do not count.
#[derive(clap::Args, Clone, Debug)]
struct ConsulArgs {
    /// Address of a Consul agent: `http://host:port`, `https://host:port`, `host:port` or
    /// `unix:///path`
    #[arg(long, value_name = "ADDR", default_value = "http://127.0.0.1:8500")]
    from: String,
    /// File with a Consul token that may read the keys
    #[arg(long, value_name = "FILE")]
    from_token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Key prefix to copy; repeatable [default: all keys]
    #[arg(long = "prefix", value_name = "PREFIX")]
    prefixes: Vec<String>,
    /// Path to put the keys under: `copy` makes `copy/app/limit` of `app/limit`
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    to_prefix: String,
    /// Follow changes until Ctrl-C or SIGTERM, then do the last pass; stop the writers before
    #[arg(long, conflicts_with_all = ["dry_run", "verify_only"])]
    follow: bool,
    /// Overwrite keys that have other values in Lockmesh
    #[arg(long, conflicts_with = "verify_only")]
    overwrite: bool,
    /// Delete more than half of the copied keys in Lockmesh, if they were deleted in Consul
    #[arg(long, conflicts_with = "verify_only")]
    allow_deletes: bool,
    /// Write nothing; show what would be written
    #[arg(long, conflicts_with = "verify_only")]
    dry_run: bool,
    /// Write nothing; compare both sides
    #[arg(long)]
    verify_only: bool,
    /// File that records which keys were copied, for the next run
    #[arg(long, value_name = "FILE", default_value = "lockmesh-migrate.state")]
    state: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// The options of an `https://` source.
#[derive(clap::Args, Clone, Debug)]
struct TlsArgs {
    /// PEM file with the authority of Consul's certificate [default: the authorities of the system]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// PEM file with a certificate, if Consul verifies its clients
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// PEM file with the key of that certificate
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
    /// Name in Consul's certificate [default: the host of --from]
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// Keys differ, or one of the sides failed. A part may be copied; the command may be repeated.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let Command::Consul(args) = args.command;
    let (follow, verify_only, as_json) = (args.follow, args.verify_only, args.json);
    // Without `--follow` there is no last pass, and a signal ends the process at once.
    let stop = if follow { Some(stop_signals()?) } else { None };
    let migration = Migration::new(args.into(), context.client()?, warn).await?;
    let report = migration.run(stop).await?;
    let text = if as_json { json(&report)? } else { format!("{}\n", report.text()).into() };
    let printed = stdio::print(text);
    match follow {
        // The signal that ended it is obeyed, even if the reader is stuck.
        true => timeout(stdio::FINISH_TIMEOUT, printed)
            .await
            .map_err(|_| CliError::failed("the report was not printed: the reader of stdout is stuck"))??,
        false => printed.await?,
    }
    report.verdict(verify_only)?;
    Ok(ExitCode::SUCCESS)
}

impl From<ConsulArgs> for Options {
    fn from(args: ConsulArgs) -> Self {
        let TlsArgs { ca_file, client_cert, client_key, tls_server_name } = args.tls;
        Self {
            from: args.from,
            from_token_file: args.from_token_file,
            tls: TlsOptions { ca_file, client_cert, client_key, tls_server_name },
            prefixes: args.prefixes,
            to_prefix: args.to_prefix,
            overwrite: args.overwrite,
            allow_deletes: args.allow_deletes,
            dry_run: args.dry_run,
            verify_only: args.verify_only,
            state: args.state,
        }
    }
}

/// The signals that end `--follow`.
fn stop_signals() -> Result<mpsc::Receiver<()>, CliError> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (sender, stop) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if sender.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(stop)
}
