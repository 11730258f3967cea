//! `lockmesh lock`: holds a lock while a command runs, with the options of `consul lock`.
//!
//! | module | contents |
//! |---|---|
//! | [`child`] | the command under its supervisor |
//! | [`held`] | a hold while its command runs |
//! | `obstacle` | the reason why a lock is not granted, for people |
//!
//! The exit code is the command's own. Other errors have the codes of
//! [`HOLDER_EXIT_CODES`](crate::command::error::HOLDER_EXIT_CODES), or with `--child-exit-code`
//! those that `consul lock` has: 0, 2 if the command failed, 1 for any other error.

pub mod child;
pub mod held;
pub(super) mod obstacle;

use super::absent;
use super::arguments::ValueError;
use super::context::Context;
use super::error::{CliError, ExitCodes};
use super::supervise::channel::HoldToEnd;
use crate::supervision::{End, OnJeopardy};
use child::{CommandInput, Program, Signals, Standby};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use held::{Acquired, Command, Ended, Held, TIMED_OUT_LIMIT, WaitLimit, Wanted, report};
use lockmesh_client::{
    Client, DEFAULT_TTL, Error, HealthWindow, LOCK_FLAGS, Lock, Semaphore, SessionOptions,
};
use lockmesh_protocol::duration::{self, DurationError};
use lockmesh_protocol::record::MAX_REQUESTED_LOCKS;
use obstacle::Awaited;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::iter;
use std::process::ExitCode;
use std::time::Duration;

/// The lock-delay of a session that names none, at the agent.
pub(super) const DEFAULT_LOCK_DELAY: Duration = Duration::from_secs(15);

/// The maximum number of characters of a session's name that is made from a command.
const NAME_LENGTH: usize = 100;

/// Hold a lock while a command runs
///
/// `lockmesh lock NAME -- COMMAND ARG…` runs the command as it is. Without `--` a shell runs it, as
/// with `consul lock`. Several names before `--` are several locks: all of them are acquired, or
/// none, so the order of the names does not matter. The command gets CONSUL_LOCK_HELD=true, the
/// fencing token LOCKMESH_FENCE of the first lock, and LOCKMESH_FENCES with a line KEY=FENCE for
/// each lock in its environment. The lock is held until all processes of the command have ended. If
/// the lock is lost, they are sent SIGTERM, and SIGKILL after 5s or half of the lock-delay; SIGKILL
/// immediately if the lock may already have passed on. A command that is stopped with Ctrl-Z is
/// killed when its lock expires.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Maximum number of holders; more than one makes it a semaphore
    #[arg(short = 'n', value_name = "COUNT", default_value_t = 1, value_parser = holders)]
    holders: u32,
    /// Share the lock with all others that do; a holder without this option waits for all of them
    #[arg(long, conflicts_with = "holders")]
    shared: bool,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    program: ProgramArgs,
}

/// The thing to hold.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A lock, or a lock in shared mode.
    Lock {
        /// Set for shared mode.
        is_shared: bool,
    },
    /// One of this many slots of a semaphore.
    Slot(u32),
}

impl Kind {
    fn slots(self) -> Option<u32> {
        match self {
            Self::Lock { .. } => None,
            Self::Slot(slots) => Some(slots),
        }
    }
}

impl Args {
    fn kind(&self) -> Kind {
        match self.holders {
            1 => Kind::Lock { is_shared: self.shared },
            holders => Kind::Slot(holders),
        }
    }

    /// The exit codes of our own errors.
    pub(super) fn exit_codes(&self) -> ExitCodes {
        self.options.exit_codes()
    }
}

