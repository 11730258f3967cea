//! Counters of rare branches: they show that the storms reach what they are meant to reach.

/// Declares the marks, each with the words for people.
macro_rules! marks {
    ($($name:ident: $words:literal,)*) => {
        /// A rare branch.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mark { $(#[doc = $words] $name,)* }

        impl Mark {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Mark] = &[$(Mark::$name,)*];

            /// What happened.
            pub fn words(self) -> &'static str {
                match self { $(Mark::$name => $words,)* }
            }
        }
    };
}

marks! {
    Election: "a server began to lead",
    TwoLeaders: "a deposed leader did not know it yet, and another one served",
    LedUnderPartition: "a leader was elected while the network was split",
    Crash: "a server crashed",
    CrashLostWrites: "a crash lost writes that were queued",
    CrashTore: "a crash kept some of the queued writes and lost the others",
    CrashDuringCheckpoint: "a crash came while a checkpoint was written",
    CrashKeptCheckpoint: "a checkpoint became durable at the moment of a crash",
    LeaderCrash: "a serving leader crashed",
    AllDown: "all servers were down at once",
    Truncated: "a follower's log got another tail",
    CheckpointWaited: "a checkpoint waited for its commit index to be durable",
    LogCompacted: "the log on disk was compacted",
    DiskRefused: "a disk refused a commit",
    StoreRefused: "the real store was refused a commit, or lost what it had synced",
    StoreTorn: "the power failed while the real store made a commit",
    ProposalRefused: "a proposal was refused because the disk failed",
    DiskStalled: "a disk stalled",
    DiskHung: "a disk took nothing for up to a minute",
    RenewalBehindDisk: "a renewal waited behind a stalled disk",
    Pause: "a process stood still",
    LeaderPause: "a serving leader stood still",
    ClockJump: "a clock jumped ahead",
    Duplicate: "a message came twice",
    Lost: "a message was lost",
    Overtaken: "a message was overtaken",
    Burst: "a clogged link burst",
    TwoWayCut: "servers were parted, both ways",
    OneWayCut: "a link was cut, one way",
    UnknownOutcome: "a client was told that its outcome is not known",
    RetryAnswered: "a retried request was answered from the kept replies",
    RetryForgotten: "a late duplicate was refused, because its reply was forgotten",
    RetryOfLostGrant: "a retried acquire was told no, since its hold had ended",
    RetryElsewhere: "a request was retried at another server",
    ClusterRefused: "an agent refused a server of another cluster",
    AgentRestart: "an agent began a new life",
    RestartAnnounced: "an agent that was asked to end announced its restart to the servers",
    AgentEnded: "an agent ended as it should, and had answered everybody",
    Challenged: "a server asked a node whether it lives",
    ChallengeAnswered: "a node answered such a question",
    SavedByAgent: "the leader heard of a silent node through another agent first",
    WithoutRenewals: "a node answered challenges, and none of its renewals arrived for its window",
    ForceLeaveAnswered: "an administrator was told that a node left, or that it lives",
    ForcedToLeave: "a session ended because its node, which had failed, was made to leave",
    ForgedAnswer: "an agent that was to ask a silent node made its answer up, and the leader saw that",
    LeaseLate: "a deadline of guards passed, and their node was heard again",
    LeaseLost: "an agent was told that its node's lease is none any more",
    NodeFailed: "the servers failed a node",
    Accused: "an agent of the mesh accused another one",
    VerdictHeard: "an agent heard a verdict in the mesh",
    MeshTold: "a server told an agent of a verdict, unasked",
    AnsweredByDatagram: "an agent answered another one, which asked for a server, by a datagram",
    DatagramLost: "a datagram of the mesh was lost",
    Lied: "an agent accused everybody",
    Braked: "very many nodes were silent at once, and the servers' windows long",
    AgentStopped: "an agent stood still, and then took everything in at once",
    HostSuspended: "an agent's host was suspended",
    HostDied: "an agent's host died, and came back",
    ServersCutOff: "all servers were cut off from a host, and other agents were in reach",
    AgentsCutOff: "all other agents were cut off from a host, and servers were in reach",
    ServerPortClosed: "the port of the servers was closed to a host, and challenges passed",
    AgentPortClosed: "the QUIC port of a host was closed, and its connections to servers stood",
    GossipPortClosed: "the gossip port of a host was closed, and all connections passed",
    ConnectionsCut: "all connections of a host were cut, and gossip passed",
    AllServersAway: "all servers were away for a while",
    MajorityAway: "a majority of the servers was away for a while",
    EndedByAnswer: "the leader ended a session that an answer to a challenge named as given up",
    LossGivenUp: "a session ended as given up by its guard",
    BelievedAfterFault: "no fault was new for two windows, and a guard believed in its lock",
    UnbelievedPassedOn: "a guard did not believe in a lock any more, and it passed on",
    HostIsolated: "an agent's host was cut off from all servers",
    AgentCopied: "a copy of an agent's machine registered in its place",
    RegisteredAgain: "an agent had to register again, since the servers had forgotten it",
    UnknownByRegistration: "a command is unknown, since its agent had to register again before it was answered",
    HomeStopped: "an agent's home server stood still",
    LeaderStopped: "the server that an agent takes for the leader stood still",
    HomeCutOff: "an agent's home server was cut off from it one way",
    LeaderCutOff: "the server that an agent takes for the leader was cut off from it one way",
    HomeLeft: "an agent left its home server for another one",
    RequestLost: "a connection broke, and what an agent had sent on it never arrived",
    AnswerLost: "a connection broke, and what a server had answered on it never arrived",
    Retransmitted: "what was lost between an agent and a server was sent again",
    ConnectionStarved: "a connection ended, since nothing came through for too long",
    LastWord: "an agent heard a last word of a connection that it had given up",
    ReadShared: "local callers shared a blocking read",
    WatchRefused: "a blocking read was refused, since too many were parked",
    LeaderTold: "an operator was told by an agent what the leader knows",
    TransferByAgent: "leadership was handed over by way of an agent",
    GaveUp: "a client gave up, not knowing what became of its request",
    ToldNotDone: "a client was told that its command was certainly not done",
    WentAway: "a client that waited for a lock went away",
    MayStayGranted: "a lock that nobody had heard of could not be given back",
    GuardHolds: "a guard was granted a lock",
    GuardDeadline: "a guard's hold ended at its deadline",
    GuardStopped: "the process of a guard stood still",
    GuardOverslept: "a guard that stood still woke up with its hold over",
    GuardKilled: "the process of a guard died",
    GuardWentAway: "a guard gave up while it waited for a lock",
    GuardRevoked: "somebody took a lock away from a guard",
    GuardSuspended: "a guard's session was suspended, since its node's lease was not renewed in time",
    GuardResumed: "a guard's session that was suspended could be believed in again",
    GuardFailed: "the servers failed the node of a guard, which had stopped to believe in its lock",
    GuardFailedFast: "the same by the fast window",
    SessionGivenUp: "an agent ended a session of which nobody had said for long that it lives",
    Granted: "a lock was granted",
    Contended: "a lock was refused, since somebody held it",
    Delayed: "a lock was refused, since a lock-delay closed it",
    Queued: "an acquire had to wait in a queue",
    HandedOn: "a client that waited in a queue was told of its grant",
    WaitEnded: "a wait in a queue ran out of time",
    LeftUnheard: "a lock was given back, since nobody had heard of its grant",
    DelayEnded: "a lock-delay ended",
    DelayAcrossElection: "a lock-delay ended under another leader than it began",
    Expired: "a session expired",
    EndedByCheck: "a session ended because its check turned critical",
    EndedWithNode: "a session ended with its node",
    Renewed: "a renewal was acknowledged",
    RenewedAcrossElection: "a session was renewed under another leader than before",
    RenewalTooLate: "a renewal came while the session's expiry was decided",
    DeleteBehavior: "the end of a session deleted its keys",
    CasWon: "a conditional write took effect",
    CasLost: "a conditional write came too late",
    TxnFailed: "a transaction failed as a whole",
    ReadStale: "a stale read was answered",
    ReadFresh: "a read was answered after its round",
    ReadRefused: "a read was refused, since the server did not lead",
    WatchWoke: "a blocking read was woken by a change",
    WatchTimedOut: "a blocking read ran out of time",
    WatchSentAway: "a blocking read was sent away by a leader that led no more",
    Transfer: "leadership was handed over",
    TransferUnderLoad: "leadership was handed over while writes were under way",
    TransferFailed: "leadership could not be handed over",
    TransferWithSnapshot: "leadership was handed over while a snapshot was on its way",
    Admitted: "a server was admitted",
    Promoted: "a learner got its vote",
    Removed: "a server was removed",
    KnewOwnRemoval: "a server learned that it was removed, and served no more",
    RemovedLeader: "a leader applied its own removal",
    Wiped: "a server lost its disk and came back as another one",
    SetBack: "a disk was set back to an older copy of itself",
    HomeSetBack: "an agent's home server was set back",
    LeaderSetBack: "the server that an agent takes for the leader was set back",
    SetBackRemembered: "whoever knew how far such a server had come was restarted meanwhile",
    SetBackFound: "a server whose disk was set back was refused, in words",
    RemovalForgotten: "a crash took what the disk should say of a removal",
    ReplacedDead: "the leader took out a server by itself",
    Stranger: "a server that was removed spoke, and nobody listened",
    Snapshot: "a snapshot was announced",
    FetchInterrupted: "a snapshot was interrupted on its way, and went on later",
    FetchBegunAnew: "a snapshot was begun anew, since its reader was gone",
    FetchFailed: "a snapshot never arrived",
    Installed: "a snapshot of another server was installed",
    InstalledOverLog: "a snapshot was installed over a log that reached beyond the old checkpoint",
    InstallRefused: "a snapshot arrived that was not wanted any more",
    CrashBetweenCheckpointAndReset: "a crash came between a checkpoint and the reset of the log",
    ElectionDuringCheck: "a leader was elected while servers asked a node whether it lives",
    ElectionDuringSnapshot: "a leader was elected while a snapshot was on its way",
    Compared: "the checksums of several servers were compared, and all were alike",
    Corrupted: "a server's disk was given a row that no entry had made",
    FoundCorrupt: "a server learned that its state is corrupt, and answered nobody any more",
    CorruptionSpread: "a server took over a snapshot of one whose state is corrupt",
    CorruptUndecided: "the states of servers differed, and no majority bore witness",
    CorruptLeader: "a leader learned that its own state is corrupt",
    BackedUp: "a backup was read to its end",
    BackupInterrupted: "a backup was begun anew, since its reader or its server was gone",
    Restored: "a backup was restored",
    FollowerRead: "a follower answered a read after a round of its leader",
}

/// How often each branch was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks([u64; Mark::ALL.len()]);

impl Default for Marks {
    fn default() -> Self {
        Self([0; Mark::ALL.len()])
    }
}

impl Marks {
    /// Counts one.
    pub fn hit(&mut self, mark: Mark) {
        self.0[mark as usize] += 1;
    }

    /// How often a branch was reached.
    pub fn count(&self, mark: Mark) -> u64 {
        self.0[mark as usize]
    }

    /// Adds what another run reached.
    pub fn add(&mut self, other: &Marks) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Those that no run has reached.
    pub fn missing(&self) -> Vec<Mark> {
        Mark::ALL.iter().copied().filter(|mark| self.count(*mark) == 0).collect()
    }
}
