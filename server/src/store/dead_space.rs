//! Dead space of `state.redb`: space of deleted or replaced rows, measured and given back to the
//! file system while nothing is written.
//!
//! redb cuts off free space at the end of the file with each commit, up to half of it, so a few
//! commits without a change give most of it back. The rest lies between rows: moving them together
//! locks the file, so it is done for small contents only, and a backup that begins meanwhile is
//! told to try again.

use super::error::StoreError;
use super::file::{RedbFile, StoreFault, Writing};
use std::time::{Duration, Instant};

/// The time without a checkpoint after which the file is looked at.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(10);
/// The minimum time between two looks: each reads the whole file.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// The minimum time between two looks, as a multiple of the duration of the last one.
const LOOK_SHARE: u32 = 100;
/// Less dead space is kept: the next checkpoints use it.
const KEPT: u64 = 16 << 20;
/// Larger contents are not moved.
const LARGEST_MOVED: u64 = 64 << 20;

/// The space of a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileSpace {
    /// Space of rows, and of what finds them.
    pub(super) used: u64,
    /// Space that holds nothing.
    pub(super) free: u64,
}

impl FileSpace {
    /// Returns `true` if the dead space is worth a few commits.
    fn is_wasteful(self) -> bool {
        self.free > KEPT && self.free > self.used
    }
}

/// Gives dead space of a file back; returns the space that it takes now. `same` writes what the
/// file holds already.
pub(super) fn give_back(
    file: &RedbFile,
    same: impl Fn(&mut Writing<'_>) -> Result<(), StoreFault>,
) -> Result<FileSpace, StoreError> {
    let mut space = file.space()?;
    while space.is_wasteful() {
        file.write(&same)?;
        let before = std::mem::replace(&mut space, file.space()?);
        if space.free >= before.free {
            break;
        }
    }
    if space.is_wasteful() && space.used <= LARGEST_MOVED {
        file.compact()?;
        space = file.space()?;
    }
    Ok(space)
}

/// When to look at the file next.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Set since the last checkpoint.
    is_due: bool,
    not_before: Option<Instant>,
}

impl Looks {
    /// Notes a checkpoint: the file may have dead space now.
    pub(super) fn checkpointed(&mut self) {
        self.is_due = true;
    }

    /// Returns the time to wait without a checkpoint until the next look; `None` if none is due.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let pause = self.not_before.map(|at| at.saturating_duration_since(now)).unwrap_or_default();
        self.is_due.then_some(pause.max(IDLE_TIME))
    }

    /// Notes a look that began at this time and is over.
    pub(super) fn looked(&mut self, began: Instant, now: Instant) {
        let pause = LOOK_INTERVAL.max(now.saturating_duration_since(began) * LOOK_SHARE);
        *self = Self { is_due: false, not_before: now.checked_add(pause) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_wait_for_idle_and_budget() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut looks = Looks::default();
        assert_eq!(looks.wait(at(0)), None);
        looks.checkpointed();
        assert_eq!(looks.wait(at(0)), Some(IDLE_TIME));
        looks.looked(at(10), at(11));
        assert_eq!(looks.wait(at(11)), None, "nothing was written since");
        looks.checkpointed();
        assert_eq!(looks.wait(at(20)), Some(Duration::from_secs(91)));
        assert_eq!(looks.wait(at(200)), Some(IDLE_TIME));
        looks.looked(at(210), at(210));
        looks.checkpointed();
        assert_eq!(looks.wait(at(211)), Some(Duration::from_secs(59)));
    }
}
