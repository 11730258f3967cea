//! The corruption check: servers that applied the same log must hold the same state, and one that does not is found.
//!
//! ```text
//! leader ── CorruptionCheck, an entry ──> every server: a checkpoint of exactly that index, and its checksum
//!        ── Checksum ──────────────────> each member, until it has answered
//!        <───────── ChecksumResponse ── its checksum there, and the format of it
//!        ── Corrupt ───────────────────> whoever differs from a majority of the voters
//! ```
//!
//! Whoever is told leads no more and answers no agent, but stores and votes on: its log is as good as ever. The way back is
//! an emptied data folder. Where no majority agrees nobody knows who is right, and people must decide: that is an alarm.
//!
//! **Invariants:** only a leader finds, and whoever is found differs from more than half of the voters, who agree with each
//! other. Checksums of another format, or of another index, are never compared. A server that tells none is not judged.

use crate::checksum::{Checksum, FORMAT};
use crate::core::Core;
use crate::outbox::Outbox;
use crate::raft::message::{MessageKind, PeerMessage};
use bytes::Bytes;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::wire;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often a leader asks those who have not answered, and tells those who were found.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a leader waits for answers: a checkpoint may wait for a slow disk. Then it judges by what it has.
const ANSWER_WINDOW: Duration = Duration::from_secs(60);
/// How many of its newest checksums a server remembers.
const CHECKSUMS_KEPT: usize = 4;
/// The longest encoded [`Report`].
const MAX_REPORT_BYTES: usize = 32;

/// What a server tells of its state at the index of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// See [`FORMAT`].
    pub format: u32,
    /// The checksum of its checkpoint.
    pub checksum: Checksum,
}

/// What a comparison has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Finding {
    /// Nobody differs from anybody.
    #[default]
    Alike,
    /// These differ from a majority that agrees.
    Corrupt(BTreeSet<ServerId>),
    /// Some differ, and no majority agrees.
    Undecided,
}

impl Finding {
    fn is_corrupt(&self, server: ServerId) -> bool {
        matches!(self, Self::Corrupt(servers) if servers.contains(&server))
    }
}

/// Compares what servers told of one index.
pub fn compare(voters: &[ServerId], reports: &BTreeMap<ServerId, Report>) -> Finding {
    let votes = |report| voters.iter().filter(|voter| reports.get(voter) == Some(report)).count();
    let differ = |one: &Report, other: &Report| one.format == other.format && one.checksum != other.checksum;
    if let Some(right) = reports.values().find(|report| votes(report) > voters.len() / 2) {
        let wrong = reports.iter().filter(|(_, report)| differ(report, right));
        let wrong: BTreeSet<_> = wrong.map(|(server, _)| *server).collect();
        return if wrong.is_empty() { Finding::Alike } else { Finding::Corrupt(wrong) };
    }
    let differs_from_some = |one| reports.values().any(|other| differ(one, other));
    if reports.values().any(differs_from_some) { Finding::Undecided } else { Finding::Alike }
}

/// What a server knows of the checks.
#[derive(Debug, Default)]
pub struct CorruptionChecks {
    /// The index of the newest check that was applied here, and when.
    last: (LogIndex, Time),
    /// What this server's newest checkpoints at such indexes came to.
    own: BTreeMap<LogIndex, Report>,
    /// The comparison that this leader makes.
    comparison: Option<Comparison>,
    /// At which check a leader found this server's state to be another one than the majority's.
    found_corrupt: Option<LogIndex>,
    /// Whether this leader begins no check.
    is_paused: bool,
}

#[derive(Debug)]
struct Comparison {
    index: LogIndex,
    began: Time,
    asked: Option<Time>,
    reports: BTreeMap<ServerId, Report>,
    /// Whether every member has answered.
    are_all: bool,
    /// That of the check before, until this one has its own.
    finding: Finding,
}

impl CorruptionChecks {
    /// At which check a leader found this server's state to be another one than the majority's.
    pub fn found_corrupt(&self) -> Option<LogIndex> {
        self.found_corrupt
    }

