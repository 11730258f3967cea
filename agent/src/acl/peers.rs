//! The users of this host as callers. Their names and groups are read from the lists of accounts
//! again after [`MAX_AGE`], so a user that left a group loses its rights soon.

use crate::accounts::Accounts;
use lockmesh_protocol::acl::{Caller, UnixPeer};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The maximum age of a user's names and groups.
const MAX_AGE: Duration = Duration::from_secs(5);

/// The maximum number of users that are remembered.
const MAX_USERS: usize = 1_024;

/// The users that sent requests, by user and group.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<BTreeMap<(u32, u32), Known>>);

/// A user, and the time at which its names were read.
type Known = (Instant, Arc<UnixPeer>);

impl Peers {
    /// Returns a user as a caller. `default` counts if no binding rule selects the user.
    pub(crate) fn caller(&self, user: (u32, u32), default: &Caller) -> Caller {
        let otherwise = match default {
            Caller::Token(hash) => Some(*hash),
            _ => None,
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read_at, peer)) = known.get(&user)
            && read_at.elapsed() < MAX_AGE
            && peer.otherwise == otherwise
        {
            return Caller::Peer(Arc::clone(peer));
        }
        if known.len() >= MAX_USERS {
            known.clear();
        }
        let peer = Arc::new(Accounts::read().peer(user, otherwise));
        known.insert(user, (Instant::now(), Arc::clone(&peer)));
        Caller::Peer(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::acl::SecretHash;

    #[test]
    fn user_remembered_until_default_changes() {
        let peers = Peers::default();
        let of = |caller| match caller {
            Caller::Peer(peer) => peer,
            other => panic!("{other:?} is no user"),
        };
        let first = of(peers.caller((4_000_001, 7), &Caller::Anonymous));
        assert!(Arc::ptr_eq(&first, &of(peers.caller((4_000_001, 7), &Caller::Anonymous))));
        let hash = SecretHash::of("default");
        let other = of(peers.caller((4_000_001, 7), &Caller::Token(hash)));
        assert_eq!((first.otherwise, other.otherwise), (None, Some(hash)));
    }
}
