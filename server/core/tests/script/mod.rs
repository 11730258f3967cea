//! The language of the scripts.
//!
//! | module | holds |
//! |---|---|
//! | `player` | plays commands on a state and watches over it |
//! | `words` | a line as words and options |
//! | `commands` | words to commands |
//! | `queries` | words to queries, and their answers as lines |
//! | `show` | replies and rows as lines |

pub(crate) mod commands;
pub(crate) mod player;
pub(crate) mod queries;
pub(crate) mod show;
pub(crate) mod words;
