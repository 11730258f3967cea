//! The threads that a command runs on.

use super::error::CliError;
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
