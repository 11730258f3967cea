//! The paths that a file names. `use` trees are expanded, so groups and aliases hide nothing. A
//! local name that merely looks like a crate (`use tokio::time; time::sleep(…)`) does not count.

use super::mask::item_length;
use super::{is_word, line_of, words};

/// One path that a `use` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The whole path, such as `std::collections::BTreeMap`.
    pub path: String,
    /// The name that it brings into scope; empty for a glob.
    pub name: String,
    /// The first line of its `use`.
    pub line: usize,
}

/// Returns every path that the masked code imports.
pub fn imports(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for (at, tree) in use_trees(code) {
        let mut leaves = Vec::new();
        spread("", tree, &mut leaves);
        let line = line_of(code, at);
        found.extend(leaves.into_iter().map(|(path, name)| Import { path, name, line }));
    }
    found
}

/// Returns the lines on which the masked code names a crate.
pub fn lines_naming_crate(code: &str, name: &str) -> Vec<usize> {
    let imports = imports(code);
    let root = |import: &Import| import.path == name || import.path.starts_with(&format!("{name}::"));
    let mut lines: Vec<usize> =
        imports.iter().filter(|import| root(import)).map(|import| import.line).collect();
    let shadowed = imports.iter().any(|import| import.name == name && !root(import))
        || words(code, name).any(|at| code[..at].trim_end().ends_with("mod"));
    if shadowed {
        return lines;
    }
    let plain = without_imports(code);
    let at_path_start = |at: &usize| {
        let before = plain[..*at].trim_end();
        let rooted = before.strip_suffix("::").is_none_or(|front| !front.ends_with(is_word_or_generic));
        rooted && !before.ends_with('.') && plain[at + name.len()..].starts_with("::")
    };
    lines.extend(words(&plain, name).filter(at_path_start).map(|at| line_of(&plain, at)));
    lines
}

/// Returns the lines on which the masked code names a path such as `std::fs`, a path below it, or a
/// single word.
pub fn lines_naming(code: &str, path: &str) -> Vec<usize> {
    let behind = format!("{path}::");
    let names = |import: &Import| {
        import.path == path
            || import.path.starts_with(&behind)
            || (!path.contains("::") && import.path.split("::").any(|segment| segment == path))
    };
    let mut lines: Vec<usize> =
        imports(code).iter().filter(|import| names(import)).map(|import| import.line).collect();
    let plain = without_imports(code);
    lines.extend(words(&plain, path).map(|at| line_of(&plain, at)));
    lines
}

fn is_word_or_generic(character: char) -> bool {
    is_word(character) || character == '>'
}

/// Returns the position of each `use`, and its tree without `use` and `;`.
fn use_trees(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let begins = |at: &usize| {
        let before = code[..*at].trim_end();
        before.is_empty() || before.ends_with([';', '{', '}', ']', ')']) || before.ends_with("pub")
    };
    words(code, "use").filter(begins).map(|at| {
        let tree = &code[at + 3..];
        let end = tree.find(';').unwrap_or_else(|| item_length(tree));
        (at, &tree[..end])
    })
}

fn without_imports(code: &str) -> String {
    let mut plain = code.to_owned();
    for (at, tree) in use_trees(code) {
        let range = at..at + 3 + tree.len();
        let blank: String = code[range.clone()].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        // A non-ASCII word would change the length; then the tree stays unchanged.
        if blank.len() == range.len() {
            plain.replace_range(range, &blank);
        }
    }
    plain
}

/// Expands a tree such as `a::{b, c::d as e}` into `(a::b, b)` and `(a::c::d, e)`.
fn spread(prefix: &str, tree: &str, leaves: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let front = format!("{prefix}{}", compact(&tree[..open]));
        let inside = tree[open + 1..].trim_end().trim_end_matches('}');
        for part in split_top(inside) {
            spread(&front, part, leaves);
        }
        return;
    }
    let (path, alias) =
        tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
    let whole = format!("{prefix}{}", compact(path));
    let whole = whole.trim_start_matches("::").trim_end_matches("::self").to_owned();
    let last = whole.rsplit("::").next().unwrap_or_default();
    let name = alias.unwrap_or(if last == "*" { "" } else { last }).to_owned();
    if !whole.is_empty() {
        leaves.push((whole, name));
    }
}

fn compact(path: &str) -> String {
    path.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Splits at the commas outside of inner groups.
fn split_top(inside: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, character) in inside.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_aliases_are_spread() {
        let code = "use a::{b, c::{self, d as e}, f::*};\npub use g;\nfn h() { use i::j; }";
        let found: Vec<(String, String)> = imports(code).into_iter().map(|i| (i.path, i.name)).collect();
        let expected =
            [("a::b", "b"), ("a::c", "c"), ("a::c::d", "e"), ("a::f::*", ""), ("g", "g"), ("i::j", "j")];
        assert_eq!(found, expected.map(|(path, name)| (path.to_owned(), name.to_owned())));
    }

    #[test]
    fn crate_matched_by_root_only() {
        assert!(lines_naming_crate("use std::time::Duration;\nuse crate::time;", "time").is_empty());
        assert!(lines_naming_crate("use tokio::time;\nfn a() { time::sleep(); }", "time").is_empty());
        assert_eq!(lines_naming_crate("fn a() {}\nfn b() { time::now(); x.time::<u8>(); }", "time"), [2]);
        assert_eq!(lines_naming_crate("use time::{Format, Utc};", "time"), [1, 1]);
        assert_eq!(lines_naming_crate("use x::y;\nfn a() { ::time::b(); a::time::b(); }", "time"), [2]);
        assert!(lines_naming_crate("pub mod raft;\nfn a(x: raft::Log) {}", "raft").is_empty());
    }

    #[test]
    fn grouped_paths_are_found() {
        assert_eq!(lines_naming("use std::{fmt, fs::File};", "std::fs"), [1]);
        assert_eq!(lines_naming("use std::collections::{BTreeMap, HashMap};", "HashMap"), [1]);
        assert_eq!(lines_naming("fn a() {\n std::fs::read(b) }", "std::fs"), [2]);
        assert!(lines_naming("use std::fmt; // nothing else", "std::fs").is_empty());
    }
}
