//! `lockmesh migrate consul`: copies keys from a running Consul to Lockmesh while writers still use
//! Consul.
//!
//! First all keys are compared, so that keys that do not fit and conflicts are listed before
//! anything is written. Then passes write what has changed until one finds no difference; with
//! `--follow` until a signal. At the end both sides are compared again. Each pass reads Consul's
//! keys as one stream: memory does not grow with their number.
//!
//! | module | contents |
//! |---|---|
//! | [`side`] | Consul's list; errors of both sides in words |
//! | [`slices`] | the keys of Lockmesh |
//! | [`ledger`] | the state file: which keys the migration wrote |
//! | [`compare`] | the comparison before and after |
//! | [`transfer`] | one pass of writes |
//! | [`report`] | counts, lists of keys, progress |
//! | [`tls`] | TLS to Consul |
//! | `tests`, `fake` | migrations between two small HTTP servers |

mod compare;
#[cfg(test)]
mod fake;
mod ledger;
mod report;
mod side;
mod slices;
#[cfg(test)]
mod tests;
mod tls;
mod transfer;

use super::context::Context;
use super::error::CliError;
use super::kv::limits::{Limits, check_key};
use super::output::warn;
use crate::stdio;
use compare::compare;
use ledger::Ledger;
use lockmesh_client::{Address, Client, DEFAULT_PORT, Error, Read};
use report::{Comparison, Listed, Report};
use side::{Source, check_token, datacenter, distinct, is_lockmesh, of_consul, of_lockmesh};
use slices::Slices;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tls::{Tls, TlsArgs};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;
use transfer::transfer;

/// The port of Consul for HTTPS, unless `--from` has another.
const HTTPS_PORT: u16 = 8501;

/// The maximum number of passes without `--follow`: with more, writers are still active.
const MAX_PASSES: u64 = 16;

/// The minimum pause between two passes of `--follow`. It is at least as long as the last pass, so
/// that Consul lists its keys for at most half of the time.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// The maximum time that a side may be unavailable.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of keys that a run may delete in Lockmesh without `--allow-deletes`, even if they are
/// most of those that were copied.
const MAX_DELETES: u64 = 10;

/// The pause before a pass is repeated that lost Consul.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

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

/// Runs the command.
///
/// # Errors
/// Keys differ, or one of the sides failed. A part may be copied; the command may be repeated.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let Command::Consul(args) = args.command;
    let stop = if args.follow { Some(stop_signals()?) } else { None };
    let (json, target) = (args.json, context.client()?);
    let report = Migration::new(&args, target).await?.run(stop).await?;
    let printed = stdio::print(report.rendered(json)?);
    match args.follow {
        // The signal that ended it is obeyed, even if the reader is stuck.
        true => timeout(stdio::FINISH_TIMEOUT, printed)
            .await
            .map_err(|_| CliError::failed("the report was not printed: the reader of stdout is stuck"))??,
        false => printed.await?,
    }
    verdict(&report, &args)
}

