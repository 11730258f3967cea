//! Rules that can be broken on purpose, so that the simulator can show that it would find it.
//!
//! **Invariant:** without the feature `fault_injection` every question here is answered *no* when
//! it is compiled, so nothing of it is in the program. With it nothing is broken either, unless
//! somebody calls `Core::break_rule`.

/// A rule of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// What rests on a write waits until the write is durable.
    AnswersWaitForTheirWrite,
    /// Also a turn that writes nothing waits for the writes before it.
    AnswersWaitForOlderWrites,
    /// The engine is told that a write is durable before its messages leave.
    EngineIsToldFirst,
    /// Time stands still while a checkpoint is installed.
    TimeStandsStillForSnapshots,
    /// A leader that was taken out leads no more.
    RemovedLeaderSteps,
    /// Entries are joined to no message of the same turn.
    MessagesAreWhole,
    /// A new leader counts every lock-delay anew.
    DelaysOutliveElections,
    /// A new leader gives every session its whole time again.
    SessionsOutliveElections,
    /// A command that comes again does nothing.
    RetriesDoNothing,
    /// A read waits for its round.
    ReadsWaitForTheirRound,
    /// A renewal is acknowledged after its round.
    RenewalsWaitForTheirRound,
    /// Whoever waits longest for a lock is granted it.
    FirstComeFirstServed,
    /// A session that ended waits for nothing.
    EndedSessionsLeaveQueues,
    /// A blocking read is parked only after a look at what is there.
    ParkedReadsAreLookedAtFirst,
    /// A checkpoint is written behind the durable commit index that it stands on.
    CheckpointsWaitForTheirCommit,
    /// The log is reset behind the durable checkpoint that it is to follow.
    ResetsWaitForTheirCheckpoint,
    /// The log is compacted behind the durable checkpoint.
    CompactionStaysBehindTheCheckpoint,
    /// What changed before a snapshot was installed is not written over it.
    InstalledRowsStandAlone,
}

/// Which rule is broken, if any.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultPoint {
    #[cfg(feature = "fault-injection")]
    broken: Option<Rule>,
    /// What the engine was not told yet.
    #[cfg(feature = "fault-injection")]
    untold: Option<u64>,
}

/// Values that differ in what is broken only are the same: it is no part of any value.
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

    /// The write of which the engine shall hear now.
    pub(crate) fn told(&mut self, durable: Option<u64>) -> Option<u64> {
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

    pub(crate) const fn told(&self, durable: Option<u64>) -> Option<u64> {
        durable
    }
}
