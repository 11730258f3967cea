//! A server's frontend: requests in, replies out. The second pure value of a server, around its
//! [`Core`].
//!
//! ```text
//! events ──> handle, handle, …, advance ──> decide ──> writes, messages      (the disk begins to work)
//!                                           settle ──> answers, checkpoints, … (the end of a turn, and the peers' turn)
//! ```
//!
//! The core agrees on commands and applies them. The frontend decides what else a server must: who
//! may ask what, whose answer is awaited, which blocking reads are parked and when they are woken,
//! how a server joins, what is said when the disk fails, when the state is written to a checkpoint.
//! The shell has the clock, the disk and the sockets; it tells what happened and carries out what
//! comes back. The simulator drives the same value.
//!
//! | file | is |
//! |---|---|
//! | `event.rs` | what it is told |
//! | `actions.rs` | what it wants done |
//! | `mod.rs` | the turn, and what each request begins |
//! | `admission.rs` | who may ask what |
//! | `pending.rs` | calls whose answer is awaited |
//! | `reads.rs` | reads that are answered or parked |
//! | `watches.rs` | blocking reads that are parked |
//! | `mesh.rs` | what agents in the mesh ask |
//! | `node_leases.rs` | how nodes' leases stand |
//! | `servers.rs` | joins, announcements, the status of the quorum |
//! | `checkpoints.rs` | checkpoints, their readers, and snapshots of other servers |
//! | `stalls.rs` | requests that wait behind a disk which takes no write |
//! | `readiness.rs` | whether a server can serve, and why it cannot |
//! | `figures.rs` | where a server stands, for whoever watches it |
//!
//! **Invariants:** every call is answered once, unless it was cancelled; an answer to a command
//! rests on what is durable; a parked reader is looked at in the turn of the change that touches
//! it; nothing here waits.

mod actions;
mod admission;
mod checkpoints;
mod event;
mod figures;
mod mesh;
mod node_leases;
mod pending;
mod readiness;
mod reads;
mod servers;
mod stalls;
mod watches;

pub use crate::outbox::{ChallengeWanted, MeshItemsWanted, QuestionWanted};
pub use actions::{
    Actions, Announcement, AnswerKind, CallAnswer, CheckpointReader, PartWanted, RosterChange, SnapshotFetch,
    Storage,
};
pub use admission::denied;
pub use event::{CallRef, Caller, DiskHealth, Event};
pub use figures::{Figures, FollowerFigures};
pub use readiness::NotReady;

use crate::core::Core;
use crate::fault_injection::FaultPoint;
use crate::input::{CallToken, Input};
use crate::observed::Observed;
use crate::outbox::Outbox;
use crate::proposal::Proposal;
use crate::raft::TICK;
use checkpoints::Checkpoints;
use figures::LeaderHistory;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{RequestId, ServerId, WallTime};
use lockmesh_protocol::peer::Peer;
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::record::Server;
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use mesh::GossipKeyAge;
use pending::{CallKind, Pending, PendingCalls};
use servers::Removal;
use std::collections::BTreeMap;
use std::time::Duration;
use watches::Watches;

