//! The server itself: handles one input at a time and lists the effects.

mod audit;
mod config;
mod decisions;
mod overdue;
mod queries;
mod reads;
mod replica;
mod role;

use crate::acl_upkeep;
use crate::autopilot::{Autopilot, AutopilotInput};
use crate::cluster::Decision;
use crate::corruption::{CorruptionChecks, CorruptionInput};
use crate::durability::disk_watch::{DiskChange, DiskWatch};
use crate::durability::disks::RefusingDisks;
use crate::durability::setback::SetBack;
use crate::fault_injection::Rule;
use crate::input::{CallToken, Input};
use crate::judge::{self, Judge, JudgeInput, without_minority};
use crate::mesh::{MeshInput, ServedMesh};
use crate::observed::{Observed, Observer};
use crate::outbox::{Outbox, lost_leadership, not_leader};
use crate::proposal::Proposal;
use crate::proposals::{Batch, MAX_PROPOSAL_BYTES, Origin, PROPOSAL_RETRY_DELAY, PendingProposal};
use crate::raft::engine::{Effects, Engine};
use crate::raft::log::{EntryKind, LogEntry, Recovered, SnapshotMeta};
use crate::raft::message::{MessageKind, PeerMessage};
use crate::state::{Outputs, State};
use crate::time::deadlines::Deadlines;
use crate::upgrade;
use audit::Audit;
pub use config::{ClusterStart, CoreConfig};
use lockmesh_protocol::command::{Command, NodeFailure, RestoreStep};
use lockmesh_protocol::format::{self, FormatError};
use lockmesh_protocol::id::{ServerId, WallTime};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
pub(crate) use queries::query_view;
pub use replica::Replica;

/// A server as one pure value.
#[derive(Debug)]
pub struct Core {
    replica: Replica,
    autopilot: Autopilot,
    /// Set when this build cannot read the cluster's format: the server then does nothing.
    unreadable: Option<FormatError>,
    corruption: CorruptionChecks,
    disk: DiskWatch,
    refusing_disks: RefusingDisks,
    deadlines: Deadlines,
    judge: Judge,
    mesh: ServedMesh,
    /// Entries that are committed and not yet applied; empty between turns.
    committed: Vec<LogEntry>,
    /// A snapshot from another server, until the engine accepts or ignores it.
    arrived: Option<(SnapshotMeta, Box<State>)>,
    /// `true` if the engine led at the end of the last turn.
    led: bool,
    observer: Observer,
    audit: Audit,
    /// An empty list for the decisions of the next input, kept for its memory.
    decisions: Vec<Decision>,
}

impl Core {
    /// Opens a server on the recovered contents of its disk.
    pub fn new(config: CoreConfig, recovered: Recovered) -> Self {
        let stall_timeout = config.stall_timeout.max(2 * config.election.timeout());
        Self {
            unreadable: upgrade::unknown_format(&recovered.state, config.format),
            deadlines: Deadlines::new(config.timers),
            judge: Judge::new(config.seed, config.timers.reap_failed_after),
            mesh: ServedMesh::of(&recovered.state),
            corruption: CorruptionChecks::new(config.corruption_check_interval),
            disk: DiskWatch::new(stall_timeout),
            autopilot: Autopilot::default(),
            refusing_disks: RefusingDisks::default(),
            committed: Vec::new(),
            arrived: None,
            led: false,
            observer: Observer::default(),
            audit: Audit::default(),
            decisions: Vec::new(),
            replica: Replica::new(config, recovered),
        }
    }

    /// Returns this server's copy of the replicated state.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Breaks a rule on purpose, for tests that must detect it.
    #[cfg(feature = "fault-injection")]
    pub fn break_rule(&mut self, rule: Rule) {
        self.replica.break_rule(rule);
    }

