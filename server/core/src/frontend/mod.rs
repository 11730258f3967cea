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
//! | `reads.rs` | reads that are answered or parked |
//! | `servers.rs` | joins, announcements, removals; `Eligibility`, `ProgramVersions` |
//! | `pending.rs` | `PendingCalls`: calls that await a reply of the core |
//! | `watches.rs` | `Watches`: blocking reads that are parked |
//! | `views.rs` | `Views`: long answers that are read in parts, and the queue for them |
//! | `checkpoints.rs` | `Checkpoints`: checkpoints, their readers, and snapshots of other servers |
//! | `stalls.rs` | `WriteHealth`: failing and stalled disks |
//! | `leaders.rs` | `LeaderHistory`: leader changes, and the last contact |
//! | `mesh.rs` | `GossipKeyAge`, and requests from agents in the mesh |
//! | `rights.rs` | the judgement of queries and other requests by the access control lists |
//! | `admission.rs` | permissions and limits of requests |
//! | `status.rs` | `StatusView`: a read-only view of the server, and replies that describe the server |
//! | `readiness.rs` | readiness, and the reasons against it, by a `StatusView` |
//! | `figures.rs` | a server's figures for monitoring, by a `StatusView` |
//!
//! Most parts are values that own their state, and functions of such values: they do not depend on
//! [`Frontend`].
//!
//! **Invariants:** every call is answered once, unless it was cancelled; a reply to a command
//! depends only on durable data; a parked reader is checked in the turn of a change that touches
//! it; nothing here blocks.

mod actions;
mod admission;
mod checkpoints;
mod event;
mod figures;
mod leaders;
mod mesh;
mod pending;
mod readiness;
mod reads;
mod rights;
mod servers;
mod stalls;
mod status;
mod views;
mod watches;

pub use crate::outbox::{ChallengeWanted, MeshItemsWanted, QuestionWanted, ShellEffects};
pub use actions::{
    Actions, Announcement, AnswerKind, CallAnswer, CheckpointReader, OpenReader, PartWanted, RosterChange,
    SnapshotFetch, Storage,
};
pub use admission::denied;
pub use event::{CallRef, Caller, DiskHealth, Event};
pub use figures::{Figures, FollowerFigures};
pub use readiness::NotReady;

use crate::core::Core;
use crate::fault_injection::FaultPoint;
use crate::input::{CallToken, Input, NodeInput, ServerRequest};
use crate::observed::Observed;
use crate::outbox::Outbox;
use crate::proposal::Proposal;
use crate::raft::TICK;
use admission::Refusal;
use checkpoints::{Checkpoints, ReaderWanted};
use leaders::LeaderHistory;
use lockmesh_protocol::acl;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::id::{LogIndex, RequestId, WallTime};
use lockmesh_protocol::lease::NodeLeaseQuery;
use lockmesh_protocol::peer::Peer;
use lockmesh_protocol::query::{Consistency, Query};
use lockmesh_protocol::record::Server;
use lockmesh_protocol::rpc::{Request, Response, Unavailable, VIEW_WAIT, ViewId};
use lockmesh_protocol::time::Time;
use mesh::GossipKeyAge;
use pending::{CallKind, Pending, PendingCalls, ReadWanted};
use rights::DryRun;
use servers::{Eligibility, ProgramVersions};
use stalls::{WriteHealth, has_other_voters, servers_behind};
use status::{StatusView, leader_hint, with_leader_hint};
use std::time::Duration;
use views::{Views, WaitingRead};
use watches::Watches;

/// The maximum time for which a blocking query is parked, even if its caller requests more.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// An arriving call.
#[derive(Clone, Copy, Debug)]
struct Call<'a> {
    now: Time,
    /// The destination of the reply.
    from: CallRef,
    peer: &'a Peer,
    client: &'a acl::Caller,
}

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

/// A server's frontend with its core, without clock, disk and connections.
#[derive(Debug)]
pub struct Frontend {
    core: Core,
    config: FrontendConfig,
    outbox: Outbox,
    pending: PendingCalls,
    watches: Watches,
    views: Views,
    checkpoints: Checkpoints,
    write_health: WriteHealth,
    leaders: LeaderHistory,
    gossip_key: GossipKeyAge,
    versions: ProgramVersions,
    eligibility: Eligibility,
    next_tick: Time,
    /// The wall clock, and the time at which it was read.
    wall: (Time, WallTime),
    fault_point: FaultPoint,
    dry_run: DryRun,
    /// The bootstrap of the access control lists that may be repeated.
    acl_reset: Option<LogIndex>,
}

