//! What can be broken on purpose, to show that the simulator would find it.
//!
//! Rules of the disk and of the shell are broken here, in the simulation's own disk and shell. Rules of the core are
//! broken inside the core, by a value of its configuration that exists only under the feature `sabotage`.

use super::plan::Plan;
use lockmesh_protocol::change::Change;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// None: everything is as it should be.
    #[default]
    None,
    /// An image becomes durable before the commit index that it stands on.
    ImageBeforeCommit,
    /// The log is reset before the image that it is to follow is durable.
    ResetBeforeImage,
    /// The log is cut beyond the durable image.
    CutTooFar,
    /// A log that does not lead to its image is kept at start.
    KeepLogThatParts,
    /// A power cut takes the vote with it.
    ForgetVote,
    /// The store says that a write is durable as soon as it has it.
    DurableAtOnce,
    /// A checkpoint leaves out the lock-delays.
    ForgetRows,
    /// A blocking read is parked without a look at what is there.
    ParkUnseen,
}

impl Sabotage {
    /// All of them.
    pub const ALL: &'static [Sabotage] = &[
        Self::ImageBeforeCommit,
        Self::ResetBeforeImage,
        Self::CutTooFar,
        Self::KeepLogThatParts,
        Self::ForgetVote,
        Self::DurableAtOnce,
        Self::ForgetRows,
        Self::ParkUnseen,
    ];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|sabotage| format!("{sabotage:?}") == name)
    }

    /// Makes sure that what is broken comes into play.
    pub fn adjust(self, _plan: &mut Plan) {}

    /// Leaves out of a checkpoint what it shall forget.
    pub fn forget_rows(self, rows: &mut Vec<Change>) {
        if self == Self::ForgetRows {
            rows.retain(|row| !matches!(row, Change::LockDelay(..)));
        }
    }
}