/// How long a blocking query is parked at most, whatever its caller says.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// What a frontend must be told about its server.
#[derive(Clone, Debug)]
pub struct FrontendConfig {
    /// The server as it is now: the roster must say the same.
    pub own_record: Server,
    /// The cluster that it belongs to.
    pub cluster_id: String,
    /// How many blocking queries may be parked.
    pub max_watches: usize,
    /// How long after the last checkpoint the next one is begun, where rows have changed.
    pub checkpoint_interval: Duration,
    /// After so many changed rows it is begun at once.
    pub checkpoint_changes: u64,
    /// Whether a corruption check found this server's state to be corrupt before it was started.
    pub corrupt: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Frontend {
    core: Core,
    config: FrontendConfig,
    outbox: Outbox,
    pending: PendingCalls,
    watches: Watches,
    checkpoints: Checkpoints,
    disk: DiskHealth,
    /// When the log was told last that requests timed out.
    delay_logged: Option<Time>,
    /// Why no majority of the servers can write, as of the last tick.
    no_majority_writes: Option<String>,
    leaders: LeaderHistory,
    gossip_key: GossipKeyAge,
    /// The versions of the program that the servers run, as they said when they were met last.
    versions: BTreeMap<ServerId, String>,
    /// Whether this server was removed from the quorum.
    removal: Removal,
    /// Whether this server's state was found to be corrupt.
    corrupt: bool,
    /// Whether this server was a member of the quorum as this process knows it.
    was_member: bool,
    /// When a leader was last heard.
    leader_contact: Time,
    /// Whether the core served at the end of the last turn.
    serving: bool,
    next_tick: Time,
    /// The wall clock, and when it was read.
    wall: (Time, WallTime),
    /// What follows from this turn's replies.
    next: Vec<Input>,
    fault_point: FaultPoint,
}

impl Frontend {
    /// The frontend of a server whose disk holds a checkpoint of what its core has applied.
    pub fn new(config: FrontendConfig, mut core: Core, now: Time, wall: WallTime) -> Self {
        let durable = core.snapshot_meta().index;
        // Before the log is replayed: see `notice_own_removal`.
        let was_member = core.membership().contains(config.own_record.id);
        let gossip_key = GossipKeyAge::new(now, core.state().gossip_key());
        let corrupt = config.corrupt;
        if corrupt {
            core.know_corruption();
        }
        Self {
            core,
            config,
            outbox: Outbox::default(),
            pending: PendingCalls::default(),
            watches: Watches::default(),
            checkpoints: Checkpoints::new(now, durable),
            disk: DiskHealth::Good,
            delay_logged: None,
            no_majority_writes: None,
            leaders: LeaderHistory::default(),
            gossip_key,
            versions: BTreeMap::new(),
            removal: Removal::No,
            corrupt,
            was_member,
            leader_contact: now,
            serving: false,
            next_tick: now,
            wall: (now, wall),
            next: Vec::new(),
            fault_point: FaultPoint::default(),
        }
    }

    /// Breaks a rule on purpose, for tests that must find it.
    #[cfg(feature = "fault-injection")]
    pub fn break_rule(&mut self, rule: crate::fault_injection::Rule) {
        self.core.break_rule(rule);
        self.fault_point.break_rule(rule);
    }

    /// What was measured since this was asked last: the shell asks after every turn.
    pub fn take_observed(&mut self) -> Observed {
        self.core.take_observed()
    }

    /// The core, to look at.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Whether this server's state was found to be corrupt, so that it answers no agent.
    pub fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// How many blocking queries are parked.
    pub fn watch_count(&self) -> usize {
        self.watches.len()
    }

    /// Before the first turn: the shell learns who the other servers are.
    pub fn start(&mut self, actions: &mut Actions) {
        self.notice_roster(actions);
    }

    /// When [`Frontend::advance`] must be called, if nothing else happens before.
    pub fn wakes_at(&self) -> Time {
        self.core.next_deadline().map_or(self.next_tick, |deadline| deadline.min(self.next_tick))
    }

    /// Takes one event.
    pub fn handle(&mut self, now: Time, event: Event, actions: &mut Actions) {
        match event {
            Event::Call { from, peer, request } => self.call(now, from, &peer, request, actions),
            Event::Cancel(call) => {
                self.pending.cancel(call);
                self.watches.cancel(call);
                self.cancel_reader(call);
            }
            Event::Disconnected(caller) => {
                self.pending.cancel_all(caller);
                self.watches.cancel_all(caller);
                self.cancel_readers(caller);
            }
            Event::Peer(sender, message) => self.peer(now, sender, message, actions),
            Event::SetBack(by, known) => self.input(now, Input::SetBack(by, known)),
            Event::Version(server, version) => drop(self.versions.insert(server, version)),
            Event::Unreachable(server) => self.input(now, Input::Unreachable(server)),
            Event::SnapshotFetched(fetched) => self.snapshot_fetched(now, fetched),
            Event::Persisted(number) => self.input(now, Input::Persisted(number)),
            Event::Checkpointed(mark) => self.checkpointed(now, mark, actions),
            Event::Summed(index, checksum) => self.input(now, Input::Summed(index, checksum)),
            Event::Challenged { challenge, answer } => self.input(now, Input::Challenged(challenge, answer)),
            Event::AgentAnswered(answer) => self.input(now, Input::AgentAnswered(answer)),
            Event::Disk(health) => self.notice_disk(health, actions),
            Event::ReaderClosed => self.reader_closed(),
            Event::Removed => self.leave_for_good(actions),
            Event::Leave => self.leave(now, actions),
        }
    }