/// The exit code, or the number of keys that differ.
fn verdict(report: &Report, args: &ConsulArgs) -> Result<ExitCode, CliError> {
    let count = report.comparison.differing.count;
    if report.dry_run || count == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let advice = match args.verify_only {
        true => "run the command without --verify-only to copy them",
        false => "stop the writers on Consul, then run the same command again",
    };
    Err(CliError::failed(format!("{count} keys differ: {advice}")))
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

/// A migration in progress.
struct Migration {
    args: ConsulArgs,
    source: Source,
    target: Client,
    ledger: Ledger,
    limits: Limits,
    retry_timeout: Duration,
    report: Report,
    began: Instant,
}

impl Migration {
    /// Checks both sides.
    async fn new(args: &ConsulArgs, target: Client) -> Result<Self, CliError> {
        let prefixes = distinct(&args.prefixes);
        for prefix in &prefixes {
            check_key(prefix).map_err(|defect| CliError::usage(format!("--prefix: {prefix:?} {defect}")))?;
        }
        let (client, tls) = consul(args).await?;
        let rejection = || tls.as_ref().and_then(|tls| tls.rejection());
        let is_ours = is_lockmesh(&client).await.map_err(|error| match (error, rejection()) {
            (Error::Unanswered { address, reason }, Some(rejection)) => {
                CliError::failed(format!("lost Consul at {address}: {reason}; {rejection}"))
            }
            (error, _) => of_consul(error),
        });
        if is_ours? {
            return Err(CliError::failed(format!(
                "{} is a Lockmesh agent: name a Consul agent with --from; between two Lockmesh clusters \
                use `kv export` \
                 and `kv import`",
                args.from
            )));
        }
        check_token(&client, args.from_token_file.is_some()).await?;
        if !is_lockmesh(&target).await.map_err(of_lockmesh)? {
            return Err(CliError::failed(format!(
                "{} is no Lockmesh agent: name one with --http-addr (CONSUL_HTTP_ADDR also names the \
                destination)",
                target.address()
            )));
        }
        let source = Source { client, prefixes, root: args.to_prefix.clone() };
        let writes = !args.dry_run && !args.verify_only;
        let quorum = target.operator().servers(&Read::stale()).await.map_err(of_lockmesh)?;
        // Another Consul may have the same address some day, for instance behind a tunnel.
        let from = format!("{} at {}", datacenter(&source.client).await?, source.client.address());
        let to = format!("{:?} of cluster {}", args.to_prefix, quorum.cluster_id);
        let ledger = Ledger::open(&args.state, &format!("{from} to {to}"), writes)?;
        let limits = Limits::of(&target).await?;
        let report = Report {
            from: args.from.clone(),
            prefixes: source.prefixes.clone(),
            to_prefix: args.to_prefix.clone(),
            dry_run: args.dry_run,
            ..Report::default()
        };
        let (args, began) = (args.clone(), Instant::now());
        Ok(Self { args, source, target, ledger, limits, retry_timeout: RETRY_TIMEOUT, report, began })
    }

    async fn run(mut self, mut stop: Option<mpsc::Receiver<()>>) -> Result<Report, CliError> {
        if !self.args.verify_only {
            self.report.comparison = until(&mut stop, self.plan()).await?;
        }
        if !self.args.verify_only && !self.args.dry_run {
            self.copy(&mut stop).await?;
        }
        if !self.args.dry_run {
            let (source, slices) = (&self.source, self.slices());
            let compared = compare(source, slices, &self.ledger, None, self.limits, false);
            self.report.comparison = until(&mut stop, compared).await?;
        }
        if self.report.comparison.keys == 0 && self.report.written.total() == 0 {
            return Err(CliError::failed(format!(
                "Consul lists no keys under {:?}: correct --prefix; with ACLs in Consul, keys that the \
                token may not \
                 read are missing: give one with --from-token-file FILE",
                self.source.prefixes
            )));
        }
        self.report.seconds = self.began.elapsed().as_secs_f64();
        Ok(self.report)
    }

    fn slices(&self) -> Slices<'_> {
        Slices::new(&self.target, self.source.target_prefixes(), self.limits.operations, self.retry_timeout)
    }

    /// Compares both sides, and rejects what cannot be copied before anything is written.
    async fn plan(&mut self) -> Result<Comparison, CliError> {
        let (source, slices, overwrite) = (&self.source, self.slices(), self.args.overwrite);
        let mut notes = if self.args.dry_run { None } else { Some(self.ledger.rewrite()?) };
        let found = compare(source, slices, &self.ledger, notes.as_mut(), self.limits, overwrite).await?;
        let conflicts = if overwrite {
            "{} keys are locked in Lockmesh:"
        } else {
            "{} keys have other values in Lockmesh:"
        };
        let complaints: Vec<String> = found
            .unfit
            .lines("{} keys do not fit into Lockmesh:")
            .into_iter()
            .chain(found.conflicts.lines(conflicts))
            .collect();
        let is_suspicious = found.obsolete > MAX_DELETES && found.obsolete * 2 > found.owned;
        let is_suspicious = is_suspicious && !self.args.allow_deletes;
        if complaints.is_empty() && !is_suspicious {
            if let Some(notes) = notes {
                notes.finish()?;
            }
            return Ok(found);
        }
        if let Some(notes) = notes {
            notes.discard()?;
        }
        if complaints.is_empty() {
            return Err(CliError::failed(format!(
                "{} of {} copied keys are not in Consul any more, and would be deleted in Lockmesh. Nothing was \
                 written. Check that {} is the Consul from which they were copied; if they were deleted \
                 there, use --allow-deletes",
                found.obsolete, found.owned, self.args.from
            )));
        }
        let advice = match (found.unfit.count, found.conflicts.count) {
            (0, _) if overwrite => "Nothing was written. Release the locks, or copy other prefixes",
            (0, _) => "Nothing was written. Compare the values, then use --overwrite, or copy other prefixes",
            _ => "Nothing was written. Change or delete these keys in Consul, or copy other prefixes",
        };
        Err(CliError::failed(format!("{}\n{advice}", complaints.join("\n"))))
    }

    /// Writes differences until a pass finds none.
    async fn copy(&mut self, stop: &mut Option<mpsc::Receiver<()>>) -> Result<(), CliError> {
        let follows = stop.is_some();
        let mut is_last = !follows;
        let mut rest = MAX_PASSES;
        loop {
            let (before, began) = (self.report.written.total(), Instant::now());
            // A pass that began before the signal may lack the last changes.
            let was_last = is_last;
            let (indexes, conflicts) = {
                let mut pass = std::pin::pin!(self.pass());
                loop {
                    tokio::select! {
                        outcome = &mut pass => break outcome?,
                        () = requested(stop) => {
                            if is_last {
                                return Err(interrupted());
                            }
                            warn("finishing; press Ctrl-C again to stop at once");
                            is_last = true;
                        }
                    }
                }
            };
            for line in conflicts.lines("{} keys were not written:") {
                warn(&line);
            }
            let changes = self.report.written.total() - before;
            if is_last && !was_last {
                continue;
            }
            if is_last {
                rest -= 1;
                if changes == 0 || rest == 0 {
                    return Ok(());
                }
                continue;
            }
            warn(&format!("{changes} keys written; following changes until Ctrl-C"));
            let pause = began.elapsed().max(MIN_PAUSE);
            let wait = async {
                tokio::time::sleep(pause).await;
                // A lost Consul is retried, and reported, by the next pass.
                let _ = self.source.changed(&indexes).await;
            };
            tokio::select! {
                () = wait => {}
                () = requested(stop) => {
                    warn("last pass; press Ctrl-C again to stop at once");
                    is_last = true;
                }
            }
        }
    }

    /// Does one pass. If Consul is lost, the pass is repeated for some time after the last write.
    async fn pass(&mut self) -> Result<(Vec<u64>, Listed), CliError> {
        let (mut lost_since, mut total) = (None, self.report.written.total());
        loop {
            let (source, target, ledger) = (&self.source, &self.target, &mut self.ledger);
            let written = &mut self.report.written;
            match transfer(source, target, ledger, self.limits, self.retry_timeout, written).await {
                Err(CliError::Unreachable(text)) => {
                    if self.report.written.total() > total {
                        (lost_since, total) = (None, self.report.written.total());
                    }
                    let lost_since = *lost_since.get_or_insert_with(Instant::now);
                    let pause = RETRY_PAUSE.min(self.retry_timeout / 2);
                    if lost_since.elapsed() + pause >= self.retry_timeout {
                        return Err(CliError::Unreachable(text));
                    }
                    warn(&format!("{text}; trying again"));
                    tokio::time::sleep(pause).await;
                    self.ledger.recover()?;
                }
                done => return done,
            }
        }
    }
}

