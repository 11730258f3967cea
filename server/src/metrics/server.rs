//! The metrics of this process's server; each is described by its help.

use lockmesh_core::observed::{ACCUSATION_OUTCOMES, EVENT_OUTCOMES, LOSS_CAUSES};
use lockmesh_net::metrics::{SHORT_BUCKETS, WAIT_BUCKETS, registered};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::{Response, Unavailable};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts,
};
use std::sync::LazyLock;

/// The buckets of the number of events per turn.
const TURN_BUCKETS: [f64; 8] = [0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];

/// The labels of a request's kind, in the order of [`Times::requests`].
const REQUEST_KINDS: [&str; 4] = ["read", "blocking", "write", "other"];

/// The labels of a command's outcome, in the order of [`Outcome`].
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
enum Outcome {
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

/// The labels of a member's status.
pub(crate) const MEMBER_STATUSES: [&str; 4] = ["alive", "restarting", "left", "failed"];

/// The metrics of this process's server.
pub(crate) static SERVER: LazyLock<Server> = LazyLock::new(|| Server {
    times: Times::registered(),
    counts: Counts::registered(),
    agents: Agents::registered(),
    levels: Levels::registered(),
});

/// See the [module](self).
pub(crate) struct Server {
    pub(crate) times: Times,
    pub(crate) counts: Counts,
    pub(crate) agents: Agents,
    pub(crate) levels: Levels,
}

/// Histograms of durations and batch sizes.
pub(crate) struct Times {
    /// In the order of [`REQUEST_KINDS`].
    pub(crate) requests: [Histogram; REQUEST_KINDS.len()],
    pub(crate) commits: Histogram,
    pub(crate) fsyncs: Histogram,
    pub(crate) applies: Histogram,
    pub(crate) checkpoints: Histogram,
    pub(crate) queue_waits: Histogram,
    pub(crate) lock_waits: Histogram,
    pub(crate) turn_events: Histogram,
}

/// Counters.
pub(crate) struct Counts {
    pub(crate) events: IntCounter,
    /// In the order of [`Outcome`].
    writes: [IntCounter; OUTCOMES.len()],
    pub(crate) reads: IntCounter,
    pub(crate) leader_changes: IntCounter,
    pub(crate) saved_by_agents: IntCounter,
    pub(crate) forged_answers: IntCounter,
    pub(crate) given_up_by_answer: IntCounter,
    /// In the order of [`LOSS_CAUSES`], as the next.
    pub(crate) losses: [IntCounter; LOSS_CAUSES.len()],
    pub(crate) locks_lost: [IntCounter; LOSS_CAUSES.len()],
    pub(crate) renewals_acknowledged: IntCounter,
    pub(crate) renewals_refused: IntCounter,
    pub(crate) node_checks: IntCounter,
    /// In the order of [`ACCUSATION_OUTCOMES`].
    pub(crate) accusations: [IntCounter; ACCUSATION_OUTCOMES.len()],
    /// In the order of [`EVENT_OUTCOMES`].
    pub(crate) user_events: [IntCounter; EVENT_OUTCOMES.len()],
    pub(crate) mesh_syncs: IntCounter,
    pub(crate) disk_stalls: IntCounter,
    pub(crate) requests_timed_out: IntCounter,
    /// In the order of [`HealthWindow::ALL`].
    pub(crate) node_verdicts: [IntCounter; HealthWindow::ALL.len()],
}

/// Counters of the requests and pushes that this server sends to agents.
pub(crate) struct Agents {
    pub(crate) challenges: IntCounter,
    pub(crate) challenges_unanswered: IntCounter,
    pub(crate) challenges_unsent: IntCounter,
    pub(crate) questions: IntCounter,
    pub(crate) questions_unsent: IntCounter,
    pub(crate) mesh_pushes: IntCounter,
    pub(crate) mesh_pushes_unsent: IntCounter,
}

/// Gauges.
pub(crate) struct Levels {
    pub(crate) term: IntGauge,
    pub(crate) is_leader: IntGauge,
    pub(crate) leader_known: IntGauge,
    pub(crate) last_index: IntGauge,
    pub(crate) commit_index: IntGauge,
    pub(crate) applied_index: IntGauge,
    pub(crate) log_bytes: IntGauge,
    pub(crate) follower_lag: IntGaugeVec,
    pub(crate) follower_contact: GaugeVec,
    pub(crate) sessions: IntGauge,
    pub(crate) locks_held: IntGauge,
    pub(crate) lock_waiters: IntGauge,
    pub(crate) keys: IntGauge,
    pub(crate) watches: IntGauge,
    /// By status.
    pub(crate) members: IntGaugeVec,
    pub(crate) node_checks_open: IntGauge,
    pub(crate) nodes_without_renewals: IntGauge,
    pub(crate) nodes_with_failed_probes: IntGauge,
    pub(crate) node_brake: IntGauge,
    pub(crate) mesh_members: IntGauge,
    pub(crate) mesh_cells: IntGauge,
    pub(crate) gossip_key: IntGauge,
    pub(crate) corrupt: IntGauge,
    pub(crate) states_differ: IntGauge,
    pub(crate) disk_healthy: IntGauge,
    pub(crate) lowered_priority: IntGauge,
    pub(crate) majority_can_write: IntGauge,
    database_bytes: IntGaugeVec,
    pub(crate) state_free_bytes: IntGauge,
    pub(crate) certificate_expiry: Gauge,
    pub(crate) last_backup: Gauge,
}

impl Times {
    fn registered() -> Self {
        let requests = histograms("request_seconds", "Time from a request's arrival to its answer", "kind");
        Self {
            requests: REQUEST_KINDS.map(|kind| requests.with_label_values(&[kind])),
            commits: short(
                "commit_seconds",
                "Time from proposing a batch of commands to its commit, on the leader",
            ),
            fsyncs: short("fsync_seconds", "Duration of one commit of the log to disk"),
            applies: short("apply_seconds", "Duration of applying a batch of committed entries"),
            checkpoints: short("checkpoint_seconds", "Duration of writing a checkpoint of the state to disk"),
            queue_waits: short(
                "queue_wait_seconds",
                "Time that the oldest event of a turn waited for the driver",
            ),
            lock_waits: histogram(
                "lock_wait_seconds",
                "Time from joining a lock's queue to the grant",
                &WAIT_BUCKETS,
            ),
            turn_events: histogram("turn_events", "Events handled in one turn of the driver", &TURN_BUCKETS),
        }
    }
}

impl Counts {
    fn registered() -> Self {
        let losses = counters("losses_total", "Sessions that ended while this server led, by cause", "cause");
        let locks = counters(
            "locks_lost_total",
            "Locks that ended with their session, while this server led",
            "cause",
        );
        let renewals = counters(
            "lease_renewals_total",
            "Renewals of node leases that this server handled as the leader, by outcome",
            "outcome",
        );
        let verdicts = counters(
            "node_verdicts_total",
            "Verdicts on silent nodes applied while this server led, by window",
            "window",
        );
        let accusations = counters(
            "accusations_total",
            "Suspicions reported by agents after failed probes in the mesh, by outcome",
            "outcome",
        );
        let user_events = counters("user_events_total", "User events of agents, by outcome", "outcome");
        let writes = counters("writes_total", "Commands answered, by outcome", "outcome");
        Self {
            events: counter("events_total", "Events handled by the driver"),
            writes: OUTCOMES.map(|outcome| writes.with_label_values(&[outcome])),
            reads: counter("reads_total", "Queries answered"),
            leader_changes: counter(
                "leader_changes_total",
                "Leader changes seen by this server after the first leader",
            ),
            saved_by_agents: counter(
                "node_checks_saved_by_agents_total",
                "Answers of silent nodes that reached this leader first through another agent",
            ),
            forged_answers: counter(
                "forged_answers_total",
                "Answers of silent nodes that the node did not make: the forwarding agent forged them",
            ),
            given_up_by_answer: counter(
                "sessions_given_up_by_answer_total",
                "Sessions ended by this leader because a node's answer to a challenge listed them as given up",
            ),
            losses: LOSS_CAUSES.map(|cause| losses.with_label_values(&[cause])),
            locks_lost: LOSS_CAUSES.map(|cause| locks.with_label_values(&[cause])),
            renewals_acknowledged: renewals.with_label_values(&["acknowledged"]),
            renewals_refused: renewals.with_label_values(&["refused"]),
            node_checks: counter("node_checks_total", "Checks of silent nodes opened by this leader"),
            accusations: ACCUSATION_OUTCOMES.map(|outcome| accusations.with_label_values(&[outcome])),
            user_events: EVENT_OUTCOMES.map(|outcome| user_events.with_label_values(&[outcome])),
            requests_timed_out: counter(
                "requests_timed_out_total",
                "Requests that timed out after 6 s at this leader; their outcome is unknown",
            ),
            disk_stalls: counter(
                "disk_stalls_total",
                "Disk stalls: no write became durable for `storage.stall_timeout`",
            ),
            mesh_syncs: counter(
                "mesh_syncs_total",
                "Replies to agents with the mesh news that they lacked (anti-entropy)",
            ),
            node_verdicts: HealthWindow::ALL.map(|window| verdicts.with_label_values(&[window.as_str()])),
        }
    }

