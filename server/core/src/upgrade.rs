//! How a cluster goes on to a newer format: see [`lockmesh_protocol::format`] for what that is.
//!
//! Every server says in its row of the roster which formats its build reads. As soon as all of them
//! read the next one the leader proposes to raise the cluster's, and from then on commands of that
//! format may be proposed. A server that reads less is not admitted any more. One that meets a
//! newer format all the same, as its build was put back or it was not there when the others went
//! on, does nothing any more, and says why.
//!
//! **Invariant:** nothing is applied that this build cannot read, nor anything behind it.

use crate::Core;
use crate::outbox::Outbox;
use crate::raft::log::{EntryKind, LogEntry};
use crate::state::State;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::format::{self, FormatError};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_protocol::time::Time;

impl Core {
    /// Why this server must stop: its build cannot read what the cluster writes. Until it is
    /// stopped it does nothing.
    pub fn unreadable(&self) -> Option<&FormatError> {
        self.unreadable.as_ref()
    }

    /// Once a tick, where this server leads and serves: raises the format if every server reads a
    /// newer one.
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
            tracing::info!(format, "every server reads a newer format: the cluster goes on to it");
            self.gather_own(raise);
        }
    }

    /// The command, or one of the same effect that the cluster's format has.
    pub(crate) fn as_the_cluster_reads_it(&self, command: Command) -> Command {
        match command {
            Command::GiveUpSession { session, .. } if command.since() > self.state.format() => {
                Command::DestroySession(session)
            }
            command => command,
        }
    }

    /// Whether every server of the roster can read a command.
    pub(crate) fn fits_format(&self, command: &Command) -> Result<(), Unavailable> {
        let (since, at) = (command.since(), self.state.format());
        if since <= at {
            return Ok(());
        }
        let what =
            format!("this needs format {since}, but the cluster is at {at}: upgrade all its servers first");
        Err(Unavailable::Denied(what))
    }

    /// Whether this build can read an entry. Otherwise it is noted why not.
    pub(crate) fn reads(&mut self, entry: &LogEntry) -> bool {
        let has_format = entry.kind == EntryKind::Normal && !entry.data.is_empty();
        let checked = has_format.then(|| format::check_version(&entry.data, self.config.format));
        self.unreadable = self.unreadable.take().or(checked.and_then(Result::err));
        self.unreadable.is_none()
    }

    /// Whoever waits is told, and nothing more leaves this server. What it has applied stays: a
    /// newer build goes on there.
    pub(crate) fn fall_silent(&mut self, now: Time, outbox: &mut Outbox) {
        self.serving = None;
        self.step_down(now, outbox);
        outbox.messages.clear();
    }
}

/// Why a build that reads formats up to `known` cannot go on with a state.
pub(crate) fn unknown_format(state: &State, known: u8) -> Option<FormatError> {
    let found = state.format();
    (found > known).then_some(FormatError::Unknown { found, known })
}
