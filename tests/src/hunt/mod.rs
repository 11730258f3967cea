//! The hunt: breaks rules on purpose, one after another, and runs the tests that must fail then
//! (mutation testing).
//!
//! The rules are in `tests/hunt/`, one file per topic: the rule, its place in the code, the
//! replacement that breaks it, and the finders, narrow ones first. All rules are made breakable at
//! once in a *copy* of the tree, each behind a switch that reads the environment, so one build
//! serves all of them. **Invariant:** the program itself contains nothing of this: the switches and
//! replacements exist in the copy only.
//!
//! | module | contents |
//! |---|---|
//! | `table` | the rules, and the check that their texts match the tree |
//! | `copy` | the tree with every rule breakable |
//! | `build` | the copy's programs and tests |
//! | `finder` | a test, or seeds of the simulator, run with a broken rule or without |
//! | `chase` | all rules and their finders, several at a time |
//! | `lot` | a random sample of the rules |

pub mod build;
pub mod chase;
pub mod copy;
pub mod finder;
pub mod lot;
pub mod table;

/// The environment variable that names the broken rule.
pub const SWITCH: &str = "LOCKMESH_FAULT";
