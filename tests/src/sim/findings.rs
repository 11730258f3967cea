//! The status that each check of an agent must have: a model beside the real registry, from the
//! results of runs, the reports of applications, and registrations.
//!
//! **Invariant:** the registry has exactly these statuses, in every process that has the data
//! folder of the one before. So nothing but a result, a report or the end of a TTL makes a check
//! critical, a restart least of all, and no session ends for less.

use super::checks::{ALIAS, PROBE};
use lockmesh_protocol::id::{CheckId, LogIndex};
use lockmesh_protocol::record::{Check, CheckStatus};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;

/// A moment in true time, with the newest entry of the log.
pub(super) type Moment = (Time, LogIndex);

/// The known statuses of an agent's checks.
#[derive(Debug, Default)]
pub(super) struct Findings(BTreeMap<CheckId, Finding>);

#[derive(Debug, Default)]
struct Finding {
    /// `None` before its registration and after its end.
    status: Option<CheckStatus>,
    /// The moment since which no session may depend on it: it is critical, or not registered.
    unfit_since: Option<Moment>,
    /// The number of consecutive failed runs.
    failures: u32,
}

impl Finding {
    fn set(&mut self, now: Moment, status: Option<CheckStatus>) {
        let is_fit = status.is_some_and(|status| status != CheckStatus::Critical);
        let since = self.unfit_since.unwrap_or(now);
        (self.status, self.unfit_since) = (status, (!is_fit).then_some(since));
    }
}

impl Findings {
    /// Notes a registration with an initial status, which a known check ignores.
    pub(super) fn register(&mut self, now: Moment, id: &str, initial: CheckStatus) {
        let finding = self.0.entry(id.into()).or_default();
        if finding.status.is_none() {
            finding.set(now, Some(initial));
            finding.failures = 0;
        }
    }

    /// Notes a report, or the end of a TTL.
    pub(super) fn report(&mut self, now: Moment, id: &str, status: CheckStatus) {
        self.0.entry(id.into()).or_default().set(now, Some(status));
    }

    /// Notes that a check is not registered any more.
    pub(super) fn remove(&mut self, now: Moment, id: &str) {
        if let Some(finding) = self.0.get_mut(&CheckId::from(id)) {
            finding.set(now, None);
        }
    }

    /// Notes the result of a run of a check that turns critical after this many failures.
    pub(super) fn ran(&mut self, now: Moment, id: &CheckId, status: CheckStatus, threshold: u32) {
        let finding = self.0.entry(id.clone()).or_default();
        finding.failures = if status == CheckStatus::Critical { finding.failures + 1 } else { 0 };
        // A check that is critical already stays so.
        if status != CheckStatus::Critical || finding.failures >= threshold {
            finding.set(now, Some(status));
        }
    }

    /// Notes a loss of the data folder, which has the number of failed runs.
    pub(super) fn forget_runs(&mut self) {
        self.0.values_mut().for_each(|finding| finding.failures = 0);
    }

    /// Updates the alias. It follows all other checks of its service, and of the node.
    pub(super) fn follow(&mut self, now: Moment) {
        if self.status(ALIAS).is_none() {
            return;
        }
        let others = self.0.iter().filter(|(id, _)| id.as_str() != ALIAS);
        let worst = others.filter_map(|(_, finding)| finding.status).max();
        let status = match self.status(PROBE) {
            // Its service is not registered.
            None => CheckStatus::Critical,
            Some(_) => worst.unwrap_or_default(),
        };
        self.report(now, ALIAS, status);
    }

    /// Takes over what an agent with a new data folder adopted from the catalog.
    pub(super) fn adopt(&mut self, now: Moment, checks: &[Check]) {
        let statuses: BTreeMap<_, _> = checks.iter().map(|check| (check.id.clone(), check.status)).collect();
        for id in statuses.keys() {
            self.0.entry(id.clone()).or_default();
        }
        for (id, finding) in &mut self.0 {
            let status = statuses.get(id).copied();
            if finding.status != status {
                finding.set(now, status);
                finding.failures = 0;
            }
        }
    }

    /// Returns the status of a check; `None` if it is not registered.
    pub(super) fn status(&self, id: &str) -> Option<CheckStatus> {
        self.0.get(&CheckId::from(id))?.status
    }

    /// Returns the moment since which no session may depend on a check.
    pub(super) fn unfit_since(&self, id: &CheckId) -> Option<Moment> {
        self.0.get(id)?.unfit_since
    }

    /// Returns the first check whose status in the registry is not the known one.
    pub(super) fn difference(&self, checks: &[Check]) -> Option<String> {
        let known = |(id, finding): (&CheckId, &Finding)| Some((id.clone(), finding.status?));
        let known: BTreeMap<_, _> = self.0.iter().filter_map(known).collect();
        let found: BTreeMap<_, _> = checks.iter().map(|check| (check.id.clone(), check.status)).collect();
        let differs = known.keys().chain(found.keys()).find(|id| known.get(*id) != found.get(*id))?;
        Some(format!(
            "check {differs} is {:?} in the registry, and was found {:?}",
            found.get(differs),
            known.get(differs)
        ))
    }
}
