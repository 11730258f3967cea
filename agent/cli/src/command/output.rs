//! What is printed on stdout: tables for people, JSON for machines.
//!
//! A reader that goes away (`| head`) is an ordinary end, told as [`CliError::ClosedPipe`], never a
//! panic.

use super::error::CliError;
use serde::Serialize;
use std::io::{Write, stderr, stdout};

/// Prints bytes as they are.
///
/// # Errors
/// The reader is gone, or stdout takes no more. A part may have been printed.
pub fn print_bytes(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = stdout().lock();
    out.write_all(bytes)?;
    // Only when the bytes leave is it known whether anybody reads them.
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
    let mut text = Vec::new();
    let indented = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    value
        .serialize(&mut serde_json::Serializer::with_formatter(&mut text, indented))
        .map_err(CliError::failed)?;
    text.push(b'\n');
    print_bytes(&text)
}

/// Says on stderr what does not end the command.
pub fn warn(text: &str) {
    // Nobody is left to tell when even this cannot be printed.
    let _ = writeln!(stderr(), "lockmesh: {text}");
}

/// Aligned columns under a heading.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with nothing but its heading.
    pub fn new<const COLUMNS: usize>(heading: [&str; COLUMNS]) -> Self {
        Self { rows: vec![heading.map(String::from).into()] }
    }

    /// Adds a row; an empty cell shows as `-`.
    pub fn row<const COLUMNS: usize>(&mut self, cells: [String; COLUMNS]) {
        let shown = |cell: String| if cell.is_empty() { "-".to_string() } else { printable(&cell) };
        self.rows.push(cells.map(shown).into());
    }

    /// Leaves out those of these columns in which no row says anything.
    #[must_use]
    pub fn without_empty(mut self, headings: &[&str]) -> Self {
        let columns = 0..self.rows.first().map_or(0, Vec::len);
        // From the last one on, so that the others stay where they are.
        for column in columns.rev() {
            let says = |row: &Vec<String>| row.get(column).is_some_and(|cell| cell != "-");
            let heading = self.rows[0][column].as_str();
            if headings.contains(&heading) && !self.rows[1..].iter().any(says) {
                self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
            }
        }
        self
    }

    /// The whole table, without a newline at its end.
    pub fn render(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            self.rows.iter().filter_map(move |row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let line = |row: &Vec<String>| {
            let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Prints the table.
    ///
    /// # Errors
    /// As [`print_bytes`].
    pub fn print(&self) -> Result<(), CliError> {
        print_line(&self.render())
    }
}

/// Text without what a terminal would take for an order.
pub fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_trails() {
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
    fn a_column_that_says_nothing_can_be_left_out() {
        let mut table = Table::new(["Key", "Why", "Fence"]);
        table.row(["job".into(), String::new(), String::new()]);
        assert_eq!(table.clone().without_empty(&["Why"]).render(), "Key  Fence\njob  -");
        table.row(["other".into(), "late".into(), String::new()]);
        let shown = table.without_empty(&["Why", "Fence"]).render();
        assert_eq!(shown, "Key    Why\njob    -\nother  late");
    }

    #[test]
    fn a_cell_cannot_order_the_terminal_about() {
        let mut table = Table::new(["Key"]);
        table.row(["a\u{1b}[2Jb\nc".into()]);
        assert_eq!(table.render(), "Key\na\\u{1b}[2Jb\\nc");
    }
}
