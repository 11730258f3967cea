//! Raft consensus: how three or five servers agree on one log of commands.
//!
//! This page describes the algorithm as far as a reader of this folder needs it, the terms that the
//! code uses, and at the end the caveats. The algorithm is not ours: [`engine`] drives the library
//! `raft`, and this folder keeps the invariants around it.
//!
//! # The papers
//!
//! - D. Ongaro, J. Ousterhout, *In Search of an Understandable Consensus Algorithm*, USENIX ATC
//!   2014 ("the paper").
//! - D. Ongaro, *Consensus: Bridging Theory and Practice*, Stanford 2014 ("the thesis").
//!
//! # The log
//!
//! Every change of the state is an entry of one log. An entry has an *index*, its position in the
//! log, and the *term* of the leader that wrote it. Servers that apply the same entries in the same
//! order hold the same state. An entry is *committed* when a majority of the voters has it on disk:
//! from then on every later leader has it, even if servers fail. Only committed entries are
//! *applied* to the state, and replies are sent only for applied entries.
//!
//! Two logs that hold an entry with the same index and term are identical up to that entry (paper,
//! 5.3: the log matching property). A leader finds the last entry that a follower shares with it,
//! and replaces all entries after it.
//!
//! # Terms and elections
//!
//! Time is divided into terms, each with at most one leader. A *follower* that receives nothing
//! from a leader for an *election timeout* becomes a *candidate*: it raises the term, votes for
//! itself and requests votes. A server votes once per term, for a candidate whose log is at least
//! as new as its own (paper, 5.4.1), so a leader holds every committed entry. The vote must be on
//! disk before it is sent: a server that forgets it could vote twice. The timeout is drawn again
//! for each attempt, between one and two times [`ElectionTimeout::ticks`], so that votes are seldom
//! split.
//!
//! Three additions, all from the thesis:
//!
//! - *Pre-vote* (9.6): before a candidate raises the term, it asks whether it would win. A server
//!   that was cut off for a while returns without deposing a working leader.
//! - *Check quorum* (6.2): a leader that receives nothing from a majority for an election timeout
//!   steps down, so that its clients look for another one.
//! - *Leadership transfer* (3.10): a leader that stops has the most advanced follower stand for
//!   election at once.
//!
//! A new leader does not know which entries of earlier terms are committed, and must not count
//! their copies (paper, 5.4.2). It commits an empty entry of its own term first; until that is
//! applied it answers no reads.
//!
//! # Reads: the read index
//!
//! Reads need no log entry. The leader notes its commit index, confirms with a majority that it
//! still leads, and replies from its state once that index is applied (thesis, 6.4: *ReadIndex*).
//! One round serves all waiting reads: see [`crate::read_index`]. A follower requests the index
//! from the leader and replies from its own state. Lease reads, which trust clocks instead of a
//! round, are not used: with drifting clocks they return stale data.
//!
//! # Compaction, checkpoints and snapshots
//!
//! The log must not grow without limit. A *checkpoint* is the state as of one applied index, on
//! this server's own disk. The log is *compacted* behind a durable checkpoint, never beyond it
//! (thesis, 5): entries up to the *compaction index* are in the checkpoint and no longer in the
//! log. A follower that still needs a compacted entry receives a *snapshot* instead: the leader's
//! checkpoint, transferred. [`log::SnapshotMeta`] describes a checkpoint or snapshot: index, term
//! and membership. Some log is kept behind the checkpoint, so that a follower that was away briefly
//! needs no snapshot.
//!
//! # Membership: joint consensus
//!
//! The voters are part of the replicated state. Changing them in one step is unsafe: for a moment
//! two disjoint majorities could exist (split brain). So a change uses a *joint* membership, in
//! which a majority of the old **and** of the new voters is needed (paper, 6; thesis, 4.3), and a
//! second entry leaves it. A new server is first a *learner*: it receives the log, and has no vote
//! until it has caught up (thesis, 4.2.1). The autopilot decides when a learner becomes a voter:
//! [`crate::autopilot`].
//!
//! # One turn
//!
//! The disk is slow and the engine must not wait for it. So writes are asynchronous (thesis,
//! 10.2.1: the leader writes while its followers do), and correctness depends on the order below:
//!
//! ```text
//! entries visible in memory ─▶ the engine continues ─▶ a leader's appends leave
//!    ─▶ DURABLE ─▶ reported to the engine ─▶ votes and acknowledgements leave ─▶ apply
//!    ─▶ reported to the engine
//! ```
//!
//! 1. The entries to be written become visible in [`memory_log`] before the engine continues:
//!    otherwise it would use an index twice.
//! 2. A leader's appends may leave at once, but never before its own vote for itself is durable:
//!    after a crash in between, a single voter would have no record that it led.
//! 3. Acknowledgements and votes leave when their own write is durable, and when every write queued
//!    before it is durable too: a heartbeat response acknowledges older entries as well.
//! 4. A durable write is reported to the engine before the messages that depend on it leave.
//! 5. Entries are applied when they are committed *and* durable here; only then is a membership
//!    change reported to the engine.
//!
//! # Caveats
//!
//! - *No ticks during an install.* From the moment a snapshot is in memory until it is durable and
//!   applied, the engine gets no tick: a server must not stand for election on a state that it may
//!   lose.
//! - *A server whose disk was set back* (restored from a copy) has lost votes and acknowledgements,
//!   which Raft does not allow. The other servers remember its position and reject it: see
//!   [`crate::durability::setback`].
//! - *A removed server* may still disturb elections with vote requests. Its certificate is no
//!   longer accepted, and its streams are closed.
//! - *Randomness* is an argument: timeouts are drawn from a seed, so that the same inputs give the
//!   same run. Messages and lists of the engine are sorted for the same reason.
//! - *Peers may send malformed messages.* The engine panics on a message that it does not know, so
//!   [`message`] checks every one before it is stepped. A panic of the engine is never caught:
//!   memory can no longer be trusted.
//! - *A proposal has three outcomes.* Dropped: certainly not done. Applied at its index and term:
//!   done. Replaced by another entry at that index: not done. A client whose leader goes silent
//!   cannot tell, and retries with the same request id.
//! - *The disk may fail in one way only:* it may lose data that was not synced. Checksums detect a
//!   flipped bit, and the server stops.
//!
//! # Files
//!
//! | file | contents |
//! |---|---|
//! | `engine.rs` | the only file that names the engine; drives it until no work is left |
//! | `memory_log.rs` | the log as the engine reads it |
//! | [`log`] | the types that the disk stores |
//! | [`message`] | the messages that peers receive |
//!
//! [`crate::Core`] applies entries; the store in `lockmesh-server` writes them.

