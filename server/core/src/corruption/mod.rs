//! The corruption check: servers that applied the same log must hold the same state. The check
//! finds a server whose state differs.
//!
//! ```text
//! leader ── CorruptionCheck (entry) ───> every server: a checkpoint of that index
//!        ── Checksum ──────────────────> each member, until it replies
//!        <───────── ChecksumResponse ── checksum, format, whether it is a copy
//!        ── Corrupt ───────────────────> each server that differs from a majority of the voters
//! ```
//!
//! A snapshot carries the state of its sender, right or wrong. A server that installed one holds a
//! copy, which does not count as a vote until a check has confirmed it. Otherwise a corrupt leader
//! and the servers that fetched its state would be the majority that condemns a correct server.
//! `Checksum` also carries the newest check at which the receiver was confirmed: a check at which
//! it agreed with a majority without copies, or at which all members agreed. From then on each
//! server's state is evidence of its own.
//!
//! A server that is reported as corrupt stops leading and serving agents, but still stores entries
//! and votes: its log is intact. To recover it, empty its data folder. If no majority agrees, the
//! check cannot decide which state is right: it raises an alarm, and an operator must decide.
//!
//! **Invariants:** only a leader reports a corrupt server. A corrupt server differs from more than
//! half of the voters; these agree with each other, are at least two, and hold no copies. Checksums
//! of different formats or indexes are never compared. A server that sends no checksum is not
//! judged.

mod exchange;

pub(crate) use exchange::{CorruptionInput, is_unconfirmed};

use crate::durability::checksum::Checksum;
use crate::raft::message::MessageKind;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Interval at which a leader requests missing checksums and notifies corrupt servers.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum time that a leader waits for checksums, since a checkpoint may wait for a slow disk.
/// Then it judges by the reports that it has.
const ANSWER_WINDOW: Duration = Duration::from_secs(60);
/// The number of its newest checksums that a server keeps.
const CHECKSUMS_KEPT: usize = 4;
/// A server's report about its state at the index of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// See [`FORMAT`].
    pub format: u32,
    /// The checksum of the server's checkpoint.
    pub checksum: Checksum,
    /// `true` if the state was fetched from another server and no check has confirmed it yet.
    pub is_copy: bool,
}

impl Report {
    fn is_same(&self, other: &Self) -> bool {
        (self.format, self.checksum) == (other.format, other.checksum)
    }

    fn differs(&self, other: &Self) -> bool {
        // Two formats give different checksums for the same rows, which proves nothing.
        self.format == other.format && self.checksum != other.checksum
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Finding {
    /// No two servers differ.
    #[default]
    Alike,
    /// These servers differ from a majority that agrees.
    Corrupt(BTreeSet<ServerId>),
    /// Some servers differ, and no majority agrees.
    Undecided,
}

impl Finding {
    fn is_corrupt(&self, server: ServerId) -> bool {
        matches!(self, Self::Corrupt(servers) if servers.contains(&server))
    }
}

/// Compares the servers' reports about one index.
pub fn compare(voters: &[ServerId], reports: &BTreeMap<ServerId, Report>) -> Finding {
    if let Some(right) = majority(voters, reports) {
        let wrong = reports.iter().filter(|(_, report)| report.differs(right));
        let wrong: BTreeSet<_> = wrong.map(|(server, _)| *server).collect();
        return if wrong.is_empty() { Finding::Alike } else { Finding::Corrupt(wrong) };
    }
    let differs_from_some = |one: &Report| reports.values().any(|other| one.differs(other));
    if reports.values().any(differs_from_some) { Finding::Undecided } else { Finding::Alike }
}

/// Returns the report on which more than half of the voters agree, copies excluded. A single report
/// is no majority: a corrupt single-voter quorum would condemn every server that joins it.
fn majority<'a>(voters: &[ServerId], reports: &'a BTreeMap<ServerId, Report>) -> Option<&'a Report> {
    // Learners are judged but do not vote; a copy repeats its sender's state.
    let own = || voters.iter().filter_map(|voter| reports.get(voter)).filter(|report| !report.is_copy);
    let votes = |report: &Report| own().filter(|other| other.is_same(report)).count();
    // Of all voters, not of those that replied: two silent ones may agree with each other.
    reports.values().find(|report| votes(report) > (voters.len() / 2).max(1))
}

