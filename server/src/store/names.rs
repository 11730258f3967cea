//! The names of a store's files.

/// The log's file.
pub(super) const LOG: &str = "log.redb";
/// The checkpoint's file.
pub(super) const STATE: &str = "state.redb";
/// The log while it is made.
pub(super) const NEW_LOG: &str = "log.redb.new";
/// The checkpoint while it is made.
pub(super) const NEW_STATE: &str = "state.redb.new";
/// What was told of the newest commits.
pub(super) const TOLD: &str = "log.told";
