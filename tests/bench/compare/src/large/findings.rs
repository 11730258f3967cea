//! The findings, line by line, with their limits.

use crate::cluster::Cluster;
use crate::cluster::lockmesh::Lockmesh;
use crate::machine::Machine;
use crate::process::Usage;
use crate::report::table;
use serde::Serialize;
use std::io;
use std::path::Path;

/// One line.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// The measured quantity.
    pub(crate) what: String,
    /// Its value.
    pub(crate) figure: f64,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// The largest allowed value.
    pub(crate) limit: Option<f64>,
}

/// All findings.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Findings {
    pub(crate) machine: Machine,
    pub(crate) version: String,
    pub(crate) findings: Vec<Finding>,
    /// The limits that were exceeded.
    pub(crate) failures: Vec<String>,
}

impl Findings {
    /// Creates empty findings.
    pub(super) fn new(folder: &Path, version: &str) -> io::Result<Self> {
        let (machine, version) = (Machine::look(folder)?, version.to_owned());
        Ok(Self { machine, version, findings: Vec::new(), failures: Vec::new() })
    }

    /// Adds a finding.
    pub(super) fn add_finding(
        &mut self,
        what: impl Into<String>,
        figure: f64,
        unit: &'static str,
        limit: Option<f64>,
    ) {
        let what = what.into();
        if let Some(limit) = limit.filter(|limit| figure > *limit) {
            self.failures.push(format!("{what}: {figure:.1} {unit}, at most {limit} was wanted"));
        }
        self.findings.push(Finding { what, figure, unit, limit });
    }

    /// Adds the memory of every process, with limits for servers and for the agent.
    pub(super) fn look(&mut self, cluster: &mut Lockmesh, stage: &str, limits: [f64; 2]) {
        let servers = cluster.servers();
        for (number, program) in cluster.programs().iter().enumerate() {
            let usage = program.usage().unwrap_or_default();
            let limit = limits[usize::from(number >= servers)];
            self.memory(&program.name, stage, usage, Some(limit).filter(|limit| limit.is_finite()));
        }
    }

    /// Adds the memory of every process.
    pub(super) fn look_freely(&mut self, cluster: &mut Lockmesh, stage: &str) {
        self.look(cluster, stage, [f64::INFINITY; 2]);
    }

    fn memory(&mut self, name: &str, stage: &str, usage: Usage, limit: Option<f64>) {
        self.add_finding(format!("memory of {name}, {stage}"), usage.memory_mib, "MiB", limit);
    }

    /// Renders everything as readable Markdown.
    pub(crate) fn render(&self) -> String {
        let mut rows = vec![["what", "figure", "limit", ""].map(str::to_owned).to_vec()];
        for finding in &self.findings {
            let digits = if finding.unit.is_empty() { 0 } else { 1 };
            let figure = format!("{:.digits$} {}", finding.figure, finding.unit);
            let limit = finding.limit.map_or_else(String::new, |limit| format!("{limit} {}", finding.unit));
            let verdict = match finding.limit {
                Some(limit) if finding.figure > limit => "MISSED",
                Some(_) => "reached",
                None => "",
            };
            rows.push(
                [&finding.what, figure.trim_end(), limit.trim_end(), verdict].map(str::to_owned).to_vec(),
            );
        }
        format!("{}\n- {}\n\n{}", self.machine.line(), self.version, table(&rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_held_against_figures() {
        let machine = crate::report::tests::empty().machine;
        let mut findings =
            Findings { machine, version: "lockmesh 1".into(), findings: Vec::new(), failures: Vec::new() };
        findings.add_finding("a wait", 60.0, "ms", Some(50.0));
        findings.add_finding("another", 40.0, "ms", Some(50.0));
        findings.add_finding("a count", 7.0, "", None);
        assert_eq!(findings.failures, ["a wait: 60.0 ms, at most 50 was wanted"]);
        let text = findings.render();
        assert!(text.contains("| a wait  | 60.0 ms | 50 ms | MISSED  |"), "{text}");
        assert!(text.contains("| a count | 7       |       |         |"), "{text}");
    }
}