/// Options of all commands that hold something while a command runs.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Session name, visible to all clients [default: file name of the program]
    #[arg(long = "name", value_name = "TEXT")]
    session_name: Option<String>,
    /// Maximum time to wait, such as 10s; 0 waits without a limit
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0", conflicts_with = "try")]
    timeout: Duration,
    /// The same, in an older spelling of `consul lock`
    #[arg(long = "try", id = "try", value_name = "DURATION", value_parser = duration::parse, hide = true)]
    older_timeout: Option<Duration>,
    /// Fail at once if it is held
    #[arg(long, conflicts_with_all = ["timeout", "try"])]
    once: bool,
    /// Exit with 0 even if the command failed
    #[arg(long, conflicts_with_all = ["child_exit_code", "pass_exit_code"])]
    ignore_exit_code: bool,
    /// Use the exit codes of `consul lock`: 2 if the command failed, 1 for any other error
    #[arg(long, conflicts_with = "pass_exit_code")]
    child_exit_code: bool,
    /// The default, which older versions had to be asked for
    #[arg(long, hide = true)]
    pass_exit_code: bool,
    /// Release after this many failed checks, one per second [default: hold until the session
    /// expires]
    #[arg(long, value_name = "COUNT")]
    monitor_retry: Option<u32>,
    /// Session TTL, 10s or more: if this process dies, the lock is free after one to two TTLs; 26s
    /// or more with --window safe [default: 15s; 30s with safe]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    ttl: Option<Duration>,
    /// Time after a loss during which the lock is granted to no other session [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lock_delay: Option<Duration>,
    /// Host-failure timeout: fast 1.5s, default 5s, safe 15s [default: the agent's]
    #[arg(long, value_name = "WINDOW", value_parser = window_parser(), hide_possible_values = true)]
    window: Option<HealthWindow>,
    /// When a renewal is late: ignore it, or send the command SIGTERM (term)
    #[arg(long, value_name = "ACTION", value_parser = on_jeopardy_parser(), default_value = "ignore")]
    #[arg(hide_possible_values = true)]
    on_jeopardy: OnJeopardy,
    /// Release when the command exits, even if processes that it started still run
    #[arg(long)]
    release_on_exit: bool,
    /// Log each step to stderr; on a terminal, the holder is shown without it
    #[arg(long)]
    verbose: bool,
}

/// The program.
#[derive(clap::Args, Debug)]
pub struct ProgramArgs {
    /// Run the command through $SHELL [default: true; false after `--`]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(hide_possible_values = true)]
    shell: Option<bool>,
    /// Pass standard input on to the command
    #[arg(long)]
    pass_stdin: bool,
    /// Name; a lock is the key NAME/.lock
    #[arg(value_name = "NAME")]
    name: String,
    /// A command for the shell
    #[arg(value_name = "CHILD", num_args = 0.., allow_hyphen_values = true, hide = true)]
    child: Vec<OsString>,
    /// Command to run
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// As [`hold_and_run`].
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    hold_and_run(context, args.kind(), &args.options, &args.program).await
}

/// Acquires, runs the program, releases and removes the key.
///
/// # Errors
/// The program was not started: nothing was acquired, or the program cannot be executed.
pub async fn hold_and_run(
    context: &Context,
    kind: Kind,
    options: &Options,
    program: &ProgramArgs,
) -> Result<ExitCode, CliError> {
    let names = program.names(kind)?;
    let words = program.words()?;
    let client = context.client()?;
    let session = options.session(program.described());
    session.check().map_err(CliError::usage)?;
    let (wanted, awaited) = options.wanted(&client, &names, kind, session)?;
    let name = &names.join(", ");
    // Before anything is held: from here on a signal releases it, instead of killing this process.
    let mut signals = Signals::intercept()?;
    let standby = held::stand_by(words)?;
    options.report_if_verbose("waiting for the lock");
    let acquired = tokio::select! {
        biased;
        acquired = wanted.acquire(options.wait_limit(), &mut signals) => acquired,
        never = awaited.report(&client, name), if options.verbose || io::stderr().is_terminal() => match never {},
    };
    if let Ok(Acquired::Held(held)) = acquired {
        let command = options.command(context, names, kind, program, standby);
        return hold_while_running(*held, &wanted, options, command, &mut signals).await;
    }
    let reason = options.settle_unacquired(&acquired, &wanted, &awaited);
    let reason = signals.unless_ended(reason).await.flatten();
    Err(match acquired? {
        Acquired::Interrupted => CliError::Interrupted(interrupted(name, reason)),
        _ => CliError::NotAcquired(options.not_acquired(name, reason)),
    })
}

/// Runs the program, then releases the lock and removes its key.
async fn hold_while_running(
    mut held: Held,
    wanted: &Wanted,
    options: &Options,
    command: Command,
    signals: &mut Signals,
) -> Result<ExitCode, CliError> {
    options.report_if_verbose(&held.described());
    let name = command.end.names.join(", ");
    let ended = held.run(command, signals, std::future::pending()).await;
    // Also if the program could not be started.
    let limit = longest_hold(options.ttl, options.window);
    let given_back = held::within_ttl(limit, give_back(held, wanted, &ended, options)).await;
    let code = options.exit_code(&ended?);
    if let Err(error) = given_back {
        // The command's end is known, and decides about the exit code.
        report(&format!(
            "{name} could not be released or removed: {error}; a hold that remains ends with its session"
        ));
    }
    Ok(code)
}

