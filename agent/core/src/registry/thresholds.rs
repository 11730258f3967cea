//! Counts the consecutive results of a check, so that a single failure need not change its status.
//! This limits flapping.

use crate::definitions::Thresholds;
use lockmesh_protocol::record::CheckStatus;

/// The consecutive results of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Streak {
    successes: u32,
    failures: u32,
}

impl Streak {
    /// Returns the count of a check without results: the first one takes effect at once.
    pub(super) fn of_new(limits: Thresholds) -> Self {
        Self { successes: limits.success_before_passing, failures: limits.failures_before_critical }
    }

    /// Returns the count of a check whose status is known from an earlier process: a change of it
    /// needs as many results as in one process.
    pub(super) fn of_status(limits: Thresholds, status: CheckStatus) -> Self {
        match status {
            CheckStatus::Critical => Self { successes: 0, failures: limits.failures_before_critical },
            _ => Self { successes: limits.success_before_passing, failures: 0 },
        }
    }

    /// Returns the count that an earlier process left: restarts must not keep a status from its
    /// change. Without one, it is that of the status.
    pub(super) fn restored(limits: Thresholds, status: CheckStatus, kept: Option<(u32, u32)>) -> Self {
        match kept {
            Some((successes, failures)) => Self { successes, failures },
            None => Self::of_status(limits, status),
        }
    }

    /// Returns what decides about the next change, for the next process. It stays the same while
    /// results repeat.
    pub(super) fn kept(self, limits: Thresholds) -> (u32, u32) {
        let Thresholds { success_before_passing, failures_before_critical, failures_before_warning } = limits;
        let failures = failures_before_critical.max(failures_before_warning);
        (self.successes.min(success_before_passing), self.failures.min(failures))
    }

    /// Counts a result, and returns the status that it leads to; `None` if that does not change
    /// yet.
    pub(super) fn count(&mut self, limits: Thresholds, result: CheckStatus) -> Option<CheckStatus> {
        if result != CheckStatus::Critical {
            *self = Self { successes: self.successes.saturating_add(1), failures: 0 };
            return (self.successes >= limits.success_before_passing).then_some(result);
        }
        *self = Self { successes: 0, failures: self.failures.saturating_add(1) };
        let before_warning = match limits.failures_before_warning {
            0 => limits.failures_before_critical,
            before => before,
        };
        if self.failures >= limits.failures_before_critical {
            Some(CheckStatus::Critical)
        } else if self.failures >= before_warning {
            Some(CheckStatus::Warning)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CheckStatus::{Critical, Passing, Warning};

    const THREE: Thresholds =
        Thresholds { success_before_passing: 3, failures_before_warning: 2, failures_before_critical: 3 };

    /// Contract: 99.
    #[test]
    fn first_result_immediate_changes_need_streak() {
        let mut streak = Streak::of_new(THREE);
        let results = [
            (Critical, Some(Critical)),
            (Passing, None),
            (Warning, None),
            (Passing, Some(Passing)),
            (Critical, None),
            (Critical, Some(Warning)),
            (Critical, Some(Critical)),
            (Critical, Some(Critical)),
            (Passing, None),
            (Critical, None),
        ];
        for (number, (result, status)) in results.into_iter().enumerate() {
            assert_eq!(streak.count(THREE, result), status, "result {number}");
        }
    }

    #[test]
    fn no_warning_threshold_skips_warning() {
        let limits = Thresholds { failures_before_warning: 0, ..THREE };
        let mut streak = Streak::of_status(limits, Passing);
        assert_eq!([(); 3].map(|()| streak.count(limits, Critical)), [None, None, Some(Critical)]);
        let mut streak = Streak::of_new(Thresholds::default());
        assert_eq!(streak.count(Thresholds::default(), Warning), Some(Warning));
    }

    #[test]
    fn restored_status_keeps_thresholds() {
        let mut streak = Streak::of_status(THREE, Critical);
        assert_eq!([(); 3].map(|()| streak.count(THREE, Passing)), [None, None, Some(Passing)]);
    }
}
