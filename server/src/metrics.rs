//! The server's metrics, in the process's one Prometheus registry.
//!
//! Every part of the server may use these metrics; they refer to no part of it. Metrics that are
//! read at scrape time are in [`crate::readings`]. The registry, its text and its units are in
//! [`lockmesh_net::metrics`].
//!
//! **Invariant:** every series exists from the start, at zero, except per-peer series, which only a
//! leader exports. `deploy/metrics.md` explains each to operators, and a test keeps that page equal
//! to the tables.

use lockmesh_core::observed::{EVENT_OUTCOMES, LOSS_CAUSES, SUSPICION_OUTCOMES};
use lockmesh_net::metrics::table::Row;
use lockmesh_net::metrics::{SHORT_BUCKETS, WAIT_BUCKETS};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{Response, Unavailable};
use prometheus::{Gauge, GaugeVec, Histogram, IntCounter, IntGauge, IntGaugeVec};

/// The buckets of the number of events per turn.
const TURN_BUCKETS: [f64; 8] = [0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];

/// The labels of a request's kind, in the order of [`REQUESTS`].
const REQUEST_KINDS: [&str; 4] = ["read", "blocking", "write", "other"];

/// The labels of a command's outcome, in the order of [`CallOutcome`].
const OUTCOMES: [&str; 18] = [
    "done",
    "false",
    "lock_delay",
    "granted",
    "queued",
    "txn_failed",
    "refused",
    "renewed",
    "unknown_session",
    "not_leader",
    "overloaded",
    "disk",
    "denied",
    "unknown",
    "too_long",
    "removed",
    "not_admitted",
    "corrupt",
];

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOutcome {
    Done,
    False,
    LockDelay,
    Granted,
    Queued,
    TxnFailed,
    Refused,
    Renewed,
    UnknownSession,
    NotLeader,
    Overloaded,
    Disk,
    Denied,
    Unknown,
    TooLong,
    Removed,
    NotAdmitted,
    Corrupt,
}

/// The labels of a verdict's window, in the order of [`NODE_VERDICTS`].
const WINDOWS: [&str; HealthWindow::ALL.len()] = {
    let [first, second, third] = HealthWindow::ALL;
    [first.as_str(), second.as_str(), third.as_str()]
};

/// The labels of a member's status, in the order of [`MEMBERS`].
const MEMBER_STATUSES: [&str; 4] = ["alive", "restarting", "left", "failed"];