impl Frontend {
    /// Creates the frontend of a server whose disk holds a checkpoint of its core's applied state.
    pub fn new(config: FrontendConfig, mut core: Core, now: Time, wall: WallTime) -> Self {
        let durable = core.replica().snapshot_meta().index;
        // Before the log is replayed: see `Eligibility`.
        let me = config.own_record.id;
        let eligibility = Eligibility::new(me, core.replica().membership().contains(me), config.corrupt);
        let gossip_key = GossipKeyAge::new(now, core.replica().state().gossip_key());
        if config.corrupt {
            core.corruption_checks_mut().found_at_start();
        }
        Self {
            core,
            config,
            outbox: Outbox::default(),
            pending: PendingCalls::default(),
            watches: Watches::default(),
            views: Views::default(),
            checkpoints: Checkpoints::new(now, durable),
            write_health: WriteHealth::default(),
            leaders: LeaderHistory::new(now),
            gossip_key,
            versions: ProgramVersions::default(),
            eligibility,
            next_tick: now,
            wall: (now, wall),
            fault_point: FaultPoint::default(),
            dry_run: DryRun::default(),
            acl_reset: None,
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
        let views_ended_idle = self.views.take_ended_idle();
        let backups_refused = self.checkpoints.take_refused();
        Observed { views_ended_idle, backups_refused, ..self.core.take_observed() }
    }

    /// Permits another bootstrap of the access control lists, if the last one has this index.
    pub fn permit_acl_reset(&mut self, index: Option<LogIndex>) {
        self.acl_reset = index;
    }

    /// Returns the core, read-only.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Returns `true` if this server's state was found corrupt, so that it serves no agent.
    pub fn is_corrupt(&self) -> bool {
        self.eligibility.is_corrupt()
    }

    /// Returns the number of parked blocking queries.
    pub fn watch_count(&self) -> usize {
        self.watches.len()
    }

    /// Returns the reasons why this server cannot serve now; empty if it can.
    pub fn not_ready(&self, now: Time) -> Vec<NotReady> {
        readiness::not_ready(&self.view(now))
    }

    /// Returns the server's current figures.
    pub fn figures(&self, now: Time) -> Figures {
        figures::figures(&self.view(now))
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
            Event::Call { from, peer, client, request } => {
                self.call(&Call { now, from, peer: &peer, client: &client }, request, actions);
            }
            Event::Cancel(call) => {
                self.pending.cancel(call);
                self.watches.cancel(call);
                self.views.cancel(call);
                self.checkpoints.cancel(call);
            }
            Event::Disconnected(caller) => {
                self.pending.cancel_all(caller);
                self.watches.cancel_all(caller);
                self.views.end_of_caller(caller);
                self.checkpoints.cancel_all(caller);
            }
            Event::Core(Input::Peer(sender, message)) => self.peer(now, sender, message, actions),
            Event::Core(Input::CheckpointDurable(mark)) => {
                let index = mark.index;
                self.input(now, Input::CheckpointDurable(mark));
                self.checkpoints.completed(now, index, self.core.replica().snapshot_meta(), actions);
            }
            Event::Core(input) => self.input(now, input),
            Event::Version(server, version) => self.versions.insert(server, version),
            Event::SnapshotFetched(fetched) => {
                if let Some(install) = self.checkpoints.fetched(fetched) {
                    self.input(now, install);
                }
            }
            Event::Disk(health) => self.notice_disk(health, actions),
            Event::ReaderFinished(reader) => self.checkpoints.reader_finished(reader),
            Event::ReaderClosed(reader) => self.checkpoints.reader_closed(reader),
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
        if self.eligibility.is_removal_settled() {
            // It must not disturb the other servers with elections.
            return true;
        }
        let versions_differ =
            self.versions.differ(self.config.own_record.id, self.core.replica().membership());
        self.core.corruption_checks_mut().pause(versions_differ);
        self.check_disks(now);
        // Before deadlines expire: an expiry waits for the renewals of its session.
        self.end_overdue(now);
        self.input(now, Input::Tick(wall));
        self.hand_over_if_unfit(now);
        // Only with a tick: a few milliseconds of extra wait do no harm and save a separate
        // wake-up.
        self.answer_due(now, actions);
        self.views.end_overdue(self.view_position(now));
        if self.checkpoints.is_due(now, dirty_rows, &self.config) {
            self.checkpoints.begin(now, self.core.replica().snapshot_meta(), actions);
        }
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
            let follow_ups = self.carry_out(now, actions);
            if follow_ups.is_empty() {
                break;
            }
            for input in follow_ups {
                self.input(now, input);
            }
        }
        if let Some(leader) = self.core.replica().leader() {
            let term = self.core.replica().log_position().term;
            self.leaders.record(now, (leader, term), self.core.last_contact(now, leader));
        }
        self.notice_own_removal(actions);
        self.notice_corruption(actions);
    }

