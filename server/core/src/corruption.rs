//! The corruption check: servers that applied the same log must hold the same state, and one that
//! does not is found.
//!
//! ```text
//! leader ── CorruptionCheck, an entry ──> every server: a checkpoint of exactly that index, and its checksum
//!        ── Checksum ──────────────────> each member, until it has answered
//!        <───────── ChecksumResponse ── its checksum there, the format of it, and whether it is a copy
//!        ── Corrupt ───────────────────> whoever differs from a majority of the voters
//! ```
//!
//! A snapshot carries whatever its giver holds. So the state of a server that took one in bears
//! witness of nothing: it is a copy, and is not counted, until a check has confirmed it. Otherwise
//! a corrupt leader and the servers that it gave its state would be the majority that condemns a
//! server that is right. `Checksum` also says up to which check the receiver is confirmed: where a
//! majority that is no copy holds the same, or all members do, from where on each goes on by
//! itself.
//!
//! Whoever is told leads no more and answers no agent, but stores and votes on: its log is as good
//! as ever. The way back is an emptied data folder. Where no majority agrees nobody knows who is
//! right, and people must decide: that is an alarm.
//!
//! **Invariants:** only a leader finds, and whoever is found differs from more than half of the
//! voters, who agree with each other, are two at least, and none of whom is a copy. Checksums of
//! another format, or of another index, are never compared. A server that tells none is not judged.

mod exchange;

use crate::checksum::Checksum;
use crate::raft::message::MessageKind;
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often a leader asks those who have not answered, and tells those who were found.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a leader waits for answers: a checkpoint may wait for a slow disk. Then it judges by
/// what it has.
const ANSWER_WINDOW: Duration = Duration::from_secs(60);
/// How many of its newest checksums a server remembers.
const CHECKSUMS_KEPT: usize = 4;
/// What a server tells of its state at the index of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// See [`FORMAT`].
    pub format: u32,
    /// The checksum of its checkpoint.
    pub checksum: Checksum,
    /// Whether its state came from another server, and no check has confirmed it yet.
    pub is_copy: bool,
}

impl Report {
    fn is_same(&self, other: &Self) -> bool {
        (self.format, self.checksum) == (other.format, other.checksum)
    }

    fn differs(&self, other: &Self) -> bool {
        // Two formats sum up the same rows differently: that shows nothing.
        self.format == other.format && self.checksum != other.checksum
    }
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
    if let Some(right) = majority(voters, reports) {
        let wrong = reports.iter().filter(|(_, report)| report.differs(right));
        let wrong: BTreeSet<_> = wrong.map(|(server, _)| *server).collect();
        return if wrong.is_empty() { Finding::Alike } else { Finding::Corrupt(wrong) };
    }
    let differs_from_some = |one: &Report| reports.values().any(|other| one.differs(other));
    if reports.values().any(differs_from_some) { Finding::Undecided } else { Finding::Alike }
}

/// What more than half of the voters hold, each by its own work. The word of one alone is no
/// majority: a quorum of one voter that is corrupt would condemn whoever joins it.
fn majority<'a>(voters: &[ServerId], reports: &'a BTreeMap<ServerId, Report>) -> Option<&'a Report> {
    // Learners are judged and do not judge; a copy repeats what its giver said.
    let own = || voters.iter().filter_map(|voter| reports.get(voter)).filter(|report| !report.is_copy);
    let votes = |report: &Report| own().filter(|other| other.is_same(report)).count();
    // Of all voters, not of those who answered: two silent ones may agree with each other.
    reports.values().find(|report| votes(report) > (voters.len() / 2).max(1))
}

/// What a server knows of the checks.
#[derive(Debug, Default)]
pub struct CorruptionChecks {
    /// The index of the newest check that was applied here, and when.
    last: (LogIndex, Time),
    /// What this server's newest checkpoints at such indexes came to.
    own: BTreeMap<LogIndex, Checksum>,
    /// The comparison that this leader makes.
    comparison: Option<Comparison>,
    /// The newest check at which each server's state was confirmed, as far as this server knows as
    /// a leader.
    confirmed: BTreeMap<ServerId, LogIndex>,
    /// At which check a leader found this server's state to be another one than the majority's.
    found_corrupt: Option<LogIndex>,
    /// Whether that was known when this server was started.
    was_found: bool,
    /// Whether this leader begins no check.
    is_paused: bool,
}

#[derive(Debug)]
struct Comparison {
    index: LogIndex,
    began: Time,
    asked: Option<Time>,
    reports: BTreeMap<ServerId, Report>,
    /// Whether something came in since it was looked at.
    has_news: bool,
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

