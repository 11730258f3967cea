//! The events that the store's threads report to the driver.

use lockmesh_core::Input;
use lockmesh_core::durability::checksum::Checksum;
pub use lockmesh_core::frontend::DiskHealth as StoreHealth;
use lockmesh_core::frontend::Event;
use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_protocol::id::LogIndex;

/// An event of the store. Reported from the store's own threads, which wait for the listener: it
/// must be quick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// Every log write up to this number is durable.
    Persisted(u64),
    /// This checkpoint is durable.
    Checkpointed(SnapshotMeta),
    /// A checkpoint of exactly this index became durable, and this is its checksum.
    Summed(LogIndex, Checksum),
    /// The disk rejects writes, or accepts them again.
    Health(StoreHealth),
}

impl From<StoreEvent> for Event {
    fn from(event: StoreEvent) -> Self {
        Self::Core(match event {
            StoreEvent::Persisted(number) => Input::Persisted(number),
            StoreEvent::Checkpointed(mark) => Input::CheckpointDurable(mark),
            StoreEvent::Summed(index, checksum) => Input::Summed(index, checksum),
            StoreEvent::Health(health) => return Self::Disk(health),
        })
    }
}
