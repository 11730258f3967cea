//! The sandbox of a run: its own network, mount and process namespaces.
//!
//! Two runs are isolated, even with the same host names. No clean-up is needed either. When a run
//! ends, normally, by an error, by a signal or by `kill -9`, the kernel kills all of its processes
//! and removes its namespaces, links and mounts. The data are in memory and disappear too.
//!
//! **Invariant:** nothing in this module changes the machine's own network.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The option that marks a program inside its sandbox.
pub const INSIDE: &str = "--inside";

/// The folder of the run's data. `ip netns` keeps its list in the parent folder.
const FOLDER: &str = "/run/lockmesh-hosts";

/// Runs this program again with these arguments and [`INSIDE`], in a sandbox.
///
/// # Errors
/// No sandbox can be created; the message names the missing tool or permission. Nothing was run.
pub fn enter(arguments: &[OsString], environment: &[(&str, OsString)]) -> Result<ExitCode, String> {
    let status = command(arguments, environment)?.status();
    let status = status.map_err(|error| format!("cannot start setpriv: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Returns the command that runs this program again with these arguments and [`INSIDE`], in a
/// sandbox.
///
/// # Errors
/// As for [`enter`].
pub fn command(arguments: &[OsString], environment: &[(&str, OsString)]) -> Result<Command, String> {
    let me = fs::metadata("/proc/self").map_err(|error| format!("cannot read /proc: {error}"))?;
    if me.uid() != 0 {
        return Err("network namespaces need root: run this as root".into());
    }
    for tool in ["setpriv", "unshare", "ip"] {
        // Each tool accepts `-V` or `--version`; the check only needs it to start.
        let found = Command::new(tool).arg("-V").output();
        found.map_err(|error| {
            format!("cannot start {tool} ({error}): install the packages util-linux and iproute2")
        })?;
    }
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    // The first process has the kernel kill the second when this program ends, and the second its
    // child.
    let mut sandbox = Command::new("setpriv");
    sandbox.args(["--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", "--pid", "--mount-proc"]);
    sandbox.args(["--mount", "--net"]).arg(program).arg(INSIDE).args(arguments);
    sandbox.envs(environment.iter().map(|(name, value)| (name, value)));
    Ok(sandbox)
}

/// Creates an empty folder for the run's data; called inside the sandbox.
pub fn prepare() -> PathBuf {
    let mounted = Command::new("mount").args(["-t", "tmpfs", "lockmesh-hosts", "/run"]).status();
    assert!(mounted.is_ok_and(|status| status.success()), "a sandbox has mounts of its own");
    fs::create_dir(FOLDER).expect("the file system is fresh");
    Path::new(FOLDER).to_path_buf()
}

/// Copies the logs out of the sandbox, into a new folder.
pub fn keep(logs: &Path) -> PathBuf {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/hosts");
    fs::create_dir_all(&home).expect("the folder can be made");
    let kept = tempfile::Builder::new().prefix("run-").tempdir_in(home).expect("it can be written to").keep();
    for file in fs::read_dir(logs).expect("it was made").flatten() {
        fs::copy(file.path(), kept.join(file.file_name())).expect("it can be written to");
    }
    kept
}

/// Returns the absolute path of an existing program.
///
/// # Errors
/// There is no such file.
pub fn program(word: &str) -> Result<PathBuf, String> {
    Path::new(word).canonicalize().map_err(|error| format!("cannot find the program {word}: {error}"))
}