    /// Counts an answer to a command.
    pub(crate) fn count_write(&self, response: &Response) {
        self.writes[outcome(response) as usize].inc();
    }
}

impl Agents {
    fn registered() -> Self {
        Self {
            challenges: counter("challenges_total", "Challenges sent to agents"),
            challenges_unanswered: counter(
                "challenges_unanswered_total",
                "Challenges that the agent did not answer in time",
            ),
            challenges_unsent: counter(
                "challenges_unsent_total",
                "Challenges not sent because too many were in flight",
            ),
            questions: counter("agent_questions_total", "Requests to agents to challenge another node"),
            questions_unsent: counter(
                "agent_questions_unsent_total",
                "Requests to challenge another node that were not sent because too many were in flight",
            ),
            mesh_pushes: counter("mesh_pushes_total", "Pushes of mesh news to agents"),
            mesh_pushes_unsent: counter(
                "mesh_pushes_unsent_total",
                "Pushes of mesh news not sent because too many were in flight",
            ),
        }
    }
}

impl Levels {
    fn registered() -> Self {
        Self {
            term: gauge("raft_term", "Current Raft term of this server"),
            is_leader: gauge("is_leader", "1 if this server leads and serves"),
            leader_known: gauge("leader_known", "1 if this server knows the leader"),
            last_index: gauge("raft_last_index", "Last index of the log, durable or not"),
            commit_index: gauge("raft_commit_index", "Last committed index"),
            applied_index: gauge("raft_applied_index", "Last applied index"),
            log_bytes: gauge("log_bytes", "Bytes of replicated log kept in memory"),
            follower_lag: labelled(
                "follower_lag_entries",
                "Log entries that another server lacks, on the leader",
                ["server"],
            ),
            follower_contact: seconds_labelled(
                "follower_last_contact_seconds",
                "Time since the last message from another server, on the leader",
                ["server"],
            ),
            sessions: gauge("sessions", "Sessions"),
            locks_held: gauge("locks_held", "Keys locked by a session"),
            lock_waiters: gauge("lock_waiters", "Waiters in the queues of all locks"),
            keys: gauge("keys", "Keys"),
            watches: gauge("watches", "Parked blocking queries"),
            members: members(),
            node_checks_open: gauge("node_checks_open", "Open checks of silent nodes, on the leader"),
            nodes_without_renewals: gauge(
                "nodes_without_renewals",
                "Nodes that answer challenges but do not renew, on the leader",
            ),
            nodes_with_failed_probes: gauge(
                "nodes_with_failed_probes",
                "Nodes that renew their leases but that agents cannot probe, on the leader",
            ),
            node_brake: gauge(
                "node_brake",
                "1 if too many nodes are silent: this leader fails none of them before 15 seconds",
            ),
            mesh_members: gauge("mesh_members", "Agents in the mesh"),
            mesh_cells: gauge("mesh_cells", "Cells of the mesh, each with at most 1,024 agents"),
            gossip_key: gauge("gossip_key_number", "Number of the gossip key in use"),
            corrupt: gauge(
                "corrupt",
                "1 if a corruption check found this server's state corrupt: it answers no agent",
            ),
            states_differ: gauge(
                "states_differ",
                "1 if this leader's newest corruption check found different states",
            ),
            disk_healthy: gauge(
                "disk_healthy",
                "0 while the disk rejects writes or is stalled for `storage.stall_timeout`",
            ),
            majority_can_write: gauge(
                "majority_can_write",
                "0 while the disks of a majority of servers reject writes, as far as this server knows",
            ),
            lowered_priority: gauge(
                "lowered_election_priority",
                "1 while this server has the lowest election priority after disk stalls",
            ),
            database_bytes: database_bytes(),
            state_free_bytes: gauge(
                "state_free_bytes",
                "Bytes of state.redb that hold nothing, as of the last idle moment",
            ),
            certificate_expiry: certificate_expiry(),
            last_backup: last_backup(),
        }
    }

