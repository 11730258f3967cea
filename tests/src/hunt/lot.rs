//! A random sample of the rules, for checks that have no time for all of them.

use super::table::Rule;
use crate::sim::draw::Draw;

/// Returns `count` of the rules, or all if there are fewer, in their order. The same seed draws the
/// same sample from the same rules.
pub fn draw(rules: Vec<Rule>, count: usize, seed: u64) -> Vec<Rule> {
    let mut draw = Draw::new(seed);
    let mut left = rules.len();
    let mut wanted = count;
    // Each rule is taken with the probability that makes every sample of this size equally likely.
    let is_drawn = |_: &Rule| {
        let is_drawn = draw.below(left as u64) < wanted as u64;
        left -= 1;
        wanted -= usize::from(is_drawn);
        is_drawn
    };
    rules.into_iter().filter(is_drawn).collect()
}

#[cfg(test)]
mod tests {
    use super::draw;
    use crate::hunt::table::Rule;
    use std::collections::BTreeSet;

    fn rules(count: usize) -> Vec<Rule> {
        let rule = |number: usize| Rule {
            name: format!("{number:03}"),
            topic: String::new(),
            rule: String::new(),
            edits: Vec::new(),
            finders: Vec::new(),
        };
        (0..count).map(rule).collect()
    }

    fn names(count: usize, seed: u64) -> Vec<String> {
        draw(rules(100), count, seed).into_iter().map(|rule| rule.name).collect()
    }

    #[test]
    fn a_seed_repeats_its_sample() {
        let names_of_seven = names(20, 7);
        assert_eq!(names_of_seven.len(), 20);
        assert_eq!(names_of_seven, names(20, 7));
        assert_ne!(names_of_seven, names(20, 8));
        assert!(names_of_seven.is_sorted(), "in their order: {names_of_seven:?}");
    }

    #[test]
    fn every_rule_is_drawn_eventually() {
        let drawn: BTreeSet<String> = (0..100).flat_map(|seed| names(20, seed)).collect();
        assert_eq!(drawn.len(), 100);
    }

    #[test]
    fn sample_bounded_by_table() {
        assert_eq!(names(100, 1).len(), 100);
        assert_eq!(names(1_000, 1).len(), 100);
        assert!(names(0, 1).is_empty());
    }
}