/// The key that `consul lock` takes, so that the two exclude each other.
fn lock_key(name: &str) -> String {
    format!("{name}/.lock")
}

fn interrupted(name: &str, reason: Option<String>) -> String {
    let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
    format!("interrupted while waiting for {name}{reason}; the command was not started")
}

/// The longest time for which a session is certain to be alive without a renewal.
pub(super) fn longest_hold(ttl: Option<Duration>, window: Option<HealthWindow>) -> Duration {
    ttl.unwrap_or(window.map_or(DEFAULT_TTL, HealthWindow::default_ttl))
}

/// Releases it unless it is lost, and removes the key if no other session uses it.
async fn give_back(
    held: Held,
    wanted: &Wanted,
    ended: &Result<Ended, CliError>,
    options: &Options,
) -> Result<(), CliError> {
    if matches!(ended, Ok(Ended::Lost { .. })) {
        // There is nothing to release, and the agent may be unreachable.
        held.settle(wanted.client()).await;
        return Ok(());
    }
    let released = held.release().await?;
    options.report_if_verbose(if released { "released" } else { "it was lost before it could be released" });
    if !wanted.remove().await? {
        options.report_if_verbose("others use the key: it stays");
    }
    Ok(())
}

impl Options {
    fn wanted(
        &self,
        client: &Client,
        names: &[String],
        kind: Kind,
        session: SessionOptions,
    ) -> Result<(Wanted, Awaited), CliError> {
        Ok(match kind {
            Kind::Lock { is_shared } => {
                let keys = names.iter().map(|name| lock_key(name));
                let lock = Lock::many(client, keys).session(session).watch_retries(self.monitor_retry);
                let lock = if is_shared { lock.shared() } else { lock };
                (Wanted::Lock(lock), Awaited::Locks(names.to_vec()))
            }
            Kind::Slot(slots) => {
                let limit = usize::try_from(slots).map_err(CliError::usage)?;
                let name = names.concat();
                let semaphore = Semaphore::new(client, &name, limit).session(session);
                (Wanted::Slot(semaphore.watch_retries(self.monitor_retry)), Awaited::Slot(name))
            }
        })
    }

    /// The command, and the way to end its hold.
    fn command(
        &self,
        context: &Context,
        names: Vec<String>,
        kind: Kind,
        program: &ProgramArgs,
        standby: Standby,
    ) -> Command {
        let slots = kind.slots();
        let names = if slots.is_some() { names } else { names.iter().map(|name| lock_key(name)).collect() };
        let (address, token) = (context.address.to_string(), context.token.clone());
        Command {
            standby,
            stdin: if program.pass_stdin { CommandInput::Ours } else { CommandInput::Null },
            on_jeopardy: self.on_jeopardy,
            releases_on_exit: self.release_on_exit,
            lock_delay: self.lock_delay.unwrap_or(DEFAULT_LOCK_DELAY),
            end: HoldToEnd { address, token, names, slots, flags: LOCK_FLAGS, ..HoldToEnd::default() },
        }
    }

    fn wait_limit(&self) -> WaitLimit {
        match self.older_timeout.unwrap_or(self.timeout) {
            _ if self.once => WaitLimit::Once,
            // As in `consul lock`, where 0 means no limit.
            Duration::ZERO => WaitLimit::Endless,
            limit => WaitLimit::Within(limit),
        }
    }

    /// The options of the session, which is named `described` unless it was given a name.
    fn session(&self, described: String) -> SessionOptions {
        SessionOptions::named(self.session_name.clone().unwrap_or(described))
            .ttl(self.ttl)
            .lock_delay(self.lock_delay)
            .health_window(self.window)
    }

    /// The exit codes of our own errors, with `--child-exit-code` as in `consul lock`.
    pub(super) fn exit_codes(&self) -> ExitCodes {
        if self.child_exit_code { ExitCodes::Consul } else { ExitCodes::Holder }
    }

