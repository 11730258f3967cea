//! The server's memory on disk: `log.redb`, the replicated log, and `state.redb`, an image of the state.
//!
//! State = image + the log's suffix behind it. What a driver does with it:
//!
//! ```text
//! let (store, recovered) = Store::open(folder, &StoreOptions { server, first_image })?;
//! let store = store.start(move |event: StoreEvent| ...)?;    // two threads; events come from them
//!
//! store.write(outbox.writes)?;            // first in, first out; waits only while the queue is full
//!     StoreEvent::Persisted(number)       // -> Input::Persisted
//!     StoreEvent::Health(health)          // Failing: answer new proposals with Unavailable::Disk
//!
//! dirty.extend(outbox.changes);           // DirtyRows
//! if store.image_is_idle() { store.checkpoint(mark, take(&mut dirty))?; }     // about once a second
//!     StoreEvent::Image(index)            // durable: store.cut(min(index, slowest follower))
//!
//! let mut backup = store.backup()?;       // what the newest durable image holds
//! backup.part(0)?;                        // changes that set every row anew, at most about 1 MiB
//!
//! store.close();                          // writes what is queued, ends the threads
//! ```

mod error;
mod events;
mod rows;

pub use error::StoreError;
pub use events::{StoreEvent, StoreHealth};
pub use rows::DirtyRows;

use lockmesh_core::raft::log::ImageMark;
use lockmesh_protocol::id::ServerId;

/// What a store must know to be opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Whose store it is; files of another server are refused.
    pub server: ServerId,
    /// What a new store begins with: index 1, term 1 and the first membership where a cluster is founded, all
    /// zero where a server joins one. The log then begins behind it, and it counts as committed.
    pub first_image: ImageMark,
}