    /// Lets time go on; the shell says how many rows wait for the next checkpoint. Whether a tick
    /// was due.
    pub fn advance(&mut self, now: Time, wall: WallTime, dirty_rows: usize, actions: &mut Actions) -> bool {
        if now < self.next_tick {
            if now >= self.wakes_at() {
                self.input(now, Input::Deadline(self.wall_at(now)));
            }
            return false;
        }
        // Late ticks are not made up for: the core moves its deadlines instead.
        self.next_tick = now + TICK;
        self.wall = (now, wall);
        if self.removal == Removal::Settled {
            // It must not disturb the others by standing for election.
            return true;
        }
        self.core.pause_corruption_checks(self.versions_differ());
        self.look_at_disks(now);
        // Before deadlines pass: an expiry waits for the renewals of its session.
        self.end_overdue(now);
        self.input(now, Input::Tick(wall));
        self.hand_over_if_unfit(now);
        // Only with a tick: a wait that is a few milliseconds longer hurts nobody, and costs no
        // wake-up of its own.
        self.answer_due(now, actions);
        self.checkpoint_if_due(now, dirty_rows, actions);
        true
    }

    /// Begins to end a turn. The disk should be given what there is for it before
    /// [`Frontend::settle`] follows, so that it is at work while this one applies what was
    /// committed. Other servers are told at the turn's end, after clients.
    pub fn decide(&mut self, now: Time, actions: &mut Actions) {
        self.core.decide(now, &mut self.outbox);
        self.hand_on(actions);
    }

    /// Ends a turn: all that can happen now happens.
    pub fn settle(&mut self, now: Time, actions: &mut Actions) {
        loop {
            self.core.settle(now, &mut self.outbox);
            self.carry_out(now, actions);
            if self.next.is_empty() {
                break;
            }
            for input in std::mem::take(&mut self.next) {
                self.input(now, input);
            }
        }
        self.notice_leader();
        self.notice_leader_contact(now);
        self.notice_own_removal(actions);
        self.notice_corruption(actions);
    }

    fn input(&mut self, now: Time, input: Input) {
        self.core.handle(now, input, &mut self.outbox);
    }

