//! Threads whose work can wait: writing checkpoints, and freeing very many rows.

/// How much nicer such a thread is: it gets about a quarter of a processor that others want too,
/// and all of an idle one.
const NICENESS: i32 = 5;

/// The calling thread lets others go first from now on.
pub(crate) fn yield_to_others() {
    // Linux has a niceness for each thread. A system that refuses it leaves the thread as it was.
    let _ = rustix::process::nice(NICENESS);
}
