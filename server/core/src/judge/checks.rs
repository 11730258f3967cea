//! The checks that a leader has open, the check lists it sent to the voters, and their reports.
//!
//! A juror replies to every check list with its reports, so a report is no older than the list that
//! it names, whatever its network delay.

use super::juror::Juror;
use super::messages::{ASK_INTERVAL, CheckList, CheckOrder, JurorReport, JurorReports};
use super::windows::Windows;
use crate::state::State;
use lockmesh_protocol::id::{AgentNumber, NodeName, ServerId};
use lockmesh_protocol::lease::{Challenge, LeaseId};
use lockmesh_protocol::time::Time;
use lockmesh_protocol::token_bucket::TokenBucket;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The age of a check list beyond which a reply to it confirms nothing.
const MAX_REPORT_AGE: Duration = Duration::from_millis(500);
/// The number of unanswered challenges that a juror needs to confirm a silence.
const LEAST_UNANSWERED: u32 = 2;
/// The burst and the rate per second of nodes that agents challenge; three agents challenge each.
const AGENT_QUESTIONS: (u64, u64) = (64, 128);

/// The maximum number of suspecting nodes kept per check.
const MAX_SUSPECTED_BY: usize = 4;

/// A leader's view of its checks.
#[derive(Debug)]
pub(super) struct Checks {
    open: BTreeMap<AgentNumber, Check>,
    reports: BTreeMap<ServerId, (Time, BTreeMap<AgentNumber, JurorReport>)>,
    /// The check lists that are still fresh, with the time at which each was sent.
    lists: VecDeque<(u64, Time)>,
    last_number: u64,
    sent_at: Time,
    /// Set when a check was opened or closed since the last list.
    is_changed: bool,
    agent_questions: TokenBucket,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            reports: BTreeMap::new(),
            lists: VecDeque::new(),
            last_number: 0,
            sent_at: Time(0),
            is_changed: false,
            agent_questions: TokenBucket::full(Time(0), AGENT_QUESTIONS.0, AGENT_QUESTIONS.1),
        }
    }
}

/// A node that is being challenged.
#[derive(Debug)]
pub(super) struct Check {
    challenge: Challenge,
    opened: Time,
    /// No verdict is considered before this time: a proposal had no effect, or nothing was due.
    look_at: Time,
    /// The time at which agents were last asked to challenge the node.
    agents_asked: Option<Time>,
    /// The folded names of the nodes that suspect it.
    suspected_by: Vec<NodeName>,
    /// The reporter whose suspicion opened the check, until the outcome is known.
    reporter: Option<NodeName>,
    is_suspected: bool,
}

impl Checks {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_open(&self, number: AgentNumber) -> bool {
        self.open.contains_key(&number)
    }

    pub(super) fn lease(&self, number: AgentNumber) -> Option<LeaseId> {
        self.open.get(&number).map(|check| check.challenge.lease)
    }

    /// The nonce with which an answer to the check of this lease must be made.
    pub(super) fn nonce(&self, lease: LeaseId) -> Option<u64> {
        let challenge = self.open.get(&lease.agent)?.challenge;
        (challenge.lease == lease).then_some(challenge.nonce)
    }

    pub(super) fn open(&mut self, now: Time, challenge: Challenge) {
        self.is_changed = true;
        let check = Check {
            challenge,
            opened: now,
            look_at: now,
            agents_asked: None,
            suspected_by: Vec::new(),
            reporter: None,
            is_suspected: false,
        };
        self.open.insert(challenge.lease.agent, check);
    }

    /// Records that a suspicion by another node opened the check.
    pub(super) fn opened_by(&mut self, number: AgentNumber, reporter: NodeName) {
        self.suspect(number, reporter.clone());
        if let Some(check) = self.open.get_mut(&number) {
            (check.is_suspected, check.reporter) = (true, Some(reporter));
        }
    }

    /// Records another suspicion of a node that is already under check.
    pub(super) fn suspect(&mut self, number: AgentNumber, by: NodeName) {
        let check = self.open.get_mut(&number);
        let is_new = |check: &&mut Check| {
            check.suspected_by.len() < MAX_SUSPECTED_BY && !check.suspected_by.contains(&by)
        };
        if let Some(check) = check.filter(is_new) {
            check.suspected_by.push(by);
        }
    }

    pub(super) fn suspected_by(&self, number: AgentNumber) -> &[NodeName] {
        self.open.get(&number).map_or(&[], |check| &check.suspected_by)
    }

