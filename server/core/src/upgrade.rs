//! Upgrades of a cluster to a newer format, at the end of a rolling upgrade: see
//! [`lockmesh_protocol::format`] for formats.
//!
//! Every server lists in its roster row the formats that its build reads. As soon as all of them
//! read the next one, the leader proposes to raise the cluster's format; from then on commands of
//! that format may be proposed. Servers that read less are no longer admitted. A server can still
//! meet a newer format, if its build was downgraded or it was absent during the upgrade. It then
//! stops all work and reports the reason.
//!
//! **Invariant:** a server applies no entry that its build cannot read, nor any entry after it.

use crate::cluster::ClusterView;
use crate::raft::log::{EntryKind, LogEntry};
use crate::state::State;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::format::{self, FormatError};
use lockmesh_protocol::rpc::Unavailable;

/// The format version since which the state restricts commands.
const RESTRICTS_SINCE: u8 = 10;

/// Returns the command that raises the cluster's format, if every server reads a newer one. `known`
/// is the newest format that this build reads. Called once per tick on a leader that serves.
pub(crate) fn wanted_format(view: &ClusterView<'_>, known: u8) -> Option<Command> {
    let (state, members) = (view.state, view.membership);
    if !members.each().all(|id| state.server(id).is_some()) {
        return None;
    }
    let formats = state.servers().map(|server| server.format);
    let format = formats.chain([known]).min().filter(|format| *format > state.format())?;
    let raise = Command::RaiseFormat(format);
    if view.proposals.is_on_its_way(|command| *command == raise) {
        return None;
    }
    tracing::info!(format, "every server reads a newer format: upgrading the cluster");
    Some(raise)
}

/// Checks that every server of the roster can read a command.
pub(crate) fn check_format(state: &State, command: &Command) -> Result<(), Unavailable> {
    let (since, at) = (command.since(), state.format());
    if since <= at {
        return Ok(());
    }
    let what =
        format!("this needs format {since}, but the cluster is at {at}: upgrade all its servers first");
    Err(Unavailable::Denied(what))
}

/// Returns the reason why a build that reads formats up to `known` cannot read an entry.
pub(crate) fn unreadable_entry(entry: &LogEntry, known: u8) -> Option<FormatError> {
    let has_format = entry.kind == EntryKind::Normal && !entry.data.is_empty();
    has_format.then(|| format::check_version(&entry.data, known))?.err()
}

/// Returns the command, or an equivalent one that the cluster's format supports.
pub(crate) fn as_the_cluster_reads_it(state: &State, command: Command) -> Command {
    match command {
        Command::Restricted(command) if state.format() < RESTRICTS_SINCE => {
            as_the_cluster_reads_it(state, command.into())
        }
        Command::GiveUpSession { session, .. } if command.since() > state.format() => {
            Command::DestroySession(session)
        }
        command => command,
    }
}

/// Returns the reason why a build that reads formats up to `known` cannot continue with a state.
pub(crate) fn unknown_format(state: &State, known: u8) -> Option<FormatError> {
    let found = state.format();
    (found > known).then_some(FormatError::Unknown { found, known })
}
