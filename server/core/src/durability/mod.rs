//! The disk: the order of its writes, the rows of its checkpoints and their checksum, and disks
//! that stall, reject writes or were set back.

pub mod checksum;
pub(crate) mod disk_watch;
pub(crate) mod disks;
pub mod setback;
pub mod unwritten;
pub mod write_queue;
