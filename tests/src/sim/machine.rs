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
    /// The number of its data folder: each has an instance ID of its own.
    pub folder: u64,
    /// Its disk.
    pub disk: Disk,
    /// The process, while one runs.
    pub process: Option<Process>,
    /// The number of processes so far.
    pub lives: u64,
    /// `true` if it will never run again because its disk is lost.
    pub gone: bool,
    /// `true` if its disk notes that its state is corrupt.
    pub found_corrupt: bool,
    /// An older copy of its disk.
    pub copy: Option<Box<Disk>>,
    /// `true` if its disk was set back to an older copy.
    pub set_back: bool,
    /// A snapshot that its process fetches.
    pub fetch: Option<Fetch>,
}

/// A snapshot transfer from another server.
#[derive(Debug)]
pub struct Fetch {
    /// The source.
    pub from: ServerId,
    /// The download logic.
    pub download: SnapshotDownload,
    /// The pending call.
    pub call: u64,
    /// `true` if the connection was lost after some part had arrived.
    pub was_interrupted: bool,
}

impl Machine {
    /// Returns a machine whose disk begins with a checkpoint.
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

    /// Returns `true` if it is no longer a server of the quorum: no process starts against the note
    /// on its disk.
    pub fn is_out(&self) -> bool {
        self.gone || self.disk.removed
    }

    /// Returns `true` if its process leads and serves. A process that knows of its own removal
    /// replies to no client, even if it learned of that before it learned of the new leader.
    pub fn serves(&self) -> bool {
        self.process
            .as_ref()
            .is_some_and(|process| process.core().replica().is_serving() && !process.is_removed())
    }
}
