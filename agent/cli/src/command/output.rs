//! Output on stdout: tables for people, JSON for programs.
//!
//! For commands that print and end: they wait for the reader, and nothing else is done meanwhile.
//! Long-running commands, and all messages, use [`stdio`]. A closed pipe (`| head`) is an ordinary
//! end, [`CliError::ClosedPipe`], never a panic.

use super::error::CliError;
use crate::stdio;
pub use lockmesh_agent::monitor::printable;
use lockmesh_protocol::host_port::join;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stdout};

/// Prints bytes as they are.
///
/// # Errors
/// The pipe is closed, or a write failed. A part may have been printed.
pub fn print_bytes(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = stdout().lock();
    out.write_all(bytes)?;
    // A closed pipe is known only when the bytes are written.
    out.flush()?;
    Ok(())
}

/// Prints a text and a newline.
///
/// # Errors
/// As [`print_bytes`].
pub fn print_line(text: &str) -> Result<(), CliError> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Prints a value as JSON, indented like the agent's `?pretty`.
///
/// # Errors
/// As [`print_bytes`].
pub fn print_json<T: Serialize + ?Sized>(value: &T) -> Result<(), CliError> {
    print_bytes(&json(value)?)
}

/// A value as indented JSON with a newline.
///
/// # Errors
/// It is no JSON.
pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CliError> {
    let mut text = Vec::new();
    let indented = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    value
        .serialize(&mut serde_json::Serializer::with_formatter(&mut text, indented))
        .map_err(CliError::failed)?;
    text.push(b'\n');
    Ok(text)
}

/// Prints a warning on stderr.
pub fn warn(text: &str) {
    stdio::report(text);
}

/// The narrowest that a column is made to fit the terminal.
const LEAST_WIDTH: usize = 8;

/// The option of commands that print a table.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct TableArgs {
    /// Do not shorten columns to the width of the terminal
    #[arg(long)]
    wide: bool,
}

impl TableArgs {
    /// Prints a table, on a terminal within its width.
    ///
    /// # Errors
    /// As [`print_bytes`].
    pub fn print(self, table: &Table) -> Result<(), CliError> {
        match terminal_width().filter(|_| !self.wide) {
            Some(width) => print_line(&table.fitted(width).render()),
            None => table.print(),
        }
    }
}

/// The option of commands that print a line or JSON.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl JsonArgs {
    /// Prints a value as JSON, or a line.
    ///
    /// # Errors
    /// As [`print_bytes`].
    pub fn print<T: Serialize + ?Sized>(self, value: &T, line: &str) -> Result<(), CliError> {
        if self.json { print_json(value) } else { print_line(line) }
    }
}

/// The options of commands that print a table or JSON.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct OutputArgs {
    /// Print the JSON of the agent's API
    #[arg(long)]
    pub json: bool,
    /// The layout of the table
    #[command(flatten)]
    pub table: TableArgs,
}

impl OutputArgs {
    /// Prints a value as JSON, or as a table.
    ///
    /// # Errors
    /// As [`print_bytes`].
    pub fn print<T: Serialize + ?Sized>(
        self,
        value: &T,
        table: impl FnOnce(&T) -> Table,
    ) -> Result<(), CliError> {
        match self.json {
            true => print_json(value),
            false => self.table.print(&table(value)),
        }
    }
}