    /// Handles one input. Gathered proposals are appended to the log at the end of the turn: see
    /// [`Core::settle`].
    pub fn handle(&mut self, now: Time, input: Input, outbox: &mut Outbox) {
        if self.unreadable.is_some() {
            return;
        }
        if let Some(pause) = self.deadlines.end_pause(now) {
            self.disk.was_late(now, pause.length);
            if pause.is_long {
                self.judge.was_late(now, pause.length);
            }
        }
        if let Input::Persisted(write) = input {
            self.disk.persisted(now, write);
        }
        if self.replica.set_back.is_some() {
            return self.replica.handle_set_back(input, outbox);
        }
        match input {
            Input::Tick(wall) => self.tick(now, wall, outbox),
            Input::Peer(sender, message) => self.peer(now, sender, message, outbox),
            Input::Install(sender, message, mark, state) => self.arrive(now, sender, message, (mark, state)),
            Input::SetBack(by, known) => self.notice_set_back(now, by, known, outbox),
            Input::Unreachable(server) => self.replica.engine.unreachable(server),
            Input::Deadline(wall) => self.expire_early(now, wall, outbox),
            Input::Propose(token, proposal) => self.propose(now, token, proposal, outbox),
            // Any state will do, so a stale read needs neither a leader nor a round.
            Input::Read(token, Consistency::Stale) => outbox.readable.push(token),
            Input::Read(token, _) => self.read(now, token, outbox),
            Input::Renew(token, session) => self.renew(now, token, session, outbox),
            Input::Spread(token, origin, item) => {
                self.spread(now, MeshInput::Fire(token, origin, item), outbox);
            }
            Input::Node(input) => self.judge(now, JudgeInput::Node(input), outbox),
            Input::Persisted(write) => self.replica.persisted(write, outbox),
            Input::CheckpointDurable(mark) => self.checkpoint_durable(now, mark, outbox),
            Input::Summed(index, checksum) => self.corruption.summed(index, checksum),
            Input::Servers(request) => self.manage(now, AutopilotInput::Request(request), outbox),
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
        self.deadlines.timers.catch_up();
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
            if !committed.iter().all(|entry| self.apply_readable(now, entry, outbox)) {
                return self.fall_silent(now, outbox);
            }
            // After the entries: a leader serves once an entry of its own term is applied
            // (paper, 5.4.2).
            self.notice_role(now, outbox);
            self.replica.log_leader();
            // Last: a confirmed round may wait for an entry that was just applied.
            self.serve_readers(now, outbox);
            // Applying an entry or a role change can propose more: a turn ends when no work is
            // left.
            if committed.is_empty() && self.replica.proposals.is_log_current() {
                break;
            }
        }
        self.judge(now, JudgeInput::Flush, outbox);
        // The engine ignored the snapshot, for example because it is past that index. Its state is
        // large, so it is dropped.
        self.arrived = None;
        outbox.snapshot_wanted |= self.replica.engine.take_snapshot_wanted();
    }

    /// Advances consensus as far as possible, including newly committed entries.
    fn advance(&mut self, now: Time, outbox: &mut Outbox) {
        self.replica.begin_reads(now);
        let mut effects = Effects::default();
        self.replica.engine.turn(&mut effects);
        // Also if this server was set back: its disk may continue, but no promise depends on its
        // writes.
        if let Some(write) = effects.writes.last() {
            self.disk.written(now, write.number);
        }
        outbox.writes.append(&mut effects.writes);
        if self.replica.set_back.is_none() {
            outbox.shell.messages.append(&mut effects.messages);
        }
        if let Some(mark) = effects.installed.take() {
            self.install(now, mark, outbox);
        }
        for (round, index) in effects.reads.drain(..) {
            self.replica.read_index.confirm(round, index);
        }
        self.committed = effects.committed;
    }

    /// Returns the measurements since the last call.
    pub fn take_observed(&mut self) -> Observed {
        let (judge, mesh) = (self.judge.take_counts(), self.mesh.take_counts());
        Observed { judge, mesh, ..std::mem::take(&mut self.observer.observed) }
    }

    fn peer(&mut self, now: Time, sender: ServerId, message: PeerMessage, outbox: &mut Outbox) {
        // A snapshot that this server has passed needs no state: the engine replies with its index.
        let is_news = message.snapshot.as_ref().is_some_and(|mark| mark.index > self.replica.applied.0);
        // The frontend fetches the snapshot and returns with [`Input::Install`]. From the bare
        // message the engine would install a state that is not present.
        let unfetched = is_news.then_some("a snapshot that was not fetched");
        let trusted = self.replica.engine.fault_point.breaks(Rule::MessagesAreWhole);
        match message.fault(sender, self.replica.config.id).or(unfetched).filter(|_| !trusted) {
            None => {
                self.autopilot.note_contact(now, sender);
                // Before the engine sees it: the engine panics at a commit index not in its log.
                if let Some(known) = SetBack::proven_by(&message, self.replica.log_position()) {
                    return self.notice_set_back(now, sender, known, outbox);
                }
                let is_own = self.message(now, &message, outbox);
                // A candidate that cannot persist its own vote would only disturb the cluster.
                let is_unfit =
                    message.kind == MessageKind::TimeoutNow && self.disk.stalled_for(now).is_some();
                if !is_own && !is_unfit {
                    if let Some(certain) = message.certain_position() {
                        self.replica.own.peers.note(message.from, certain);
                    }
                    self.replica.engine.step(message);
                }
            }
            Some(fault) => {
                let node = self.replica.node_of(sender);
                tracing::warn!(server = sender.0, %node, reason = %fault, "dropped a message from another server");
            }
        }
    }

