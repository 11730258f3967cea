//! The rules that are broken on purpose, from the files of `tests/hunt/` and the core's own fault
//! points.
//!
//! A rule must never become stale: a text that is not in its file exactly once is an error, and so
//! is a finder whose name is not in the tree.

use super::finder::Finder;
use crate::sim::FaultInjection;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The placeholder for the switch in a replacement.
pub const FAULT: &str = "FAULT";

/// The seeds of the simulator for each of the core's own fault points.
const FAULT_POINT_SEEDS: &str = "0..60";

/// The topic of the core's own fault points.
const FAULT_POINTS: &str = "fault points";

/// A rule, the edits that break it, and its finders.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, which the switch reads.
    pub name: String,
    /// The file that lists it, without the extension.
    #[serde(skip)]
    pub topic: String,
    /// The rule in one sentence.
    pub rule: String,
    /// The edits that break it. Empty for a fault point, which is part of the product.
    #[serde(default, rename = "edit")]
    pub edits: Vec<Edit>,
    /// The finders that must fail once it is broken, narrow ones first.
    pub finders: Vec<String>,
}

/// One edit that breaks a rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file, from the top of the repository.
    pub file: String,
    /// The original text, which the file contains exactly once.
    pub find: String,
    /// The text in the copy; the word [`FAULT`] becomes a condition that is `true` if the rule is
    /// broken.
    pub put: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Topic {
    rule: Vec<Rule>,
}

impl Rule {
    /// Returns the finders, narrow ones first.
    pub fn finders(&self) -> Vec<Finder> {
        self.finders.iter().map(|words| Finder::new(words)).collect()
    }

    /// Returns the rule with only the finders that begin with one of these texts, or `None` without
    /// any. Without a text, all finders remain.
    #[must_use]
    pub fn found_by(mut self, texts: &[String]) -> Option<Self> {
        self.finders.retain(|finder| texts.is_empty() || texts.iter().any(|text| finder.starts_with(text)));
        (!self.finders.is_empty()).then_some(self)
    }
}

/// Returns every rule: those of the files, ordered by file name, then the fault points.
pub fn rules(top: &Path) -> Vec<Rule> {
    let folder = top.join("tests/hunt");
    let listing = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = listing.map(|entry| entry.expect("a readable folder").path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "toml"));
    files.sort();
    files.iter().flat_map(|file| rules_in(file)).chain(fault_points()).collect()
}

fn rules_in(file: &Path) -> Vec<Rule> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let topic: Topic = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    topic.rule.into_iter().map(|rule| Rule { topic: name.clone().into_owned(), ..rule }).collect()
}

/// Returns the rules that core and simulator can break without a copy.
fn fault_points() -> impl Iterator<Item = Rule> {
    FaultInjection::ALL.iter().map(|fault_injection| {
        let name = fault_injection.name();
        Rule {
            topic: FAULT_POINTS.to_owned(),
            rule: format!("The fault point {name} is closed."),
            edits: Vec::new(),
            finders: vec![format!("sim {FAULT_POINT_SEEDS} --break {name}")],
            name,
        }
    })
}

/// Returns the errors in the rules: duplicate names, texts that do not match the tree, missing
/// finders.
pub fn faults(top: &Path, rules: &[Rule]) -> Vec<String> {
    let mut names = BTreeSet::new();
    let twice = rules.iter().filter(|rule| !names.insert(&rule.name));
    let mut faults: Vec<String> =
        twice.map(|rule| format!("{}: two rules have this name", rule.name)).collect();
    for rule in rules {
        let edits = rule.edits.iter().filter_map(|edit| range(top, edit).err());
        faults.extend(edits.map(|what| format!("{}: {what}", rule.name)));
        let idle = rule.edits.iter().filter(|edit| !edit.put.contains(FAULT));
        faults.extend(idle.map(|edit| format!("{}: the edit of {} has no FAULT", rule.name, edit.file)));
        if rule.finders.is_empty() {
            faults.push(format!("{}: no finder", rule.name));
        }
        let strange = rule.finders().into_iter().filter_map(|finder| finder.fault(top));
        faults.extend(strange.map(|what| format!("{}: {what}", rule.name)));
    }
    if faults.is_empty() {
        let files: BTreeSet<&str> =
            rules.iter().flat_map(|rule| &rule.edits).map(|edit| edit.file.as_str()).collect();
        faults.extend(files.into_iter().filter_map(|file| overlap(top, file, rules)));
    }
    faults
}

/// Returns the range of an edit's text in its file.
///
/// # Errors
/// The file cannot be read, or contains the text never or more than once. The message describes the
/// error; the file is unchanged.
pub fn range(top: &Path, edit: &Edit) -> Result<Range<usize>, String> {
    let text = std::fs::read_to_string(top.join(&edit.file));
    let text = text.map_err(|error| format!("{}: {error}", edit.file))?;
    let mut places = text.match_indices(&edit.find).map(|(at, _)| at);
    match (places.next(), places.count()) {
        (Some(at), 0) => Ok(at..at + edit.find.len()),
        (None, _) => Err(format!("{} does not hold its text any more:\n{}", edit.file, edit.find)),
        (Some(_), more) => Err(format!("{} contains its text {} times:\n{}", edit.file, more + 1, edit.find)),
    }
}

/// Returns the edits of a file in the order of their positions, with their rules.
pub fn edits<'a>(top: &Path, file: &str, rules: &'a [Rule]) -> Vec<(Range<usize>, &'a Rule, &'a Edit)> {
    let all = rules.iter().flat_map(|rule| rule.edits.iter().map(move |edit| (rule, edit)));
    let here = all.filter(|(_, edit)| edit.file == file);
    let placed = here.filter_map(|(rule, edit)| range(top, edit).ok().map(|range| (range, rule, edit)));
    let mut placed: Vec<_> = placed.collect();
    placed.sort_by_key(|(range, ..)| range.start);
    placed
}

fn overlap(top: &Path, file: &str, rules: &[Rule]) -> Option<String> {
    let edits = edits(top, file, rules);
    let mut pairs = edits.windows(2);
    let pair = pairs.find(|pair| pair[0].0.end > pair[1].0.start)?;
    Some(format!("{file}: the texts of {} and {} overlap", pair[0].1.name, pair[1].1.name))
}