pub(crate) mod engine;
pub mod log;
pub(crate) mod memory_log;
pub mod message;

pub(crate) use engine::Replication;
pub use engine::{Progress, membership_after};
use std::time::Duration;

/// The engine's unit of time.
pub const TICK: Duration = Duration::from_millis(20);

/// The election timeout and heartbeat interval, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTimeout {
    /// The ticks without a message from the leader after which a follower starts an election; each
    /// attempt draws one to two times as many. At least 3, and more than `heartbeat_ticks`.
    pub ticks: usize,
    /// The number of ticks between two heartbeats of an idle leader.
    pub heartbeat_ticks: usize,
}

impl ElectionTimeout {
    /// Returns the settings for a timeout, rounded to ticks, with five heartbeats per timeout.
    pub fn with_timeout(timeout: Duration) -> Self {
        let ticks = (timeout.as_micros() / TICK.as_micros()).max(3) as usize;
        Self { ticks, heartbeat_ticks: (ticks / 5).max(1) }
    }

    /// The minimum time without a leader after which a follower starts an election.
    pub fn timeout(self) -> Duration {
        TICK * self.ticks as u32
    }
}

impl Default for ElectionTimeout {
    fn default() -> Self {
        Self { ticks: 10, heartbeat_ticks: 2 }
    }
}
