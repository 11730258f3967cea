//! Prepared queries: rules for their descriptions, templates, and their execution.
//!
//! The agent reads a query and the instances of its service from the servers. Everything in between
//! is decided here.
//!
//! | module | contents |
//! |---|---|
//! | `rules.rs` | the rules that a description must follow |
//! | `template.rs` | templates, filled for a name |
//! | `execution.rs` | which instances a query returns, and in which order |

mod execution;
mod rules;
mod template;

pub use execution::Execution;
pub use rules::{QueryError, check};
pub use template::{TemplateError, filled};

#[cfg(test)]
mod tests;
