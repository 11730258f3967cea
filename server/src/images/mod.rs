//! The way of an image to a server that is too far behind to follow the log.
//!
//! The leader's message only says that there is an image. The server that needs it asks for the parts, one after the
//! other, from a thread that reads them out of the file as it was at one moment; the leader serves on meanwhile. After a
//! lost connection it asks on where it was. **Invariant:** nothing is installed unless every part, and all of them
//! together, have the checksums that their reader gave them.
//!
//! | file | is |
//! |---|---|
//! | `source.rs` | an image that is read for another server |
//! | `fetch.rs` | the task that asks for the parts |
//! | `digest.rs` | the checksums |

mod digest;
mod fetch;
mod source;

pub(crate) use fetch::{Fetch, Fetched};
pub(crate) use source::ImageSource;
