//! What the mesh of very many agents cost, as lines for people and as JSON.

use serde::Serialize;
use std::fmt;

/// What came of it.
#[derive(Debug, Serialize)]
pub struct MeshReport {
    /// How many agents.
    pub agents: usize,
    /// All of them came.
    pub joined: Joined,
    /// Nothing happened.
    pub idle: Idle,
    /// Three tenths were killed at once.
    pub deaths: Deaths,
    /// They came again.
    pub back: Joined,
    /// Every expectation that was broken, in words.
    pub broken: Vec<String>,
}

/// Agents were started. Seconds from the last start; none where it did not come to be so.
#[derive(Debug, Serialize)]
pub struct Joined {
    /// From the first start to the last one.
    pub started_seconds: f64,
    /// Until all were alive to the servers.
    pub alive_seconds: Option<f64>,
    /// Until each agent knew all others.
    pub known_seconds: Option<f64>,
    /// What loopback carried from the first start on, a second and agent.
    pub bytes: f64,
}

/// Nothing happened. What loopback carried is all that agents and servers said to each other, each
/// packet once, a second and agent.
#[derive(Debug, Serialize)]
pub struct Idle {
    /// For so long.
    pub seconds: f64,
    /// Datagrams that the mesh sent, a second and agent.
    pub datagrams: f64,
    /// Packets that loopback carried, those among them.
    pub packets: f64,
    /// Their bytes.
    pub bytes: f64,
    /// An agent, of one core.
    pub cores: f64,
    /// The busiest agent.
    pub worst_cores: f64,
    /// Resident memory of an agent, in the median.
    pub resident_mib: f64,
    /// Of the largest.
    pub worst_resident_mib: f64,
    /// What of it no other process shares, in the median.
    pub private_mib: f64,
    /// What each server cost.
    pub servers: Vec<ServerCost>,
}

/// What a server cost.
#[derive(Debug, Serialize)]
pub struct ServerCost {
    /// Of one core.
    pub cores: f64,
    /// Resident in memory.
    pub resident_mib: f64,
}

/// Agents were killed. Seconds since then; none where it did not come to be so.
#[derive(Debug, Serialize)]
pub struct Deaths {
    /// How many.
    pub killed: usize,
    /// Until the servers failed the first of them.
    pub first_failed_seconds: Option<f64>,
    /// Until they had failed all.
    pub last_failed_seconds: Option<f64>,
    /// Until no living agent had one of them in its mesh.
    pub forgotten_seconds: Option<f64>,
    /// What loopback carried until the last was failed, a second and living agent.
    pub bytes: f64,
    /// In the worst second.
    pub worst_bytes: f64,
}

impl MeshReport {
    /// Whether everything came to be as expected.
    pub fn is_clean(&self) -> bool {
        self.broken.is_empty()
    }
}

impl fmt::Display for MeshReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} agents, three servers, one machine", self.agents)?;
        writeln!(f, "join: {}", self.joined)?;
        write!(f, "{}", self.idle)?;
        writeln!(f, "{}", self.deaths)?;
        writeln!(f, "started again: {}", self.back)?;
        self.broken.iter().try_for_each(|line| writeln!(f, "BROKEN: {line}"))
    }
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "started within {:.1} s; all alive {} and known to all {} after the last start; {:.0} bytes a second \
             and agent",
            self.started_seconds,
            seconds(self.alive_seconds),
            seconds(self.known_seconds),
            self.bytes
        )
    }
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "idle for {:.0} s, a second and agent: {:.2} datagrams of the mesh; {:.2} packets and {:.0} bytes of \
             all kinds",
            self.seconds, self.datagrams, self.packets, self.bytes
        )?;
        writeln!(
            f,
            "an agent: {:.3} % of a core, at worst {:.3} %; resident {:.1} MiB, at worst {:.1}, its own of that \
             {:.1}",
            100.0 * self.cores,
            100.0 * self.worst_cores,
            self.resident_mib,
            self.worst_resident_mib,
            self.private_mib
        )?;
        let servers: Vec<String> = self
            .servers
            .iter()
            .map(|server| format!("{:.1} % and {:.1} MiB", 100.0 * server.cores, server.resident_mib))
            .collect();
        writeln!(f, "the servers: {}", servers.join(", "))
    }
}

impl fmt::Display for Deaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} killed at once: the first failed after {}, the last after {}, known to all after {}; {:.0} bytes a \
             second and living agent until the last was failed, {:.0} in the worst second",
            self.killed,
            seconds(self.first_failed_seconds),
            seconds(self.last_failed_seconds),
            seconds(self.forgotten_seconds),
            self.bytes,
            self.worst_bytes
        )
    }
}

/// A time, or that there was none.
fn seconds(time: Option<f64>) -> String {
    time.map_or("never".into(), |time| format!("{time:.2} s"))
}
