//! What agents in the mesh ask of a server: what they lack of it, that it looks at others, and that
//! it passes an event on; and how soon operators may change its key again.

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

/// How long after the gossip key was changed it may be again. An agent asks for the keys every 33 s
/// at most, and again within 10 s where no server answered; it has the next key already, but
/// whoever missed two changes would understand nobody.
const ROTATION_INTERVAL: Duration = Duration::from_secs(60);

/// The gossip key that this server has applied, and when it changed.
#[derive(Debug)]
pub(super) struct GossipKeyAge {
    number: u32,
    /// Nothing where it never changed. A server that starts does not know when it did, and counts
    /// from then.
    changed: Option<Time>,
}

impl GossipKeyAge {
    pub(super) fn new(now: Time, number: u32) -> Self {
        Self { number, changed: (number != 0).then_some(now) }
    }

    /// What the state says now.
    pub(super) fn follow(&mut self, now: Time, number: u32) {
        if number != self.number {
            *self = Self { number, changed: Some(now) };
        }
    }

    /// Why this key may not be followed by the next one now.
    fn refusal(&self, now: Time, from: u32) -> Option<Unavailable> {
        if from > self.number {
            let why = format!("the gossip key {from} is not in use: key {} is", self.number);
            return Some(Unavailable::Denied(why));
        }
        // An order that is repeated changes nothing.
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

/// How many others an agent may accuse in one call.
pub(super) const MAX_ACCUSED: usize = 64;

impl Frontend {
    /// An agent asks what it lacks of the mesh: told at once, from what this server has applied.
    pub(super) fn sync_mesh(&mut self, now: Time, peer: &Peer, has: &RosterDigest) -> Response {
        let cell = match self.mesh_agent(peer) {
            Ok(agent) => agent.cell,
            Err(why) => return Response::Unavailable(why),
        };
        if !self.core.knows_cluster_time() {
            let why = "this server has not heard the cluster's time since it started: ask the leader";
            return Response::Unavailable(Unavailable::Denied(why.into()));
        }
        let wall = self.wall_at(now);
        Response::Mesh(Box::new(self.core.mesh_news(now, wall, (cell, has))))
    }

    /// An agent has probed others in vain.
    pub(super) fn accuse(
        &mut self,
        now: Time,
        (from, peer): (CallRef, &Peer),
        accused: Vec<LeaseId>,
        actions: &mut Actions,
    ) {
        let refusal = (accused.len() > MAX_ACCUSED).then(|| {
            let why =
                format!("{} nodes are accused at once, but at most {MAX_ACCUSED} may be", accused.len());
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

    /// Why the gossip key may not be changed now, where a command is to change it.
    pub(super) fn rotation_refusal(&self, now: Time, command: &Command) -> Option<Unavailable> {
        match command {
            // Whoever does not lead may know of an older key alone.
            Command::RotateGossipKey { from } if self.core.is_serving() => {
                self.gossip_key.refusal(now, *from)
            }
            _ => None,
        }
    }

    /// An agent has fired a user event.
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

    /// The agent that asks. The keys of the mesh are for those who are registered and live: whoever
    /// was failed registers anew first.
    fn mesh_agent(&self, peer: &Peer) -> Result<&Agent, Unavailable> {
        let state = self.core.state();
        if self.core.set_back().is_some() || state.cluster_id().is_empty() {
            return Err(not_leader());
        }
        state.living_member(&peer.node).map(|agent| &**agent).ok_or_else(|| {
            // A follower that lags has not heard of a registration yet.
            let why = format!(
                "this server knows of no living agent of the node {:?}: ask again soon, or register first",
                peer.node
            );
            Unavailable::Denied(why)
        })
    }
}