/// A server's knowledge about corruption checks.
#[derive(Debug)]
pub struct CorruptionChecks {
    /// The interval between two checks. None begins if nothing was written since the last one.
    interval: Duration,
    /// The index of the newest check that was applied on this server, and the time.
    last: (LogIndex, Time),
    /// The checksums of this server's newest checkpoints at the indexes of checks.
    own: BTreeMap<LogIndex, Checksum>,
    /// The comparison that this leader makes.
    comparison: Option<Comparison>,
    /// The newest check at which each server's state was confirmed, as far as this leader knows.
    confirmed: BTreeMap<ServerId, LogIndex>,
    /// The check at which a leader found that this server's state differs from the majority's.
    found_corrupt: Option<LogIndex>,
    /// `true` if the corruption was known when this server started.
    was_found: bool,
    /// `true` if this leader starts no checks.
    is_paused: bool,
}

#[derive(Debug)]
struct Comparison {
    index: LogIndex,
    began: Time,
    asked: Option<Time>,
    reports: BTreeMap<ServerId, Report>,
    /// `true` if a report arrived since the last comparison.
    has_news: bool,
    /// `true` if every member has replied.
    are_all: bool,
    /// The finding; the previous check's until this check has its own.
    finding: Finding,
}

impl CorruptionChecks {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            last: Default::default(),
            own: BTreeMap::new(),
            comparison: None,
            confirmed: BTreeMap::new(),
            found_corrupt: None,
            was_found: false,
            is_paused: false,
        }
    }

    /// Records that this server's state was found corrupt before it started.
    pub(crate) fn found_at_start(&mut self) {
        self.was_found = true;
    }

    /// Pauses or resumes the start of checks by this leader.
    pub(crate) fn pause(&mut self, pause: bool) {
        self.is_paused = pause;
    }

    /// Returns the check at which a leader found that this server's state differs from the
    /// majority's.
    pub fn found_corrupt(&self) -> Option<LogIndex> {
        self.found_corrupt
    }

    /// Returns `true` if this server's state is known to be corrupt, so it serves no requests.
    pub(crate) fn is_known_here(&self) -> bool {
        self.was_found || self.found_corrupt.is_some()
    }

    /// Returns the current finding of this leader's newest comparison.
    pub fn finding(&self) -> &Finding {
        self.comparison.as_ref().map_or(&Finding::Alike, |comparison| &comparison.finding)
    }

    /// Returns the number of servers that have reported their checksum at the newest check.
    pub fn reported(&self) -> usize {
        self.comparison.as_ref().map_or(0, |comparison| comparison.reports.len())
    }

    /// Returns the index of the newest check, if all members have reported the same state.
    pub fn compared(&self) -> LogIndex {
        let are_alike = |comparison: &&Comparison| comparison.are_all && comparison.finding == Finding::Alike;
        self.comparison.as_ref().filter(are_alike).map_or(LogIndex(0), |comparison| comparison.index)
    }

    /// Returns `true` if this leader's newest comparison found that a server's state differs from
    /// the majority's.
    pub(crate) fn is_corrupt(&self, server: ServerId) -> bool {
        self.finding().is_corrupt(server)
    }

    /// Records an applied check.
    pub(crate) fn applied(&mut self, now: Time, index: LogIndex) {
        // On every server, so that the next leader continues with this check.
        self.last = (index, now);
    }

    /// Records the checksum of a durable checkpoint at the index of a check.
    pub(crate) fn summed(&mut self, index: LogIndex, checksum: Checksum) {
        self.own.insert(index, checksum);
        while self.own.len() > CHECKSUMS_KEPT {
            self.own.pop_first();
        }
        self.comparison.iter_mut().for_each(|comparison| comparison.has_news = true);
    }

    /// Drops the comparison when this server steps down.
    pub(crate) fn step_down(&mut self) {
        self.comparison = None;
    }

    /// Records another server's report.
    fn receive_report(&mut self, server: ServerId, index: LogIndex, report: Report) {
        if let Some(comparison) = self.comparison.as_mut().filter(|comparison| comparison.index == index) {
            comparison.reports.insert(server, report);
            comparison.has_news = true;
        }
    }
}

impl Comparison {
    fn of(index: LogIndex, now: Time, former: Option<Self>) -> Self {
        // A corrupt server stays corrupt until the next comparison shows otherwise.
        let finding = former.map_or(Finding::Alike, |former| former.finding);
        let reports = BTreeMap::new();
        Self { index, began: now, asked: None, reports, has_news: false, are_all: false, finding }
    }

