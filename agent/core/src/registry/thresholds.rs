//! Counts the consecutive results of a check, so that a single failure need not change its status.

use super::definition::Thresholds;
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

    #[test]
    fn assertion_99_the_first_result_counts_at_once_and_each_change_needs_its_number() {
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
    fn without_a_number_for_warnings_failures_lead_to_critical_only() {
        let limits = Thresholds { failures_before_warning: 0, ..THREE };
        let mut streak = Streak::of_status(limits, Passing);
        assert_eq!([(); 3].map(|()| streak.count(limits, Critical)), [None, None, Some(Critical)]);
        let mut streak = Streak::of_new(Thresholds::default());
        assert_eq!(streak.count(Thresholds::default(), Warning), Some(Warning));
    }

    #[test]
    fn a_check_of_an_earlier_process_keeps_its_protection() {
        let mut streak = Streak::of_status(THREE, Critical);
        assert_eq!([(); 3].map(|()| streak.count(THREE, Passing)), [None, None, Some(Passing)]);
    }
}