    fn exit_code(&self, ended: &Ended) -> ExitCode {
        ExitCode::from(match ended {
            Ended::Lost { .. } => self.exit_codes().lost(),
            Ended::Itself(End::Code(0)) => 0,
            Ended::Itself(_) if self.ignore_exit_code => 0,
            Ended::Itself(_) if self.child_exit_code => 2,
            Ended::Itself(end) => end.shell_code(),
        })
    }

    /// Ends a session that was created, before this process ends. Returns why the lock was not
    /// acquired.
    async fn settle_unacquired(
        &self,
        acquired: &Result<Acquired, Error>,
        wanted: &Wanted,
        awaited: &Awaited,
    ) -> Option<String> {
        let client = wanted.client();
        // The caller has set a limit: both waits are short, and run at the same time.
        if matches!(acquired, Ok(Acquired::TimedOut)) && !self.once {
            let settled = held::settle_within(TIMED_OUT_LIMIT, client);
            return tokio::join!(awaited.reason(client, TIMED_OUT_LIMIT), settled).0;
        }
        wanted.settle().await;
        if acquired.is_ok() { awaited.reason(client, obstacle::TIMEOUT).await } else { None }
    }

    fn not_acquired(&self, name: &str, reason: Option<String>) -> String {
        let within = match self.wait_limit() {
            WaitLimit::Within(limit) => format!(" in {}", duration::format(limit)),
            WaitLimit::Once | WaitLimit::Endless => String::new(),
        };
        let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
        format!("{name} not acquired{within}{reason}; the command was not started")
    }

    fn report_if_verbose(&self, text: &str) {
        if self.verbose {
            report(text);
        }
    }
}

impl ProgramArgs {
    /// The names after the first, and the command after `--`. Without `--` there are no further
    /// names, and the command is a text for the shell.
    fn parts(&self) -> (&[OsString], Option<&[OsString]>) {
        // The parser leaves a `--` behind other words to the command.
        match self.child.iter().position(|word| word == "--") {
            Some(at) => (&self.child[..at], Some(&self.child[at + 1..])),
            None if self.child.is_empty() => (&[], Some(&self.command)),
            None => (&[], None),
        }
    }

    /// The names without slashes at their ends, as `consul lock` takes one. With a command after
    /// `--`, all words before it are names.
    ///
    /// # Errors
    /// A name is empty, an option or a duplicate, or there are too many. Nothing was tried.
    fn names(&self, kind: Kind) -> Result<Vec<String>, CliError> {
        let (more, _) = self.parts();
        let mut names: Vec<String> = Vec::with_capacity(1 + more.len());
        for word in iter::once(Some(self.name.as_str())).chain(more.iter().map(|word| word.to_str())) {
            let Some(name) = word.map(|word| word.trim_matches('/')) else {
                return Err(CliError::usage("NAME is not UTF-8: give the lock another name"));
            };
            if name.is_empty() {
                return Err(CliError::usage("NAME is empty: give the lock a name"));
            }
            if let Some(hint) = absent::of_flock(name) {
                return Err(CliError::usage(hint));
            }
            if name.starts_with('-') && !names.is_empty() {
                return Err(CliError::usage(format!(
                    "{name} is no name: write options before the names, as in `lockmesh lock --shared A B -- COMMAND`"
                )));
            }
            if names.iter().any(|earlier| earlier == name) {
                return Err(CliError::usage(format!("{name} is given twice: give each lock once")));
            }
            names.push(name.to_owned());
        }
        match (kind, names.len()) {
            (_, 1) | (Kind::Lock { .. }, 2..=MAX_REQUESTED_LOCKS) => Ok(names),
            (Kind::Slot(_), _) => Err(CliError::usage(
                "a semaphore has one NAME: write the command after `--`, all of it; for several locks, leave -n out",
            )),
            (Kind::Lock { .. }, count) => {
                Err(CliError::usage(format!("give at most {MAX_REQUESTED_LOCKS} locks instead of {count}")))
            }
        }
    }

    /// The file name of the program, at most [`NAME_LENGTH`] characters. Arguments may be secret,
    /// but all clients can read the name of a session.
    fn described(&self) -> String {
        let (_, command) = self.parts();
        let words = command.unwrap_or(&self.child);
        let first = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
        // A text for the shell may begin with anything, such as a variable with a password.
        let first = first.split_whitespace().next().unwrap_or_default();
        let is_plain = |c: char| c.is_alphanumeric() || "/._+-".contains(c);
        let name = first.rsplit('/').next().filter(|name| !name.is_empty() && first.chars().all(is_plain));
        let name = name.unwrap_or("command");
        if name.chars().count() <= NAME_LENGTH {
            return name.into();
        }
        name.chars().take(NAME_LENGTH - 1).chain(['…']).collect()
    }

