//! Messages between Lockmesh's machines, as pure types: no socket, no clock, no runtime.
//!
//! **Invariant:** no type here depends on HTTP, JSON, redb, QUIC or Raft. No change contains a
//! change, so the messages of a peer cannot nest without bound.
//!
//! `protocol/README.md` describes wire, gossip and formats. The modules in reading order:
//!
//! | module | contents |
//! |---|---|
//! | `id.rs` | names and numbers as newtypes: keys, sessions, nodes, log indexes, fences |
//! | `peer.rs` | role and node, as named by a certificate |
//! | `time.rs` | a point in time, passed as an argument |
//! | `host_port.rs` | the address of a server as an operator writes it |
//! | `duration.rs` | durations in Go's notation: `15s`, `1m30s` |
//! | `random.rs`, `backoff.rs`, `token_bucket.rs` | random numbers, backoff, rate limits |
//! | `log_on_change.rs` | one log line when a persistent problem begins, and one when it ends |
//! | `record.rs` | the records of the replicated state |
//! | `acl/` | access control lists: callers, tokens, policies and the precedence of their rules |
//! | `node_command.rs` | writes about nodes, as clients without an operator's right may send them |
//! | `deadlock.rs` | sessions that wait for each other's locks |
//! | `prepared_query.rs` | prepared queries: descriptions of services to look up |
//! | `lease.rs` | node leases: renewals, challenges and their replies |
//! | `given_up.rs` | sessions that guards gave up, as reported in replies to challenges |
//! | `gossip/` | data of the mesh of agents: members, packets, seals, roster, signed verdicts, user events |
//! | `command.rs` | every command that can change the state, *including* expiry |
//! | `reply.rs` | results of commands, and reasons to reject one |
//! | `change.rs` | one typed change of the state; feeds store, timers and watches |
//! | `query.rs` | queries and their results |
//! | `bootstrap.rs` | messages between servers before they form a quorum |
//! | `format.rs` | the version in front of everything stored or replicated |
//! | `rpc.rs` | requests and responses between agents and servers; many share a frame |
//! | `dialect.rs` | versions of these messages, and their conversion for older peers |
//! | `wire.rs` | encoding: versioned, limited, no trailing bytes |

pub mod acl;
pub mod backoff;
pub mod bootstrap;
pub mod change;
pub mod command;
pub mod deadlock;
pub mod dialect;
pub mod duration;
pub mod format;
pub mod given_up;
pub mod gossip;
pub mod host_port;
pub mod id;
pub mod lease;
pub mod log_on_change;
pub mod node_command;
pub mod peer;
pub mod prepared_query;
pub mod query;
pub mod random;
pub mod record;
pub mod reply;
pub mod rpc;
pub mod time;
pub mod token_bucket;
pub mod wire;
