//! An agent in the mesh: the real [`Mesh`], driven as the agent's own shell drives it, with its
//! socket and its calls.
//!
//! Datagrams that arrive while the agent is paused wait in its socket; those that arrive while no
//! process runs are lost.

use super::agent::Agent;
use super::challenges::{Challenger, Question, place_of};
use super::invariant::{AgentEvent, Fact};
use super::judge::Judge;
use super::liar::distort;
use super::marks::Mark;
use super::network::Place;
use super::stage::{Event, Stage};
use super::world::World;
use bytes::Bytes;
use lockmesh_agent_core::gossip::mesh::{Mesh, Output, SYNC_TIMEOUT};
use lockmesh_agent_core::quorum_client::{Answered, CallToken, Input, LocalCall};
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::seal::NONCE_BYTES;
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Capacity of a socket in datagrams, which is also the maximum for one turn; more are lost.
const SOCKET: usize = 1_024;

/// Maximum number of datagrams that a turn in the mesh sends beyond one for each that it receives:
/// probes, gossip, and refutations.
const UNASKED: usize = 40;

/// An agent's part in the mesh.
#[derive(Debug, Default)]
pub struct Member {
    /// `None` before the agent is registered.
    mesh: Option<Mesh>,
    /// Datagrams in the socket.
    socket: Vec<Rc<[u8]>>,
    /// The start of the process.
    opens_at: Time,
    /// `true` if its turn is immediately due.
    is_roused: bool,
    /// The time of its next timer.
    wakes_at: Option<Time>,
    /// The pending query to a server for news.
    sync: Option<CallToken>,
    /// Pending reports of suspects to servers.
    suspecting: BTreeSet<CallToken>,
    /// Questions that servers asked it to forward.
    pub(super) awaited: Vec<Question>,
    /// Datagrams that a liar keeps for replay.
    pub(super) kept: VecDeque<Rc<[u8]>>,
}

impl Member {
    /// Returns the member of a process that starts at this time.
    pub(super) fn begin(opens_at: Time) -> Self {
        Self { opens_at, ..Self::default() }
    }

    /// Returns its mesh, once it is registered.
    pub(super) fn mesh(&self) -> Option<&Mesh> {
        self.mesh.as_ref()
    }

    pub(super) fn mesh_mut(&mut self) -> Option<&mut Mesh> {
        self.mesh.as_mut()
    }
}

impl World {
    /// Processes an event of an agent in the mesh.
    pub(super) fn mesh(&mut self, event: Event) {
        match event {
            // Addresses may be forged.
            Event::Datagram(agent, bytes) => {
                if let Some(agent) = self.agents.get_mut(agent) {
                    agent.datagram(&mut self.stage, bytes);
                }
            }
            Event::MeshItems(agent, items) => {
                self.stage.hit(Mark::MeshTold);
                self.agents[agent].told_by_server(&mut self.stage, &mut self.judge, items);
            }
            Event::MeshTurn(agent, life) => {
                self.agents[agent].mesh_turn(&mut self.stage, &mut self.judge, life);
            }
            _ => {}
        }
    }
}

impl Agent {
    /// Receives a datagram at its host.
    fn datagram(&mut self, stage: &mut Stage, bytes: Rc<[u8]>) {
        if stage.now < self.member.opens_at || self.member.socket.len() >= SOCKET {
            return;
        }
        self.member.socket.push(bytes);
        self.rouse_member(stage);
    }

    /// Receives a server's news of the mesh.
    fn told_by_server(&mut self, stage: &mut Stage, judge: &mut Judge, items: Vec<Bytes>) {
        let (now, mut output) = (self.boot_time(stage), Output::default());
        if let Some(mesh) = &mut self.member.mesh {
            mesh.receive_items(now, items, &mut output);
        }
        self.join_mesh(stage, judge, output);
    }

    fn rouse_member(&mut self, stage: &mut Stage) {
        if !std::mem::replace(&mut self.member.is_roused, true) {
            stage.after(Duration::ZERO, Event::MeshTurn(self.place, self.life));
        }
    }

    /// Takes a turn in the mesh.
    fn mesh_turn(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64) {
        if life != self.life {
            return;
        }
        let is_due = self.member.wakes_at.is_some_and(|at| at <= stage.now);
        if !is_due && !self.member.is_roused {
            return;
        }
        self.member.is_roused = false;
        if is_due {
            self.member.wakes_at = None;
        }
        self.join_mesh(stage, judge, Output::default());
    }

    /// Updates the mesh if the agent has a new lease.
    pub(super) fn look_at_own_lease(&mut self, stage: &mut Stage) {
        let known = self.member.mesh().and_then(|mesh| mesh.me().lease());
        let lease = self.upstream.registered_lease();
        if stage.plan.mesh.is_on && lease.is_some() && lease != known {
            self.rouse_member(stage);
        }
    }

