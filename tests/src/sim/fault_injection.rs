//! Deliberate bugs, to show that the simulator finds them.
//!
//! Rules of the disk and of the shell are broken here, in the simulation's own disk and shell.
//! Rules of the core are broken inside the core, which allows that only with its feature
//! `fault_injection`.

use super::plan::Plan;
use lockmesh_core::fault_injection::Rule;
use lockmesh_protocol::change::Change;
use std::time::Duration;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultInjection {
    /// No bug.
    #[default]
    None,
    /// A rule of the core.
    Core(Rule),
    /// A log that does not lead up to its checkpoint is kept at start.
    KeepLogThatParts,
    /// A power cut loses the vote.
    ForgetVote,
    /// The store reports a write as durable as soon as it has received it.
    DurableAtOnce,
    /// A checkpoint omits the lock-delays.
    ForgetRows,
    /// Servers are configured with half of the session renewal window.
    HalfTheWindow,
}

impl FaultInjection {
    /// All bugs.
    pub const ALL: &'static [FaultInjection] = &[
        Self::Core(Rule::AnswersWaitForTheirWrite),
        Self::Core(Rule::AnswersWaitForOlderWrites),
        Self::Core(Rule::EngineIsToldFirst),
        Self::Core(Rule::CheckpointsWaitForTheirCommit),
        Self::Core(Rule::TimeStandsStillForSnapshots),
        Self::Core(Rule::RemovedLeaderSteps),
        Self::Core(Rule::MessagesAreWhole),
        Self::Core(Rule::DelaysOutliveElections),
        Self::Core(Rule::SessionsOutliveElections),
        Self::Core(Rule::RetriesDoNothing),
        Self::Core(Rule::ReadsWaitForTheirRound),
        Self::Core(Rule::RenewalsWaitForTheirRound),
        Self::Core(Rule::FirstComeFirstServed),
        Self::Core(Rule::EndedSessionsLeaveQueues),
        Self::Core(Rule::ResetsWaitForTheirCheckpoint),
        Self::Core(Rule::CompactionStaysBehindTheCheckpoint),
        Self::Core(Rule::InstalledRowsStandAlone),
        Self::KeepLogThatParts,
        Self::ForgetVote,
        Self::DurableAtOnce,
        Self::ForgetRows,
        Self::Core(Rule::ParkedReadsAreLookedAtFirst),
        Self::HalfTheWindow,
    ];

    /// Returns its name.
    pub fn name(self) -> String {
        match self {
            Self::Core(rule) => format!("{rule:?}"),
            other => format!("{other:?}"),
        }
    }

    /// Returns the bug with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|fault_injection| fault_injection.name() == name)
    }

    /// Returns the broken rule of the core, if any.
    pub fn rule(self) -> Option<Rule> {
        match self {
            Self::Core(rule) => Some(rule),
            _ => None,
        }
    }

    /// Adjusts a plan so that the broken rule matters.
    pub fn adjust(self, plan: &mut Plan) {
        let often = Some(Duration::from_millis(1_500));
        match self {
            Self::Core(Rule::RemovedLeaderSteps) => {
                plan.faults.removal = often;
                plan.faults.arrival = often;
                plan.faults.transfer = often;
            }
            // A server must campaign while it installs a snapshot: it often lags behind the others'
            // logs, is slow to install, and quick to miss its leader.
            Self::Core(Rule::TimeStandsStillForSnapshots) => {
                plan.faults.crash = often;
                plan.faults.split = often;
                plan.faults.fetch = Duration::from_millis(20);
                plan.disk.checkpoint = (Duration::from_millis(200), Duration::from_millis(800));
                plan.core.log_keep_bytes = 0;
                plan.core.checkpoint_changes = 10;
                plan.core.election_ticks = 5;
            }
            Self::Core(
                Rule::EngineIsToldFirst | Rule::ResetsWaitForTheirCheckpoint | Rule::InstalledRowsStandAlone,
            )
            | Self::KeepLogThatParts => {
                plan.faults.crash = often;
                plan.faults.split = often;
                plan.core.log_keep_bytes = 0;
            }
            // A deposed leader must acknowledge a renewal that its successor does not know of, and
            // the session must end before the deposed leader learns of the election. So a cut lasts
            // longer than a TTL, and nothing ends the cut or the deposed leader early.
            Self::Core(Rule::RenewalsWaitForTheirRound) => {
                plan.faults.split = Some(Duration::from_secs(4));
                plan.faults.cut_length = Duration::from_secs(4);
                (plan.faults.one_way, plan.faults.crash, plan.faults.blackout) = (None, None, None);
                (plan.faults.removal, plan.faults.arrival, plan.faults.wipe) = (None, None, None);
                plan.core.election_ticks = 20;
                plan.core.ttl_multiplier = 1;
                plan.clients.ttl = Duration::from_millis(800);
                (plan.clients.agents, plan.clients.lockers) = (4, 3);
            }
            // A vote is lost if a voter crashes between two candidates of one term.
            Self::ForgetVote => {
                plan.faults.crash = Some(Duration::from_millis(300));
                plan.faults.split = often;
            }
            Self::HalfTheWindow => plan.core.ttl_multiplier = 2,
            _ => {}
        }
        if self != Self::None {
            plan.disk.is_real = false;
            // No other fault occurs while a set-back disk waits for its refusal: seeds are spent
            // where the rule matters.
            plan.faults.set_back = None;
            plan.corruption.comes = None;
            plan.guards.per_agent = 0;
            plan.reach.every = None;
            plan.voters = plan.voters.max(3);
        }
    }

    /// Removes from a checkpoint the rows that it omits.
    pub fn forget_rows(self, rows: &mut Vec<Change>) {
        if self == Self::ForgetRows {
            rows.retain(|row| !matches!(row, Change::LockDelay(..)));
        }
    }
}
