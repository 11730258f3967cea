//! The store for tests and the simulator: on a disk with faults, and without threads.
//!
//! | file | is |
//! |---|---|
//! | `disk.rs` | a disk in memory that loses its power, its space, or its data |
//! | `manual.rs` | both files, written on the caller's thread |
//! | `memory.rs` | a backup of a state in memory |
//! | `threaded.rs` | checkpoints by hand of a store with threads |

mod disk;
mod manual;
mod memory;
mod threaded;

pub use disk::{Draw, Failure, FaultyDisk, Survival};
pub use manual::ManualStore;
pub use memory::backup_of;
