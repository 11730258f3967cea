//! The roster: the members of the mesh and their addresses, as sent by the servers. A member
//! requests what it lacks with a digest of what it has, so unchanged parts are not sent again.

use super::member::{Host, MemberId};
use crate::id::{AgentNumber, NodeName, ServerId};
use crate::wire;
use core::net::SocketAddr;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The number of buckets of the roster: one that gains or loses a member is sent again.
pub const BUCKETS: usize = 64;

/// A member and its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterMember {
    /// The process.
    pub id: MemberId,
    /// The node's name.
    pub node: NodeName,
    /// The address for its datagrams.
    pub address: SocketAddr,
}

/// A digest of a roster: a number for each bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterDigest(pub Vec<u64>);

/// The buckets that differ, complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterNews(pub Vec<(u8, Vec<RosterMember>)>);

/// The members of the mesh in buckets, so that a digest names what differs.
#[derive(Clone, Debug)]
pub struct Roster(Vec<Bucket>);

#[derive(Clone, Debug, Default)]
struct Bucket {
    members: BTreeMap<MemberId, RosterMember>,
    digest: u64,
}

impl Default for Roster {
    fn default() -> Self {
        Self(vec![Bucket::default(); BUCKETS])
    }
}

impl Roster {
    /// Creates a roster of these members.
    pub fn of(members: impl IntoIterator<Item = RosterMember>) -> Self {
        let mut roster = Self::default();
        for member in members {
            roster.0[bucket_of(member.id)].members.insert(member.id, member);
        }
        roster.0.iter_mut().for_each(Bucket::digest);
        roster
    }

    /// Returns the digest of the roster.
    pub fn digest(&self) -> RosterDigest {
        RosterDigest(self.0.iter().map(|bucket| bucket.digest).collect())
    }

    /// Returns the buckets that differ from a digest.
    pub fn news(&self, theirs: &RosterDigest) -> RosterNews {
        // A digest of another length lacks buckets, which are then sent.
        let differing = (0..BUCKETS).filter(|part| theirs.0.get(*part) != Some(&self.0[*part].digest));
        let parts = differing.map(|part| (part as u8, self.0[part].members.values().cloned().collect()));
        RosterNews(parts.collect())
    }

    /// Applies missing buckets; returns `true` if that changed anything.
    pub fn apply(&mut self, news: RosterNews) -> bool {
        let mut is_changed = false;
        for (part, members) in news.0 {
            let Some(bucket) = self.0.get_mut(usize::from(part)) else { continue };
            // In another bucket, a member would never be found or replaced, and no digest would
            // match.
            let is_here = |member: &RosterMember| bucket_of(member.id) == usize::from(part);
            let members = members.into_iter().filter(is_here).map(|member| (member.id, member)).collect();
            is_changed |= bucket.members != members;
            bucket.members = members;
            bucket.digest();
        }
        is_changed
    }

    /// Inserts a member or updates its address; returns `true` if that changed anything.
    pub fn insert(&mut self, member: RosterMember) -> bool {
        let bucket = &mut self.0[bucket_of(member.id)];
        let is_new = bucket.members.get(&member.id) != Some(&member);
        if is_new {
            bucket.members.insert(member.id, member);
            bucket.digest();
        }
        is_new
    }

    /// Removes a member; returns `true` if it was in the roster.
    pub fn remove(&mut self, id: MemberId) -> bool {
        let bucket = &mut self.0[bucket_of(id)];
        let is_there = bucket.members.remove(&id).is_some();
        bucket.digest();
        is_there
    }

    /// Returns a member.
    pub fn get(&self, id: MemberId) -> Option<&RosterMember> {
        self.0[bucket_of(id)].members.get(&id)
    }

    /// Returns all members.
    pub fn members(&self) -> impl Iterator<Item = &RosterMember> {
        self.0.iter().flat_map(|bucket| bucket.members.values())
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.0.iter().map(|bucket| bucket.members.len()).sum()
    }

    /// Returns `true` if there are no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Bucket {
    fn digest(&mut self) {
        // Over the encoded form, so that every build computes the same digest.
        let mut digest = Sha256::new();
        self.members.values().for_each(|member| digest.update(wire::encode(member)));
        let digest: [u8; 32] = digest.finalize().into();
        let first = digest.first_chunk().copied().unwrap_or_default();
        // An empty bucket has digest 0, as in the digest of an empty roster.
        self.digest = if self.members.is_empty() { 0 } else { u64::from_be_bytes(first) };
    }
}

fn bucket_of(id: MemberId) -> usize {
    match id.host {
        Host::Agent(AgentNumber(number)) => number as usize % BUCKETS,
        Host::Server(ServerId(id)) => id as usize % BUCKETS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::LogIndex;
    use crate::lease::LeaseId;
    use std::net::Ipv4Addr;

    fn member(number: u32, began: u64) -> RosterMember {
        let id = MemberId::of_agent(LeaseId { agent: AgentNumber(number), began: LogIndex(began) });
        let address = SocketAddr::from((Ipv4Addr::from(number), 8302));
        RosterMember { id, node: format!("n{number}").as_str().into(), address }
    }

    fn numbers(roster: &Roster) -> Vec<MemberId> {
        let mut members: Vec<_> = roster.members().map(|member| member.id).collect();
        members.sort();
        members
    }

    #[test]
    fn sync_sends_all_then_changes() {
        let theirs = Roster::of((0..200).map(|number| member(number, 1)));
        let mut ours = Roster::default();
        let all = theirs.news(&ours.digest());
        assert!(ours.apply(all) && ours.len() == 200);
        assert_eq!((numbers(&ours), ours.digest()), (numbers(&theirs), theirs.digest()));
        assert_eq!(theirs.news(&ours.digest()), RosterNews::default());
        // One restarts, one has gone.
        let living = (0..200).filter(|number| *number != 9);
        let later = Roster::of(living.map(|number| member(number, if number == 7 { 2 } else { 1 })));
        let news = later.news(&ours.digest());
        assert_eq!(news.0.iter().map(|(part, _)| *part).collect::<Vec<_>>(), [7, 9]);
        assert!(ours.apply(news.clone()) && !ours.apply(news));
        assert_eq!((numbers(&ours), ours.digest()), (numbers(&later), later.digest()));
    }

    #[test]
    fn removed_member_restored_by_sync() {
        let theirs = Roster::of((0..3).map(|number| member(number, 1)));
        let mut ours = theirs.clone();
        assert!(ours.remove(member(1, 1).id) && !ours.remove(member(1, 1).id));
        assert!(ours.get(member(1, 1).id).is_none() && ours.get(member(2, 1).id).is_some());
        assert!(ours.apply(theirs.news(&ours.digest())));
        assert_eq!(numbers(&ours), numbers(&theirs));
    }

    #[test]
    fn malformed_digest_or_news_is_harmless() {
        let mut roster = Roster::of((0..3).map(|number| member(number, 1)));
        for digest in [RosterDigest(Vec::new()), RosterDigest(vec![0; 1_000])] {
            assert_eq!(roster.news(&digest).0.iter().flat_map(|(_, members)| members).count(), 3);
        }
        // A member in the wrong bucket could never be found again.
        assert!(!roster.apply(RosterNews(vec![(200, vec![member(200, 1)]), (5, vec![member(4, 1)])])));
        assert_eq!(roster.len(), 3);
    }
}
