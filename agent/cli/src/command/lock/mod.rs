//! `lockmesh lock`: holds a lock while a command runs, with the options of `consul lock`.
//! | module | is |
//! |---|---|
//! | [`child`] | the process that runs, as a group |
//! | [`held`] | the loop that ends it when the lock is lost |
//! Exit codes are those of `consul lock`: 0 when the command ran, whatever it returned; with
//! `--child-exit-code` 2 when it failed; 1 when it could not be run. Ours: `--pass-exit-code`
//! returns its own code, and a lock that was lost while the command ran is always 1.

pub mod child;
pub mod held;

use super::context::Context;
use super::error::CliError;
use child::{End, GRACE, Input, Program, Signals};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use held::{Ended, Held, OnJeopardy, WaitLimit, Wanted, say};
use lockmesh_client::{DEFAULT_TTL, HealthWindow, Lock, Semaphore, SessionOptions};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// Hold a lock while a command runs
/// `lockmesh lock NAME -- CMD ARG…` runs the command as it is; `lockmesh lock NAME CMD ARG…` hands
/// it to a shell, as `consul lock` does. The command finds CONSUL_LOCK_HELD=true and LOCKMESH_FENCE
/// in its environment. When the lock is lost its process group is sent SIGTERM, and SIGKILL five
/// seconds later; SIGKILL at once when the servers have not heard this host for its window.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How many may hold it at a time; more than one makes it a semaphore
    #[arg(short = 'n', value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    holders: u32,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    program: ProgramArgs,
}

/// Options of everything that holds while a command runs.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// A name for the session
    #[arg(long = "name", value_name = "TEXT")]
    session_name: Option<String>,
    /// Give up waiting after this long, such as 10s; 0 waits for ever
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0", conflicts_with = "try")]
    timeout: Duration,
    /// The same, in an older spelling of `consul lock`
    #[arg(long = "try", id = "try", value_name = "DURATION", value_parser = duration, hide = true)]
    older_timeout: Option<Duration>,
    /// Do not wait at all
    #[arg(long, conflicts_with_all = ["timeout", "try"])]
    once: bool,
    /// Exit with 2 if the command failed, instead of 0
    #[arg(long)]
    child_exit_code: bool,
    /// Exit with the command's own code, 128 and the signal's number if one killed it
    #[arg(long, conflicts_with = "child_exit_code")]
    pass_exit_code: bool,
    /// Give the lock up after this many failed tries to watch it, a second apart, instead of at the
    /// end of its lease
    #[arg(long, value_name = "COUNT")]
    monitor_retry: Option<u32>,
    /// Session TTL: minimum time before the lock can pass on after this process dies; at least 10s
    /// unless the cluster allows less, and 26s with the window safe [default: 15s; 30s with safe]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    ttl: Option<Duration>,
    /// How long nobody else is given the lock after it was lost; 15s unless told otherwise
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lock_delay: Option<Duration>,
    /// How long this host may be unreachable before the lock is released: fast (1.5 s), default (5
    /// s) or safe (15 s, needs a TTL of 26s or more); the agent's default unless told otherwise
    #[arg(long, value_name = "WORD", value_parser = window_parser())]
    window: Option<HealthWindow>,
    /// What to do while a renewal is overdue: ignore it, or send the command SIGTERM (term)
    #[arg(long, value_name = "WORD", value_parser = on_jeopardy_parser(), default_value = "ignore")]
    on_jeopardy: OnJeopardy,
    /// Tell what happens
    #[arg(long)]
    verbose: bool,
}

/// What to run.
#[derive(clap::Args, Debug)]
pub struct ProgramArgs {
    /// Hand the command to $SHELL, or not; without `--` it is handed
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    shell: Option<bool>,
    /// Give the command our standard input
    #[arg(long)]
    pass_stdin: bool,
    /// What to hold
    #[arg(value_name = "NAME")]
    name: String,
    /// A command for the shell
    #[arg(value_name = "CHILD", num_args = 0.., allow_hyphen_values = true, hide = true)]
    child: Vec<OsString>,
    /// The command to run
    #[arg(value_name = "CMD", last = true)]
    command: Vec<OsString>,
}

