//! The lines of code of each crate, product and tests apart, and their limits.

use super::{Fault, Source};
use std::collections::BTreeMap;

/// Lines of code: neither blank nor comments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// In what ships.
    pub product: usize,
    /// In tests, their scripts included.
    pub tests: usize,
}

/// A crate, named by its folder, with the most lines that it may have.
pub type Ceiling = (&'static str, Lines);

/// Counts the lines of each of these crates. A file belongs to the innermost crate around it.
pub fn lines<'a>(sources: &[Source], crates: &[&'a str]) -> BTreeMap<&'a str, Lines> {
    let mut counted = BTreeMap::new();
    for source in sources {
        let around = crates.iter().filter(|krate| source.path.starts_with(&format!("{krate}/")));
        let Some(krate) = around.max_by_key(|krate| krate.len()) else { continue };
        let lines: &mut Lines = counted.entry(*krate).or_default();
        let product = written(&source.real_code);
        lines.product += product;
        lines.tests += match source.path.ends_with(".txt") {
            true => written(&source.text),
            false => written(&source.code) - product,
        };
    }
    counted
}

fn written(text: &str) -> usize {
    text.lines().filter(|line| !line.trim().is_empty()).count()
}

/// No crate has more lines than its limit.
pub fn crates_keep_their_weight(sources: &[Source], ceilings: &[Ceiling]) -> Vec<Fault> {
    let crates: Vec<&str> = ceilings.iter().map(|(krate, _)| *krate).collect();
    let counted = lines(sources, &crates);
    let faults = ceilings.iter().flat_map(|(krate, most)| {
        let is = counted.get(krate).copied().unwrap_or_default();
        let fault = |what: &str, is: usize, most: usize| {
            let text = format!(
                "{is} lines of {what}, at most {most}: remove some, or raise the limit with the reason"
            );
            (is > most).then(|| Fault { path: (*krate).to_owned(), line: 0, what: text })
        };
        [fault("code", is.product, most.product), fault("tests", is.tests, most.tests)]
    });
    faults.flatten().collect()
}