    fn checkpoint_durable(&mut self, now: Time, mark: SnapshotMeta, outbox: &mut Outbox) {
        let (least, fetching) = self.replica.compactable();
        let compact = self.autopilot(now).compaction_index(mark.index, least, fetching);
        self.replica.engine.checkpoint_durable(mark);
        self.replica.engine.compact(compact);
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
        let Some(leader) = self.replica.engine.leader().filter(|leader| *leader != self.replica.config.id)
        else {
            return tracing::info!(
                index = mark.index.0,
                "no leader is known: the snapshot will be fetched again"
            );
        };
        self.autopilot.note_contact(now, sender);
        let (term, snapshot) = (self.replica.engine.term(), Some(mark.clone()));
        self.replica.engine.step(PeerMessage { from: leader, term, snapshot, ..message });
        self.arrived = Some((mark, state));
    }

    /// Replaces the state by the snapshot that the engine accepted.
    fn install(&mut self, now: Time, mark: SnapshotMeta, outbox: &mut Outbox) {
        let (arrived, state) =
            self.arrived.take().expect("the engine accepts only the snapshot that arrived");
        assert_eq!(arrived, mark, "the engine accepts the snapshot unchanged");
        tracing::info!(index = mark.index.0, "installed a snapshot, which replaces log and state");
        self.unreadable = upgrade::unknown_format(&state, self.replica.config.format);
        self.replica.state = *state;
        self.replica.state.fault_point = self.replica.engine.fault_point.clone();
        self.mesh.restart(&self.replica.state);
        // The state is unconfirmed until a check has compared it: it is only as good as its
        // sender's.
        self.replica.own.copy_of = Some(mark.index);
        self.corruption.installed();
        self.replica.applied = (mark.index, mark.term);
        self.replica.membership_index = mark.index;
        // This server proposed them as a former leader. They are in the snapshot or were
        // overwritten; this server cannot tell which.
        for origin in self.replica.proposals.take_pending(mark.index) {
            self.fail_proposal(now, origin, lost_leadership(), outbox);
        }
        outbox.discard_changes();
        outbox.install = Some(mark);
    }

    fn tick(&mut self, now: Time, wall: WallTime, outbox: &mut Outbox) {
        self.replica.wall = wall;
        // First: a server that was paused must not mistake its own absence for that of others.
        self.watch_disk(now, outbox);
        self.deadlines.tick(now);
        self.replica.engine.tick();
        self.retry_readers(now, outbox);
        // A server with a corrupt state rejects renewals; another leader restarts the deadlines.
        if !self.corruption.is_known_here() {
            self.with_deadlines(now, Deadlines::expire, outbox);
        }
        self.manage(now, AutopilotInput::Tick, outbox);
        if self.replica.is_serving() {
            self.manage(now, AutopilotInput::Settle, outbox);
            if let Some(raise) = upgrade::wanted_format(&self.view(now), self.replica.config.format) {
                self.replica.gather_own(raise);
            }
            let start = &self.replica.config.cluster_start;
            for change in acl_upkeep::wanted_changes(&self.view(now), start, wall) {
                self.replica.gather_own(change);
            }
            self.manage(now, AutopilotInput::Manage(wall), outbox);
            self.compare(now, CorruptionInput::Tick, outbox);
            self.spread(now, MeshInput::Announce(wall), outbox);
        }
        self.judge(now, JudgeInput::Tick, outbox);
        self.spread(now, MeshInput::Push, outbox);
    }

