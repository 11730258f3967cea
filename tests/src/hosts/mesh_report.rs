//! The cost of a mesh of hundreds of agents, as text and as JSON.

use serde::Serialize;
use std::fmt;

/// The outcome of a measurement.
#[derive(Debug, Serialize)]
pub struct MeshReport {
    /// The number of agents.
    pub agents: usize,
    /// The joining of all agents.
    pub joined: Joined,
    /// The idle phase.
    pub idle: Idle,
    /// The death of three tenths of the agents at once.
    pub deaths: Deaths,
    /// The return of the killed agents.
    pub back: Joined,
    /// Descriptions of all broken expectations.
    pub broken: Vec<String>,
}

/// The start of agents. Times are seconds since the last start; `None` if the condition was not
/// met.
#[derive(Debug, Serialize)]
pub struct Joined {
    /// Seconds from the first start to the last one.
    pub started_seconds: f64,
    /// Seconds until the servers listed all agents as alive.
    pub alive_seconds: Option<f64>,
    /// Seconds until each agent knew all others.
    pub known_seconds: Option<f64>,
    /// Loopback bytes per second and agent, from the first start on.
    pub bytes: f64,
}

/// An idle phase. Traffic is all loopback traffic of agents and servers, each packet counted once,
/// per second and agent.
#[derive(Debug, Serialize)]
pub struct Idle {
    /// The duration in seconds.
    pub seconds: f64,
    /// Datagrams sent by the mesh, per second and agent.
    pub datagrams: f64,
    /// All loopback packets, including those datagrams.
    pub packets: f64,
    /// The bytes of these packets.
    pub bytes: f64,
    /// Processor use of an agent, as a fraction of one core.
    pub cores: f64,
    /// Processor use of the busiest agent.
    pub worst_cores: f64,
    /// Resident memory of an agent, in the median.
    pub resident_mib: f64,
    /// Resident memory of the largest agent.
    pub worst_resident_mib: f64,
    /// Resident memory that no other process shares, in the median.
    pub private_mib: f64,
    /// The cost of each server.
    pub servers: Vec<ServerCost>,
}

/// The cost of a server.
#[derive(Debug, Serialize)]
pub struct ServerCost {
    /// Processor use, as a fraction of one core.
    pub cores: f64,
    /// Resident memory.
    pub resident_mib: f64,
}

/// The death of agents. Times are seconds since the kill; `None` if the condition was not met.
#[derive(Debug, Serialize)]
pub struct Deaths {
    /// The number of killed agents.
    pub killed: usize,
    /// Seconds until the servers failed the first of them.
    pub first_failed_seconds: Option<f64>,
    /// Seconds until they had failed all.
    pub last_failed_seconds: Option<f64>,
    /// Seconds until no living agent had one of them in its mesh.
    pub forgotten_seconds: Option<f64>,
    /// Loopback bytes per second and living agent, until the last one was failed.
    pub bytes: f64,
    /// Loopback bytes in the worst second.
    pub worst_bytes: f64,
}

impl MeshReport {
    /// Returns `true` if all expectations held.
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

/// Formats a time, or its absence.
fn seconds(time: Option<f64>) -> String {
    time.map_or("never".into(), |time| format!("{time:.2} s"))
}
