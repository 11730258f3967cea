//! `lockmesh elect`: tells who leads, runs for leader, and leads while a command runs.

use super::context::Context;
use super::error::CliError;
use super::lock::child::{Input, Program, Signals};
use super::lock::held::{self, Ended, Held, OnJeopardy};
use super::lock::{duration, orphan_grace, ttl, window_parser};
use super::output::{print_line, printable};
use lockmesh_client::{Client, Election, HealthWindow, LOCK_FLAGS, Leader, Observer, SessionOptions};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::timeout;

/// Show who leads, run for leader, or lead while a command runs
///
/// Prints a line whenever the leader changes. Once elected it leads until it is told to end, which
/// resigns, or until the command after `--` ends; its exit code is then ours. When the office is
/// lost the command is ended as that of `lockmesh lock` is, and it runs for office again.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only tell who leads
    #[arg(long, conflicts_with_all = ["value", "command"])]
    observe: bool,
    /// Tell who leads, once, and end; 1 if nobody does
    #[arg(long, conflicts_with_all = ["value", "command", "observe"])]
    show: bool,
    /// What this candidate says of itself; the host's name unless told otherwise
    #[arg(long, value_name = "TEXT")]
    value: Option<String>,
    /// Session TTL: minimum time before another candidate can win after a crash; at least 26s with
    /// the window safe [default: 15s; 30s with safe]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    ttl: Option<Duration>,
    /// How long nobody else is elected after the office was lost; 15s unless told otherwise
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lock_delay: Option<Duration>,
    /// How long this host may be unreachable before another one is elected: fast (1.5 s), default
    /// (5 s) or safe (15 s, needs a TTL of 26s or more); the agent's default unless told otherwise
    #[arg(long, value_name = "WORD", value_parser = window_parser())]
    window: Option<HealthWindow>,
    /// The key's flags; 0 for an election that others hold with plain requests
    #[arg(long, value_name = "NUMBER", default_value_t = LOCK_FLAGS, hide_default_value = true)]
    flags: u64,
    /// Print each change as a line of JSON
    #[arg(long)]
    json: bool,
    /// The key that stands for the office
    #[arg(value_name = "NAME")]
    name: String,
    /// A command to run while leading
    #[arg(value_name = "CMD", last = true)]
    command: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// The agent refuses, the command cannot be run, or nobody reads the output. Nobody leads for this
/// process any more, at the latest when its session ends.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    args.session().check().map_err(CliError::usage)?;
    let election = args.election(&client);
    if args.show {
        let leader = election.leader().await?;
        print_leader(leader.as_ref(), args.json)?;
        return Ok(if leader.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let mut signals = Signals::take()?;
    let observer = election.observer();
    if args.observe {
        return tokio::select! {
            failed = observe(observer, args.json) => Err(failed),
            _ = signals.end() => Ok(ExitCode::SUCCESS),
        };
    }
    let (json, grace) = (args.json, orphan_grace(args.ttl, args.lock_delay));
    let ended = tokio::select! {
        failed = observe(observer, json) => Err(failed),
        ended = campaign(&election, &args.command, grace, &mut signals) => ended,
    };
    // What was given up in the middle is given back, if that does not take long; otherwise it ends
    // with the session.
    let _ = timeout(Duration::from_secs(2), client.settled()).await;
    ended
}

impl Args {
    fn election(&self, client: &Client) -> Election {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        Election::new(client, self.name.trim_start_matches('/'))
            .candidate(self.value.clone().unwrap_or_else(host))
            .session(self.session())
            .flags(self.flags)
    }

    fn session(&self) -> SessionOptions {
        SessionOptions {
            ttl: self.ttl,
            lock_delay: self.lock_delay,
            health_window: self.window,
            ..SessionOptions::named(format!("lockmesh elect at '{}'", self.name))
        }
    }
}

/// Prints who leads, now and after each change.
async fn observe(mut observer: Observer, json: bool) -> CliError {
    loop {
        let told = match observer.next_surely().await {
            Ok(leader) => print_leader(leader.as_ref(), json),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = told {
            return error;
        }
    }
}

/// Runs for office, again and again, until the command has ended by itself or we are told to end.
async fn campaign(
    election: &Election,
    words: &[OsString],
    grace: Duration,
    signals: &mut Signals,
) -> Result<ExitCode, CliError> {
    loop {
        let leadership = tokio::select! {
            elected = election.campaign() => elected?,
            _ = signals.end() => return Ok(ExitCode::SUCCESS),
        };
        let fence = leadership.fence().map_or("unknown".into(), |fence| fence.to_string());
        held::say(&format!("leading, fence {fence}"));
        let held = Held::Lock(leadership);
        let ended = if words.is_empty() {
            serve(&held, signals).await
        } else {
            let (words, environment) = (words.to_vec(), held.environment());
            let program = Program { words, stdin: Input::Null, environment, grace };
            held::run(&held, &program, OnJeopardy::Ignore, signals).await.map(|ended| match ended {
                Ended::Itself(end) => Some(ExitCode::from(end.shell_code())),
                Ended::Lost(_) => None,
            })
        };
        // One who was not heard resigning is out of office when the session ends.
        let resigned = held.release().await;
        if let Some(code) = ended? {
            resigned?;
            return Ok(code);
        }
    }
}

/// Leads without a command; `None` when the office is lost.
async fn serve(held: &Held, signals: &mut Signals) -> Result<Option<ExitCode>, CliError> {
    tokio::select! {
        reason = held.lost() => {
            held::say(&format!("leading no longer: {reason}; running for office again"));
            Ok(None)
        }
        _ = signals.end() => Ok(Some(ExitCode::SUCCESS)),
    }
}

fn print_leader(leader: Option<&Leader>, json: bool) -> Result<(), CliError> {
    let value = leader.map(|leader| String::from_utf8_lossy(&leader.value).into_owned());
    if json {
        let session = leader.map(|leader| &leader.session);
        let line = serde_json::json!({ "Leader": value, "Session": session });
        return print_line(&line.to_string());
    }
    match (leader, value) {
        (Some(leader), Some(value)) => {
            print_line(&format!("{} leads ({})", printable(&value), leader.session))
        }
        _ => print_line("nobody leads"),
    }
}
