//! Servers whose disks were set back: a restored data folder lacks votes and entries that others
//! rely on, which consensus cannot tolerate.
//!
//! Each server remembers the position that every other one has certainly reached, from its
//! messages, all of which wait for the disk. When two servers connect they compare: one that holds
//! less than the other remembers is rejected and must send nothing. **Invariant:** a server that
//! lost nothing is never rejected. It keeps its vote in each term, and keeps entries that it
//! acknowledged to a leader for as long as the term lasts.
//!
//! Loss of data that only the server itself and a dead one knew cannot be detected.

use crate::raft::log::LogPosition;
use crate::raft::message::{MessageKind, PeerMessage};
use lockmesh_protocol::id::ServerId;
use std::fmt::{self, Display, Formatter};

/// Evidence that a server holds less than it once acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetBack {
    /// The server.
    pub server: ServerId,
    /// The position that it had reached.
    pub known: LogPosition,
    /// The server that remembers it.
    pub by: ServerId,
    /// The position that it holds now.
    pub holds: LogPosition,
}

impl SetBack {
    /// Returns the log position that a heartbeat proves its receiver has acknowledged, if the
    /// receiver holds less. The engine must never receive such a heartbeat.
    pub(crate) fn proven_by(message: &PeerMessage, holds: LogPosition) -> Option<LogPosition> {
        let known = LogPosition { term: message.term, last_index: message.commit };
        // A heartbeat's commit never exceeds the index that the receiver has acknowledged to this
        // leader, so the receiver holds that index or has lost it. An older leader is ignored:
        // entries that were acknowledged to it may have been replaced since.
        let is_beyond = message.kind == MessageKind::Heartbeat
            && message.term >= holds.term
            && message.commit > holds.last_index;
        is_beyond.then_some(known)
    }

    /// Compares a server's position with another server's memory of it.
    pub fn find(
        server: ServerId,
        holds: LogPosition,
        by: ServerId,
        known: Option<LogPosition>,
    ) -> Option<Self> {
        // Term before index: in a later term a leader may have replaced entries that were
        // acknowledged earlier.
        known.filter(|known| holds < *known).map(|known| Self { server, known, by, holds })
    }
}

impl Display for SetBack {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { server, known, by, holds } = self;
        write!(
            f,
            "the disk of server {server} was set back: server {by} remembers that it had reached {known}, but it holds \
             {holds}, and has lost later votes and acknowledgements; it votes and answers no more. Stop it, \
             empty its data folder and start it: it joins as a new server"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{LogPosition, SetBack};
    use lockmesh_protocol::id::{LogIndex, ServerId, Term};

    #[test]
    fn regression_compares_term_before_index() {
        let at = |term, index| LogPosition { term: Term(term), last_index: LogIndex(index) };
        let is_found = |holds, known| SetBack::find(ServerId(1), holds, ServerId(2), Some(known)).is_some();
        assert!(is_found(at(5, 100), at(5, 101)), "an acknowledged entry is missing");
        assert!(is_found(at(5, 100), at(6, 0)), "a vote is lost");
        assert!(!is_found(at(6, 90), at(5, 101)), "a later leader may have replaced entries");
        assert!(!is_found(at(5, 101), at(5, 101)));
        assert_eq!(SetBack::find(ServerId(1), at(0, 0), ServerId(2), None), None);
    }
}
