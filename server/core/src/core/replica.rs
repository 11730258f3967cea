//! A server's copy of the replicated state: the state, the log that changes it, this server's role,
//! and what waits for either.

use super::CoreConfig;
use super::role::LeaderLog;
use crate::autopilot::Servers;
use crate::cluster::{self, ClusterView, known_leader};
use crate::corruption::CorruptionChecks;
use crate::durability::disk_watch::DiskWatch;
use crate::durability::setback::SetBack;
#[cfg(feature = "fault-injection")]
use crate::fault_injection::Rule;
use crate::input::{CallToken, Input};
use crate::outbox::{Outbox, not_leader};
use crate::proposal::Proposal;
use crate::proposals::{Origin, Proposals};
use crate::raft::Progress;
use crate::raft::engine::{Effects, Engine, MemberChange};
use crate::raft::log::{
    HardState, LogPosition, LogStatus, Membership, OwnMemory, PeerMemory, Recovered, SnapshotMeta,
};
use crate::read_index::{ReadIndex, Reader};
use crate::state::State;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, ServerId, Term, WallTime};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;

/// A server's copy of the replicated state.
#[derive(Debug)]
pub struct Replica {
    pub(super) config: CoreConfig,
    pub(super) engine: Engine,
    pub(super) state: State,
    pub(super) own: OwnMemory,
    /// Set when this server holds less than it acknowledged: it then sends nothing.
    pub(super) set_back: Option<SetBack>,
    pub(super) read_index: ReadIndex,
    pub(super) proposals: Proposals,
    pub(super) applied: (LogIndex, Term),
    pub(super) membership_index: LogIndex,
    /// The term in which this server leads and serves.
    pub(super) serving: Option<Term>,
    pub(super) wall: WallTime,
    leader_log: LeaderLog,
}

/// What other values know about this server.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnCondition {
    /// Set if its state is known to be corrupt.
    pub(super) is_corrupt: bool,
    /// Set if it may have been paused and its deadlines may have to be extended.
    pub(super) is_late: bool,
}

impl Replica {
    pub(super) fn new(config: CoreConfig, recovered: Recovered) -> Self {
        let Recovered { hard_state, snapshot, entries, base, state, own } = recovered;
        let timing = (config.seed, config.election);
        let mut engine = Engine::new(config.id, hard_state, &snapshot, base, entries, timing);
        // No other server can win, so there is no election timeout to wait for.
        if engine.is_alone() {
            engine.campaign();
        }
        Self {
            config,
            engine,
            state,
            own,
            set_back: None,
            read_index: ReadIndex::default(),
            proposals: Proposals::default(),
            applied: (snapshot.index, snapshot.term),
            membership_index: snapshot.index,
            serving: None,
            wall: WallTime::default(),
            leader_log: LeaderLog::default(),
        }
    }

    /// Breaks a rule on purpose, for tests that must detect it.
    #[cfg(feature = "fault-injection")]
    pub(super) fn break_rule(&mut self, rule: Rule) {
        self.engine.break_rule(rule);
        self.state.fault_point = self.engine.fault_point.clone();
    }

