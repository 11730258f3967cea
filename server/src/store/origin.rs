//! The origin of a file: it distinguishes a file from its copies, even if every byte is the same.
//!
//! The original of a copied data folder may have run on, and the copy knows nothing of the
//! original's later votes and acknowledgements. Deleting a file and copying it back keeps its path
//! and its device, and often its inode, but never its creation time.

use rustix::fs::{AtFlags, StatxFlags, statx};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io;
use time::OffsetDateTime;
use time::macros::format_description;

/// The origins of the two files of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origins {
    /// The log.
    pub log: Origin,
    /// The checkpoint of the state.
    pub state: Origin,
}

/// The property that distinguishes a file from its copies. Never the path or the device: both may
/// change when a machine restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Its creation time: seconds since 1970, and nanoseconds.
    Made(i64, u32),
    /// Its inode, if the file system keeps no creation times.
    Inode(u64),
}

impl Origin {
    /// Returns the origin of an open file.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME | StatxFlags::INO)?;
        let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let birth = found.stx_btime;
        // Some file systems claim support, and return zero.
        Ok(match has_birth && birth.tv_sec != 0 {
            true => Self::Made(birth.tv_sec, birth.tv_nsec),
            false => Self::Inode(found.stx_ino),
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Made(seconds, nanoseconds) => match created(*seconds, *nanoseconds) {
                Some(time) => write!(f, "created {time}"),
                None => write!(f, "created {seconds} s after 1970"),
            },
            Self::Inode(inode) => write!(f, "inode {inode}"),
        }
    }
}

/// `2026-11-21 08:41:12.877Z`.
fn created(seconds: i64, nanoseconds: u32) -> Option<String> {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second].[subsecond digits:3]Z");
    let moment = OffsetDateTime::from_unix_timestamp(seconds).ok()?.replace_nanosecond(nanoseconds).ok()?;
    moment.format(&format).ok()
}

#[cfg(test)]
mod tests {
    use super::Origin;
    use std::fs::{self, File};

    #[test]
    fn creation_time_shown_in_utc() {
        let shown = Origin::Made(1_795_250_472, 877_147_444).to_string();
        assert_eq!(shown, "created 2026-11-21 08:41:12.877Z");
        assert_eq!(Origin::Made(i64::MAX, 7).to_string(), format!("created {} s after 1970", i64::MAX));
    }

    #[test]
    fn origin_survives_rename_not_copy() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let [path, other] = ["a", "b"].map(|name| folder.path().join(name));
        fs::write(&path, "x").expect("the disk is good");
        let origin = |path| Origin::of(&File::open(path).expect("it is there")).expect("it has one");
        let before = origin(&path);
        fs::write(&path, "changed in place").expect("the disk is good");
        fs::rename(&path, &other).expect("the disk is good");
        assert_eq!(origin(&other), before);
        fs::copy(&other, &path).expect("the disk is good");
        fs::remove_file(&other).expect("the disk is good");
        fs::copy(&path, &other).expect("the disk is good");
        assert_ne!(origin(&other), before);
    }
}
