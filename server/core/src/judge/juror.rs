//! The juror: the part of the failure detector that runs on every voter. It challenges each node
//! under check, reports the answers, and knows when its own silence is no evidence.
//!
//! A juror that was paused, or that did not receive from the leader for a while, may have missed
//! the node's renewals. It reports that, and abstains for the node's window.

use super::messages::ASK_INTERVAL;
use super::messages::{CheckList, CheckOrder, JurorReport, JurorReports};
use crate::outbox::ChallengeWanted;
use lockmesh_protocol::id::{AgentNumber, Term};
use lockmesh_protocol::lease::{Challenge, LeaseId, Renewal};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::token_bucket::TokenBucket;
use std::collections::BTreeMap;
use std::time::Duration;

/// A juror without a check list for longer was cut off from the leader: two lists are missing.
const LIST_TIMEOUT: Duration = Duration::from_millis(600);
/// A juror stops challenging after this long without a check list.
const CHECK_LIFETIME: Duration = Duration::from_secs(2);
/// The timeout of a challenge whose outcome was not reported. The outcome normally arrives long
/// before. After the timeout the challenge is repeated, and the lost one does not count.
const CHALLENGE_TIMEOUT: Duration = Duration::from_secs(2);
/// The burst and the rate per second of challenges: 64 nodes every 250 ms, and 256 once a second.
/// The first challenge of a node costs a connection. After an overload of the leader very many
/// nodes are silent at once, and challenging all of them repeatedly would keep the servers from
/// receiving their renewals.
const CHALLENGES: (u64, u64) = (64, 256);

/// A server in its role as a juror.
#[derive(Debug)]
pub(super) struct Juror {
    /// The term and number of the newest list; older lists are ignored.
    newest: (Term, u64),
    told: Time,
    checks: BTreeMap<AgentNumber, JurorCheck>,
    challenges: TokenBucket,
}

impl Default for Juror {
    fn default() -> Self {
        let challenges = TokenBucket::full(Time(0), CHALLENGES.0, CHALLENGES.1);
        Self { newest: Default::default(), told: Time(0), checks: BTreeMap::new(), challenges }
    }
}

#[derive(Debug)]
struct JurorCheck {
    order: CheckOrder,
    /// The time at which this juror received the check.
    began: Time,
    /// The time of the last challenge.
    asked: Option<Time>,
    /// Set while the last challenge is neither answered nor timed out.
    is_pending: bool,
    /// The number of consecutive unanswered challenges, and the time of the last one.
    unanswered: (u32, Time),
    /// Until this time the juror's silence is no evidence.
    abstains_until: Time,
    answer: Option<Renewal>,
}

impl JurorCheck {
    fn new(now: Time, order: &CheckOrder) -> Self {
        let check = Self {
            order: order.clone(),
            began: now,
            asked: None,
            is_pending: false,
            unanswered: (0, now),
            abstains_until: Time(0),
            answer: None,
        };
        // This juror was cut off when the check was opened.
        if order.age > LIST_TIMEOUT { check.abstaining(now) } else { check }
    }

    fn abstaining(self, now: Time) -> Self {
        Self { abstains_until: now + self.order.window, unanswered: (0, now), ..self }
    }

    fn note_unanswered(&mut self, now: Time) {
        self.unanswered = (self.unanswered.0.saturating_add(1), now);
    }

    /// Returns whether the next challenge is due.
    fn is_due(&self, now: Time) -> bool {
        let pause = if self.is_pending { CHALLENGE_TIMEOUT } else { ASK_INTERVAL };
        self.asked.is_none_or(|asked| now.since(asked) >= pause)
    }

    /// Returns the next challenge, or `None` if the node has no address.
    fn ask(&mut self, now: Time) -> Option<ChallengeWanted> {
        let was_asked = self.asked.replace(now).is_some();
        let Some(address) = self.order.address.clone() else {
            // The node does not listen, so the only evidence is its missing renewals.
            if was_asked {
                self.note_unanswered(now);
            }
            return None;
        };
        self.is_pending = true;
        Some(ChallengeWanted { node: self.order.node.clone(), address, challenge: self.order.challenge })
    }
}