    /// Received datagrams are processed before a timer concludes that there are none.
    fn join_mesh(&mut self, stage: &mut Stage, judge: &mut Judge, mut output: Output) {
        let now = self.boot_time(stage);
        if let Some(lease) = self.upstream.registered_lease() {
            let (me, member) = (MemberId::of_agent(lease), &mut self.member);
            match &mut member.mesh {
                Some(mesh) => mesh.become_member(now, me, &mut output),
                None => member.mesh = Some(Mesh::new(me, stage.draw.bits(), now)),
            }
        }
        let arrived = std::mem::take(&mut self.member.socket);
        let Some(mesh) = &mut self.member.mesh else { return };
        for datagram in &arrived {
            mesh.receive(now, datagram, &mut output);
        }
        mesh.tick(now, &mut output);
        if output.packets.len() > arrived.len() + UNASKED {
            let (sent, taken) = (output.packets.len(), arrived.len());
            judge.object("mesh", format!("agent {} sends {sent} datagrams for {taken}", self.place));
        }
        let digest = mesh.wants_sync(now);
        if self.is_liar(stage) {
            self.keep(arrived);
            self.lie(stage, judge);
        }
        self.send_output(stage, judge, output);
        if let Some(digest) = digest {
            let token = self.next_token();
            self.member.sync = Some(token);
            stage.after(SYNC_TIMEOUT, Event::GoAway(self.place, self.life, token));
            self.call_locally(stage, judge, token, LocalCall::AskHome(Request::SyncMesh(digest)));
        }
        self.wake_member_later(stage);
    }

    fn wake_member_later(&mut self, stage: &mut Stage) {
        let Some(shown) = self.member.mesh().and_then(Mesh::wakes_at) else { return };
        let at = self.when(stage, shown);
        if self.member.wakes_at.is_none_or(|known| at < known) {
            self.member.wakes_at = Some(at);
            stage.at(at, Event::MeshTurn(self.place, self.life));
        }
    }

    pub(super) fn send_output(&mut self, stage: &mut Stage, judge: &mut Judge, output: Output) {
        let now = self.boot_time(stage);
        let lies = self.is_liar(stage);
        for (to, mut packet) in output.packets {
            if lies && stage.draw.once_in(4) {
                distort(stage, &mut packet);
            }
            let nonce = nonce(stage);
            let sealed = self.member.mesh().and_then(|mesh| mesh.seal(now, &packet, nonce));
            if let (Some(sealed), Some(to)) = (sealed, place_of(to.port())) {
                self.send_datagram(stage, to, sealed.into());
            }
        }
        for verdict in &output.verdicts {
            stage.hit(Mark::VerdictHeard);
            judge.see(stage, &Fact::VerdictHeard { agent: self.place, verdict });
        }
        if !output.suspicions.is_empty() {
            stage.hit(Mark::Suspected);
            self.suspect(stage, judge, output.suspicions);
        }
        for (from, challenge) in output.challenges {
            self.challenge(stage, judge, Challenger::Member(from), challenge);
        }
        for answer in output.answers {
            self.hand_back_by_datagram(stage, answer);
        }
    }

    pub(super) fn send_datagram(&self, stage: &mut Stage, to: usize, bytes: Rc<[u8]>) {
        let length = bytes.len();
        stage.network.traffic.mesh_bytes += length as u64;
        stage.send(Place::Agent(self.place), Place::Agent(to), Event::Datagram(to, bytes));
    }

    pub(super) fn suspect(&mut self, stage: &mut Stage, judge: &mut Judge, leases: Vec<LeaseId>) {
        let token = self.next_token();
        self.member.suspecting.insert(token);
        self.call_locally(stage, judge, token, LocalCall::AskHome(Request::Suspect(leases)));
    }

    /// Handles the reply to a call of the mesh; returns `false` for any other call.
    pub(super) fn mesh_heard(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        answer: &Result<Answered, Unavailable>,
    ) -> bool {
        if self.member.suspecting.remove(&token) {
            return true;
        }
        if self.member.sync != Some(token) {
            return false;
        }
        let news = match answer {
            Ok(Answered::Response(Response::Mesh(news))) => Some((**news).clone()),
            _ => None,
        };
        self.synced(stage, judge, news);
        true
    }

    /// Handles a call that no server answered in time; returns `false` if it was not the mesh's
    /// query.
    pub(super) fn mesh_unheard(&mut self, stage: &mut Stage, judge: &mut Judge, token: CallToken) -> bool {
        if self.member.sync != Some(token) {
            return false;
        }
        self.see(stage, judge, AgentEvent::Left { token });
        self.handle_input(stage, judge, Input::Cancel(token));
        self.synced(stage, judge, None);
        true
    }

    fn synced(&mut self, stage: &mut Stage, judge: &mut Judge, news: Option<MeshNews>) {
        self.member.sync = None;
        let (now, mut output) = (self.boot_time(stage), Output::default());
        if let Some(mesh) = &mut self.member.mesh {
            mesh.synced(now, news, &mut output);
        }
        self.join_mesh(stage, judge, output);
    }
}

pub(super) fn nonce(stage: &mut Stage) -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    for chunk in nonce.chunks_mut(8) {
        chunk.copy_from_slice(&stage.draw.bits().to_le_bytes());
    }
    nonce
}
