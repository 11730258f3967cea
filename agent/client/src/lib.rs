//! Typed, asynchronous client of the local Lockmesh agent.
//!
//! It uses Consul's HTTP API over the agent's Unix socket or loopback TCP. It therefore also works
//! with a Consul agent, but without fences. Start at [`Client`]; for a lock, at [`Lock`].
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
//!     // Pass the fence to the protected store, which rejects writes with an older one.
//!     println!("held, fence {:?}, valid for at least {:?}", guard.fence(), guard.remaining());
//!     if let Err(reason) = guard.run(work_for_a_while()).await {
//!         eprintln!("the work was stopped: {reason}");
//!     }
//!     guard.release().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **Invariants:** a guard never relies on its lock longer than the server promised to keep its
//! session, nor longer than its agent vouched for the node. Both are measured on a clock that runs
//! while the machine sleeps. A plain request is sent once; it is sent again only if it certainly
//! did not reach the agent.
//!
//! | type | use |
//! |---|---|
//! | [`Lock`], [`LockGuard`] | one lock, or several at once: wait, hold, run work, release |
//! | [`Semaphore`], [`SemaphoreGuard`] | up to a limit of holders at a time |
//! | [`Election`], [`Leadership`], [`Observer`] | campaign, proclaim, resign; follow the leader |
//! | [`SessionKeeper`], [`SessionOptions`] | one session for several locks; its options |
//! | [`Client`] | all requests: keys, sessions, transactions, catalog, events, operators, access control |
//! | [`Error`], [`Loss`] | the reason why a call failed; the reason why a hold ended |
//!
//! The folder `examples/` has programs to start from.

// The code map:
//
// | module | contents |
// |---|---|
// | `client.rs`, `read.rs` | the handle for all requests; consistency of reads |
// | `address.rs`, `settings.rs` | the agent's address; the environment |
// | `connection.rs` | HTTP/1.1 over Unix socket and TCP; the only file that names hyper |
// | `error.rs`, `loss.rs` | errors, by who must act; reasons for a loss |
// | `outcome.rs` | the outcome of a failed request, shared by agent and client |
// | `kv.rs`, `entry.rs`, `session.rs`, `txn.rs` | requests for keys, sessions, transactions |
// | `items.rs` | a reply that is a JSON array, item by item |
// | `catalog.rs`, `prepared_query.rs`, `event.rs`, `agent.rs`, `operator.rs`, `acl.rs` | other requests |
// | `shape/` | the JSON of both ends: the agent renders it, the client parses it |
// | `holder/` | a session and its holds, as one pure state machine; start with `mod.rs` |
// | `driver.rs` | drives the holder: clock, client and waiting callers |
// | `keeper/`, `session_options.rs` | a session that is kept alive; its options |
// | `lock/`, `semaphore/`, `election.rs` | locks, semaphores and elections |
// | `guard.rs` | the guard of a lock or a slot |
// | `clock.rs`, `backoff.rs`, `duration.rs` | a clock that counts suspended time; utilities |
// | `fake.rs` | a scripted agent with faults, for tests |

mod acl;
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
mod guard;
#[doc(hidden)]
pub mod holder;
mod items;
mod keeper;
mod kv;
mod lock;
mod loss;
mod operator;
#[doc(hidden)]
pub mod outcome;
mod prepared_query;
mod read;
mod semaphore;
mod session;
mod session_options;
mod settings;
pub mod shape;
mod txn;

#[cfg(test)]
mod fake;

pub use acl::Acl;
pub use address::{Address, DEFAULT_PORT};
pub use agent::{Agent, Monitor};
pub use catalog::Catalog;
pub use client::{Answer, Client};
pub use clock::{Clock, Timer};
pub use connection::{Stream, Wrapped, Wrapper, dial};
pub use election::{Election, Leader, Leadership, Observer};
pub use entry::{Acquired, AcquiredAll, Entry};
pub use error::Error;
pub use event::{Events, NewEvent};
pub use guard::HoldGuard;
pub use holder::{GuardState, SEMAPHORE_FLAGS, Slots};
pub use keeper::SessionKeeper;
pub use kv::{Entries, Kv, Names};
pub use lock::{LOCK_FLAGS, Lock, LockGuard};
pub use loss::{LockAfterLoss, Loss};
pub use operator::Operator;
pub use prepared_query::PreparedQueries;
pub use read::{Consistency, Read};
pub use semaphore::{Semaphore, SemaphoreGuard};
pub use session::Sessions;
pub use session_options::{DEFAULT_TTL, DEFAULT_TTL_SAFE, HealthWindow, SessionOptions};
pub use settings::Settings;
pub use txn::{Outcome, Txn};
