//! The life of a cluster, for people to read, and for two runs to be compared.

use lockmesh_protocol::time::Time;

/// How much is written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Nothing: for speed.
    #[default]
    Nothing,
    /// What people want to read; printed at once.
    Life,
    /// Every event, kept: to compare two runs.
    Trace,
}

/// What was written down.
#[derive(Debug, Default)]
pub struct Chronicle {
    detail: Detail,
    lines: Vec<String>,
}

impl Chronicle {
    /// An empty one.
    pub fn new(detail: Detail) -> Self {
        Self { detail, lines: Vec::new() }
    }

    /// Something worth reading happened.
    pub fn say(&mut self, now: Time, words: impl FnOnce() -> String) {
        if self.detail == Detail::Nothing {
            return;
        }
        let line = format!("{:>10.4}  {}", now.0 as f64 / 1e6, words());
        match self.detail {
            Detail::Life => println!("{line}"),
            _ => self.lines.push(line),
        }
    }

    /// Something happened that only a comparison looks at.
    pub fn trace(&mut self, now: Time, words: impl FnOnce() -> String) {
        if self.detail == Detail::Trace {
            self.lines.push(format!("{} {}", now.0, words()));
        }
    }

    /// Everything that was kept.
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }
}