    fn call(&mut self, now: Time, from: CallRef, peer: &Peer, request: Request, actions: &mut Actions) {
        // Before anything is looked at: a certificate without the right learns nothing of the
        // state.
        if let Some(reason) = denied(peer, &request) {
            let denied = Response::Unavailable(Unavailable::Denied(reason));
            return actions.answer(from, denied, AnswerKind::Other);
        }
        // An introduction is answered all the same: servers that look for a quorum must hear that
        // there is one.
        if let Some(why) = self.out_of_service().filter(|_| !matches!(request, Request::Introduce(_))) {
            return actions.answer(from, Response::Unavailable(why), AnswerKind::Other);
        }
        match request {
            Request::Propose(id, command) => self.propose(now, (from, peer), id, command, actions),
            Request::Read { query, consistency, blocking } => {
                // Before a round of the quorum is spent on it.
                if let Some(why) = admission::read_refusal(&query) {
                    return actions.answer(from, Response::Unavailable(why), AnswerKind::Read);
                }
                // What became of a position is a committed fact, so it costs no round of the
                // quorum.
                if matches!(&query, Query::QueuePosition { queue_position, .. } if self.core.knows_queue_position(*queue_position))
                {
                    return self.read(now, from, (query, Consistency::Default, blocking), actions);
                }
                let kind = CallKind::Read { query, consistency, blocking };
                self.ask(now, from, kind, |token| Input::Read(token, consistency));
            }
            Request::Renew(session) => {
                self.ask(now, from, CallKind::Write, |token| Input::Renew(token, session));
            }
            Request::RenewLease(renewal) => match self.renewal_refusal(peer, &renewal) {
                Some(why) => actions.answer(from, Response::Unavailable(why), AnswerKind::Other),
                None => self.ask(now, from, CallKind::Lease, |token| Input::RenewLease(token, renewal)),
            },
            Request::TransferLeader(to) => {
                self.ask(now, from, CallKind::Write, |token| Input::TransferLeader(token, to));
            }
            Request::RemoveServer(server) => {
                self.ask(now, from, CallKind::Write, |token| Input::RemoveServer(token, server));
            }
            Request::BackupPart { backup: None, stale, .. } => {
                let consistency = if stale { Consistency::Stale } else { Consistency::Consistent };
                self.ask(now, from, CallKind::Backup, |token| Input::Read(token, consistency));
            }
            Request::BackupPart { backup: Some(reader), number, .. }
            | Request::SnapshotPart { snapshot: Some(reader), number, .. } => {
                actions.parts.push(PartWanted { reader, number, to: from });
            }
            Request::SnapshotPart { snapshot: None, least, .. } => {
                self.want_snapshot(now, least, from, actions);
            }
            Request::AddServer(server) => self.admit(now, from, server, actions),
            Request::Announce(server) => self.note_announcement(now, from, peer, server, actions),
            Request::SyncMesh(has) => {
                let answer = self.sync_mesh(now, peer, &has);
                actions.answer(from, answer, AnswerKind::Other);
            }
            Request::Spread(item) => self.spread_event(now, (from, peer), item, actions),
            Request::Accuse(accused) => self.accuse(now, (from, peer), accused, actions),
            Request::NodeLeases(query) => self.ask_node_leases(now, from, query, actions),
            told => {
                let answer = self.tell(now, peer, &told);
                actions.answer(from, answer, AnswerKind::Other);
            }
        }
    }

    /// Answers what can be told at once.
    fn tell(&self, now: Time, peer: &Peer, request: &Request) -> Response {
        match request {
            Request::Status => Response::Status(self.status(now, &peer.node)),
            Request::Introduce(_) => Response::Introduced(self.introduction()),
            Request::Autopilot => {
                let (autopilot, index) = self.core.state().autopilot();
                Response::Autopilot(autopilot.clone(), index)
            }
            _ => {
                let why = "this server belongs to a cluster already";
                Response::Unavailable(Unavailable::Denied(why.into()))
            }
        }
    }

    /// Asks the core something on a caller's behalf.
    fn ask(&mut self, now: Time, from: CallRef, kind: CallKind, input: impl FnOnce(CallToken) -> Input) {
        let token = self.pending.insert(Pending::Call(from, kind));
        self.input(now, input(token));
    }

    fn propose(
        &mut self,
        now: Time,
        (from, peer): (CallRef, &Peer),
        request: Option<RequestId>,
        command: Command,
        actions: &mut Actions,
    ) {
        // Here it is certainly not done; behind this the answer may be unknown.
        let refusal = self.proposal_refusal(peer, request.as_ref(), &command);
        if let Some(why) = refusal.or_else(|| self.rotation_refusal(now, &command)) {
            return actions.answer(from, Response::Unavailable(why), AnswerKind::Write);
        }
        let at = self.wall_at(now);
        let proposal = Proposal { request, at, command };
        self.ask(now, from, CallKind::Write, |token| Input::Propose(token, proposal));
    }

    /// The wall clock, which is read once a tick.
    fn wall_at(&self, now: Time) -> WallTime {
        let (read_at, WallTime(millis)) = self.wall;
        WallTime(millis + now.since(read_at).as_millis() as u64)
    }

    fn has_other_voters(&self) -> bool {
        self.core.membership().voters.len() > 1
    }

    /// When the disk fails, nobody is left to wait for it: what becomes of a write on its way is
    /// not known.
    fn notice_disk(&mut self, health: DiskHealth, actions: &mut Actions) {
        // Reads and the leader's own steps go on: they need no disk of this server.
        if let DiskHealth::Failing(reason) = &health {
            // Their entries may be with a majority already, whatever this disk does.
            let why = Unavailable::Unknown(format!("the server cannot write to its disk: {reason}"));
            for from in self.pending.take_writes() {
                actions.answer(from, Response::Unavailable(why.clone()), AnswerKind::Write);
            }
        }
        self.disk = health;
    }