    /// Runs once per tick, after the queued completions of writes.
    fn watch_disk(&mut self, now: Time, outbox: &mut Outbox) {
        let is_leader = self.replica.engine.is_leader();
        let is_overtaken =
            is_leader && self.replica.engine.commit_index() > self.replica.engine.persisted_index();
        let change = self.disk.tick(now, is_leader, is_overtaken);
        if change == Some(DiskChange::Stalled) {
            self.observer.observed.disk_stalls += 1;
        } else if change == Some(DiskChange::Recovered) {
            self.autopilot.is_fit_again();
        }
        self.replica.engine.lower_priority(self.disk.lowers_priority());
        if self.disk.must_hand_over(now) {
            self.hand_over(now, outbox);
        }
    }

    /// Transfers the leadership to another voter, if this server leads.
    pub fn hand_over(&mut self, now: Time, outbox: &mut Outbox) {
        self.manage(now, AutopilotInput::HandOver, outbox);
    }

    /// Expires deadlines between two ticks.
    fn expire_early(&mut self, now: Time, wall: WallTime, outbox: &mut Outbox) {
        self.replica.wall = wall;
        // A late tick must come first: it extends the deadlines, and then expires them.
        if self.deadlines.is_running(now) {
            self.with_deadlines(now, Deadlines::expire, outbox);
        }
    }

    fn propose(&mut self, now: Time, token: CallToken, proposal: Proposal, outbox: &mut Outbox) {
        // A follower forwards nothing: the agent sends the request to the leader itself, under the
        // same request id.
        if !self.replica.engine.is_leader() {
            return outbox.fail(token, not_leader());
        }
        // Limited before the log: a rejected request costs the other servers neither disk nor
        // memory.
        if self.replica.proposals.len() >= self.replica.config.max_pending_proposals {
            let what = format!("{} writes wait for their commit", self.replica.config.max_pending_proposals);
            return outbox.fail(token, Unavailable::Overloaded(what));
        }
        let command = upgrade::as_the_cluster_reads_it(&self.replica.state, proposal.command);
        let proposal = Proposal { command, ..proposal };
        if let Err(why) = upgrade::check_format(&self.replica.state, &proposal.command) {
            return outbox.fail(token, why);
        }
        if judge::depends_on_liveness(&proposal.command) {
            return self.judge(now, JudgeInput::Proposal(token, proposal), outbox);
        }
        // Before the request, in the same batch, so that the request sees the lock as of the
        // leader's clock.
        let command = &proposal.command;
        self.with_deadlines(now, |it, turn| it.end_delays_that_are_over(turn, command), outbox);
        self.replica.proposals.gather(proposal, Origin::Client(token, now));
    }

    fn propose_batch(&mut self, now: Time, outbox: &mut Outbox) {
        let Batch { data, proposals, too_long } = self.replica.proposals.take_batch();
        for (origin, len) in too_long {
            let what = format!("command of {len} bytes exceeds the limit of {MAX_PROPOSAL_BYTES}");
            self.fail_proposal(now, origin, Unavailable::Denied(what), outbox);
        }
        if data.is_empty() {
            return;
        }
        match self.replica.engine.propose(data) {
            Ok(first) => {
                self.observer.proposed(now, self.replica.engine.last_index());
                self.replica.proposals.appended(self.replica.engine.term(), first, proposals);
            }
            Err(_) => {
                let why = self.replica.why_batch_dropped();
                for (_, origin) in proposals {
                    self.fail_proposal(now, origin, why.clone(), outbox);
                }
            }
        }
    }

    fn fail_proposal(&mut self, now: Time, origin: Origin, why: Unavailable, outbox: &mut Outbox) {
        match origin {
            Origin::Client(token, _) => outbox.fail(token, why),
            // Not immediately: a full log or a transfer needs a moment to pass.
            Origin::Timer(subject) => self.deadlines.timers.failed(subject, now + PROPOSAL_RETRY_DELAY),
            Origin::Verdict(agent) => self.judge(now, JudgeInput::Verdict(agent, None), outbox),
            Origin::Internal => {}
        }
    }

