//! A running process of `lockmesh dev --nodes` or `--servers`, found by its folder and killed on
//! request.
//!
//! **Invariant:** only processes of this folder are killed. A process id may belong to another
//! process by now. The process is therefore first opened by a handle, then checked, then killed
//! through the handle.

use super::folder::{MemberFolder, absolute};
use crate::error::RunError;
use lockmesh_net::{Role, owner};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The time to wait for the end of a killed process. A process whose parent does not reap it stays
/// in the kernel's table.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval between checks for its end.
const END_INTERVAL: Duration = Duration::from_millis(2);

/// The reason why a process was not killed.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// No server or agent is called so.
    #[error("there is no {name} in {}: {}", folder.display(), known(there))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The data folder.
        folder: PathBuf,
        /// The names that are there.
        there: Vec<String>,
    },
    /// It does not run, or its file is gone.
    #[error("{name} does not run: {why}; to start it: {start}")]
    NotRunning {
        /// Whose process.
        name: String,
        /// The evidence.
        why: String,
        /// The command that starts it.
        start: String,
    },
    /// The file does not contain a process id.
    #[error("{} holds no process number, and nothing was killed: remove the file, and start {name} again", file.display())]
    NotANumber {
        /// Whose file.
        name: String,
        /// The file.
        file: PathBuf,
    },
    /// The process is another one.
    #[error(
        "the process {number}, which {} names, is not {name}, and nothing was killed: it was started as {command:?}, \
         and not with --config {}", file.display(), config.display()
    )]
    Foreign {
        /// Whose file.
        name: String,
        /// The file.
        file: PathBuf,
        /// The number that it holds.
        number: i32,
        /// Its command line.
        command: String,
        /// The configuration that it would have.
        config: PathBuf,
    },
    /// The system refuses something.
    #[error("cannot {doing}, and nothing was killed: {error}")]
    System {
        /// The failed action.
        doing: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The data folder cannot be named.
    #[error(transparent)]
    Folder(#[from] RunError),
}

/// A process that runs and is the folder's.
#[derive(Debug)]
pub struct Running {
    home: MemberFolder,
    number: i32,
    process: OwnedFd,
}

impl Running {
    /// Finds the process of a server (`s1`) or agent (`n1`) in a data folder.
    ///
    /// # Errors
    /// Nothing was killed: there is no such server or agent, it does not run, or the process that
    /// its file names is another one.
    pub fn find(data_dir: &Path, name: &str) -> Result<Self, KillError> {
        let data_dir = absolute(data_dir)?;
        let home = find_folder(&data_dir, name)?;
        let file = home.pid_file();
        let text = match owner::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(not_running(&home, format!("there is no {}", file.display())));
            }
            Err(error) => return Err(KillError::System { doing: format!("read {}", file.display()), error }),
        };
        let not_a_number = || KillError::NotANumber { name: home.name.clone(), file: file.clone() };
        // 0 and negative numbers mean groups of processes.
        let pid = text.trim().parse().ok().filter(|number| *number > 0).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(not_a_number)?;
        let number = pid.as_raw_nonzero().get();
        let gone = || not_running(&home, format!("the process {number} of {} has ended", file.display()));
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Err(gone()),
            Err(error) => {
                return Err(KillError::System {
                    doing: format!("look at the process {number}"),
                    error: error.into(),
                });
            }
        };
        let arguments = arguments_of(number);
        // One that has ended and is not waited for has none any more.
        if arguments.is_empty() {
            return Err(gone());
        }
        let own_folder = PathBuf::from(format!("/proc/{number}/cwd"));
        if !is_started_for(&arguments, &home, &own_folder) {
            let words: Vec<_> = arguments.iter().map(|word| String::from_utf8_lossy(word)).collect();
            let (name, config) = (home.name.clone(), home.config_file());
            return Err(KillError::Foreign { name, file, number, command: words.join(" "), config });
        }
        Ok(Self { home, number, process })
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.home.role
    }

    /// Its name, which is its node's too.
    pub fn name(&self) -> &str {
        &self.home.name
    }

    /// Its process number.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// The command that starts it again.
    pub fn start_command(&self) -> String {
        super::children::start_command(&self.home)
    }

    /// The sockets of the other agents in the data folder, agents with their own processes first.
    pub fn other_sockets(&self) -> Vec<PathBuf> {
        let Some(data_dir) = self.home.path.parent() else { return Vec::new() };
        let agents =
            MemberFolder::all(data_dir).filter(|home| home.role == Role::Agent && *home != self.home);
        let alone = data_dir.join("agent.sock");
        agents.map(|home| home.socket()).chain([alone]).filter(|socket| socket.exists()).collect()
    }

    /// Kills it as `kill -9` does, and waits for its end.
    ///
    /// # Errors
    /// The process was not killed: the system reports an error, or it had already ended.
    pub async fn kill(&self) -> Result<(), KillError> {
        self.signal()?;
        let begun = Instant::now();
        // The handle is bound to that process: a second signal cannot reach another process, and
        // fails after its end.
        while self.signal().is_ok() && begun.elapsed() < END_TIMEOUT {
            sleep(END_INTERVAL).await;
        }
        Ok(())
    }

    fn signal(&self) -> Result<(), KillError> {
        pidfd_send_signal(&self.process, Signal::KILL).map_err(|error| match error {
            Errno::SRCH => not_running(&self.home, "it has ended just now".into()),
            error => {
                KillError::System { doing: format!("kill the process {}", self.number), error: error.into() }
            }
        })
    }
}

