//! Snapshot transfer: the way of a snapshot to a server that is too far behind to follow the log.
//!
//! The leader's message only says that there is one. The server that needs it asks for the parts,
//! one after the other, of a reader that reads them out of the checkpoint as it was at one moment;
//! the leader serves on meanwhile. After a lost connection it asks on where it was. **Invariant:**
//! nothing is installed unless every part, and all of them together, have the checksums that their
//! reader gave them.
//!
//! | file | is |
//! |---|---|
//! | `source.rs` | a checkpoint that is read, for another server or for an operator |
//! | `download.rs` | what decides how the parts are fetched: a pure value |
//! | `fetch.rs` | the task that fetches them |
//! | `digest.rs` | the checksums |

mod digest;
mod download;
mod fetch;
mod source;

pub use download::{DownloadStep, Fetched, PART_TIMEOUT, SnapshotDownload};
pub(crate) use fetch::Fetch;
pub use source::CheckpointSource;
pub(crate) use source::refusal;
