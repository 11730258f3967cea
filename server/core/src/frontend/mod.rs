//! A server's frontend: requests in, replies out. The second pure value of a server, around its
//! [`Core`].
//!
//! ```text
//! events ──> handle, handle, …, advance ──> decide ──> writes, messages      (disk works)
//!                                           settle ──> answers, checkpoints, …  (end of turn)
//! ```
//!
//! The core agrees on commands and applies them. The frontend makes a server's other decisions:
//! permissions, pending calls, parking and waking of blocking reads, joins, replies while the disk
//! fails, and checkpoints. The shell has the clock, the disk and the sockets; it passes in events
//! and executes the returned actions. The simulator drives the same value.
//!
//! | file | is |
//! |---|---|
//! | `event.rs` | its inputs |
//! | `actions.rs` | its effects |
//! | `mod.rs` | the turn, and the start of each request |
//! | `admission.rs` | permissions and limits of requests |
//! | `pending.rs` | calls that await a reply of the core |
//! | `reads.rs` | reads that are answered or parked |
//! | `watches.rs` | blocking reads that are parked |
//! | `mesh.rs` | requests from agents in the mesh |
//! | `node_leases.rs` | the status of nodes' leases |
//! | `servers.rs` | joins, announcements, the status of the quorum |
//! | `checkpoints.rs` | checkpoints, their readers, and snapshots of other servers |
//! | `stalls.rs` | requests that wait behind a stalled disk |
//! | `readiness.rs` | readiness, and the reasons against it |
//! | `figures.rs` | a server's figures, for monitoring |
//!
//! **Invariants:** every call is answered once, unless it was cancelled; a reply to a command
//! depends only on durable data; a parked reader is checked in the turn of a change that touches
//! it; nothing here blocks.

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

/// The maximum time for which a blocking query is parked, even if its caller requests more.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Configuration of a frontend.
#[derive(Clone, Debug)]
pub struct FrontendConfig {
    /// The server's current record: the roster must contain the same.
    pub own_record: Server,
    /// The id of its cluster.
    pub cluster_id: String,
    /// The maximum number of parked blocking queries.
    pub max_watches: usize,
    /// Interval between checkpoints, if rows have changed.
    pub checkpoint_interval: Duration,
    /// The number of changed rows that triggers a checkpoint at once.
    pub checkpoint_changes: u64,
    /// `true` if a corruption check found this server's state corrupt before it started.
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
    /// The last time at which timed-out requests were logged.
    delay_logged: Option<Time>,
    /// The reason why no majority of the servers can write, as of the last tick.
    no_majority_writes: Option<String>,
    leaders: LeaderHistory,
    gossip_key: GossipKeyAge,
    /// The program versions of the servers, as reported when they last connected.
    versions: BTreeMap<ServerId, String>,
    /// The progress of this server's removal from the quorum.
    removal: Removal,
    /// `true` if this server's state was found corrupt.
    corrupt: bool,
    /// `true` if this process has seen this server as a member of the quorum.
    was_member: bool,
    /// The time of the last contact with a leader.
    leader_contact: Time,
    /// `true` if the core served at the end of the last turn.
    serving: bool,
    next_tick: Time,
    /// The wall clock, and the time at which it was read.
    wall: (Time, WallTime),
    /// Inputs that follow from this turn's replies.
    next: Vec<Input>,
    fault_point: FaultPoint,
}

