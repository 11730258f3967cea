//! Publishes the server's figures and its frontend's measurements: as metrics, and as the health
//! report.

use crate::health::{Health, Report};
use crate::metrics::{MEMBER_STATUSES, SERVER, show_flag};
use lockmesh_core::frontend::{AnswerKind, Figures, FollowerFigures, NotReady};
use lockmesh_core::observed::Observed;
use lockmesh_core::state::MemberCounts;
use lockmesh_protocol::id::NodeName;
use std::time::{Duration, Instant};

/// Publishes figures; remembers those published last.
pub(super) struct Publisher {
    health: Health,
    /// The servers that have their own series.
    followers: Vec<NodeName>,
    leader_changes: u64,
}

impl Publisher {
    pub(super) fn new(health: Health) -> Self {
        Self { health, followers: Vec::new(), leader_changes: 0 }
    }

    /// Publishes the server's figures; the driver's time 0 was at `started`.
    pub(super) fn show(&mut self, figures: &Figures, not_ready: Vec<NotReady>, started: Instant) {
        show_levels(figures);
        self.show_followers(&figures.followers);
        SERVER.counts.leader_changes.inc_by(figures.leader_changes - self.leader_changes);
        self.leader_changes = figures.leader_changes;
        let is_sick =
            |reason: &NotReady| matches!(reason, NotReady::DiskFailing(_) | NotReady::DiskStalled(_));
        show_flag(&SERVER.levels.disk_healthy, !not_ready.iter().any(is_sick));
        let unpersisted_since =
            figures.unpersisted_since.map(|since| started + Duration::from_micros(since.0));
        self.health.report(Report { at: Instant::now(), not_ready, unpersisted_since });
    }

    /// Removes the series of servers that this one does not lead, so that no dashboard shows stale
    /// values.
    fn show_followers(&mut self, followers: &[FollowerFigures]) {
        let (lag, contact) = (&SERVER.levels.follower_lag, &SERVER.levels.follower_contact);
        if !self.followers.iter().eq(followers.iter().map(|follower| &follower.node)) {
            lag.reset();
            contact.reset();
            self.followers = followers.iter().map(|follower| follower.node.clone()).collect();
        }
        for follower in followers {
            let label = [follower.node.as_str()];
            lag.with_label_values(&label).set(follower.lag.cast_signed());
            contact.with_label_values(&label).set(follower.last_contact.as_secs_f64());
        }
    }
}

fn show_levels(figures: &Figures) {
    show_flag(&SERVER.levels.is_leader, figures.is_leader);
    show_flag(&SERVER.levels.leader_known, figures.is_leader_known);
    show_flag(&SERVER.levels.corrupt, figures.is_corrupt);
    show_flag(&SERVER.levels.states_differ, figures.states_differ);
    show_flag(&SERVER.levels.majority_can_write, figures.can_majority_write);
    show_flag(&SERVER.levels.lowered_priority, figures.has_lowered_priority);
    show_flag(&SERVER.levels.node_brake, figures.is_braking);
    let levels = [
        (&SERVER.levels.term, figures.term.0),
        (&SERVER.levels.last_index, figures.last_index.0),
        (&SERVER.levels.commit_index, figures.commit_index.0),
        (&SERVER.levels.applied_index, figures.applied_index.0),
        (&SERVER.levels.log_bytes, figures.log_bytes as u64),
        (&SERVER.levels.sessions, figures.sessions as u64),
        (&SERVER.levels.locks_held, figures.locks_held as u64),
        (&SERVER.levels.lock_waiters, figures.lock_waiters as u64),
        (&SERVER.levels.keys, figures.keys as u64),
        (&SERVER.levels.watches, figures.watches as u64),
        (&SERVER.levels.node_checks_open, figures.open_checks as u64),
        (&SERVER.levels.nodes_without_renewals, figures.nodes_without_renewals as u64),
        (&SERVER.levels.nodes_with_failed_probes, figures.nodes_with_failed_probes as u64),
        (&SERVER.levels.mesh_members, figures.mesh_members as u64),
        (&SERVER.levels.mesh_cells, figures.mesh_cells as u64),
        (&SERVER.levels.gossip_key, u64::from(figures.gossip_key)),
    ];
    levels.iter().for_each(|(gauge, level)| gauge.set(level.cast_signed()));
    let MemberCounts { alive, restarting, left, failed } = figures.members;
    for (status, count) in MEMBER_STATUSES.iter().zip([alive, restarting, left, failed]) {
        SERVER.levels.members.with_label_values(&[status]).set((count as u64).cast_signed());
    }
}

/// Adds a turn's observations to the metrics.
pub(super) fn count(observed: &Observed) {
    observed.commits.iter().for_each(|took| SERVER.times.commits.observe(took.as_secs_f64()));
    observed.lock_waits.iter().for_each(|took| SERVER.times.lock_waits.observe(took.as_secs_f64()));
    for ((losses, sessions), locks) in
        observed.losses.iter().zip(&SERVER.counts.losses).zip(&SERVER.counts.locks_lost)
    {
        if losses.sessions > 0 {
            sessions.inc_by(losses.sessions);
            locks.inc_by(losses.locks);
        }
    }
    SERVER.counts.renewals_acknowledged.inc_by(observed.judge.renewals_acknowledged);
    SERVER.counts.renewals_refused.inc_by(observed.judge.renewals_refused);
    SERVER.counts.node_checks.inc_by(observed.judge.checks_opened);
    SERVER.counts.saved_by_agents.inc_by(observed.judge.saved_by_agents);
    SERVER.counts.forged_answers.inc_by(observed.judge.forged_answers);
    SERVER.counts.given_up_by_answer.inc_by(observed.judge.given_up_by_answer);
    SERVER.counts.mesh_syncs.inc_by(observed.mesh.syncs);
    SERVER.counts.disk_stalls.inc_by(observed.disk_stalls);
    SERVER.counts.requests_timed_out.inc_by(observed.requests_timed_out);
    for (events, counter) in observed.mesh.events.iter().zip(&SERVER.counts.user_events) {
        counter.inc_by(*events);
    }
    for (accusations, counter) in observed.judge.accusations.iter().zip(&SERVER.counts.accusations) {
        counter.inc_by(*accusations);
    }
    for (verdicts, counter) in observed.judge.verdicts.iter().zip(&SERVER.counts.node_verdicts) {
        counter.inc_by(*verdicts);
    }
}

/// Records the duration of a request.
pub(super) fn count_request(kind: AnswerKind, took: Duration) {
    let number = match kind {
        AnswerKind::Read => 0,
        AnswerKind::BlockingRead => 1,
        AnswerKind::Write => 2,
        AnswerKind::Other => 3,
    };
    SERVER.times.requests[number].observe(took.as_secs_f64());
}
