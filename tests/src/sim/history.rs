//! The total order of all writes: every log entry that any server has applied, and its effects.
//!
//! The simulation's own state applies each entry once, when the first server does. Every server
//! must then produce the same changes: a state is the sum of its changes.

use lockmesh_core::raft::log::{EntryKind, LogEntry, Membership};
use lockmesh_core::{Proposal, State, without_minority};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format;
use lockmesh_protocol::id::{LogIndex, RequestId, ServerId, WallTime};
use lockmesh_protocol::reply::Applied;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of entries between two kept states.
const STATES_EVERY: u64 = 256;

/// An applied entry.
#[derive(Clone, Debug)]
pub struct Past {
    /// The entry.
    pub entry: LogEntry,
    /// The proposal; `None` for an empty entry and for a membership change.
    pub proposal: Option<Proposal>,
    /// The index that the reply contains: after a restore these run ahead of the log's.
    pub index: LogIndex,
    /// The resulting changes.
    pub changes: Vec<Change>,
    /// The reply.
    pub reply: Option<Arc<Applied>>,
    /// The true time at which the first server applied it.
    pub at: Time,
    /// The first server that applied it.
    pub by: ServerId,
    /// The voters at its index.
    pub voters: Membership,
}

impl Past {
    /// Returns the leader's wall clock at the time of the proposal.
    pub fn at_wall(&self) -> WallTime {
        self.proposal.as_ref().map(|proposal| proposal.at).unwrap_or_default()
    }
}

/// All applied entries.
#[derive(Debug)]
pub struct History {
    /// The index before the first.
    start: LogIndex,
    past: Vec<Past>,
    state: State,
    kept: BTreeMap<LogIndex, State>,
    /// The log indexes of each request, by agent, generation and sequence.
    places: BTreeMap<(u32, u32, u64), Vec<LogIndex>>,
    /// The number of restored backups.
    restores: usize,
    /// The whole state is checked against its invariants after one in this many entries.
    pub check_every: u64,
}

impl History {
    /// Returns an empty history that begins behind an index.
    pub fn new(start: LogIndex) -> Self {
        Self {
            start,
            past: Vec::new(),
            state: State::default(),
            kept: BTreeMap::from([(start, State::default())]),
            places: BTreeMap::new(),
            restores: 0,
            check_every: 1,
        }
    }

    /// Returns the last index.
    pub fn last(&self) -> LogIndex {
        LogIndex(self.start.0 + self.past.len() as u64)
    }

    /// Returns the entry at an index.
    pub fn at(&self, index: LogIndex) -> Option<&Past> {
        self.past.get(index.0.checked_sub(self.start.0 + 1)? as usize)
    }

    /// Returns the entry whose reply contained an index.
    pub fn answered(&self, index: LogIndex) -> Option<&Past> {
        let place = self.past.binary_search_by_key(&index, |past| past.index).ok()?;
        self.past.get(place)
    }

    /// Returns the log index for an index that clients know.
    pub fn place_of_index(&self, index: LogIndex) -> LogIndex {
        LogIndex(self.start.0 + self.past.partition_point(|past| past.index <= index) as u64)
    }

    /// Returns the state behind the last index.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the number of restored backups.
    pub fn restores(&self) -> usize {
        self.restores
    }

    /// Returns the log indexes of a request; more than one if it was retried.
    pub fn places_of(&self, request: &RequestId) -> &[LogIndex] {
        let place = (request.agent.0, request.generation.0, request.sequence);
        self.places.get(&place).map_or(&[], Vec::as_slice)
    }

    /// Appends the next entry, with the voters at its index.
    ///
    /// # Errors
    /// A message if the entry cannot be decoded or breaks an invariant of the state. The history is
    /// unusable after an error: the state may be ahead of it.
    pub fn append(
        &mut self,
        entry: &LogEntry,
        at: Time,
        by: ServerId,
        voters: &Membership,
    ) -> Result<&Past, String> {
        let is_proposal = entry.kind == EntryKind::Normal && !entry.data.is_empty();
        let proposal = match is_proposal {
            true => {
                let proposal = format::decode::<Proposal>(&entry.data).map_err(|e| e.to_string())?;
                Some(without_minority(proposal, voters))
            }
            false => None,
        };
        let mut changes = Vec::new();
        let apply = |proposal| self.state.apply(entry.index, entry.term, proposal, &mut changes);
        let reply = proposal.as_ref().map(apply);
        if entry.index.0.is_multiple_of(self.check_every) {
            self.state.check().map_err(|broken| format!("at index {}: {broken}", entry.index))?;
        }
        if let Some(request) = proposal.as_ref().and_then(|proposal| proposal.request.as_ref()) {
            let place = (request.agent.0, request.generation.0, request.sequence);
            self.places.entry(place).or_default().push(entry.index);
        }
        self.restores += changes.iter().filter(|change| matches!(change, Change::Cleared)).count();
        let index = LogIndex(entry.index.0 + self.state.index_base());
        self.past.push(Past {
            entry: entry.clone(),
            proposal,
            index,
            changes,
            reply,
            at,
            by,
            voters: voters.clone(),
        });
        if entry.index.0.is_multiple_of(STATES_EVERY) {
            self.kept.insert(entry.index, self.state.clone());
        }
        Ok(self.past.last().expect("it was just pushed"))
    }

    /// Iterates over the changes of the entries behind `from` up to `to`.
    pub fn changes(&self, from: LogIndex, to: LogIndex) -> impl Iterator<Item = &Change> {
        let place = |index: LogIndex| (index.0.max(self.start.0) - self.start.0) as usize;
        self.past[place(from)..place(to)].iter().flat_map(|past| &past.changes)
    }

    /// Returns the state behind an index, or `None` if no server has applied that index.
    pub fn state_at(&self, index: LogIndex) -> Option<State> {
        if index > self.last() {
            return None;
        }
        if index < self.start {
            return Some(State::default());
        }
        if index == self.last() {
            return Some(self.state.clone());
        }
        let (kept, state) = self.kept.range(..=index).next_back()?;
        let mut state = state.clone();
        self.changes(*kept, index).for_each(|change| state.load(change.clone()));
        Some(state)
    }
}
