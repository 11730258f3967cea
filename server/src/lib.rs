//! The shell around the core: everything that has a clock, a disk, a socket or a thread.
//!
//! | module | is |
//! |---|---|
//! | [`server`] | starts all the rest, and stops it in the reverse order |
//! | [`rpc`] | the QUIC service: who may connect, who may ask what |
//! | [`event_queue`] | the bounded way into the driver, and the way of its answers back |
//! | `driver` | the one loop around the server's pure values |
//! | [`peers`] | the other servers, and the way of messages to them |
//! | `challenger` | asks agents whether they live |
//! | [`bootstrap`] | how servers become a quorum, and how one that comes later is taken in |
//! | `start` | what a member of a quorum begins with |
//! | [`store`] | log and checkpoint on disk |
//! | `backup` | readers of checkpoints, for backups and snapshots |
//! | [`snapshot`] | the way of a snapshot to a server that is too far behind |
//! | `background` | threads whose work can wait |
//! | [`inspect`] | what a stopped server's data folder holds |
//! | [`moved`] | takes a folder that was moved for the original |
//! | [`recover`] | begins anew from one server that survived |
//! | [`stopped`] | what may be wrong with a stopped server's data folder |
//! | [`config`] | what a server can be told |
//! | [`metrics`] | what is counted and measured |
//! | `readings` | figures that are read when somebody asks |
//! | `health` | what the driver last said of itself |
//! | `http` | the port where monitoring reads both |

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