    /// The program and its arguments.
    ///
    /// # Errors
    /// There is no command. Nothing was tried.
    pub fn words(&self) -> Result<Vec<OsString>, CliError> {
        let (words, in_shell) = match self.parts().1 {
            Some([]) => return Err(CliError::usage("no command: write it after `--`")),
            Some(command) => (command, self.shell.unwrap_or(false)),
            // `lock NAME -c COMMAND` is the habit of flock(1), which a shell would misread.
            None if self.child[0].as_encoded_bytes().starts_with(b"-") => {
                let option = self.child[0].to_string_lossy();
                if let Some(hint) = absent::of_flock(&option) {
                    return Err(CliError::usage(hint));
                }
                return Err(CliError::usage(format!(
                    "{option} is not an option here: write the command after `--`, as in `lockmesh lock NAME -- sh \
                     -c 'COMMAND'`"
                )));
            }
            None => (&self.child[..], self.shell.unwrap_or(true)),
        };
        Ok(if in_shell { Program::in_shell(words) } else { words.to_vec() })
    }
}

/// Reads a window.
pub(super) fn window_parser() -> impl TypedValueParser<Value = HealthWindow> {
    let words = HealthWindow::ALL.map(HealthWindow::as_str);
    PossibleValuesParser::new(words).map(|word| {
        let window = HealthWindow::ALL.into_iter().find(|window| window.as_str() == word);
        window.expect("the parser accepts no other word")
    })
}

fn on_jeopardy_parser() -> impl TypedValueParser<Value = OnJeopardy> {
    PossibleValuesParser::new(["ignore", "term"]).map(|word| match word.as_str() {
        "term" => OnJeopardy::Terminate,
        _ => OnJeopardy::Ignore,
    })
}

/// Reads a number of holders. `-n` means "do not wait" in flock(1).
pub(super) fn holders(text: &str) -> Result<u32, ValueError> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or(ValueError::Holders)
}

/// The reason why a TTL is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum TtlError {
    /// It is no duration.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// Sessions cannot have it.
    #[error(transparent)]
    Session(#[from] Error),
}

