//! Corner cases of the rules.
