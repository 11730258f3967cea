//! The agent as a library: local HTTP API, health checks, upstream to the quorum.
//!
//! **Invariants:** nothing here decides about locks: a request becomes one command or one query,
//! and the text of the response comes from the state. Only the upstream retries, under one request
//! id, and it never treats *unknown* as *no*.
//!
//! `agent/README.md` describes the API.
//!
//! | module | contents |
//! |---|---|
//! | `agent.rs`, `error.rs` | start and stop of all parts; startup errors |
//! | `http/` | the local API: listeners, limits, router |
//! | `http/endpoint/` | one file per family of endpoints: parse, ask once, render |
//! | `http/endpoint/acl/` | tokens, policies, roles, bindings and settings of access control |
//! | `http/filter/` | the language of `?filter=` |
//! | `http/tests/` | the API on a stand-in quorum: real parsing, the real state, bytes on real sockets |
//! | `registry/` | this agent's own services and health checks: clock, log, data folder and connection around `agent/core/src/registry`, which decides |
//! | `probes/` | health checks that this agent runs: HTTP, TCP, UDP, gRPC, HTTP/2 ping, scripts |
//! | `session_watches.rs`, `boot_clock.rs`, `handover.rs` | sessions that guards on this host follow, the clock of their deadlines, and their hand-over to the next process |
//! | `bound_sessions.rs`, `process.rs` | sessions that end with a process of this host; such processes, as the kernel knows them |
//! | `loss.rs` | the loss of a session as clients see it |
//! | `upstream/` | connections, callers and the clock around `agent/core`, which decides |
//! | `acl/` | access control: settings of the cluster, rights of callers, the agent's own tokens |
//! | `config/` | settings of an agent |
//! | `consul/` | Consul's routes, commands, options and keys that Lockmesh does not have |
//! | `pin.rs` | the file with the agent's cluster |
//! | `node.rs` | the identity of this machine |
//! | `accounts.rs` | the users and groups of this host |
//! | `own_address.rs` | the address at which others reach this agent |
//! | `incarnation.rs` | identity of this process within this boot |
//! | `listener.rs` | the listener for challenges |
//! | `juror.rs` | challenges to other agents on behalf of servers, over a connection and by datagram |
//! | `mesh_questions.rs` | those datagrams on their way into the mesh, and the callers that await replies |
//! | `mesh.rs` | this agent in the mesh: socket, clock and reports around `agent/core/src/gossip`, which decides |
//! | `events.rs` | user events: fired, received, listed |
//! | `reload.rs` | reload and leave, as requested by the API |
//! | `metrics.rs` | the agent's metrics, as Prometheus text and as Consul's JSON |
//! | `monitor.rs` | copies of the log for `GET /v1/agent/monitor` |

mod accounts;
pub mod acl;
pub mod agent;
mod boot_clock;
pub mod bound_sessions;
pub mod config;
pub mod consul;
pub mod error;
pub mod events;
mod handover;
pub mod http;
mod incarnation;
mod juror;
pub mod listener;
mod loss;
mod mesh;
pub mod mesh_questions;
pub mod metrics;
pub mod monitor;
pub mod node;
pub mod own_address;
pub mod pin;
pub mod probes;
mod process;
pub mod registry;
pub mod reload;
pub mod session_watches;
pub mod upstream;

pub use lockmesh_agent_core::{definitions, go};

/// The version of the program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit of the build, as found by the build script.
pub const COMMIT: &str = env!("LOCKMESH_COMMIT");

/// The version with the commit, if that is known: `0.1.0+0123456789ab`.
const BUILD: &str = env!("LOCKMESH_BUILD");
