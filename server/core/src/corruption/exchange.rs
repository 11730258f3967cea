//! The schedule of corruption checks and their messages between servers.

use super::{Comparison, CorruptionChecks, Finding, Report};
use crate::checksum::{Checksum, FORMAT};
use crate::core::Core;
use crate::outbox::Outbox;
use crate::raft::message::{MessageKind, PeerMessage};
use crate::state::State;
use bytes::Bytes;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;

/// The longest encoded [`Report`].
const MAX_REPORT_BYTES: usize = 32;

impl Core {
    /// Returns this server's knowledge about its own state and the others'.
    pub fn corruption_checks(&self) -> &CorruptionChecks {
        &self.corruption
    }

    /// Records that this server's state was found corrupt before it started.
    pub fn know_corruption(&mut self) {
        self.corruption.was_found = true;
    }

    /// Pauses or resumes checks. A leader starts none while members run different versions of the
    /// program: an older one may not know checks, and different versions may reach different
    /// states.
    pub fn pause_corruption_checks(&mut self, pause: bool) {
        self.corruption.is_paused = pause;
    }

    /// Runs once per tick on a leader that serves.
    pub(crate) fn check_for_corruption(&mut self, now: Time, outbox: &mut Outbox) {
        let (last, applied_at) = self.corruption.last;
        let is_due = now.since(applied_at) >= self.config.corruption_check_interval && self.applied.0 > last;
        let may_begin = || {
            let is_alone = self.engine.membership().each().all(|member| member == self.config.id);
            !is_alone
                && !self.corruption.is_paused
                && !self.is_on_its_way(|command| *command == Command::CorruptionCheck)
        };
        if is_due && may_begin() {
            self.gather_own(Command::CorruptionCheck);
        }
        if last != LogIndex(0) {
            self.compare_checksums(now, last, outbox);
        }
    }

    /// Continues the comparison of the newest check, or starts it.
    fn compare_checksums(&mut self, now: Time, last: LogIndex, outbox: &mut Outbox) {
        let me = self.config.id;
        let checks = &mut self.corruption;
        let is_copy = self.own.copy_of.is_some();
        let former = checks.comparison.take_if(|comparison| comparison.index != last);
        let comparison = checks.comparison.get_or_insert_with(|| Comparison::of(last, now, former));
        let asks = comparison.may_ask(now);
        if !std::mem::take(&mut comparison.has_news) && !asks {
            return;
        }
        // This server's own checkpoint may complete after the replies of others: it is one report
        // among them.
        comparison.reports.extend(checks.own.get(&last).map(|checksum| (me, report(*checksum, is_copy))));
        let membership = self.engine.membership();
        let members = membership.all();
        // A joint membership has two majorities, and the two may disagree.
        if !membership.is_joint() {
            if let Some(finding) = comparison.judge(now, &membership.voters, &members) {
                tell_people(&self.state, last, finding);
                if finding.is_corrupt(me) {
                    checks.found_corrupt = Some(last);
                }
            }
            checks.confirmed.retain(|server, _| members.contains(server));
            checks.confirmed.extend(comparison.confirmed(&membership.voters).map(|server| (server, last)));
        }
        if asks {
            let others = members.iter().copied().filter(|member| *member != me);
            let said = others.flat_map(|to| comparison.messages_for(now, to));
            let term = self.applied.1;
            let message = |(to, kind)| {
                let commit = checks.confirmed.get(&to).copied().unwrap_or_default();
                (to, PeerMessage { term, index: last, commit, ..PeerMessage::new(kind, me, to) })
            };
            outbox.messages.extend(said.map(message));
        }
        if let Some(check) = self.corruption.confirmed.get(&me).copied() {
            self.state_confirmed(check);
        }
    }

    /// Handles an installed snapshot: it replaces this server's state, so earlier checksums no
    /// longer apply.
    pub(crate) fn copy_state_of(&mut self, snapshot: LogIndex) {
        // The state is unconfirmed until a check has compared it: it is only as good as its
        // sender's.
        self.own.copy_of = Some(snapshot);
        self.corruption.own.clear();
    }

    /// Records that a check has confirmed this server's state.
    fn state_confirmed(&mut self, check: LogIndex) {
        // An earlier check confirms the state that the snapshot replaced.
        if self.own.copy_of <= Some(check) {
            self.own.copy_of = None;
        }
    }

    /// Handles a message of the check. Returns `true` if it was one.
    pub(crate) fn corruption_message(&mut self, message: &PeerMessage, outbox: &mut Outbox) -> bool {
        let (from, index) = (message.from, message.index);
        // A former leader may have compared with another membership, so its messages are ignored.
        let is_of_leader = self.engine.leader() == Some(from);
        match message.kind {
            MessageKind::Checksum if is_of_leader => {
                self.state_confirmed(message.commit);
                if let Some(checksum) = self.corruption.own.get(&index) {
                    let report = report(*checksum, self.own.copy_of.is_some());
                    let context = Bytes::from(wire::encode(&report));
                    let answer = PeerMessage::new(MessageKind::ChecksumResponse, self.config.id, from);
                    outbox
                        .messages
                        .push((from, PeerMessage { index, term: self.applied.1, context, ..answer }));
                }
            }
            MessageKind::ChecksumResponse => match wire::decode::<Report, MAX_REPORT_BYTES>(&message.context)
            {
                Ok(report) => self.corruption.take_report(from, index, report),
                Err(error) => tracing::warn!(server = from.0, %error, "cannot read a server's checksum"),
            },
            MessageKind::Corrupt if is_of_leader && self.corruption.found_corrupt.is_none() => {
                // A snapshot may have replaced the corrupt state.
                if Some(index) >= self.own.copy_of {
                    self.corruption.found_corrupt = Some(index);
                }
            }
            // They still belong to the check: the engine must not receive them.
            MessageKind::Checksum | MessageKind::Corrupt => {}
            _ => return false,
        }
        true
    }
}

fn report(checksum: Checksum, is_copy: bool) -> Report {
    Report { format: FORMAT, checksum, is_copy }
}

fn tell_people(state: &State, index: LogIndex, finding: &Finding) {
    match finding {
        Finding::Alike => {
            tracing::info!(index = index.0, "corruption check: the states of all servers agree again");
        }
        Finding::Corrupt(servers) => {
            let node =
                |id: &ServerId| state.server(*id).map_or_else(|| id.to_string(), |row| row.node.to_string());
            let nodes = servers.iter().map(node).collect::<Vec<_>>().join(" ");
            tracing::error!(
                index = index.0,
                nodes,
                "corruption check: the state of these servers differs from that of a majority; they no longer serve \
                 agents. Stop each of them, empty its data folder and start it: it joins as a new server"
            );
        }
        Finding::Undecided => {
            tracing::error!(
                index = index.0,
                "corruption check: the states of the servers differ, and no majority without copied states agrees, \
                 so the correct state is unknown. All servers keep running. Save a backup of each \
                 (`lockmesh operator snapshot save --stale` beside it), choose one, and empty the data \
                 folders of the others, one at a time: they join as new servers"
            );
        }
    }
}
