//! Leader election, log replication and changes of the membership (joint consensus), by the engine
//! `raft`, which only this file names. It drives the engine until no work is left.
//!
//! The engine is pure but strict. This file keeps the following rules; each is a line of code
//! below:
//! - Between a `ready()` and its `advance_append_async()` nothing else is called.
//! - Entries and hard state are visible in [`MemoryLog`] before the engine continues.
//! - A leader's messages leave at once, but never before its (term, vote) is durable.
//! - Messages that depend on a write wait until the engine knows that the write is durable.
//! - A hard state that only moved its commit index needs no write of its own; its messages still
//!   wait for all writes queued before.
//! - Election timeouts are drawn from our own seed, so that the same inputs give the same run.
//! - A single voter that is not the leader does not tick before its log is durable.
//! - From a snapshot's installation in memory until it is durable and reported as applied, the
//!   engine gets no tick.
//! - The engine does not join entries to a message of the same turn (`batch_append`): it would join
//!   them to one without entries that ends elsewhere, and the follower would acknowledge entries
//!   that it does not have.
//! - Every membership change is a joint one; the leader pings at once, so that all servers learn of
//!   its end.
//!
//! A panic of the engine means that memory can no longer be trusted, so it is never caught.

use crate::fault_injection::{FaultPoint, Rule};
use crate::raft::ElectionTimeout;
use crate::raft::log::{EntryKind, HardState, LogEntry, LogWrite, Membership, Recovered, SnapshotMeta};
use crate::raft::memory_log::MemoryLog;
use crate::raft::message::{MessageKind, PeerMessage};
use bytes::Bytes;
use lockmesh_protocol::id::{LogIndex, ServerId, Term};
use lockmesh_protocol::random::Random;
use raft::eraftpb;
use raft::{GetEntriesContext, RawNode, ReadOnlyOption, StateRole, Storage, StorageError};
use std::collections::{BTreeMap, VecDeque};

/// The maximum number of unacknowledged messages per follower.
const MAX_MESSAGES_ON_THE_WAY: usize = 256;
/// The maximum size of the entries in one message between servers, in bytes.
const MAX_MESSAGE_BYTES: u64 = 1 << 20;
/// The maximum size of uncommitted entries, in bytes.
const MAX_UNCOMMITTED_BYTES: u64 = 64 << 20;
/// The maximum size of the committed entries applied per turn, in bytes.
const MAX_COMMITTED_BYTES: u64 = 16 << 20;

/// The effects that the engine requests in a turn.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) writes: Vec<LogWrite>,
    pub(crate) messages: Messages,
    /// A snapshot from another server that replaces log and state; nothing is committed in the same
    /// turn.
    pub(crate) installed: Option<SnapshotMeta>,
    pub(crate) committed: Vec<LogEntry>,
    /// Confirmed read rounds: their number, and the index that must be applied first.
    pub(crate) reads: Vec<(u64, LogIndex)>,
}

/// Messages with their receivers.
type Messages = Vec<(ServerId, PeerMessage)>;

/// The engine rejected a proposal; it was certainly not done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dropped;

/// The engine and the state that this file keeps for it.
pub(crate) struct Engine {
    node: RawNode<MemoryLog>,
    random: Random,
    election_ticks: usize,
    /// Distinguishes the read rounds of this process from those of other servers and earlier
    /// processes.
    life: u64,
    /// The (term, role) for which the election timeout was drawn, and the timeout in ticks.
    drawn_for: Option<(u64, StateRole)>,
    election_timeout: usize,
    /// Set while other servers must win elections: see [`Engine::lower_priority`].
    has_lowered_priority: bool,
    /// The turns that wait for a write, in order.
    waiting: VecDeque<UnpersistedTurn>,
    /// A hard state that needs no write of its own and is written with the next one.
    lazy_hard_state: Option<HardState>,
    /// The (term, vote) that is on disk.
    durable_vote: (Term, ServerId),
    /// Membership as of the last applied index.
    membership: Membership,
    /// A snapshot that is in memory but not on disk: its write number and its index.
    installing: Option<(u64, LogIndex)>,
    pub(crate) fault_point: FaultPoint,
}

