//! Fault injection: rules that can be broken on purpose, to show that the simulator detects it.
//!
//! **Invariant:** without the feature `fault-injection` every check here is a compile-time `false`,
//! so the program contains none of it. With the feature nothing is broken either, unless a test
//! calls `Core::break_rule`.

/// A rule of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Output that depends on a write waits until the write is durable.
    AnswersWaitForTheirWrite,
    /// A turn without a write also waits for earlier writes.
    AnswersWaitForOlderWrites,
    /// The engine is notified that a write is durable before its messages are sent.
    EngineIsToldFirst,
    /// Time does not advance while a checkpoint is installed.
    TimeStandsStillForSnapshots,
    /// A removed leader stops leading.
    RemovedLeaderSteps,
    /// Entries are not merged into a message of the same turn.
    MessagesAreWhole,
    /// A new leader restarts every lock-delay.
    DelaysOutliveElections,
    /// A new leader restarts every session's TTL.
    SessionsOutliveElections,
    /// A retried command has no effect.
    RetriesDoNothing,
    /// A read waits for its round.
    ReadsWaitForTheirRound,
    /// A renewal is acknowledged after its round.
    RenewalsWaitForTheirRound,
    /// The longest waiter for a lock is granted it first.
    FirstComeFirstServed,
    /// An ended session leaves all queues.
    EndedSessionsLeaveQueues,
    /// A blocking read checks the current state before it is parked.
    ParkedReadsAreLookedAtFirst,
    /// A checkpoint is written after the durable commit index that it depends on.
    CheckpointsWaitForTheirCommit,
    /// The log is reset after the durable checkpoint that it follows.
    ResetsWaitForTheirCheckpoint,
    /// The log is compacted after the durable checkpoint.
    CompactionStaysBehindTheCheckpoint,
    /// Changes from before a snapshot was installed are not written over it.
    InstalledRowsStandAlone,
}

/// The rule that is broken, if any.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultPoint {
    #[cfg(feature = "fault-injection")]
    broken: Option<Rule>,
    /// The durable write that the engine was not notified of yet.
    #[cfg(feature = "fault-injection")]
    untold: Option<u64>,
}

/// Fault points always compare as equal: they are not part of any value.
impl PartialEq for FaultPoint {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for FaultPoint {}

#[cfg(feature = "fault-injection")]
impl FaultPoint {
    pub(crate) fn break_rule(&mut self, rule: Rule) {
        self.broken = Some(rule);
    }

    pub(crate) fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    /// Returns the write to report to the engine now.
    pub(crate) fn write_to_report(&mut self, durable: Option<u64>) -> Option<u64> {
        if self.breaks(Rule::EngineIsToldFirst) {
            std::mem::replace(&mut self.untold, durable)
        } else {
            durable
        }
    }
}

#[cfg(not(feature = "fault-injection"))]
impl FaultPoint {
    pub(crate) const fn breaks(&self, _: Rule) -> bool {
        false
    }

    pub(crate) const fn write_to_report(&self, durable: Option<u64>) -> Option<u64> {
        durable
    }
}
