//! Publishes the server's figures and its frontend's measurements: as metrics, and as the health
//! report.

use crate::health::{Health, Report};
use crate::metrics;
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
        metrics::LEADER_CHANGES.inc_by(figures.leader_changes - self.leader_changes);
        self.leader_changes = figures.leader_changes;
        let is_sick =
            |reason: &NotReady| matches!(reason, NotReady::DiskFailing(_) | NotReady::DiskStalled(_));
        metrics::show_flag(&metrics::DISK_HEALTHY, !not_ready.iter().any(is_sick));
        let unpersisted_since =
            figures.unpersisted_since.map(|since| started + Duration::from_micros(since.0));
        self.health.report(Report { at: Instant::now(), not_ready, unpersisted_since });
    }

    /// Removes the series of servers that this one does not lead, so that no dashboard shows stale
    /// values.
    fn show_followers(&mut self, followers: &[FollowerFigures]) {
        let (lag, contact) = (&metrics::FOLLOWER_LAG, &metrics::FOLLOWER_CONTACT);
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
    metrics::show_flag(&metrics::IS_LEADER, figures.is_leader);
    metrics::show_flag(&metrics::LEADER_KNOWN, figures.is_leader_known);
    metrics::show_flag(&metrics::CORRUPT, figures.is_corrupt);
    metrics::show_flag(&metrics::STATES_DIFFER, figures.states_differ);
    metrics::show_flag(&metrics::MAJORITY_CAN_WRITE, figures.can_majority_write);
    metrics::show_flag(&metrics::LOWERED_PRIORITY, figures.has_lowered_priority);
    metrics::show_flag(&metrics::NODE_BRAKE, figures.is_braking);
    let levels = [
        (&metrics::VOTERS, figures.voters as u64),
        (&metrics::FAILURE_TOLERANCE, figures.failure_tolerance as u64),
        (&metrics::TERM, figures.term.0),
        (&metrics::LAST_INDEX, figures.last_index.0),
        (&metrics::COMMIT_INDEX, figures.commit_index.0),
        (&metrics::APPLIED_INDEX, figures.applied_index.0),
        (&metrics::LOG_BYTES, figures.log_bytes as u64),
        (&metrics::SESSIONS, figures.sessions as u64),
        (&metrics::LOCKS_HELD, figures.locks_held as u64),
        (&metrics::LOCK_WAITERS, figures.lock_waiters as u64),
        (&metrics::DEADLOCKS, figures.deadlocks.existing),
        (&metrics::DEADLOCKS_FOUND, figures.deadlocks.found),
        (&metrics::DEADLOCKS_UNKNOWN, figures.deadlocks.unknown),
        (&metrics::KEYS, figures.keys as u64),
        (&metrics::WATCHES, figures.watches as u64),
        (&metrics::VIEWS, figures.views as u64),
        (&metrics::VIEW_WAITERS, figures.view_waiters as u64),
        (&metrics::NODE_CHECKS_OPEN, figures.open_checks as u64),
        (&metrics::NODES_WITHOUT_RENEWALS, figures.nodes_without_renewals as u64),
        (&metrics::NODES_WITH_FAILED_PROBES, figures.nodes_with_failed_probes as u64),
        (&metrics::MESH_MEMBERS, figures.mesh_members as u64),
        (&metrics::MESH_CELLS, figures.mesh_cells as u64),
        (&metrics::GOSSIP_KEY, u64::from(figures.gossip_key)),
    ];
    levels.iter().for_each(|(gauge, level)| gauge.set(level.cast_signed()));
    let MemberCounts { alive, restarting, left, failed } = figures.members;
    for (gauge, count) in metrics::MEMBERS.iter().zip([alive, restarting, left, failed]) {
        gauge.set((count as u64).cast_signed());
    }
}

/// Adds a turn's observations to the metrics.
pub(super) fn count(observed: &Observed) {
    observed.commits.iter().for_each(|took| metrics::COMMITS.observe(took.as_secs_f64()));
    observed.lock_waits.iter().for_each(|took| metrics::LOCK_WAITS.observe(took.as_secs_f64()));
    for ((losses, sessions), locks) in
        observed.losses.iter().zip(metrics::LOSSES.iter()).zip(metrics::LOCKS_LOST.iter())
    {
        if losses.sessions > 0 {
            sessions.inc_by(losses.sessions);
            locks.inc_by(losses.locks);
        }
    }
    let renewals = [observed.judge.renewals_acknowledged, observed.judge.renewals_refused];
    metrics::add(&metrics::RENEWALS[..], &renewals);
    metrics::NODE_CHECKS.inc_by(observed.judge.checks_opened);
    metrics::SAVED_BY_AGENTS.inc_by(observed.judge.saved_by_agents);
    metrics::FORGED_ANSWERS.inc_by(observed.judge.forged_answers);
    metrics::GIVEN_UP_BY_ANSWER.inc_by(observed.judge.given_up_by_answer);
    metrics::MESH_SYNCS.inc_by(observed.mesh.syncs);
    metrics::DISK_STALLS.inc_by(observed.disk_stalls);
    metrics::VIEWS_ENDED_IDLE.inc_by(observed.views_ended_idle);
    metrics::BACKUPS_REFUSED.inc_by(observed.backups_refused);
    metrics::REQUESTS_TIMED_OUT.inc_by(observed.requests_timed_out);
    metrics::add(&metrics::USER_EVENTS[..], &observed.mesh.events);
    metrics::add(&metrics::SUSPICIONS[..], &observed.judge.suspicions);
    metrics::add(&metrics::SUSPICIONS_BY_OLD_NAME[..], &observed.judge.suspicions);
    metrics::add(&metrics::NODE_VERDICTS[..], &observed.judge.verdicts);
}

/// Records the duration of a request.
pub(super) fn count_request(kind: AnswerKind, took: Duration) {
    let number = match kind {
        AnswerKind::Read => 0,
        AnswerKind::BlockingRead => 1,
        AnswerKind::Write => 2,
        AnswerKind::Other => 3,
    };
    metrics::REQUESTS[number].observe(took.as_secs_f64());
}