/// A membership change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberChange {
    /// Adds a server as a learner, without a vote.
    Learner(ServerId),
    /// Promotes a learner to voter.
    Voter(ServerId),
    /// Promotes a learner and removes the same node's former server, in one change.
    Successor {
        /// The server that becomes a voter.
        new: ServerId,
        /// The server that is removed.
        former: ServerId,
    },
    /// Removes a server.
    Gone(ServerId),
}

impl MemberChange {
    /// Returns the action as text for the log, and the server it concerns.
    pub(crate) fn described(self) -> (&'static str, ServerId) {
        match self {
            Self::Learner(server) => ("add as a learner", server),
            Self::Voter(server) => ("promote to voter", server),
            Self::Successor { new, .. } => ("promote to voter, replacing its former server", new),
            Self::Gone(server) => ("remove", server),
        }
    }
}

/// The leader's knowledge of another server's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last index that the server has on disk.
    pub matched: LogIndex,
    /// The index of the snapshot that it waits for, if any.
    pub snapshot: Option<LogIndex>,
}

/// The replication as a server knows it at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replication {
    /// The members' logs; empty unless this server leads.
    pub(crate) progress: BTreeMap<ServerId, Progress>,
    pub(crate) commit_index: LogIndex,
    pub(crate) last_index: LogIndex,
    /// The last index up to which this server's own log is durable.
    pub(crate) persisted_index: LogIndex,
    pub(crate) is_transferring: bool,
    pub(crate) has_pending_membership: bool,
}

impl Replication {
    /// Returns the progress of a server; nothing, if it is unknown.
    pub(crate) fn of(&self, server: ServerId) -> Progress {
        self.progress.get(&server).copied().unwrap_or_default()
    }
}

/// A turn of the engine that waits for the disk.
struct UnpersistedTurn {
    /// The number of the turn.
    number: u64,
    /// The write that must be durable first: the turn's own, or the last one queued before it.
    write: u64,
    messages: Messages,
    vote: Option<(Term, ServerId)>,
}

/// The configuration of the engine on a state as of `applied`.
fn config(id: ServerId, applied: LogIndex, election: ElectionTimeout) -> raft::Config {
    raft::Config {
        id: id.0,
        election_tick: election.ticks,
        // Room for the longer timeouts of a server with lowered priority.
        max_election_tick: 4 * election.ticks,
        heartbeat_tick: election.heartbeat_ticks,
        // The state is the checkpoint's, so the engine must return every entry after it again.
        // A higher index would silently skip compacted entries.
        applied: applied.0,
        max_size_per_msg: MAX_MESSAGE_BYTES,
        max_uncommitted_size: MAX_UNCOMMITTED_BYTES,
        max_committed_size_per_ready: MAX_COMMITTED_BYTES,
        max_inflight_msgs: MAX_MESSAGES_ON_THE_WAY,
        // A leader that is cut off steps down, and its clients look for another one (thesis,
        // 6.2).
        check_quorum: true,
        // A returning server does not raise the term while the others have a leader (thesis,
        // 9.6).
        pre_vote: true,
        // No lease reads: with drifting clocks a deposed leader would return stale data.
        read_only_option: ReadOnlyOption::Safe,
        // Joined entries may not end where the message claims: see the contract at the top.
        batch_append: false,
        // An empty message announces a commit to followers at once, so their blocking reads
        // wake immediately, not with the next append.
        skip_bcast_commit: false,
        ..raft::Config::default()
    }
}

impl Engine {
    /// Opens the engine on the recovered log. `snapshot` describes the recovered state.
    pub(crate) fn new(
        id: ServerId,
        hard_state: HardState,
        snapshot: &SnapshotMeta,
        base: (LogIndex, Term),
        entries: Vec<LogEntry>,
        (seed, election): (u64, ElectionTimeout),
    ) -> Self {
        let mut log = MemoryLog::new(base, entries);
        log.hard_state = hard_state;
        log.snapshot = snapshot.clone();
        let config = config(id, snapshot.index, election);
        let logger = slog::Logger::root(TracingDrain, slog::o!());
        let node = RawNode::new(&config, log, &logger).expect("the log was recovered and the config is ours");
        let durable_vote = (hard_state.term, hard_state.vote);
        let membership = snapshot.membership.clone();
        let mut random = Random::new(seed);
        let life = random.number();
        Self {
            node,
            random,
            election_ticks: election.ticks,
            life,
            drawn_for: None,
            election_timeout: election.ticks,
            has_lowered_priority: false,
            waiting: VecDeque::new(),
            lazy_hard_state: None,
            durable_vote,
            membership,
            installing: None,
            fault_point: FaultPoint::default(),
        }
    }

