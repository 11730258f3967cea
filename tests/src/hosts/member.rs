//! A server or an agent that is started, ended and started again, with all that it said.

use crate::binary;
use crate::process::Process;
use std::fs;
use std::path::Path;

/// A server or an agent, in all of its lives. Killed when dropped.
pub struct Member {
    /// Its node.
    pub name: String,
    role: &'static str,
    config: String,
    process: Option<Process>,
    /// What it said in its earlier lives.
    said: String,
}

impl Member {
    /// One that does not run yet, with its configuration's path.
    pub fn new(name: String, role: &'static str, config: String) -> Self {
        Self { name, role, config, process: None, said: String::new() }
    }

    /// Starts it behind these words of another command, or of none. It must not run.
    #[track_caller]
    pub fn begin(&mut self, before: &[&str]) {
        assert!(self.process.is_none(), "{} runs", self.name);
        let program = binary::lockmesh().to_str().expect("a path is text");
        let words = [before, &[program, self.role, "--config", &self.config]].concat();
        self.process = Some(Process::start(Path::new(words[0]), &words[1..]));
    }

    /// What runs.
    #[track_caller]
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait_for_end(&mut self) {
        let process = self.process.take().expect("it runs");
        let code = process.ends();
        self.said.push_str(&format!("{}\n-- ended with {code} --\n", process.said()));
    }

    /// Writes down all that it said.
    pub fn save_said(&self, folder: &Path) {
        let now = self.process.as_ref().map(Process::said).unwrap_or_default();
        let saved = fs::write(folder.join(format!("{}.log", self.name)), format!("{}{now}", self.said));
        saved.expect("the folder can be written to");
    }
}
