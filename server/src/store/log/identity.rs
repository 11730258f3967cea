//! `log/identity`: the store of a log. It is the last file of a new log, so a folder that has one
//! is complete; and its creation time distinguishes the log from its copies.

use super::segments;
use crate::store::disk::Disk;
use crate::store::error::StoreError;
use crate::store::file::{FileIdentity, StoreFault, io_error};
use lockmesh_protocol::format::{self, Stored};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::io;
use twox_hash::XxHash3_64;

/// The layout of the folder and of the records' headers. Their payloads have their own version, see
/// [`lockmesh_protocol::format`].
pub(in crate::store) const LOG_FORMAT: u32 = 1;

const MAGIC: &[u8; 12] = b"lockmesh log";
/// Magic, format, checksum.
const HEADER_BYTES: usize = 12 + 4 + 8;

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct LogIdentity {
    pub(in crate::store) file: FileIdentity,
    /// The log from which it was converted, if any.
    pub(in crate::store) former: Option<Conversion>,
}

/// The commits of a converted log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct Conversion {
    /// The newest commit of `log.redb`.
    pub(in crate::store) last: u64,
    /// The newest commit right after the conversion.
    pub(in crate::store) end: u64,
}

impl Stored for LogIdentity {}

impl LogIdentity {
    /// Returns the name of the file in the folder of a log.
    pub(in crate::store) fn name(folder: &str) -> String {
        format!("{folder}/{}", segments::IDENTITY)
    }

    /// Reads the identity of a log; `None` if there is no complete log.
    pub(in crate::store) fn read(disk: &dyn Disk, folder: &str) -> Result<Option<Self>, StoreError> {
        let name = Self::name(folder);
        let path = disk.path(&name);
        let Some(bytes) = segments::read(disk, &name).map_err(io_error(&path, "cannot read the file"))?
        else {
            return Ok(None);
        };
        let damaged = |reason: &str| StoreError::Damaged { path: path.clone(), reason: reason.to_owned() };
        if bytes.is_empty() {
            return Err(damaged("it is empty"));
        }
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Err(StoreError::Foreign { path, reason: "it does not name a log".to_owned() });
        };
        let Some((found, rest)) = rest.split_first_chunk::<4>() else {
            return Err(damaged("it is truncated"));
        };
        let found = u32::from_le_bytes(*found);
        match found.cmp(&LOG_FORMAT) {
            Ordering::Less => return Err(StoreError::OlderFormat { path, found, known: LOG_FORMAT }),
            Ordering::Greater => return Err(StoreError::NewerFormat { path, found, known: LOG_FORMAT }),
            Ordering::Equal => {}
        }
        let Some((sum, content)) = rest.split_first_chunk::<8>() else {
            return Err(damaged("it is truncated"));
        };
        if u64::from_le_bytes(*sum) != XxHash3_64::oneshot(content) {
            return Err(damaged("its checksum is wrong"));
        }
        let identity = format::decode(content);
        identity.map(Some).map_err(|error| StoreFault::from(error).of_file(path, "cannot read the file"))
    }

    /// Writes the file of a new log, durable but for its name.
    pub(super) fn write(&self, disk: &dyn Disk, folder: &str) -> io::Result<()> {
        let content = format::encode(self);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + content.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&LOG_FORMAT.to_le_bytes());
        bytes.extend_from_slice(&XxHash3_64::oneshot(&content).to_le_bytes());
        bytes.extend_from_slice(&content);
        let file = disk.create(&Self::name(folder))?;
        file.set_len(bytes.len() as u64)?;
        file.write(0, &bytes)?;
        file.sync_data()
    }
}
