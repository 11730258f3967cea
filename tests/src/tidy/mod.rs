//! A scanner of the source tree that knows enough of Rust to distinguish code from comments, tests
//! from other code, and one path from another. The rules and their tables are in
//! `tests/tests/tidy.rs`.
//!
//! | module | contents |
//! |---|---|
//! | [`mask`] | blanks comments, literals and test code, line for line |
//! | [`path`] | the crates and paths that a file names, through groups and aliases |
//! | [`rules`] | one function for each rule, each returning a list of faults |
//! | [`test_names`] | the rules for names of tests |
//! | [`tree`] | the files of the repository |
//! | [`weight`] | the lines of each crate |
//!
//! It is a scanner, not a parser: ambiguous code passes, so every reported fault is real.

pub mod mask;
pub mod path;
pub mod rules;
pub mod test_names;
pub mod tree;
pub mod weight;

use std::fmt;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file, from the repository's top.
    pub path: String,
    /// The line, from 1; 0 for a fault of the whole file.
    pub line: usize,
    /// The violation, and the remedy.
    pub what: String,
}

impl Fault {
    /// Creates a fault in a source.
    pub fn new(source: &Source, line: usize, what: impl Into<String>) -> Self {
        Self { path: source.path.clone(), line, what: what.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its path, from the repository's top, with `/`.
    pub path: String,
    /// The whole text.
    pub text: String,
    /// A Rust file's text without comments and literals; empty for other files.
    pub code: String,
    /// The code without tests; empty if the file contains only tests.
    pub real_code: String,
}

impl Source {
    /// Creates a source from a file's path and text.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let code = if path.ends_with(".rs") { mask::code_only(&text) } else { String::new() };
        let all_tests = path.starts_with("tests/") || path.contains("/tests/");
        let real_code = if all_tests { String::new() } else { mask::without_tests(&code) };
        Self { path, text, code, real_code }
    }

    /// Returns `true` for a Rust file.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Returns the line, from 1, of a byte offset.
fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns every position of `word` as a whole word, as byte offsets.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = text[..*at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}
