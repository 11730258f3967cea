//! Parsing as Consul's clients expect it: by the rules, and with the error texts, of Go's standard
//! library.
//!
//! Pure functions of bytes: no request, no state, no clock. Each is a fuzz target.
//!
//! | module | reads |
//! |---|---|
//! | [`duration`] | `15s`, `1h30m`, and writes them |
//! | [`number`] | numbers and booleans |
//! | [`literal`] | string literals, and writes them |
//! | [`query`] | the part of a URL after `?` |
//! | [`path`] | the part before it: decoding, cleaning, printable characters |
//! | [`json`] | JSON bodies: first value only, names without regard to case, `null` as absent |

pub mod duration;
pub mod json;
pub mod literal;
pub mod number;
pub mod path;
pub mod query;