    /// Returns the finding if it is new. Until all members have replied, only a majority counts.
    fn judge(&mut self, now: Time, voters: &[ServerId], members: &[ServerId]) -> Option<&Finding> {
        self.reports.retain(|server, _| members.contains(server));
        self.are_all = members.iter().all(|member| self.reports.contains_key(member));
        // A server that is down must not prevent the comparison of the others.
        let is_over = now.since(self.began) > ANSWER_WINDOW && self.reports.len() > 1;
        let finding = compare(voters, &self.reports);
        // `Alike` and `Undecided` can change with the next report; a majority that agrees cannot.
        let is_sure = self.are_all || is_over || matches!(finding, Finding::Corrupt(_));
        if !is_sure || finding == self.finding {
            return None;
        }
        self.finding = finding;
        Some(&self.finding)
    }

    /// Returns the servers whose states count as confirmed: those that agree with a majority, or
    /// all if all agree. They vote in later checks.
    fn confirmed(&self, voters: &[ServerId]) -> impl Iterator<Item = ServerId> {
        let all = self
            .reports
            .values()
            .next()
            .filter(|first| self.are_all && self.reports.values().all(|report| report.is_same(first)));
        // If all servers agree, no other state remains for comparison, even if some are copies.
        let right = majority(voters, &self.reports).or(all);
        let is_right = move |report: &Report| right.is_some_and(|right| report.is_same(right));
        self.reports.iter().filter(move |(_, report)| is_right(report)).map(|(server, _)| *server)
    }

    /// Returns `true` if requests and notifications are due.
    fn may_ask(&mut self, now: Time) -> bool {
        let may = self.asked.is_none_or(|asked| now.since(asked) >= ASK_INTERVAL);
        if may {
            self.asked = Some(now);
        }
        may
    }

