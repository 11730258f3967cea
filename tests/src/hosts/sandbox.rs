//! The sandbox that a run lives in: network, mount and process namespaces of its own.
//!
//! Two runs cannot meet, whatever they call their hosts. Nothing needs to be cleaned up either:
//! when a run ends in whatever way, by itself, by an error, by a signal or by `kill -9`, the kernel
//! ends every process that it started and takes away every namespace, link and mount that it made.
//! Its data lie in memory and go with it.
//!
//! **Invariant:** nothing in here changes the machine's own network.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Tells the program that it runs in its sandbox.
pub const INSIDE: &str = "--inside";

/// Where the run's data lie. `ip netns` keeps its list in this folder's parent.
const FOLDER: &str = "/run/lockmesh-hosts";

/// Runs this program again with these arguments and [`INSIDE`], in a sandbox.
///
/// # Errors
/// There is no sandbox to be had, in words that say what is missing. Nothing was run.
pub fn enter(arguments: &[OsString], environment: &[(&str, OsString)]) -> Result<ExitCode, String> {
    let status = command(arguments, environment)?.status();
    let status = status.map_err(|error| format!("cannot start setpriv: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The command that runs this program again with these arguments and [`INSIDE`], in a sandbox.
///
/// # Errors
/// As [`enter`].
pub fn command(arguments: &[OsString], environment: &[(&str, OsString)]) -> Result<Command, String> {
    let me = fs::metadata("/proc/self").map_err(|error| format!("cannot read /proc: {error}"))?;
    if me.uid() != 0 {
        return Err("making hosts out of network namespaces needs root: run this as root".into());
    }
    for tool in ["setpriv", "unshare", "ip"] {
        // Each of them knows `-V` or `--version`; only whether it can be started counts.
        let found = Command::new(tool).arg("-V").output();
        found.map_err(|error| {
            format!("cannot start {tool} ({error}): install the packages util-linux and iproute2")
        })?;
    }
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    // The first one has the kernel kill the second when we end, the second one its child.
    let mut sandbox = Command::new("setpriv");
    sandbox.args(["--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", "--pid", "--mount-proc"]);
    sandbox.args(["--mount", "--net"]).arg(program).arg(INSIDE).args(arguments);
    sandbox.envs(environment.iter().map(|(name, value)| (name, value)));
    Ok(sandbox)
}

/// Makes an empty folder for the run's data, once the program is inside.
pub fn prepare() -> PathBuf {
    let mounted = Command::new("mount").args(["-t", "tmpfs", "lockmesh-hosts", "/run"]).status();
    assert!(mounted.is_ok_and(|status| status.success()), "a sandbox has mounts of its own");
    fs::create_dir(FOLDER).expect("the file system is fresh");
    Path::new(FOLDER).to_path_buf()
}
