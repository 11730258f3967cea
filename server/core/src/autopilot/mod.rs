//! Autopilot: the leader manages the other servers. It tracks their health, promotes learners that
//! have caught up, removes dead servers, limits log compaction, and hands over if it is unfit.
//!
//! A membership changes one server at a time, through a joint membership. A node that returns with
//! an empty disk replaces its former server in one change, so a dead vote is never counted beside
//! the new one. **Invariants:** a server is removed only if the healthy servers among the remaining
//! ones are a majority of them; removing a server ends no session; a roster row lives as long as
//! its server is a member.
//!
//! A commit index reaches the disks with the next write. Until then, a power failure on all servers
//! restores the previous membership, and a removed server has its vote again. A change is therefore
//! *settled* only when a later entry is applied: a server with that entry on disk also has the
//! commit of the change, and a majority has both. Until then the change is not reported as done, no
//! other change begins, and a removed server still votes.
//!
//! | file | contents |
//! |---|---|
//! | `health.rs` | contact, health and reliability of the servers |
//! | `membership.rs` | additions, promotions and removals, one at a time |
//! | `replication.rs` | snapshot offers, log compaction, leadership transfers |

mod health;
mod membership;
mod replication;
#[cfg(test)]
mod tests;

pub use health::AutopilotView;

use crate::cluster::{ClusterView, Decision, Turn};
use crate::corruption::CorruptionChecks;
use crate::durability::disk_watch::DiskWatch;
use crate::input::{CallToken, ServerRequest};
use crate::outbox::{lost_leadership, not_leader};
use crate::raft::{ElectionTimeout, Replication};
use lockmesh_protocol::id::{LogIndex, ServerId, WallTime};
use lockmesh_protocol::rpc::Response;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Silence after which a server counts as dead once another server has been promoted in its place.
const DEAD_AFTER: Duration = Duration::from_secs(10);

/// The servers at one input, as far as this one knows them.
#[derive(Clone, Debug)]
pub(crate) struct Servers<'a> {
    pub(crate) cluster: ClusterView<'a>,
    pub(crate) replication: Replication,
    pub(crate) corruption: &'a CorruptionChecks,
    pub(crate) disk: &'a DiskWatch,
    pub(crate) election: ElectionTimeout,
}

/// An input of the autopilot.
#[derive(Debug)]
pub(crate) enum AutopilotInput {
    /// This server begins to serve.
    Start,
    /// This server stops to lead.
    Stop,
    /// A tick, on every server.
    Tick,
    /// A tick of a leader that serves, after [`Self::Tick`].
    Settle,
    /// A tick of a leader that serves, after [`Self::Settle`]; the time is that of its clock.
    Manage(WallTime),
    /// A request, which only a leader that serves can handle.
    Request(ServerRequest),
    /// A membership change was applied: the former members, and the caller of the change.
    MembershipApplied(Vec<ServerId>, Option<CallToken>),
    /// An entry was applied.
    Applied,
    /// This leader is unfit to lead.
    HandOver,
}

/// Knowledge about the other servers. Only the leader uses the fields other than the contact times.
#[derive(Debug, Default)]
pub(crate) struct Autopilot {
    /// Time of the last message from each server.
    heard: BTreeMap<ServerId, Time>,
    /// Time at which this server became leader.
    led_since: Time,
    /// Health of each member at the last tick.
    health: BTreeMap<ServerId, Health>,
    /// Learners that qualify for a vote, each with the time since which it qualifies.
    ready: BTreeMap<ServerId, Time>,
    /// Servers that were offered a snapshot and have not installed it yet.
    fetching: BTreeMap<ServerId, Fetching>,
    /// Voters that were dead when another server was promoted.
    replaced: BTreeSet<ServerId>,
    /// Servers that are no longer members and whose rows are not removed yet.
    leaving: BTreeSet<ServerId>,
    /// The caller that waits for a leadership transfer, and the start of the transfer.
    transfer: Option<(CallToken, Time)>,
    /// Voters that an unfit leader has tried to hand over to.
    tried: BTreeSet<ServerId>,
    /// The index that each member had acknowledged at the last tick, and the time of its last
    /// progress.
    acknowledged: BTreeMap<ServerId, (LogIndex, Time)>,
    /// The index of the entry that settles the newest membership, once it is proposed.
    settled_by: Option<LogIndex>,
    /// Calls that wait until the membership is settled and the rows of removed servers are gone.
    waits_for_membership: Vec<CallToken>,
}