    /// A leader whose disk refuses can have nothing decided that it could answer, and one whose
    /// state is corrupt answers nobody: another server shall lead.
    fn hand_over_if_unfit(&mut self, now: Time) {
        // If no majority can write, no other server can be elected.
        let cannot_write = self.disk != DiskHealth::Good && self.no_majority_writes.is_none();
        if self.corrupt || cannot_write {
            self.core.hand_over(now);
        }
    }

    /// Gives disk and other servers what there is for them. A snapshot that is to be installed goes
    /// first.
    fn hand_on(&mut self, actions: &mut Actions) {
        // The checkpoint of the snapshot must be in the store's hands before the log's reset that
        // rests on it: see `carry_out`.
        if self.outbox.install.is_none() {
            actions.messages.append(&mut self.outbox.messages);
            actions.storage.extend(self.outbox.writes.drain(..).map(Storage::Write));
        }
    }

    fn carry_out(&mut self, now: Time, actions: &mut Actions) {
        // First: what follows in this outbox is of the state that the snapshot brought.
        if let Some(mark) = self.outbox.install.take() {
            self.install(mark, actions);
        }
        self.hand_on(actions);
        self.gossip_key.follow(now, self.core.state().gossip_key());
        let mut outbox = std::mem::take(&mut self.outbox);
        outbox.changes.iter().for_each(|change| self.watches.touch(change));
        actions.removed_rows.append(outbox.removed.take());
        let roster_changed = outbox.changes.iter().any(servers::is_of_roster);
        self.record(now, &mut outbox, actions);
        actions.challenges.append(&mut outbox.challenges);
        actions.questions.append(&mut outbox.questions);
        actions.mesh_items.append(&mut outbox.mesh_items);
        if roster_changed {
            self.notice_roster(actions);
        }
        for (token, response) in outbox.replies.drain(..) {
            self.reply(token, response, actions);
        }
        for (token, why) in outbox.refused_reads.drain(..) {
            if let Some(Pending::Call(from, _)) = self.pending.take(token) {
                actions.answer(from, self.with_leader_hint(Response::Unavailable(why)), AnswerKind::Read);
            }
        }
        for token in outbox.readable.drain(..) {
            self.readable(now, token, actions);
        }
        self.wake_touched(now, actions);
        if let Some(index) = outbox.compact.take() {
            actions.storage.push(Storage::Compact(index));
        }
        if std::mem::take(&mut outbox.snapshot_wanted) {
            self.checkpoint_for_follower(now, actions);
        }
        self.notice_role(actions);
        self.outbox = outbox;
    }

    fn reply(&mut self, token: CallToken, response: Response, actions: &mut Actions) {
        match self.pending.take(token) {
            Some(Pending::Call(
                from,
                kind @ (CallKind::Admission | CallKind::Joining(_) | CallKind::Announcement),
            )) => self.reply_to_server(from, &kind, response, actions),
            Some(Pending::Call(from, kind)) => {
                // Every agent renews all the time: among the writes nobody would see the others.
                let is_lease = matches!(kind, CallKind::Lease);
                let kind = if is_lease { AnswerKind::Other } else { AnswerKind::Write };
                actions.answer(from, self.with_leader_hint(response), kind);
            }
            // Whatever came of the transfer: a server that stops tries once, and then goes.
            Some(Pending::Leave) => actions.may_leave = true,
            None => {}
        }
    }

    fn readable(&mut self, now: Time, token: CallToken, actions: &mut Actions) {
        match self.pending.take(token) {
            Some(Pending::Call(from, CallKind::Read { query, consistency, blocking })) => {
                self.read(now, from, (query, consistency, blocking), actions);
            }
            Some(Pending::Call(from, CallKind::Backup)) => self.want_backup(now, from, actions),
            Some(Pending::Call(from, CallKind::NodeLeases(query))) => {
                self.tell_node_leases(now, from, &query, actions);
            }
            _ => {}
        }
    }
}
