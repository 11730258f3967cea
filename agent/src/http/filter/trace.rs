//! Syntax errors of filters, in Consul's words: either the errors of single rules, such as an
//! unterminated string, or the tokens that would have let the parser read further.
//!
//! Both are collected while the parser backtracks, because the alternative that read furthest is
//! often not the last one.

use super::FilterError;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The maximum number of errors in one text. Each is at another position, and the first ones
/// explain the others.
const MAX_ERRORS: usize = 8;

/// A token that the parser tried to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// This text.
    Literal(&'static str),
    /// One character of a class, as the class is written.
    Class(&'static str),
    /// The end of the text.
    End,
}

/// The failures of a parse so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    /// The furthest offset at which a token was not found.
    furthest: usize,
    /// The tokens that were tried there.
    expected: Vec<Token>,
    /// The errors of rules: the offset, the rule's name and the text.
    errors: Vec<(usize, &'static str, &'static str)>,
    /// The number of open parentheses.
    pub(super) depth: usize,
    /// Set if there were too many of them.
    pub(super) is_too_deep: bool,
}

impl Trace {
    /// Records a token that is not at this offset.
    pub(super) fn missing(&mut self, offset: usize, token: Token) {
        if offset > self.furthest {
            self.furthest = offset;
            self.expected.clear();
        }
        if offset == self.furthest && !self.expected.contains(&token) {
            self.expected.push(token);
        }
    }

    /// Records the error of a rule. Alternatives that read the same text report it once.
    pub(super) fn error(&mut self, offset: usize, rule: &'static str, text: &'static str) {
        let error = (offset, rule, text);
        if self.errors.len() < MAX_ERRORS && !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Returns the reason to reject a text that was parsed, or not, with these failures.
    pub(super) fn verdict(&self, text: &str, was_parsed: bool) -> Option<FilterError> {
        if self.is_too_deep {
            return Some(FilterError::TooDeep);
        }
        let errors = self.errors.iter().map(|(offset, rule, error)| {
            format!("{}: rule \"{rule}\": {error}", Position::of(text, *offset))
        });
        match (self.errors.is_empty(), was_parsed) {
            (true, true) => None,
            (true, false) => Some(FilterError::Syntax(self.no_match(text))),
            (false, _) => Some(FilterError::Syntax(errors.collect::<Vec<_>>().join("\n"))),
        }
    }

    fn no_match(&self, text: &str) -> String {
        let mut message = format!("{}: no match found, expected: ", Position::of(text, self.furthest));
        let names: BTreeSet<String> = self.expected.iter().filter_map(|token| token.name()).collect();
        let end = self.expected.contains(&Token::End).then(|| "EOF".to_owned());
        let names: Vec<String> = names.into_iter().chain(end).collect();
        for (number, name) in names.iter().enumerate() {
            let joint = match number {
                0 => "",
                _ if number + 1 == names.len() => " or ",
                _ => ", ",
            };
            write!(message, "{joint}{name}").expect("a string accepts every text");
        }
        message
    }
}

impl Token {
    /// Returns the name in an error; `None` for the end, which is listed last.
    fn name(self) -> Option<String> {
        match self {
            Self::Literal(text) => Some(crate::go::literal::quoted(text)),
            Self::Class(class) => Some(class.to_owned()),
            Self::End => None,
        }
    }
}

/// A position in a text, as the parser of Consul counts.
struct Position {
    line: usize,
    column: usize,
    offset: usize,
}

impl Position {
    /// A line break belongs to the line that it begins, as its column 0. The end counts as a
    /// character.
    fn of(text: &str, offset: usize) -> Self {
        let mut position = Self { line: 1, column: 0, offset };
        let before = text[..offset].chars();
        for char in before.chain(Some(text[offset..].chars().next().unwrap_or(' '))) {
            position.column += 1;
            if char == '\n' {
                position.line += 1;
                position.column = 0;
            }
        }
        position
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} ({})", self.line, self.column, self.offset)
    }
}