impl Frontend {
    /// Creates the frontend of a server whose disk holds a checkpoint of its core's applied state.
    pub fn new(config: FrontendConfig, mut core: Core, now: Time, wall: WallTime) -> Self {
        let durable = core.snapshot_meta().index;
        // Before the log is replayed: see `notice_own_removal`.
        let was_member = core.membership().contains(config.own_record.id);
        let gossip_key = GossipKeyAge::new(now, core.state().gossip_key());
        let corrupt = config.corrupt;
        if corrupt {
            core.corruption_checks_mut().found_at_start();
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

    /// Breaks a rule on purpose, for tests that must detect it.
    #[cfg(feature = "fault-injection")]
    pub fn break_rule(&mut self, rule: crate::fault_injection::Rule) {
        self.core.break_rule(rule);
        self.fault_point.break_rule(rule);
    }

    /// Returns the measurements since the last call: the shell calls this after every turn.
    pub fn take_observed(&mut self) -> Observed {
        self.core.take_observed()
    }

    /// Returns the core, read-only.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Returns `true` if this server's state was found corrupt, so that it serves no agent.
    pub fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// Returns the number of parked blocking queries.
    pub fn watch_count(&self) -> usize {
        self.watches.len()
    }

    /// Reports the other servers to the shell, before the first turn.
    pub fn start(&mut self, actions: &mut Actions) {
        self.notice_roster(actions);
    }

    /// Returns the time at which [`Frontend::advance`] must be called, if no event comes earlier.
    pub fn wakes_at(&self) -> Time {
        self.core.next_deadline().map_or(self.next_tick, |deadline| deadline.min(self.next_tick))
    }

    /// Handles one event.
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

    /// Advances time; `dirty_rows` is the number of rows that wait for the next checkpoint. Returns
    /// `true` if a tick was due.
    pub fn advance(&mut self, now: Time, wall: WallTime, dirty_rows: usize, actions: &mut Actions) -> bool {
        if now < self.next_tick {
            if now >= self.wakes_at() {
                self.input(now, Input::Deadline(self.wall_at(now)));
            }
            return false;
        }
        // Late ticks are not repeated: the core extends its deadlines instead.
        self.next_tick = now + TICK;
        self.wall = (now, wall);
        if self.removal == Removal::Settled {
            // It must not disturb the other servers with elections.
            return true;
        }
        let versions_differ = self.versions_differ();
        self.core.corruption_checks_mut().pause(versions_differ);
        self.look_at_disks(now);
        // Before deadlines expire: an expiry waits for the renewals of its session.
        self.end_overdue(now);
        self.input(now, Input::Tick(wall));
        self.hand_over_if_unfit(now);
        // Only with a tick: a few milliseconds of extra wait do no harm and save a separate
        // wake-up.
        self.answer_due(now, actions);
        self.checkpoint_if_due(now, dirty_rows, actions);
        true
    }

    /// Starts the end of a turn. Hand the writes to the disk before [`Frontend::settle`], so that
    /// the disk works while committed entries are applied. Messages to other servers follow at the
    /// end of the turn, after the replies to clients.
    pub fn decide(&mut self, now: Time, actions: &mut Actions) {
        self.core.decide(now, &mut self.outbox);
        self.hand_on(actions);
    }

    /// Ends a turn: processes everything that is possible now.
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
        // First of all: a peer without permission learns nothing about the state.
        if let Some(reason) = denied(peer, &request) {
            let denied = Response::Unavailable(Unavailable::Denied(reason));
            return actions.answer(from, denied, AnswerKind::Other);
        }
        // Introductions are still answered: servers that look for a quorum must learn of its
        // existence.
        if let Some(why) = self.out_of_service().filter(|_| !matches!(request, Request::Introduce(_))) {
            return actions.answer(from, Response::Unavailable(why), AnswerKind::Other);
        }
        match request {
            Request::Propose(id, command) => self.propose(now, (from, peer), id, command, actions),
            Request::Read { query, consistency, blocking } => {
                // Before it costs a quorum round.
                if let Some(why) = admission::read_refusal(&query) {
                    return actions.answer(from, Response::Unavailable(why), AnswerKind::Read);
                }
                // The outcome of a position is a committed fact, so it costs no quorum round.
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

    /// Replies to requests that need no input to the core.
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

    /// Passes a caller's request to the core.
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
        // A request rejected here is certainly not done; later the outcome may be unknown.
        let refusal = self.proposal_refusal(peer, request.as_ref(), &command);
        if let Some(why) = refusal.or_else(|| self.rotation_refusal(now, &command)) {
            return actions.answer(from, Response::Unavailable(why), AnswerKind::Write);
        }
        let at = self.wall_at(now);
        let proposal = Proposal { request, at, command };
        self.ask(now, from, CallKind::Write, |token| Input::Propose(token, proposal));
    }

    /// Returns the wall-clock time, which is read once per tick.
    fn wall_at(&self, now: Time) -> WallTime {
        let (read_at, WallTime(millis)) = self.wall;
        WallTime(millis + now.since(read_at).as_millis() as u64)
    }

    fn has_other_voters(&self) -> bool {
        self.core.membership().voters.len() > 1
    }

    /// Follows the disk's health. A failing disk ends all waiting writes; their outcome is unknown.
    fn notice_disk(&mut self, health: DiskHealth, actions: &mut Actions) {
        // Reads and the leader's own steps continue: they do not need this server's disk.
        if let DiskHealth::Failing(reason) = &health {
            // Their entries may already be on a majority of the servers.
            let why = Unavailable::Unknown(format!("the server cannot write to its disk: {reason}"));
            for from in self.pending.take_writes() {
                actions.answer(from, Response::Unavailable(why.clone()), AnswerKind::Write);
            }
        }
        self.disk = health;
    }

    /// Hands over the leadership of a leader whose disk rejects writes, or whose state is corrupt:
    /// it could serve no client.
    fn hand_over_if_unfit(&mut self, now: Time) {
        // If no majority can write, no other server can be elected.
        let cannot_write = self.disk != DiskHealth::Good && self.no_majority_writes.is_none();
        if self.corrupt || cannot_write {
            self.core.hand_over(now, &mut self.outbox);
        }
    }

    /// Hands work to the disk and messages to the other servers. A snapshot to install goes first.
    fn hand_on(&mut self, actions: &mut Actions) {
        // The store must receive the snapshot's checkpoint before the log's reset that depends on
        // it: see `carry_out`.
        if self.outbox.install.is_none() {
            actions.messages.append(&mut self.outbox.messages);
            actions.storage.extend(self.outbox.writes.drain(..).map(Storage::Write));
        }
    }

    fn carry_out(&mut self, now: Time, actions: &mut Actions) {
        // First: the rest of this outbox belongs to the snapshot's state.
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
                // Every agent renews constantly: counted as writes, renewals would hide all others.
                let is_lease = matches!(kind, CallKind::Lease);
                let kind = if is_lease { AnswerKind::Other } else { AnswerKind::Write };
                actions.answer(from, self.with_leader_hint(response), kind);
            }
            // Regardless of the outcome: a stopping server tries one transfer and then stops.
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
