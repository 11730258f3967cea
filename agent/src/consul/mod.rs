//! Consul's routes, commands, options and configuration keys that Lockmesh does not have, each with
//! its feature and a remedy.
//!
//! The tables in `consul/table.rs` are the only list: the router, the command line and the
//! configuration parser look a name up here before they reject it, and
//! `deploy/operations/move-from-consul.md` shows the tables, which a test compares. A feature that
//! Lockmesh gains loses its row: a test rejects a row whose route is served.

mod table;

pub use table::{COMMANDS, KEYS, OPTIONS, ROUTES};

use std::fmt;

/// Names of one feature of Consul that Lockmesh does not have under these names.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// The names: paths of routes, where a `/` at the end includes all paths below; words of a
    /// command; options as `agent -dev`; dotted keys, which include all keys below.
    pub names: &'static [&'static str],
    /// The feature, as a noun phrase.
    pub feature: &'static str,
    /// The replacement.
    pub remedy: Remedy,
    /// Status and text of a route, if Consul has fixed ones for a feature that is disabled.
    pub disabled: Option<(u16, &'static str)>,
}

/// The replacement for a name of Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Lockmesh has the feature under this name.
    Here(&'static str),
    /// Lockmesh does not have the feature. The text is an imperative.
    Absent(&'static str),
}

impl Row {
    /// The row in one sentence: the rejected name, the feature, the remedy.
    pub fn explain(&self, name: &str) -> String {
        format!("`{name}` of Consul ({}): {}", self.feature, self.remedy)
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(name) => write!(f, "here it is {name}"),
            Self::Absent(advice) => write!(f, "not in Lockmesh; {advice}"),
        }
    }
}

/// The row of a path that no endpoint serves.
pub fn route(path: &str) -> Option<&'static Row> {
    let covers = |name: &&str| match name.strip_suffix('/') {
        Some(_) => path.starts_with(*name),
        None => path == *name,
    };
    ROUTES.iter().find(|row| row.names.iter().any(&covers))
}

/// The row of a command, by the words that follow the program's name, and the words that name it.
pub fn command(words: &[&str]) -> Option<(&'static str, &'static Row)> {
    named(COMMANDS, |name| {
        let mut words = words.iter();
        name.split(' ').all(|wanted| words.next() == Some(&wanted))
    })
}

/// The row of an option of a command, without its dashes. `server` has the options of Consul's
/// `agent`.
pub fn option(command: &str, option: &str) -> Option<(&'static str, &'static Row)> {
    let command = if command == "server" { "agent" } else { command };
    named(OPTIONS, |name| {
        let (of, dashed) = name.rsplit_once(' ').unwrap_or(("", name));
        (of.is_empty() || of == command) && dashed.strip_prefix('-') == Some(option)
    })
}

/// The row of a configuration key, by its dotted path, and the row's name for it: that of the key
/// or of a section around it. The longest name wins.
pub fn key(path: &str) -> Option<(&'static str, &'static Row)> {
    named(KEYS, |name| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

fn named(rows: &'static [Row], matches: impl Fn(&str) -> bool) -> Option<(&'static str, &'static Row)> {
    let names = rows.iter().flat_map(|row| row.names.iter().map(move |name| (*name, row)));
    names.filter(|(name, _)| matches(name)).max_by_key(|(name, _)| name.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Write;

    const RUNBOOK: &str = include_str!("../../../deploy/operations/move-from-consul.md");

    /// The rows as the runbook shows them.
    fn markdown(rows: &[Row]) -> String {
        let mut text = String::from("| Consul | feature | Lockmesh |\n|---|---|---|\n");
        for row in rows {
            // `/v1/config` includes `/v1/config/` for readers.
            let repeats = |name: &str| name.strip_suffix('/').is_some_and(|bare| row.names.contains(&bare));
            let names = row.names.iter().filter(|name| !repeats(name)).map(|name| format!("`{name}`"));
            let names = names.collect::<Vec<_>>().join(", ");
            let remedy = match row.remedy {
                Remedy::Here(name) => name.to_string(),
                absent => absent.to_string(),
            };
            writeln!(text, "| {names} | {} | {remedy} |", row.feature).expect("a string grows");
        }
        text
    }

    #[test]
    fn the_runbook_shows_the_tables() {
        let mut wrong = String::new();
        for (heading, rows) in [
            ("### Routes that differ", ROUTES),
            ("### Commands that differ", COMMANDS),
            ("### Options that differ", OPTIONS),
            ("### Keys that differ", KEYS),
        ] {
            let section = RUNBOOK.split_once(heading).map_or("", |(_, section)| section);
            let section = section.split("\n#").next().unwrap_or_default();
            let table = section.lines().filter(|line| line.starts_with('|'));
            let expected = markdown(rows);
            if !table.eq(expected.lines()) {
                write!(wrong, "\n{heading}\n\n{expected}").expect("a string grows");
            }
        }
        assert!(wrong.is_empty(), "move-from-consul.md must have these tables:\n{wrong}");
    }

    #[test]
    fn rows_are_unique_and_complete() {
        for rows in [ROUTES, COMMANDS, OPTIONS, KEYS] {
            let mut names = BTreeSet::new();
            for row in rows {
                assert!(row.names.iter().all(|name| names.insert(*name)), "twice: {row:?}");
                let (Remedy::Here(text) | Remedy::Absent(text)) = row.remedy;
                for text in [row.feature, text] {
                    assert!(!text.is_empty() && !text.contains('|') && !text.ends_with('.'), "{row:?}");
                }
            }
        }
    }

    #[test]
    fn lookup_finds_covering_row() {
        let feature = |row: Option<&Row>| row.map(|row| row.feature);
        let entries = feature(route("/v1/config"));
        assert!(entries.is_some());
        assert_eq!(feature(route("/v1/config/service-defaults/web")), entries);
        for path in ["/v1/operator/usage/x", "/v1/configs", "/v1/acls", "/v1/kv/a", "/ui2", "/"] {
            assert_eq!(route(path), None, "{path}");
        }
        assert_eq!(command(&["config", "read", "-kind", "x"]).map(|found| found.0), Some("config read"));
        assert_eq!(command(&["config"]), None);
        assert_eq!(command(&["peering", "list"]).map(|found| found.0), Some("peering"));
        assert_eq!(option("server", "bind").map(|found| found.0), Some("agent -bind"));
        assert_eq!(option("kv", "bind"), None);
        assert_eq!(option("kv", "namespace").map(|found| found.0), Some("-namespace"));
        assert_eq!(key("ports.http").map(|found| found.0), Some("ports.http"));
        assert_eq!(key("acl.tokens.agent").map(|found| found.0), Some("acl"));
        assert_eq!(key("acls"), None);
    }

    #[test]
    fn a_row_is_one_sentence() {
        let (name, row) = key("retry_join").expect("a row");
        assert_eq!(
            row.explain(name),
            "`retry_join` of Consul (addresses of servers to join): here it is `quorum.join` of a server, \
             `upstream.servers` of an agent"
        );
        let row = route("/v1/peering").expect("a row");
        assert!(row.explain("/v1/peering").contains("): not in Lockmesh; "));
    }
}