lockmesh_net::metrics! {
    pub(crate) IS_LEADER: IntGauge = "lockmesh_server_is_leader", "1 if this server leads and serves";
    pub(crate) VOTERS: IntGauge = "lockmesh_server_voters", "Voting servers";
    pub(crate) FAILURE_TOLERANCE: IntGauge = "lockmesh_server_failure_tolerance",
        "Healthy voters that may fail before the quorum is lost, on the leader";
    pub(crate) LEADER_KNOWN: IntGauge = "lockmesh_server_leader_known", "1 if this server knows the leader";
    pub(crate) LEADER_CHANGES: IntCounter = "lockmesh_server_leader_changes_total",
        "Leader changes seen by this server after the first leader";
    pub(crate) TERM: IntGauge = "lockmesh_server_raft_term", "Current Raft term of this server";
    pub(crate) LAST_INDEX: IntGauge = "lockmesh_server_raft_last_index",
        "Last index of the log, durable or not";
    pub(crate) COMMIT_INDEX: IntGauge = "lockmesh_server_raft_commit_index", "Last committed index";
    pub(crate) APPLIED_INDEX: IntGauge = "lockmesh_server_raft_applied_index", "Last applied index";
    pub(crate) FOLLOWER_LAG: IntGaugeVec = "lockmesh_server_follower_lag_entries",
        "Log entries that another server lacks, on the leader", by ["server"];
    pub(crate) FOLLOWER_CONTACT: GaugeVec = "lockmesh_server_follower_last_contact_seconds",
        "Time since the last message from another server, on the leader", by ["server"];
    pub(crate) DISK_HEALTHY: IntGauge = "lockmesh_server_disk_healthy",
        "0 while the disk rejects writes or is stalled for `storage.stall_timeout`";
    pub(crate) MAJORITY_CAN_WRITE: IntGauge = "lockmesh_server_majority_can_write",
        "0 while the disks of a majority of servers reject writes, as far as this server knows";
    pub(crate) REQUESTS_TIMED_OUT: IntCounter = "lockmesh_server_requests_timed_out_total",
        "Requests that timed out after 6 s at this leader; their outcome is unknown";
    pub(crate) DISK_STALLS: IntCounter = "lockmesh_server_disk_stalls_total",
        "Disk stalls: no write became durable for `storage.stall_timeout`";
    pub(crate) LOWERED_PRIORITY: IntGauge = "lockmesh_server_lowered_election_priority",
        "1 while this server has the lowest election priority after disk stalls";
    pub(crate) FSYNCS: Histogram = "lockmesh_server_fsync_seconds",
        "Duration of one commit of the log to disk", in SHORT_BUCKETS;
    pub(crate) UNFILLED_SEGMENTS: IntCounter = "lockmesh_server_unfilled_log_segments_total",
        "Segments of the log that were begun before they were filled with zeros: their commits take longer";
    pub(crate) COMMITS: Histogram = "lockmesh_server_commit_seconds",
        "Time from proposing a batch of commands to its commit, on the leader", in SHORT_BUCKETS;
    pub(crate) APPLIES: Histogram = "lockmesh_server_apply_seconds",
        "Duration of applying a batch of committed entries", in SHORT_BUCKETS;
    pub(crate) CHECKPOINTS: Histogram = "lockmesh_server_checkpoint_seconds",
        "Duration of writing a checkpoint of the state to disk", in SHORT_BUCKETS;
    pub(crate) REQUESTS: [Histogram; REQUEST_KINDS.len()] = "lockmesh_server_request_seconds",
        "Time from a request's arrival to its answer", by ["kind"], of REQUEST_KINDS, in SHORT_BUCKETS;
    pub(crate) QUEUE_WAITS: Histogram = "lockmesh_server_queue_wait_seconds",
        "Time that the oldest event of a turn waited for the driver", in SHORT_BUCKETS;
    pub(crate) EVENTS: IntCounter = "lockmesh_server_events_total", "Events handled by the driver";
    pub(crate) TURN_EVENTS: Histogram = "lockmesh_server_turn_events",
        "Events handled in one turn of the driver", in TURN_BUCKETS;
    WRITES: [IntCounter; OUTCOMES.len()] = "lockmesh_server_writes_total",
        "Commands answered, by outcome", by ["outcome"], of OUTCOMES;
    pub(crate) READS: IntCounter = "lockmesh_server_reads_total", "Queries answered";
    pub(crate) SESSIONS: IntGauge = "lockmesh_server_sessions", "Sessions";
    pub(crate) KEYS: IntGauge = "lockmesh_server_keys", "Keys";
    pub(crate) LOCKS_HELD: IntGauge = "lockmesh_server_locks_held", "Keys locked by a session";
    pub(crate) LOCK_WAITERS: IntGauge = "lockmesh_server_lock_waiters", "Waiters in the queues of all locks";
    pub(crate) DEADLOCKS: IntGauge = "lockmesh_server_deadlocks",
        "Circles of sessions that wait for each other's locks, of the last 16 found";
    pub(crate) DEADLOCKS_FOUND: IntGauge = "lockmesh_server_deadlocks_found",
        "Deadlocks found in the cluster's life";
    pub(crate) DEADLOCKS_UNKNOWN: IntGauge = "lockmesh_server_deadlock_searches_unknown",
        "Searches for a deadlock that reached their limit, in the cluster's life";
    pub(crate) LOCK_WAITS: Histogram = "lockmesh_server_lock_wait_seconds",
        "Time from joining a lock's queue to the grant", in WAIT_BUCKETS;
    pub(crate) LOSSES: [IntCounter; LOSS_CAUSES.len()] = "lockmesh_server_losses_total",
        "Sessions that ended while this server led, by cause", by ["cause"], of LOSS_CAUSES;
    pub(crate) LOCKS_LOST: [IntCounter; LOSS_CAUSES.len()] = "lockmesh_server_locks_lost_total",
        "Locks that ended with their session, while this server led", by ["cause"], of LOSS_CAUSES;
    pub(crate) MEMBERS: [IntGauge; MEMBER_STATUSES.len()] = "lockmesh_server_members",
        "Registered agents, by status", by ["status"], of MEMBER_STATUSES;
    pub(crate) RENEWALS: [IntCounter; 2] = "lockmesh_server_lease_renewals_total",
        "Renewals of node leases that this server handled as the leader, by outcome", by ["outcome"], of ["acknowledged", "refused"];
    pub(crate) NODE_CHECKS: IntCounter = "lockmesh_server_node_checks_total",
        "Checks of silent nodes opened by this leader";
    pub(crate) NODE_CHECKS_OPEN: IntGauge = "lockmesh_server_node_checks_open",
        "Open checks of silent nodes, on the leader";
    pub(crate) NODES_WITHOUT_RENEWALS: IntGauge = "lockmesh_server_nodes_without_renewals",
        "Nodes that answer challenges but do not renew, on the leader";
    pub(crate) NODES_WITH_FAILED_PROBES: IntGauge = "lockmesh_server_nodes_with_failed_probes",
        "Nodes that renew their leases but that agents cannot probe, on the leader";
    pub(crate) NODE_VERDICTS: [IntCounter; HealthWindow::ALL.len()] = "lockmesh_server_node_verdicts_total",
        "Verdicts on silent nodes applied while this server led, by window", by ["window"], of WINDOWS;
    pub(crate) NODE_BRAKE: IntGauge = "lockmesh_server_node_brake",
        "1 if too many nodes are silent: this leader fails none of them before 15 seconds";
    pub(crate) MESH_MEMBERS: IntGauge = "lockmesh_server_mesh_members", "Agents in the mesh";
    pub(crate) MESH_CELLS: IntGauge = "lockmesh_server_mesh_cells",
        "Cells of the mesh, each with at most 1,024 agents";
    pub(crate) MESH_SYNCS: IntCounter = "lockmesh_server_mesh_syncs_total",
        "Replies to agents with the mesh news that they lacked (anti-entropy)";
    pub(crate) MESH_PUSHES: IntCounter = "lockmesh_server_mesh_pushes_total", "Pushes of mesh news to agents";
    pub(crate) MESH_PUSHES_UNSENT: IntCounter = "lockmesh_server_mesh_pushes_unsent_total",
        "Pushes of mesh news not sent because too many were in flight";
    pub(crate) USER_EVENTS: [IntCounter; EVENT_OUTCOMES.len()] = "lockmesh_server_user_events_total",
        "User events of agents, by outcome", by ["outcome"], of EVENT_OUTCOMES;
    pub(crate) GOSSIP_KEY: IntGauge = "lockmesh_server_gossip_key_number", "Number of the gossip key in use";
    pub(crate) SUSPICIONS: [IntCounter; SUSPICION_OUTCOMES.len()] = "lockmesh_server_suspicions_total",
        "Suspicions reported by agents after failed probes in the mesh, by outcome", by ["outcome"], of SUSPICION_OUTCOMES;
    pub(crate) SUSPICIONS_BY_OLD_NAME: [IntCounter; SUSPICION_OUTCOMES.len()] = "lockmesh_server_accusations_total",
        "Former name of lockmesh_server_suspicions_total", by ["outcome"], of SUSPICION_OUTCOMES;
    pub(crate) CHALLENGES: IntCounter = "lockmesh_server_challenges_total", "Challenges sent to agents";
    pub(crate) CHALLENGES_UNANSWERED: IntCounter = "lockmesh_server_challenges_unanswered_total",
        "Challenges that the agent did not answer in time";
    pub(crate) CHALLENGES_UNSENT: IntCounter = "lockmesh_server_challenges_unsent_total",
        "Challenges not sent because too many were in flight";
    pub(crate) QUESTIONS: IntCounter = "lockmesh_server_agent_questions_total",
        "Requests to agents to challenge another node";
    pub(crate) QUESTIONS_UNSENT: IntCounter = "lockmesh_server_agent_questions_unsent_total",
        "Requests to challenge another node that were not sent because too many were in flight";
    pub(crate) SAVED_BY_AGENTS: IntCounter = "lockmesh_server_node_checks_saved_by_agents_total",
        "Answers of silent nodes that reached this leader first through another agent";
    pub(crate) FORGED_ANSWERS: IntCounter = "lockmesh_server_forged_answers_total",
        "Answers of silent nodes that the node did not make: the forwarding agent forged them";
    pub(crate) GIVEN_UP_BY_ANSWER: IntCounter = "lockmesh_server_sessions_given_up_by_answer_total",
        "Sessions ended by this leader because a node's answer to a challenge listed them as given up";
    pub(crate) WATCHES: IntGauge = "lockmesh_server_watches", "Parked blocking queries";
    pub(crate) VIEWS: IntGauge = "lockmesh_server_views", "Long answers that are being read in parts";
    pub(crate) VIEW_WAITERS: IntGauge = "lockmesh_server_view_waiters",
        "Requests that wait to read a long answer in parts";
    pub(crate) VIEWS_ENDED_IDLE: IntCounter = "lockmesh_server_views_ended_idle_total",
        "Long answers that were ended because they were not read and others waited";
    pub(crate) BACKUPS_REFUSED: IntCounter = "lockmesh_server_backups_refused_total",
        "Backups and snapshots that were refused because too many were being read";
    pub(crate) LOG_BYTES: IntGauge = "lockmesh_server_log_bytes", "Bytes of replicated log kept in memory";
    DATABASE_BYTES: IntGaugeVec = "lockmesh_server_database_bytes",
        "Size of a database file in bytes", by ["file"], of ["log", "state"];
    pub(crate) STATE_FREE_BYTES: IntGauge = "lockmesh_server_state_free_bytes",
        "Bytes of state.redb that hold nothing, as of the last idle moment";
    pub(crate) CORRUPT: IntGauge = "lockmesh_server_corrupt",
        "1 if a corruption check found this server's state corrupt: it answers no agent";
    pub(crate) STATES_DIFFER: IntGauge = "lockmesh_server_states_differ",
        "1 if this leader's newest corruption check found different states";
    pub(crate) CERTIFICATE_EXPIRY: Gauge = "lockmesh_server_certificate_expiry_timestamp_seconds",
        "Expiry time of the server's certificate or of its authority, whichever is earlier";
    pub(crate) LAST_BACKUP: Gauge = "lockmesh_server_last_backup_timestamp_seconds",
        "Time at which this server last sent a complete backup; 0 if none since its start";
}

