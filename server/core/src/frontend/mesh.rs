//! Requests from agents in the mesh: syncs, suspicions of other agents, and user events; and the
//! minimum interval between changes of the gossip key.

use super::Frontend;
use super::actions::{Actions, AnswerKind};
use super::event::CallRef;
use super::pending::CallKind;
use crate::input::Input;
use crate::outbox::not_leader;
use bytes::Bytes;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::peer::Peer;
use lockmesh_protocol::record::Agent;
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The minimum interval between changes of the gossip key. Agents sync keys at least every 33 s,
/// and retry within 10 s if no server replies. An agent already has the next key, but after two
/// missed changes it could not decrypt any message.
const ROTATION_INTERVAL: Duration = Duration::from_secs(60);

/// The gossip key that this server has applied, and the time of its last change.
#[derive(Debug)]
pub(super) struct GossipKeyAge {
    number: u32,
    /// `None` if the key never changed. After a start the server does not know the time of the last
    /// change and counts from the start.
    changed: Option<Time>,
}

impl GossipKeyAge {
    pub(super) fn new(now: Time, number: u32) -> Self {
        Self { number, changed: (number != 0).then_some(now) }
    }

    /// Follows the key in the state.
    pub(super) fn follow(&mut self, now: Time, number: u32) {
        if number != self.number {
            *self = Self { number, changed: Some(now) };
        }
    }

    /// Returns the reason why key number `from` may not be replaced now.
    fn refusal(&self, now: Time, from: u32) -> Option<Unavailable> {
        if from > self.number {
            let why = format!("the gossip key {from} is not in use: key {} is", self.number);
            return Some(Unavailable::Denied(why));
        }
        // A repeated request changes nothing.
        let age = now.since(self.changed.filter(|_| from == self.number)?);
        let left = ROTATION_INTERVAL.checked_sub(age).filter(|left| !left.is_zero())?;
        let why = format!(
            "the gossip key was changed {} s ago, and some agents may not hold it for {} s more",
            age.as_secs(),
            left.as_micros().div_ceil(1_000_000)
        );
        Some(Unavailable::Denied(why))
    }
}

/// The maximum number of suspected agents per call.
pub(super) const MAX_ACCUSED: usize = 64;

impl Frontend {
    /// Replies to an agent's sync immediately, from this server's applied state.
    pub(super) fn sync_mesh(&mut self, now: Time, peer: &Peer, has: &RosterDigest) -> Response {
        let cell = match self.mesh_agent(peer) {
            Ok(agent) => agent.cell,
            Err(why) => return Response::Unavailable(why),
        };
        if !self.core.is_serving() && !self.core.mesh().knows_time() {
            let why = "this server has not heard the cluster's time since it started: ask the leader";
            return Response::Unavailable(Unavailable::Denied(why.into()));
        }
        let wall = self.wall_at(now);
        Response::Mesh(Box::new(self.core.mesh_news(now, wall, (cell, has))))
    }

    /// Handles an agent's report that its probes of other agents failed.
    pub(super) fn accuse(
        &mut self,
        now: Time,
        (from, peer): (CallRef, &Peer),
        accused: Vec<LeaseId>,
        actions: &mut Actions,
    ) {
        let refusal = (accused.len() > MAX_ACCUSED).then(|| {
            let why = format!("{} nodes are suspected at once; the limit is {MAX_ACCUSED}", accused.len());
            Unavailable::Denied(why)
        });
        let accuser = || self.mesh_agent(peer).map(|agent| agent.lease());
        match refusal.map_or_else(accuser, Err) {
            Ok(accuser) => {
                self.ask(now, from, CallKind::Lease, |token| Input::Accuse(token, accuser, accused));
            }
            Err(why) => actions.answer(from, Response::Unavailable(why), AnswerKind::Other),
        }
    }

    /// Returns the reason to reject a command that changes the gossip key now.
    pub(super) fn rotation_refusal(&self, now: Time, command: &Command) -> Option<Unavailable> {
        match command {
            // A follower may know only an older key.
            Command::RotateGossipKey { from } if self.core.is_serving() => {
                self.gossip_key.refusal(now, *from)
            }
            _ => None,
        }
    }

    /// Handles a user event that an agent fired.
    pub(super) fn spread_event(
        &mut self,
        now: Time,
        (from, peer): (CallRef, &Peer),
        item: Bytes,
        actions: &mut Actions,
    ) {
        match self.mesh_agent(peer).map(|agent| agent.number) {
            Ok(origin) => self.ask(now, from, CallKind::Lease, |token| Input::Spread(token, origin, item)),
            Err(why) => actions.answer(from, Response::Unavailable(why), AnswerKind::Other),
        }
    }

    /// Returns the calling agent. Only registered, living agents receive the keys of the mesh: a
    /// failed agent must register again first.
    fn mesh_agent(&self, peer: &Peer) -> Result<&Agent, Unavailable> {
        let state = self.core.state();
        if self.core.set_back().is_some() || state.cluster_id().is_empty() {
            return Err(not_leader());
        }
        state.living_member(&peer.node).map(|agent| &**agent).ok_or_else(|| {
            // A lagging follower may not know a registration yet.
            let why = format!(
                "this server knows of no living agent of the node {:?}: ask again soon, or register first",
                peer.node
            );
            Unavailable::Denied(why)
        })
    }
}
