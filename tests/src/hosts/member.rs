//! A server or an agent that is started, ended and started again, with all of its output.

use crate::binary;
use crate::process::Process;
use std::fs;
use std::path::Path;

/// A server or an agent, across restarts. Killed when dropped.
pub struct Member {
    /// The node.
    pub name: String,
    role: &'static str,
    config: String,
    process: Option<Process>,
    /// The output of its earlier processes.
    said: String,
}

impl Member {
    /// Creates a member that does not run yet, with its configuration's path.
    pub fn new(name: String, role: &'static str, config: String) -> Self {
        Self { name, role, config, process: None, said: String::new() }
    }

    /// Starts the process, prefixed by the words of another command if any. It must not be running.
    #[track_caller]
    pub fn begin(&mut self, before: &[&str]) {
        assert!(self.process.is_none(), "{} runs", self.name);
        let program = binary::lockmesh().to_str().expect("a path is text");
        let words = [before, &[program, self.role, "--config", &self.config]].concat();
        self.process = Some(Process::start(Path::new(words[0]), &words[1..]));
    }

    /// Returns the running process.
    #[track_caller]
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// Waits for the process to exit.
    #[track_caller]
    pub fn wait_for_end(&mut self) {
        let process = self.process.take().expect("it runs");
        let code = process.ends();
        self.said.push_str(&format!("{}\n-- ended with {code} --\n", process.said()));
    }

    /// Writes all of the output to a file.
    pub fn save_said(&self, folder: &Path) {
        let now = self.process.as_ref().map(Process::said).unwrap_or_default();
        let saved = fs::write(folder.join(format!("{}.log", self.name)), format!("{}{now}", self.said));
        saved.expect("the folder can be written to");
    }
}
