//! A leader's proposals: gathered during a turn, then in the log until they are applied. All of a
//! turn are appended to the log as one batch and reach the disk in one write (group commit).
//!
//! **Invariant:** the origin of each proposal is notified once: when its entry is
//! applied, when another leader's entry has replaced it, or when this server stops to lead.

use crate::input::CallToken;
use crate::proposal::Proposal;
use crate::raft::log::LogEntry;
use crate::time::timers::Subject;
use bytes::Bytes;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::format;
use lockmesh_protocol::id::{AgentNumber, LogIndex, Term};
use lockmesh_protocol::rpc::MAX_FRAME_BYTES;
use lockmesh_protocol::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// The maximum size of a command: a log entry must fit into a frame to the other servers.
pub(crate) const MAX_PROPOSAL_BYTES: usize = MAX_FRAME_BYTES / 2;

/// Delay before the leader proposes an expiry or a verdict again after the proposal failed.
pub(crate) const PROPOSAL_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The origin of a proposal, which is notified of the outcome.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A client, and the time of its request.
    Client(CallToken, Time),
    Timer(Subject),
    /// A verdict on this agent.
    Verdict(AgentNumber),
    Internal,
}

/// A proposal in the log.
#[derive(Debug)]
pub(crate) struct PendingProposal {
    index: LogIndex,
    term: Term,
    /// Kept so that the leader need not decode its own encoding; `None` for a membership change.
    pub(crate) proposal: Option<Proposal>,
    pub(crate) origin: Origin,
}

/// The gathered proposals of a turn, ready for the log.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The data of one log entry each.
    pub(crate) data: Vec<Bytes>,
    pub(crate) proposals: Vec<(Proposal, Origin)>,
    /// The origins of proposals that are too long for the log, each with the length in bytes.
    pub(crate) too_long: Vec<(Origin, usize)>,
}

/// The proposals of this turn, and those in the log that are not applied.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    /// Proposals of this turn, not yet in the log.
    gathered: Vec<(Proposal, Origin)>,
    /// Proposals in the log, in order, until they are applied.
    pending: VecDeque<PendingProposal>,
}

impl Proposals {
    /// Returns the number of proposals that are not applied yet.
    pub(crate) fn len(&self) -> usize {
        self.pending.len() + self.gathered.len()
    }

    /// Returns the number of proposals in the log.
    pub(crate) fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Returns `true` if no proposal waits for the log.
    pub(crate) fn is_log_current(&self) -> bool {
        self.gathered.is_empty()
    }

    /// Returns `true` if a matching command was proposed and is not applied yet.
    pub(crate) fn is_on_its_way(&self, is_meant: impl Fn(&Command) -> bool) -> bool {
        let pending = self.pending.iter().filter_map(|pending| pending.proposal.as_ref());
        let gathered = self.gathered.iter().map(|(proposal, _)| proposal);
        pending.chain(gathered).any(|proposal| is_meant(&proposal.command))
    }

    /// Adds a proposal to the next batch.
    pub(crate) fn gather(&mut self, proposal: Proposal, origin: Origin) {
        self.gathered.push((proposal, origin));
    }

