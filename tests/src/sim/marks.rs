//! Counters of rare branches: they show that the storms reach every branch that they should.

use super::plan::Focus;

/// Declares the marks, each with its description.
macro_rules! marks {
    ($($name:ident: $words:literal,)*) => {
        /// A rare branch.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mark { $(#[doc = $words] $name,)* }

        impl Mark {
            /// All marks, in the order of their numbers.
            pub const ALL: &'static [Mark] = &[$(Mark::$name,)*];

            /// Returns the description.
            pub fn words(self) -> &'static str {
                match self { $(Mark::$name => $words,)* }
            }
        }
    };
}

marks! {
    Election: "a leader started serving",
    TwoLeaders: "a deposed leader did not know it yet while its successor served",
    LedUnderPartition: "a leader was elected during a network partition",
    Crash: "a server crashed",
    CrashLostWrites: "a crash lost queued writes",
    CrashTore: "a crash kept some queued writes and lost others",
    CrashDuringCheckpoint: "a server crashed while writing a checkpoint",
    CrashKeptCheckpoint: "a checkpoint became durable at the moment of a crash",
    LeaderCrash: "a serving leader crashed",
    AllDown: "all servers were down at once",
    Truncated: "a follower's log tail was replaced",
    CheckpointWaited: "a checkpoint waited for its commit index to be durable",
    LogCompacted: "the log on disk was compacted",
    DiskRefused: "a disk refused a commit",
    StoreRefused: "the real store was refused a commit, or lost synced data",
    StoreTorn: "the power failed during a commit of the real store",
    ProposalRefused: "a proposal was refused because the disk failed",
    DiskStalled: "a disk stalled",
    DiskHung: "a disk hung for up to a minute",
    RenewalBehindDisk: "a renewal waited behind a stalled disk",
    Pause: "a process was paused",
    LeaderPause: "a serving leader was paused",
    ClockJump: "a clock jumped ahead",
    Duplicate: "a message was delivered twice",
    Lost: "a message was lost",
    Overtaken: "messages were reordered",
    Burst: "a clogged link released its messages",
    TwoWayCut: "servers were partitioned in both directions",
    OneWayCut: "a link was cut in one direction",
    UnknownOutcome: "a client received an unknown outcome",
    RetryAnswered: "a retried request was answered from the kept replies",
    RetryForgotten: "a late duplicate was refused because its reply was no longer kept",
    RetryOfLostGrant: "a retried acquire was denied because its hold had ended",
    RetryElsewhere: "a request was retried on another server",
    ClusterRefused: "an agent rejected a server of another cluster",
    AgentRestart: "an agent restarted",
    RestartAnnounced: "a terminating agent announced its restart to the servers",
    EndedWithProcess: "a session ended because its process had exited",
    ProcessTakenUp: "an agent's next process took up the watch over a process",
    RestartTakenOver: "a process ended its predecessor's announced restart, because all guards relied on it",
    AgentEnded: "an agent shut down cleanly and had answered every call",
    FolderLost: "an agent lost its data folder and came back with another node ID",
    Challenged: "a server challenged a node",
    ChallengeAnswered: "a node answered a challenge",
    SavedByAgent: "another agent was first to prove to the leader that a silent node is alive",
    WithoutRenewals: "a node answered challenges while none of its renewals arrived for a window",
    AccessRefused: "a request without the right was refused",
    AccessGranted: "a request with the right was granted",
    ForceLeaveAnswered: "a force-leave reported that a node left or is alive",
    ForcedToLeave: "a session ended because its failed node was forced to leave",
    ForgedAnswer: "an agent forged a silent node's answer, and the leader detected it",
    LeaseLate: "a node was in contact again after its guards' deadline had passed",
    LeaseLost: "an agent was notified that its node's lease is lost",
    NodeFailed: "the servers failed a node",
    Suspected: "an agent in the mesh reported a suspicion",
    VerdictHeard: "an agent received a verdict from the mesh",
    MeshTold: "a server sent an unsolicited verdict to an agent",
    AnsweredByDatagram: "an agent answered another agent's question by datagram on a server's behalf",
    DatagramLost: "a mesh datagram was lost",
    Lied: "an agent suspected every other agent",
    Braked: "the brake engaged: very many nodes were silent, and the servers' windows were longest",
    AgentStopped: "an agent paused and then received everything at once",
    HostSuspended: "an agent's host was suspended",
    HostDied: "an agent's host died and came back",
    ServersCutOff: "a host lost all servers but reached other agents",
    AgentsCutOff: "a host lost all other agents but reached servers",
    ServerPortClosed: "the server port was closed to a host while challenges passed",
    AgentPortClosed: "a host's QUIC port was closed while its connections to servers stayed up",
    GossipPortClosed: "a host's gossip port was closed while all connections passed",
    ConnectionsCut: "all connections of a host were cut while gossip passed",
    AllServersAway: "all servers were unavailable for a while",
    MajorityAway: "a majority of the servers was unavailable for a while",
    EndedByAnswer: "the leader ended a session that a challenge answer listed as given up",
    LossGivenUp: "a session ended because its guard gave it up",
    BelievedAfterFault: "a guard believed in its lock two windows after the last fault",
    UnbelievedPassedOn: "a lock passed on after its guard stopped believing in it",
    HostIsolated: "an agent's host was cut off from all servers",
    AgentCopied: "a copy of an agent's machine registered in its place",
    RegisteredAgain: "an agent registered again because the servers had forgotten it",
    UnknownByRegistration: "a command's outcome is unknown because its agent had to register again",
    HomeStopped: "an agent's home server was paused",
    LeaderStopped: "the server that an agent follows as leader was paused",
    HomeCutOff: "an agent's home server was cut off from it in one direction",
    LeaderCutOff: "the server that an agent follows as leader was cut off from it in one direction",
    HomeLeft: "an agent switched to another home server",
    RequestLost: "a connection broke before an agent's request arrived",
    AnswerLost: "a connection broke before a server's reply arrived",
    Retransmitted: "data lost between an agent and a server was retransmitted",
    ConnectionStarved: "a connection timed out",
    LastWord: "an agent received a last message on a connection that it had given up",
    ReadShared: "local callers shared a blocking read",
    WatchRefused: "a blocking read was refused because too many were parked",
    LeaderTold: "an agent relayed the leader's status to an operator",
    TransferByAgent: "leadership was transferred through an agent",
    KeyRotated: "the gossip key was rotated through an agent",
    GaveUp: "a client gave up without knowing the outcome of its request",
    ToldNotDone: "a client was told that its command was definitely not done",
    WentAway: "a client that waited for a lock disconnected",
    MayStayGranted: "an undelivered grant could not be released",
    GuardHolds: "a guard acquired a lock",
    GuardDeadline: "a guard's hold ended at its deadline",
    GuardStopped: "a guard's process was paused",
    GuardOverslept: "a paused guard resumed after its hold had ended",
    GuardKilled: "a guard's process died",
    GuardWentAway: "a guard stopped waiting for a lock",
    GrantWentSilent: "the reply to a guard's wait was a grant, and was lost in silence",
    GrantRecognized: "a guard recognized a grant whose reply was lost in silence",
    GuardRevoked: "another client took a lock away from a guard",
    GuardSuspended: "a guard's session was suspended because its node's lease was not renewed in time",
    GuardResumed: "a guard's suspended session became valid again",
    GuardFailed: "the servers failed a guard's node after the guard had stopped believing in its lock",
    GuardFailedFast: "the servers failed a guard's node by the fast window",
    SessionGivenUp: "an agent ended a session that its guard had not confirmed for long",
    Granted: "a lock was granted",
    GrantedShared: "a lock was granted in shared mode",
    GrantedSeveral: "several locks were granted at once",
    Deadlock: "a request closed a circle of waits",
    DeadlockRefused: "a request that would have closed a circle of waits was refused",
    OtherNodeRefused: "a write about another living node was refused",
    OtherHostRefused: "an operator's command of another host was refused",
    RequestRefused: "a request for locks could never be granted",
    Contended: "a lock was refused because it was held",
    Delayed: "a lock was refused because of a lock-delay",
    Queued: "an acquire had to wait in a queue",
    HandedOn: "a queued client was notified of its grant",
    WaitEnded: "a wait in a queue timed out",
    LeftUnheard: "an undelivered grant was released",
    DelayEnded: "a lock-delay ended",
    DelayAcrossElection: "a lock-delay started under one leader and ended under another",
    Expired: "a session expired",
    EndedByCheck: "a session ended because its check turned critical",
    EndedWithNode: "a session ended together with its node",
    Renewed: "a renewal was acknowledged",
    RenewedAcrossElection: "a session was renewed under a new leader",
    RenewalTooLate: "a renewal arrived while the session was being expired",
    DeleteBehavior: "the end of a session deleted its keys",
    CasWon: "a conditional write succeeded",
    CasLost: "a conditional write failed",
    TxnFailed: "a transaction failed as a whole",
    ReadStale: "a stale read was answered",
    ReadFresh: "a read was answered after its read-index round",
    ReadRefused: "a read was refused because the server was not the leader",
    WatchWoke: "a blocking read was woken by a change",
    WatchTimedOut: "a blocking read timed out",
    WatchSentAway: "a deposed leader redirected a blocking read",
    Transfer: "leadership was transferred",
    TransferUnderLoad: "leadership was transferred while writes were pending",
    TransferFailed: "a leadership transfer failed",
    TransferWithSnapshot: "leadership was transferred during a snapshot transfer",
    Admitted: "a server was added as a learner",
    Promoted: "a learner was promoted to voter",
    Removed: "a server was removed",
    KnewOwnRemoval: "a server learned of its removal and stopped serving",
    RemovedLeader: "a leader applied its own removal",
    Wiped: "a server lost its disk and came back as a new server",
    SetBack: "a disk was set back to an older copy",
    HomeSetBack: "an agent's home server was set back to an older disk",
    LeaderSetBack: "the server that an agent follows as leader was set back to an older disk",
    SetBackRemembered: "a server was set back and the servers that knew its progress restarted",
    SetBackFound: "a server whose disk was set back was refused with a reason",
    RemovalForgotten: "a crash lost the disk's note of a removal",
    ReplacedDead: "autopilot removed a dead server",
    Stranger: "a removed server sent a message and was ignored",
    Snapshot: "a snapshot was announced",
    FetchInterrupted: "a snapshot transfer was interrupted and resumed",
    FetchBegunAnew: "a snapshot transfer restarted because its reader was gone",
    FetchFailed: "a snapshot transfer failed",
    Installed: "a snapshot from another server was installed",
    InstalledOverLog: "a snapshot was installed over a log that extended beyond the old checkpoint",
    InstallRefused: "a snapshot arrived that was no longer needed",
    CrashBetweenCheckpointAndReset: "a server crashed between a checkpoint and the reset of the log",
    ElectionDuringCheck: "a leader was elected while servers challenged a node",
    ElectionDuringSnapshot: "a leader was elected during a snapshot transfer",
    Compared: "the checksums of several servers were compared and matched",
    Corrupted: "a row that no log entry had written was put on a server's disk",
    FoundCorrupt: "a server learned that its state is corrupt and stopped serving",
    CorruptionSpread: "a server installed a snapshot from a server with corrupt state",
    CorruptUndecided: "the states of servers differed and no majority agreed",
    CorruptLeader: "a leader learned that its own state is corrupt",
    BackedUp: "a backup was read completely",
    BackupInterrupted: "a backup restarted because its reader or its server was gone",
    Restored: "a backup was restored",
    QueryEndedWithSession: "a prepared query was deleted with its session",
    QueryEndedWithNode: "a prepared query was deleted because the servers failed its session's node",
    QueryEndedByExpiry: "a prepared query was deleted because its session expired",
    QueryOfEndedSession: "a prepared query was refused because its session had ended",
    QueryNameInUse: "a new prepared query was refused because its name was in use",
    QueryRenamedInVain: "an update of a prepared query was refused because its new name was in use",
    QueryUpdatedTooLate: "an update came after the end of its prepared query",
    QueryByTemplate: "a template answered for a name",
    QueryExecuted: "a prepared query was executed and selected instances",
    ListRead: "a list was read in parts to its end",
    ListWaited: "a list waited for a view",
    ServicesInParts: "the names of all services were read in several parts",
    InstancesInParts: "the instances of a service were read in several parts",
    NodeInParts: "the services of a node were read in several parts",
    QueriesInParts: "the prepared queries were read in several parts",
    CoordinatesInParts: "the coordinates of all nodes were read in several parts",
    ListBrokenOff: "a reader learned that a list in parts is incomplete",
    EndedWithScript: "a session ended with a failed script check of its agent",
    EndedWithPage: "a session ended with a failed HTTP check of its agent",
    EndedWithService: "a session ended with a failed check of its agent's service",
    EndedWithAlias: "a session ended with an alias of its agent",
    EndedAfterElection: "a session ended with a check that had failed before an election",
    FollowerRead: "a follower answered a read after its leader's read-index round",
    CommandStarted: "a command was started under a hold",
    CommandNotStarted: "a command was not started because its deadline was too near",
    CommandLeftProcesses: "a process of a command ended after the command's own process",
    KilledAtDeadline: "a command was killed shortly before its deadline",
    KilledByGuardAlone: "a guard killed a command whose supervisor was stopped",
    KilledBesideStoppedGuard: "a supervisor killed a command whose guard was stopped",
    KilledAfterDeadGuard: "a supervisor killed a dead guard's command at its deadline",
    KilledOwnGroup: "a kill reached a process with a group of its own",
    ForkedDuringKill: "a process forked between a look at the tree and its kill",
    SupervisorKilled: "a supervisor was killed",
    SupervisorStopped: "a supervisor was stopped",
    SupervisorStoodStill: "a guard killed a supervisor that did not react",
    SupervisorContinued: "the death of a guard continued its stopped supervisor",
    BothStopped: "a guard and its supervisor were stopped at once",
    BothKilled: "a guard and its supervisor were killed before their command",
    CommandContinued: "a guard continued after a terminal had suspended it",
    GivenBackBySupervisor: "a supervisor gave a hold back",
    CommandOutlivedLock: "a command outlived its lock while neither guard nor supervisor could run",
}

