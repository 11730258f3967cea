//! Requests from agents in the mesh: syncs, suspicions of other agents, and user events; and the
//! minimum interval between changes of the gossip key.

use crate::core::Core;
use crate::outbox::not_leader;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::gossip::MeshNews;
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::id::WallTime;
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::peer::Peer;
use lockmesh_protocol::record::Agent;
use lockmesh_protocol::rpc::Unavailable;
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

    /// Checks a command that may change the gossip key now.
    pub(super) fn check(&self, now: Time, command: &Command, is_serving: bool) -> Result<(), Unavailable> {
        match command {
            // A follower may know only an older key.
            Command::RotateGossipKey { from } if is_serving => self.refusal(now, *from).map_or(Ok(()), Err),
            _ => Ok(()),
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
pub(super) const MAX_SUSPECTED: usize = 64;

/// Returns the mesh data that an agent lacks, from this server's applied state.
pub(super) fn sync(
    core: &mut Core,
    (now, wall): (Time, WallTime),
    peer: &Peer,
    has: &RosterDigest,
) -> Result<MeshNews, Unavailable> {
    let cell = agent(core, peer)?.cell;
    if !core.replica().is_serving() && !core.mesh().knows_time() {
        let why = "this server has not heard the cluster's time since it started: ask the leader";
        return Err(Unavailable::Denied(why.into()));
    }
    Ok(core.mesh_news(now, wall, (cell, has)))
}

/// Returns the lease of an agent that reports suspicions of other agents.
pub(super) fn reporter(core: &Core, peer: &Peer, suspected: &[LeaseId]) -> Result<LeaseId, Unavailable> {
    if suspected.len() > MAX_SUSPECTED {
        let why = format!("{} nodes are suspected at once; the limit is {MAX_SUSPECTED}", suspected.len());
        return Err(Unavailable::Denied(why));
    }
    agent(core, peer).map(Agent::lease)
}

/// Returns the calling agent. Only registered, living agents receive the keys of the mesh: a failed
/// agent must register again first.
pub(super) fn agent<'a>(core: &'a Core, peer: &Peer) -> Result<&'a Agent, Unavailable> {
    let state = core.replica().state();
    if core.replica().set_back().is_some() || state.cluster_id().is_empty() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_rotation_requires_minimum_age() {
        let start = Time(0);
        let mut key = GossipKeyAge::new(start, 0);
        assert_eq!(key.refusal(start, 0), None, "the key never changed");
        key.follow(start, 1);
        assert_eq!(key.refusal(start, 0), None, "a repeated request changes nothing");
        assert!(key.refusal(start + ROTATION_INTERVAL / 2, 1).is_some());
        assert_eq!(key.refusal(start + ROTATION_INTERVAL, 1), None);
        assert!(key.refusal(start + ROTATION_INTERVAL, 2).is_some(), "key 2 is not in use");
    }
}
