//! Copies keys from a running Consul to Lockmesh while writers still use Consul.
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
//! | [`sorted`] | several lists, key by key |
//! | [`tls`] | TLS to Consul |
//! | `tests` | migrations between two small HTTP servers |

mod compare;
mod ledger;
mod report;
mod side;
mod slices;
mod sorted;
#[cfg(test)]
mod tests;
mod tls;
mod transfer;

use crate::MigrateError;
use crate::limits::{Limits, check_key};
use compare::compare;
use ledger::Ledger;
use lockmesh_client::{Address, Client, DEFAULT_PORT, Error, Read};
pub use report::Report;
use report::{Comparison, CopyProgress, Listed};
use side::{ConsulSource, check_token, datacenter, distinct, is_lockmesh, of_consul, of_lockmesh};
use slices::Slices;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tls::Tls;
pub use tls::TlsOptions;
use tokio::sync::mpsc;
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

/// The options of a migration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The address of a Consul agent: `host:port`, or with `http://`, `https://` or `unix://`.
    pub from: String,
    /// The file with a Consul token that may read the keys.
    pub from_token_file: Option<PathBuf>,
    /// The options of an `https://` address.
    pub tls: TlsOptions,
    /// The prefixes to copy; empty for all keys.
    pub prefixes: Vec<String>,
    /// The path in Lockmesh for all keys.
    pub to_prefix: String,
    /// Overwrites keys that have other values in Lockmesh.
    pub overwrite: bool,
    /// Deletes more than half of the copied keys if they were deleted in Consul.
    pub allow_deletes: bool,
    /// Writes nothing; plans.
    pub dry_run: bool,
    /// Writes nothing; compares both sides.
    pub verify_only: bool,
    /// The file that records which keys were copied.
    pub state: PathBuf,
}

/// A migration in progress.
pub struct Migration {
    options: Options,
    source: ConsulSource,
    target: Client,
    ledger: Ledger,
    retry_timeout: Duration,
    notify: fn(&str),
    report: Report,
    began: Instant,
}

impl Migration {
    /// Checks both sides. CopyProgress and warnings go to `notify`.
    ///
    /// # Errors
    /// An option is invalid, or one of the sides cannot be used. Nothing was written.
    pub async fn new(options: Options, target: Client, notify: fn(&str)) -> Result<Self, MigrateError> {
        let prefixes = distinct(&options.prefixes);
        for prefix in &prefixes {
            check_key(prefix)
                .map_err(|defect| MigrateError::usage(format!("--prefix: {prefix:?} {defect}")))?;
        }
        let client = answering_consul(&options).await?;
        if !is_lockmesh(&target).await.map_err(of_lockmesh)? {
            return Err(MigrateError::failed(format!(
                "{} is no Lockmesh agent: name one with --http-addr (CONSUL_HTTP_ADDR also names the \
                destination)",
                target.address()
            )));
        }
        let writes = !options.dry_run && !options.verify_only;
        let quorum = target.operator().servers(&Read::stale()).await.map_err(of_lockmesh)?;
        // Another Consul may have the same address some day, for instance behind a tunnel.
        let from = format!("{} at {}", datacenter(&client).await?, client.address());
        let to = format!("{:?} of cluster {}", options.to_prefix, quorum.cluster_id);
        let ledger = Ledger::open(&options.state, &format!("{from} to {to}"), writes)?;
        let limits = Limits::of(&target).await?;
        let report = Report {
            from: options.from.clone(),
            prefixes: prefixes.clone(),
            to_prefix: options.to_prefix.clone(),
            dry_run: options.dry_run,
            ..Report::default()
        };
        let source = ConsulSource { client, prefixes, root: options.to_prefix.clone(), limits };
        let (retry_timeout, began) = (RETRY_TIMEOUT, Instant::now());
        Ok(Self { options, source, target, ledger, retry_timeout, notify, report, began })
    }