    fn apply(&mut self, now: Time, entry: &LogEntry, outbox: &mut Outbox) {
        let (pending, replaced) = self.replica.proposals.applied(entry);
        for origin in replaced {
            // Reported as unknown, the safe side: the client retries under the same request id.
            self.fail_proposal(now, origin, lost_leadership(), outbox);
        }
        let mut is_check = false;
        if entry.kind == EntryKind::Normal {
            // Empty entries begin a term or settle a membership; they do not affect the state.
            if !entry.data.is_empty() {
                is_check = self.apply_proposal(now, entry, pending, outbox);
            }
            self.replica.engine.applied(entry);
        } else {
            self.replica.membership_index = entry.index;
            let before = self.replica.engine.membership().all();
            self.replica.engine.applied(entry);
            let caller = pending.and_then(|pending| match pending.origin {
                Origin::Client(token, _) => Some(token),
                _ => None,
            });
            self.manage(now, AutopilotInput::MembershipApplied(before, caller), outbox);
        }
        self.replica.applied = (entry.index, entry.term);
        if self.autopilot.has_callers() {
            self.manage(now, AutopilotInput::Applied, outbox);
        }
        if is_check {
            self.corruption.applied(now, entry.index);
            // With the number of earlier changes: the checkpoint must be of exactly this index on
            // every server.
            outbox.checks.push((outbox.changes.len(), self.replica.snapshot_meta()));
        }
    }

    /// Applies an entry. Returns `false` if this build cannot read it, or what follows.
    fn apply_readable(&mut self, now: Time, entry: &LogEntry, outbox: &mut Outbox) -> bool {
        let known = self.replica.config.format;
        self.unreadable = upgrade::unreadable_entry(entry, known);
        if self.unreadable.is_none() {
            self.apply(now, entry, outbox);
            self.unreadable = upgrade::unknown_format(&self.replica.state, known);
        }
        self.unreadable.is_none()
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
            _ => (decode(entry), Origin::Internal),
        };
        let proposal = without_minority(proposal, self.replica.engine.membership());
        let proposal = fault_injected(proposal, &self.replica.engine);
        let news = outbox.changes.len();
        let Outbox { changes, services, shell, .. } = outbox;
        let outputs = Outputs { changes, removed: &mut shell.removed, services };
        let applied = self.replica.state.apply_keeping(entry.index, entry.term, &proposal, outputs);
        let (view, command) = (self.replica.view(self.own_condition(now)), (&proposal.command, &*applied));
        self.mesh.applied(&view, now, command, &outbox.changes[news..]);
        log_restore(&self.replica.state, &proposal, &applied);
        // Ids are never reused, so the memory of removed servers would only grow.
        if let Command::ForgetServer(server) = proposal.command {
            self.replica.own.peers.forget(server);
        }
        // Before it serves it has no deadlines: all restart when it begins to serve.
        if self.replica.is_serving() {
            // The timers follow the changes; after a restore they restart.
            self.deadlines.timers.note_all(now, &outbox.changes[news..]);
            self.observer.applied(now, &outbox.changes[news..], &self.replica.state);
            self.judge.applied(now, &self.replica.state, &outbox.changes[news..]);
            self.audit.applied(now, &self.replica.state, (&proposal, &applied), &outbox.changes[news..]);
        }
        match origin {
            Origin::Client(token, came) => {
                let applied = self.deadlines.with_remaining_delay(came, &proposal.command, &applied);
                outbox.replies.push((token, Response::Applied(applied)));
            }
            Origin::Timer(subject) => self.deadlines.timers.decided(&subject),
            Origin::Verdict(agent) => {
                let is_one = applied.reply == Reply::Succeeded(true);
                let failure = verdict_of(&proposal.command).filter(|_| is_one);
                self.judge(now, JudgeInput::Verdict(agent, failure), outbox);
            }
            Origin::Internal => {}
        }
        proposal.command == Command::CorruptionCheck
    }
}

/// Logs a restore, which explains the end of sessions that no loss explains.
fn log_restore(state: &State, proposal: &Proposal, applied: &Applied) {
    if let Command::Restore(RestoreStep::Commit { .. }) = proposal.command
        && applied.reply == Reply::Done
    {
        let agent = proposal.request.as_ref().and_then(|request| state.agent(request.agent));
        let node = agent.map(|agent| agent.node.as_str()).unwrap_or_default();
        tracing::warn!(node, index = applied.index.0, "a backup was restored: all data was replaced");
    }
}

/// Clears the request id if a test broke the rule of retries: a retry then looks new.
fn fault_injected(proposal: Proposal, engine: &Engine) -> Proposal {
    let request = proposal.request.filter(|_| !engine.fault_point.breaks(Rule::RetriesDoNothing));
    Proposal { request, ..proposal }
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