fn find_folder(data_dir: &Path, name: &str) -> Result<MemberFolder, KillError> {
    let has_config = |home: &MemberFolder| home.config_file().exists();
    let mut there: Vec<MemberFolder> = MemberFolder::all(data_dir).filter(has_config).collect();
    match there.iter().position(|home| home.name == name) {
        Some(position) => Ok(there.swap_remove(position)),
        None => Err(KillError::Unknown {
            name: name.into(),
            folder: data_dir.into(),
            there: there.into_iter().map(|home| home.name).collect(),
        }),
    }
}

fn known(there: &[String]) -> String {
    match there.is_empty() {
        true => "`lockmesh dev --nodes` or `--servers` has not run there".into(),
        false => format!("there are {}", there.join(", ")),
    }
}

fn not_running(home: &MemberFolder, why: String) -> KillError {
    KillError::NotRunning { name: home.name.clone(), why, start: super::children::start_command(home) }
}

/// The command line of a process; empty if the process has ended.
fn arguments_of(number: i32) -> Vec<Vec<u8>> {
    let text = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
    let words = text.strip_suffix(b"\0").unwrap_or(&text).split(|byte| *byte == 0);
    words.filter(|_| !text.is_empty()).map(<[u8]>::to_vec).collect()
}

/// `true` if these are the arguments of this folder's process: `lockmesh`, its role and its
/// configuration, whose path may be relative to the working directory of the process.
fn is_started_for(arguments: &[Vec<u8>], home: &MemberFolder, own_folder: &Path) -> bool {
    let [_, role, rest @ ..] = arguments else { return false };
    if role != home.role.as_str().as_bytes() {
        return false;
    }
    let config = home.config_file();
    let is_it = |named: &[u8]| is_same_file(&own_folder.join(OsStr::from_bytes(named)), &config);
    let apart = rest.windows(2).filter(|pair| is_config_flag(&pair[0])).map(|pair| pair[1].as_slice());
    let joined = rest.iter().filter_map(|word| {
        let equals = word.iter().position(|byte| *byte == b'=')?;
        is_config_flag(&word[..equals]).then(|| &word[equals + 1..])
    });
    apart.chain(joined).any(is_it)
}

/// `-config` is how Consul's users write it.
fn is_config_flag(word: &[u8]) -> bool {
    matches!(word, b"--config" | b"-config")
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    real(one).zip(real(other)).is_some_and(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data folder in which an agent `n1` and a server `s2` have been.
    fn data_folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["n1/agent.toml", "s2/server.toml"] {
            let file = folder.path().join(name);
            fs::create_dir(file.parent().expect("it lies in a folder")).expect("it can be made");
            fs::write(file, "").expect("it can be written");
        }
        folder
    }

    fn refused(folder: &Path, name: &str) -> String {
        Running::find(folder, name).expect_err("it is refused").to_string()
    }

    #[test]
    fn process_identified_by_role_and_config() {
        let folder = data_folder();
        let home = find_folder(folder.path(), "n1").expect("it is there");
        let is_it = |line: &str| {
            let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            is_started_for(&words, &home, folder.path())
        };
        let config = home.config_file().display().to_string();
        for line in [
            format!("lockmesh agent --until-stdin-ends --config {config}"),
            format!("./lockmesh agent --config={config} --set http.tcp="),
            "lockmesh agent -config n1/agent.toml".into(),
            "lockmesh agent --config ./n1/../n1/agent.toml".into(),
        ] {
            assert!(is_it(&line), "{line}");
        }
        for line in [
            format!("lockmesh server --config {config}"),
            format!("less {config}"),
            format!("lockmesh agent {config}"),
            format!("lockmesh agent --config {config}.old"),
            "lockmesh agent --config s2/server.toml".into(),
            "lockmesh agent --config".into(),
            "lockmesh agent".into(),
            "lockmesh".into(),
        ] {
            assert!(!is_it(&line), "{line}");
        }
    }

    #[test]
    fn unknown_member_error_lists_members() {
        let folder = data_folder();
        for name in ["n2", "s1", "n17", "", "../n1", "web"] {
            let words = refused(folder.path(), name);
            assert!(words.ends_with("there are s2, n1"), "{words}");
        }
        let empty = tempfile::tempdir().expect("a temporary folder");
        assert!(refused(empty.path(), "n1").contains("has not run there"));
    }

    #[test]
    fn missing_or_dead_pid_rejected() {
        let folder = data_folder();
        let pid = folder.path().join("n1/pid");
        assert!(refused(folder.path(), "n1").starts_with("n1 does not run: there is no "));
        for text in ["", "x", "0", "-1", "99999999999"] {
            fs::write(&pid, text).expect("it can be written");
            assert!(refused(folder.path(), "n1").contains("holds no process number"), "{text:?}");
        }
        // The kernel's numbers end below.
        fs::write(&pid, "4194305\n").expect("it can be written");
        let words = refused(folder.path(), "n1");
        assert!(words.contains("has ended; to start it: lockmesh agent --config "), "{words}");
    }

    #[test]
    fn foreign_process_not_killed() {
        let folder = data_folder();
        fs::write(folder.path().join("n1/pid"), std::process::id().to_string()).expect("it can be written");
        let words = refused(folder.path(), "n1");
        assert!(words.contains("is not n1, and nothing was killed: it was started as"), "{words}");
    }

    #[test]
    fn other_agents_found_by_sockets() {
        let folder = data_folder();
        fs::create_dir(folder.path().join("n12")).expect("it can be made");
        for socket in ["n1/agent.sock", "n12/agent.sock", "agent.sock"] {
            fs::write(folder.path().join(socket), "").expect("it can be written");
        }
        let home = find_folder(folder.path(), "n1").expect("it is there");
        let process = fs::File::open(folder.path()).expect("it is there").into();
        let running = Running { home, number: 1, process };
        let others = ["n12/agent.sock", "agent.sock"].map(|socket| folder.path().join(socket));
        assert_eq!(running.other_sockets(), others);
    }
}
