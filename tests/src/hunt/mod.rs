//! The hunt: rules are broken on purpose, one after the other, and what must find each is run and
//! must fail.
//!
//! The rules lie in `tests/hunt/`, a file a topic: which rule, where it is kept, what stands there
//! instead once it is broken, and the finders, narrow ones first. All rules are broken at once in a
//! *copy* of the tree, each behind a switch that reads the environment, so one build serves all of
//! them. **Invariant:** nothing of it is in the program: the switch and what it switches exist in
//! the copy only.
//!
//! | module | is |
//! |---|---|
//! | `table` | the rules, and whether their texts still fit the tree |
//! | `copy` | the tree with every rule breakable |
//! | `build` | the copy's programs and tests |
//! | `finder` | a test, or seeds of the simulator, run with a rule broken or with none |
//! | `chase` | all rules and their finders, several at a time |

pub mod build;
pub mod chase;
pub mod copy;
pub mod finder;
pub mod table;

/// The variable that names the rule that is broken.
pub const SWITCH: &str = "LOCKMESH_FAULT";
