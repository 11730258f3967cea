//! What Lockmesh's machines say to each other, pure: no socket, no clock, no runtime.
//!
//! Read in this order:
//!
//! | module | is |
//! |---|---|
//! | [`id`] | names and numbers as newtypes: keys, sessions, nodes, log indexes, fences |
//! | [`duration`] | lengths of time as people write them |
//! | [`time`] | our own point in time, an argument wherever it is needed |
//! | [`random`] | numbers that a seed decides |
//! | [`backoff`] | pauses between attempts |
//! | [`token_bucket`] | how much of something may be had at once and in a second |
//! | [`log_on_change`] | one log line for each change of what keeps going wrong |
//! | [`record`] | the nouns that the replicated state holds |
//! | [`command`] | everything that may change the replicated state |
//! | [`reply`] | what a command answers, and why it may refuse |
//! | [`change`] | one typed fact that became true; feeds store, timers and watchers alike |
//! | [`peer`] | role and node, as a certificate names them |
//! | [`query`] | what can be asked of the state, and the answers |
//! | [`bootstrap`] | what servers tell each other before they are a quorum |
//! | [`rpc`] | what agents and servers send each other: requests, responses, frames |
//! | [`gossip`] | the mesh in which members find suspects and pass on what all must hear |
//! | [`format`] | the version in front of all that is stored or replicated, and how it grows |
//! | [`wire`] | how all of it becomes bytes: versioned, limited, without trailing bytes |
//!
//! **Invariant:** no type here knows HTTP, JSON, redb, QUIC or Raft.

pub mod backoff;
pub mod bootstrap;
pub mod change;
pub mod command;
pub mod duration;
pub mod format;
pub mod given_up;
pub mod gossip;
pub mod id;
pub mod lease;
pub mod log_on_change;
pub mod peer;
pub mod query;
pub mod random;
pub mod record;
pub mod reply;
pub mod rpc;
pub mod time;
pub mod token_bucket;
pub mod wire;