/// Runs the command.
/// # Errors
/// As [`hold_and_run`].
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    hold_and_run(context, args.holders, false, &args.options, &args.program).await
}

/// Holds, runs, gives back and tidies up. A single holder takes a lock, unless `always_semaphore`.
/// # Errors
/// Nothing was run, where nothing was held or the program cannot be started. Otherwise the program
/// has ended, but what was held could not be given back or tidied up; it ends with its session at
/// the latest.
pub async fn hold_and_run(
    context: &Context,
    holders: u32,
    always_semaphore: bool,
    options: &Options,
    program: &ProgramArgs,
) -> Result<ExitCode, CliError> {
    let words = program.words()?;
    let client = context.client()?;
    let session = options.session(&program.name, &words);
    session.check().map_err(CliError::usage)?;
    let name = program.prefix();
    let wanted = if holders == 1 && !always_semaphore {
        // The key that `consul lock` takes, so that the two exclude each other.
        let lock = Lock::new(&client, format!("{name}/.lock")).session(session);
        Wanted::Lock(lock.watch_retries(options.monitor_retry))
    } else {
        let limit = usize::try_from(holders).map_err(CliError::usage)?;
        let semaphore = Semaphore::new(&client, name, limit).session(session);
        Wanted::Slot(semaphore.watch_retries(options.monitor_retry))
    };
    // Before anything is held: from here on a signal has it given back, instead of killing us.
    let mut signals = Signals::take()?;
    options.tell("waiting for the lock");
    let acquired = wanted.acquire(options.wait_limit(), &mut signals).await;
    if !matches!(acquired, Ok(Some(_))) {
        // A session that was created is ended before this process is.
        wanted.settle().await;
    }
    let Some(held) = acquired? else {
        return Err(CliError::failed(format!("{name} was not to be had in time; nothing was run")));
    };
    options.tell(&format!(
        "holding it, fence {}",
        held.fence().map_or("unknown".into(), |fence| fence.to_string())
    ));
    let stdin = if program.pass_stdin { Input::Ours } else { Input::Null };
    let grace = orphan_grace(options.ttl, options.lock_delay);
    let program = Program { words, stdin, environment: held.environment(), grace };
    let ended = held::run(&held, &program, options.on_jeopardy, &mut signals).await;
    // Also where the program could not be started.
    give_back(held, &wanted, &ended, options).await?;
    Ok(options.exit_code(&ended?))
}

/// The time from SIGTERM to SIGKILL for a program whose `lockmesh lock` was killed. The session
/// lives for half of its TTL at least, since it was renewed by then, and a lock-delay follows: the
/// program is gone before the lock is granted to another session.
pub(super) fn orphan_grace(ttl: Option<Duration>, lock_delay: Option<Duration>) -> Duration {
    // Without one the window decides, by which it is never shorter.
    let ttl = ttl.unwrap_or(DEFAULT_TTL);
    GRACE.min(lock_delay.map_or(GRACE, |lock_delay| ttl / 2 + lock_delay))
}

/// Gives back what is held still, and takes the key away if nobody else wants it.
async fn give_back(
    held: Held,
    wanted: &Wanted,
    ended: &Result<Ended, CliError>,
    options: &Options,
) -> Result<(), CliError> {
    if matches!(ended, Ok(Ended::Lost(_))) {
        // There is nothing to give back, and perhaps nobody to talk to.
        drop(held);
        wanted.settle().await;
        return Ok(());
    }
    let released = held.release().await?;
    options.tell(if released { "released" } else { "it was lost before it could be released" });
    if !wanted.remove().await? {
        options.tell("others use the key: it stays");
    }
    Ok(())
}

impl Options {
    fn wait_limit(&self) -> WaitLimit {
        match self.older_timeout.unwrap_or(self.timeout) {
            _ if self.once => WaitLimit::Once,
            // How `consul lock` spells that there is no limit.
            Duration::ZERO => WaitLimit::Endless,
            limit => WaitLimit::Within(limit),
        }
    }

