//! What the store's threads tell the driver.

use lockmesh_core::raft::log::ImageMark;

/// What happened in the store. Told from the store's own threads, which wait for the listener: it must be quick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// Every log write up to this number is durable.
    Persisted(u64),
    /// This image is durable.
    Image(ImageMark),
    /// The disk refuses, or takes writes again.
    Health(StoreHealth),
}

/// Whether the disk takes writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreHealth {
    /// It does.
    #[default]
    Good,
    /// It does not, for this reason. The store goes on trying; nothing new should be proposed meanwhile.
    Failing(String),
}
