//! What must never happen, one file each. Every invariant sees every fact, and says what is wrong.
//!
//! | file | says |
//! |---|---|
//! | `mutual_exclusion` | a lock has one holder, in the log's order and in what clients believe |
//! | `fairness` | whoever waits for a lock gets it in turn, as soon as it is free; nobody's wait is cut short |
//! | `fencing` | fencing tokens only go up |
//! | `holder_alive` | whoever holds a lock is a session that lives |
//! | `atomic_invalidation` | the end of a session frees all its locks in one log entry |
//! | `lock_delay` | a lock-delay lasts as long as it must, whoever leads |
//! | `ttl` | no session expires sooner than its TTL after a renewal that was acknowledged |
//! | `node_lease` | no agent believes in its node's sessions when the servers fail the node |
//! | `lease_deadline` | what an agent believes rests on its own lease, and counts from the sending |
//! | `acknowledgements` | a leader that is one acknowledges a renewal, and none while it decides |
//! | `verdicts` | a verdict needs a majority of its index, is about the present lease, and agents believe no other |
//! | `silence` | no verdict comes sooner than its window after the leader heard of the node |
//! | `force_leave` | a force-leave takes effect on nodes that have failed or left alone |
//! | `no_lost_write` | a write that was answered is in the log, where the answer says |
//! | `exactly_once` | a request takes effect once, however often it is sent |
//! | `outcomes` | what a client was told is not done is never done |
//! | `fresh_reads` | a read that is not stale sees all that was answered before it began |
//! | `leadership` | an agent asks a server as the leader by that server's own word only |
//! | `registrations` | no command comes before its registration, or after it is known to be forgotten |
//! | `parked_reads` | a read is parked at a server only while somebody waits for it |
//! | `replicas` | servers that applied the same index hold the same state |
//! | `raft` | one leader a term, one vote a term, logs that agree, nothing committed changes |
//! | `durable` | nothing is promised before it is on disk |
//! | `watches` | a watcher learns the last change |
//! | `backups` | a backup is what the log made, and no index is given twice, whatever is restored |
//!
//! `agent_event` says what passes between an agent and its surroundings.

mod acknowledgements;
pub mod agent_event;
mod atomic_invalidation;
mod backups;
mod durable;
mod exactly_once;
mod fairness;
mod fencing;
mod force_leave;
mod fresh_reads;
mod holder_alive;
mod leadership;
mod lease_deadline;
mod lock_delay;
mod mutual_exclusion;
mod no_lost_write;
mod node_lease;
mod outcomes;
mod parked_reads;
mod raft;
mod registrations;
mod replicas;
mod silence;
mod ttl;
mod verdicts;
mod watches;

pub use agent_event::AgentEvent;

use super::durable::Durable;
use super::history::{History, Past};
use super::lease_turn::LeaseTurn;
use super::plan::Plan;
use super::process::{Given, Shadow};
use lockmesh_core::State;
use lockmesh_core::raft::log::LogWrite;
use lockmesh_core::raft::message::PeerMessage;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::gossip::verdict::Verdict;
use lockmesh_protocol::id::{Fence, Key, LogIndex, ServerId, SessionId};
use lockmesh_protocol::lease::LeaseId;
use lockmesh_protocol::query::{Answer, Query};
use lockmesh_protocol::rpc::BackupPart;
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Something that happened, as the simulation sees it.
#[derive(Debug)]
pub enum Fact<'a> {
    /// A process opened its disk, or a checkpoint took the place of its state.
    Opened {
        /// Whose.
        server: ServerId,
        /// What the state stands for.
        index: LogIndex,
        /// The state.
        state: &'a State,
    },
    /// A process queued a write of its log.
    Wrote {
        /// Whose.
        server: ServerId,
        /// The write.
        write: &'a LogWrite,
        /// The log with it.
        shadow: &'a Shadow,
    },
    /// A process crashed.
    Crashed {
        /// Which server's.
        server: ServerId,
        /// What its disk holds now.
        durable: &'a Durable,
    },
    /// A process sent a message.
    Sent {
        /// Who.
        server: ServerId,
        /// What it said.
        message: &'a PeerMessage,
        /// What its disk held then.
        durable: &'a Durable,
    },
    /// An entry was applied for the first time anywhere.
    Applied(&'a Past),
    /// A process applied entries.
    Reached {
        /// Which.
        server: ServerId,
        /// Those behind this index.
        from: LogIndex,
        /// Up to this one.
        to: LogIndex,
        /// What it came to.
        changes: &'a [Change],
    },
    /// Changes that do not follow from the log: whatever invariant recognises them may say so too.
    Strange {
        /// The changes.
        changes: &'a [Change],
    },
    /// A server answered.
    Given {
        /// Which.
        server: ServerId,
        /// The answer.
        given: &'a Given,
        /// How far it had applied the log.
        applied: LogIndex,
        /// So many disks hold what a write rests on.
        copies: usize,
        /// Of so many.
        voters: usize,
    },
    /// A client was told that it holds a lock.
    Believes {
        /// Under which session.
        session: &'a SessionId,
        /// Which lock.
        key: &'a Key,
        /// Under which token.
        fence: Fence,
    },
    /// A client knows how long its session lives at least.
    Leased {
        /// Which session.
        session: &'a SessionId,
        /// Until when, in true time.
        until: Time,
    },
    /// What a turn of a server had to do with leases.
    Leases {
        /// Which server's.
        server: ServerId,
        /// What it heard and said.
        turn: &'a LeaseTurn,
    },
    /// An agent knows how long its node's sessions live at least, as far as the node is concerned.
    NodeBelieved {
        /// Its lease.
        lease: LeaseId,
        /// Until when, in true time, by window.
        until: [Time; 3],
    },
    /// An agent took a verdict for the servers'.
    VerdictHeard {
        /// Which agent.
        agent: usize,
        /// The verdict.
        verdict: &'a Verdict,
    },
    /// A client gives up a lock, or all locks of a session.
    LetsGo {
        /// Which session.
        session: &'a SessionId,
        /// Which lock; none for all.
        key: Option<&'a Key>,
    },
    /// A client has read a backup to its end.
    BackedUp {
        /// Its parts, in order.
        parts: &'a [BackupPart],
    },
    /// A client was told that what it wanted was certainly not done.
    ToldNotDone {
        /// What it wanted.
        command: &'a Command,
    },
    /// Something passed between an agent and its surroundings.
    Agent {
        /// Which agent.
        agent: usize,
        /// What.
        event: AgentEvent<'a>,
    },
    /// All is quiet.
    LastSeen {
        /// What a watcher asks for.
        query: &'a Query,
        /// What it saw last.
        answer: Option<&'a Answer>,
    },
}