    fn session(&self, name: &str, words: &[OsString]) -> SessionOptions {
        let command = words.join(&OsString::from(" "));
        let described = || format!("lockmesh lock for '{}' at '{name}'", command.to_string_lossy());
        SessionOptions {
            ttl: self.ttl,
            lock_delay: self.lock_delay,
            health_window: self.window,
            ..SessionOptions::named(self.session_name.clone().unwrap_or_else(described))
        }
    }

    fn exit_code(&self, ended: &Ended) -> ExitCode {
        match ended {
            Ended::Lost(_) => ExitCode::from(1),
            Ended::Itself(end) if self.pass_exit_code => ExitCode::from(end.shell_code()),
            Ended::Itself(End::Code(0)) => ExitCode::SUCCESS,
            Ended::Itself(_) if self.child_exit_code => ExitCode::from(2),
            Ended::Itself(_) => ExitCode::SUCCESS,
        }
    }

    fn tell(&self, text: &str) {
        if self.verbose {
            say(text);
        }
    }
}

impl ProgramArgs {
    /// The name without what only looks like a part of it.
    fn prefix(&self) -> &str {
        self.name.trim_start_matches('/').trim_end_matches('/')
    }

    /// The program and its arguments.
    /// # Errors
    /// There is no name, or no one command. Nothing was tried.
    pub fn words(&self) -> Result<Vec<OsString>, CliError> {
        if self.prefix().is_empty() {
            return Err(CliError::usage("NAME is empty: say what to hold"));
        }
        let (words, in_shell) = match (self.child.is_empty(), self.command.is_empty()) {
            (true, true) => return Err(CliError::usage("no command: write it after `--`")),
            (false, false) => {
                return Err(CliError::usage("write the command after `--`, all of it"));
            }
            (true, false) => (&self.command, self.shell.unwrap_or(false)),
            (false, true) => (&self.child, self.shell.unwrap_or(true)),
        };
        Ok(if in_shell { Program::in_shell(words) } else { words.clone() })
    }
}

/// Reads a duration as Go writes it.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    lockmesh_protocol::duration::parse(text).map_err(|error| error.to_string())
}

/// Reads a window.
pub(super) fn window_parser() -> impl TypedValueParser<Value = HealthWindow> {
    let words = HealthWindow::ALL.map(HealthWindow::as_str);
    PossibleValuesParser::new(words).map(|word| {
        let window = HealthWindow::ALL.into_iter().find(|window| window.as_str() == word);
        window.expect("no other word is let through")
    })
}

fn on_jeopardy_parser() -> impl TypedValueParser<Value = OnJeopardy> {
    PossibleValuesParser::new(["ignore", "term"]).map(|word| match word.as_str() {
        "term" => OnJeopardy::Terminate,
        _ => OnJeopardy::Ignore,
    })
}

