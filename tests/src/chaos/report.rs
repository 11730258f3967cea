//! The outcome of a round of faults, as a table and as JSON.

use crate::history::operation::{KvWrite, Moment, Operation, Outcome, Request, Write};
use crate::history::{History, Verdict, Violation};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The effect of one fault on clients.
#[derive(Clone, Debug, Serialize)]
pub struct Struck {
    /// The fault's name.
    pub name: &'static str,
    /// The time at which the fault began. It ended when the cluster had recovered fully.
    pub begun: Moment,
    /// See `begun`.
    pub ended: Moment,
    /// The time that the cluster needed to recover after the fault was undone, in milliseconds.
    pub whole_after_ms: u64,
    /// The longest period without an acknowledged write by any client of the first agent, in
    /// milliseconds.
    pub silence_ms: u64,
    /// The number of requests that ended in that time.
    pub operations: u64,
    /// The number of acknowledged writes.
    pub acknowledged: u64,
    /// The number of writes with an unknown outcome.
    pub unknown: u64,
    /// The number of writes that were certainly not done.
    pub not_done: u64,
    /// The number of failed reads.
    pub failed_reads: u64,
    /// The number of violations, counted by the operations that show them.
    pub violations: u64,
}

/// The replies that one client received over a whole round.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Told {
    /// The client's number.
    pub client: u32,
    /// The number of acknowledged writes.
    pub acknowledged: u64,
    /// The number of writes that ended with an unknown outcome.
    pub unknown: u64,
    /// The number of writes that were certainly not done.
    pub not_done: u64,
    /// The number of failed reads.
    pub failed_reads: u64,
    /// The longest latency of a request, blocking reads excepted, in milliseconds.
    pub longest_ms: u64,
}

/// A whole round.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The round's seed.
    pub seed: u64,
    /// The effect of every fault.
    pub faults: Vec<Struck>,
    /// The replies that every client received.
    pub clients: Vec<Told>,
    /// The checkers' verdict on the whole history.
    pub verdict: Verdict,
    /// Writes that failed during a fault that must not fail any.
    pub failed_unnoticed: Vec<String>,
    /// The duration of the check, in milliseconds.
    pub check_ms: u64,
}

impl Report {
    /// Returns `true` if the round broke no promise.
    pub fn is_clean(&self) -> bool {
        self.verdict.violations.is_empty()
            && self.failed_unnoticed.is_empty()
            && self.verdict.counts.unread_at_end == 0
    }
}

impl Told {
    /// Returns the replies of each client, ordered by client number.
    pub fn all(history: &History) -> Vec<Self> {
        let mut clients: BTreeMap<u32, Self> = BTreeMap::new();
        for operation in &history.operations {
            let told = clients.entry(operation.client).or_default();
            told.client = operation.client;
            let is_read = matches!(operation.request, Request::Read(_));
            match &operation.outcome {
                Outcome::Answered { .. } => told.acknowledged += u64::from(!is_read),
                _ if is_read => told.failed_reads += 1,
                Outcome::Unknown(_) => told.unknown += 1,
                Outcome::CertainlyNot(_) => told.not_done += 1,
            }
            if !may_wait(&operation.request) {
                told.longest_ms = told.longest_ms.max((operation.ended.0 - operation.begun.0) / 1_000_000);
            }
        }
        clients.into_values().collect()
    }
}

impl Struck {
    /// Summarizes the operations between two moments. The first agent's clients have numbers below
    /// `second`.
    pub fn new(name: &'static str, history: &History, span: (Moment, Moment), second: u32) -> Self {
        let (begun, ended) = span;
        let mut struck = Self {
            name,
            begun,
            ended,
            whole_after_ms: 0,
            silence_ms: 0,
            operations: 0,
            acknowledged: 0,
            unknown: 0,
            not_done: 0,
            failed_reads: 0,
            violations: 0,
        };
        let mut answers = vec![begun, ended];
        for operation in history.operations.iter().filter(|operation| is_within(operation, span)) {
            struck.operations += 1;
            let is_write = matches!(operation.request, Request::Write(_));
            match (&operation.outcome, is_write) {
                (Outcome::Answered { .. }, true) => {
                    struck.acknowledged += 1;
                    answers.extend((operation.client < second).then_some(operation.ended));
                }
                (Outcome::Answered { .. }, false) => {}
                (Outcome::Unknown(_), true) => struck.unknown += 1,
                (Outcome::CertainlyNot(_), true) => struck.not_done += 1,
                (_, false) => struck.failed_reads += 1,
            }
        }
        answers.sort_unstable();
        let silences = answers.windows(2).map(|pair| pair[1].0 - pair[0].0);
        struck.silence_ms = silences.max().unwrap_or(0) / 1_000_000;
        struck
    }

