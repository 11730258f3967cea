//! The schedule of corruption checks and their messages between servers.

use super::{Comparison, CorruptionChecks, Finding, Report};
use crate::cluster::{ClusterView, Decision, Turn};
use crate::durability::checksum::{Checksum, FORMAT};
use crate::raft::message::{MessageKind, PeerMessage};
use crate::state::State;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;

/// The longest encoded [`Report`].
const MAX_REPORT_BYTES: usize = 32;

/// An input of the corruption checks.
#[derive(Debug)]
pub(crate) enum CorruptionInput<'a> {
    /// A tick of a leader that serves.
    Tick,
    /// A message between servers for which [`MessageKind::is_of_corruption_checks`] holds.
    Message(&'a PeerMessage),
}

impl CorruptionChecks {
    /// Handles one input. The caller carries out the decisions, in their order. `copy_of` is the
    /// snapshot that this server's state was fetched with, until a check has confirmed it.
    pub(crate) fn handle(
        &mut self,
        view: &ClusterView<'_>,
        now: Time,
        (copy_of, input): (Option<LogIndex>, CorruptionInput<'_>),
        decisions: &mut Vec<Decision>,
    ) {
        let turn = &mut Turn { view, now, decisions };
        match input {
            CorruptionInput::Tick => self.tick(turn, copy_of),
            CorruptionInput::Message(message) => self.message(turn, copy_of, message),
        }
    }

    /// Starts a check if one is due, and continues the newest one.
    fn tick(&mut self, turn: &mut Turn<'_>, copy_of: Option<LogIndex>) {
        let (last, applied_at) = self.last;
        let is_due = turn.now.since(applied_at) >= self.interval && turn.view.applied.0 > last;
        let may_begin = || {
            let is_alone = turn.view.membership.each().all(|member| member == turn.view.id);
            !is_alone
                && !self.is_paused
                && !turn.is_on_its_way(|command| *command == Command::CorruptionCheck)
        };
        if is_due && may_begin() {
            turn.propose_own(Command::CorruptionCheck);
        }
        if last != LogIndex(0) {
            self.compare(turn, copy_of.is_some(), last);
        }
    }

    /// Continues the comparison of the newest check, or starts it.
    fn compare(&mut self, turn: &mut Turn<'_>, is_copy: bool, last: LogIndex) {
        let (view, now) = (turn.view, turn.now);
        let former = self.comparison.take_if(|comparison| comparison.index != last);
        let comparison = self.comparison.get_or_insert_with(|| Comparison::of(last, now, former));
        let asks = comparison.may_ask(now);
        if !std::mem::take(&mut comparison.has_news) && !asks {
            return;
        }
        // This server's own checkpoint may complete after the replies of others: it is one report
        // among them.
        let own = self.own.get(&last).map(|checksum| (view.id, report(*checksum, is_copy)));
        comparison.reports.extend(own);
        let members = view.membership.all();
        // A joint membership has two majorities, and the two may disagree.
        if !view.membership.is_joint() {
            if let Some(finding) = comparison.judge(now, &view.membership.voters, &members) {
                log_finding(view.state, last, finding);
                if finding.is_corrupt(view.id) {
                    self.found_corrupt = Some(last);
                }
            }
            self.confirmed.retain(|server, _| members.contains(server));
            self.confirmed.extend(comparison.confirmed(&view.membership.voters).map(|server| (server, last)));
        }
        if asks {
            for (to, kind) in view.others().flat_map(|to| comparison.messages_for(now, to)) {
                let commit = self.confirmed.get(&to).copied().unwrap_or_default();
                let message = PeerMessage::new(kind, view.id, to);
                let message = PeerMessage { term: view.applied.1, index: last, commit, ..message };
                turn.decide(Decision::Send(to, message));
            }
        }
        if let Some(check) = self.confirmed.get(&view.id).copied() {
            turn.decide(Decision::ConfirmState(check));
        }
    }

    /// Handles an installed snapshot: earlier checksums no longer apply to this server's state.
    pub(crate) fn installed(&mut self) {
        self.own.clear();
    }

    fn message(&mut self, turn: &mut Turn<'_>, copy_of: Option<LogIndex>, message: &PeerMessage) {
        let (from, index) = (message.from, message.index);
        // A former leader may have compared with another membership, so its messages are ignored.
        let is_of_leader = turn.view.leader == Some(from);
        match message.kind {
            MessageKind::Checksum if is_of_leader => {
                turn.decide(Decision::ConfirmState(message.commit));
                if let Some(checksum) = self.own.get(&index) {
                    let report = report(*checksum, is_unconfirmed(copy_of, message.commit));
                    let context = wire::encode(&report).into();
                    let answer = PeerMessage::new(MessageKind::ChecksumResponse, turn.view.id, from);
                    let answer = PeerMessage { index, term: turn.view.applied.1, context, ..answer };
                    turn.decide(Decision::Send(from, answer));
                }
            }
            MessageKind::ChecksumResponse => match wire::decode::<Report, MAX_REPORT_BYTES>(&message.context)
            {
                Ok(report) => self.receive_report(from, index, report),
                Err(error) => tracing::warn!(server = from.0, %error, "cannot read a server's checksum"),
            },
            // A snapshot may have replaced the corrupt state since.
            MessageKind::Corrupt
                if is_of_leader && self.found_corrupt.is_none() && Some(index) >= copy_of =>
            {
                self.found_corrupt = Some(index);
            }
            _ => {}
        }
    }
}

/// Returns `true` if a state that was fetched with a snapshot is not confirmed by this check: an
/// earlier check confirms the state that the snapshot replaced.
pub(crate) fn is_unconfirmed(copy_of: Option<LogIndex>, check: LogIndex) -> bool {
    copy_of > Some(check)
}

fn report(checksum: Checksum, is_copy: bool) -> Report {
    Report { format: FORMAT, checksum, is_copy }
}

fn log_finding(state: &State, index: LogIndex, finding: &Finding) {
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
