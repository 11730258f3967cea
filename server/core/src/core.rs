//! The server itself: handles one input at a time and lists the effects.

use crate::autopilot::AutopilotState;
use crate::corruption::CorruptionChecks;
use crate::disk_watch::DiskWatch;
use crate::disks::RefusingDisks;
use crate::fault_injection::Rule;
use crate::input::{CallToken, Input};
use crate::judge::{self, Judge, JudgeInput, without_minority};
use crate::mesh::ServedMesh;
use crate::observed::{Observed, Observer};
use crate::outbox::{Outbox, lost_leadership, not_leader};
use crate::overdue::expiry_is_being_decided;
use crate::proposal::Proposal;
use crate::raft::engine::{Effects, Engine};
use crate::raft::log::{
    EntryKind, HardState, LogEntry, LogStatus, Membership, OwnMemory, Recovered, SnapshotMeta,
};
use crate::raft::message::{MessageKind, PeerMessage};
use crate::raft::{ElectionTimeout, Progress};
use crate::read_index::{ReadIndex, Reader};
use crate::setback::{LogPosition, PeerMemory, SetBack};
use crate::state::{Listing, State};
use crate::timers::{Subject, TimerConfig, Timers};
use crate::upgrade;
use bytes::Bytes;
use lockmesh_protocol::command::{Command, NodeFailure};
use lockmesh_protocol::format::{self, FormatError};
use lockmesh_protocol::id::{AgentNumber, LogIndex, ServerId, SessionId, Term, WallTime};
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::Server;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{MAX_FRAME_BYTES, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// The maximum size of a command: a log entry must fit into a frame to the other servers.
const MAX_PROPOSAL_BYTES: usize = MAX_FRAME_BYTES / 2;
/// Delay before the leader proposes an expiry again after the proposal failed.
pub(crate) const RETRY_PROPOSAL: Duration = Duration::from_secs(1);
/// The maximum number of deadlines that expire per tick: one node's expire together.
const DEADLINES_A_TICK: usize = 200;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// The server's id.
    pub id: ServerId,
    /// Seed of its random numbers.
    pub seed: u64,
    /// The initial content of the cluster, used until the cluster exists.
    pub cluster_start: ClusterStart,
    /// Windows and delays.
    pub timers: TimerConfig,
    /// The maximum number of uncommitted proposals.
    pub max_pending_proposals: usize,
    /// Bytes of log to keep behind a durable snapshot for followers that lag.
    pub log_keep_bytes: u64,
    /// Bytes of log to keep behind a snapshot that a follower may be fetching; at least
    /// `log_keep_bytes`.
    pub log_keep_fetching_bytes: u64,
    /// The election timeout.
    pub election: ElectionTimeout,
    /// The newest format that this build reads: [`lockmesh_protocol::format::NEWEST`].
    pub format: u8,
    /// Interval between corruption checks. A leader skips a check if nothing was written since the
    /// last one.
    pub corruption_check_interval: Duration,
    /// The time without a durable write after which the disk is stalled; at least two election
    /// timeouts.
    pub stall_timeout: Duration,
}

/// The content that the first leader of a cluster writes into its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStart {
    /// The cluster's id, a UUID.
    pub cluster_id: String,
    /// Its first servers.
    pub servers: Vec<Server>,
    /// The random key from which lease secrets are derived; known to the servers only.
    pub lease_key: LeaseKey,
}

/// A server as one pure value.
#[derive(Debug)]
pub struct Core {
    pub(crate) config: CoreConfig,
    pub(crate) engine: Engine,
    pub(crate) state: State,
    pub(crate) autopilot: AutopilotState,
    pub(crate) own: OwnMemory,
    /// Set when this server holds less than it acknowledged: it then sends nothing.
    pub(crate) set_back: Option<SetBack>,
    /// Set when this build cannot read the cluster's format: the server then does nothing.
    pub(crate) unreadable: Option<FormatError>,
    pub(crate) corruption: CorruptionChecks,
    pub(crate) disk: DiskWatch,
    pub(crate) refusing_disks: RefusingDisks,
    pub(crate) timers: Timers,
    /// The number of deadlines that may still expire before the next tick.
    pub(crate) may_pass: usize,
    pub(crate) judge: Judge,
    pub(crate) mesh: ServedMesh,
    pub(crate) read_index: ReadIndex,
    /// Entries that are committed and not yet applied; empty between turns.
    committed: Vec<LogEntry>,
    /// Proposals of this turn, not yet in the log.
    pub(crate) batch: Vec<(Proposal, Origin)>,
    /// Proposals in the log, in order, until they are applied.
    pub(crate) pending: VecDeque<PendingProposal>,
    pub(crate) applied: (LogIndex, Term),
    membership_index: LogIndex,
    /// A snapshot from another server, until the engine accepts or ignores it.
    arrived: Option<(SnapshotMeta, Box<State>)>,
    /// `true` if the engine led at the end of the last turn.
    led: bool,
    /// The last leader that was logged.
    told_leader: Option<ServerId>,
    /// The term in which this server leads and serves.
    pub(crate) serving: Option<Term>,
    pub(crate) wall: WallTime,
    pub(crate) last_tick: Option<Time>,
    /// The time until which this server ran; a later input detects the pause since then.
    pub(crate) ran_until: Option<Time>,
    pub(crate) observer: Observer,
}

