//! Upgrades of a cluster to a newer format: see [`lockmesh_protocol::format`] for formats.
//!
//! Every server lists in its roster row the formats that its build reads. As soon as all of them
//! read the next one, the leader proposes to raise the cluster's format; from then on commands of
//! that format may be proposed. Servers that read less are no longer admitted. A server can still
//! meet a newer format, if its build was downgraded or it was absent during the upgrade. It then
//! stops all work and reports the reason.
//!
//! **Invariant:** a server applies no entry that its build cannot read, nor any entry after it.

use crate::Core;
use crate::outbox::Outbox;
use crate::raft::log::{EntryKind, LogEntry};
use crate::state::State;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::format::{self, FormatError};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;

impl Core {
    /// Returns the reason why this server must stop: its build cannot read the cluster's format.
    /// Until it is stopped it does nothing.
    pub fn unreadable(&self) -> Option<&FormatError> {
        self.unreadable.as_ref()
    }

    /// Raises the format if every server reads a newer one. Runs once per tick on a leader that
    /// serves.
    pub(crate) fn raise_format_if_all_read_it(&mut self) {
        let is_listed = |id| self.state.server(id).is_some();
        if !self.engine.membership().each().all(is_listed) {
            return;
        }
        let formats = self.state.servers().map(|server| server.format);
        let least = formats.chain([self.config.format]).min();
        let Some(format) = least.filter(|format| *format > self.state.format()) else { return };
        let raise = Command::RaiseFormat(format);
        if !self.is_on_its_way(|command| *command == raise) {
            tracing::info!(format, "every server reads a newer format: upgrading the cluster");
            self.gather_own(raise);
        }
    }

    /// Checks that every server of the roster can read a command.
    pub(crate) fn fits_format(&self, command: &Command) -> Result<(), Unavailable> {
        let (since, at) = (command.since(), self.state.format());
        if since <= at {
            return Ok(());
        }
        let what =
            format!("this needs format {since}, but the cluster is at {at}: upgrade all its servers first");
        Err(Unavailable::Denied(what))
    }

    /// Returns `true` if this build can read an entry, else records the reason.
    pub(crate) fn reads(&mut self, entry: &LogEntry) -> bool {
        let has_format = entry.kind == EntryKind::Normal && !entry.data.is_empty();
        let checked = has_format.then(|| format::check_version(&entry.data, self.config.format));
        self.unreadable = self.unreadable.take().or(checked.and_then(Result::err));
        self.unreadable.is_none()
    }

    /// Fails all waiting calls and stops sending. The applied state stays: a newer build continues
    /// from it.
    pub(crate) fn fall_silent(&mut self, now: Time, outbox: &mut Outbox) {
        self.serving = None;
        self.step_down(now, outbox);
        outbox.messages.clear();
    }
}

/// Returns the command, or an equivalent one that the cluster's format supports.
pub(crate) fn as_the_cluster_reads_it(state: &State, command: Command) -> Command {
    match command {
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
