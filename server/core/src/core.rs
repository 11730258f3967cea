//! The server itself: takes one input after the other, and says what shall happen next.

use crate::autopilot::AutopilotState;
use crate::corruption::CorruptionChecks;
use crate::disk_watch::DiskWatch;
use crate::disks::RefusingDisks;
use crate::fault_injection::Rule;
use crate::input::{CallToken, Input};
use crate::judge::{Judge, without_minority};
use crate::mesh::ServedMesh;
use crate::observed::{Observed, Observer};
use crate::outbox::{Outbox, lost_leadership, not_leader};
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
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{MAX_FRAME_BYTES, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The longest command that is taken: what is in the log must fit into a frame for the other
/// servers.
const MAX_PROPOSAL_BYTES: usize = MAX_FRAME_BYTES / 2;
/// How long the leader waits before it proposes an end again that came to nothing.
pub(crate) const RETRY_PROPOSAL: Duration = Duration::from_secs(1);
/// How many deadlines pass from one tick to the next: those of a node with many locks pass all at
/// once.
const DEADLINES_A_TICK: usize = 200;

/// What a server must be told about itself.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Who it is.
    pub id: ServerId,
    /// Where its random draws begin.
    pub seed: u64,
    /// What the cluster begins as, if it has not begun.
    pub cluster_start: ClusterStart,
    /// Windows and delays.
    pub timers: TimerConfig,
    /// How many proposals may wait for their commit.
    pub max_pending_proposals: usize,
    /// How many bytes of log are kept behind a durable snapshot for followers that lag.
    pub log_keep_bytes: u64,
    /// How many are kept behind a snapshot that a follower may be fetching; never less than the
    /// others.
    pub log_keep_fetching_bytes: u64,
    /// When it stands for election.
    pub election: ElectionTimeout,
    /// The newest format that this build reads: [`lockmesh_protocol::format::NEWEST`].
    pub format: u8,
    /// How long after a corruption check a leader begins the next one, where something was written
    /// since.
    pub corruption_check_interval: Duration,
    /// The time without a durable write after which the disk is stalled; never less than two
    /// election timeouts.
    pub stall_timeout: Duration,
}

/// What the first leader of a cluster writes into its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStart {
    /// The cluster's id, a UUID.
    pub cluster_id: String,
    /// Its first servers.
    pub servers: Vec<Server>,
    /// What the secrets of its leases are derived from: random, and told to nobody else.
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
    /// That this server holds less than it acknowledged: then it is silent.
    set_back: Option<SetBack>,
    /// That the cluster is at a format which this build cannot read: then it does nothing any more.
    pub(crate) unreadable: Option<FormatError>,
    pub(crate) corruption: CorruptionChecks,
    pub(crate) disk: DiskWatch,
    pub(crate) refusing_disks: RefusingDisks,
    pub(crate) timers: Timers,
    /// How many more deadlines may pass until the next tick.
    pub(crate) may_pass: usize,
    pub(crate) judge: Judge,
    pub(crate) mesh: ServedMesh,
    pub(crate) read_index: ReadIndex,
    /// Entries that are committed and not yet applied: none outside a turn.
    committed: Vec<LogEntry>,
    /// Proposals of this turn, not yet in the log.
    pub(crate) batch: Vec<(Proposal, Origin)>,
    /// Proposals in the log, in order, until they are applied.
    pending: VecDeque<PendingProposal>,
    pub(crate) applied: (LogIndex, Term),
    membership_index: LogIndex,
    /// The snapshot of another server, until the engine has taken it or not.
    arrived: Option<(SnapshotMeta, Box<State>)>,
    /// Whether the engine led at the end of the last turn.
    led: bool,
    /// Who was last said to lead, in the log.
    told_leader: Option<ServerId>,
    /// The term in which this server leads and serves.
    pub(crate) serving: Option<Term>,
    pub(crate) wall: WallTime,
    pub(crate) last_tick: Option<Time>,
    pub(crate) observer: Observer,
}