    /// Counts the violations shown by operations that ended during the fault.
    pub fn count(&mut self, history: &History, violations: &[Violation]) {
        let span = (self.begun, self.ended);
        let is_here = |number: &u64| {
            history
                .operations
                .iter()
                .any(|operation| operation.number == *number && is_within(operation, span))
        };
        let here = violations.iter().filter(|violation| violation.operations.last().is_some_and(is_here));
        self.violations = here.count() as u64;
    }
}

fn may_wait(request: &Request) -> bool {
    match request {
        Request::Read(read) => read.after.is_some(),
        Request::Write(Write::Kv(KvWrite::Enqueue { .. })) => true,
        _ => false,
    }
}

fn is_within(operation: &Operation, (begun, ended): (Moment, Moment)) -> bool {
    begun <= operation.ended && operation.ended < ended
}

impl Report {
    fn write_clients(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worst = |of: fn(&Told) -> u64| {
            let told = self.clients.iter().max_by_key(|told| of(told));
            told.map_or((0, 0), |told| (of(told), told.client))
        };
        let (unknown, not_done) = (worst(|told| told.unknown), worst(|told| told.not_done));
        let longest = worst(|told| told.longest_ms);
        writeln!(
            f,
            "{} clients; the most of one: {} writes unknown (client {}), {} not done (client {}); the longest answer took {} \
             ms (client {})",
            self.clients.len(),
            unknown.0,
            unknown.1,
            not_done.0,
            not_done.1,
            longest.0,
            longest.1
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<20} {:>7} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6}",
            "fault",
            "s",
            "silent ms",
            "whole ms",
            "requests",
            "writes",
            "unknown",
            "not done",
            "no read",
            "broken"
        )?;
        for fault in &self.faults {
            writeln!(
                f,
                "{:<20} {:>7.1} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6}",
                fault.name,
                (fault.ended.0 - fault.begun.0) as f64 / 1e9,
                fault.silence_ms,
                fault.whole_after_ms,
                fault.operations,
                fault.acknowledged,
                fault.unknown,
                fault.not_done,
                fault.failed_reads,
                fault.violations
            )?;
        }
        self.write_clients(f)?;
        let counts = &self.verdict.counts;
        writeln!(
            f,
            "{} requests: {} writes answered, {} unknown ({} of them took effect), {} certainly not done; {} reads of the \
             newest state, {} of any, {} watches; {} grants, {} sessions expired",
            counts.operations,
            counts.acknowledged,
            counts.unknown,
            counts.unknown_placed,
            counts.certainly_not,
            counts.reads,
            counts.stale_reads,
            counts.watches,
            counts.grants,
            counts.ends_inferred
        )?;
        writeln!(
            f,
            "checked in {:.1} s; {} keys also by the independent checker, {} too long for it; seed {}",
            self.check_ms as f64 / 1e3,
            counts.keys_checked_independently,
            counts.keys_too_long,
            self.seed
        )?;
        self.failed_unnoticed
            .iter()
            .try_for_each(|line| writeln!(f, "FAILED DURING A HARMLESS FAULT: {line}"))?;
        if counts.unread_at_end > 0 {
            writeln!(f, "{} keys were not read at the end", counts.unread_at_end)?;
        }
        self.verdict.violations.iter().try_for_each(|violation| writeln!(f, "BROKEN: {violation}"))
    }
}
