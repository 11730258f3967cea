//! The threads that a command runs on, and the limits of its process.

use super::error::CliError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

/// A runtime with this number of threads. With one thread, a request wakes no other thread on its
/// way.
pub(super) fn runtime(threads: usize) -> Result<Runtime, CliError> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|error| CliError::failed(format!("cannot start the process's threads: {error}")))
}

/// Switches core dumps of this process off: they would contain keys, values and secrets. An
/// operator can switch them on again while it runs, with `prlimit --core`.
pub(super) fn forbid_core_dumps() {
    let maximum = getrlimit(Resource::Core).maximum;
    // A lower limit than the maximum is always allowed.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum });
}