    fn input(&mut self, now: Time, input: Input) {
        self.core.handle(now, input, &mut self.outbox);
    }

    fn call(&mut self, call: &Call<'_>, request: Request, actions: &mut Actions) {
        let begun = self.check_call(call, &request);
        let begun = begun.and_then(|()| self.begin_call(call, request, actions));
        if let Err(Refusal(why, kind)) = begun {
            actions.answer(call.from, Response::Unavailable(why), kind);
        }
    }

    fn check_call(&mut self, call: &Call<'_>, request: &Request) -> Result<(), Refusal> {
        let peer = call.peer;
        rights::check_caller(call.client)?;
        // First of all: a peer without permission learns nothing about the state.
        if let Some(reason) = denied(peer, request) {
            return Err(Unavailable::Denied(reason).into());
        }
        admission::check_host(&self.core, peer, request)?;
        // Introductions are still answered: servers that look for a quorum must learn of its
        // existence.
        if !matches!(request, Request::Introduce(_)) {
            self.eligibility.check()?;
        }
        Ok(rights::check_rights(self, call.now, (peer, call.client), request)?)
    }

    /// Begins a call: one arm for each request, so that a new one does not compile without an
    /// answer.
    fn begin_call(
        &mut self,
        call: &Call<'_>,
        request: Request,
        actions: &mut Actions,
    ) -> Result<(), Refusal> {
        let Call { now, from, peer, client } = *call;
        let part = |reader, number| PartWanted { reader, number, to: from };
        let mut answer = |response| actions.answer(from, response, AnswerKind::Other);
        match request {
            Request::Propose(request, command) => self.begin_proposal(call, request, command)?,
            Request::Read { query, consistency, blocking } => {
                let (node, client) = (peer.node.folded(), client.clone());
                let read = ReadWanted { node, client, query, consistency, blocking };
                self.begin_read(call, read, actions)?;
            }
            Request::ReadParts { query, consistency } => self.begin_view(call, query, consistency)?,
            Request::ReadPart { view, after, .. } => self.read_part(now, from, (view, after), actions)?,
            Request::EndView(view, _) => {
                self.views.end(from.caller, view);
                answer(Response::Done);
            }
            Request::Renew(session) => {
                self.forward(now, from, CallKind::Write, |token| Input::Renew(token, session));
            }
            Request::RenewLease(renewal) => self.renew_lease(call, renewal.into())?,
            Request::RenewGivingUp(answer) => self.renew_lease(call, *answer)?,
            Request::BackupPart { backup: Some(reader), number, .. } => {
                self.next_part(peer, CheckpointReader::Backup, part(reader, number), actions)?;
            }
            Request::BackupPart { backup: None, stale, .. } => self.begin_backup(call, stale),
            Request::SnapshotPart { snapshot: Some(reader), number, .. } => {
                self.next_part(peer, CheckpointReader::Snapshot, part(reader, number), actions)?;
            }
            Request::SnapshotPart { least, .. } => self.begin_snapshot(call, least, actions)?,
            Request::TransferLeader(to) => {
                self.forward(now, from, CallKind::Write, |token| ServerRequest::TransferLeader(token, to));
            }
            Request::RemoveServer(server) => {
                self.forward(now, from, CallKind::Write, |token| ServerRequest::RemoveServer(token, server));
            }
            Request::AddServer(server) => {
                servers::check_admission(&self.core, now, &server)?;
                self.propose(call, CallKind::Admission, None, Command::AdmitServer(server));
            }
            Request::Announce(server) => {
                servers::check_announcement(&self.core, peer, &server)?;
                self.propose(call, CallKind::Announcement, None, Command::UpdateServer(server));
            }
            Request::SyncMesh(has) => answer(self.sync_mesh(now, peer, &has)?),
            Request::Spread(item) => {
                let origin = mesh::agent(&self.core, peer)?.number;
                self.forward(now, from, CallKind::Lease, |token| Input::Spread(token, origin, item));
            }
            Request::Suspect(suspected) => {
                let by = mesh::reporter(&self.core, peer, &suspected)?;
                self.forward(now, from, CallKind::Lease, |token| NodeInput::Suspect(token, by, suspected));
            }
            Request::NodeLeases(query) => self.begin_lease_query(now, from, query)?,
            Request::Status => answer(Response::Status(status::status(&self.view(now), &peer.node))),
            Request::Introduce(_) => answer(Response::Introduced(status::introduction(&self.view(now)))),
            Request::Autopilot => answer(status::autopilot(&self.core)),
            Request::Invite(_) => return Err(Refusal::denied("this server belongs to a cluster already")),
            Request::Challenge(_) | Request::AskNode(_) | Request::TellMesh(_) => {
                return Err(Refusal::denied("this is a server: only agents answer this request"));
            }
        }
        Ok(())
    }