/// Does a comparison, which the first signal ends.
async fn until<T>(
    stop: &mut Option<mpsc::Receiver<()>>,
    work: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    tokio::select! {
        outcome = work => outcome,
        () = requested(stop) => Err(interrupted()),
    }
}

fn interrupted() -> CliError {
    CliError::Interrupted("interrupted; run the same command again, which continues".into())
}

/// Waits for a signal; for ever without `--follow`.
async fn requested(stop: &mut Option<mpsc::Receiver<()>>) {
    if let Some(stop) = stop
        && stop.recv().await.is_some()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// A client of Consul.
async fn consul(args: &ConsulArgs) -> Result<(Client, Option<Arc<Tls>>), CliError> {
    let token = args.from_token_file.as_ref().map(|file| {
        std::fs::read_to_string(file).map(|token| token.trim().to_owned()).map_err(|error| {
            CliError::failed(format!("cannot read the token file {}: {error}", file.display()))
        })
    });
    let token = token.transpose()?;
    if let (Some(""), Some(file)) = (token.as_deref(), &args.from_token_file) {
        let file = file.display();
        return Err(CliError::failed(format!(
            "the token file {file} is empty: write a token of Consul into it"
        )));
    }
    let secure = args.from.strip_prefix("https://");
    let address = Address::from_str(secure.unwrap_or(&args.from));
    let mut address = address.map_err(|error| CliError::usage(format!("--from: {error}")))?;
    let Some(authority) = secure else {
        if args.tls != TlsArgs::default() {
            return Err(CliError::usage("the options for TLS need an https:// address: correct --from"));
        }
        return Ok(match token {
            Some(token) => (Client::with_token(address, &token)?, None),
            None => (Client::new(address), None),
        });
    };
    let Address::Tcp { host, port } = &mut address else {
        return Err(CliError::usage("--from: https:// needs a host and a port"));
    };
    if *port == DEFAULT_PORT && !authority.trim_end_matches('/').ends_with(&format!(":{DEFAULT_PORT}")) {
        *port = HTTPS_PORT;
    }
    let tls = Arc::new(Tls::new(&args.tls, host).await?);
    let client = Client::wrapped(address, token.as_deref(), Arc::clone(&tls) as _)?;
    Ok((client, Some(tls)))
}
