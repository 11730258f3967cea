//! Who is in the mesh, and what members say of each other.

use crate::id::{AgentNumber, LogIndex, ServerId};
use crate::lease::LeaseId;
use bytes::{Buf, BufMut};
use serde::{Deserialize, Serialize};
use std::fmt;

/// So many bytes name a member.
pub const MEMBER_BYTES: usize = 12;

/// Set in the number of a server.
const SERVER_BIT: u32 = 1 << 31;

/// Who somebody is, whichever process it runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Host {
    /// The agent of a host.
    Agent(AgentNumber),
    /// A server of the quorum.
    Server(ServerId),
}

/// A process in the mesh. What is said of one process says nothing of the one that follows it on
/// the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId {
    /// Whose process.
    pub host: Host,
    /// Which one: of an agent the index of the registration that began its lease, of a server its
    /// life. Whatever follows has a higher one.
    pub began: u64,
}

/// How many of the accusations against it a process has refuted so far: SWIM's incarnation. It has
/// nothing to do with the incarnation that an agent registers, which is a process.
pub type Incarnation = u16;

/// What members say of a member. Nobody can be said to be dead: that is the servers' verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It answers.
    Alive,
    /// Somebody has probed it in vain.
    Suspect,
}

/// What one member says of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// Of whom.
    pub member: MemberId,
    /// As of which incarnation.
    pub incarnation: Incarnation,
    /// How it stands.
    pub standing: Standing,
}

impl MemberId {
    /// The process of an agent that holds a lease.
    pub fn of_agent(lease: LeaseId) -> Self {
        Self { host: Host::Agent(lease.agent), began: lease.began.0 }
    }

    /// A life of a server.
    pub fn of_server(server: ServerId, life: u64) -> Self {
        Self { host: Host::Server(server), began: life }
    }

    /// The lease of an agent's process; a server has none.
    pub fn lease(self) -> Option<LeaseId> {
        match self.host {
            Host::Agent(agent) => Some(LeaseId { agent, began: LogIndex(self.began) }),
            Host::Server(_) => None,
        }
    }

    /// Whether its numbers fit into a datagram.
    pub fn fits(self) -> bool {
        match self.host {
            Host::Agent(AgentNumber(number)) => number < SERVER_BIT,
            Host::Server(ServerId(id)) => id < u64::from(SERVER_BIT),
        }
    }

    /// Writes it; one that does not [fit](Self::fits) names nobody then.
    pub fn write(self, buffer: &mut impl BufMut) {
        let number = match self.host {
            Host::Agent(AgentNumber(number)) => number & !SERVER_BIT,
            Host::Server(ServerId(id)) => SERVER_BIT | (id as u32 & !SERVER_BIT),
        };
        buffer.put_u32(number);
        buffer.put_u64(self.began);
    }

    /// Reads one.
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