    /// Returns the cluster as this server knows it.
    pub(super) fn view(&self, OwnCondition { is_corrupt, is_late }: OwnCondition) -> ClusterView<'_> {
        ClusterView {
            id: self.config.id,
            term: self.engine.term(),
            leader: self.engine.leader(),
            serving: self.serving,
            membership: self.engine.membership(),
            state: &self.state,
            applied: self.applied,
            founders: &self.config.cluster_start.servers,
            readers: &self.read_index,
            proposals: &self.proposals,
            is_set_back: self.set_back.is_some(),
            is_corrupt,
            is_late,
        }
    }

    /// Returns the servers as this server knows them.
    pub(super) fn servers<'a>(
        &'a self,
        own: OwnCondition,
        corruption: &'a CorruptionChecks,
        disk: &'a DiskWatch,
    ) -> Servers<'a> {
        Servers {
            cluster: self.view(own),
            replication: self.engine.replication(),
            corruption,
            disk,
            election: self.config.election,
        }
    }

    /// Returns the replicated state as applied by this server.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns `true` if the outcome of a queue position can be reported at once: this server leads
    /// and has applied that index, so no other leader can undo it.
    pub fn knows_queue_position(&self, queue_position: LogIndex) -> bool {
        self.is_serving() && queue_position.0 <= self.applied.0.0 + self.state.index_base()
    }

    /// Returns `true` if this server leads and serves.
    pub fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// Returns the leader known to this server; itself only once it serves.
    pub fn leader(&self) -> Option<ServerId> {
        let (own, leader) = (self.config.id, self.engine.leader());
        known_leader(own, leader, self.is_serving(), self.set_back.is_some())
    }

    /// Returns the index of the last applied entry.
    pub fn applied_index(&self) -> LogIndex {
        self.applied.0
    }

    /// Returns the metadata of a snapshot of the current state.
    pub fn snapshot_meta(&self) -> SnapshotMeta {
        let (index, term) = self.applied;
        SnapshotMeta { index, term, membership: self.engine.membership().clone() }
    }

    /// Returns the hard state that must be durable before a snapshot of the current state.
    pub fn hard_state(&self) -> HardState {
        self.engine.hard_state()
    }

    /// Returns the voters and learners.
    pub fn membership(&self) -> &Membership {
        self.engine.membership()
    }

    /// Returns the status of this server's log for operators.
    pub fn log_status(&self) -> LogStatus {
        LogStatus {
            term: self.engine.term(),
            first_index: self.engine.first_index(),
            last_index: self.engine.last_index(),
            commit_index: self.engine.commit_index(),
            applied_index: self.applied.0,
            membership_index: self.membership_index,
            log_bytes: self.engine.log_bytes(),
            pending_proposals: self.proposals.pending_len(),
        }
    }

    /// Returns this server's log position: never less than it has acknowledged.
    pub fn log_position(&self) -> LogPosition {
        LogPosition { term: self.engine.term(), last_index: self.engine.last_index() }
    }

    /// Returns the log positions that the other servers have certainly reached.
    pub fn peer_memory(&self) -> &PeerMemory {
        &self.own.peers
    }

    /// Returns this server's own memory, which is part of each of its checkpoints.
    pub fn own_memory(&self) -> &OwnMemory {
        &self.own
    }

    /// Returns the set-back of this server's disk, if any: the server must then send nothing.
    pub fn set_back(&self) -> Option<&SetBack> {
        self.set_back.as_ref()
    }

    /// Returns the replication progress of another server, if this server leads.
    pub fn progress(&self, server: ServerId) -> Option<Progress> {
        self.engine.progress(server)
    }

    /// Returns a server's node name for logs.
    pub(crate) fn node_of(&self, id: ServerId) -> &str {
        cluster::node_of(&self.state, &self.config.cluster_start.servers, id)
    }

    /// Logs the leader if it has changed.
    pub(super) fn log_leader(&mut self) {
        let leader = self.engine.leader();
        let node = |id| cluster::node_of(&self.state, &self.config.cluster_start.servers, id).to_owned();
        self.leader_log.note(self.config.id, leader, self.engine.term(), node);
    }

    /// Begins a read round if readers wait for one.
    pub(super) fn begin_reads(&mut self, now: Time) {
        // The engine drops rounds of a leader whose term has no commit yet (thesis, 6.4), and a
        // lost round is retried only after its timeout.
        let can_begin = if self.engine.is_leader() {
            self.engine.leads_its_term()
        } else {
            self.engine.leader().is_some()
        };
        if can_begin && let Some(round) = self.read_index.begin(now) {
            self.engine.begin_read(round);
        }
    }

    /// Repeats late rounds, and returns the readers that would wait too long.
    pub(super) fn retry_reads(&mut self, now: Time) -> Vec<Reader> {
        self.read_index.retry(now);
        // These readers would wait for an election; another server may know a leader already.
        match self.engine.leader() {
            None => self.read_index.drain(),
            Some(_) if !self.engine.is_leader() => self.read_index.overdue(now),
            Some(_) => Vec::new(),
        }
    }

    /// Returns the indexes up to which the log may be compacted: while no server fetches a
    /// snapshot, and while one does.
    pub(super) fn compactable(&self) -> (LogIndex, LogIndex) {
        // A follower keeps less: its log is needed only if it becomes leader.
        let keep = self.config.log_keep_bytes / if self.engine.is_leader() { 1 } else { 4 };
        let keep_fetching = keep.max(self.config.log_keep_fetching_bytes);
        (self.engine.index_before_last(keep), self.engine.index_before_last(keep_fetching))
    }

    /// Returns the reason why the engine dropped a batch. Only one of the two passes by waiting
    /// here.
    pub(super) fn why_batch_dropped(&self) -> Unavailable {
        if self.engine.is_leader() && !self.engine.is_transferring() {
            Unavailable::Overloaded("too many bytes wait for their commit".into())
        } else {
            not_leader()
        }
    }

    /// Returns a command of the leader's own as a proposal.
    pub(super) fn own(&self, command: Command) -> Proposal {
        Proposal::new(None, self.wall, command)
    }

    /// Proposes a command of the leader's own, with no caller to notify.
    pub(super) fn gather_own(&mut self, command: Command) {
        self.proposals.gather(self.own(command), Origin::Internal);
    }

    /// Proposes a change of the membership.
    pub(super) fn propose_membership(
        &mut self,
        now: Time,
        change: MemberChange,
        caller: Option<CallToken>,
        outbox: &mut Outbox,
    ) {
        match (self.engine.propose_membership(change), caller) {
            (Ok(index), caller) => {
                let origin = caller.map_or(Origin::Internal, |token| Origin::Client(token, now));
                self.proposals.appended_membership(self.engine.term(), index, origin);
            }
            (Err(_), Some(token)) => outbox.fail(token, not_leader()),
            (Err(_), None) => {}
        }
    }

    /// Handles a durable write.
    pub(super) fn persisted(&mut self, write: u64, outbox: &mut Outbox) {
        let mut effects = Effects::default();
        self.engine.persisted(write, &mut effects);
        outbox.shell.messages.append(&mut effects.messages);
    }

    /// Handles an input after a set-back: records completed writes and rejects requests.
    pub(super) fn handle_set_back(&mut self, input: Input, outbox: &mut Outbox) {
        match input {
            // The engine must know its writes; the messages that waited for them are never sent.
            Input::Persisted(write) => self.engine.persisted(write, &mut Effects::default()),
            Input::CheckpointDurable(mark) => self.engine.checkpoint_durable(mark),
            Input::Read(token, _) => outbox.refused_reads.push((token, not_leader())),
            input => input.caller().into_iter().for_each(|token| outbox.fail(token, not_leader())),
        }
    }
}