/// The origin of a proposal, which is notified of the outcome.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A client, and the time of its request.
    Client(CallToken, Time),
    Timer(Subject),
    /// A verdict on this agent.
    Verdict(AgentNumber),
    Nobody,
}

/// A proposal in the log.
#[derive(Debug)]
pub(crate) struct PendingProposal {
    index: LogIndex,
    term: Term,
    /// Kept so that the leader need not decode its own encoding; `None` for a membership change.
    pub(crate) proposal: Option<Proposal>,
    origin: Origin,
}

impl Core {
    /// Opens a server on the recovered contents of its disk.
    pub fn new(config: CoreConfig, recovered: Recovered) -> Self {
        let Recovered { hard_state, snapshot, entries, base, state, own } = recovered;
        let unreadable = upgrade::unknown_format(&state, config.format);
        let stall_timeout = config.stall_timeout.max(2 * config.election.timeout());
        let mut engine =
            Engine::new(config.id, hard_state, &snapshot, base, entries, (config.seed, config.election));
        // No other server can win, so there is no election timeout to wait for.
        if engine.is_alone() {
            engine.campaign();
        }
        Self {
            timers: Timers::new(config.timers),
            judge: Judge::new(config.seed, config.timers.reap_failed_after),
            mesh: ServedMesh::of(&state),
            may_pass: 0,
            config,
            engine,
            state,
            autopilot: AutopilotState::default(),
            own,
            set_back: None,
            unreadable,
            corruption: CorruptionChecks::default(),
            disk: DiskWatch::new(stall_timeout),
            refusing_disks: RefusingDisks::default(),
            read_index: ReadIndex::default(),
            committed: Vec::new(),
            batch: Vec::new(),
            pending: VecDeque::new(),
            applied: (snapshot.index, snapshot.term),
            membership_index: snapshot.index,
            arrived: None,
            led: false,
            told_leader: None,
            serving: None,
            wall: WallTime::default(),
            last_tick: None,
            ran_until: None,
            observer: Observer::default(),
        }
    }

    /// Breaks a rule on purpose, for tests that must detect it.
    #[cfg(feature = "fault-injection")]
    pub fn break_rule(&mut self, rule: Rule) {
        self.engine.break_rule(rule);
        self.state.fault_point = self.engine.fault_point.clone();
    }

    /// Returns the snapshot that the disk of each initial voter represents before the first start.
    pub fn bootstrap_snapshot(voters: &[ServerId]) -> SnapshotMeta {
        SnapshotMeta { index: LogIndex(1), term: Term(1), membership: Membership::of_voters(voters) }
    }

    /// Handles one input. Gathered proposals are appended to the log at the end of the turn: see
    /// [`Core::settle`].
    pub fn handle(&mut self, now: Time, input: Input, outbox: &mut Outbox) {
        if self.unreadable.is_some() {
            return;
        }
        self.move_deadlines_if_late(now);
        if let Input::Persisted(write) = input {
            self.disk.persisted(now, write);
        }
        if self.set_back.is_some() {
            return self.handle_set_back(input, outbox);
        }
        match input {
            Input::Tick(wall) => self.tick(now, wall, outbox),
            Input::Peer(sender, message) => self.peer(now, sender, message, outbox),
            Input::Install(sender, message, mark, state) => self.arrive(now, sender, message, (mark, state)),
            Input::SetBack(by, known) => self.notice_set_back(now, by, known, outbox),
            Input::Unreachable(server) => self.engine.unreachable(server),
            Input::Deadline(wall) => self.pass_deadlines_early(now, wall),
            Input::Propose(token, proposal) => self.propose(now, token, proposal, outbox),
            // Any state will do, so a stale read needs neither a leader nor a round.
            Input::Read(token, Consistency::Stale) => outbox.readable.push(token),
            Input::Read(token, _) => self.read(now, token, outbox),
            Input::Renew(token, session) => self.renew(now, token, session, outbox),
            Input::RenewLease(token, renewal) => self.judge(now, JudgeInput::Renewal(token, renewal), outbox),
            Input::Accuse(token, accuser, accused) => {
                self.judge(now, JudgeInput::Accuse(token, accuser, accused), outbox);
            }
            Input::Spread(token, origin, item) => self.spread_event(now, token, (origin, item), outbox),
            Input::Challenged(challenge, answer) => {
                self.judge(now, JudgeInput::Challenged(challenge, answer), outbox);
            }
            Input::AgentAnswered(answer) => self.judge(now, JudgeInput::AgentAnswered(answer), outbox),
            Input::Persisted(write) => {
                let mut effects = Effects::default();
                self.engine.persisted(write, &mut effects);
                outbox.messages.append(&mut effects.messages);
            }
            Input::CheckpointDurable(mark) => self.checkpoint_durable(now, mark, outbox),
            Input::Summed(index, checksum) => self.corruption.summed(index, checksum),
            Input::TransferLeader(token, to) => self.transfer_leader(now, token, to, outbox),
            Input::AddServer(token, server) => self.add_server(now, token, server, outbox),
            Input::RemoveServer(token, server) => self.remove_server(now, token, server, outbox),
        }
    }