    /// Takes the reporter that opened a check, so that it is credited or blamed once.
    pub(super) fn take_reporter(&mut self, number: AgentNumber) -> Option<NodeName> {
        self.open.get_mut(&number)?.reporter.take()
    }

    /// The number of checks opened by suspicions.
    pub(super) fn suspected_count(&self) -> usize {
        self.open.values().filter(|check| check.is_suspected).count()
    }

    pub(super) fn close(&mut self, number: AgentNumber) {
        self.is_changed |= self.open.remove(&number).is_some();
    }

    pub(super) fn close_all(&mut self) {
        self.is_changed |= !self.open.is_empty();
        self.open.clear();
    }

    /// The leases whose checks may be decided now.
    pub(super) fn to_look_at(&self, now: Time) -> Vec<LeaseId> {
        let checks = self.open.values().filter(|check| check.look_at <= now);
        checks.map(|check| check.challenge.lease).collect()
    }

    /// The challenges that agents must send now.
    pub(super) fn agents_due(&mut self, now: Time) -> Vec<Challenge> {
        let is_due =
            |check: &&mut Check| check.agents_asked.is_none_or(|asked| now.since(asked) >= ASK_INTERVAL);
        let mut due: Vec<_> = self.open.values_mut().filter(is_due).collect();
        // Longest wait first.
        due.sort_by_key(|check| check.agents_asked.unwrap_or(check.opened));
        let due = due.into_iter().take_while(|_| self.agent_questions.takes(now, 1));
        let asked = due.map(|check| {
            check.agents_asked = Some(now);
            check.challenge
        });
        asked.collect()
    }

    pub(super) fn check_again(&mut self, number: AgentNumber, at: Time) {
        if let Some(check) = self.open.get_mut(&number) {
            check.look_at = at;
        }
    }

    pub(super) fn receive_reports(&mut self, from: ServerId, reports: &JurorReports) {
        // For an older list, or one of another process, the age of the report is unknown.
        let sent_at = self.lists.iter().find(|(number, _)| *number == reports.number);
        if let Some((_, sent_at)) = sent_at {
            let by_agent = reports.reports.iter().map(|report| (report.challenge.lease.agent, *report));
            self.reports.insert(from, (*sent_at, by_agent.collect()));
        }
    }

    /// Returns the servers with enough unanswered challenges in a fresh report. `juror` is this
    /// server's own. For a verdict, jurors that abstain are not counted.
    pub(super) fn confirmed_by(
        &self,
        now: Time,
        number: AgentNumber,
        (me, juror): (ServerId, &Juror),
        is_verdict: bool,
    ) -> Vec<ServerId> {
        let Some(check) = self.open.get(&number) else { return Vec::new() };
        let confirms = |report: &JurorReport| {
            report.challenge == check.challenge
                && report.unanswered >= LEAST_UNANSWERED
                && !(is_verdict && report.abstains)
                && report.answer.is_none()
        };
        let others = self.reports.iter().filter(|(_, (sent_at, reports))| {
            now.since(*sent_at) <= MAX_REPORT_AGE && reports.get(&number).is_some_and(confirms)
        });
        let own = juror.report(now, number).filter(confirms).map(|_| me);
        others.map(|(server, _)| *server).filter(|server| *server != me).chain(own).collect()
    }

    /// Returns the list to send now, or `None` if none is due.
    pub(super) fn next_list(&mut self, now: Time, state: &State, windows: &Windows) -> Option<CheckList> {
        let number = self.next_number(now)?;
        let order = |check: &Check| {
            let agent = state.agent_of(check.challenge.lease)?;
            let member = windows.member(agent.number)?;
            Some(CheckOrder {
                challenge: check.challenge,
                node: agent.node.clone(),
                address: state.agent_address(agent),
                age: now.since(check.opened),
                window: member.present().duration(),
            })
        };
        Some(CheckList { number, checks: self.open.values().filter_map(order).collect() })
    }

    /// Returns the number of the list to send now.
    fn next_number(&mut self, now: Time) -> Option<u64> {
        let is_due = !self.open.is_empty() && now.since(self.sent_at) >= ASK_INTERVAL;
        if !std::mem::take(&mut self.is_changed) && !is_due {
            return None;
        }
        self.last_number += 1;
        self.sent_at = now;
        while self.lists.front().is_some_and(|(_, sent_at)| now.since(*sent_at) > MAX_REPORT_AGE) {
            self.lists.pop_front();
        }
        self.lists.push_back((self.last_number, now));
        Some(self.last_number)
    }
}
