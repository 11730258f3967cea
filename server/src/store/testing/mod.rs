//! The store for tests and the simulator: on a disk that fails on purpose, and without threads.
//!
//! | file | is |
//! |---|---|
//! | `disk.rs` | a disk in memory that loses its power, its space, or what it was given |
//! | `manual.rs` | both files, written when whoever drives them says so |
//! | `memory.rs` | a backup of a state that is in memory |
//! | `threaded.rs` | checkpoints by hand of a store with threads |

mod disk;
mod manual;
mod memory;
mod threaded;

pub use disk::{Draw, Failure, FaultyDisk, Survival};
pub use manual::ManualStore;
pub use memory::backup_of;
