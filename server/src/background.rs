//! Background threads: writing checkpoints, and freeing a large number of rows.

/// The niceness of a background thread: about a quarter of a contended processor, and all of an
/// idle one.
const NICENESS: i32 = 5;

/// Lowers the priority of the calling thread.
pub(crate) fn yield_to_others() {
    // Linux has a niceness per thread. If the system rejects it, the thread keeps its priority.
    let _ = rustix::process::nice(NICENESS);
}