    /// What this leader's newest comparison has shown so far.
    pub fn finding(&self) -> &Finding {
        self.comparison.as_ref().map_or(&Finding::Alike, |comparison| &comparison.finding)
    }

    /// How many servers have told the leader their checksum at the newest check.
    pub fn reported(&self) -> usize {
        self.comparison.as_ref().map_or(0, |comparison| comparison.reports.len())
    }

    /// The index of the newest check, where all of several servers have told this leader the same.
    pub fn compared(&self) -> LogIndex {
        let are_alike = |comparison: &&Comparison| comparison.are_all && comparison.finding == Finding::Alike;
        self.comparison.as_ref().filter(are_alike).map_or(LogIndex(0), |comparison| comparison.index)
    }

    /// Whether this leader's newest comparison has shown that a server's state is another one than the majority's.
    pub(crate) fn is_corrupt(&self, server: ServerId) -> bool {
        self.finding().is_corrupt(server)
    }

    /// A check was applied.
    pub(crate) fn applied(&mut self, now: Time, index: LogIndex) {
        self.last = (index, now);
    }

    /// The checkpoint at the index of a check is on disk.
    pub(crate) fn summed(&mut self, index: LogIndex, checksum: Checksum) {
        self.own.insert(index, Report { format: FORMAT, checksum });
        while self.own.len() > CHECKSUMS_KEPT {
            self.own.pop_first();
        }
    }

    /// This server no longer leads.
    pub(crate) fn step_down(&mut self) {
        self.comparison = None;
    }

    /// Another server answered.
    fn take_report(&mut self, server: ServerId, index: LogIndex, report: Report) {
        if let Some(comparison) = self.comparison.as_mut().filter(|comparison| comparison.index == index) {
            comparison.reports.insert(server, report);
        }
    }
}

impl Comparison {
    fn of(index: LogIndex, now: Time, former: Option<Self>) -> Self {
        let finding = former.map_or(Finding::Alike, |former| former.finding);
        Self { index, began: now, asked: None, reports: BTreeMap::new(), are_all: false, finding }
    }

    /// What these members' answers show that was not known before. Before all have answered only a majority counts.
    fn judge(&mut self, now: Time, voters: &[ServerId], members: &[ServerId]) -> Option<&Finding> {
        self.reports.retain(|server, _| members.contains(server));
        self.are_all = members.iter().all(|member| self.reports.contains_key(member));
        let is_over = now.since(self.began) > ANSWER_WINDOW && self.reports.len() > 1;
        let finding = compare(voters, &self.reports);
        let is_sure = self.are_all || is_over || matches!(finding, Finding::Corrupt(_));
        if !is_sure || finding == self.finding {
            return None;
        }
        self.finding = finding;
        Some(&self.finding)
    }

    /// Whether it is time to ask and to tell.
    fn may_ask(&mut self, now: Time) -> bool {
        let may = self.asked.is_none_or(|asked| now.since(asked) >= ASK_INTERVAL);
        if may {
            self.asked = Some(now);
        }
        may
    }

    /// What a member is to be told and asked now.
    fn messages_for(&self, now: Time, server: ServerId) -> impl Iterator<Item = (ServerId, MessageKind)> {
        let is_asked = !self.reports.contains_key(&server) && now.since(self.began) <= ANSWER_WINDOW;
        let is_told = self.finding.is_corrupt(server);
        let told = is_told.then_some((server, MessageKind::Corrupt));
        told.into_iter().chain(is_asked.then_some((server, MessageKind::Checksum)))
    }
}

impl Core {
    /// What is known of this server's state, and of the others'.
    pub fn corruption_checks(&self) -> &CorruptionChecks {
        &self.corruption
    }

    /// While members run different versions of the program a leader begins no check: an older one may not know what that
    /// is, and different versions may well come to different states.
    pub fn pause_corruption_checks(&mut self, pause: bool) {
        self.corruption.is_paused = pause;
    }