    /// Takes the gathered proposals and encodes them.
    pub(crate) fn take_batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        for (proposal, origin) in std::mem::take(&mut self.gathered) {
            let data = format::encode(&proposal);
            // In the log it would block every follower forever: no frame could carry it.
            if data.len() > MAX_PROPOSAL_BYTES {
                batch.too_long.push((origin, data.len()));
            } else {
                batch.data.push(Bytes::from(data));
                batch.proposals.push((proposal, origin));
            }
        }
        batch
    }

    /// Takes the origins of the gathered proposals, which are not in the log and are certainly not
    /// done.
    pub(crate) fn take_gathered(&mut self) -> impl Iterator<Item = Origin> + use<> {
        std::mem::take(&mut self.gathered).into_iter().map(|(_, origin)| origin)
    }

    /// Records that a batch was appended to the log from this index on.
    pub(crate) fn appended(&mut self, term: Term, first: LogIndex, proposals: Vec<(Proposal, Origin)>) {
        // The batch has consecutive indexes from here, in its own order. With the term they
        // identify these entries when they are applied.
        self.pending.extend((first.0..).zip(proposals).map(|(index, (proposal, origin))| PendingProposal {
            index: LogIndex(index),
            term,
            proposal: Some(proposal),
            origin,
        }));
    }

    /// Records a membership change that was appended to the log.
    pub(crate) fn appended_membership(&mut self, term: Term, index: LogIndex, origin: Origin) {
        self.pending.push_back(PendingProposal { index, term, proposal: None, origin });
    }

    /// Takes the pending proposal of an applied entry, and the origins of those that entries of
    /// another leader have replaced.
    pub(crate) fn applied(&mut self, entry: &LogEntry) -> (Option<PendingProposal>, Vec<Origin>) {
        // In log order: an earlier proposal in the queue was replaced by entries of another leader.
        let mut replaced = Vec::new();
        while self.pending.front().is_some_and(|pending| pending.index <= entry.index) {
            let pending = self.pending.pop_front().expect("the front exists");
            if (pending.index, pending.term) == (entry.index, entry.term) {
                return (Some(pending), replaced);
            }
            replaced.push(pending.origin);
        }
        (None, replaced)
    }

    /// Takes the origins of the pending proposals up to an index, whose outcome is unknown.
    pub(crate) fn take_pending(&mut self, up_to: LogIndex) -> Vec<Origin> {
        let count = self.pending.partition_point(|pending| pending.index <= up_to);
        self.pending.drain(..count).map(|pending| pending.origin).collect()
    }

    /// Takes the clients that have waited at least this long for a pending proposal. Its outcome is
    /// not reported to them.
    pub(crate) fn take_overdue(&mut self, now: Time, timeout: Duration) -> Vec<CallToken> {
        let mut overdue = Vec::new();
        for pending in &mut self.pending {
            let Origin::Client(token, came) = pending.origin else { continue };
            // In arrival order: later ones have waited less.
            if now.since(came) < timeout {
                break;
            }
            overdue.push(token);
            pending.origin = Origin::Internal;
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::log::EntryKind;
    use lockmesh_protocol::id::WallTime;

    const TERM: Term = Term(3);

    fn proposal() -> Proposal {
        Proposal::new(None, WallTime(0), Command::CorruptionCheck)
    }

    fn client(number: u64) -> Origin {
        Origin::Client(CallToken(number), Time(number))
    }

    /// Two proposals of clients 1 and 2, at indexes 5 and 6.
    fn two_pending() -> Proposals {
        let mut proposals = Proposals::default();
        [1, 2].into_iter().for_each(|number| proposals.gather(proposal(), client(number)));
        let batch = proposals.take_batch();
        assert_eq!((batch.data.len(), batch.too_long.len()), (2, 0));
        proposals.appended(TERM, LogIndex(5), batch.proposals);
        proposals
    }

    fn entry(index: u64, term: Term) -> LogEntry {
        LogEntry {
            index: LogIndex(index),
            term,
            kind: EntryKind::Normal,
            data: Bytes::new(),
            context: Bytes::new(),
        }
    }

    fn tokens(origins: Vec<Origin>) -> Vec<u64> {
        let token = |origin| match origin {
            Origin::Client(CallToken(number), _) => number,
            other => panic!("not a client: {other:?}"),
        };
        origins.into_iter().map(token).collect()
    }

    #[test]
    fn applied_entry_settles_and_replaces_proposals() {
        let mut proposals = two_pending();
        let (settled, replaced) = proposals.applied(&entry(5, TERM));
        assert!(settled.is_some_and(|settled| settled.index == LogIndex(5)) && replaced.is_empty());
        let (settled, replaced) = proposals.applied(&entry(6, Term(4)));
        assert!(settled.is_none(), "another leader's entry has its index");
        assert_eq!((tokens(replaced), proposals.len()), (vec![2], 0));
        let (settled, replaced) = two_pending().applied(&entry(6, TERM));
        assert!(settled.is_some());
        assert_eq!(tokens(replaced), [1]);
    }

    #[test]
    fn command_pending_until_entry_applied() {
        let is_check = |command: &Command| *command == Command::CorruptionCheck;
        let mut proposals = two_pending();
        assert!(proposals.is_on_its_way(is_check) && proposals.is_log_current());
        assert_eq!(tokens(proposals.take_pending(LogIndex(5))), [1]);
        assert!(proposals.is_on_its_way(is_check));
        proposals.applied(&entry(6, TERM));
        assert!(!proposals.is_on_its_way(is_check));
        proposals.gather(proposal(), Origin::Internal);
        assert!(proposals.is_on_its_way(is_check) && !proposals.is_log_current());
        assert_eq!(proposals.take_gathered().count(), 1);
        assert!(!proposals.is_on_its_way(is_check));
    }

    #[test]
    fn overdue_clients_answered_once() {
        let mut proposals = two_pending();
        let timeout = Duration::from_micros(10);
        assert_eq!(proposals.take_overdue(Time(11), timeout), [CallToken(1)]);
        assert_eq!(proposals.take_overdue(Time(11), timeout), []);
        let (settled, _) = proposals.applied(&entry(5, TERM));
        assert!(settled.is_some_and(|settled| matches!(settled.origin, Origin::Internal)));
    }

    #[test]
    fn oversized_proposal_never_enters_log() {
        let name = "x".repeat(MAX_PROPOSAL_BYTES);
        let command =
            Command::Bootstrap { cluster_id: name, servers: Vec::new(), lease_key: Default::default() };
        let mut proposals = Proposals::default();
        proposals.gather(Proposal { command, ..proposal() }, client(1));
        proposals.gather(proposal(), client(2));
        let batch = proposals.take_batch();
        assert_eq!((batch.data.len(), batch.proposals.len(), batch.too_long.len()), (1, 1, 1));
        assert!(batch.too_long[0].1 > MAX_PROPOSAL_BYTES);
    }
}
