//! The values of a server: each receives the view of the cluster with an input, and its decisions
//! are carried out here.

use super::Core;
use super::replica::OwnCondition;
use crate::autopilot::{AutopilotInput, AutopilotView};
use crate::cluster::{ClusterView, Decision, Turn};
use crate::corruption::{CorruptionChecks, CorruptionInput, is_unconfirmed};
use crate::durability::disk_watch::DiskWatch;
use crate::judge::{Judge, JudgeInput};
use crate::mesh::{MeshInput, ServedMesh};
use crate::outbox::Outbox;
use crate::raft::message::{MessageKind, PeerMessage};
use crate::time::deadlines::Deadlines;
use bytes::Bytes;
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::id::{CellNumber, ServerId, WallTime};
use lockmesh_protocol::lease::{NodeLeaseQuery, NodeLeases};
use lockmesh_protocol::time::Time;
use std::time::Duration;

impl Core {
    pub(super) fn own_condition(&self, now: Time) -> OwnCondition {
        let (is_corrupt, is_late) = (self.corruption.is_known_here(), !self.deadlines.is_running(now));
        OwnCondition { is_corrupt, is_late }
    }

    /// Returns the cluster as this server knows it.
    pub(super) fn view(&self, now: Time) -> ClusterView<'_> {
        self.replica.view(self.own_condition(now))
    }

    /// Passes an input to the failure detector.
    pub(super) fn judge(&mut self, now: Time, input: JudgeInput<'_>, outbox: &mut Outbox) {
        let (own, mut decisions) = (self.own_condition(now), std::mem::take(&mut self.decisions));
        self.judge.handle(&self.replica.view(own), now, input, &mut decisions);
        self.carry_out(now, decisions, outbox);
    }

    /// Passes an input to the autopilot.
    pub(super) fn manage(&mut self, now: Time, input: AutopilotInput, outbox: &mut Outbox) {
        let (own, mut decisions) = (self.own_condition(now), std::mem::take(&mut self.decisions));
        let servers = self.replica.servers(own, &self.corruption, &self.disk);
        self.autopilot.handle(&servers, now, input, &mut decisions);
        self.carry_out(now, decisions, outbox);
    }

    /// Passes an input to the corruption checks.
    pub(super) fn compare(&mut self, now: Time, input: CorruptionInput<'_>, outbox: &mut Outbox) {
        let (own, mut decisions) = (self.own_condition(now), std::mem::take(&mut self.decisions));
        let input = (self.replica.own.copy_of, input);
        self.corruption.handle(&self.replica.view(own), now, input, &mut decisions);
        self.carry_out(now, decisions, outbox);
    }

    /// Passes an input to the mesh.
    pub(super) fn spread(&mut self, now: Time, input: MeshInput<'_>, outbox: &mut Outbox) {
        let (own, mut decisions) = (self.own_condition(now), std::mem::take(&mut self.decisions));
        let input = (&self.judge, input);
        self.mesh.handle(&self.replica.view(own), now, input, &mut decisions);
        self.carry_out(now, decisions, outbox);
    }

    /// Has the deadlines act on this turn.
    pub(super) fn with_deadlines(
        &mut self,
        now: Time,
        act: impl FnOnce(&mut Deadlines, &mut Turn<'_>),
        outbox: &mut Outbox,
    ) {
        let (own, mut decisions) = (self.own_condition(now), std::mem::take(&mut self.decisions));
        let view = self.replica.view(own);
        act(&mut self.deadlines, &mut Turn { view: &view, now, decisions: &mut decisions });
        self.carry_out(now, decisions, outbox);
    }

    /// Reports to the other servers, at an interval, that this server's disk rejects writes.
    pub(crate) fn report_refusing_disk(&mut self, now: Time, reason: &str, outbox: &mut Outbox) {
        let (own, mut decisions) = (self.own_condition(now), std::mem::take(&mut self.decisions));
        let turn = &mut Turn { view: &self.replica.view(own), now, decisions: &mut decisions };
        self.refusing_disks.report(turn, reason);
        self.carry_out(now, decisions, outbox);
    }

    fn carry_out(&mut self, now: Time, mut decisions: Vec<Decision>, outbox: &mut Outbox) {
        for decision in decisions.drain(..) {
            match decision {
                Decision::Reply(token, response) => outbox.replies.push((token, response)),
                Decision::Send(to, message) => outbox.shell.messages.push((to, message)),
                Decision::Propose(proposal, origin) => self.replica.proposals.gather(proposal, origin),
                Decision::ProposeOwn(command, origin) => {
                    self.replica.proposals.gather(self.replica.own(command), origin);
                }
                Decision::Read(reader) => self.replica.read_index.arrive(now, reader),
                Decision::Challenge(wanted) => outbox.shell.challenges.push(wanted),
                Decision::Ask(wanted) => outbox.shell.questions.push(wanted),
                Decision::Push(wanted) => outbox.shell.mesh_items.push(wanted),
                Decision::ConfirmState(check) => {
                    if !is_unconfirmed(self.replica.own.copy_of, check) {
                        self.replica.own.copy_of = None;
                    }
                }
                Decision::ChangeMembership(change, caller) => {
                    self.replica.propose_membership(now, change, caller, outbox);
                }
                Decision::SettleMembership => {
                    self.autopilot.settles_at(self.replica.engine.propose(vec![Bytes::new()]).ok());
                }
                Decision::TransferLeader(to) => self.replica.engine.transfer_leader(to),
                Decision::StepDown => self.replica.engine.step_down(),
                Decision::RetrySnapshot(server) => self.replica.engine.snapshot_failed(server),
            }
        }
        // Kept for its memory, unless carrying out these decisions led to others.
        self.decisions = decisions;
    }

    /// Passes a message to the value that it belongs to; returns `false` if it is the engine's.
    pub(super) fn message(&mut self, now: Time, message: &PeerMessage, outbox: &mut Outbox) -> bool {
        let kind = message.kind;
        if kind.is_of_judge() {
            self.judge(now, JudgeInput::Message(message), outbox);
        } else if kind.is_of_corruption_checks() {
            self.compare(now, CorruptionInput::Message(message), outbox);
        } else if kind.is_of_mesh() {
            self.spread(now, MeshInput::Message(message), outbox);
        } else if kind == MessageKind::DiskRefuses {
            self.refusing_disks.message(now, message);
        }
        !kind.is_consensus()
    }

    /// Returns the other servers, as this one sees them.
    pub fn autopilot(&self, now: Time) -> AutopilotView<'_> {
        AutopilotView {
            autopilot: &self.autopilot,
            servers: self.replica.servers(self.own_condition(now), &self.corruption, &self.disk),
            now,
        }
    }

    /// Returns the time since the last message from a server. The leader knows it for every server,
    /// a follower for the leader only. Zero for this server.
    pub fn last_contact(&self, now: Time, server: ServerId) -> Option<Duration> {
        self.autopilot.last_contact(&self.view(now), now, server)
    }

    /// Returns the failure detector.
    pub(crate) fn failure_detector(&self) -> &Judge {
        &self.judge
    }

    /// Returns `true` if very many nodes are silent at once, so that this leader's windows are
    /// long.
    pub fn is_braking(&self) -> bool {
        self.judge.is_braking()
    }

    /// Returns the data of the mesh.
    pub(crate) fn mesh(&self) -> &ServedMesh {
        &self.mesh
    }

    /// Returns the watch of this server's own disk.
    pub fn disk(&self) -> &DiskWatch {
        &self.disk
    }

    /// Returns this server's knowledge about its own state and the others'.
    pub fn corruption_checks(&self) -> &CorruptionChecks {
        &self.corruption
    }

    pub(crate) fn corruption_checks_mut(&mut self) -> &mut CorruptionChecks {
        &mut self.corruption
    }

    /// Returns the mesh data that an agent in this cell lacks, given the digest of its roster.
    /// `wall` is the time of this server's clock.
    pub(crate) fn mesh_news(
        &mut self,
        now: Time,
        wall: WallTime,
        asked: (CellNumber, &RosterDigest),
    ) -> MeshNews {
        self.mesh.news(now, &self.replica.state, (self.replica.applied.0, wall), asked)
    }

    /// Returns the status of one node's lease, or one page of all leases; `None` if this server is
    /// not the leader, which alone knows them.
    pub(crate) fn node_leases(&self, now: Time, query: &NodeLeaseQuery) -> Option<NodeLeases> {
        self.replica.serving.map(|_| self.judge.node_leases(now, &self.replica.state, query))
    }

    /// Returns the reason why no majority of the voters can write; `None` if one can, as far as
    /// this server knows. `own` is the reason of its own disk.
    pub(crate) fn why_no_majority_writes(&self, now: Time, own: Option<&str>) -> Option<String> {
        self.refusing_disks.why_no_majority_writes(&self.view(now), now, own)
    }
}