    /// Sets the size of a database file, `log` or `state`.
    pub(crate) fn show_database(&self, file: &str, bytes: u64) {
        self.database_bytes.with_label_values(&[file]).set(bytes.cast_signed());
    }
}

fn last_backup() -> Gauge {
    let help = "Time at which this server last sent a complete backup; 0 if none since its start";
    registered(Gauge::new(named("last_backup_timestamp_seconds"), help))
}

fn members() -> IntGaugeVec {
    let members = labelled("members", "Registered agents, by status", ["status"]);
    MEMBER_STATUSES.iter().for_each(|status| drop(members.with_label_values(&[status])));
    members
}

fn database_bytes() -> IntGaugeVec {
    let files = labelled("database_bytes", "Size of a database file in bytes", ["file"]);
    ["log", "state"].iter().for_each(|file| drop(files.with_label_values(&[file])));
    files
}

fn certificate_expiry() -> Gauge {
    registered(Gauge::new(
        "lockmesh_server_certificate_expiry_timestamp_seconds",
        "Expiry time of the server's certificate or of its authority, whichever is earlier",
    ))
}

/// Sets a gauge to 0 or 1.
pub(crate) fn show_flag(gauge: &IntGauge, is_so: bool) {
    gauge.set(i64::from(is_so));
}

fn outcome(response: &Response) -> Outcome {
    match response {
        Response::Applied(applied) => match &applied.reply {
            Reply::Succeeded(false) => Outcome::False,
            Reply::Delayed { .. } => Outcome::LockDelay,
            Reply::Granted { .. } => Outcome::Granted,
            Reply::Queued { .. } => Outcome::Queued,
            Reply::TxnFailed(_) => Outcome::TxnFailed,
            Reply::Refused(_) => Outcome::Refused,
            _ => Outcome::Done,
        },
        Response::Renewed(Some(_)) => Outcome::Renewed,
        Response::Renewed(None) => Outcome::UnknownSession,
        Response::Unavailable(unavailable) => match unavailable {
            Unavailable::NotLeader { .. } => Outcome::NotLeader,
            Unavailable::Overloaded(_) => Outcome::Overloaded,
            Unavailable::Disk(_) => Outcome::Disk,
            Unavailable::Denied(_) => Outcome::Denied,
            Unavailable::Unknown(_) => Outcome::Unknown,
            Unavailable::AnswerTooLong { .. } => Outcome::TooLong,
            Unavailable::Removed => Outcome::Removed,
            Unavailable::NotAdmitted(_) => Outcome::NotAdmitted,
            Unavailable::Corrupt => Outcome::Corrupt,
        },
        _ => Outcome::Done,
    }
}

fn named(name: &str) -> String {
    format!("lockmesh_server_{name}")
}

fn counter(name: &str, help: &str) -> IntCounter {
    registered(IntCounter::new(named(name), help))
}

fn counters(name: &str, help: &str, label: &str) -> IntCounterVec {
    registered(IntCounterVec::new(Opts::new(named(name), help), &[label]))
}

fn gauge(name: &str, help: &str) -> IntGauge {
    registered(IntGauge::new(named(name), help))
}

fn labelled(name: &str, help: &str, labels: [&str; 1]) -> IntGaugeVec {
    registered(IntGaugeVec::new(Opts::new(named(name), help), &labels))
}

fn seconds_labelled(name: &str, help: &str, labels: [&str; 1]) -> GaugeVec {
    registered(GaugeVec::new(Opts::new(named(name), help), &labels))
}

fn short(name: &str, help: &str) -> Histogram {
    histogram(name, help, &SHORT_BUCKETS)
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> Histogram {
    registered(Histogram::with_opts(HistogramOpts::new(named(name), help).buckets(buckets.to_vec())))
}

fn histograms(name: &str, help: &str, label: &str) -> HistogramVec {
    let options = HistogramOpts::new(named(name), help).buckets(SHORT_BUCKETS.to_vec());
    registered(HistogramVec::new(options, &[label]))
}

#[cfg(test)]
mod tests {
    use super::{OUTCOMES, Outcome, outcome};
    use lockmesh_protocol::rpc::{Response, Unavailable};

    #[test]
    fn outcomes_have_their_own_words() {
        let word = |unavailable| OUTCOMES[outcome(&Response::Unavailable(unavailable)) as usize];
        assert_eq!(word(Unavailable::NotLeader { leader: None }), "not_leader");
        assert_eq!(word(Unavailable::Disk("full".into())), "disk");
        assert_eq!(word(Unavailable::AnswerTooLong { limit: 1 }), "too_long");
        assert_eq!(word(Unavailable::Corrupt), "corrupt");
        assert_eq!(OUTCOMES[Outcome::UnknownSession as usize], "unknown_session");
    }
}
