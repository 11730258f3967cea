//! What every voter does that is told of a check: it asks the node, says what it heard, and knows
//! when its own silence says nothing.
//!
//! A juror that was late itself, or did not hear the leader for a while, may have missed what the
//! node said through it. It says so, and abstains for the node's window.

use super::messages::ASK_INTERVAL;
use super::messages::{CheckList, CheckOrder, JurorReport, JurorReports};
use crate::outbox::ChallengeWanted;
use lockmesh_protocol::id::{AgentNumber, Term};
use lockmesh_protocol::lease::{Challenge, LeaseId, Renewal};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::token_bucket::TokenBucket;
use std::collections::BTreeMap;
use std::time::Duration;

/// A juror that hears nothing from the leader for longer was cut off: two lists are missing.
const CUT_OFF: Duration = Duration::from_millis(600);
/// Without a word of the leader for so long it asks no more.
const FORGOTTEN: Duration = Duration::from_secs(2);
/// What came of a challenge is told long before; one of which nothing was told is made again, and
/// counts for nothing.
const CHALLENGE_LOST: Duration = Duration::from_secs(2);
/// So many challenges at once, and in a second: 64 nodes are asked every 250 ms, and 256 once a
/// second. A node that is asked for the first time costs a connection: where very many are silent
/// at once, as those are whose leader was overloaded, asking all of them again and again would keep
/// the servers from hearing them.
const CHALLENGES: (u64, u64) = (64, 256);

/// A server as a juror.
#[derive(Debug)]
pub(super) struct Juror {
    /// The newest list: older ones are passed over.
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
    /// When this juror heard of it.
    began: Time,
    /// When it was asked last.
    asked: Option<Time>,
    /// Whether that is not answered yet, and the time for it not over.
    is_pending: bool,
    /// How often it did not answer, one time after the other, and when that was found last.
    unanswered: (u32, Time),
    /// Until when this juror's silence says nothing.
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
        // It was cut off when the check was opened.
        if order.age > CUT_OFF { check.abstaining(now) } else { check }
    }

    fn abstaining(self, now: Time) -> Self {
        Self { abstains_until: now + self.order.window, unanswered: (0, now), ..self }
    }

    fn note_unanswered(&mut self, now: Time) {
        self.unanswered = (self.unanswered.0.saturating_add(1), now);
    }

    /// Whether it is time to ask.
    fn is_due(&self, now: Time) -> bool {
        let pause = if self.is_pending { CHALLENGE_LOST } else { ASK_INTERVAL };
        self.asked.is_none_or(|asked| now.since(asked) >= pause)
    }

    /// Asks; none where nobody can be asked.
    fn ask(&mut self, now: Time) -> Option<ChallengeWanted> {
        let was_asked = self.asked.replace(now).is_some();
        let Some(address) = self.order.address.clone() else {
            // It listens nowhere: all that is left is that its renewals do not come.
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
    /// The leader of a term tells which checks are open; all others are closed.
    pub(super) fn take_list(&mut self, now: Time, term: Term, list: &CheckList) {
        if (term, list.number) <= self.newest {
            return;
        }
        self.newest = (term, list.number);
        let is_cut_off = now.since(self.told) > CUT_OFF;
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
            // Its address may have changed.
            self.checks.insert(number, JurorCheck { order: order.clone(), ..check });
        }
    }

    /// Nobody is asked any more until there is another list.
    pub(super) fn close_all(&mut self) {
        self.checks.clear();
    }

    /// Whom to ask now.
    pub(super) fn ask(&mut self, now: Time) -> Vec<ChallengeWanted> {
        if now.since(self.told) > FORGOTTEN {
            self.checks.clear();
        }
        let mut due: Vec<_> = self.checks.values_mut().filter(|check| check.is_due(now)).collect();
        // Whoever has waited longest goes first.
        due.sort_by_key(|check| check.asked.unwrap_or(check.began));
        let due = due.into_iter().take_while(|_| self.challenges.takes(now, 1));
        due.filter_map(|check| check.ask(now)).collect()
    }

    /// A challenge was answered, or was not in time; whether it is one of a check that is open.
    pub(super) fn challenged(&mut self, now: Time, challenge: Challenge, answer: Option<Renewal>) -> bool {
        let check = self.checks.get_mut(&challenge.lease.agent);
        let Some(check) = check.filter(|check| check.order.challenge == challenge) else { return false };
        let was_pending = std::mem::take(&mut check.is_pending);
        match answer {
            Some(renewal) => {
                check.answer = Some(renewal);
                check.unanswered = (0, now);
            }
            // Told twice, or after it was given up: that is one time.
            None if was_pending => check.note_unanswered(now),
            None => {}
        }
        true
    }

    /// A renewal came through this server: the node lives.
    pub(super) fn heard(&mut self, lease: LeaseId) {
        let check = self.checks.get_mut(&lease.agent);
        if let Some(check) = check.filter(|check| check.order.challenge.lease == lease) {
            check.unanswered.0 = 0;
        }
    }

    /// This server did not run for a while: what nodes answered meanwhile may lie unread.
    pub(super) fn was_late(&mut self, now: Time) {
        let checks = std::mem::take(&mut self.checks);
        self.checks = checks.into_iter().map(|(number, check)| (number, check.abstaining(now))).collect();
    }

    /// What this juror reports of a check.
    pub(super) fn report(&self, now: Time, number: AgentNumber) -> Option<JurorReport> {
        let check = self.checks.get(&number)?;
        let (unanswered, found) = check.unanswered;
        // Of long ago it says nothing: this server may be unable to ask.
        let is_stale = now.since(found) > CHALLENGE_LOST;
        Some(JurorReport {
            challenge: check.order.challenge,
            unanswered: if is_stale { 0 } else { unanswered },
            abstains: now < check.abstains_until,
            answer: check.answer,
        })
    }

    /// What nodes under check have answered to it.
    pub(super) fn answers(&self) -> Vec<Renewal> {
        self.checks.values().filter_map(|check| check.answer).collect()
    }

    /// What it reports of all, as the answer to this list.
    pub(super) fn reports(&self, now: Time, number: u64) -> JurorReports {
        let reports = self.checks.keys().filter_map(|agent| self.report(now, *agent));
        JurorReports { number, reports: reports.collect() }
    }
}
