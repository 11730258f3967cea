//! Keeps the history, and shows every fact to every invariant.

use super::history::History;
use super::invariant::{Fact, Invariant, Scene, all};
use super::stage::Stage;
use lockmesh_core::raft::log::{EntryKind, LogEntry, Membership};
use lockmesh_protocol::change::Change;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{Request, Response};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant's name.
    pub invariant: &'static str,
    /// A description of the violation.
    pub what: String,
}

/// The history and the violations.
#[derive(Debug)]
pub struct Judge {
    /// The total order of all writes.
    pub history: History,
    /// The violations.
    pub violations: Vec<Violation>,
    /// The times of clock jumps.
    pub jumps: Vec<Time>,
    /// The newest index in any reply: a fresh read that begins now must see it.
    pub bound: LogIndex,
    /// Servers whose disks received rows that no entry had made: their states are not checked.
    pub corrupted: BTreeSet<ServerId>,
    /// The applied index of the server that replied to an agent's call, until the agent receives
    /// the reply.
    pub as_of: BTreeMap<u64, LogIndex>,
    invariants: Vec<Box<dyn Invariant>>,
}

impl Judge {
    /// Returns a judge without history.
    pub fn new(start: LogIndex) -> Self {
        Self {
            history: History::new(start),
            violations: Vec::new(),
            jumps: Vec::new(),
            bound: start,
            corrupted: BTreeSet::new(),
            as_of: BTreeMap::new(),
            invariants: all(),
        }
    }

    /// Shows a fact to every invariant.
    pub fn see(&mut self, stage: &Stage, fact: &Fact<'_>) {
        if matches!(fact, Fact::Opened { server, .. } | Fact::Reached { server, .. } if self.corrupted.contains(server))
        {
            return;
        }
        let scene = Scene { now: stage.now, history: &self.history, plan: &stage.plan, jumps: &self.jumps };
        for invariant in &mut self.invariants {
            if let Err(what) = invariant.see(fact, &scene) {
                self.violations.push(Violation { invariant: invariant.name(), what });
            }
        }
        if let Fact::Given { given, applied, .. } = fact {
            let is_stale =
                matches!(given.asked.ask.request, Request::Read { consistency: Consistency::Stale, .. });
            match &given.response {
                Response::Applied(reply) => {
                    self.bound = self.bound.max(self.history.place_of_index(reply.index));
                }
                Response::Answer(_) if !is_stale => self.bound = self.bound.max(*applied),
                _ => {}
            }
        }
    }

    /// Records a violation that no invariant detects.
    pub fn object(&mut self, invariant: &'static str, what: String) {
        self.violations.push(Violation { invariant, what });
    }

    /// Notes entries that a server has applied, with the resulting changes; returns the number of
    /// entries that no server had applied before.
    pub fn applied(
        &mut self,
        stage: &Stage,
        server: ServerId,
        entries: &[LogEntry],
        changes: &[Change],
        (before, after): (&Membership, &Membership),
    ) -> u64 {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return 0 };
        let known = self.history.last();
        // If a turn changes the membership, only the entries before the first change have the old
        // voters.
        let is_change = |entry: &LogEntry| entry.kind != EntryKind::Normal;
        let first_change = entries.iter().position(is_change).unwrap_or(0);
        for (place, entry) in entries.iter().enumerate() {
            self.agree(stage, server, entry, if place < first_change { before } else { after });
        }
        if !self.violations.is_empty() {
            return 0;
        }
        let (from, to) = (LogIndex(first.index.0 - 1), last.index);
        self.see(stage, &Fact::Reached { server, from, to, changes });
        if !self.violations.is_empty() {
            if from >= known {
                self.see(stage, &Fact::Strange { changes });
            }
            return 0;
        }
        for index in known.0 + 1..=self.history.last().0 {
            let past = self.history.at(LogIndex(index)).expect("it was just applied").clone();
            self.see(stage, &Fact::Applied(&past));
        }
        self.history.last().0 - known.0
    }

    /// Checks that a committed entry never changes.
    fn agree(&mut self, stage: &Stage, server: ServerId, entry: &LogEntry, voters: &Membership) {
        if let Some(past) = self.history.at(entry.index) {
            if past.entry != *entry {
                let what = format!(
                    "{server} applied index {} of term {}, {} had applied it in term {}",
                    entry.index, entry.term, past.by, past.entry.term
                );
                self.object("raft", what);
            }
        } else if entry.index != self.history.last().next() {
            self.object("raft", format!("{server} applied {} before an earlier entry", entry.index));
        } else if let Err(what) = self.history.append(entry, stage.now, server, voters) {
            self.object("replicas", what);
        }
    }
}