    /// Breaks a rule for fault injection.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn break_rule(&mut self, rule: Rule) {
        self.node.set_batch_append(rule == Rule::MessagesAreWhole);
        self.fault_point.break_rule(rule);
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// Returns whether this leader has applied an entry of its own term. Before that it must not
    /// answer reads.
    pub(crate) fn leads_its_term(&self) -> bool {
        // Until then its commit index may be older than an answered read (paper, 5.4.2; thesis,
        // 6.4).
        self.is_leader() && self.node.raft.apply_to_current_term()
    }

    pub(crate) fn leader(&self) -> Option<ServerId> {
        Some(ServerId(self.node.raft.leader_id)).filter(|leader| leader.0 != 0)
    }

    pub(crate) fn term(&self) -> Term {
        Term(self.node.raft.term)
    }

    pub(crate) fn last_index(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.last_index())
    }

    pub(crate) fn first_index(&self) -> LogIndex {
        self.node.store().first_index()
    }

    pub(crate) fn commit_index(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.committed)
    }

    /// The last index up to which this server's own log is durable.
    pub(crate) fn persisted_index(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.persisted)
    }

    pub(crate) fn hard_state(&self) -> HardState {
        hard_state_of(&self.node.raft.hard_state())
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The replication progress of a server; `None` unless this server leads.
    pub(crate) fn progress(&self, server: ServerId) -> Option<Progress> {
        let progress = self.node.raft.prs().get(server.0).filter(|_| self.is_leader())?;
        let waits = progress.state == raft::ProgressState::Snapshot;
        let snapshot = waits.then_some(LogIndex(progress.pending_snapshot));
        Some(Progress { matched: LogIndex(progress.matched), snapshot })
    }

    pub(crate) fn replication(&self) -> Replication {
        let members = self.membership.all().into_iter();
        Replication {
            progress: members.filter_map(|id| Some((id, self.progress(id)?))).collect(),
            commit_index: self.commit_index(),
            last_index: self.last_index(),
            persisted_index: self.persisted_index(),
            is_transferring: self.is_transferring(),
            has_pending_membership: self.has_pending_membership(),
        }
    }

    /// Returns whether this server is the only voter.
    pub(crate) fn is_alone(&self) -> bool {
        let members = &self.membership;
        // During a joint change the outgoing voters must agree too (paper, 6).
        members.voters == [ServerId(self.node.raft.id)] && members.voters_outgoing.is_empty()
    }

    /// Starts an election now: for a single server, and for the target of a leadership transfer.
    pub(crate) fn campaign(&mut self) {
        // A refusal means that it is too early; the election timeout retries.
        let _ = self.node.campaign();
    }

    pub(crate) fn tick(&mut self) {
        if self.installing.is_some() && !self.fault_point.breaks(Rule::TimeStandsStillForSnapshots) {
            return;
        }
        let log = &self.node.raft.raft_log;
        // Its own vote makes it the leader at once, and the engine requires that a new leader's log
        // is fully durable.
        if self.is_alone() && !self.is_leader() && log.persisted < log.last_index() {
            return;
        }
        // The engine may have begun a term since the last tick, and drawn a timeout of its own.
        self.draw_election_timeout();
        self.node.tick();
    }

    /// Steps a message that passed [`PeerMessage::fault`].
    pub(crate) fn step(&mut self, message: PeerMessage) {
        // This message starts an election at once, without a tick, on a state that is not yet
        // durable.
        if self.installing.is_some() && message.kind == MessageKind::TimeoutNow {
            return;
        }
        // The engine rejects outdated messages, such as a reply from a removed server.
        if let Err(error) = self.node.step(to_engine(message)) {
            tracing::debug!(%error, "the engine ignored a message");
        }
    }

    /// Appends a batch of proposals. Their indexes are consecutive and end at the log's last index.
    pub(crate) fn propose(&mut self, batch: Vec<Bytes>) -> Result<LogIndex, Dropped> {
        // A follower's engine would forward the proposal and return success without an index.
        if !self.is_leader() {
            return Err(Dropped);
        }
        let count = batch.len() as u64;
        let mut message = eraftpb::Message::default();
        message.set_msg_type(eraftpb::MessageType::MsgPropose);
        message.from = self.node.raft.id;
        let entries: Vec<_> =
            batch.into_iter().map(|data| eraftpb::Entry { data, ..Default::default() }).collect();
        message.set_entries(entries.into());
        // The batch is appended as a whole, so a caller may retry after a rejection.
        self.node.step(message).map_err(|_| Dropped)?;
        Ok(LogIndex(self.last_index().0 - count + 1))
    }

    /// Begins a read round; a follower requests one from its leader.
    pub(crate) fn begin_read(&mut self, round: u64) {
        // The engine merges equal rounds, so each must differ from all others: those of this
        // process, of earlier ones and of other servers.
        let context = [self.node.raft.id, self.life, round].map(u64::to_be_bytes).concat();
        self.node.read_index(context);
    }

    /// Reports a server as unreachable: messages in flight to it are lost.
    pub(crate) fn unreachable(&mut self, server: ServerId) {
        self.node.report_unreachable(server.0);
    }

    /// Reports that a server did not receive its snapshot.
    pub(crate) fn snapshot_failed(&mut self, server: ServerId) {
        self.node.report_snapshot(server.0, raft::SnapshotStatus::Failure);
    }

    /// Notes that this snapshot is durable and can be sent to other servers.
    pub(crate) fn checkpoint_durable(&mut self, mark: SnapshotMeta) {
        self.node.mut_store().snapshot = mark;
    }

    /// Returns once whether a server waits for a newer snapshot than the durable one.
    pub(crate) fn take_snapshot_wanted(&mut self) -> bool {
        self.node.store().snapshot_wanted.take()
    }

    /// Lowers the election priority, or restores it. A server with lowered priority waits two
    /// election timeouts longer, so that every other server that can win stands first. The engine's
    /// own priorities would let a server with a short log outvote the only one that can win.
    pub(crate) fn lower_priority(&mut self, is_lowered: bool) {
        if is_lowered != self.has_lowered_priority {
            self.has_lowered_priority = is_lowered;
            self.drawn_for = None;
        }
    }

    /// Gives up leadership within the term, so that the other servers elect a leader.
    pub(crate) fn step_down(&mut self) {
        let term = self.node.raft.term;
        self.node.raft.become_follower(term, 0);
    }

    /// Transfers leadership to `server`. Proposals during the transfer are dropped.
    pub(crate) fn transfer_leader(&mut self, server: ServerId) {
        self.node.transfer_leader(server.0);
    }

    /// `true` while a transfer is in progress. The engine aborts it after one election timeout.
    pub(crate) fn is_transferring(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    pub(crate) fn has_pending_membership(&self) -> bool {
        // The engine silently replaces a second change with an empty entry and returns success. In
        // a joint membership the entry that ends it is still to come.
        self.node.raft.has_pending_conf() || self.membership.is_joint()
    }

    /// Proposes a membership change through a joint membership that ends automatically.
    pub(crate) fn propose_membership(&mut self, change: MemberChange) -> Result<LogIndex, Dropped> {
        use eraftpb::ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
        let steps = match change {
            MemberChange::Learner(server) => vec![(AddLearnerNode, server)],
            MemberChange::Voter(server) => vec![(AddNode, server)],
            MemberChange::Successor { new, former } => vec![(AddNode, new), (RemoveNode, former)],
            MemberChange::Gone(server) => vec![(RemoveNode, server)],
        };
        let steps = steps.into_iter().map(|(kind, server)| {
            let mut step = eraftpb::ConfChangeSingle { node_id: server.0, ..Default::default() };
            step.set_change_type(kind);
            step
        });
        let mut change = eraftpb::ConfChangeV2::default();
        // Single steps use a joint membership too, which ends automatically: one tested path for
        // all changes (paper, 6).
        change.set_transition(eraftpb::ConfChangeTransition::Implicit);
        change.set_changes(steps.collect::<Vec<_>>().into());
        self.node.propose_conf_change(Vec::new(), change).map_err(|_| Dropped)?;
        Ok(self.last_index())
    }

    /// Notes that all writes up to this one are durable.
    pub(crate) fn persisted(&mut self, write: u64, effects: &mut Effects) {
        let mut messages = Vec::new();
        let mut highest = None;
        // Writes are reported in order, and the last write of a commit covers all before it.
        while self.waiting.front().is_some_and(|turn| turn.write <= write) {
            let turn = self.waiting.pop_front().expect("the front was just seen");
            highest = Some(turn.number);
            self.durable_vote = turn.vote.unwrap_or(self.durable_vote);
            messages.extend(turn.messages);
        }
        // Before the messages leave: their replies must reach an engine that counts this write.
        if let Some(number) = self.fault_point.write_to_report(highest) {
            self.node.on_persist_ready(number);
        }
        // Now no crash can bring the old log back, so the engine may tick again.
        if let Some((_, index)) = self.installing.take_if(|(number, _)| *number <= write) {
            self.node.advance_apply_to(index.0);
        }
        effects.messages.extend(messages);
    }

    /// Notes that an entry was applied; a membership change takes effect now.
    pub(crate) fn applied(&mut self, entry: &LogEntry) {
        // First the change, then the applied index: in the other order the engine never leaves the
        // joint membership.
        if self.change_membership(entry) {
            self.step_down_if_removed();
        }
        self.node.advance_apply_to(entry.index.0);
        // The engine itself proposes the end of a joint membership, which would otherwise wait for
        // the next heartbeat.
        if entry.kind != EntryKind::Normal && self.is_leader() {
            self.node.ping();
        }
    }

    /// Applies a membership change; returns `false` for any other entry.
    fn change_membership(&mut self, entry: &LogEntry) -> bool {
        let changed = match entry.kind {
            EntryKind::Normal => return false,
            EntryKind::Membership => {
                self.node.apply_conf_change(&parse_own::<eraftpb::ConfChange>(&entry.data))
            }
            EntryKind::JointMembership => {
                self.node.apply_conf_change(&parse_own::<eraftpb::ConfChangeV2>(&entry.data))
            }
        };
        self.membership = membership_of(&changed.expect("the change was legal when it was proposed"));
        true
    }

    /// Compacts the log up to an index whose snapshot is durable.
    pub(crate) fn compact(&mut self, up_to: LogIndex) {
        self.node.mut_store().compact(up_to);
    }

    /// The last index that can be compacted if this many bytes of entries are kept.
    pub(crate) fn index_before_last(&self, bytes: u64) -> LogIndex {
        self.node.store().index_before_last(bytes)
    }

    /// The size of the entries in memory, in bytes.
    pub(crate) fn log_bytes(&self) -> usize {
        self.node.store().bytes()
    }

    /// Drives the engine until it has no more work.
    pub(crate) fn turn(&mut self, effects: &mut Effects) {
        while self.node.has_ready() {
            // From here to `advance_append_async` only the engine's storage may be called.
            let mut ready = self.node.ready();
            let number = ready.number();
            let entries: Vec<_> = ready.take_entries().into_iter().map(entry_of).collect();
            let hard_state = ready.hs().map(hard_state_of);
            let reset = (!ready.snapshot().is_empty()).then(|| snapshot_meta_of(ready.snapshot()));
            // First the snapshot, then the entries after it, and both before the engine continues:
            // it would reuse the indexes of entries that it cannot see in its storage.
            if let Some(mark) = &reset {
                self.install(mark, number, effects);
            }
            self.node.mut_store().append(&entries);
            self.node.mut_store().hard_state = hard_state.unwrap_or(self.node.store().hard_state);
            // Only entries that are durable here: the engine caps them at the reported index.
            effects.committed.extend(ready.take_committed_entries().into_iter().map(entry_of));
            let ours = [self.node.raft.id, self.life];
            effects.reads.extend(ready.take_read_states().iter().filter_map(|read| read_of(read, ours)));
            // A leader's appends may leave during its own disk write (thesis, 10.2.1); votes and
            // acknowledgements must wait.
            let committed = self.commit_index();
            let messages = (
                outgoing(ready.take_messages(), committed),
                outgoing(ready.take_persisted_messages(), committed),
            );
            let must_sync = ready.must_sync();
            self.node.advance_append_async(ready);
            let write = LogWrite { number, reset, entries, hard_state };
            self.queue(write, must_sync, messages, effects);
        }
    }

    /// Replaces the log with a snapshot, in memory first.
    fn install(&mut self, mark: &SnapshotMeta, number: u64, effects: &mut Effects) {
        self.node.mut_store().reset(mark);
        self.membership = mark.membership.clone();
        self.installing = Some((number, mark.index));
        effects.installed = Some(mark.clone());
    }

    /// Queues the turn's write, or makes the turn wait for the writes before it.
    fn queue(
        &mut self,
        write: LogWrite,
        must_sync: bool,
        (mut at_once, mut after): (Messages, Messages),
        effects: &mut Effects,
    ) {
        let (number, hard_state) = (write.number, write.hard_state);
        if self.fault_point.breaks(Rule::AnswersWaitForTheirWrite)
            || (self.fault_point.breaks(Rule::AnswersWaitForOlderWrites) && !must_sync)
        {
            effects.messages.append(&mut after);
        }
        let newest = self.node.store().hard_state;
        // A single server wins, appends and sends in one turn. After a crash before its vote is
        // durable, no record of this term's leader would exist.
        if (newest.term, newest.vote) == self.durable_vote {
            // A heartbeat response makes no claim about the log, so it need not wait for the log.
            at_once
                .extend(after.extract_if(.., |(_, message)| message.kind == MessageKind::HeartbeatResponse));
            effects.messages.extend(at_once);
        } else {
            after.extend(at_once);
        }
        // A lost commit index is learned again, so it waits for the next required write.
        self.lazy_hard_state = hard_state.or(self.lazy_hard_state);
        let vote = hard_state.map(|state| (state.term, state.vote));
        if must_sync {
            let hard_state = self.lazy_hard_state.take();
            effects.writes.push(LogWrite { hard_state, ..write });
            self.waiting.push_back(UnpersistedTurn { number, write: number, messages: after, vote });
        } else if let Some(last) = self.waiting.back() {
            // Without a write of its own, the turn must still wait: its replies may acknowledge
            // entries of an older turn whose write is pending.
            let write = last.write;
            self.waiting.push_back(UnpersistedTurn { number, write, messages: after, vote });
        } else {
            self.node.on_persist_ready(number);
            effects.messages.extend(after);
        }
    }

    /// Steps down if this leader is no longer a member.
    fn step_down_if_removed(&mut self) {
        let id = self.node.raft.id;
        if self.fault_point.breaks(Rule::RemovedLeaderSteps) {
            return;
        }
        // The engine would keep leading after its own removal, and panic in the end (thesis,
        // 4.2.2).
        if self.is_leader() && self.node.raft.prs().get(id).is_none() {
            self.step_down();
        }
    }

    /// Replaces the engine's own draw, which it also repeats within one term and role.
    fn draw_election_timeout(&mut self) {
        let now = (self.node.raft.term, self.node.raft.state);
        // Once per term and role, as in the paper (5.2); a draw at each tick would favour short
        // timeouts.
        if self.drawn_for != Some(now) {
            self.drawn_for = Some(now);
            let draw = self.random.number() as usize % (self.election_ticks - 1);
            let extra = if self.has_lowered_priority { 2 * self.election_ticks } else { 0 };
            self.election_timeout = self.election_ticks + 1 + draw + extra;
        }
        self.node.raft.set_randomized_election_timeout(self.election_timeout);
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let role = self.node.raft.state;
        write!(f, "Engine({role:?}, term {}, last {})", self.term(), self.last_index())
    }
}

impl Storage for MemoryLog {
    fn initial_state(&self) -> raft::Result<raft::RaftState> {
        let hard_state = eraftpb::HardState {
            term: self.hard_state.term.0,
            vote: self.hard_state.vote.0,
            commit: self.hard_state.commit.0,
            ..Default::default()
        };
        Ok(raft::RaftState::new(hard_state, to_engine_membership(&self.snapshot.membership)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low < self.first_index().0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let max_bytes = max_size.into().unwrap_or(u64::MAX);
        Ok(self.range(LogIndex(low), LogIndex(high), max_bytes).map(to_engine_entry).collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let term = self.term(LogIndex(index)).map(|term| term.0);
        term.ok_or(raft::Error::Store(StorageError::Compacted))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first_index().0)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last_index().0)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<eraftpb::Snapshot> {
        match self.snapshot_for(ServerId(to), LogIndex(request_index)) {
            Some(mark) => Ok(to_engine_snapshot(mark)),
            // The engine retries with a later message; the required checkpoint has been requested.
            None => Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable)),
        }
    }
}

/// Our message kinds and the engine's. Other kinds of the engine never reach the wire.
const KINDS: [(MessageKind, eraftpb::MessageType); 12] = {
    use eraftpb::MessageType as Theirs;
    [
        (MessageKind::Append, Theirs::MsgAppend),
        (MessageKind::AppendResponse, Theirs::MsgAppendResponse),
        (MessageKind::RequestVote, Theirs::MsgRequestVote),
        (MessageKind::RequestVoteResponse, Theirs::MsgRequestVoteResponse),
        (MessageKind::RequestPreVote, Theirs::MsgRequestPreVote),
        (MessageKind::RequestPreVoteResponse, Theirs::MsgRequestPreVoteResponse),
        (MessageKind::Heartbeat, Theirs::MsgHeartbeat),
        (MessageKind::HeartbeatResponse, Theirs::MsgHeartbeatResponse),
        (MessageKind::Snapshot, Theirs::MsgSnapshot),
        (MessageKind::TimeoutNow, Theirs::MsgTimeoutNow),
        (MessageKind::ReadIndex, Theirs::MsgReadIndex),
        (MessageKind::ReadIndexResponse, Theirs::MsgReadIndexResp),
    ]
};

/// Sorts messages into a stable order: the engine's own follows its hash order.
fn outgoing(messages: Vec<eraftpb::Message>, committed: LogIndex) -> Messages {
    let mut out: Vec<_> = messages.into_iter().filter_map(from_engine).collect();
    // The commit index in a heartbeat is limited to what its receiver has. With this one a follower
    // learns that it is behind even if the offer of a snapshot was lost. The engine ignores it.
    let heartbeats = out.iter_mut().filter(|(_, message)| message.kind == MessageKind::Heartbeat);
    heartbeats.for_each(|(_, message)| message.index = committed);
    out.sort_by_key(|(to, _)| *to);
    out
}

fn from_engine(mut message: eraftpb::Message) -> Option<(ServerId, PeerMessage)> {
    let (kind, _) = KINDS.into_iter().find(|(_, theirs)| *theirs == message.get_msg_type())?;
    let to = ServerId(message.to);
    let snapshot = message.has_snapshot().then(|| snapshot_meta_of(message.get_snapshot()));
    let entries = message.take_entries().into_iter().map(entry_of).collect();
    let mirrored = PeerMessage {
        kind,
        to,
        from: ServerId(message.from),
        term: Term(message.term),
        log_term: Term(message.log_term),
        index: LogIndex(message.index),
        entries,
        commit: LogIndex(message.commit),
        commit_term: Term(message.commit_term),
        snapshot,
        request_snapshot: LogIndex(message.request_snapshot),
        reject: message.reject,
        reject_hint: LogIndex(message.reject_hint),
        context: message.context,
        priority: message.priority,
    };
    Some((to, mirrored))
}

fn to_engine(message: PeerMessage) -> eraftpb::Message {
    let (_, kind) = KINDS
        .into_iter()
        .find(|(ours, _)| *ours == message.kind)
        .expect("every kind for the engine is in the table");
    let mut out = eraftpb::Message {
        to: message.to.0,
        from: message.from.0,
        term: message.term.0,
        log_term: message.log_term.0,
        index: message.index.0,
        commit: message.commit.0,
        commit_term: message.commit_term.0,
        request_snapshot: message.request_snapshot.0,
        reject: message.reject,
        reject_hint: message.reject_hint.0,
        context: message.context,
        priority: message.priority,
        ..Default::default()
    };
    out.set_msg_type(kind);
    out.set_entries(message.entries.iter().map(to_engine_entry).collect::<Vec<_>>().into());
    if let Some(mark) = &message.snapshot {
        out.set_snapshot(to_engine_snapshot(mark));
    }
    out
}

fn entry_of(entry: eraftpb::Entry) -> LogEntry {
    let kind = match entry.get_entry_type() {
        eraftpb::EntryType::EntryNormal => EntryKind::Normal,
        eraftpb::EntryType::EntryConfChange => EntryKind::Membership,
        eraftpb::EntryType::EntryConfChangeV2 => EntryKind::JointMembership,
    };
    let (index, term) = (LogIndex(entry.index), Term(entry.term));
    LogEntry { index, term, kind, data: entry.data, context: entry.context }
}

fn to_engine_entry(entry: &LogEntry) -> eraftpb::Entry {
    let mut out = eraftpb::Entry {
        index: entry.index.0,
        term: entry.term.0,
        data: entry.data.clone(),
        context: entry.context.clone(),
        ..Default::default()
    };
    out.set_entry_type(match entry.kind {
        EntryKind::Normal => eraftpb::EntryType::EntryNormal,
        EntryKind::Membership => eraftpb::EntryType::EntryConfChange,
        EntryKind::JointMembership => eraftpb::EntryType::EntryConfChangeV2,
    });
    out
}

fn hard_state_of(state: &eraftpb::HardState) -> HardState {
    HardState { term: Term(state.term), vote: ServerId(state.vote), commit: LogIndex(state.commit) }
}

fn membership_of(state: &eraftpb::ConfState) -> Membership {
    let sorted = |ids: &[u64]| {
        let mut ids: Vec<_> = ids.iter().copied().map(ServerId).collect();
        ids.sort_unstable();
        ids
    };
    Membership {
        voters: sorted(&state.voters),
        learners: sorted(&state.learners),
        voters_outgoing: sorted(&state.voters_outgoing),
        learners_next: sorted(&state.learners_next),
        auto_leave: state.auto_leave,
    }
}

fn to_engine_membership(membership: &Membership) -> eraftpb::ConfState {
    let plain = |ids: &[ServerId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
    eraftpb::ConfState {
        voters: plain(&membership.voters),
        learners: plain(&membership.learners),
        voters_outgoing: plain(&membership.voters_outgoing),
        learners_next: plain(&membership.learners_next),
        auto_leave: membership.auto_leave,
        ..Default::default()
    }
}

/// The membership after all recovered log entries, committed or not: the newest that the server
/// knew.
pub fn membership_after(recovered: &Recovered) -> Membership {
    let Recovered { hard_state, snapshot, base, entries, .. } = recovered;
    // The id has no meaning: this engine never runs.
    let nobody = ServerId(u64::MAX);
    let seed = (0, ElectionTimeout::default());
    let mut engine = Engine::new(nobody, *hard_state, snapshot, *base, entries.clone(), seed);
    let changes =
        entries.iter().filter(|entry| entry.index > snapshot.index && entry.kind != EntryKind::Normal);
    for entry in changes {
        engine.change_membership(entry);
    }
    engine.membership
}

fn snapshot_meta_of(snapshot: &eraftpb::Snapshot) -> SnapshotMeta {
    let metadata = snapshot.get_metadata();
    let membership = membership_of(metadata.get_conf_state());
    SnapshotMeta { index: LogIndex(metadata.index), term: Term(metadata.term), membership }
}

fn to_engine_snapshot(mark: &SnapshotMeta) -> eraftpb::Snapshot {
    let mut snapshot = eraftpb::Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = mark.index.0;
    metadata.term = mark.term.0;
    metadata.set_conf_state(to_engine_membership(&mark.membership));
    snapshot
}

/// Parses a change that the engine wrote into our log.
fn parse_own<M: protobuf::Message>(data: &[u8]) -> M {
    let mut message = M::new();
    message.merge_from_bytes(data).expect("the engine wrote this change itself");
    message
}

/// The number of a confirmed round, if this process began it: replies to earlier processes may
/// arrive late.
fn read_of(read: &raft::ReadState, ours: [u64; 2]) -> Option<(u64, LogIndex)> {
    let ours = ours.map(u64::to_be_bytes).concat();
    let round = read.request_ctx.strip_prefix(ours.as_slice())?;
    Some((u64::from_be_bytes(round.try_into().ok()?), LogIndex(read.index)))
}

/// Forwards the engine's log to `tracing`, one level lower: its info level is our debug level.
struct TracingDrain;

impl slog::Drain for TracingDrain {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &slog::Record<'_>, _: &slog::OwnedKVList) -> Result<(), slog::Never> {
        let message = record.msg();
        match record.level() {
            slog::Level::Critical | slog::Level::Error => tracing::error!("consensus: {message}"),
            _ => tracing::debug!("consensus: {message}"),
        }
        Ok(())
    }
}