    fn begin_proposal(
        &mut self,
        call: &Call<'_>,
        request: Option<RequestId>,
        command: Command,
    ) -> Result<(), Refusal> {
        // A request rejected here is certainly not done; later the outcome may be unknown.
        admission::check_proposal(&self.core, &self.write_health, call.peer, request.as_ref(), &command)
            .and_then(|()| self.gossip_key.check(call.now, &command, self.core.replica().is_serving()))
            .map_err(|why| Refusal(why, AnswerKind::Write))?;
        let command = admission::completed(&self.core, self.acl_reset, command);
        self.propose(call, CallKind::Write, request, command);
        Ok(())
    }

    fn renew_lease(&mut self, call: &Call<'_>, answer: NodeAnswer) -> Result<(), Refusal> {
        let NodeAnswer { renewal, given_up } = answer;
        admission::check_renewal(&self.core, call.peer, &renewal)?;
        let given_up = given_up.map(Box::new);
        self.forward(call.now, call.from, CallKind::Lease, |token| {
            NodeInput::RenewLease(token, renewal, given_up)
        });
        Ok(())
    }

    fn begin_read(
        &mut self,
        call: &Call<'_>,
        read: ReadWanted,
        actions: &mut Actions,
    ) -> Result<(), Refusal> {
        // Before it costs a quorum round.
        admission::check_read(&read.query).map_err(|why| Refusal(why, AnswerKind::Read))?;
        // The outcome of a position is a committed fact, so it costs no quorum round.
        let position = match &read.query {
            Query::QueuePosition { queue_position, .. } | Query::RequestOutcome { queue_position, .. } => {
                Some(*queue_position)
            }
            _ => None,
        };
        if position.is_some_and(|position| self.core.replica().knows_queue_position(position)) {
            let read = ReadWanted { consistency: Consistency::Default, ..read };
            self.read(call.now, call.from, read, actions);
            return Ok(());
        }
        let (Call { now, from, .. }, consistency) = (*call, read.consistency);
        self.forward(now, from, CallKind::Read(read), |token| Input::Read(token, consistency));
        Ok(())
    }

    fn begin_view(&mut self, call: &Call<'_>, query: Query, consistency: Consistency) -> Result<(), Refusal> {
        admission::check_parts(&query).map_err(|why| Refusal(why, AnswerKind::Read))?;
        let (node, deadline) = (call.peer.node.folded(), call.now + VIEW_WAIT);
        let client = call.client.clone();
        let list = CallKind::ReadParts { node, client, query, consistency, deadline };
        self.forward(call.now, call.from, list, |token| Input::Read(token, consistency));
        Ok(())
    }

    fn read_part(
        &mut self,
        now: Time,
        from: CallRef,
        (view, after): (ViewId, u64),
        actions: &mut Actions,
    ) -> Result<(), Refusal> {
        let read = self.views.part(self.view_position(now), from.caller, view, after);
        actions.long_reads.push((from, read.map_err(|why| Refusal(why, AnswerKind::Read))?));
        Ok(())
    }

    fn begin_backup(&mut self, call: &Call<'_>, stale: bool) {
        let consistency = if stale { Consistency::Stale } else { Consistency::Consistent };
        let kind = CallKind::Backup(call.peer.node.folded());
        self.forward(call.now, call.from, kind, |token| Input::Read(token, consistency));
    }

    fn begin_snapshot(
        &mut self,
        call: &Call<'_>,
        least: LogIndex,
        actions: &mut Actions,
    ) -> Result<(), Refusal> {
        let (kind, node) = (CheckpointReader::Snapshot, call.peer.node.folded());
        let wanted = ReaderWanted { kind, node, index: least, from: call.from };
        Ok(self.checkpoints.want_reader(call.now, self.core.replica().snapshot_meta(), wanted, actions)?)
    }