impl Juror {
    /// Takes the leader's list of open checks; all other checks are closed.
    pub(super) fn receive_list(&mut self, now: Time, term: Term, list: &CheckList) {
        if (term, list.number) <= self.newest {
            return;
        }
        self.newest = (term, list.number);
        let is_cut_off = now.since(self.told) > LIST_TIMEOUT;
        self.told = now;
        let mut former = std::mem::take(&mut self.checks);
        for order in &list.checks {
            let number = order.challenge.lease.agent;
            let known = former.remove(&number).filter(|known| known.order.challenge == order.challenge);
            let check = match known {
                Some(known) if is_cut_off => known.abstaining(now),
                Some(known) => known,
                None => JurorCheck::new(now, order),
            };
            // The node's address may have changed.
            self.checks.insert(number, JurorCheck { order: order.clone(), ..check });
        }
    }

    /// Closes all checks until the next list arrives.
    pub(super) fn close_all(&mut self) {
        self.checks.clear();
    }

    /// Returns the challenges to send now.
    pub(super) fn ask(&mut self, now: Time) -> Vec<ChallengeWanted> {
        if now.since(self.told) > CHECK_LIFETIME {
            self.checks.clear();
        }
        let mut due: Vec<_> = self.checks.values_mut().filter(|check| check.is_due(now)).collect();
        // Longest wait first.
        due.sort_by_key(|check| check.asked.unwrap_or(check.began));
        let due = due.into_iter().take_while(|_| self.challenges.takes(now, 1));
        due.filter_map(|check| check.ask(now)).collect()
    }

    /// Records an answer or a timeout of a challenge; returns whether its check is open.
    pub(super) fn challenged(&mut self, now: Time, challenge: Challenge, answer: Option<Renewal>) -> bool {
        let check = self.checks.get_mut(&challenge.lease.agent);
        let Some(check) = check.filter(|check| check.order.challenge == challenge) else { return false };
        let was_pending = std::mem::take(&mut check.is_pending);
        match answer {
            Some(renewal) => {
                check.answer = Some(renewal);
                check.unanswered = (0, now);
            }
            // A second report, or one after the timeout, does not count again.
            None if was_pending => check.note_unanswered(now),
            None => {}
        }
        true
    }

    /// Records a renewal that passed through this server: the node is alive.
    pub(super) fn note_renewal(&mut self, lease: LeaseId) {
        let check = self.checks.get_mut(&lease.agent);
        if let Some(check) = check.filter(|check| check.order.challenge.lease == lease) {
            check.unanswered.0 = 0;
        }
    }

    /// Abstains, because this server was paused: answers of nodes may still be unread.
    pub(super) fn was_late(&mut self, now: Time) {
        let checks = std::mem::take(&mut self.checks);
        self.checks = checks.into_iter().map(|(number, check)| (number, check.abstaining(now))).collect();
    }

    /// Returns this juror's report on one check.
    pub(super) fn report(&self, now: Time, number: AgentNumber) -> Option<JurorReport> {
        let check = self.checks.get(&number)?;
        let (unanswered, found) = check.unanswered;
        // An old count is no evidence: this server may be unable to send challenges.
        let is_stale = now.since(found) > CHALLENGE_TIMEOUT;
        Some(JurorReport {
            challenge: check.order.challenge,
            unanswered: if is_stale { 0 } else { unanswered },
            abstains: now < check.abstains_until,
            answer: check.answer,
        })
    }

    /// The answers of nodes to this juror's open challenges.
    pub(super) fn answers(&self) -> Vec<Renewal> {
        self.checks.values().filter_map(|check| check.answer).collect()
    }

    /// Returns the reports on all checks, as the reply to the list of this number.
    pub(super) fn reports(&self, now: Time, number: u64) -> JurorReports {
        let reports = self.checks.keys().filter_map(|agent| self.report(now, *agent));
        JurorReports { number, reports: reports.collect() }
    }
}
