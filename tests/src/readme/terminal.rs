//! A terminal from a shell's point of view: interactive, with aliases, both outputs combined and
//! Ctrl-C.

use super::shown;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum time for a command to end or to print its documented output; generous, for loaded
/// machines.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The time after which Ctrl-C is sent again: bash ignores one that arrives in a loop just as its
/// command exits successfully.
const CTRL_C_AGAIN: Duration = Duration::from_secs(10);

/// The text that the shell prints with the exit code after each command. No program prints it.
const ENDED: &str = "the-command-has-ended-with";

/// The maximum number of lines that were printed and not yet read.
const UNREAD_LINES: usize = 65_536;

/// The home folder of the documents' reader: a new one for each run, as is all of `/tmp`.
pub const HOME: &str = "/tmp/home";

/// Variables of our environment that a newcomer's shell also has.
const KEPT: [&str; 5] = [
    "PATH",
    "RUSTUP_TOOLCHAIN",
    "CARGO_PROFILE_RELEASE_LTO",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS",
];

/// One terminal.
pub struct Terminal {
    number: u32,
    shell: Child,
    keyboard: ChildStdin,
    lines: Receiver<String>,
    /// The output since the last command was typed.
    said: Vec<String>,
    /// Set while a command runs.
    is_busy: bool,
}

impl Terminal {
    /// Opens a terminal in a folder, with a program's folder prepended to `PATH`.
    ///
    /// # Errors
    /// `bash` is missing or does not reply.
    pub fn open(number: u32, folder: &Path, program: Option<&Path>) -> Result<Self, String> {
        let mut shell = Command::new("setsid");
        // A new session without a controlling terminal keeps the developer's terminal untouched.
        // Ctrl-C works as in a terminal: background commands ignore it.
        shell.args([
            "env",
            "--default-signal=INT",
            "sh",
            "-c",
            "exec 2>&1; exec bash --norc --noprofile --noediting -i",
        ]);
        shell.env_clear().env("SHELL", "/bin/bash").env("PS1", "").env("PS2", "").env("TERM", "dumb");
        shell.envs(KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        // The toolchain stays where it is.
        let real_home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
        for (name, default) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            shell.env(name, std::env::var_os(name).unwrap_or_else(|| real_home.join(default).into()));
        }
        shell.env("HOME", HOME);
        if let Some(program) = program {
            let path = std::env::var("PATH").unwrap_or_default();
            shell.env("PATH", format!("{}:{path}", program.display()));
        }
        shell.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().map_err(|error| format!("cannot start setsid: {error}"))?;
        let keyboard = shell.stdin.take().expect("it is piped");
        let output = BufReader::new(shell.stdout.take().expect("it is piped"));
        let (say, lines) = sync_channel(UNREAD_LINES);
        thread::spawn(move || {
            // The receiver may have ended first.
            output.lines().map_while(Result::ok).try_for_each(|line| say.send(line))
        });
        let mut terminal = Self { number, shell, keyboard, lines, said: Vec::new(), is_busy: true };
        // Discards the shell's output before the first command.
        terminal.press(&format!("echo {ENDED} $?"))?;
        terminal.wait_for_end()?;
        Ok(terminal)
    }

    /// Types a command and Enter, after the previous command has ended.
    ///
    /// # Errors
    /// The previous command does not end, or failed; or the shell has ended.
    pub fn type_in(&mut self, command: &str) -> Result<(), String> {
        if self.is_busy {
            self.wait_for_end()?;
        }
        println!("[{}] $ {command}", self.number);
        self.said.clear();
        self.is_busy = true;
        self.press(&format!("{command}\necho {ENDED} $?"))
    }

    /// Waits until the command has ended, and compares its output, which may explain a failure.
    /// Without documented output it may print anything, and must succeed.
    ///
    /// # Errors
    /// The command did not end, failed, or printed something else.
    pub fn ends(&mut self, shown: &[String]) -> Result<(), String> {
        if shown.is_empty() {
            return self.wait_for_end();
        }
        self.wait_for_code(Instant::now() + TIMEOUT)?;
        if shown::fits(shown, &self.said) { Ok(()) } else { Err(self.otherwise(shown)) }
    }