    /// Reads the next part of an open reader.
    fn next_part(
        &mut self,
        peer: &Peer,
        kind: CheckpointReader,
        part: PartWanted,
        actions: &mut Actions,
    ) -> Result<(), Refusal> {
        self.checkpoints.check_reader(part.reader, kind, &peer.node.folded())?;
        actions.parts.push(part);
        Ok(())
    }

    fn sync_mesh(&mut self, now: Time, peer: &Peer, has: &RosterDigest) -> Result<Response, Refusal> {
        let wall = self.wall_at(now);
        let news = mesh::sync(&mut self.core, (now, wall), peer, has)?;
        Ok(Response::Mesh(Box::new(news)))
    }

    fn begin_lease_query(&mut self, now: Time, from: CallRef, query: NodeLeaseQuery) -> Result<(), Refusal> {
        // A follower may read the state after its leader's round, but lease status is not in the
        // state.
        if !self.core.replica().is_serving() {
            return Err(Refusal(leader_hint(&self.core), AnswerKind::Read));
        }
        let kind = CallKind::NodeLeases(query);
        self.forward(now, from, kind, |token| Input::Read(token, Consistency::Consistent));
        Ok(())
    }

    /// Passes a caller's request to the core.
    fn forward<I: Into<Input>>(
        &mut self,
        now: Time,
        from: CallRef,
        kind: CallKind,
        input: impl FnOnce(CallToken) -> I,
    ) {
        let token = self.pending.insert(Pending::Call(from, kind));
        self.input(now, input(token).into());
    }

    fn propose(&mut self, call: &Call<'_>, kind: CallKind, request: Option<RequestId>, command: Command) {
        let caller = rights::caller_of(self, call.now, (&call.peer.node, call.client), &command);
        let proposal = Proposal { request, at: self.wall_at(call.now), command, caller };
        self.forward(call.now, call.from, kind, |token| Input::Propose(token, proposal));
    }

    /// Returns the wall-clock time, which is read once per tick.
    fn wall_at(&self, now: Time) -> WallTime {
        let (read_at, WallTime(millis)) = self.wall;
        WallTime(millis + now.since(read_at).as_millis() as u64)
    }

