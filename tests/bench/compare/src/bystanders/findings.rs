//! The latencies of other clients, phase by phase.

use super::others::{Seen, WORKS};
use crate::cluster::Cluster;
use crate::cluster::lockmesh::Lockmesh;
use crate::machine::Machine;
use crate::options::BystandersArgs;
use crate::report::table;
use serde::Serialize;
use std::io;
use std::path::Path;

/// The latencies of one kind of request in one phase.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    phase: String,
    requests: &'static str,
    count: u64,
    failures: u64,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// The results of the clients that listed or deleted.
    meanwhile: String,
}

/// All findings.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Findings {
    machine: Machine,
    version: String,
    keys: u32,
    deleted: u32,
    value_bytes: u32,
    lines: Vec<Line>,
    notes: Vec<String>,
}

impl Findings {
    /// Creates empty findings.
    pub(super) fn new(folder: &Path, version: &str, args: &BystandersArgs) -> io::Result<Self> {
        Ok(Self {
            machine: Machine::look(folder)?,
            version: version.to_owned(),
            keys: args.keys,
            deleted: args.deleted,
            value_bytes: args.value,
            lines: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// Adds the other clients' latencies in a phase.
    pub(super) fn add_latencies(&mut self, phase: &str, seen: &[Seen; 3], meanwhile: String) {
        for (work, seen) in WORKS.iter().zip(seen) {
            let count = seen.latencies.count();
            self.lines.push(Line {
                phase: phase.to_owned(),
                requests: work.name(),
                count,
                failures: seen.failures,
                per_second: count as f64 / seen.time.as_secs_f64(),
                p50_ms: seen.latencies.milliseconds(0.5),
                p99_ms: seen.latencies.milliseconds(0.99),
                max_ms: seen.latencies.max_milliseconds(),
                meanwhile: meanwhile.clone(),
            });
        }
    }

    /// Adds a note.
    pub(super) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Adds the memory of all servers.
    pub(super) fn note_memory(&mut self, cluster: &mut Lockmesh, when: &str) {
        let servers = cluster.servers();
        let usage = cluster.programs().iter().take(servers).filter_map(|program| program.usage());
        let memory: Vec<String> = usage.map(|usage| format!("{:.0}", usage.memory_mib)).collect();
        self.note(format!("memory of the servers {when}: {} MiB", memory.join(", ")));
    }

    /// Renders everything as readable Markdown.
    pub(crate) fn render(&self) -> String {
        let head = ["phase", "requests", "count", "failed", "p50 ms", "p99 ms", "max ms", "meanwhile"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for line in &self.lines {
            let (phase, requests) = (line.phase.clone(), line.requests.to_owned());
            let [p50, p99, max] = [line.p50_ms, line.p99_ms, line.max_ms].map(|ms| format!("{ms:.1}"));
            let (count, failures) = (line.count.to_string(), line.failures.to_string());
            rows.push(vec![phase, requests, count, failures, p50, p99, max, line.meanwhile.clone()]);
        }
        let notes: String = self.notes.iter().map(|note| format!("- {note}\n")).collect();
        format!("{}\n- {}\n\n{}\n{notes}", self.machine.line(), self.version, table(&rows))
    }
}
