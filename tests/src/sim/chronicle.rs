//! The log of a run, to be read by people and to be compared with that of another run.

use lockmesh_protocol::time::Time;

/// Level of detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Nothing: fastest.
    #[default]
    Nothing,
    /// Events of interest to people; printed immediately.
    Life,
    /// Every event, kept to compare two runs.
    Trace,
}

/// The recorded events.
#[derive(Debug, Default)]
pub struct Chronicle {
    detail: Detail,
    lines: Vec<String>,
}

impl Chronicle {
    /// Returns an empty chronicle.
    pub fn new(detail: Detail) -> Self {
        Self { detail, lines: Vec::new() }
    }

    /// Records an event of interest to people.
    pub fn log(&mut self, now: Time, words: impl FnOnce() -> String) {
        if self.detail == Detail::Nothing {
            return;
        }
        let line = format!("{:>10.4}  {}", now.0 as f64 / 1e6, words());
        match self.detail {
            Detail::Life => println!("{line}"),
            _ => self.lines.push(line),
        }
    }

    /// Records an event that matters only to a comparison.
    pub fn trace(&mut self, now: Time, words: impl FnOnce() -> String) {
        if self.detail == Detail::Trace {
            self.lines.push(format!("{} {}", now.0, words()));
        }
    }

    /// Returns all recorded lines.
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }
}
