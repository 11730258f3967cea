//! The hunt's rules match the present tree: every text occurs in its file exactly once, and every
//! finder exists.

use lockmesh_tests::hunt::table::{Edit, Rule, faults, rules};
use lockmesh_tests::tidy::tree;

#[test]
fn every_rule_matches_source() {
    let top = tree::top();
    let faults = faults(&top, &rules(&top));
    assert!(
        faults.is_empty(),
        "update tests/hunt: these rules no longer match the source\n{}",
        faults.join("\n")
    );
}

fn rule(name: &str, find: &str, finder: &str) -> Rule {
    let edit = Edit { file: "tests/tests/hunt.rs".into(), find: find.into(), put: "FAULT".into() };
    Rule {
        name: name.into(),
        topic: String::new(),
        rule: String::new(),
        edits: vec![edit],
        finders: vec![finder.into()],
    }
}

#[test]
fn stale_rule_is_reported() {
    let finder = "tests hunt stale_rule_is_reported";
    let said = |rules: &[Rule]| faults(&tree::top(), rules).join("\n");
    let (once, more) = (concat!("fn stale_rule", "_is_reported"), concat!("fn stale_rule", "_is"));
    assert_eq!(said(&[rule("good", once, finder)]), "");
    assert!(
        said(&[rule("gone", concat!("not ", "here"), finder)])
            .contains("gone: tests/tests/hunt.rs does not hold")
    );
    assert!(said(&[rule("vague", "assert", finder)]).contains("times"));
    assert!(
        said(&[rule("blind", once, concat!("tests hunt no_such", "_test"))])
            .contains("nothing there is called")
    );
    assert!(said(&[rule("lost", once, "tests nowhere")]).contains("there is no such test"));
    assert!(said(&[rule("one", once, finder), rule("one", once, finder)]).contains("two rules"));
    assert!(said(&[rule("one", once, finder), rule("two", more, finder)]).contains("overlap"));
}
