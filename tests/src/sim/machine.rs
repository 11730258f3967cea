//! A server's machine: its disk, which outlives its processes, and the process, if one runs.

use super::disk::Disk;
use super::process::Process;
use super::stage::Stage;
use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_protocol::id::ServerId;
use lockmesh_server::snapshot::SnapshotDownload;

/// A machine.
#[derive(Debug)]
pub struct Machine {
    /// The server on it.
    pub id: ServerId,
    /// Its node's name.
    pub node: String,
    /// Which of its data folders: each has an instance id of its own.
    pub folder: u64,
    /// Its disk.
    pub disk: Disk,
    /// The process, while one runs.
    pub process: Option<Process>,
    /// How many processes there were.
    pub lives: u64,
    /// It will never run again: its disk is lost.
    pub gone: bool,
    /// Its disk says that its state is corrupt.
    pub found_corrupt: bool,
    /// An older copy of its disk.
    pub copy: Option<Box<Disk>>,
    /// Its disk was set back to an older copy of itself.
    pub set_back: bool,
    /// A snapshot that its process fetches.
    pub fetch: Option<Fetch>,
}

/// A snapshot on its way from another server.
#[derive(Debug)]
pub struct Fetch {
    /// From whom.
    pub from: ServerId,
    /// What decides.
    pub download: SnapshotDownload,
    /// The call whose answer is awaited.
    pub call: u64,
    /// Whether the connection was lost after some part had come.
    pub was_interrupted: bool,
}

impl Machine {
    /// A machine whose disk begins with a checkpoint.
    pub fn new(stage: &Stage, id: ServerId, node: String, folder: u64, mark: SnapshotMeta) -> Self {
        let disk = Disk::new(stage, id, mark);
        Self {
            id,
            node,
            folder,
            disk,
            process: None,
            lives: 0,
            gone: false,
            found_corrupt: false,
            copy: None,
            set_back: false,
            fetch: None,
        }
    }

    /// Whether it is no server of the quorum any more: what its disk says, no process starts
    /// against.
    pub fn is_out(&self) -> bool {
        self.gone || self.disk.removed
    }

    /// Whether a process runs that leads and serves. One that knows that it was removed answers
    /// nobody, though it may have learned that before it heard who leads now.
    pub fn serves(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.core().is_serving() && !process.is_removed())
    }
}
