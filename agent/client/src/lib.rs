//! Typed, asynchronous client of the local Lockmesh agent.
//!
//! It speaks the HTTP dialect of Consul over the agent's Unix socket or loopback TCP, and so works
//! with a Consul agent too, without fences. Start at [`Client`]; for a lock, at [`Lock`].
//!
//! ```no_run
//! use lockmesh_client::{Client, Lock};
//! use std::time::Duration;
//!
//! # async fn work_for_a_while() {}
//! # async fn example() -> Result<(), lockmesh_client::Error> {
//! let client = Client::from_env()?;
//! let lock = Lock::new(&client, "service/reports/leader").value("host-17");
//! if let Some(guard) = lock.acquire_within(Duration::from_secs(30)).await? {
//!     // Give the fence to whatever the lock protects: it refuses writes with an older one.
//!     println!("held, fence {:?}, surely for {:?}", guard.fence(), guard.remaining());
//!     tokio::select! {
//!         () = work_for_a_while() => {}
//!         reason = guard.lost() => eprintln!("stop: {reason}"),
//!     }
//!     guard.release().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | module | is |
//! |---|---|
//! | `address` | where the agent is, and what the environment says about it |
//! | `error`, `loss` | what can go wrong, by who must act; why something held is held no longer |
//! | [`outcome`] | what became of a request that failed, in the words of both ends |
//! | `connection` | HTTP/1.1 connections that are kept alive |
//! | `client` | the handle, consistency and blocking of reads |
//! | `kv`, `session`, `txn`, `catalog`, `event`, `agent`, `operator` | the plain requests |
//! | [`shape`] | the JSON of both ends |
//! | [`holder`] | a session and what is held under it, as one pure value: everything that keepers and guards decide |
//! | `driver` | the shell around it: clock, client and those who wait |
//! | `keeper` | a session that keeps itself alive |
//! | `lock`, `semaphore`, `election` | holds that watch over themselves |
//! | `clock`, `backoff`, `duration` | time that counts while suspended, waiting out of step, durations in words |
//!
//! **Invariants.** A guard believes in its hold no longer than the server has promised to keep its
//! session, nor longer than its node is surely heard, counted on a clock that runs while the
//! machine sleeps. A plain request is sent once; only what is known not to have reached the agent
//! is sent again.

mod address;
mod agent;
mod backoff;
mod catalog;
mod client;
mod clock;
mod connection;
mod driver;
mod duration;
mod election;
mod entry;
mod error;
mod event;
pub mod holder;
mod keeper;
mod kv;
mod lock;
mod loss;
mod operator;
pub mod outcome;
mod read;
mod semaphore;
mod session;
mod session_options;
mod settings;
pub mod shape;
mod txn;

#[cfg(test)]
mod fake;

pub use address::{Address, DEFAULT_PORT};
pub use agent::Agent;
pub use catalog::Catalog;
pub use client::{Answer, Client};
pub use clock::Clock;
pub use connection::dial;
pub use election::{Election, Leader, Leadership, Observer};
pub use entry::{Acquired, Entry};
pub use error::Error;
pub use event::{Events, NewEvent};
pub use holder::{GuardState, SEMAPHORE_FLAGS};
pub use keeper::SessionKeeper;
pub use kv::Kv;
pub use lock::{LOCK_FLAGS, Lock, LockGuard};
pub use loss::Loss;
pub use operator::Operator;
pub use read::{Consistency, Read};
pub use semaphore::{Semaphore, SemaphoreGuard};
pub use session::Sessions;
pub use session_options::{DEFAULT_TTL, DEFAULT_TTL_SAFE, HealthWindow, SessionOptions};
pub use settings::Settings;
pub use txn::{Outcome, Txn};
