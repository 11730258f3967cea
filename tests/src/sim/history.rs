//! The one order of all writes: every log entry that any server has applied, and what it must bring
//! about.
//!
//! A state of the simulation's own applies each entry once, when the first server does. Every
//! server must then come to the same changes: a state is the sum of its changes.

use lockmesh_core::raft::log::{EntryKind, LogEntry, Membership};
use lockmesh_core::{Proposal, State, without_minority};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::format;
use lockmesh_protocol::id::{LogIndex, RequestId, ServerId, WallTime};
use lockmesh_protocol::reply::Applied;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// So many entries lie between two states that are kept.
const STATES_EVERY: u64 = 256;

/// An entry that was applied.
#[derive(Clone, Debug)]
pub struct Past {
    /// The entry.
    pub entry: LogEntry,
    /// What it proposed; none for an empty one and for a change of membership.
    pub proposal: Option<Proposal>,
    /// The index that its answer gives: a restore lets these jump ahead of the log's.
    pub index: LogIndex,
    /// What it brought about.
    pub changes: Vec<Change>,
    /// What it answered.
    pub reply: Option<Arc<Applied>>,
    /// When the first server applied it, in true time.
    pub at: Time,
    /// That server.
    pub by: ServerId,
    /// Who voted at its index.
    pub voters: Membership,
}

impl Past {
    /// The leader's wall clock when it was proposed.
    pub fn at_wall(&self) -> WallTime {
        self.proposal.as_ref().map(|proposal| proposal.at).unwrap_or_default()
    }
}

/// All of them.
#[derive(Debug)]
pub struct History {
    /// The index before the first.
    start: LogIndex,
    past: Vec<Past>,
    state: State,
    kept: BTreeMap<LogIndex, State>,
    /// The places of each request, by agent, generation and sequence.
    places: BTreeMap<(u32, u32, u64), Vec<LogIndex>>,
    /// How often a backup took the place of everything.
    restores: usize,
    /// After one in so many entries the whole state is held against its invariants.
    pub check_every: u64,
}

impl History {
    /// A history that begins behind an index, with nothing.
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

    /// The last index.
    pub fn last(&self) -> LogIndex {
        LogIndex(self.start.0 + self.past.len() as u64)
    }

    /// What happened at an index.
    pub fn at(&self, index: LogIndex) -> Option<&Past> {
        self.past.get(index.0.checked_sub(self.start.0 + 1)? as usize)
    }

    /// What was answered with an index.
    pub fn answered(&self, index: LogIndex) -> Option<&Past> {
        let place = self.past.binary_search_by_key(&index, |past| past.index).ok()?;
        self.past.get(place)
    }

    /// The place in the log that an index stands for which clients know.
    pub fn place_of_index(&self, index: LogIndex) -> LogIndex {
        LogIndex(self.start.0 + self.past.partition_point(|past| past.index <= index) as u64)
    }

    /// The state behind the last index.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// How often a backup took the place of everything.
    pub fn restores(&self) -> usize {
        self.restores
    }

    /// Where a request stands in the log; more than once where it was retried.
    pub fn places_of(&self, request: &RequestId) -> &[LogIndex] {
        let place = (request.agent.0, request.generation.0, request.sequence);
        self.places.get(&place).map_or(&[], Vec::as_slice)
    }

    /// The next entry, and who voted at its index.
    ///
    /// # Errors
    /// The entry cannot be read, or it breaks an invariant of the state, in words. The history ends
    /// with that: the state may be ahead of it.
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
        Ok(self.past.last().expect("it was just put there"))
    }

    /// The changes of the entries behind `from` up to `to`.
    pub fn changes(&self, from: LogIndex, to: LogIndex) -> impl Iterator<Item = &Change> {
        let place = |index: LogIndex| (index.0.max(self.start.0) - self.start.0) as usize;
        self.past[place(from)..place(to)].iter().flat_map(|past| &past.changes)
    }

    /// The state behind an index; none where no server has come so far.
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
