//! A server or an agent that is started, ended and started again, with all of its output; and the
//! certificates and configuration that it needs.

use crate::process::{Process, run};
use std::fs;
use std::path::{Path, PathBuf};

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

    /// Starts the process by this program, prefixed by the words of another command if any. It must
    /// not be running.
    #[track_caller]
    pub fn begin(&mut self, before: &[&str], program: &Path) {
        assert!(self.process.is_none(), "{} runs", self.name);
        let program = text(program);
        let words = [before, &[program.as_str(), self.role, "--config", &self.config]].concat();
        self.process = Some(Process::start(Path::new(words[0]), &words[1..]));
    }

    /// Returns the running process.
    #[track_caller]
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// Waits for the process to exit. Returns its exit code.
    #[track_caller]
    pub fn wait_for_end(&mut self) -> i32 {
        let process = self.process.take().expect("it runs");
        let code = process.ends();
        self.said.push_str(&format!("{}\n-- ended with {code} --\n", process.said()));
        code
    }

    /// Kills the process with `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill();
        self.said.push_str(&format!("{}\n-- killed --\n", process.said()));
    }

    /// Returns all of the output.
    pub fn said(&self) -> String {
        let now = self.process.as_ref().map(Process::said).unwrap_or_default();
        format!("{}{now}", self.said)
    }

    /// Writes all of the output to a file.
    pub fn save_said(&self, folder: &Path) {
        let saved = fs::write(folder.join(format!("{}.log", self.name)), self.said());
        saved.expect("the folder can be written to");
    }
}

/// Creates the certificate authority of a cluster in this folder, as an operator does.
pub fn make_authority(home: &Path) {
    lockmesh(&["operator", "tls", "init", "--out", &text(&home.join("ca"))]);
}

/// Issues a member's certificate and writes its configuration. Returns the configuration's path.
pub fn write_config(home: &Path, name: &str, role: &str, data: &Path, rest: &str) -> String {
    issue(&home.join("ca"), &certificates(home, name), role, name);
    configure(home, "ca", name, role, data, rest)
}

/// Issues a certificate into a folder.
pub fn issue(authority: &Path, out: &Path, role: &str, node: &str) {
    let (ca, out) = (text(authority), text(out));
    lockmesh(&["operator", "tls", "issue", "--ca", &ca, "--out", &out, "--role", role, "--node", node]);
}

/// Returns the folder with a member's certificate.
pub fn certificates(home: &Path, name: &str) -> PathBuf {
    home.join(format!("{name}-tls"))
}

/// Writes the configuration of a member that has a certificate of the authority in a folder of
/// `home`. Returns its path.
pub fn configure(home: &Path, authority: &str, name: &str, role: &str, data: &Path, rest: &str) -> String {
    let (ca, own) = (text(&home.join(authority)), text(&certificates(home, name)));
    let config = text(&home.join(format!("{name}.toml")));
    let words = format!(
        "data_dir = {data:?}\n{rest}\n[node]\nname = \"{name}\"\n[tls]\nca = \"{ca}/ca.pem\"\n\
         certificate = \"{own}/{role}.pem\"\nkey = \"{own}/{role}-key.pem\"\n"
    );
    fs::write(&config, words).expect("the file can be written");
    config
}

fn lockmesh(arguments: &[&str]) {
    let (code, _, said) = run(arguments);
    assert_eq!(code, 0, "{said}");
}

/// Formats a path for use as an option.
pub fn text(path: &Path) -> String {
    path.to_str().expect("a temporary folder's name is text").to_owned()
}
