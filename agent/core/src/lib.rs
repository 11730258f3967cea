//! An agent's decisions, as pure values.
//!
//! **Invariants:**
//!
//! - Nothing here knows a clock, a disk, a socket, a thread, a random source or hash order. Time
//!   and seeds are arguments; effects are returned. The agent's `upstream` has the connections and
//!   executes them.
//! - *Unknown* is never reported as *not done*. A command that may have been sent never gets a
//!   second request id.
//!
//! | module | contents |
//! |---|---|
//! | `quorum_client/` | the value that contains all others: requests and retries, shared reads, lock waits, registration, connections; start with `mod.rs` |
//! | `cluster.rs` | cluster identity: which cluster the agent belongs to, and which servers it rejects |
//! | `leader_tracker/` | leader discovery: leader, home server, servers to ask and dial; the identity of servers, compared before their statements count |
//! | `servers.rs` | configured and learned servers |
//! | `lease.rs`, `session_events.rs`, `session_watch.rs` | the node's lease; the resulting state of sessions, as reported to guards; when a followed session is read and ended |
//! | `bound_sessions.rs` | sessions that end with a process of this host |
//! | `handover.rs` | which guards still rely on the announced restart of an earlier process |
//! | `admission.rs` | whether the servers accept this agent |
//! | `event_log.rs`, `event_filter.rs` | received user events, and their filters |
//! | `go/` | parsing by Go's rules: query strings, paths, numbers, string literals, JSON |
//! | `hcl.rs`, `acl_rules.rs` | the formats of Consul's configuration files and ACL rules; the rules |
//! | `definitions/` | definitions of services and checks, in requests and in the configuration |
//! | `instances.rs`, `near.rs` | the instances of a service, each once; rows sorted by the distance from a node |
//! | `pattern.rs` | regular expressions of clients, within limits; only it names the library |
//! | `prepared_query/` | prepared queries: their rules, templates, and their execution |
//! | `gossip/` | the failure detector: this agent in the mesh (SWIM); only `engine.rs` names foca |
//! | `registry/` | this agent's own services and health checks, kept equal to the catalog (anti-entropy) |
//! | `registry/tests/` | its tests in virtual time |
//! | `request_ids.rs` | one id for all attempts of a command |

pub mod acl_rules;
pub mod admission;
pub mod bound_sessions;
pub mod cluster;
pub mod definitions;
pub mod event_filter;
pub mod event_log;
pub mod go;
pub mod gossip;
pub mod handover;
pub mod hcl;
pub mod instances;
pub mod leader_tracker;
pub mod lease;
pub mod near;
pub mod pattern;
pub mod prepared_query;
pub mod quorum_client;
pub mod registry;
pub mod request_ids;
pub mod servers;
pub mod session_events;
pub mod session_watch;