/// Reads the TTL of a session that is renewed; the agent's `http.session_ttl_min` may demand more.
pub(super) fn ttl(text: &str) -> Result<Duration, TtlError> {
    let ttl = duration::parse(text)?;
    SessionOptions::default().ttl(ttl).check()?;
    Ok(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        use clap::FromArgMatches;
        let mut command = crate::command::command();
        command.build();
        let arguments = crate::command::spelling::rewrite(line.split(' ').map(OsString::from), &command);
        let matches = command.try_get_matches_from(arguments)?;
        let (_, matches) = matches.subcommand().expect("a command was given");
        Args::from_arg_matches(matches)
    }

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn names(args: &Args) -> Vec<String> {
        args.program.names(args.kind()).expect("good names")
    }

    fn words(args: &Args) -> Vec<String> {
        let words = args.program.words().expect("a command");
        words.iter().map(|word| word.to_str().expect("it was text").to_owned()).collect()
    }

    #[test]
    fn longest_hold_is_effective_ttl() {
        let second = Duration::from_secs(1);
        assert_eq!(longest_hold(Some(second), Some(HealthWindow::Safe)), second);
        assert_eq!(longest_hold(None, Some(HealthWindow::Safe)), 30 * second);
        assert_eq!(longest_hold(None, None), 15 * second);
    }

    #[test]
    fn consuls_spelling_is_understood() {
        let line = "lockmesh lock -n=3 -name=job -timeout=10s -child-exit-code -monitor-retry=5 -shell=false \
                    -pass-stdin -verbose a/b echo -n x";
        let args = parse(line).expect("good");
        assert_eq!((args.holders, names(&args)), (3, strings(&["a/b"])));
        assert_eq!(words(&args), ["echo", "-n", "x"]);
        let options = &args.options;
        assert_eq!(options.wait_limit(), WaitLimit::Within(Duration::from_secs(10)));
        assert!(options.child_exit_code && options.verbose && args.program.pass_stdin);
        assert_eq!((options.monitor_retry, options.session_name.as_deref()), (Some(5), Some("job")));
        let args = parse("lockmesh lock -try 10s -shell a sh").expect("good");
        assert_eq!(args.options.wait_limit(), WaitLimit::Within(Duration::from_secs(10)));
        assert_eq!(words(&args).last().map(String::as_str), Some("sh"));
    }

    #[test]
    fn two_dashes_are_understood_too() {
        let args =
            parse("lockmesh lock --timeout 1m30s --ttl 30s --lock-delay 0 /a/ -- sh -c exit").expect("good");
        assert_eq!(args.options.wait_limit(), WaitLimit::Within(Duration::from_secs(90)));
        assert_eq!(names(&args), ["a"]);
        let session = args.options.session(String::new());
        assert_eq!((session.ttl, session.lock_delay), (Some(Duration::from_secs(30)), Some(Duration::ZERO)));
        assert_eq!(parse("lockmesh lock a -- x").expect("good").options.wait_limit(), WaitLimit::Endless);
        let args = parse("lockmesh lock --window fast --on-jeopardy=term a -- x").expect("good");
        assert_eq!(args.options.session(String::new()).health_window, Some(HealthWindow::Fast));
        assert_eq!(args.options.on_jeopardy, OnJeopardy::Terminate);
        assert_eq!(parse("lockmesh lock a -- x").expect("good").options.on_jeopardy, OnJeopardy::Ignore);
        assert_eq!(parse("lockmesh lock --once a -- x").expect("good").options.wait_limit(), WaitLimit::Once);
    }

    #[test]
    fn double_dash_runs_command_without_shell() {
        let args = parse("lockmesh lock a -- echo -n -- $HOME").expect("good");
        assert_eq!(words(&args), ["echo", "-n", "--", "$HOME"]);
        let args = parse("lockmesh lock a echo $HOME").expect("good");
        assert_eq!(words(&args)[1..], ["-c", "echo $HOME"]);
        let args = parse("lockmesh lock --shell=true a -- echo $HOME").expect("good");
        assert_eq!(words(&args)[1..], ["-c", "echo $HOME"]);
    }

    #[test]
    fn words_before_double_dash_are_locks() {
        let args = parse("lockmesh lock --shared a /b/ c/d -- echo -n").expect("good");
        assert_eq!((names(&args), words(&args)), (strings(&["a", "b", "c/d"]), strings(&["echo", "-n"])));
        assert_eq!(args.program.described(), "echo");
        // Without it, as `consul lock`.
        let args = parse("lockmesh lock a b c").expect("good");
        assert_eq!((names(&args), &words(&args)[1..]), (strings(&["a"]), &strings(&["-c", "b c"])[..]));
        let many = (0..65).map(|name| name.to_string()).collect::<Vec<_>>().join(" ");
        for (names, text) in [
            ("/", "NAME is empty"),
            ("a //", "NAME is empty"),
            ("a b a/", "a is given twice"),
            ("a b --shared", "before the names"),
            ("a -w 10", "--timeout"),
            ("-n 2 a b", "leave -n out"),
            (many.as_str(), "at most 64 locks instead of 65"),
        ] {
            let args = parse(&format!("lockmesh lock {names} -- x")).expect("the shape is good");
            let error = args.program.names(args.kind()).expect_err(names).to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn session_name_excludes_arguments() {
        let name = |line: &str| {
            let args = parse(line).expect("good");
            args.options.session(args.program.described()).name
        };
        assert_eq!(name("lockmesh lock a -- /usr/bin/report --password x"), "report");
        assert_eq!(name("lockmesh lock a ./report.sh $DAY"), "report.sh");
        assert_eq!(name("lockmesh lock a PASSWORD=x report"), "command");
        assert_eq!(name("lockmesh lock a -- $(x)/report"), "command");
        let mut shell = parse("lockmesh lock a x").expect("good");
        shell.program.child = vec!["cd /srv && ./report --password x".into()];
        assert_eq!(shell.program.described(), "cd");
        assert_eq!(name("lockmesh lock --name nightly a -- report"), "nightly");
        let fitting = "x".repeat(NAME_LENGTH);
        assert_eq!(name(&format!("lockmesh lock a -- {fitting}")), fitting);
        let long = name(&format!("lockmesh lock a -- {fitting}x"));
        assert_eq!((long.chars().count(), long.ends_with('…')), (NAME_LENGTH, true));
    }

    #[test]
    fn invalid_arguments_rejected() {
        for line in [
            "lockmesh lock",
            "lockmesh lock -n 0 a -- x",
            "lockmesh lock -timeout=10 a -- x",
            "lockmesh lock -timeout=-1s a -- x",
            "lockmesh lock --once --timeout=1s a -- x",
            "lockmesh lock --monitor-retry=-1 a -- x",
            "lockmesh lock --unknown a -- x",
            "lockmesh lock --window slow a -- x",
            "lockmesh lock --on-jeopardy=kill a -- x",
            "lockmesh lock --ttl 0s a -- x",
            "lockmesh lock --ttl 99ms a -- x",
            "lockmesh lock --ttl 24h1ms a -- x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("lockmesh lock a").expect("the shape is good").program.words().is_err());
    }

    #[test]
    fn ttl_too_short_for_window_rejected() {
        let check = |line: &str| {
            let args = parse(&format!("lockmesh lock {line} a -- x")).expect("the shape is good");
            args.options.session(String::new()).check().map_err(|error| error.to_string())
        };
        let refused = check("--window safe --ttl 25s").expect_err("it is too short");
        assert!(refused.contains("choose a TTL of 26s or more"), "{refused}");
        for line in ["--window safe --ttl 26s", "--window safe", "--window default --ttl 10s", "--ttl 15s"] {
            assert_eq!(check(line), Ok(()), "{line}");
        }
        // The texts of the help name the numbers.
        assert_eq!(HealthWindow::Safe.least_ttl(), Duration::from_secs(26));
        assert_eq!(
            [HealthWindow::Default, HealthWindow::Safe].map(|window| window.default_ttl().as_secs()),
            [15, 30]
        );
    }

    #[test]
    fn window_durations_match_protocol() {
        for window in lockmesh_protocol::lease::HealthWindow::ALL {
            let known = HealthWindow::parse(window.as_str()).expect("the same words");
            assert_eq!(known.duration(), window.duration(), "{window:?}");
        }
    }

    #[test]
    fn exit_code_follows_command_by_default() {
        let code = |line: &str, ended: &Ended| {
            let args = parse(&format!("lockmesh lock {line}a -- x")).expect("good");
            format!("{:?}", args.options.exit_code(ended))
        };
        let is = |code: u8| format!("{:?}", ExitCode::from(code));
        let (failed, killed) = (Ended::Itself(End::Code(7)), Ended::Itself(End::Killed(15)));
        assert_eq!(code("", &Ended::Itself(End::Code(0))), is(0));
        assert_eq!([code("", &failed), code("", &killed)], [is(7), is(143)]);
        let lost = Ended::Lost { is_interrupted: false };
        assert_eq!(code("", &lost), is(121));
        assert_eq!(code("--pass-exit-code ", &failed), is(7));
        assert_eq!(code("--ignore-exit-code ", &failed), is(0));
        assert_eq!(code("--ignore-exit-code ", &lost), is(121));
        assert_eq!(code("-child-exit-code ", &failed), is(2));
        assert_eq!(code("-child-exit-code ", &Ended::Itself(End::Code(0))), is(0));
        assert_eq!(code("-child-exit-code ", &lost), is(1));
    }

    #[test]
    fn not_acquired_message_includes_reason() {
        let text = |line: &str, reason: Option<&str>| {
            let args = parse(&format!("lockmesh lock {line} job -- x")).expect("good");
            args.options.not_acquired("job", reason.map(Into::into))
        };
        assert_eq!(
            text("--timeout 1s", Some("held by \"a\" on n1")),
            "job not acquired in 1s: held by \"a\" on n1; the command was not started"
        );
        assert_eq!(text("--once", None), "job not acquired; the command was not started");
    }

    #[test]
    fn flock_usage_errors_include_hint() {
        let refused = parse("lockmesh lock -n job true").expect_err("-n takes a number").to_string();
        assert!(refused.contains("use --once"), "{refused}");
        let refused = parse("lockmesh lock job -c true").expect("the shape is good").program.words();
        assert!(refused.expect_err("no command").to_string().contains("after `--`"));
        let refused = parse("lockmesh lock job -w true").expect("the shape is good").program.words();
        assert!(refused.expect_err("no command").to_string().contains("--timeout"));
    }
}