    /// Copies and compares. A message of `stop` ends a comparison, and with it begins the last
    /// pass; without `stop`, copying ends when a pass finds no difference.
    ///
    /// # Errors
    /// One of the sides failed, or keys cannot be copied. A part may be copied; the migration may
    /// be repeated.
    pub async fn run(mut self, mut stop: Option<mpsc::Receiver<()>>) -> Result<Report, MigrateError> {
        if !self.options.verify_only {
            self.report.comparison = until(&mut stop, self.plan()).await?;
        }
        if !self.options.verify_only && !self.options.dry_run {
            self.copy(&mut stop).await?;
        }
        if !self.options.dry_run {
            let (source, slices) = (&self.source, self.slices());
            let compared = compare(source, slices, &self.ledger, None, false, self.progress());
            self.report.comparison = until(&mut stop, compared).await?;
        }
        if self.report.comparison.keys == 0 && self.report.written.total() == 0 {
            return Err(MigrateError::failed(format!(
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
        let size = self.source.limits.operations;
        Slices::new(&self.target, self.source.target_prefixes(), size, self.retry_timeout)
    }

    fn progress(&self) -> CopyProgress {
        CopyProgress::new(self.notify)
    }

    /// Compares both sides, and rejects what cannot be copied before anything is written.
    async fn plan(&mut self) -> Result<Comparison, MigrateError> {
        let (source, slices, overwrite) = (&self.source, self.slices(), self.options.overwrite);
        let mut notes = if self.options.dry_run { None } else { Some(self.ledger.rewrite()?) };
        let progress = self.progress();
        let found = compare(source, slices, &self.ledger, notes.as_mut(), overwrite, progress).await?;
        let conflicts =
            if overwrite { "{} keys locked in Lockmesh:" } else { "{} keys with other values in Lockmesh:" };
        let complaints: Vec<String> = found
            .unfit
            .lines("{} keys that Lockmesh cannot have:")
            .into_iter()
            .chain(found.conflicts.lines(conflicts))
            .collect();
        let is_suspicious = found.obsolete > MAX_DELETES && found.obsolete * 2 > found.owned;
        let is_suspicious = is_suspicious && !self.options.allow_deletes;
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
            return Err(MigrateError::failed(format!(
                "{} of {} copied keys are not in Consul any more, and would be deleted in Lockmesh. Nothing was \
                 written. Check that {} is the Consul from which they were copied; if they were deleted \
                 there, use --allow-deletes",
                found.obsolete, found.owned, self.options.from
            )));
        }
        let advice = match (found.unfit.count, found.conflicts.count) {
            (0, _) if overwrite => "Nothing was written. Release the locks, or copy other prefixes",
            (0, _) => "Nothing was written. Compare the values, then use --overwrite, or copy other prefixes",
            _ => "Nothing was written. Change or delete these keys in Consul, or copy other prefixes",
        };
        Err(MigrateError::failed(format!("{}\n{advice}", complaints.join("\n"))))
    }

    /// Writes differences until a pass finds none.
    async fn copy(&mut self, stop: &mut Option<mpsc::Receiver<()>>) -> Result<(), MigrateError> {
        let mut is_last = stop.is_none();
        let mut rest = MAX_PASSES;
        loop {
            let (before, began) = (self.report.written.total(), Instant::now());
            // A pass that began before the signal may lack the last changes.
            let was_last = is_last;
            let (indexes, conflicts) = self.pass_beside(stop, &mut is_last).await?;
            for line in conflicts.lines("{} keys not written:") {
                (self.notify)(&line);
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
            (self.notify)(&format!("{changes} keys written; following changes until Ctrl-C"));
            let pause = began.elapsed().max(MIN_PAUSE);
            let wait = async {
                tokio::time::sleep(pause).await;
                // A lost Consul is retried, and reported, by the next pass.
                let _ = self.source.changed(&indexes).await;
            };
            tokio::select! {
                () = wait => {}
                () = requested(stop) => {
                    (self.notify)("last pass; press Ctrl-C again to stop at once");
                    is_last = true;
                }
            }
        }
    }

    /// Does one pass. The first signal meanwhile makes the next pass the last, the second ends this
    /// one.
    async fn pass_beside(
        &mut self,
        stop: &mut Option<mpsc::Receiver<()>>,
        is_last: &mut bool,
    ) -> Result<(Vec<u64>, Listed), MigrateError> {
        let notify = self.notify;
        let mut pass = std::pin::pin!(self.pass());
        loop {
            tokio::select! {
                outcome = &mut pass => return outcome,
                () = requested(stop) => {
                    if *is_last {
                        return Err(MigrateError::Interrupted);
                    }
                    notify("finishing; press Ctrl-C again to stop at once");
                    *is_last = true;
                }
            }
        }
    }

    /// Does one pass. If Consul is lost, the pass is repeated for some time after the last write.
    async fn pass(&mut self) -> Result<(Vec<u64>, Listed), MigrateError> {
        let (mut lost_since, mut total) = (None, self.report.written.total());
        loop {
            let (source, target, ledger) = (&self.source, &self.target, &mut self.ledger);
            let progress = CopyProgress::new(self.notify);
            let written = &mut self.report.written;
            match transfer(source, target, ledger, self.retry_timeout, written, progress).await {
                Err(MigrateError::Unreachable(text)) => {
                    if self.report.written.total() > total {
                        (lost_since, total) = (None, self.report.written.total());
                    }
                    let lost_since = *lost_since.get_or_insert_with(Instant::now);
                    let pause = RETRY_PAUSE.min(self.retry_timeout / 2);
                    if lost_since.elapsed() + pause >= self.retry_timeout {
                        return Err(MigrateError::Unreachable(text));
                    }
                    (self.notify)(&format!("{text}; trying again"));
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
    work: impl Future<Output = Result<T, MigrateError>>,
) -> Result<T, MigrateError> {
    tokio::select! {
        outcome = work => outcome,
        () = requested(stop) => Err(MigrateError::Interrupted),
    }
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

/// A client of a Consul that answers, and that hides no key unnoticed.
async fn answering_consul(options: &Options) -> Result<Client, MigrateError> {
    let (client, tls) = consul(options).await?;
    let rejection = || tls.as_ref().and_then(|tls| tls.rejection());
    let is_ours = is_lockmesh(&client).await.map_err(|error| match (error, rejection()) {
        (Error::Unanswered { address, reason }, Some(rejection)) => {
            MigrateError::failed(format!("lost Consul at {address}: {reason}; {rejection}"))
        }
        (error, _) => of_consul(error),
    });
    if is_ours? {
        return Err(MigrateError::failed(format!(
            "{} is a Lockmesh agent: name a Consul agent with --from; between two Lockmesh clusters \
            use `kv export` \
             and `kv import`",
            options.from
        )));
    }
    check_token(&client, options.from_token_file.is_some()).await?;
    Ok(client)
}

/// A client of Consul.
async fn consul(options: &Options) -> Result<(Client, Option<Arc<Tls>>), MigrateError> {
    let token = options.from_token_file.as_ref().map(|file| {
        std::fs::read_to_string(file).map(|token| token.trim().to_owned()).map_err(|error| {
            MigrateError::failed(format!("cannot read the token file {}: {error}", file.display()))
        })
    });
    let token = token.transpose()?;
    if let (Some(""), Some(file)) = (token.as_deref(), &options.from_token_file) {
        let file = file.display();
        return Err(MigrateError::failed(format!(
            "the token file {file} is empty: write a token of Consul into it"
        )));
    }
    let secure = options.from.strip_prefix("https://");
    let address = Address::from_str(secure.unwrap_or(&options.from));
    let mut address = address.map_err(|error| MigrateError::usage(format!("--from: {error}")))?;
    let Some(authority) = secure else {
        if options.tls != TlsOptions::default() {
            return Err(MigrateError::usage("the options for TLS need an https:// address: correct --from"));
        }
        return Ok(match token {
            Some(token) => (Client::with_token(address, &token)?, None),
            None => (Client::new(address), None),
        });
    };
    let Address::Tcp { host, port } = &mut address else {
        return Err(MigrateError::usage("--from: https:// needs a host and a port"));
    };
    if *port == DEFAULT_PORT && !authority.trim_end_matches('/').ends_with(&format!(":{DEFAULT_PORT}")) {
        *port = HTTPS_PORT;
    }
    let tls = Arc::new(Tls::new(&options.tls, host).await?);
    let client = Client::wrapped(address, token.as_deref(), Arc::clone(&tls) as _)?;
    Ok((client, Some(tls)))
}