    /// Once a tick, where this server leads and serves.
    pub(crate) fn check_for_corruption(&mut self, now: Time, outbox: &mut Outbox) {
        let members = self.engine.membership().all();
        let (last, applied_at) = self.corruption.last;
        let is_due = now.since(applied_at) >= self.config.corruption_check_interval && self.applied.0 > last;
        let may_begin = members.len() > 1 && !self.corruption.is_paused;
        if is_due && may_begin && !self.is_on_its_way(&Command::CorruptionCheck) {
            self.gather_own(Command::CorruptionCheck);
        }
        if last != LogIndex(0) {
            self.compare_checksums(now, last, &members, outbox);
        }
    }

    /// Goes on with the comparison of the newest check, or begins it.
    fn compare_checksums(&mut self, now: Time, last: LogIndex, members: &[ServerId], outbox: &mut Outbox) {
        let me = self.config.id;
        let checks = &mut self.corruption;
        let former = checks.comparison.take_if(|comparison| comparison.index != last);
        let comparison = checks.comparison.get_or_insert_with(|| Comparison::of(last, now, former));
        comparison.reports.extend(checks.own.get(&last).map(|report| (me, *report)));
        let membership = self.engine.membership();
        if !membership.is_joint()
            && let Some(finding) = comparison.judge(now, &membership.voters, members)
        {
            tell_people(last, finding);
            if finding.is_corrupt(me) {
                checks.found_corrupt = Some(last);
            }
        }
        if comparison.may_ask(now) {
            let others = members.iter().copied().filter(|member| *member != me);
            let said = others.flat_map(|to| comparison.messages_for(now, to));
            let term = self.applied.1;
            let message =
                |(to, kind)| (to, PeerMessage { term, index: last, ..PeerMessage::new(kind, me, to) });
            outbox.messages.extend(said.map(message));
        }
    }

    /// Takes a message of the check; whether it was one.
    pub(crate) fn corruption_message(&mut self, message: &PeerMessage, outbox: &mut Outbox) -> bool {
        let (from, index) = (message.from, message.index);
        let is_of_leader = self.engine.leader() == Some(from);
        match message.kind {
            MessageKind::Checksum if is_of_leader => {
                if let Some(report) = self.corruption.own.get(&index) {
                    let context = Bytes::from(wire::encode(report));
                    let answer = PeerMessage::new(MessageKind::ChecksumResponse, self.config.id, from);
                    outbox
                        .messages
                        .push((from, PeerMessage { index, term: self.applied.1, context, ..answer }));
                }
            }
            MessageKind::ChecksumResponse => match wire::decode::<Report, MAX_REPORT_BYTES>(&message.context)
            {
                Ok(report) => self.corruption.take_report(from, index, report),
                Err(error) => tracing::warn!(%from, "a checksum that cannot be read: {error}"),
            },
            MessageKind::Corrupt if is_of_leader && self.corruption.found_corrupt.is_none() => {
                self.corruption.found_corrupt = Some(index);
            }
            MessageKind::Checksum | MessageKind::Corrupt => {}
            _ => return false,
        }
        true
    }
}