    /// Waits until the running command has printed the documented output. Without documented
    /// output, waits for the first line, so that Ctrl-C reaches the command and not the shell.
    ///
    /// # Errors
    /// The command ended, or did not print the output in time.
    pub fn says(&mut self, shown: &[String]) -> Result<(), String> {
        self.wait_until(shown, |said| match shown {
            [] => !said.is_empty(),
            shown => shown::fits(shown, said),
        })
    }

    /// Waits until the running command prints a line that begins with `ready`.
    ///
    /// # Errors
    /// The command ended, or was not ready in time.
    pub fn is_ready(&mut self) -> Result<(), String> {
        let shown = ["ready …".to_owned()];
        self.wait_until(&shown, |said| said.iter().any(|line| line.starts_with("ready ")))
    }

    /// Waits until the documented lines are among the output since the last command was typed.
    ///
    /// # Errors
    /// The output did not appear in time.
    pub fn says_in_time(&mut self, shown: &[String]) -> Result<(), String> {
        self.wait_until(shown, |said| shown::are_among(shown, said))
    }

    /// Sends Ctrl-C and waits until the command has ended, with any exit code.
    ///
    /// # Errors
    /// The command did not end, or none was running.
    pub fn interrupt(&mut self) -> Result<(), String> {
        println!("[{}] Ctrl-C", self.number);
        if !self.is_busy {
            return Err("there is nothing that Ctrl-C could end".into());
        }
        let group = format!("kill -INT -{}", self.shell.id());
        let end = Instant::now() + TIMEOUT;
        loop {
            let sent = Command::new("sh").args(["-c", &group]).status();
            if !sent.is_ok_and(|status| status.success()) {
                return Err("the terminal is gone".into());
            }
            match self.wait_for_code(Instant::now() + CTRL_C_AGAIN) {
                Err(_) if Instant::now() < end => {}
                done => return done.map(|_| ()),
            }
        }
    }

    fn press(&mut self, text: &str) -> Result<(), String> {
        writeln!(self.keyboard, "{text}").map_err(|_| "the terminal is gone".into())
    }

    fn wait_for_end(&mut self) -> Result<(), String> {
        match self.wait_for_code(Instant::now() + TIMEOUT)?.as_str() {
            "0" => Ok(()),
            code => Err(format!("the command failed with {code} and printed:\n{}", self.said.join("\n"))),
        }
    }

    /// Returns the exit code of the command, once it has ended.
    fn wait_for_code(&mut self, until: Instant) -> Result<String, String> {
        loop {
            let line = self.read_line(until)?;
            // Output without a final newline precedes the text on the same line.
            if let Some((before, code)) = line.split_once(ENDED) {
                if !before.is_empty() {
                    self.keep(before.to_owned());
                }
                self.is_busy = false;
                return Ok(code.trim().to_owned());
            }
            self.keep(line);
        }
    }

    fn wait_until(&mut self, shown: &[String], is_so: impl Fn(&[String]) -> bool) -> Result<(), String> {
        let until = Instant::now() + TIMEOUT;
        while !is_so(&self.said) {
            let line =
                self.read_line(until).map_err(|problem| format!("{problem}\n{}", self.otherwise(shown)))?;
            if line.contains(ENDED) {
                return Err(format!("the command has ended\n{}", self.otherwise(shown)));
            }
            self.keep(line);
        }
        Ok(())
    }

    fn read_line(&mut self, until: Instant) -> Result<String, String> {
        let left = until.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                format!("timed out after {TIMEOUT:?}; the output is:\n{}", self.said.join("\n"))
            }
            RecvTimeoutError::Disconnected => "the terminal is gone".into(),
        })
    }

    fn keep(&mut self, line: String) {
        println!("[{}] {line}", self.number);
        self.said.push(line);
    }

    fn otherwise(&self, shown: &[String]) -> String {
        format!(
            "the documented output is:\n{}\nthe actual output is:\n{}",
            shown.join("\n"),
            self.said.join("\n")
        )
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let group = format!("kill -KILL -{}", self.shell.id());
        // An error means that the shell is already gone.
        let _ = Command::new("sh").args(["-c", &group]).status();
        let _ = self.shell.wait();
    }
}