/// Who wants to know what became of a proposal.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A client, and when it asked.
    Client(CallToken, Time),
    Timer(Subject),
    /// A verdict on this agent.
    Verdict(AgentNumber),
    Nobody,
}

#[derive(Debug)]
struct PendingProposal {
    index: LogIndex,
    term: Term,
    /// Kept so that the leader need not decode what it encoded; none for a membership change.
    proposal: Option<Proposal>,
    origin: Origin,
}

impl Core {
    /// Opens a server on what its disk held.
    pub fn new(config: CoreConfig, recovered: Recovered) -> Self {
        let Recovered { hard_state, snapshot, entries, base, state, own } = recovered;
        let unreadable = upgrade::unknown_format(&state, config.format);
        let stall_timeout = config.stall_timeout.max(2 * config.election.timeout());
        let mut engine =
            Engine::new(config.id, hard_state, &snapshot, base, entries, (config.seed, config.election));
        // No other server can win, so there is no election time-out to wait for.
        if engine.is_alone() {
            engine.campaign();
        }
        Self {
            timers: Timers::new(config.timers),
            judge: Judge::new(config.seed),
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
            observer: Observer::default(),
        }
    }

    /// Breaks a rule on purpose, for tests that must find it.
    #[cfg(feature = "fault-injection")]
    pub fn break_rule(&mut self, rule: Rule) {
        self.engine.break_rule(rule);
        self.state.fault_point = self.engine.fault_point.clone();
    }

    /// What the disk of each of a cluster's first voters stands for before its first start.
    pub fn bootstrap_snapshot(voters: &[ServerId]) -> SnapshotMeta {
        SnapshotMeta { index: LogIndex(1), term: Term(1), membership: Membership::of_voters(voters) }
    }

