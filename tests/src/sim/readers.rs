//! Open readers of a process's checkpoints: for backups, and for servers that fetch a snapshot. In
//! the real process each has a thread; here each replies when its time has come.

use lockmesh_core::frontend::Event;
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use lockmesh_server::snapshot::CheckpointSource;
use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};

/// The open readers.
#[derive(Debug, Default)]
pub struct Readers {
    open: BTreeMap<u64, Open>,
    /// What was not reported to the frontend yet.
    events: Vec<Event>,
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
    /// Opens the reader with this number.
    pub fn begin(&mut self, now: Time, number: u64, source: CheckpointSource) {
        self.open.insert(number, Open { source, asked: now });
    }

    /// Closes the reader with this number.
    pub fn close(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Notes that the reader with this number could not be opened.
    pub fn failed(&mut self, number: u64) {
        self.events.push(Event::ReaderClosed(number));
    }

    /// Returns a reader's reply.
    pub fn answer(&mut self, now: Time, reader: u64, number: u32) -> Response {
        let Some(open) = self.open.get_mut(&reader) else { return CheckpointSource::gone() };
        open.asked = now;
        let response = open.source.answer(reader, number);
        if open.source.is_finished() {
            self.events.push(Event::ReaderFinished(reader));
        }
        response
    }

    /// Closes readers without recent requests; returns what the frontend has to know.
    pub fn take_events(&mut self, now: Time) -> Vec<Event> {
        let is_silent = |open: &Open| now.since(open.asked) > open.source.timeout();
        let silent = self.open.iter().filter(|(_, open)| is_silent(open));
        self.events.extend(silent.map(|(number, _)| Event::ReaderClosed(*number)));
        self.open.retain(|_, open| !is_silent(open));
        std::mem::take(&mut self.events)
    }
}