    /// Whether this server's state is known to be corrupt, so that it answers nobody.
    pub(crate) fn is_known_here(&self) -> bool {
        self.was_found || self.found_corrupt.is_some()
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

    /// Whether this leader's newest comparison has shown that a server's state is another one than
    /// the majority's.
    pub(crate) fn is_corrupt(&self, server: ServerId) -> bool {
        self.finding().is_corrupt(server)
    }

    /// A check was applied.
    pub(crate) fn applied(&mut self, now: Time, index: LogIndex) {
        // On every server, so that whoever leads next goes on with this check.
        self.last = (index, now);
    }

    /// The checkpoint at the index of a check is on disk.
    pub(crate) fn summed(&mut self, index: LogIndex, checksum: Checksum) {
        self.own.insert(index, checksum);
        while self.own.len() > CHECKSUMS_KEPT {
            self.own.pop_first();
        }
        self.comparison.iter_mut().for_each(|comparison| comparison.has_news = true);
    }

    /// This server no longer leads.
    pub(crate) fn step_down(&mut self) {
        self.comparison = None;
    }

    /// Another server answered.
    fn take_report(&mut self, server: ServerId, index: LogIndex, report: Report) {
        if let Some(comparison) = self.comparison.as_mut().filter(|comparison| comparison.index == index) {
            comparison.reports.insert(server, report);
            comparison.has_news = true;
        }
    }
}

impl Comparison {
    fn of(index: LogIndex, now: Time, former: Option<Self>) -> Self {
        // A server that was found corrupt stays so until the next comparison shows something else.
        let finding = former.map_or(Finding::Alike, |former| former.finding);
        let reports = BTreeMap::new();
        Self { index, began: now, asked: None, reports, has_news: false, are_all: false, finding }
    }

    /// What these members' answers show that was not known before. Before all have answered only a
    /// majority counts.
    fn judge(&mut self, now: Time, voters: &[ServerId], members: &[ServerId]) -> Option<&Finding> {
        self.reports.retain(|server, _| members.contains(server));
        self.are_all = members.iter().all(|member| self.reports.contains_key(member));
        // A server that is down must not keep the others from being compared.
        let is_over = now.since(self.began) > ANSWER_WINDOW && self.reports.len() > 1;
        let finding = compare(voters, &self.reports);
        // Alike or undecided can change with the next answer; a majority that agrees cannot.
        let is_sure = self.are_all || is_over || matches!(finding, Finding::Corrupt(_));
        if !is_sure || finding == self.finding {
            return None;
        }
        self.finding = finding;
        Some(&self.finding)
    }

    /// Whose states are right as far as anybody can know, so that they can bear witness from here
    /// on: those that a majority holds too, or all where all hold the same.
    fn confirmed(&self, voters: &[ServerId]) -> impl Iterator<Item = ServerId> {
        let all = self
            .reports
            .values()
            .next()
            .filter(|first| self.are_all && self.reports.values().all(|report| report.is_same(first)));
        // Where all hold the same there is nobody left who could know better, copies or not.
        let right = majority(voters, &self.reports).or(all);
        let is_right = move |report: &Report| right.is_some_and(|right| report.is_same(right));
        self.reports.iter().filter(move |(_, report)| is_right(report)).map(|(server, _)| *server)
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
        Report { format, checksum, is_copy: false }
    }

    fn copy_of(report: Report) -> Report {
        Report { is_copy: true, ..report }
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
        assert_eq!(finding(&THREE[..1], &[b, a]), Finding::Undecided, "one alone knows no better");
        assert_eq!(finding(&THREE[..1], &[a, a]), Finding::Alike);
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
    fn a_copy_is_judged_and_bears_no_witness() {
        let (a, b) = (report(1, "a"), report(1, "b"));
        assert_eq!(finding(&THREE, &[b, copy_of(b), a]), Finding::Undecided, "the two are one witness");
        assert_eq!(finding(&THREE, &[a, a, copy_of(b)]), corrupt(&[3]));
        assert_eq!(finding(&THREE, &[a, copy_of(a), copy_of(a)]), Finding::Alike);
        assert_eq!(finding(&THREE, &[b, copy_of(b), a, a]), Finding::Undecided);
    }

    #[test]
    fn whoever_agrees_with_a_majority_or_with_all_others_is_confirmed() {
        let (a, b) = (report(1, "a"), report(1, "b"));
        let confirmed = |reports: &[Report]| -> Vec<u64> {
            let reports: BTreeMap<_, _> = THREE.into_iter().zip(reports.iter().copied()).collect();
            let are_all = reports.len() == 3;
            let comparison = Comparison { reports, are_all, ..Comparison::of(LogIndex(7), Time(0), None) };
            comparison.confirmed(&THREE).map(|server| server.0).collect()
        };
        assert_eq!(confirmed(&[a, a]), [1, 2], "that is a majority already");
        assert_eq!(confirmed(&[a, a, copy_of(a)]), [1, 2, 3]);
        assert_eq!(confirmed(&[a, b, a]), [1, 3]);
        assert_eq!(confirmed(&[a, copy_of(a), copy_of(a)]), [1, 2, 3], "from here on each goes on by itself");
        assert!(confirmed(&[a, copy_of(a)]).is_empty(), "the third may differ");
        assert!(confirmed(&[a, copy_of(a), b]).is_empty());
    }

    #[test]
    fn another_format_is_compared_with_its_own_kind_only() {
        let (old, new, other) = (report(1, "a"), report(2, "a"), report(2, "b"));
        assert_eq!(finding(&THREE, &[old, old, new]), Finding::Alike);
        assert_eq!(finding(&THREE, &[old, new, new]), Finding::Alike);
        assert_eq!(
            finding(&THREE, &[old, old, other]),
            Finding::Alike,
            "the third says nothing of the others'"
        );
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