    /// Starts the end of a turn: appends the gathered proposals as one batch. The caller may then
    /// hand on the outbox, so that the disk writes while this server applies committed entries.
    /// [`Core::settle`] follows.
    pub fn decide(&mut self, now: Time, outbox: &mut Outbox) {
        if self.unreadable.is_some() {
            return;
        }
        self.judge(now, JudgeInput::Flush, outbox);
        self.propose_batch(now, outbox);
        self.advance(now, outbox);
    }

    /// Ends a turn: appends the gathered proposals as one batch and applies committed entries.
    pub fn settle(&mut self, now: Time, outbox: &mut Outbox) {
        if self.unreadable.is_some() {
            return;
        }
        self.timers.catch_up();
        loop {
            // The shell may have called [`Core::decide`] already. A second call would discard the
            // committed entries, which are not applied yet.
            if self.committed.is_empty() {
                self.decide(now, outbox);
            }
            let committed = std::mem::take(&mut self.committed);
            if let Some(last) = committed.last() {
                self.observer.committed(now, last.index);
            }
            for entry in &committed {
                if self.reads(entry) {
                    self.apply(now, entry, outbox);
                    self.unreadable = upgrade::unknown_format(&self.state, self.config.format);
                }
                if self.unreadable.is_some() {
                    return self.fall_silent(now, outbox);
                }
            }
            // After the entries: a leader serves once an entry of its own term is applied
            // (paper, 5.4.2).
            self.notice_role(now, outbox);
            self.tell_leader();
            // Last: a confirmed round may wait for an entry that was just applied.
            self.serve_readers(now, outbox);
            // Applying an entry or a role change can propose more: a turn ends when no work is
            // left.
            if committed.is_empty() && self.batch.is_empty() {
                break;
            }
        }
        self.judge(now, JudgeInput::Flush, outbox);
        // The engine ignored the snapshot, for example because it is past that index. Its state is
        // large, so it is dropped.
        self.arrived = None;
        outbox.snapshot_wanted |= self.engine.take_snapshot_wanted();
    }

    /// Advances consensus as far as possible, including newly committed entries.
    fn advance(&mut self, now: Time, outbox: &mut Outbox) {
        self.begin_reads(now);
        let mut effects = Effects::default();
        self.engine.turn(&mut effects);
        // Also if this server was set back: its disk may continue, but no promise depends on its
        // writes.
        if let Some(write) = effects.writes.last() {
            self.disk.written(now, write.number);
        }
        outbox.writes.append(&mut effects.writes);
        if self.set_back.is_none() {
            outbox.messages.append(&mut effects.messages);
        }
        if let Some(mark) = effects.installed.take() {
            self.install(now, mark, outbox);
        }
        for (round, index) in effects.reads.drain(..) {
            self.read_index.confirm(round, index);
        }
        self.committed = effects.committed;
    }

    /// Returns the measurements since the last call.
    pub fn take_observed(&mut self) -> Observed {
        Observed { judge: self.judge.take_counts(), ..std::mem::take(&mut self.observer.observed) }
    }

    /// Returns the replicated state as applied by this server.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Answers a query from the state. Remaining lock-delays come from the leader's timers.
    pub fn query(&self, now: Time, query: &Query) -> (LogIndex, Rows) {
        let (index, mut rows) = self.state.query(query);
        if let (Rows::QueuePosition(Reply::Delayed { remaining }), Query::QueuePosition { key, .. }) =
            (&mut rows, query)
        {
            *remaining = self.left_of_delay(now, key, *remaining);
        }
        (index, rows)
    }

