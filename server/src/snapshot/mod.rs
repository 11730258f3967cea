//! Snapshot transfer to a server that is too far behind to follow the log.
//!
//! The leader's message only offers a snapshot. The server that needs it requests the parts one
//! after the other, from a reader of the checkpoint as it was at one moment; the leader continues
//! to serve. After a lost connection the transfer resumes. **Invariant:** nothing is installed
//! unless every part, and all of them together, have the checksums that their reader computed.
//!
//! | file | is |
//! |---|---|
//! | `source.rs` | a checkpoint being read, for another server or for an operator |
//! | `download.rs` | the decisions of the receiving side: a pure value |
//! | `fetch.rs` | the task that fetches the parts |
//! | `digest.rs` | the checksums |

mod digest;
mod download;
mod fetch;
mod source;

pub use download::{DownloadError, DownloadStep, Fetched, PART_TIMEOUT, SnapshotDownload};
pub(crate) use fetch::Fetch;
pub use source::CheckpointSource;
pub(crate) use source::refusal;
