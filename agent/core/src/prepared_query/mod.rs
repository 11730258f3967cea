//! Prepared queries: rules for their descriptions, templates, and the selection of instances.
//!
//! The agent reads a query and the instances of its service from the servers. Everything in between
//! is decided here.
//!
//! | module | contents |
//! |---|---|
//! | `rules.rs` | the rules that a description must follow |
//! | `template.rs` | templates, filled for a name |
//! | `selection.rs` | which instances a query returns, and in which order |

mod rules;
mod selection;
mod template;

pub use rules::{QueryError, check};
pub use selection::{move_to_front, selected};
pub use template::{TemplateError, filled};

#[cfg(test)]
mod tests;
