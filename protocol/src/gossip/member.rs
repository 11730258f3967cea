//! Members of the mesh, and their reports about each other.

use crate::id::{AgentNumber, LogIndex, ServerId};
use crate::lease::LeaseId;
use bytes::{Buf, BufMut};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The size of a member's id in bytes.
pub const MEMBER_BYTES: usize = 12;

/// Set in the number of a server.
const SERVER_BIT: u32 = 1 << 31;

/// The identity of a host, independent of its current process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Host {
    /// The agent of a host.
    Agent(AgentNumber),
    /// A server of the quorum.
    Server(ServerId),
}

/// A process in the mesh. Reports about one process do not apply to the next process on the same
/// host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId {
    /// The host.
    pub host: Host,
    /// The process: for an agent the index of the registration that started its lease, for a server
    /// its start counter. Later processes have higher numbers.
    pub began: u64,
}

/// The number of suspicions that a process has refuted: SWIM's incarnation. It is unrelated to the
/// incarnation in an agent's registration, which identifies a process.
pub type Incarnation = u16;

/// The states that members report. There is no dead state: only the servers' verdict declares a
/// failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It replies.
    Alive,
    /// A probe of it failed.
    Suspect,
}

/// A member's report about another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// The member in question.
    pub member: MemberId,
    /// The incarnation that the report refers to.
    pub incarnation: Incarnation,
    /// The reported state.
    pub standing: Standing,
}

impl MemberId {
    /// Returns the process of an agent that holds a lease.
    pub fn of_agent(lease: LeaseId) -> Self {
        Self { host: Host::Agent(lease.agent), began: lease.began.0 }
    }

    /// Returns a process of a server.
    pub fn of_server(server: ServerId, life: u64) -> Self {
        Self { host: Host::Server(server), began: life }
    }

    /// Returns the lease of an agent's process; `None` for a server.
    pub fn lease(self) -> Option<LeaseId> {
        match self.host {
            Host::Agent(agent) => Some(LeaseId { agent, began: LogIndex(self.began) }),
            Host::Server(_) => None,
        }
    }

    /// Returns `true` if its numbers fit into a datagram.
    pub fn fits(self) -> bool {
        match self.host {
            Host::Agent(AgentNumber(number)) => number < SERVER_BIT,
            Host::Server(ServerId(id)) => id < u64::from(SERVER_BIT),
        }
    }

    /// Encodes it; an id that does not [fit](Self::fits) identifies no member.
    pub fn write(self, buffer: &mut impl BufMut) {
        let number = match self.host {
            // The number of an agent must never be read as that of a server.
            Host::Agent(AgentNumber(number)) => number & !SERVER_BIT,
            Host::Server(ServerId(id)) => SERVER_BIT | (id as u32 & !SERVER_BIT),
        };
        buffer.put_u32(number);
        buffer.put_u64(self.began);
    }

    /// Decodes an id.
    ///
    /// # Errors
    /// There are not enough bytes.
    pub fn read(buffer: &mut impl Buf) -> Result<Self, bytes::TryGetError> {
        let number = buffer.try_get_u32()?;
        let host = match number & SERVER_BIT {
            0 => Host::Agent(AgentNumber(number)),
            _ => Host::Server(ServerId(u64::from(number & !SERVER_BIT))),
        };
        Ok(Self { host, began: buffer.try_get_u64()? })
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Host::Agent(AgentNumber(number)) => write!(f, "agent {number} since {}", self.began),
            Host::Server(ServerId(id)) => write!(f, "server {id} in its life {}", self.began),
        }
    }
}