/// Registers these metrics.
pub(crate) fn show() {
    register();
}

/// Returns the metrics of a server.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().chain(crate::readings::READINGS.iter().map(|reading| &reading.row))
}

/// Counts an answer to a command.
pub(crate) fn count_write(response: &Response) {
    WRITES[outcome(response) as usize].inc();
}

/// Adds counts to counters, in the same order.
pub(crate) fn add(counters: &[IntCounter], counts: &[u64]) {
    counters.iter().zip(counts).for_each(|(counter, count)| counter.inc_by(*count));
}

/// Sets the size of a database file, `log` or `state`.
pub(crate) fn show_database(file: &str, bytes: u64) {
    DATABASE_BYTES.with_label_values(&[file]).set(bytes.cast_signed());
}

/// Sets a gauge to 0 or 1.
pub(crate) fn show_flag(gauge: &IntGauge, is_so: bool) {
    gauge.set(i64::from(is_so));
}

fn outcome(response: &Response) -> CallOutcome {
    match response {
        Response::Applied(applied) => match &applied.reply {
            Reply::Succeeded(false) => CallOutcome::False,
            Reply::Delayed { .. } => CallOutcome::LockDelay,
            Reply::Granted { .. } | Reply::GrantedAll(_) => CallOutcome::Granted,
            Reply::Queued { .. } => CallOutcome::Queued,
            Reply::TxnFailed(_) => CallOutcome::TxnFailed,
            Reply::Refused(_) => CallOutcome::Refused,
            _ => CallOutcome::Done,
        },
        Response::Renewed(Some(_)) => CallOutcome::Renewed,
        Response::Renewed(None) => CallOutcome::UnknownSession,
        Response::Unavailable(unavailable) => match unavailable {
            Unavailable::NotLeader { .. } => CallOutcome::NotLeader,
            Unavailable::Overloaded(_) => CallOutcome::Overloaded,
            Unavailable::Disk(_) => CallOutcome::Disk,
            Unavailable::Denied(_) | Unavailable::NoAccess(_) => CallOutcome::Denied,
            Unavailable::Unknown(_) => CallOutcome::Unknown,
            Unavailable::AnswerTooLong { .. } => CallOutcome::TooLong,
            Unavailable::Removed => CallOutcome::Removed,
            Unavailable::NotAdmitted(_) => CallOutcome::NotAdmitted,
            Unavailable::Corrupt => CallOutcome::Corrupt,
        },
        _ => CallOutcome::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::{CallOutcome, OUTCOMES, outcome};
    use lockmesh_protocol::rpc::{Response, Unavailable};

    #[test]
    fn outcomes_have_their_own_words() {
        let word = |unavailable| OUTCOMES[outcome(&Response::Unavailable(unavailable)) as usize];
        assert_eq!(word(Unavailable::NotLeader { leader: None }), "not_leader");
        assert_eq!(word(Unavailable::Disk("full".into())), "disk");
        assert_eq!(word(Unavailable::AnswerTooLong { limit: 1 }), "too_long");
        assert_eq!(word(Unavailable::Corrupt), "corrupt");
        assert_eq!(OUTCOMES[CallOutcome::UnknownSession as usize], "unknown_session");
    }
}
