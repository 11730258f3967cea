//! A leader with a hanging disk, on real processes: it transfers leadership at once, no session is
//! lost, and writes continue.
//!
//! | module | contents |
//! |---|---|
//! | `hang` | a disk that hangs, by means of `strace` |
//! | `clients` | renewed sessions, and a writer |
//! | `load` | full load on a healthy disk, under which no leader steps down |

pub mod clients;
pub mod hang;
pub mod load;

use crate::dialect::let_pass;
use crate::fleet::{Fleet, wait_until};
use clients::{Answers, Clients, Failed};
use hang::{CHECKPOINT_WRITER, Hang, LOG_WRITER};
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// The number of renewed sessions.
pub const SESSIONS: usize = 50;
/// The longest time without an acknowledged write. It covers the leader's own limit of 1 s for a
/// disk without durable progress, the transfer of leadership, and the agent's discovery of the next
/// leader.
const GAP_LIMIT: Duration = Duration::from_secs(2);
/// The undisturbed time before the disk hangs.
const PEACE: Duration = Duration::from_secs(3);
/// The time after the disk resumes within which sessions would end that had expired by the leader's
/// clock.
const AFTERMATH: Duration = Duration::from_secs(4);

/// The outcome of one hang.
#[derive(Clone, Debug, Serialize)]
pub struct Hung {
    /// The duration of the hang.
    pub seconds: f64,
    /// The leaders before and after.
    pub leaders: (String, String),
    /// The longest time without an acknowledged write.
    pub gap_seconds: f64,
    /// The number of acknowledged writes.
    pub written: usize,
    /// The reasons of failed writes.
    pub failed: Vec<String>,
    /// The number of acknowledged renewals.
    pub renewed: usize,
    /// The reasons of failed renewals.
    pub unrenewed: Vec<String>,
    /// The number of sessions that ended.
    pub lost: usize,
    /// Descriptions of all broken expectations.
    pub broken: Vec<String>,
}

/// Hangs the disk of the leader of a new cluster, with its data in this folder, for `length`.
pub fn hang(folder: &Path, length: Duration) -> Hung {
    let fleet = Fleet::start(folder, "3");
    let clients = Clients::start(&fleet.client(), SESSIONS, "stall/written");
    let_pass(PEACE);
    let before = fleet.leader();
    let process = fleet.pid(&before).parse().expect("a number");
    let hanging = Hang::start(process, &[LOG_WRITER, CHECKPOINT_WRITER], length * 4);
    let_pass(length);
    let after = fleet.leader();
    hanging.end();
    let_pass(AFTERMATH);
    let alive = |session: &&String| fleet.client().session_info(session).is_some();
    let lost = SESSIONS - clients.sessions().iter().filter(alive).count();
    let answers = clients.end();
    wait_until(|| caught_up(&fleet));
    fleet.stop();
    let mut hung = Hung::new(length, (before, after), lost, answers);
    hung.judge();
    hung
}

/// Returns `true` if every server is a voter and has the whole log.
fn caught_up(fleet: &Fleet) -> bool {
    let servers = fleet.servers();
    let newest = servers.iter().filter_map(|server| server["LastIndex"].as_u64()).max();
    servers.iter().all(|server| server["Voter"] == true && server["LastIndex"].as_u64() == newest)
}

fn reasons(failed: Vec<Failed>) -> Vec<String> {
    failed.into_iter().map(|failed| failed.reason).collect()
}

impl Hung {
    fn new(length: Duration, leaders: (String, String), lost: usize, answers: Answers) -> Self {
        Self {
            seconds: length.as_secs_f64(),
            leaders,
            gap_seconds: answers.longest_gap().as_secs_f64(),
            written: answers.written.len(),
            failed: reasons(answers.failed),
            renewed: answers.renewed,
            unrenewed: reasons(answers.unrenewed),
            lost: lost.max(answers.lost),
            broken: Vec::new(),
        }
    }

    fn judge(&mut self) {
        let mut broken = Vec::new();
        if self.leaders.0 == self.leaders.1 {
            broken.push(format!("{} led to the end, with a disk that hung", self.leaders.0));
        }
        if self.gap_seconds > GAP_LIMIT.as_secs_f64() {
            let gap = self.gap_seconds;
            broken.push(format!("no write was acknowledged for {gap:.2} s, not at most {GAP_LIMIT:?}"));
        }
        if self.lost > 0 {
            broken.push(format!("{} of {SESSIONS} renewed sessions were lost", self.lost));
        }
        let fails = [("writes", &self.failed), ("renewals", &self.unrenewed)];
        for (what, reasons) in fails.into_iter().filter(|(_, reasons)| !reasons.is_empty()) {
            broken.push(format!("{} {what} failed: {}", reasons.len(), reasons[0]));
        }
        self.broken = broken;
    }
}

impl fmt::Display for Hung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "disk of {} hung for {} s: {} led then, longest time without a write {:.2} s (bound: {GAP_LIMIT:?}), {} \
             writes, {} renewals, {} of {SESSIONS} sessions lost (bound: 0)",
            self.leaders.0,
            self.seconds,
            self.leaders.1,
            self.gap_seconds,
            self.written,
            self.renewed,
            self.lost
        )?;
        self.broken.iter().try_for_each(|line| writeln!(f, "BROKEN: {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn hung(leaders: [&str; 2], gap_ms: u64, lost: usize, failed: &[&str]) -> String {
        let begun = Instant::now();
        let answers = Answers {
            written: vec![begun, begun + Duration::from_millis(gap_ms)],
            failed: failed
                .iter()
                .map(|reason| Failed { span: (begun, begun), reason: (*reason).into() })
                .collect(),
            ..Answers::default()
        };
        let [before, after] = leaders.map(str::to_owned);
        let mut hung = Hung::new(Duration::from_secs(30), (before, after), lost, answers);
        hung.judge();
        hung.broken.join("; ")
    }

    #[test]
    fn clean_hand_over_is_accepted() {
        assert_eq!(hung(["s1", "s2"], 1_900, 0, &[]), "");
    }

    #[test]
    fn hang_costs_are_reported() {
        assert!(hung(["s1", "s1"], 100, 0, &[]).contains("led to the end"));
        assert!(hung(["s1", "s2"], 2_100, 0, &[]).contains("2.10 s"));
        assert!(hung(["s1", "s2"], 100, 50, &[]).contains("50 of 50"));
        assert!(hung(["s1", "s2"], 100, 0, &["500"]).contains("1 writes failed: 500"));
    }
}
