//! The names of a store's files.

/// The log's file.
pub(super) const LOG: &str = "log.redb";
/// The checkpoint's file.
pub(super) const STATE: &str = "state.redb";
/// The log during its creation.
pub(super) const NEW_LOG: &str = "log.redb.new";
/// The checkpoint during its creation.
pub(super) const NEW_STATE: &str = "state.redb.new";
/// The number of the newest commit that was reported as durable.
pub(super) const REPORTED: &str = "log.told";