    /// Returns the messages that are due to a member.
    fn messages_for(&self, now: Time, server: ServerId) -> impl Iterator<Item = (ServerId, MessageKind)> {
        let is_asked = !self.reports.contains_key(&server) && now.since(self.began) <= ANSWER_WINDOW;
        let is_corrupt = self.finding.is_corrupt(server);
        let finding = is_corrupt.then_some((server, MessageKind::Corrupt));
        finding.into_iter().chain(is_asked.then_some((server, MessageKind::Checksum)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Comparison, Finding, Report, compare};
    use crate::durability::checksum::Checksum;
    use lockmesh_protocol::id::{LogIndex, ServerId};
    use lockmesh_protocol::time::Time;
    use std::collections::BTreeMap;
    use std::time::Duration;

    const THREE: [ServerId; 3] = [ServerId(1), ServerId(2), ServerId(3)];

    fn report(format: u32, row: &str) -> Report {
        let mut checksum = Checksum::default();
        checksum.add(row.as_bytes());
        Report { format, checksum, is_copy: false }
    }

    fn copy_of(report: Report) -> Report {
        Report { is_copy: true, ..report }
    }

    /// The finding for reports of servers 1, 2 and so on.
    fn finding(voters: &[ServerId], reports: &[Report]) -> Finding {
        compare(voters, &(1..).map(ServerId).zip(reports.iter().copied()).collect())
    }

    fn corrupt(servers: &[u64]) -> Finding {
        Finding::Corrupt(servers.iter().copied().map(ServerId).collect())
    }

    #[test]
    fn minority_checksum_is_corrupt() {
        let (a, b) = (report(1, "a"), report(1, "b"));
        assert_eq!(finding(&THREE, &[a, a, a]), Finding::Alike);
        assert_eq!(finding(&THREE, &[a, a, b]), corrupt(&[3]));
        assert_eq!(finding(&THREE, &[b, a, a]), corrupt(&[1]), "also if the leader is corrupt");
        assert_eq!(finding(&THREE, &[a, a]), Finding::Alike, "a server without a report is not judged");
    }

    #[test]
    fn undecided_without_majority() {
        let [a, b, c] = ["a", "b", "c"].map(|row| report(1, row));
        assert_eq!(finding(&THREE[..1], &[b, a]), Finding::Undecided, "a single voter is no majority");
        assert_eq!(finding(&THREE[..1], &[a, a]), Finding::Alike);
        assert_eq!(finding(&THREE[..2], &[a, b]), Finding::Undecided);
        assert_eq!(finding(&THREE, &[a, b]), Finding::Undecided);
        assert_eq!(finding(&THREE, &[a, b, c]), Finding::Undecided);
        let five: Vec<_> = (1..=5).map(ServerId).collect();
        assert_eq!(finding(&five, &[a, a, b, b]), Finding::Undecided);
        assert_eq!(finding(&five, &[a, a, b, b, a]), corrupt(&[3, 4]));
    }

    #[test]
    fn learner_is_compared_without_vote() {
        let (a, b) = (report(1, "a"), report(1, "b"));
        assert_eq!(finding(&THREE, &[a, a, a, b]), corrupt(&[4]));
        assert_eq!(finding(&THREE, &[a, b, b, b]), corrupt(&[1]));
        assert_eq!(finding(&THREE[..2], &[a, b, b]), Finding::Undecided);
    }

    #[test]
    fn unconfirmed_copy_has_no_vote() {
        let (a, b) = (report(1, "a"), report(1, "b"));
        assert_eq!(finding(&THREE, &[b, copy_of(b), a]), Finding::Undecided, "a copy does not count");
        assert_eq!(finding(&THREE, &[a, a, copy_of(b)]), corrupt(&[3]));
        assert_eq!(finding(&THREE, &[a, copy_of(a), copy_of(a)]), Finding::Alike);
        assert_eq!(finding(&THREE, &[b, copy_of(b), a, a]), Finding::Undecided);
    }

    #[test]
    fn majority_or_unanimity_confirms() {
        let (a, b) = (report(1, "a"), report(1, "b"));
        let confirmed = |reports: &[Report]| -> Vec<u64> {
            let reports: BTreeMap<_, _> = THREE.into_iter().zip(reports.iter().copied()).collect();
            let are_all = reports.len() == 3;
            let comparison = Comparison { reports, are_all, ..Comparison::of(LogIndex(7), Time(0), None) };
            comparison.confirmed(&THREE).map(|server| server.0).collect()
        };
        assert_eq!(confirmed(&[a, a]), [1, 2], "two are a majority");
        assert_eq!(confirmed(&[a, a, copy_of(a)]), [1, 2, 3]);
        assert_eq!(confirmed(&[a, b, a]), [1, 3]);
        assert_eq!(
            confirmed(&[a, copy_of(a), copy_of(a)]),
            [1, 2, 3],
            "all agree, so copies count from here on"
        );
        assert!(confirmed(&[a, copy_of(a)]).is_empty(), "the third may differ");
        assert!(confirmed(&[a, copy_of(a), b]).is_empty());
    }

    #[test]
    fn formats_compare_separately() {
        let (old, new, other) = (report(1, "a"), report(2, "a"), report(2, "b"));
        assert_eq!(finding(&THREE, &[old, old, new]), Finding::Alike);
        assert_eq!(finding(&THREE, &[old, new, new]), Finding::Alike);
        assert_eq!(finding(&THREE, &[old, old, other]), Finding::Alike, "another format is not comparable");
        assert_eq!(finding(&THREE, &[old, new, other]), Finding::Undecided);
    }

    #[test]
    fn partial_reports_require_majority() {
        let (a, b) = (report(1, "a"), report(1, "b"));
        let mut comparison = Comparison::of(LogIndex(7), Time(0), None);
        let told = |reports: &[Report]| -> BTreeMap<_, _> {
            THREE.into_iter().zip(reports.iter().copied()).collect()
        };
        comparison.reports = told(&[a, b]);
        assert_eq!(comparison.judge(Time(0), &THREE, &THREE), None, "the third may agree with either");
        let late = Time(0) + Duration::from_secs(61);
        assert_eq!(comparison.judge(late, &THREE, &THREE), Some(&Finding::Undecided), "the window is over");
        comparison.reports = told(&[a, b, a]);
        assert_eq!(comparison.judge(late, &THREE, &THREE), Some(&corrupt(&[2])));
        assert_eq!(comparison.judge(late, &THREE, &THREE), None, "the finding is unchanged");
        let mut next = Comparison::of(LogIndex(9), late, Some(comparison));
        next.reports = told(&[a]);
        assert_eq!(next.judge(late, &THREE, &THREE), None);
        assert_eq!(next.finding, corrupt(&[2]), "kept until the next check differs");
        next.reports = told(&[a, a, a]);
        assert_eq!(next.judge(late, &THREE, &THREE), Some(&Finding::Alike));
    }
}
