//! The invariants, one file each. Every invariant sees every fact, and returns a description of a
//! violation.
//!
//! | file | invariant |
//! |---|---|
//! | `mutual_exclusion` | a lock has one holder, in the log's order and in clients' beliefs |
//! | `fairness` | waiters get a lock in turn, as soon as it is free; no wait is cut short |
//! | `fencing` | fencing tokens only increase |
//! | `deadlocks` | a circle of waits is found in the entry that closes it |
//! | `holder_alive` | the holder of a lock is a live session |
//! | `atomic_invalidation` | the end of a session releases all its locks in one log entry |
//! | `check_sessions` | no session outlives a critical check, or is lost to one that is well |
//! | `prepared_queries` | a query lives until its delete or its session's end; reads find it |
//! | `lock_delay` | a lock-delay lasts as long as it must under any leader |
//! | `ttl` | no session expires sooner than its TTL after an acknowledged renewal |
//! | `node_lease` | no agent believes in its node's sessions when the servers fail the node |
//! | `lease_deadline` | an agent's belief depends on its own lease, and counts from the send time |
//! | `acknowledgements` | only a real leader acknowledges a renewal, and not while it decides |
//! | `verdicts` | a verdict has a majority and the present lease; agents believe no other |
//! | `silence` | no verdict comes sooner than its window after contact with the node |
//! | `force_leave` | a force-leave takes effect only on nodes that have failed or left |
//! | `no_lost_write` | a write with a reply is in the log at the index in the reply |
//! | `exactly_once` | a request takes effect once, however often it is sent |
//! | `outcomes` | a command that a client was told is not done is never done |
//! | `fresh_reads` | a read that is not stale reflects every reply before it began |
//! | `whole_lists` | a list that is read in parts to its end equals the state of one moment |
//! | `leadership` | an agent treats a server as leader only on that server's own word |
//! | `registrations` | no command precedes its registration, or follows its known removal |
//! | `parked_reads` | a read is parked at a server only while a caller waits for it |
//! | `access` | a request without the right by the access control lists has no effect |
//! | `rights` | a client without the right changes no other living node; operator hosts hold |
//! | `replicas` | servers that applied the same index hold the same state |
//! | `raft` | one leader and one vote per term, logs that agree, committed entries stay |
//! | `durable` | no promise before it is durable |
//! | `watches` | a watcher learns of the last change |
//! | `backups` | a backup equals the log's state; no index is used twice, even after a restore |
//!
//! `agent_event` defines the events between an agent and its environment.