/// The number of columns of the terminal; `None` if stdout is not a terminal, or its size is
/// unknown.
fn terminal_width() -> Option<usize> {
    let out = stdout();
    let size = rustix::termios::tcgetwinsize(&out).ok().filter(|_| out.is_terminal())?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Pairs as the text of one column.
pub fn pairs(map: &Option<BTreeMap<String, String>>) -> String {
    let pairs = map.iter().flatten().map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}

/// Aligned columns under a heading.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<const COLUMNS: usize>(heading: [&str; COLUMNS]) -> Self {
        Self { rows: vec![heading.map(String::from).into()] }
    }

    /// Adds a row; an empty cell is shown as `-`.
    pub fn row<const COLUMNS: usize>(&mut self, cells: [String; COLUMNS]) {
        let shown = |cell: String| if cell.is_empty() { "-".to_string() } else { printable(&cell) };
        self.rows.push(cells.map(shown).into());
    }

    /// Removes these columns if they are empty in all rows.
    #[must_use]
    pub fn without_empty(mut self, headings: &[&str]) -> Self {
        let columns = 0..self.rows.first().map_or(0, Vec::len);
        // From the last one, so that the numbers of the others stay valid.
        for column in columns.rev() {
            let says = |row: &Vec<String>| row.get(column).is_some_and(|cell| cell != "-");
            let heading = self.rows[0][column].as_str();
            if headings.contains(&heading) && !self.rows[1..].iter().any(says) {
                self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
            }
        }
        self
    }

    /// The same table within that many columns if possible. Ids are shortened first, because their
    /// beginning identifies them; then the widest columns, and times last. Shortened cells end with
    /// `…`.
    #[must_use]
    fn fitted(&self, width: usize) -> Self {
        let mut widths = self.widths();
        let gaps = 2 * widths.len().saturating_sub(1);
        let rank = |column| match () {
            () if self.are_all(column, is_uuid) => 2,
            () if self.are_all(column, is_time) => 0,
            () => 1,
        };
        let ranks: Vec<u8> = (0..widths.len()).map(rank).collect();
        while widths.iter().sum::<usize>() + gaps > width {
            let long = (0..widths.len()).rev().filter(|column| widths[*column] > LEAST_WIDTH);
            // The first of the widest: the key before the holder.
            let Some(column) = long.max_by_key(|column| (ranks[*column], widths[*column])) else { break };
            widths[column] -= 1;
        }
        let short = |(cell, width): (&String, &usize)| match cell.chars().count() > *width {
            true => cell.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
            false => cell.clone(),
        };
        let row = |row: &Vec<String>| row.iter().zip(&widths).map(short).collect();
        Self { rows: self.rows.iter().map(row).collect() }
    }

    /// `true` for a column whose cells are all like this, such as UUIDs of sessions.
    fn are_all(&self, column: usize, is_like: fn(&str) -> bool) -> bool {
        let mut cells =
            self.rows.iter().skip(1).filter_map(|row| row.get(column)).filter(|cell| *cell != "-");
        cells.next().is_some_and(|first| is_like(first) && cells.all(|cell| is_like(cell)))
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            self.rows.iter().filter_map(move |row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        (0..columns).map(|column| width(column).unwrap_or(0)).collect()
    }

    /// The whole table, without a newline at its end.
    pub fn render(&self) -> String {
        let widths = self.widths();
        let line = |row: &Vec<String>| {
            let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Prints the whole table.
    ///
    /// # Errors
    /// As [`print_bytes`].
    pub fn print(&self) -> Result<(), CliError> {
        print_line(&self.render())
    }
}

/// `true` for `2026-11-21 08:41:12Z`.
fn is_time(text: &str) -> bool {
    text.len() == 20 && text.ends_with('Z') && text.as_bytes()[10] == b' '
}

fn is_uuid(text: &str) -> bool {
    let is_right = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_right)
}

/// `host:port`, with brackets around an IPv6 address; without a host or a port, only the other one.
pub fn host_port(host: &str, port: u16) -> String {
    if port == 0 { host.into() } else { join(host, port) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_aligned_without_trailing_spaces() {
        let mut table = Table::new(["Key", "Holder", "Fence"]);
        table.row(["job".into(), "node-one".into(), "7".into()]);
        table.row(["a/long/key".into(), String::new(), String::new()]);
        table.row(["clé".into(), "x".into(), "12".into()]);
        let expected = "Key         Holder    Fence\n\
                        job         node-one  7\n\
                        a/long/key  -         -\n\
                        clé         x         12";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn widest_columns_shrink_to_fit() {
        let mut table = Table::new(["Key", "Holder", "Fence"]);
        table.row(["job".into(), "a holder with a long name".into(), "7".into()]);
        table.row(["a/rather/long/key".into(), "short".into(), "12".into()]);
        let fitted = table.fitted(40).render();
        let expected = "Key              Holder            Fence\n\
                        job              a holder with a…  7\n\
                        a/rather/long/…  short             12";
        assert!(fitted.lines().all(|line| line.chars().count() <= 40), "{fitted}");
        assert_eq!(fitted, expected);
        assert_eq!(table.fitted(60).render(), table.render(), "it fits as it is");
        let narrow = table.fitted(1).render();
        assert!(narrow.contains("a holde…"), "columns stay readable: {narrow}");
    }

    #[test]
    fn ids_shortened_before_other_columns() {
        let id = "23cc4a7e-8aef-a56b-7cd5-8c82fa16a93a";
        let mut table = Table::new(["ID", "Address", "Why"]);
        let why = "node-failed (silent for 5.1s; window default)";
        table.row([id.into(), "[2001:db8::17]:8300".into(), why.into()]);
        table.row([String::new(), String::new(), String::new()]);
        let line = |width| table.fitted(width).render().lines().nth(1).map(String::from);
        assert_eq!(line(84), Some(format!("23cc4a7e-8aef-a…  [2001:db8::17]:8300  {why}")));
        assert_eq!(line(76), Some(format!("23cc4a7…  [2001:db8::17]:8300  {why}")));
        let narrow = line(60).expect("a row");
        assert_eq!(narrow, "23cc4a7…  [2001:db8::17]:8300  node-failed (silent for 5.1s…");
        assert!(is_uuid(id) && !is_uuid(why) && !is_uuid("23cc4a7e_8aef-a56b-7cd5-8c82fa16a93a"));
    }

    #[test]
    fn times_are_shortened_last() {
        let mut table = Table::new(["Key", "Since"]);
        table.row(["jobs/nightly/report".into(), "2026-11-21 08:41:12Z".into()]);
        assert!(table.fitted(32).render().ends_with("jobs/nigh…  2026-11-21 08:41:12Z"));
    }

    #[test]
    fn empty_columns_removed_on_request() {
        let mut table = Table::new(["Key", "Why", "Fence"]);
        table.row(["job".into(), String::new(), String::new()]);
        assert_eq!(table.clone().without_empty(&["Why"]).render(), "Key  Fence\njob  -");
        table.row(["other".into(), "late".into(), String::new()]);
        let shown = table.without_empty(&["Why", "Fence"]).render();
        assert_eq!(shown, "Key    Why\njob    -\nother  late");
    }

    #[test]
    fn control_characters_escaped() {
        let mut table = Table::new(["Key"]);
        table.row(["a\u{1b}[2Jb\nc".into()]);
        assert_eq!(table.render(), "Key\na\\u{1b}[2Jb\\nc");
    }
}
