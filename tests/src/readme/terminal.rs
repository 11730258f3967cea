//! A terminal, as far as a shell notices: an interactive one, with aliases, both outputs in one and
//! Ctrl-C.

use super::shown;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a command may take, or may not say what it shall; generous, for loaded machines.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Time after which Ctrl-C is pressed again: bash ignores one that meets a loop while its command
/// is just ending well.
const CTRL_C_AGAIN: Duration = Duration::from_secs(10);

/// What the shell says when a command has ended, with its exit code. No program says it.
const ENDED: &str = "the-command-has-ended-with";

/// Lines that may have been said and were not looked at yet.
const UNREAD_LINES: usize = 65_536;

/// Variables of our environment that a newcomer's shell has too.
const KEPT: [&str; 8] = [
    "HOME",
    "PATH",
    "CARGO_HOME",
    "RUSTUP_HOME",
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
    /// What was said since the last command was typed.
    said: Vec<String>,
    /// Whether a command has not ended yet.
    is_busy: bool,
}

impl Terminal {
    /// Opens one in a folder, with a program's folder in front of `PATH`.
    ///
    /// # Errors
    /// There is no `bash`, or it does not answer.
    pub fn open(number: u32, folder: &Path, program: Option<&Path>) -> Result<Self, String> {
        let mut shell = Command::new("setsid");
        // In a session without a terminal, so that the shell takes none away from the developer;
        // and with Ctrl-C as it is in a terminal: whatever runs in the background is deaf to it.
        shell.args([
            "env",
            "--default-signal=INT",
            "sh",
            "-c",
            "exec 2>&1; exec bash --norc --noprofile --noediting -i",
        ]);
        shell.env_clear().env("SHELL", "/bin/bash").env("PS1", "").env("PS2", "").env("TERM", "dumb");
        shell.envs(KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
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
            // The one who listens may have ended first.
            output.lines().map_while(Result::ok).try_for_each(|line| say.send(line))
        });
        let mut terminal = Self { number, shell, keyboard, lines, said: Vec::new(), is_busy: true };
        // What it says of itself before the first command.
        terminal.press(&format!("echo {ENDED} $?"))?;
        terminal.wait_for_end()?;
        Ok(terminal)
    }

    /// Types a command and Enter, once the one before has ended.
    ///
    /// # Errors
    /// The one before does not end, or failed; or the shell has ended.
    pub fn type_in(&mut self, command: &str) -> Result<(), String> {
        if self.is_busy {
            self.wait_for_end()?;
        }
        println!("[{}] $ {command}", self.number);
        self.said.clear();
        self.is_busy = true;
        self.press(&format!("{command}\necho {ENDED} $?"))
    }

    /// Waits until the command has ended, and compares what it said, which may be why it failed.
    /// Where nothing is shown it may say anything, and must end well.
    ///
    /// # Errors
    /// It did not end, failed, or said something else.
    pub fn ends(&mut self, shown: &[String]) -> Result<(), String> {
        if shown.is_empty() {
            return self.wait_for_end();
        }
        self.wait_for_code(Instant::now() + TIMEOUT)?;
        if shown::fits(shown, &self.said) { Ok(()) } else { Err(self.otherwise(shown)) }
    }

    /// Waits until the command, which goes on, has said what is shown; if nothing is shown, its
    /// first line, so that Ctrl-C meets the command and not the shell.
    ///
    /// # Errors
    /// It ended, or did not say so in time.
    pub fn says(&mut self, shown: &[String]) -> Result<(), String> {
        self.wait_until(shown, |said| match shown {
            [] => !said.is_empty(),
            shown => shown::fits(shown, said),
        })
    }

    /// Waits until the command, which goes on, prints a line that begins with `ready`.
    ///
    /// # Errors
    /// It ended, or was not ready in time.
    pub fn is_ready(&mut self) -> Result<(), String> {
        let shown = ["ready …".to_owned()];
        self.wait_until(&shown, |said| said.iter().any(|line| line.starts_with("ready ")))
    }

    /// Waits until what is shown is among what was said since the last command was typed.
    ///
    /// # Errors
    /// It was not said in time.
    pub fn says_in_time(&mut self, shown: &[String]) -> Result<(), String> {
        self.wait_until(shown, |said| shown::are_among(shown, said))
    }

    /// Presses Ctrl-C and waits until the command has ended, whatever its exit code.
    ///
    /// # Errors
    /// It did not end, or there was none.
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
            code => Err(format!("the command failed with {code} and said:\n{}", self.said.join("\n"))),
        }
    }

    /// The exit code of the command, once it has ended.
    fn wait_for_code(&mut self, until: Instant) -> Result<String, String> {
        loop {
            let line = self.hear(until)?;
            // What is said without a line's end stands in front.
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
            let line = self.hear(until).map_err(|problem| format!("{problem}\n{}", self.otherwise(shown)))?;
            if line.contains(ENDED) {
                return Err(format!("the command has ended\n{}", self.otherwise(shown)));
            }
            self.keep(line);
        }
        Ok(())
    }

    fn hear(&mut self, until: Instant) -> Result<String, String> {
        let left = until.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                format!("nothing came of it within {TIMEOUT:?}; it said:\n{}", self.said.join("\n"))
            }
            RecvTimeoutError::Disconnected => "the terminal is gone".into(),
        })
    }

    fn keep(&mut self, line: String) {
        println!("[{}] {line}", self.number);
        self.said.push(line);
    }

    fn otherwise(&self, shown: &[String]) -> String {
        format!("it is shown to say:\n{}\nbut said:\n{}", shown.join("\n"), self.said.join("\n"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let group = format!("kill -KILL -{}", self.shell.id());
        // An error means that it is gone already.
        let _ = Command::new("sh").args(["-c", &group]).status();
        let _ = self.shell.wait();
    }
}