/// What a fact must be seen against.
#[derive(Debug)]
pub struct Scene<'a> {
    /// True time.
    pub now: Time,
    /// All that was applied.
    pub history: &'a History,
    /// What the seed stands for.
    pub plan: &'a Plan,
    /// When clocks jumped ahead.
    pub jumps: &'a [Time],
}

impl Scene<'_> {
    /// The least true time that passes while a server's clock counts `counted`, from `since` on.
    pub fn at_least(&self, counted: Duration, since: Time) -> Duration {
        let drift = self.plan.faults.drift as u32;
        let slowest = counted * 1_000_000 / (1_000_000 + drift);
        // Deadlines move by a jump, but for less than a tick.
        let jumps = self.jumps.iter().filter(|jump| **jump >= since).count() as u32;
        slowest.saturating_sub(lockmesh_core::raft::TICK * jumps + Duration::from_millis(1))
    }
}

/// Something that must never happen.
pub trait Invariant: std::fmt::Debug {
    /// Its name, which is its file's.
    fn name(&self) -> &'static str;

    /// Takes a fact in; what is wrong, if anything is.
    ///
    /// # Errors
    /// What must never happen has happened, in words: the run has failed.
    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String>;
}

/// All of them, new.
pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(mutual_exclusion::MutualExclusion::default()),
        Box::new(fairness::Fairness::default()),
        Box::new(fencing::Fencing::default()),
        Box::new(holder_alive::HolderAlive::default()),
        Box::new(atomic_invalidation::AtomicInvalidation::default()),
        Box::new(lock_delay::LockDelays::default()),
        Box::new(ttl::Ttl::default()),
        Box::new(node_lease::NodeLease::default()),
        Box::new(lease_deadline::LeaseDeadline::default()),
        Box::new(acknowledgements::Acknowledgements::default()),
        Box::new(verdicts::Verdicts),
        Box::new(silence::Silence::default()),
        Box::new(force_leave::ForceLeave::default()),
        Box::new(no_lost_write::NoLostWrite::default()),
        Box::new(exactly_once::ExactlyOnce::default()),
        Box::new(outcomes::Outcomes::default()),
        Box::new(fresh_reads::FreshReads::default()),
        Box::new(leadership::Leadership::default()),
        Box::new(registrations::Registrations::default()),
        Box::new(parked_reads::ParkedReads::default()),
        Box::new(replicas::Replicas),
        Box::new(raft::Raft::default()),
        Box::new(durable::NothingPromisedEarly),
        Box::new(watches::Watches),
        Box::new(backups::Backups::default()),
    ]
}

/// Whether these changes are a restore's: everything begins anew with what the backup holds.
fn is_restore(changes: &[Change]) -> bool {
    changes.contains(&Change::Cleared)
}

/// Fails with words where something is not so.
fn ensure(holds: bool, words: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(words()) }
}
