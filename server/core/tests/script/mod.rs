//! The language of the scripts.
//!
//! | module | contents |
//! |---|---|
//! | `player` | plays commands on a state and checks it |
//! | `words` | a line as words and options |
//! | `commands` | parses commands |
//! | `queries` | parses queries, and formats their answers |
//! | `acl` | access control lists |
//! | `show` | formats replies and rows |

pub(crate) mod acl;
pub(crate) mod commands;
pub(crate) mod player;
pub(crate) mod queries;
pub(crate) mod show;
pub(crate) mod words;
