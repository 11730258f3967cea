//! The names of a store's files.

/// The log's folder.
pub(super) const LOG: &str = "log";
/// The log's folder during its creation.
pub(super) const NEW_LOG: &str = "log.new";
/// The log of builds before segments, which is converted.
pub(super) const FORMER_LOG: &str = "log.redb";
/// The checkpoint's file.
pub(super) const STATE: &str = "state.redb";
/// The checkpoint during its creation.
pub(super) const NEW_STATE: &str = "state.redb.new";
/// The number of the newest commit that was reported as durable.
pub(super) const REPORTED: &str = "log.told";