    fn view(&self, now: Time) -> StatusView<'_> {
        StatusView {
            now,
            core: &self.core,
            config: &self.config,
            eligibility: &self.eligibility,
            leaders: &self.leaders,
            versions: &self.versions,
            write_health: &self.write_health,
            watches: self.watches.len(),
            views: &self.views,
            behind_since: self.checkpoints.behind_since(self.core.replica().applied_index()),
        }
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
        self.write_health.set_disk(health);
    }

    /// Reports to the other servers if this one's disk rejects writes, and updates whether a
    /// majority can write.
    fn check_disks(&mut self, now: Time) {
        let own = self.write_health.disk_failure();
        if let Some(reason) = own {
            self.core.report_refusing_disk(now, reason, &mut self.outbox);
        }
        // A single voter reports its own reason.
        let why = self.core.why_no_majority_writes(now, own).filter(|_| has_other_voters(&self.core));
        self.write_health.set_no_majority(why);
    }

    /// Replies to requests that have waited too long.
    fn end_overdue(&mut self, now: Time) {
        let overdue = self.core.take_overdue(now);
        if overdue.len() > 0 {
            let unpersisted = self.core.disk().unpersisted_since().map(|since| now.since(since));
            let behind = servers_behind(&self.core, self.config.own_record.id);
            let cause = self.write_health.cause_of_delay(unpersisted, &behind);
            self.write_health.log_delay(now, overdue.len(), &cause);
            self.core.end_overdue(now, overdue, &cause, &mut self.outbox);
        }
    }

    /// Hands over the leadership of a leader whose disk rejects writes, or whose state is corrupt:
    /// it could serve no client.
    fn hand_over_if_unfit(&mut self, now: Time) {
        if self.eligibility.is_corrupt() || self.write_health.needs_other_leader() {
            self.core.hand_over(now, &mut self.outbox);
        }
    }

    /// Hands work to the disk and messages to the other servers. A snapshot to install goes first.
    fn hand_on(&mut self, actions: &mut Actions) {
        // The store must receive the snapshot's checkpoint before the log's reset that depends on
        // it: see `carry_out`.
        if self.outbox.install.is_none() {
            actions.shell.append(&mut self.outbox.shell);
            actions.storage.extend(self.outbox.writes.drain(..).map(Storage::Write));
        }
    }

    /// Carries out the core's effects. Returns the inputs that follow from its replies.
    fn carry_out(&mut self, now: Time, actions: &mut Actions) -> Vec<Input> {
        // First: the rest of this outbox belongs to the snapshot's state.
        if let Some(mark) = self.outbox.install.take() {
            self.checkpoints.install(mark, actions);
            // All watched rows may have changed.
            self.watches.touch(&Change::Cleared);
            self.views.end_all();
            self.notice_roster(actions);
        }
        self.hand_on(actions);
        self.gossip_key.follow(now, self.core.replica().state().gossip_key());
        let mut outbox = std::mem::take(&mut self.outbox);
        for change in &outbox.changes {
            self.watches.touch(change);
            if matches!(change, Change::Cleared) {
                // Views alone keep the old rows.
                self.views.end_all();
            }
        }
        let services = std::mem::take(&mut outbox.services);
        services.into_iter().for_each(|topic| self.watches.touch_service(topic));
        let roster_changed = outbox.changes.iter().any(servers::is_of_roster);
        self.checkpoints.record(now, &mut outbox, actions);
        if roster_changed {
            self.notice_roster(actions);
        }
        let mut follow_ups = Vec::new();
        for (token, response) in outbox.replies.drain(..) {
            follow_ups.extend(self.reply(token, response, actions));
        }
        for (token, why) in outbox.refused_reads.drain(..) {
            self.reject_read(token, why, actions);
        }
        for token in outbox.readable.drain(..) {
            self.readable(now, token, actions);
        }
        self.wake_touched(now, actions);
        if let Some(index) = outbox.compact.take() {
            actions.storage.push(Storage::Compact(index));
        }
        if std::mem::take(&mut outbox.snapshot_wanted) {
            self.checkpoints.begin_for_follower(now, self.core.replica().snapshot_meta(), actions);
        }
        // Last: a leader that stepped down begins no view for readers of a leader.
        self.notice_role(actions);
        self.begin_views(now, actions);
        debug_assert!(outbox.is_empty(), "an effect would be carried out again: {outbox:?}");
        self.outbox = outbox;
        follow_ups
    }

    fn reply(&mut self, token: CallToken, response: Response, actions: &mut Actions) -> Option<Input> {
        match self.pending.take(token)? {
            Pending::Call(
                from,
                kind @ (CallKind::Admission | CallKind::Joining(_) | CallKind::Announcement),
            ) => return self.reply_to_server(from, &kind, response, actions),
            Pending::Call(from, kind) => {
                // Every agent renews constantly: counted as writes, renewals would hide all others.
                let is_lease = matches!(kind, CallKind::Lease);
                let kind = if is_lease { AnswerKind::Other } else { AnswerKind::Write };
                actions.answer(from, with_leader_hint(&self.core, response), kind);
            }
            // Regardless of the outcome: a stopping server tries one transfer and then stops.
            Pending::Leave => actions.may_leave = true,
        }
        None
    }

    fn reject_read(&mut self, token: CallToken, why: Unavailable, actions: &mut Actions) {
        if let Some(Pending::Call(from, _)) = self.pending.take(token) {
            actions.answer(from, with_leader_hint(&self.core, Response::Unavailable(why)), AnswerKind::Read);
        }
    }

    fn readable(&mut self, now: Time, token: CallToken, actions: &mut Actions) {
        match self.pending.take(token) {
            Some(Pending::Call(from, CallKind::Read(read))) => self.read(now, from, read, actions),
            Some(Pending::Call(from, CallKind::ReadParts { node, client, query, consistency, deadline })) => {
                let read = WaitingRead { from, node, client, query, consistency, deadline };
                self.queue_for_view(read, actions);
            }
            Some(Pending::Call(from, CallKind::Backup(node))) => {
                // Of the current applied index: the backup then holds the operator's own earlier
                // writes.
                let current = self.core.replica().snapshot_meta();
                let (kind, index) = (CheckpointReader::Backup, current.index);
                let wanted = ReaderWanted { kind, node, index, from };
                if let Err(why) = self.checkpoints.want_reader(now, current, wanted, actions) {
                    actions.answer(from, Response::Unavailable(why), AnswerKind::Other);
                }
            }
            Some(Pending::Call(from, CallKind::NodeLeases(query))) => {
                let answer = status::node_leases(&self.core, now, &query);
                actions.answer(from, answer, AnswerKind::Read);
            }
            _ => {}
        }
    }
}