    /// Takes one input. What was gathered goes into the log when the turn ends: see
    /// [`Core::settle`].
    pub fn handle(&mut self, now: Time, input: Input, outbox: &mut Outbox) {
        if self.unreadable.is_some() {
            return;
        }
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
            // Any age of answer will do, so it needs neither a leader nor a round.
            Input::Read(token, Consistency::Stale) => outbox.readable.push(token),
            Input::Read(token, _) => self.read(now, token, outbox),
            Input::Renew(token, session) => self.renew(now, token, session, outbox),
            Input::RenewLease(token, renewal) => self.renew_lease(now, token, renewal, outbox),
            Input::Accuse(token, accuser, accused) => self.accuse(now, token, (accuser, accused), outbox),
            Input::Spread(token, origin, item) => self.spread_event(now, token, (origin, item), outbox),
            Input::Challenged(challenge, answer) => self.challenged(now, challenge, answer, outbox),
            Input::AgentAnswered(answer) => self.agent_answered(now, answer, outbox),
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

    /// Begins to end a turn: what was gathered becomes one batch. What the outbox holds then may be
    /// handed on at once, so that the disk is at work while this one applies what was committed.
    /// [`Core::settle`] follows.
    pub fn decide(&mut self, now: Time, outbox: &mut Outbox) {
        if self.unreadable.is_some() {
            return;
        }
        self.flush_judge(outbox);
        self.propose_batch(now, outbox);
        self.advance(now, outbox);
    }

    /// Ends a turn: what was gathered becomes one batch, and all that can happen now happens.
    pub fn settle(&mut self, now: Time, outbox: &mut Outbox) {
        if self.unreadable.is_some() {
            return;
        }
        self.timers.catch_up();
        loop {
            // The shell may have called [`Core::decide`] already. Going on now would throw away
            // what that committed and nobody has applied.
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
            // Last of all: what was just applied may be what a confirmed round waits for.
            self.serve_readers(now, outbox);
            // Applying an entry or a new role proposes more: a turn ends when nothing is left to
            // do.
            if committed.is_empty() && self.batch.is_empty() {
                break;
            }
        }
        self.flush_judge(outbox);
        // The engine did not want it, as where it is past that index. The state in it is large, and
        // goes.
        self.arrived = None;
        outbox.snapshot_wanted |= self.engine.take_snapshot_wanted();
    }

    /// Lets consensus go on, up to what it has committed.
    fn advance(&mut self, now: Time, outbox: &mut Outbox) {
        self.begin_reads(now);
        let mut effects = Effects::default();
        self.engine.turn(&mut effects);
        // Also of a server that was set back: its disk may go on, but nothing is promised of what
        // it writes.
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

    /// What was measured since this was asked last.
    pub fn take_observed(&mut self) -> Observed {
        std::mem::take(&mut self.observer.observed)
    }

    /// The replicated state as this server has applied it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Answers a query from the state, with what only the leader knows of its delays.
    pub fn query(&self, now: Time, query: &Query) -> (LogIndex, Rows) {
        let (index, mut rows) = self.state.query(query);
        if let (Rows::QueuePosition(Reply::Delayed { remaining }), Query::QueuePosition { key, .. }) =
            (&mut rows, query)
        {
            *remaining = self.left_of_delay(now, key, *remaining);
        }
        (index, rows)
    }

    /// The same for a query that may be about very many rows: of no more than `limit` bytes, or to
    /// be built elsewhere.
    pub fn query_view(&self, now: Time, query: &Query, limit: usize) -> (LogIndex, Listing) {
        match query {
            Query::QueuePosition { .. } => {
                let (index, rows) = self.query(now, query);
                (index, Listing::Rows(rows))
            }
            query => self.state.query_view(query, limit),
        }
    }

    /// Whether what became of a position in a queue can be told at once: it is a fact of the log's
    /// beginning, which no other leader can undo, and this one has applied that much.
    pub fn knows_queue_position(&self, queue_position: LogIndex) -> bool {
        self.is_serving() && queue_position.0 <= self.applied.0.0 + self.state.index_base()
    }

    /// Whether this server leads and serves.
    pub fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// Whom this server takes for the leader; itself only once it serves.
    pub fn leader(&self) -> Option<ServerId> {
        // What a server says that was set back rests on nothing: it sends nobody anywhere.
        let leader = self.engine.leader().filter(|_| self.set_back.is_none())?;
        (leader != self.config.id || self.is_serving()).then_some(leader)
    }

    /// What a snapshot of the present state stands for.
    pub fn snapshot_meta(&self) -> SnapshotMeta {
        let (index, term) = self.applied;
        SnapshotMeta { index, term, membership: self.engine.membership().clone() }
    }

    /// The hard state that must be durable before a snapshot of the present state is.
    pub fn hard_state(&self) -> HardState {
        self.engine.hard_state()
    }

    /// Who votes and who learns.
    pub fn membership(&self) -> &Membership {
        self.engine.membership()
    }

    /// Where this server's log stands, for people.
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

    /// How far this server has come: never less than what it acknowledged.
    pub fn log_position(&self) -> LogPosition {
        LogPosition { term: self.engine.term(), last_index: self.engine.last_index() }
    }

    /// How far the other servers have certainly come.
    pub fn peer_memory(&self) -> &PeerMemory {
        &self.own.peers
    }

    /// What this server knows for itself: it belongs into each of its checkpoints.
    pub fn own_memory(&self) -> &OwnMemory {
        &self.own
    }

    /// That this server's disk was set back, so that it must be silent.
    pub fn set_back(&self) -> Option<&SetBack> {
        self.set_back.as_ref()
    }

    /// How far another server is known to be, where this one leads.
    pub fn progress(&self, server: ServerId) -> Option<Progress> {
        self.engine.progress(server)
    }

    fn peer(&mut self, now: Time, sender: ServerId, message: PeerMessage, outbox: &mut Outbox) {
        // One that this server is past needs no state: the engine answers how far the log reaches.
        let is_news = message.snapshot.as_ref().is_some_and(|mark| mark.index > self.applied.0);
        // The frontend fetches the snapshot and comes back with [`Input::Install`]. From the bare
        // message the engine would install a state that is not here.
        let unfetched = is_news.then_some("a snapshot that was not fetched");
        let trusted = self.engine.fault_point.breaks(Rule::MessagesAreWhole);
        match message.fault(sender, self.config.id).or(unfetched).filter(|_| !trusted) {
            None => {
                self.autopilot.heard(now, sender);
                // Before the engine sees it, which panics at a commit index that is not in its log.
                if let Some(known) = self.acknowledged_beyond(&message) {
                    return self.notice_set_back(now, sender, known, outbox);
                }
                let is_own = self.corruption_message(&message, outbox)
                    || self.judge_message(now, &message, outbox)
                    || self.mesh_message(now, &message)
                    || self.disk_message(now, &message);
                // A candidate whose vote for itself cannot become durable would only disturb.
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
                tracing::warn!(server = sender.0, %node, reason = %fault, "dropped a message of another server");
            }
        }
    }

    /// What a heartbeat says that this server has acknowledged, where it holds less. The engine
    /// must never hear it.
    fn acknowledged_beyond(&self, message: &PeerMessage) -> Option<LogPosition> {
        let known = LogPosition { term: message.term, last_index: message.commit };
        // A heartbeat's commit is never more than the receiver has acknowledged to this leader, so
        // it holds that much or has lost it. An older leader counts no more: what it was told may
        // have been replaced since.
        let is_beyond = message.kind == MessageKind::Heartbeat
            && message.term >= self.engine.term()
            && message.commit > self.engine.last_index();
        is_beyond.then_some(known)
    }

    /// Another server remembers more of this one than it holds: it must not vote, acknowledge or
    /// answer again.
    fn notice_set_back(&mut self, now: Time, by: ServerId, known: LogPosition, outbox: &mut Outbox) {
        let Some(set_back) = SetBack::find(self.config.id, self.log_position(), by, Some(known)) else {
            return;
        };
        tracing::error!("{set_back}");
        self.set_back = Some(set_back);
        self.serving = None;
        // What was said in this turn may rest on what this server has forgotten.
        outbox.messages.clear();
        self.step_down(now, outbox);
        // They are not in the log, so they are certainly not done.
        for (_, origin) in std::mem::take(&mut self.batch) {
            self.fail_proposal(now, origin, not_leader(), outbox);
        }
    }

    /// What was written is still told; everything else comes to nothing.
    fn handle_set_back(&mut self, input: Input, outbox: &mut Outbox) {
        match input {
            // The engine must hear of its writes, but what was waiting for them is never sent.
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
        // Only here may the log on disk shrink: the checkpoint that replaces it is durable
        // (thesis, 5).
        outbox.compact = Some(compact);
    }

    /// A snapshot is of committed entries only, so it is good whoever leads by now.
    fn arrive(
        &mut self,
        now: Time,
        sender: ServerId,
        message: PeerMessage,
        (mark, state): (SnapshotMeta, Box<State>),
    ) {
        // The engine takes a snapshot only from a leader of its own term, and fetching it may have
        // outlasted an election. So the message is given the leader and the term of now.
        let Some(leader) = self.engine.leader().filter(|leader| *leader != self.config.id) else {
            return tracing::info!(
                index = mark.index.0,
                "no leader is known: the snapshot is fetched again later"
            );
        };
        self.autopilot.heard(now, sender);
        let (term, snapshot) = (self.engine.term(), Some(mark.clone()));
        self.engine.step(PeerMessage { from: leader, term, snapshot, ..message });
        self.arrived = Some((mark, state));
    }

    /// The engine took the snapshot: the state is what it stands for.
    fn install(&mut self, now: Time, mark: SnapshotMeta, outbox: &mut Outbox) {
        let (arrived, state) =
            self.arrived.take().expect("the engine takes no snapshot but the one that arrived");
        assert_eq!(arrived, mark, "the engine takes the snapshot as it is");
        tracing::info!(index = mark.index.0, "installed a snapshot in place of log and state");
        self.unreadable = upgrade::unknown_format(&state, self.config.format);
        self.state = *state;
        self.state.fault_point = self.engine.fault_point.clone();
        self.mesh.restart(&self.state);
        self.copy_state_of(mark.index);
        self.applied = (mark.index, mark.term);
        self.membership_index = mark.index;
        // This server proposed them as a leader of the past. They are in the snapshot, or
        // overtaken: nobody here can tell which.
        while self.pending.front().is_some_and(|pending| pending.index <= mark.index) {
            let pending = self.pending.pop_front().expect("the front was just seen");
            self.fail_proposal(now, pending.origin, lost_leadership(), outbox);
        }
        // What was applied earlier in this turn is of the state that is gone: written later, it
        // would spoil the snapshot.
        outbox.changes.clear();
        outbox.checks.clear();
        outbox.install = Some(mark);
    }

    fn tick(&mut self, now: Time, wall: WallTime, outbox: &mut Outbox) {
        self.wall = wall;
        // First: a server that did not run must not take its own absence for that of others.
        self.watch_disk(now);
        self.move_deadlines_if_late(now);
        self.last_tick = Some(now);
        self.engine.tick();
        self.read_index.retry(now);
        // Whoever waits would wait for an election; another server may know of a leader by now.
        if self.engine.leader().is_none() {
            self.read_index.drain().into_iter().for_each(|reader| self.refuse_reader(reader, outbox));
        } else if !self.engine.is_leader() {
            self.read_index.overdue(now).into_iter().for_each(|reader| self.refuse_reader(reader, outbox));
        }
        self.may_pass = DEADLINES_A_TICK;
        // One whose state is corrupt refuses whoever would renew: another leader begins anew.
        if !self.corruption.is_known_here() {
            self.pass_deadlines(now);
        }
        self.run_autopilot(now, outbox);
        if self.is_serving() {
            self.check_for_corruption(now, outbox);
            self.tell_cluster_time(now, outbox);
        }
        self.tick_judge(now, outbox);
        self.tell_mesh(now, outbox);
    }

    /// What waits for each proposal in the log, in the order of the log.
    pub(crate) fn pending_origins(&mut self) -> impl Iterator<Item = &mut Origin> {
        self.pending.iter_mut().map(|pending| &mut pending.origin)
    }

    /// Proposes a command of the leader's own, of which nobody wants to hear.
    pub(crate) fn gather_own(&mut self, command: Command) {
        self.batch.push((self.own(command), Origin::Nobody));
    }

    /// Whether this leader has proposed such a command that is not applied yet.
    pub(crate) fn is_on_its_way(&self, is_meant: impl Fn(&Command) -> bool) -> bool {
        let pending = self.pending.iter().filter_map(|pending| pending.proposal.as_ref());
        let proposals = self.batch.iter().map(|(proposal, _)| proposal);
        pending.chain(proposals).any(|proposal| is_meant(&proposal.command))
    }

    /// Notes who waits for the change of membership at `index`.
    pub(crate) fn await_membership(&mut self, now: Time, index: LogIndex, token: Option<CallToken>) {
        let origin = token.map_or(Origin::Nobody, |token| Origin::Client(token, now));
        self.pending.push_back(PendingProposal { index, term: self.engine.term(), proposal: None, origin });
    }

    pub(crate) fn own(&self, command: Command) -> Proposal {
        Proposal { request: None, at: self.wall, command }
    }

    fn propose(&mut self, now: Time, token: CallToken, proposal: Proposal, outbox: &mut Outbox) {
        // A follower passes nothing on: the agent goes to the leader itself, under the same request
        // id.
        if !self.engine.is_leader() {
            return outbox.fail(token, not_leader());
        }
        // A limit in front of the log: what is refused here costs the others neither disk nor
        // memory.
        if self.pending.len() + self.batch.len() >= self.config.max_pending_proposals {
            let what = format!("{} writes wait for their commit", self.config.max_pending_proposals);
            return outbox.fail(token, Unavailable::Overloaded(what));
        }
        let command = self.as_the_cluster_reads_it(proposal.command);
        let proposal = Proposal { command, ..proposal };
        if let Err(why) = self.fits_format(&proposal.command) {
            return outbox.fail(token, why);
        }
        // Some wait until it is known whether a node lives.
        let Some(proposal) = self.hold_for_judge(now, token, proposal, outbox) else { return };
        // In front of the request, in the same batch: it finds the lock as it is by the leader's
        // clock.
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
                // The batch has consecutive indexes from here on, in its own order. With the term
                // they tell later whether it is these entries that were applied.
                let (term, indexes) = (self.engine.term(), first.0..);
                self.observer.proposed(now, self.engine.last_index());
                self.pending.extend(indexes.zip(proposals).map(|(index, (proposal, origin))| {
                    PendingProposal { index: LogIndex(index), term, proposal: Some(proposal), origin }
                }));
            }
            Err(_) => {
                // The engine drops a batch for two reasons, and only one of them goes away by
                // waiting here.
                let why = if self.engine.is_leader() && self.autopilot.transfer.is_none() {
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

    /// What was gathered, and its bytes, but for what is too long for the log.
    fn encode_batch(&mut self, now: Time, outbox: &mut Outbox) -> (Vec<Bytes>, Vec<(Proposal, Origin)>) {
        let mut batch = Vec::with_capacity(self.batch.len());
        let mut proposals = Vec::with_capacity(self.batch.len());
        for (proposal, origin) in std::mem::take(&mut self.batch) {
            let data = format::encode(&proposal);
            // In the log it would stop every follower for good: no frame could carry it.
            if data.len() > MAX_PROPOSAL_BYTES {
                let what =
                    format!("a command of {} bytes, but at most {MAX_PROPOSAL_BYTES} are taken", data.len());
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
            // Not at once: what refused it, a full log or a transfer, needs a moment to pass.
            Origin::Timer(subject) => self.timers.failed(subject, now + RETRY_PROPOSAL),
            Origin::Verdict(agent) => self.verdict_is_known(now, agent, None),
            Origin::Nobody => {}
        }
    }

    fn read(&mut self, now: Time, token: CallToken, outbox: &mut Outbox) {
        if self.engine.is_leader() && self.engine.fault_point.breaks(Rule::ReadsWaitForTheirRound) {
            outbox.readable.push(token);
        } else if self.engine.leader().is_some() {
            self.read_index.arrive(now, Reader::Query(token));
        } else {
            self.refuse_reader(Reader::Query(token), outbox);
        }
    }

    /// A renewal is acknowledged by a round that begins after its arrival. Until then the session
    /// does not expire.
    fn renew(&mut self, now: Time, token: CallToken, id: SessionId, outbox: &mut Outbox) {
        // From the proposal of the end until its outcome: a renewal in between would be
        // acknowledged for a session that the next entry ends.
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

    /// Answers a renewal after its round: an end that was committed before it is applied by now,
    /// whichever server led then. The session has a whole TTL from the acknowledgement.
    fn acknowledge_renewal(&mut self, now: Time, token: CallToken, id: SessionId, outbox: &mut Outbox) {
        // Its expiry was proposed when an earlier renewal had waited for too long.
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
        // lost one is only begun again after its time-out.
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
                Reader::Lease(caller, renewal) => self.answer_renewal(caller, renewal, outbox),
                Reader::Unchanged(token) => self.answer_unchanged(token, outbox),
            }
        }
    }

    fn apply(&mut self, now: Time, entry: &LogEntry, outbox: &mut Outbox) {
        let pending = self.take_pending(now, entry, outbox);
        let mut is_check = false;
        if entry.kind == EntryKind::Normal {
            // Empty entries begin a term or settle a membership, and mean nothing to the state.
            if !entry.data.is_empty() {
                is_check = self.apply_proposal(now, entry, pending, outbox);
            }
            self.engine.applied(entry);
        } else {
            self.membership_index = entry.index;
            let before = self.engine.membership().all();
            self.engine.applied(entry);
            // The change is in force, but not settled: its caller waits for one more entry.
            if let Some(PendingProposal { origin: Origin::Client(token, _), .. }) = pending {
                // Through the same gate as the first answer, so that a retry is never told earlier
                // than that.
                self.autopilot.waits_for_membership.push(token);
            }
            self.notice_membership(&before);
        }
        self.applied = (entry.index, entry.term);
        self.tell_of_membership(outbox);
        if is_check {
            self.corruption.applied(now, entry.index);
            // With how many changes came before: the checkpoint must be of exactly this index on
            // every server.
            outbox.checks.push((outbox.changes.len(), self.snapshot_meta()));
        }
    }

    /// Applies a command; whether it was a corruption check.
    fn apply_proposal(
        &mut self,
        now: Time,
        entry: &LogEntry,
        pending: Option<PendingProposal>,
        outbox: &mut Outbox,
    ) -> bool {
        let (proposal, origin) = match pending {
            // Index and term were compared, so the entry is this very proposal and need not be
            // decoded.
            Some(PendingProposal { proposal: Some(proposal), origin, .. }) => (proposal, origin),
            _ => (decode(entry), Origin::Nobody),
        };
        let proposal = self.fault_injected(without_minority(proposal, self.engine.membership()));
        let news = outbox.changes.len();
        let Outbox { changes, removed, .. } = outbox;
        let applied = self.state.apply_keeping(entry.index, entry.term, &proposal, changes, removed);
        self.mesh.follow(&self.state, &outbox.changes[news..]);
        self.tell_verdict(now, &proposal.command, &applied);
        // An id is never given again, and what is remembered of one that left would only grow.
        if let Command::ForgetServer(server) = proposal.command {
            self.own.peers.forget(server);
        }
        // Before it serves it has no deadlines: all start afresh when it begins to.
        if self.is_serving() {
            // Timers learn what became true; after a restore they start afresh.
            self.timers.note_all(now, &outbox.changes[news..]);
            self.observer.applied(now, &outbox.changes[news..], &self.state);
            self.note_members(now, &outbox.changes[news..]);
        }
        match origin {
            Origin::Client(token, came) => {
                let applied = self.with_remaining_delay(came, &proposal.command, &applied);
                outbox.replies.push((token, Response::Applied(applied)));
            }
            Origin::Timer(subject) => self.timers.decided(&subject),
            Origin::Verdict(agent) => {
                let is_one = applied.reply == Reply::Succeeded(true);
                self.verdict_is_known(now, agent, verdict_of(&proposal.command).filter(|_| is_one));
            }
            Origin::Nobody => {}
        }
        proposal.command == Command::CorruptionCheck
    }

    /// The pending proposal that this entry is, after those were failed that it overtook.
    fn take_pending(&mut self, now: Time, entry: &LogEntry, outbox: &mut Outbox) -> Option<PendingProposal> {
        // In order of the log: whoever stands before this entry was overtaken by entries of another
        // leader.
        while self.pending.front().is_some_and(|pending| pending.index <= entry.index) {
            let pending = self.pending.pop_front().expect("the front was just seen");
            if (pending.index, pending.term) == (entry.index, entry.term) {
                return Some(pending);
            }
            // Said as unknown, the safe side: the client asks again under the same request id.
            self.fail_proposal(now, pending.origin, lost_leadership(), outbox);
        }
        None
    }

    /// Begins to serve, or stops.
    fn notice_role(&mut self, now: Time, outbox: &mut Outbox) {
        // Not before an entry of its own term is applied: the state may lack what others answered.
        let may_lead = self.engine.leads_its_term() && self.set_back.is_none();
        let leads = may_lead.then(|| self.engine.term());
        let led = std::mem::replace(&mut self.led, self.engine.is_leader());
        // Also where it led and never served: proposals may wait that it took before.
        if (led && !self.led) || (self.serving.is_some() && leads != self.serving) {
            let term = self.engine.term().0;
            match self.engine.leader() {
                // A leader that no majority answers steps down by itself, in its own term.
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
            // In full, whatever was left: the clocks of two servers are never compared, so a delay
            // may last longer, never shorter.
            self.timers.restart(now, &self.state);
            self.forget_deadlines();
            self.start_judge(now);
            // A leader may have died between its first entry and this one, so each that finds none
            // says it; only the first counts.
            if self.state.cluster_id().is_empty() {
                let ClusterStart { cluster_id, servers, lease_key } = self.config.cluster_start.clone();
                self.gather_own(Command::Bootstrap { cluster_id, servers, lease_key });
            }
            self.start_autopilot(now);
        }
    }

    /// Says in the log who leads, once for each change: operators follow an election by these
    /// lines.
    fn tell_leader(&mut self) {
        let leader = self.engine.leader();
        if leader == self.told_leader {
            return;
        }
        let former = std::mem::replace(&mut self.told_leader, leader);
        let (me, term) = (Some(self.config.id), self.engine.term().0);
        match (leader, former) {
            // Its own leadership is told when it begins to serve, and when it ends.
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

    /// The node of a server, for people. The founders are known before the roster is.
    pub(crate) fn node_of(&self, id: ServerId) -> &str {
        let founder = || self.config.cluster_start.servers.iter().find(|server| server.id == id);
        let server = self.state.server(id).map(Arc::as_ref).or_else(founder);
        server.map_or("unknown", |server| server.node.as_str())
    }

    /// Where a test broke the rule of retries: nothing tells one from something new.
    fn fault_injected(&self, proposal: Proposal) -> Proposal {
        let request = proposal.request.filter(|_| !self.engine.fault_point.breaks(Rule::RetriesDoNothing));
        Proposal { request, ..proposal }
    }

    pub(crate) fn step_down(&mut self, now: Time, outbox: &mut Outbox) {
        self.timers.clear();
        self.observer.step_down();
        // A round that was begun as the leader vanishes with the role; whoever reads is sent to the
        // next one at once.
        for reader in self.read_index.drain() {
            self.refuse_reader(reader, outbox);
        }
        // They are in the log, and the next leader may commit them or not.
        for pending in std::mem::take(&mut self.pending) {
            self.fail_proposal(now, pending.origin, lost_leadership(), outbox);
        }
        self.autopilot.step_down(outbox);
        self.corruption.step_down();
        self.stop_judge(now, outbox);
    }

    fn refuse_reader(&mut self, reader: Reader, outbox: &mut Outbox) {
        match reader {
            Reader::Query(token) => outbox.refused_reads.push((token, not_leader())),
            Reader::Renewal(token, _) | Reader::Unchanged(token) => outbox.fail(token, not_leader()),
            Reader::Lease(caller, _) => self.refuse_renewal(caller, outbox),
        }
    }
}

/// The answer to a renewal of a session whose expiry is proposed.
fn expiry_is_being_decided() -> Unavailable {
    let why = "the session was not renewed in time: whether it lives is being decided";
    Unavailable::Unknown(why.into())
}

fn decode(entry: &LogEntry) -> Proposal {
    // Skipping an entry would part this state from the others'; stopping loses nothing.
    format::decode(&entry.data)
        .unwrap_or_else(|error| panic!("log entry {} cannot be read: {error}", entry.index))
}

fn verdict_of(command: &Command) -> Option<&NodeFailure> {
    match command {
        Command::FailNode(failure) => Some(failure),
        _ => None,
    }
}
