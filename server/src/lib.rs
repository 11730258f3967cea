//! The shell around the core: everything with a clock, a disk, a socket or a thread.
//!
//! **Invariants:** one loop owns the core, and everything reaches it through one bounded event
//! queue. A file that is torn, foreign, newer or of another pair is never overwritten.
//!
//! `server/README.md` describes how a write, a read, a queue and a failure work.
//!
//! | module | contents |
//! |---|---|
//! | `server.rs` | starts all parts, and stops them in reverse order |
//! | `driver/` | the loop: takes events, lets frontend and core decide, executes the effects |
//! | `driver/` | destinations of its replies |
//! | `event_queue.rs` | the bounded queue into the driver, and the way of replies back |
//! | `challenger.rs` | challenges to agents, direct and through other agents |
//! | `store/` | `log/` and `state.redb`: group commit, checkpoint, recovery |
//! | `store/log/` | the log's segments: records, recovery, conversion of former logs |
//! | `store/testing/` | for tests and the simulator: a disk with faults, the store without threads |
//! | `store/tests/` | the store under power cuts, full disks and foreign files |
//! | `peers/` | the other servers: authentication, and a bounded queue to each |
//! | `bootstrap/` | discovery, bootstrap and join |
//! | `bootstrap/decide/` | stories of bootstrap, and storms with crashes |
//! | `start.rs` | the initial state of a member |
//! | `rpc/` | admission of connections and calls; limits |
//! | `inspect.rs` | prints a stopped server's data folder |
//! | `moved.rs` | accepts a data folder that was moved |
//! | `recover.rs` | restarts the cluster from one survivor |
//! | `stopped.rs` | errors in a stopped server's folder, for the three above |
//! | `background.rs` | threads for work that can wait |
//! | `backup.rs` | checkpoints in use by backups and snapshots, one thread each |
//! | `snapshot/` | snapshot transfer to a lagging server: parts, checksums, when it is abandoned |
//! | `config.rs` | settings of a server |
//! | `metrics.rs` | counters and histograms of a server |
//! | `readings.rs` | metrics that are read at scrape time |
//! | `health.rs` | the driver's last report |
//! | `http.rs` | the port for metrics and health |

mod background;
mod backup;
pub mod bootstrap;
mod challenger;
pub mod config;
mod driver;
pub mod event_queue;
mod health;
mod http;
pub mod inspect;
pub mod metrics;
pub mod moved;
pub mod peers;
mod readings;
pub mod recover;
pub mod rpc;
pub mod server;
pub mod snapshot;
mod start;
pub mod stopped;
pub mod store;

pub use server::{Server, ServerError, ServerOptions};
