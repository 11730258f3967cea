//! Open readers of a process's checkpoints: for backups, and for servers that fetch a snapshot. In
//! the real process each has a thread; here each replies when its time has come.

use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use lockmesh_server::snapshot::CheckpointSource;
use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};

/// The open readers.
#[derive(Debug, Default)]
pub struct Readers {
    open: BTreeMap<u64, Open>,
    last_id: u64,
    /// The number of readers that could not be opened and were not reported yet.
    failed: usize,
}

struct Open {
    source: CheckpointSource,
    /// The time of the last request.
    asked: Time,
}

impl Debug for Open {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "asked at {}", self.asked.0)
    }
}

impl Readers {
    /// Opens a reader, and returns its number.
    pub fn begin(&mut self, now: Time, source: CheckpointSource) -> u64 {
        self.last_id += 1;
        self.open.insert(self.last_id, Open { source, asked: now });
        self.last_id
    }

    /// Notes that a reader could not be opened.
    pub fn failed(&mut self) {
        self.failed += 1;
    }

    /// Returns a reader's reply.
    pub fn answer(&mut self, now: Time, reader: u64, number: u32) -> Response {
        match self.open.get_mut(&reader) {
            Some(open) => {
                open.asked = now;
                open.source.answer(reader, number)
            }
            None => CheckpointSource::gone(),
        }
    }

    /// Closes readers without recent requests; returns the number of readers that were closed or
    /// never opened.
    pub fn close_silent(&mut self, now: Time) -> usize {
        let before = self.open.len();
        self.open.retain(|_, open| now.since(open.asked) <= open.source.timeout());
        before - self.open.len() + std::mem::take(&mut self.failed)
    }
}
