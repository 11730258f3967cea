//! Raft consensus: how three or five servers agree on one log of commands.
//!
//! This page teaches what is here: the algorithm as far as a reader of this folder needs it, the
//! words that the code uses, and at the end the caveats. The algorithm is not ours: [`engine`]
//! turns the library `raft`, and this folder says what must hold around it.
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
//! from then on every later leader has it, whoever dies. Only committed entries are *applied* to
//! the state, and only what was applied is answered.
//!
//! Two logs that hold an entry with the same index and term are alike up to that entry (paper, 5.3:
//! the log matching property). A leader finds the last entry that a follower shares with it, and
//! replaces all that comes behind.
//!
//! # Terms and elections
//!
//! Time is divided into terms, each with at most one leader. A *follower* that hears nothing of a
//! leader for an *election timeout* becomes a *candidate*: it raises the term, votes for itself and
//! asks the others. A server votes once in a term, for a candidate whose log is at least as new as
//! its own (paper, 5.4.1), so a leader holds every committed entry. The vote must be on disk before
//! it is sent: a server that forgets it could vote twice. The timeout is drawn anew for each
//! attempt, between one and two times [`ElectionTimeout::ticks`], so that candidates seldom meet.
//!
//! Three additions, all from the thesis:
//!
//! - *Pre-vote* (9.6): before it raises the term, a candidate asks whether it would win. A server
//!   that was cut off for a while comes back without deposing a leader that works.
//! - *Check quorum* (6.2): a leader that hears no majority for an election timeout steps down by
//!   itself, so that its clients look for another one.
//! - *Leadership transfer* (3.10): a leader that stops tells the most advanced follower to stand at
//!   once.
//!
//! A new leader cannot tell which entries of earlier terms are committed, and must not count their
//! copies (paper, 5.4.2). It commits an empty entry of its own term first; until that is applied it
//! answers no reader.
//!
//! # Reads: the read index
//!
//! Reads cost no entry. The leader notes its commit index, asks a majority whether it still leads,
//! and answers from its state as soon as it has applied so far (thesis, 6.4: *ReadIndex*). One
//! round serves all who wait: see [`crate::read_index`]. A follower asks the leader for that index
//! and answers from its own state. Lease reads, which trust clocks instead of a round, are not
//! used: with clocks that drift they answer from the past.
//!
//! # Compaction, checkpoints and snapshots
//!
//! The log cannot grow for ever. A *checkpoint* is the state as of one applied index, on this
//! server's own disk. The log is *compacted* behind a durable checkpoint, never beyond it (thesis,
//! 5): what the *compaction index* has passed is gone from the log and is in the checkpoint. A
//! follower that still needs a compacted entry cannot be served from the log any more: it is sent a
//! *snapshot*, which is the leader's checkpoint on its way. [`log::SnapshotMeta`] says what a
//! checkpoint or snapshot stands for: index, term and membership. Some log is kept behind the
//! checkpoint so that a follower that was away for a moment needs none.
//!
//! # Membership: joint consensus
//!
//! The servers that vote are part of the replicated state. To change them in one step is unsafe:
//! for a moment two disjoint majorities could exist. So a change goes through a *joint* membership,
//! in which a majority of the old **and** of the new voters is needed (paper, 6; thesis, 4.3), and
//! a second entry leaves it. A new server is first a *learner*: it gets the log, and has no vote
//! until it has caught up (thesis, 4.2.1). Who becomes a voter, and when, is the autopilot's
//! decision: [`crate::autopilot`].
//!
//! # One turn
//!
//! The disk is slow and the engine must not wait for it. So writes are asynchronous (thesis,
//! 10.2.1: the leader writes while its followers do), and the order below is what everything rests
//! on:
//!
//! ```text
//! entries visible in memory ─▶ the engine moves on ─▶ a leader's appends leave
//!    ─▶ DURABLE ─▶ the engine is told ─▶ votes and acknowledgements leave ─▶ apply ─▶ the engine is told
//! ```
//!
//! 1. What the engine wants written becomes visible in [`memory_log`] before the engine goes on:
//!    else it would use an index twice.
//! 2. A leader's appends may leave at once, but never before its own vote for itself is durable: a
//!    single voter that crashes in between would be a leader that nobody remembers.
//! 3. Acknowledgements and votes leave when the write they speak of is durable, and when every
//!    write queued before it is durable too: an answer to a heartbeat acknowledges older entries as
//!    well.
//! 4. The engine is told of a durable write before the messages that rest on it leave.
//! 5. Entries are applied when they are committed *and* durable here; only then is a change of
//!    membership told to the engine.
//!
//! # Caveats
//!
//! - *Time stands still during an install.* From the moment a snapshot is in memory until it is
//!   durable and applied, the engine gets no tick: a server must not stand for election on a state
//!   that it may forget.
//! - *A server whose disk was set back* (restored from a copy) has forgotten votes and
//!   acknowledgements, which Raft does not allow. The others remember how far it was and refuse it:
//!   see [`crate::setback`].
//! - *A removed server* may still disturb with votes. Its certificate counts no more, and its
//!   streams are closed.
//! - *Randomness* is an argument: timeouts are drawn from a seed, so that the same inputs make the
//!   same run. Messages and lists of the engine are sorted for the same reason.
//! - *Peers are not trusted to be well-formed.* The engine panics on a message that it does not
//!   know, so [`message`] checks every one before it is stepped. A panic of the engine is never
//!   caught: memory can no longer be trusted.
//! - *A proposal has three fates.* Dropped: certainly not done. Applied at its index and term:
//!   done. Overtaken by another entry at that index: not done. A client whose leader goes silent
//!   cannot tell, and asks again under the same request id.
//! - *The disk may lie in one way only:* it may lose what was not synced. A bit that flips is found
//!   by checksums, and the server stops.
//!
//! # Files
//!
//! | file | is |
//! |---|---|
//! | `engine.rs` | the only file that names the engine: turns it until it has nothing more to say |
//! | `memory_log.rs` | the log as the engine reads it |
//! | [`log`] | what the disk sees |
//! | [`message`] | what the peers see |
//!
//! Who applies entries is [`crate::Core`]; who writes them is `lockmesh-server`'s store.

pub(crate) mod engine;
pub mod log;
pub(crate) mod memory_log;
pub mod message;

pub use engine::{Progress, membership_after};
use std::time::Duration;

/// The engine's unit of time.
pub const TICK: Duration = Duration::from_millis(20);

/// When a follower stands for election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTimeout {
    /// After how many ticks without a word of its leader; each time it waits for one to two times
    /// as many. At least 3, and more than `heartbeat_ticks`.
    pub ticks: usize,
    /// How many ticks lie between two words of a leader that has nothing to say.
    pub heartbeat_ticks: usize,
}

impl ElectionTimeout {
    /// The election that fits a time-out, which is rounded to ticks: a leader speaks five times
    /// meanwhile.
    pub fn with_timeout(timeout: Duration) -> Self {
        let ticks = (timeout.as_micros() / TICK.as_micros()).max(3) as usize;
        Self { ticks, heartbeat_ticks: (ticks / 5).max(1) }
    }

    /// The shortest time without a leader after which a follower stands for election.
    pub fn timeout(self) -> Duration {
        TICK * self.ticks as u32
    }
}

impl Default for ElectionTimeout {
    fn default() -> Self {
        Self { ticks: 10, heartbeat_ticks: 2 }
    }
}
