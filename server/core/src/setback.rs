//! Servers whose disks were set back: a data folder that was restored over itself has forgotten
//! votes and entries that others rely on, and consensus cannot bear that.
//!
//! Each server remembers how far every other one has certainly come, as told by that one's own
//! messages, all of which wait for the disk. Two servers that meet compare: whoever holds less than
//! the other remembers is refused, and is told to be silent. **Invariant:** a server that did not
//! lose anything is never refused: in a term it voted in it keeps its vote, and what it
//! acknowledged to a leader it keeps as long as the term lasts.
//!
//! What only the server itself and a dead one knew, nobody can see.

use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

/// How far a server has come. The pairs only grow as long as its disk keeps what it was given:
/// within a term a log loses nothing that was acknowledged to the term's leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogPosition {
    /// Its term.
    pub term: Term,
    /// The last index of its log.
    pub last_index: LogIndex,
}

impl Display for LogPosition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "index {} in term {}", self.last_index, self.term)
    }
}

/// How far each other server has certainly come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMemory(BTreeMap<ServerId, LogPosition>);

impl PeerMemory {
    /// How far a server has come, as far as it is known here.
    pub fn of(&self, server: ServerId) -> Option<LogPosition> {
        self.0.get(&server).copied()
    }

    /// Learns that a server has come so far.
    pub fn note(&mut self, server: ServerId, certain: LogPosition) {
        let known = self.0.entry(server).or_default();
        *known = certain.max(*known);
    }

    /// Forgets a server that belongs to the quorum no more.
    pub(crate) fn forget(&mut self, server: ServerId) {
        self.0.remove(&server);
    }
}

/// That a server holds less than it once acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetBack {
    /// The server.
    pub server: ServerId,
    /// How far it had come.
    pub known: LogPosition,
    /// Who knows it.
    pub by: ServerId,
    /// What it holds.
    pub holds: LogPosition,
}

impl SetBack {
    /// Compares what a server holds with what another one remembers of it.
    pub fn find(
        server: ServerId,
        holds: LogPosition,
        by: ServerId,
        known: Option<LogPosition>,
    ) -> Option<Self> {
        // Term before index: in a later term a leader may have taken entries back that were
        // acknowledged in an earlier one.
        known.filter(|known| holds < *known).map(|known| Self { server, known, by, holds })
    }
}

impl Display for SetBack {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { server, known, by, holds } = self;
        write!(
            f,
            "the disk of server {server} was set back: server {by} knows that it had come to {known}, but it holds \
             {holds}, and has forgotten what it voted and acknowledged since; it votes and answers no more. Stop it, \
             empty its data folder and start it: it joins as a new server"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{LogPosition, SetBack};
    use lockmesh_protocol::id::{LogIndex, ServerId, Term};

    #[test]
    fn less_is_found_by_term_first() {
        let at = |term, index| LogPosition { term: Term(term), last_index: LogIndex(index) };
        let is_found = |holds, known| SetBack::find(ServerId(1), holds, ServerId(2), Some(known)).is_some();
        assert!(is_found(at(5, 100), at(5, 101)), "an acknowledged entry is missing");
        assert!(is_found(at(5, 100), at(6, 0)), "a vote is forgotten");
        assert!(!is_found(at(6, 90), at(5, 101)), "a later leader may have taken entries back");
        assert!(!is_found(at(5, 101), at(5, 101)));
        assert_eq!(SetBack::find(ServerId(1), at(0, 0), ServerId(2), None), None);
    }
}