    /// Answers a query that may match very many rows: returns at most `limit` bytes, or a listing
    /// to build elsewhere.
    pub fn query_view(&self, now: Time, query: &Query, limit: usize) -> (LogIndex, Listing) {
        match query {
            Query::QueuePosition { .. } => {
                let (index, rows) = self.query(now, query);
                (index, Listing::Rows(rows))
            }
            query => self.state.query_view(query, limit),
        }
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
        // A server that was set back has no reliable knowledge and must not redirect clients.
        let leader = self.engine.leader().filter(|_| self.set_back.is_none())?;
        (leader != self.config.id || self.is_serving()).then_some(leader)
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
            pending_proposals: self.pending.len(),
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

    fn peer(&mut self, now: Time, sender: ServerId, message: PeerMessage, outbox: &mut Outbox) {
        // A snapshot that this server has passed needs no state: the engine replies with its index.
        let is_news = message.snapshot.as_ref().is_some_and(|mark| mark.index > self.applied.0);
        // The frontend fetches the snapshot and returns with [`Input::Install`]. From the bare
        // message the engine would install a state that is not present.
        let unfetched = is_news.then_some("a snapshot that was not fetched");
        let trusted = self.engine.fault_point.breaks(Rule::MessagesAreWhole);
        match message.fault(sender, self.config.id).or(unfetched).filter(|_| !trusted) {
            None => {
                self.autopilot.heard(now, sender);
                // Before the engine sees it: the engine panics at a commit index not in its log.
                if let Some(known) = self.acknowledged_beyond(&message) {
                    return self.notice_set_back(now, sender, known, outbox);
                }
                let is_own = self.corruption_message(&message, outbox)
                    || self.judge_message(now, &message, outbox)
                    || self.mesh_message(now, &message)
                    || self.disk_message(now, &message);
                // A candidate that cannot persist its own vote would only disturb the cluster.
                let is_unfit =
                    message.kind == MessageKind::TimeoutNow && self.disk.stalled_for(now).is_some();
                if !is_own && !is_unfit {
                    if let Some(certain) = message.certain_position() {
                        self.own.peers.note(message.from, certain);
                    }
                    self.engine.step(message);
                }
            }
            Some(fault) => {
                let node = self.node_of(sender);
                tracing::warn!(server = sender.0, %node, reason = %fault, "dropped a message from another server");
            }
        }
    }

    /// Returns the log position that a heartbeat proves this server has acknowledged, if the server
    /// holds less. The engine must never receive such a heartbeat.
    fn acknowledged_beyond(&self, message: &PeerMessage) -> Option<LogPosition> {
        let known = LogPosition { term: message.term, last_index: message.commit };
        // A heartbeat's commit never exceeds the index that the receiver has acknowledged to this
        // leader, so the receiver holds that index or has lost it. An older leader is ignored:
        // entries that were acknowledged to it may have been replaced since.
        let is_beyond = message.kind == MessageKind::Heartbeat
            && message.term >= self.engine.term()
            && message.commit > self.engine.last_index();
        is_beyond.then_some(known)
    }

    /// Handles evidence that this server has lost acknowledged entries or votes: it must not vote,
    /// acknowledge or reply again.
    fn notice_set_back(&mut self, now: Time, by: ServerId, known: LogPosition, outbox: &mut Outbox) {
        let Some(set_back) = SetBack::find(self.config.id, self.log_position(), by, Some(known)) else {
            return;
        };
        tracing::error!("{set_back}");
        self.set_back = Some(set_back);
        self.serving = None;
        // Messages of this turn may depend on the lost entries or votes.
        outbox.messages.clear();
        self.step_down(now, outbox);
        // These are not in the log, so they are certainly not done.
        for (_, origin) in std::mem::take(&mut self.batch) {
            self.fail_proposal(now, origin, not_leader(), outbox);
        }
    }

    /// Handles an input after a set-back: records completed writes and rejects requests.
    fn handle_set_back(&mut self, input: Input, outbox: &mut Outbox) {
        match input {
            // The engine must know its writes; the messages that waited for them are never sent.
            Input::Persisted(write) => self.engine.persisted(write, &mut Effects::default()),
            Input::CheckpointDurable(mark) => self.engine.checkpoint_durable(mark),
            Input::Read(token, _) => outbox.refused_reads.push((token, not_leader())),
            Input::Propose(token, _)
            | Input::Renew(token, _)
            | Input::RenewLease(token, _)
            | Input::Accuse(token, ..)
            | Input::Spread(token, ..)
            | Input::TransferLeader(token, _)
            | Input::AddServer(token, _)
            | Input::RemoveServer(token, _) => outbox.fail(token, not_leader()),
            Input::Tick(_)
            | Input::Deadline(_)
            | Input::Peer(..)
            | Input::SetBack(..)
            | Input::Summed(..)
            | Input::Challenged(..)
            | Input::AgentAnswered(_)
            | Input::Install(..)
            | Input::Unreachable(_) => {}
        }
    }

    fn checkpoint_durable(&mut self, now: Time, mark: SnapshotMeta, outbox: &mut Outbox) {
        let compact = self.compaction_index(now, mark.index);
        self.engine.checkpoint_durable(mark);
        self.engine.compact(compact);
        // Only here may the log on disk shrink: the checkpoint that replaces it is durable (thesis,
        // 5).
        outbox.compact = Some(compact);
    }

    /// Passes a fetched snapshot to the engine. It holds committed entries only, so it is valid
    /// under any leader.
    fn arrive(
        &mut self,
        now: Time,
        sender: ServerId,
        message: PeerMessage,
        (mark, state): (SnapshotMeta, Box<State>),
    ) {
        // The engine accepts a snapshot only from the leader of its current term, and the fetch may
        // have outlasted an election. The message therefore gets the current leader and term.
        let Some(leader) = self.engine.leader().filter(|leader| *leader != self.config.id) else {
            return tracing::info!(
                index = mark.index.0,
                "no leader is known: the snapshot will be fetched again"
            );
        };
        self.autopilot.heard(now, sender);
        let (term, snapshot) = (self.engine.term(), Some(mark.clone()));
        self.engine.step(PeerMessage { from: leader, term, snapshot, ..message });
        self.arrived = Some((mark, state));
    }

    /// Replaces the state by the snapshot that the engine accepted.
    fn install(&mut self, now: Time, mark: SnapshotMeta, outbox: &mut Outbox) {
        let (arrived, state) =
            self.arrived.take().expect("the engine accepts only the snapshot that arrived");
        assert_eq!(arrived, mark, "the engine accepts the snapshot unchanged");
        tracing::info!(index = mark.index.0, "installed a snapshot, which replaces log and state");
        self.unreadable = upgrade::unknown_format(&state, self.config.format);
        self.state = *state;
        self.state.fault_point = self.engine.fault_point.clone();
        self.mesh.restart(&self.state);
        self.copy_state_of(mark.index);
        self.applied = (mark.index, mark.term);
        self.membership_index = mark.index;
        // This server proposed them as a former leader. They are in the snapshot or were
        // overwritten; this server cannot tell which.
        while self.pending.front().is_some_and(|pending| pending.index <= mark.index) {
            let pending = self.pending.pop_front().expect("the front exists");
            self.fail_proposal(now, pending.origin, lost_leadership(), outbox);
        }
        // Changes from earlier in this turn belong to the replaced state: written later, they would
        // corrupt the snapshot.
        outbox.changes.clear();
        outbox.checks.clear();
        outbox.install = Some(mark);
    }

    fn tick(&mut self, now: Time, wall: WallTime, outbox: &mut Outbox) {
        self.wall = wall;
        // First: a server that was paused must not mistake its own absence for that of others.
        self.watch_disk(now);
        (self.last_tick, self.ran_until) = (Some(now), Some(now));
        self.engine.tick();
        self.read_index.retry(now);
        // These readers would wait for an election; another server may know a leader already.
        if self.engine.leader().is_none() {
            self.read_index.drain().into_iter().for_each(|reader| self.refuse_reader(now, reader, outbox));
        } else if !self.engine.is_leader() {
            self.read_index
                .overdue(now)
                .into_iter()
                .for_each(|reader| self.refuse_reader(now, reader, outbox));
        }
        self.may_pass = DEADLINES_A_TICK;
        // A server with a corrupt state rejects renewals; another leader restarts the deadlines.
        if !self.corruption.is_known_here() {
            self.pass_deadlines(now);
        }
        self.run_autopilot(now, outbox);
        if self.is_serving() {
            self.check_for_corruption(now, outbox);
            self.tell_cluster_time(now, outbox);
        }
        self.judge(now, JudgeInput::Tick, outbox);
        self.tell_mesh(now, outbox);
    }

    /// Returns the origin of each proposal in the log, in log order.
    pub(crate) fn pending_origins(&mut self) -> impl Iterator<Item = &mut Origin> {
        self.pending.iter_mut().map(|pending| &mut pending.origin)
    }

    /// Proposes a command of the leader's own, with no caller to notify.
    pub(crate) fn gather_own(&mut self, command: Command) {
        self.batch.push((self.own(command), Origin::Nobody));
    }

    /// Records the caller that waits for the membership change at `index`.
    pub(crate) fn await_membership(&mut self, now: Time, index: LogIndex, token: Option<CallToken>) {
        let origin = token.map_or(Origin::Nobody, |token| Origin::Client(token, now));
        self.pending.push_back(PendingProposal { index, term: self.engine.term(), proposal: None, origin });
    }

    pub(crate) fn own(&self, command: Command) -> Proposal {
        Proposal { request: None, at: self.wall, command }
    }

    fn propose(&mut self, now: Time, token: CallToken, proposal: Proposal, outbox: &mut Outbox) {
        // A follower forwards nothing: the agent sends the request to the leader itself, under the
        // same request id.
        if !self.engine.is_leader() {
            return outbox.fail(token, not_leader());
        }
        // Limited before the log: a rejected request costs the other servers neither disk nor
        // memory.
        if self.pending.len() + self.batch.len() >= self.config.max_pending_proposals {
            let what = format!("{} writes wait for their commit", self.config.max_pending_proposals);
            return outbox.fail(token, Unavailable::Overloaded(what));
        }
        let command = upgrade::as_the_cluster_reads_it(&self.state, proposal.command);
        let proposal = Proposal { command, ..proposal };
        if let Err(why) = self.fits_format(&proposal.command) {
            return outbox.fail(token, why);
        }
        if judge::depends_on_liveness(&proposal.command) {
            return self.judge(now, JudgeInput::Proposal(token, proposal), outbox);
        }
        // Before the request, in the same batch, so that the request sees the lock as of the
        // leader's clock.
        self.end_delays_that_are_over(now, &proposal.command);
        self.batch.push((proposal, Origin::Client(token, now)));
    }

    fn propose_batch(&mut self, now: Time, outbox: &mut Outbox) {
        let (batch, proposals) = self.encode_batch(now, outbox);
        if batch.is_empty() {
            return;
        }
        match self.engine.propose(batch) {
            Ok(first) => {
                // The batch has consecutive indexes from here, in its own order. With the term they
                // identify these entries when they are applied.
                let (term, indexes) = (self.engine.term(), first.0..);
                self.observer.proposed(now, self.engine.last_index());
                self.pending.extend(indexes.zip(proposals).map(|(index, (proposal, origin))| {
                    PendingProposal { index: LogIndex(index), term, proposal: Some(proposal), origin }
                }));
            }
            Err(_) => {
                // The engine drops a batch for two reasons, and only one of them passes by waiting
                // here.
                let why = if self.engine.is_leader() && !self.engine.is_transferring() {
                    Unavailable::Overloaded("too many bytes wait for their commit".into())
                } else {
                    not_leader()
                };
                for (_, origin) in proposals {
                    self.fail_proposal(now, origin, why.clone(), outbox);
                }
            }
        }
    }

    /// Encodes the gathered proposals and rejects those that are too long for the log.
    fn encode_batch(&mut self, now: Time, outbox: &mut Outbox) -> (Vec<Bytes>, Vec<(Proposal, Origin)>) {
        let mut batch = Vec::with_capacity(self.batch.len());
        let mut proposals = Vec::with_capacity(self.batch.len());
        for (proposal, origin) in std::mem::take(&mut self.batch) {
            let data = format::encode(&proposal);
            // In the log it would block every follower forever: no frame could carry it.
            if data.len() > MAX_PROPOSAL_BYTES {
                let what =
                    format!("command of {} bytes exceeds the limit of {MAX_PROPOSAL_BYTES}", data.len());
                self.fail_proposal(now, origin, Unavailable::Denied(what), outbox);
                continue;
            }
            batch.push(Bytes::from(data));
            proposals.push((proposal, origin));
        }
        (batch, proposals)
    }

    fn fail_proposal(&mut self, now: Time, origin: Origin, why: Unavailable, outbox: &mut Outbox) {
        match origin {
            Origin::Client(token, _) => outbox.fail(token, why),
            // Not immediately: a full log or a transfer needs a moment to pass.
            Origin::Timer(subject) => self.timers.failed(subject, now + RETRY_PROPOSAL),
            Origin::Verdict(agent) => self.judge(now, JudgeInput::Verdict(agent, None), outbox),
            Origin::Nobody => {}
        }
    }

    fn read(&mut self, now: Time, token: CallToken, outbox: &mut Outbox) {
        if self.engine.is_leader() && self.engine.fault_point.breaks(Rule::ReadsWaitForTheirRound) {
            outbox.readable.push(token);
        } else if self.engine.leader().is_some() {
            self.read_index.arrive(now, Reader::Query(token));
        } else {
            self.refuse_reader(now, Reader::Query(token), outbox);
        }
    }

    /// Acknowledges a renewal after a round that begins after its arrival. Until then the session
    /// does not expire.
    fn renew(&mut self, now: Time, token: CallToken, id: SessionId, outbox: &mut Outbox) {
        // Between the proposal of an expiry and its outcome, a renewal would be acknowledged for a
        // session that the next entry ends.
        if self.timers.is_deciding(id) {
            return outbox.fail(token, expiry_is_being_decided());
        }
        if self.is_serving() && self.engine.fault_point.breaks(Rule::RenewalsWaitForTheirRound) {
            self.acknowledge_renewal(now, token, id, outbox);
        } else if self.engine.is_leader() {
            self.read_index.arrive(now, Reader::Renewal(token, id));
        } else {
            outbox.fail(token, not_leader());
        }
    }

    /// Replies to a renewal after its round: any expiry that was committed before the round is
    /// applied by now, whichever server led. The session gets a full TTL from the acknowledgement.
    fn acknowledge_renewal(&mut self, now: Time, token: CallToken, id: SessionId, outbox: &mut Outbox) {
        // The expiry was proposed because an earlier renewal had waited too long.
        let is_expiring = self.timers.is_deciding(id);
        if is_expiring {
            return outbox.fail(token, expiry_is_being_decided());
        }
        let session = self.state.session(id).cloned();
        if let Some(session) = session.as_ref().filter(|_| self.is_serving()) {
            self.timers.renew(now, id, session.spec.ttl);
        }
        outbox.replies.push((token, Response::Renewed(session)));
    }

    fn begin_reads(&mut self, now: Time) {
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

    fn serve_readers(&mut self, now: Time, outbox: &mut Outbox) {
        for reader in self.read_index.ready(self.applied.0) {
            match reader {
                Reader::Query(token) => outbox.readable.push(token),
                Reader::Renewal(token, id) => self.acknowledge_renewal(now, token, id, outbox),
                Reader::Lease(caller, renewal) => {
                    self.judge(now, JudgeInput::RoundOver(caller, renewal), outbox);
                }
                // The node was alive when the round began, so its force-leave has no effect.
                // Consul's reply is the same.
                Reader::Unchanged(token) => {
                    let index = LogIndex(self.applied.0.0 + self.state.index_base());
                    let applied = Applied { index, reply: Reply::Done };
                    outbox.replies.push((token, Response::Applied(applied)));
                }
            }
        }
    }

    fn apply(&mut self, now: Time, entry: &LogEntry, outbox: &mut Outbox) {
        let pending = self.take_pending(now, entry, outbox);
        let mut is_check = false;
        if entry.kind == EntryKind::Normal {
            // Empty entries begin a term or settle a membership; they do not affect the state.
            if !entry.data.is_empty() {
                is_check = self.apply_proposal(now, entry, pending, outbox);
            }
            self.engine.applied(entry);
        } else {
            self.membership_index = entry.index;
            let before = self.engine.membership().all();
            self.engine.applied(entry);
            // The change is in effect but not settled: its caller waits for one more entry.
            if let Some(PendingProposal { origin: Origin::Client(token, _), .. }) = pending {
                // The same path as for the first reply, so that a retry never gets an earlier one.
                self.autopilot.waits_for_membership.push(token);
            }
            self.notice_membership(&before);
        }
        self.applied = (entry.index, entry.term);
        self.tell_of_membership(outbox);
        if is_check {
            self.corruption.applied(now, entry.index);
            // With the number of earlier changes: the checkpoint must be of exactly this index on
            // every server.
            outbox.checks.push((outbox.changes.len(), self.snapshot_meta()));
        }
    }

    /// Applies a command. Returns `true` if it was a corruption check.
    fn apply_proposal(
        &mut self,
        now: Time,
        entry: &LogEntry,
        pending: Option<PendingProposal>,
        outbox: &mut Outbox,
    ) -> bool {
        let (proposal, origin) = match pending {
            // Index and term match, so the entry is this very proposal and need not be decoded.
            Some(PendingProposal { proposal: Some(proposal), origin, .. }) => (proposal, origin),
            _ => (decode(entry), Origin::Nobody),
        };
        let proposal = self.fault_injected(without_minority(proposal, self.engine.membership()));
        let news = outbox.changes.len();
        let Outbox { changes, removed, .. } = outbox;
        let applied = self.state.apply_keeping(entry.index, entry.term, &proposal, changes, removed);
        self.mesh.follow(&self.state, &outbox.changes[news..]);
        self.tell_verdict(now, &proposal.command, &applied);
        // Ids are never reused, so the memory of removed servers would only grow.
        if let Command::ForgetServer(server) = proposal.command {
            self.own.peers.forget(server);
        }
        // Before it serves it has no deadlines: all restart when it begins to serve.
        if self.is_serving() {
            // The timers follow the changes; after a restore they restart.
            self.timers.note_all(now, &outbox.changes[news..]);
            self.observer.applied(now, &outbox.changes[news..], &self.state);
            self.judge.applied(now, &self.state, &outbox.changes[news..]);
        }
        match origin {
            Origin::Client(token, came) => {
                let applied = self.with_remaining_delay(came, &proposal.command, &applied);
                outbox.replies.push((token, Response::Applied(applied)));
            }
            Origin::Timer(subject) => self.timers.decided(&subject),
            Origin::Verdict(agent) => {
                let is_one = applied.reply == Reply::Succeeded(true);
                let failure = verdict_of(&proposal.command).filter(|_| is_one);
                self.judge(now, JudgeInput::Verdict(agent, failure), outbox);
            }
            Origin::Nobody => {}
        }
        proposal.command == Command::CorruptionCheck
    }

    /// Returns the pending proposal of this entry, and fails the ones that the entry replaced.
    fn take_pending(&mut self, now: Time, entry: &LogEntry, outbox: &mut Outbox) -> Option<PendingProposal> {
        // In log order: an earlier proposal in the queue was replaced by entries of another leader.
        while self.pending.front().is_some_and(|pending| pending.index <= entry.index) {
            let pending = self.pending.pop_front().expect("the front exists");
            if (pending.index, pending.term) == (entry.index, entry.term) {
                return Some(pending);
            }
            // Reported as unknown, the safe side: the client retries under the same request id.
            self.fail_proposal(now, pending.origin, lost_leadership(), outbox);
        }
        None
    }

    /// Starts or stops serving.
    fn notice_role(&mut self, now: Time, outbox: &mut Outbox) {
        // After an entry of its own term is applied: before, the state may lack earlier replies.
        let may_lead = self.engine.leads_its_term() && self.set_back.is_none();
        let leads = may_lead.then(|| self.engine.term());
        let led = std::mem::replace(&mut self.led, self.engine.is_leader());
        // Also if it led without serving: accepted proposals may be waiting.
        if (led && !self.led) || (self.serving.is_some() && leads != self.serving) {
            let term = self.engine.term().0;
            match self.engine.leader() {
                // A leader without replies from a majority steps down on its own, within its term.
                None if leads.is_none() && self.set_back.is_none() => {
                    tracing::warn!(term, "this server no longer leads, and no other leader is known");
                }
                _ => tracing::info!(term, "this server no longer leads"),
            }
            self.serving = None;
            self.step_down(now, outbox);
        }
        if leads == self.serving {
            return;
        }
        self.serving = leads;
        if let Some(term) = leads {
            tracing::info!(term = term.0, "this server leads");
            // In full, regardless of the time left: clocks of two servers are never compared, so a
            // delay may last longer, never shorter.
            self.timers.restart(now, &self.state);
            self.forget_deadlines();
            self.judge(now, JudgeInput::Start, outbox);
            // A leader may have died between its first entry and this one, so each leader that
            // finds none proposes it; only the first counts.
            if self.state.cluster_id().is_empty() {
                let ClusterStart { cluster_id, servers, lease_key } = self.config.cluster_start.clone();
                self.gather_own(Command::Bootstrap { cluster_id, servers, lease_key });
            }
            self.start_autopilot(now);
        }
    }

    /// Logs the leader once per change, so that operators can follow an election.
    fn tell_leader(&mut self) {
        let leader = self.engine.leader();
        if leader == self.told_leader {
            return;
        }
        let former = std::mem::replace(&mut self.told_leader, leader);
        let (me, term) = (Some(self.config.id), self.engine.term().0);
        match (leader, former) {
            // Its own leadership is logged when it starts to serve and when it stops.
            (own, _) if own == me => {}
            (None, own) if own == me => {}
            (Some(leader), _) => {
                tracing::info!(node = %self.node_of(leader), server = leader.0, term, "following the leader");
            }
            (None, Some(former)) => {
                let node = self.node_of(former);
                tracing::warn!(%node, server = former.0, term, "lost the leader: waiting for an election");
            }
            (None, None) => {}
        }
    }

    /// Clears the request id if a test broke the rule of retries: a retry then looks new.
    fn fault_injected(&self, proposal: Proposal) -> Proposal {
        let request = proposal.request.filter(|_| !self.engine.fault_point.breaks(Rule::RetriesDoNothing));
        Proposal { request, ..proposal }
    }

    pub(crate) fn step_down(&mut self, now: Time, outbox: &mut Outbox) {
        self.timers.clear();
        self.observer.step_down();
        // A round that was begun as leader is lost with the role; readers are redirected to the
        // next leader at once.
        for reader in self.read_index.drain() {
            self.refuse_reader(now, reader, outbox);
        }
        // They are in the log, and the next leader may or may not commit them.
        for pending in std::mem::take(&mut self.pending) {
            self.fail_proposal(now, pending.origin, lost_leadership(), outbox);
        }
        self.autopilot.step_down(outbox);
        self.corruption.step_down();
        self.judge(now, JudgeInput::Stop, outbox);
    }

    fn refuse_reader(&mut self, now: Time, reader: Reader, outbox: &mut Outbox) {
        match reader {
            Reader::Query(token) => outbox.refused_reads.push((token, not_leader())),
            Reader::Renewal(token, _) | Reader::Unchanged(token) => outbox.fail(token, not_leader()),
            Reader::Lease(caller, _) => {
                self.judge(now, JudgeInput::RoundFailed(caller, not_leader()), outbox);
            }
        }
    }
}

fn decode(entry: &LogEntry) -> Proposal {
    // Skipping an entry would make this state diverge; stopping loses nothing.
    format::decode(&entry.data)
        .unwrap_or_else(|error| panic!("log entry {} cannot be read: {error}", entry.index))
}

fn verdict_of(command: &Command) -> Option<&NodeFailure> {
    match command {
        Command::FailNode(failure) => Some(failure),
        _ => None,
    }
}