/// The marks that only runs with a focus on guards reach.
const OF_COMMANDS: [Mark; 18] = [
    Mark::CommandStarted,
    Mark::CommandNotStarted,
    Mark::CommandLeftProcesses,
    Mark::KilledAtDeadline,
    Mark::KilledByGuardAlone,
    Mark::KilledBesideStoppedGuard,
    Mark::KilledAfterDeadGuard,
    Mark::KilledOwnGroup,
    Mark::ForkedDuringKill,
    Mark::SupervisorKilled,
    Mark::SupervisorStopped,
    Mark::SupervisorStoodStill,
    Mark::SupervisorContinued,
    Mark::BothStopped,
    Mark::BothKilled,
    Mark::CommandContinued,
    Mark::GivenBackBySupervisor,
    Mark::CommandOutlivedLock,
];

/// The marks that only runs with checks reach.
const OF_CHECKS: [Mark; 5] = [
    Mark::EndedWithScript,
    Mark::EndedWithPage,
    Mark::EndedWithService,
    Mark::EndedWithAlias,
    Mark::EndedAfterElection,
];

/// The number of times that each branch was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks([u64; Mark::ALL.len()]);

impl Default for Marks {
    fn default() -> Self {
        Self([0; Mark::ALL.len()])
    }
}

impl Marks {
    /// Increments a counter.
    pub fn hit(&mut self, mark: Mark) {
        self.0[mark as usize] += 1;
    }

    /// Returns the number of times that a branch was reached.
    pub fn count(&self, mark: Mark) -> u64 {
        self.0[mark as usize]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Marks) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Returns the marks of a focus that no run has reached: with checks or guards, those of checks
    /// or commands alone.
    pub fn missing(&self, focus: Focus) -> Vec<Mark> {
        let is_of_focus = |mark: &Mark| match focus {
            Focus::Checks => OF_CHECKS.contains(mark),
            Focus::Guards => OF_COMMANDS.contains(mark),
            Focus::Everything => !OF_CHECKS.contains(mark) && !OF_COMMANDS.contains(mark),
        };
        Mark::ALL.iter().copied().filter(|mark| self.count(*mark) == 0 && is_of_focus(mark)).collect()
    }
}
