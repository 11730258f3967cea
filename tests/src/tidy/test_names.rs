//! Rules for the names of tests, and for the table of the contract that tests show.

use super::{Fault, Source, is_word, line_of};
use std::collections::{BTreeMap, BTreeSet};

/// Attributes that begin a test.
const ATTRIBUTES: [&str; 2] = ["#[test]", "#[tokio::test"];

/// The comment by which a test names its rows of the contract.
const MARK: &str = "/// Contract: ";

/// The beginning of a story in a script, before its name.
const STORY: &str = "story ";

/// Returns the tests of a Rust file or the stories of a script: the line of each name, and the
/// name.
pub fn tests(source: &Source) -> Vec<(usize, &str)> {
    if source.path.ends_with(".txt") {
        let lines = source.text.lines().zip(1..);
        return lines.filter_map(|(line, at)| Some((at, line.strip_prefix(STORY)?))).collect();
    }
    let code = &source.code;
    let attributes = ATTRIBUTES.iter().flat_map(|attribute| code.match_indices(attribute));
    let mut found: Vec<_> = attributes
        .filter_map(|(at, _)| {
            let name = at + code[at..].find("fn ")? + "fn ".len();
            Some((line_of(code, name), name_at(&code[name..])))
        })
        .collect();
    found.sort_unstable();
    found
}

fn name_at(text: &str) -> &str {
    text.split(|character| !is_word(character)).next().unwrap_or_default()
}

/// A test's name has at most this many words, and does not open with one of these.
pub fn test_names_are_short(source: &Source, most: usize, openings: &[&str]) -> Vec<Fault> {
    let fault = |(line, name): (usize, &str)| {
        let count = name.split('_').count();
        let opening = openings.iter().find(|word| name.split('_').next() == Some(**word));
        let what = match opening {
            Some(word) => format!("`{name}` opens with `{word}`: name subject, condition and result"),
            None if count > most => format!("`{name}` has {count} words, at most {most}"),
            None => return None,
        };
        Some(Fault::new(source, line, what))
    };
    tests(source).into_iter().filter_map(fault).collect()
}

/// Each row of the contract names the tests that carry its number, and no others.
pub fn contract_is_shown(table: &Source, sources: &[Source]) -> Vec<Fault> {
    let mut shown: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let marks = source.text.match_indices(MARK).filter(|(at, _)| {
            let before = source.text[..*at].rsplit('\n').next().unwrap_or_default();
            before.trim().is_empty()
        });
        for (at, _) in marks {
            let numbers = source.text[at + MARK.len()..].lines().next().unwrap_or_default();
            let name = source.text[at..].split_once("fn ").map_or("", |(_, rest)| name_at(rest));
            for number in numbers.trim_end_matches('.').split(", ") {
                shown.entry(number).or_default().insert(name);
            }
        }
    }
    let mut faults = Vec::new();
    for (at, line) in table.text.lines().enumerate() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [number, _, names] = cells[..] else { continue };
        if number.parse::<u16>().is_err() {
            continue;
        }
        let named: BTreeSet<&str> = names.split(", ").map(|name| name.trim_matches('`')).collect();
        let carrying = shown.remove(number).unwrap_or_default();
        if named != carrying {
            faults.push(Fault::new(table, at + 1, format!("number {number} is carried by {carrying:?}")));
        }
    }
    let missing = |(number, names)| Fault::new(table, 0, format!("no row {number}, which {names:?} carry"));
    faults.extend(shown.into_iter().map(missing));
    faults
}