fn tell_people(index: LogIndex, finding: &Finding) {
    match finding {
        Finding::Alike => {
            tracing::info!(%index, "corruption check: the states of all servers are alike again");
        }
        Finding::Corrupt(servers) => {
            tracing::error!(
                %index, ?servers,
                "corruption check: the state of these servers differs from that of a majority, which agrees; they answer no \
                 agent any more. Stop each of them, empty its data folder and start it: it joins as a new server"
            );
        }
        Finding::Undecided => {
            tracing::error!(
                %index,
                "corruption check: the states of the servers differ, and no majority agrees, so nobody knows whose is right: \
                 all go on. Save a backup of each (`lockmesh operator snapshot save --stale` beside it), decide for one, \
                 and empty the data folders of the others, one after the other: they join as new servers"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Comparison, Finding, Report, compare};
    use crate::checksum::Checksum;
    use lockmesh_protocol::id::{LogIndex, ServerId};
    use lockmesh_protocol::time::Time;
    use std::collections::BTreeMap;
    use std::time::Duration;

    const THREE: [ServerId; 3] = [ServerId(1), ServerId(2), ServerId(3)];

    fn report(format: u32, row: &str) -> Report {
        let mut checksum = Checksum::default();
        checksum.add(row.as_bytes());
        Report { format, checksum }
    }

    /// What comes of these reports, of servers 1, 2 and so on.
    fn finding(voters: &[ServerId], reports: &[Report]) -> Finding {
        compare(voters, &(1..).map(ServerId).zip(reports.iter().copied()).collect())
    }

    fn corrupt(servers: &[u64]) -> Finding {
        Finding::Corrupt(servers.iter().copied().map(ServerId).collect())
    }

    #[test]
    fn two_that_agree_condemn_the_third() {
        let (a, b) = (report(1, "a"), report(1, "b"));
        assert_eq!(finding(&THREE, &[a, a, a]), Finding::Alike);
        assert_eq!(finding(&THREE, &[a, a, b]), corrupt(&[3]));
        assert_eq!(finding(&THREE, &[b, a, a]), corrupt(&[1]), "whoever leads");
        assert_eq!(finding(&THREE, &[a, a]), Finding::Alike, "who tells nothing is not judged");
    }

    #[test]
    fn without_a_majority_nobody_is_condemned() {
        let [a, b, c] = ["a", "b", "c"].map(|row| report(1, row));
        assert_eq!(finding(&THREE[..2], &[a, b]), Finding::Undecided);
        assert_eq!(finding(&THREE, &[a, b]), Finding::Undecided);
        assert_eq!(finding(&THREE, &[a, b, c]), Finding::Undecided);
        let five: Vec<_> = (1..=5).map(ServerId).collect();
        assert_eq!(finding(&five, &[a, a, b, b]), Finding::Undecided);
        assert_eq!(finding(&five, &[a, a, b, b, a]), corrupt(&[3, 4]));
    }

    #[test]
    fn a_learner_is_judged_and_has_no_vote() {
        let (a, b) = (report(1, "a"), report(1, "b"));
        assert_eq!(finding(&THREE, &[a, a, a, b]), corrupt(&[4]));
        assert_eq!(finding(&THREE, &[a, b, b, b]), corrupt(&[1]));
        assert_eq!(finding(&THREE[..2], &[a, b, b]), Finding::Undecided);
    }

    #[test]
    fn another_format_is_compared_with_its_own_kind_only() {
        let (old, new, other) = (report(1, "a"), report(2, "a"), report(2, "b"));
        assert_eq!(finding(&THREE, &[old, old, new]), Finding::Alike);
        assert_eq!(finding(&THREE, &[old, new, new]), Finding::Alike);
        assert_eq!(finding(&THREE, &[old, new, other]), Finding::Undecided);
    }

    #[test]
    fn only_a_majority_is_believed_before_all_have_answered() {
        let (a, b) = (report(1, "a"), report(1, "b"));
        let mut comparison = Comparison::of(LogIndex(7), Time(0), None);
        let told = |reports: &[Report]| -> BTreeMap<_, _> {
            THREE.into_iter().zip(reports.iter().copied()).collect()
        };
        comparison.reports = told(&[a, b]);
        assert_eq!(comparison.judge(Time(0), &THREE, &THREE), None, "the third may agree with either");
        let late = Time(0) + Duration::from_secs(61);
        assert_eq!(comparison.judge(late, &THREE, &THREE), Some(&Finding::Undecided), "it never came");
        comparison.reports = told(&[a, b, a]);
        assert_eq!(comparison.judge(late, &THREE, &THREE), Some(&corrupt(&[2])));
        assert_eq!(comparison.judge(late, &THREE, &THREE), None, "that is no news");
        let mut next = Comparison::of(LogIndex(9), late, Some(comparison));
        next.reports = told(&[a]);
        assert_eq!(next.judge(late, &THREE, &THREE), None);
        assert_eq!(next.finding, corrupt(&[2]), "until the next check says something else");
        next.reports = told(&[a, a, a]);
        assert_eq!(next.judge(late, &THREE, &THREE), Some(&Finding::Alike));
    }
}