mod access;
mod acknowledgements;
pub mod agent_event;
mod atomic_invalidation;
mod backups;
mod check_sessions;
mod deadlocks;
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
mod prepared_queries;
mod raft;
mod registrations;
mod replicas;
mod rights;
mod silence;
mod ttl;
mod verdicts;
mod watches;
mod whole_lists;

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
use lockmesh_protocol::rpc::{AnswerPart, BackupPart};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// An event in the simulation.
#[derive(Debug)]
pub enum Fact<'a> {
    /// A process opened its disk, or a checkpoint replaced its state.
    Opened {
        /// The server.
        server: ServerId,
        /// The index of the state.
        index: LogIndex,
        /// The state.
        state: &'a State,
    },
    /// A process queued a write of its log.
    Wrote {
        /// The server.
        server: ServerId,
        /// The write.
        write: &'a LogWrite,
        /// The log including the write.
        shadow: &'a Shadow,
    },
    /// A process crashed.
    Crashed {
        /// The server.
        server: ServerId,
        /// The contents of its disk after the crash.
        durable: &'a Durable,
    },
    /// A process sent a message.
    Sent {
        /// The server.
        server: ServerId,
        /// The message.
        message: &'a PeerMessage,
        /// The contents of its disk at that time.
        durable: &'a Durable,
    },
    /// An entry was applied for the first time on any server.
    Applied(&'a Past),
    /// A process applied entries.
    Reached {
        /// The server.
        server: ServerId,
        /// The index before the first entry.
        from: LogIndex,
        /// The index of the last entry.
        to: LogIndex,
        /// The resulting changes.
        changes: &'a [Change],
    },
    /// Changes that do not follow from the log: an invariant that recognizes them must report them
    /// too.
    Strange {
        /// The changes.
        changes: &'a [Change],
    },
    /// A server replied.
    Given {
        /// The server.
        server: ServerId,
        /// The reply.
        given: &'a Given,
        /// The applied index of the server.
        applied: LogIndex,
        /// The number of disks that hold the write.
        copies: usize,
        /// The number of voters.
        voters: usize,
    },
    /// A client was notified that it holds a lock.
    Believes {
        /// The session.
        session: &'a SessionId,
        /// The lock.
        key: &'a Key,
        /// The fencing token.
        fence: Fence,
    },
    /// A client knows the minimum lifetime of its session.
    Leased {
        /// The session.
        session: &'a SessionId,
        /// The end of that lifetime, in true time.
        until: Time,
    },
    /// The lease events of a server's turn.
    Leases {
        /// The server.
        server: ServerId,
        /// The events.
        turn: &'a LeaseTurn,
    },
    /// An agent knows the minimum lifetime of its node's sessions, as far as the node is concerned.
    NodeBelieved {
        /// Its lease.
        lease: LeaseId,
        /// The end of that lifetime, in true time, by window.
        until: [Time; 3],
    },
    /// An agent accepted a verdict as the servers'.
    VerdictHeard {
        /// The agent.
        agent: usize,
        /// The verdict.
        verdict: &'a Verdict,
    },
    /// A client stops believing in a lock, or in all locks of a session.
    LetsGo {
        /// The session.
        session: &'a SessionId,
        /// The lock; `None` for all.
        key: Option<&'a Key>,
    },
    /// A client has read a backup completely.
    BackedUp {
        /// Its parts, in order.
        parts: &'a [BackupPart],
    },
    /// A client has read a list in parts to its end.
    Listed {
        /// The query.
        query: &'a Query,
        /// The parts, in order.
        parts: &'a [AnswerPart],
    },
    /// A client was told that its command was definitely not done.
    ToldNotDone {
        /// The command.
        command: &'a Command,
    },
    /// An event between an agent and its environment.
    Agent {
        /// The agent.
        agent: usize,
        /// The event.
        event: AgentEvent<'a>,
    },
    /// The run has ended.
    LastSeen {
        /// A watcher's query.
        query: &'a Query,
        /// The last answer that it saw.
        answer: Option<&'a Answer>,
    },
}

/// The context of a fact.
#[derive(Debug)]
pub struct Scene<'a> {
    /// True time.
    pub now: Time,
    /// All applied entries.
    pub history: &'a History,
    /// The parameters of the seed.
    pub plan: &'a Plan,
    /// The times of clock jumps.
    pub jumps: &'a [Time],
}

impl Scene<'_> {
    /// Returns the minimum true time that passes while a server's clock counts `counted`, from
    /// `since` on.
    pub fn at_least(&self, counted: Duration, since: Time) -> Duration {
        let drift = self.plan.faults.drift as u32;
        let slowest = counted * 1_000_000 / (1_000_000 + drift);
        // A jump moves the deadlines, except for less than a tick.
        let jumps = self.jumps.iter().filter(|jump| **jump >= since).count() as u32;
        slowest.saturating_sub(lockmesh_core::raft::TICK * jumps + Duration::from_millis(1))
    }
}

/// An invariant.
pub trait Invariant: std::fmt::Debug {
    /// Returns its name, which is that of its file.
    fn name(&self) -> &'static str;

    /// Processes a fact.
    ///
    /// # Errors
    /// A description of the violation: the run has failed.
    fn see(&mut self, fact: &Fact<'_>, scene: &Scene<'_>) -> Result<(), String>;
}

/// Returns all invariants in their initial state.
pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(mutual_exclusion::MutualExclusion::default()),
        Box::new(fairness::Fairness::default()),
        Box::new(fencing::Fencing::default()),
        Box::new(deadlocks::DeadlocksFound::default()),
        Box::new(rights::Rights::default()),
        Box::new(access::AccessControl::default()),
        Box::new(holder_alive::HolderAlive::default()),
        Box::new(atomic_invalidation::AtomicInvalidation::default()),
        Box::new(check_sessions::CheckSessions::default()),
        Box::new(prepared_queries::PreparedQueries::default()),
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
        Box::new(whole_lists::WholeLists::default()),
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

/// Returns `true` for a change of an agent's kept replies only: no effect of its command.
fn is_bookkeeping(change: &Change) -> bool {
    matches!(change, Change::Reply(..) | Change::LowestSequence(..))
}

/// Returns `true` if these changes are a restore's: the state starts again with the contents of the
/// backup.
fn is_restore(changes: &[Change]) -> bool {
    changes.contains(&Change::Cleared)
}

/// Fails with a message unless `holds`.
fn ensure(holds: bool, words: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(words()) }
}
