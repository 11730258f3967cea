//! `lockmesh elect`: shows the leader, runs for leader, and leads while a command runs.

use super::context::Context;
use super::error::{CliError, ExitCodes};
use super::lock::child::{CommandInput, Signals, Standby};
use super::lock::held::{self, Command, Ended, Held};
use super::lock::{DEFAULT_LOCK_DELAY, longest_hold, ttl, window_parser};
use super::output::printable;
use super::supervise::channel::HoldToEnd;
use crate::stdio;
use crate::supervision::OnJeopardy;
use lockmesh_client::{
    Client, Election, Error, HealthWindow, LOCK_FLAGS, Leader, Leadership, LockGuard, Observer,
    SessionOptions,
};
use lockmesh_protocol::duration;
use std::ffi::OsString;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// The longest time between the news of this candidate's election and the answer to its request.
const ANSWER_DELAY: Duration = Duration::from_secs(1);

/// Lead while a command runs, run for leader, or show the leader
///
/// Leads until stopped, which resigns, or until COMMAND exits. Prints a line for each change of the
/// leader. If the leadership is lost, COMMAND is ended as by `lockmesh lock`, and the process runs
/// for leader again. The candidate is named after its host; choose another name with --value.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Follow changes of the leader without running for leader
    #[arg(long, conflicts_with_all = ["value", "command", "timeout"])]
    observe: bool,
    /// Show the leader once; exit with 1 if there is none
    #[arg(long, conflicts_with_all = ["value", "command", "observe", "timeout"])]
    show: bool,
    /// Candidate name [default: host name]
    #[arg(long, value_name = "TEXT")]
    value: Option<String>,
    /// Maximum time to wait for the first election, such as 10s; 0 waits without a limit
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0")]
    timeout: Duration,
    /// Session TTL: minimum time before another candidate wins after a crash; 26s or more with
    /// --window safe [default: 15s; 30s with safe]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    ttl: Option<Duration>,
    /// Time after a loss during which no other candidate is elected [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lock_delay: Option<Duration>,
    /// Host-failure timeout: fast 1.5s, default 5s, safe 15s [default: the agent's]
    #[arg(long, value_name = "WINDOW", value_parser = window_parser(), hide_possible_values = true)]
    window: Option<HealthWindow>,
    /// Key flags; use 0 to interoperate with candidates that set none [default: those of locks]
    #[arg(long, value_name = "NUMBER", default_value_t = LOCK_FLAGS, hide_default_value = true)]
    flags: u64,
    /// Print each change as a line of JSON
    #[arg(long)]
    json: bool,
    /// Key of the election
    #[arg(value_name = "NAME")]
    name: String,
    /// Command to run while leading
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// The request was rejected, the command cannot be run, or the output has no reader. The leadership
/// ends with its session at the latest.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    args.session().check().map_err(CliError::usage)?;
    let election = args.election(&client);
    let printer = Printer::new(&args);
    if args.show {
        let leader = election.leader().await?;
        printer.print(leader.as_ref()).await?;
        return Ok(if leader.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let mut signals = Signals::intercept()?;
    let mut observing = pin!(observe(election.observer(), &printer));
    if args.observe {
        return tokio::select! {
            failed = observing => Err(failed),
            _ = signals.end() => Ok(ExitCode::SUCCESS),
        };
    }
    let ended =
        campaign((&args, context, &client), &election, &printer, &mut signals, observing.as_mut()).await;
    // A release in the background is done soon, or the leadership ends with the session. Another
    // signal ends this process at once. After a time-out it was waited for already.
    if !matches!(ended, Err(CliError::NotAcquired(_))) {
        let _ = signals.unless_ended(timeout(Duration::from_secs(2), client.settled())).await;
    }
    ended
}

impl Args {
    fn election(&self, client: &Client) -> Election {
        Election::new(client, self.key()).session(self.session()).flags(self.flags)
    }

    /// The name of this candidate.
    fn candidate(&self) -> String {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.value.clone().unwrap_or_else(host)
    }

    fn key(&self) -> &str {
        self.name.trim_start_matches('/')
    }

    /// The exit codes of our own errors. `--show` and `--observe` have the usual ones.
    pub(super) fn exit_codes(&self) -> ExitCodes {
        if self.show || self.observe { ExitCodes::Plain } else { ExitCodes::Holder }
    }

    fn session(&self) -> SessionOptions {
        SessionOptions::named(format!("lockmesh elect at '{}'", self.name))
            .ttl(self.ttl)
            .lock_delay(self.lock_delay)
            .health_window(self.window)
    }
}

/// Prints the leader, now and after each change.
async fn observe(mut observer: Observer, printer: &Printer) -> CliError {
    loop {
        let printed = match observer.next_surely().await {
            Ok(leader) => printer.print(leader.as_ref()).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = printed {
            return error;
        }
    }
}

/// Runs for leader, again after each loss, until the command exits, a signal ends this process, or
/// `failure` is there, after which nothing is printed any more.
async fn campaign(
    (args, context, client): (&Args, &Context, &Client),
    election: &Election,
    printer: &Printer,
    signals: &mut Signals,
    mut failure: Pin<&mut impl Future<Output = CliError>>,
) -> Result<ExitCode, CliError> {
    let name = &args.name;
    let mut limit = Some(args.timeout).filter(|limit| !limit.is_zero());
    let mut has_run = false;
    loop {
        let standby = match args.command.is_empty() {
            true => None,
            false => Some(held::stand_by(args.command.clone())?),
        };
        let leadership = tokio::select! {
            elected = campaign_within(limit, election, args.candidate()) => match elected? {
                Some(elected) => elected,
                None => return Err(args.timed_out(election, client, signals).await),
            },
            failed = failure.as_mut() => return Err(failed),
            _ = signals.end() => return match args.command.is_empty() {
                true => Ok(ExitCode::SUCCESS),
                false => Err(interrupted(name, has_run)),
            },
        };
        // `--timeout` limits only the wait for the first election.
        limit = None;
        let fence = leadership.fence().map_or("unknown".into(), |fence| fence.to_string());
        held::report(&format!("leading, fence {fence}"));
        printer.leads(leadership.session());
        has_run = true;
        if let Some(code) = lead((args, context), leadership, standby, signals, failure.as_mut()).await? {
            return Ok(code);
        }
    }
}

/// Leads once, and resigns. Returns the exit code, unless the leadership was lost.
async fn lead(
    (args, context): (&Args, &Context),
    leadership: Leadership,
    standby: Option<Standby>,
    signals: &mut Signals,
    failure: Pin<&mut impl Future<Output = CliError>>,
) -> Result<Option<ExitCode>, CliError> {
    let mut held = Held::from(LockGuard::from(leadership));
    let ended = match standby {
        None => serve(&held, signals, failure).await,
        Some(standby) => args.run_command((context, standby), &mut held, signals, failure).await,
    };
    // Also after a failure: other candidates would wait for the end of the session.
    let resigned = held::within_ttl(longest_hold(args.ttl, args.window), held.release()).await;
    let code = ended?;
    if let (Some(_), Err(error)) = (code, resigned) {
        held::report(&format!("{} could not be released: {error}; it ends with its session", args.name));
    }
    Ok(code)
}

fn interrupted(name: &str, has_run: bool) -> CliError {
    CliError::Interrupted(match has_run {
        true => format!("interrupted while running for {name} again; the command ran before and has ended"),
        false => format!("interrupted while running for {name}; the command was not started"),
    })
}

async fn campaign_within(
    limit: Option<Duration>,
    election: &Election,
    candidate: String,
) -> Result<Option<Leadership>, Error> {
    match limit {
        Some(limit) => election.campaign_within(candidate, limit).await,
        None => election.campaign(candidate).await.map(Some),
    }
}

/// Leads without a command; `None` if the leadership is lost.
async fn serve(
    held: &Held,
    signals: &mut Signals,
    failure: impl Future<Output = CliError>,
) -> Result<Option<ExitCode>, CliError> {
    tokio::select! {
        failed = failure => Err(failed),
        reason = held.lost() => {
            held::report(&format!("leadership lost: {reason}; running for leader again"));
            Ok(None)
        }
        _ = signals.end() => Ok(Some(ExitCode::SUCCESS)),
    }
}

impl Args {
    /// Leads while the command runs; `None` if the leadership is lost.
    async fn run_command(
        &self,
        (context, standby): (&Context, Standby),
        held: &mut Held,
        signals: &mut Signals,
        failure: impl Future<Output = CliError>,
    ) -> Result<Option<ExitCode>, CliError> {
        let end = HoldToEnd {
            address: context.address.to_string(),
            token: context.token.clone(),
            names: vec![self.key().to_owned()],
            value: self.candidate().into_bytes(),
            flags: self.flags,
            ..HoldToEnd::default()
        };
        let command = Command {
            standby,
            stdin: CommandInput::Null,
            on_jeopardy: OnJeopardy::Ignore,
            releases_on_exit: false,
            lock_delay: self.lock_delay.unwrap_or(DEFAULT_LOCK_DELAY),
            end,
        };
        match held.run(command, signals, failure).await? {
            Ended::Itself(end) => Ok(Some(ExitCode::from(end.shell_code()))),
            Ended::Lost { is_interrupted: true } => Err(interrupted(&self.name, true)),
            Ended::Lost { is_interrupted: false } => Ok(None),
        }
    }

    async fn timed_out(&self, election: &Election, client: &Client, signals: &mut Signals) -> CliError {
        let settled = held::settle_within(held::TIMED_OUT_LIMIT, client);
        let text = async { tokio::join!(self.not_elected(election), settled).0 };
        let text = signals.unless_ended(text).await;
        text.map_or_else(|| interrupted(&self.name, false), CliError::NotAcquired)
    }

    async fn not_elected(&self, election: &Election) -> String {
        let limit = duration::format(self.timeout);
        let leader = timeout(held::TIMED_OUT_LIMIT, election.leader()).await;
        let leader = leader.ok().and_then(Result::ok).flatten();
        let reason = leader.map_or(String::new(), |leader| {
            format!(": {} leads", printable(&String::from_utf8_lossy(&leader.value)))
        });
        format!("{} not won in {limit}{reason}", self.name)
    }
}

/// Prints changes of the leader.
struct Printer {
    json: bool,
    /// The name of this candidate, if it runs for leader.
    candidate: Option<String>,
    /// The session of this candidate since it was elected last.
    ours: watch::Sender<Option<String>>,
}

impl Printer {
    fn new(args: &Args) -> Self {
        let candidate = (!args.show && !args.observe).then(|| args.candidate());
        Self { json: args.json, candidate, ours: watch::Sender::new(None) }
    }

    /// This candidate was elected with that session.
    fn leads(&self, session: &str) {
        self.ours.send_replace(Some(session.into()));
    }

    /// `true` if the leader is this candidate. The news of its election may arrive before the
    /// answer to its own request.
    async fn is_us(&self, leader: &Leader) -> bool {
        if self.candidate.as_ref().is_none_or(|own| own.as_bytes() != leader.value) {
            return false;
        }
        let mut ours = self.ours.subscribe();
        let elected = ours.wait_for(|session| session.as_ref() == Some(&leader.session));
        timeout(ANSWER_DELAY, elected).await.is_ok()
    }

    async fn print(&self, leader: Option<&Leader>) -> Result<(), CliError> {
        let value = leader.map(|leader| String::from_utf8_lossy(&leader.value).into_owned());
        if self.json {
            let is_us = match leader {
                Some(leader) => self.is_us(leader).await,
                None => false,
            };
            let (session, fence) =
                (leader.map(|leader| &leader.session), leader.and_then(|leader| leader.fence));
            let line =
                serde_json::json!({ "Leader": value, "Session": session, "Fence": fence, "Me": is_us });
            return Ok(stdio::print(format!("{line}\n").into()).await?);
        }
        let line = match (leader, value) {
            (Some(leader), Some(value)) => format!("{} leads ({})\n", printable(&value), leader.session),
            _ => "no leader\n".into(),
        };
        Ok(stdio::print(line.into()).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn candidates_distinguished_by_session() {
        let leader = |session: &str| {
            let mut leader = Leader::default();
            (leader.session, leader.value) = (session.into(), "a".into());
            leader
        };
        let (candidate, ours) = (Some("a".into()), watch::Sender::new(None));
        let printer = Printer { json: true, candidate, ours };
        assert!(!printer.is_us(&leader("s1")).await, "it was not elected");
        let ours = leader("s1");
        let (is_us, ()) = tokio::join!(printer.is_us(&ours), async { printer.leads("s1") });
        assert!(is_us, "its election was answered a moment later");
        assert!(!printer.is_us(&leader("s2")).await);
        let observer = Printer { candidate: None, ..printer };
        assert!(!observer.is_us(&leader("s1")).await);
    }
}
