//! The shell around the core: everything that has a clock, a disk, a socket or a thread.
//!
//! | module | is |
//! |---|---|
//! | [`server`] | starts all the rest, and stops it in the reverse order |
//! | [`rpc`] | the QUIC service: who may connect, who may ask what |
//! | [`mailbox`] | the bounded way into the driver, and the way of its answers back |
//! | `driver` | the one loop that owns the core |
//! | `watch` | blocking queries that wait for a change |
//! | [`store`] | log and image on disk |
//! | `backup` | backups that are being read |
//! | [`config`] | what a server can be told |
//! | `metrics` | what is counted |

mod backup;
pub mod config;
mod driver;
pub mod mailbox;
mod metrics;
pub mod rpc;
pub mod server;
pub mod store;
mod watch;

pub use server::{Server, ServerError, ServerOptions};