/// How long a session that is kept may live; the agent's `http.session_ttl_min` may ask for more.
pub(super) fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    SessionOptions { ttl: Some(ttl), ..SessionOptions::default() }
        .check()
        .map_err(|error| error.to_string())?;
    Ok(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_client::Loss;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        use clap::FromArgMatches;
        let mut command = crate::command::command();
        command.build();
        let arguments = crate::command::spelling::rewrite(line.split(' ').map(OsString::from), &command);
        let matches = command.try_get_matches_from(arguments)?;
        let (_, matches) = matches.subcommand().expect("a command was given");
        Args::from_arg_matches(matches)
    }

    fn words(args: &Args) -> Vec<String> {
        let words = args.program.words().expect("a command");
        words.iter().map(|word| word.to_str().expect("it was text").to_owned()).collect()
    }

    #[test]
    fn an_orphan_is_killed_before_the_lock_can_pass_on() {
        let second = Duration::from_secs(1);
        assert_eq!(orphan_grace(Some(second), None), GRACE, "the usual lock-delay is longer");
        assert_eq!(orphan_grace(Some(15 * second), Some(Duration::ZERO)), GRACE);
        assert_eq!(orphan_grace(Some(second), Some(Duration::ZERO)), second / 2);
        assert_eq!(orphan_grace(Some(second), Some(second)), second * 3 / 2);
    }

    #[test]
    fn consuls_spelling_is_understood() {
        let line = "lockmesh lock -n=3 -name=job -timeout=10s -child-exit-code -monitor-retry=5 -shell=false \
                    -pass-stdin -verbose a/b echo -n x";
        let args = parse(line).expect("good");
        assert_eq!((args.holders, args.program.prefix()), (3, "a/b"));
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
        assert_eq!(args.program.prefix(), "a");
        let session = args.options.session("a", &[]);
        assert_eq!((session.ttl, session.lock_delay), (Some(Duration::from_secs(30)), Some(Duration::ZERO)));
        assert_eq!(parse("lockmesh lock a -- x").expect("good").options.wait_limit(), WaitLimit::Endless);
        let args = parse("lockmesh lock --window fast --on-jeopardy=term a -- x").expect("good");
        assert_eq!(args.options.session("a", &[]).health_window, Some(HealthWindow::Fast));
        assert_eq!(args.options.on_jeopardy, OnJeopardy::Terminate);
        assert_eq!(parse("lockmesh lock a -- x").expect("good").options.on_jeopardy, OnJeopardy::Ignore);
        assert_eq!(parse("lockmesh lock --once a -- x").expect("good").options.wait_limit(), WaitLimit::Once);
    }

    #[test]
    fn a_command_behind_two_dashes_is_run_as_it_is() {
        let args = parse("lockmesh lock a -- echo -n -- $HOME").expect("good");
        assert_eq!(words(&args), ["echo", "-n", "--", "$HOME"]);
        let args = parse("lockmesh lock a echo $HOME").expect("good");
        assert_eq!(words(&args)[1..], ["-c", "echo $HOME"]);
        let args = parse("lockmesh lock --shell=true a -- echo $HOME").expect("good");
        assert_eq!(words(&args)[1..], ["-c", "echo $HOME"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
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
        for line in ["lockmesh lock a", "lockmesh lock / -- x"] {
            assert!(parse(line).expect("the shape is good").program.words().is_err(), "{line}");
        }
    }

    #[test]
    fn a_ttl_that_is_too_short_for_the_window_is_refused() {
        let check = |line: &str| {
            let args = parse(&format!("lockmesh lock {line} a -- x")).expect("the shape is good");
            args.options.session("a", &[]).check().map_err(|error| error.to_string())
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
    fn windows_last_as_long_for_guards_as_for_servers() {
        for window in lockmesh_protocol::lease::HealthWindow::ALL {
            let known = HealthWindow::parse(window.as_str()).expect("the same words");
            assert_eq!(known.duration(), window.duration(), "{window:?}");
        }
    }

    #[test]
    fn exit_codes_follow_consul_unless_asked_otherwise() {
        let code = |line: &str, ended: &Ended| {
            let args = parse(&format!("lockmesh lock {line}a -- x")).expect("good");
            format!("{:?}", args.options.exit_code(ended))
        };
        let is = |code: u8| format!("{:?}", ExitCode::from(code));
        let failed = Ended::Itself(End::Code(7));
        assert_eq!(code("", &Ended::Itself(End::Code(0))), is(0));
        assert_eq!(code("", &failed), is(0));
        assert_eq!(code("-child-exit-code ", &failed), is(2));
        assert_eq!(code("-child-exit-code ", &Ended::Itself(End::Code(0))), is(0));
        assert_eq!(code("--pass-exit-code ", &failed), is(7));
        assert_eq!(code("--pass-exit-code ", &Ended::Itself(End::Killed(15))), is(143));
        assert_eq!(code("--pass-exit-code ", &Ended::Lost(Loss::Deleted)), is(1));
    }
}