/// Health of a server, and the time since which it is unchanged.
#[derive(Clone, Copy, Debug)]
struct Health {
    is_healthy: bool,
    since: WallTime,
}

/// A server that was offered a snapshot and may be fetching it.
#[derive(Debug)]
struct Fetching {
    /// The first snapshot that was offered. Later offers are newer.
    snapshot: LogIndex,
    /// Time of the last offer.
    told: Time,
}

impl Autopilot {
    /// Handles one input. The caller carries out the decisions, in their order.
    pub(crate) fn handle(
        &mut self,
        servers: &Servers<'_>,
        now: Time,
        input: AutopilotInput,
        decisions: &mut Vec<Decision>,
    ) {
        let turn = &mut Turn { view: &servers.cluster, now, decisions };
        match input {
            AutopilotInput::Start => self.start(turn),
            AutopilotInput::Stop => self.stop(turn),
            AutopilotInput::Tick => {
                self.end_late_transfer(turn);
                // Also before this leader serves: it may need that follower in order to serve.
                self.offer_snapshots_again(servers, turn);
            }
            AutopilotInput::Settle => {
                self.forget_who_left(turn);
                self.settle_membership(turn);
            }
            AutopilotInput::Manage(wall) => {
                self.note_health(servers, turn, wall);
                self.note_who_is_ready(servers, turn);
                self.change_membership(servers, turn);
            }
            AutopilotInput::Request(request) => self.handle_request(servers, turn, request),
            AutopilotInput::MembershipApplied(before, caller) => {
                self.membership_applied(turn, &before, caller);
            }
            AutopilotInput::Applied => self.reply_if_settled(turn),
            AutopilotInput::HandOver => self.hand_over(servers, turn),
        }
    }

    fn handle_request(&mut self, servers: &Servers<'_>, turn: &mut Turn<'_>, request: ServerRequest) {
        if !turn.view.is_serving() {
            return turn.fail(request.caller(), not_leader());
        }
        match request {
            ServerRequest::TransferLeader(token, to) => self.transfer_leader(servers, turn, token, to),
            ServerRequest::AddServer(token, server) => self.add_server(servers, turn, token, server),
            ServerRequest::RemoveServer(token, server) => self.remove_server(servers, turn, token, server),
        }
    }

    /// Records a message from a server.
    pub(crate) fn note_contact(&mut self, now: Time, server: ServerId) {
        self.heard.insert(server, now);
    }

    /// Records the index of the entry that settles the newest membership.
    pub(crate) fn settles_at(&mut self, index: Option<LogIndex>) {
        self.settled_by = index;
    }

    /// Records that this server is fit to lead again.
    pub(crate) fn is_fit_again(&mut self) {
        self.tried.clear();
    }

    /// Returns `true` if a caller waits for a membership change.
    pub(crate) fn has_callers(&self) -> bool {
        !self.waits_for_membership.is_empty()
    }

    /// Resets the leader's state when this server stops to lead.
    fn stop(&mut self, turn: &mut Turn<'_>) {
        // The transfer is done: its caller only wanted this server to step down.
        if let Some((token, _)) = self.transfer.take() {
            turn.reply(token, Response::Done);
        }
        for token in self.waits_for_membership.drain(..) {
            turn.fail(token, lost_leadership());
        }
        // Contact times remain valid under another leader, so this server's next term starts with
        // them.
        let heard = std::mem::take(&mut self.heard);
        *self = Self { heard, ..Self::default() };
    }
}
