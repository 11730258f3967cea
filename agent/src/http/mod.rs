//! The local HTTP API: Consul's dialect, for the applications of this machine.
//!
//! ```text
//!  listener   Unix socket, loopback TCP ──▶ serve   accept loops, limits, shutdown; hyper speaks HTTP/1
//!                                             │ a request
//!                                             ▼
//!                                           router  path, method, flags that every endpoint has
//!                                             │ a call
//!                                             ▼
//!                                    endpoint/…     one file a family: parse, ask upstream, render
//!                                             │
//!                       go/  reads words ◀────┴────▶ shapes, answer  write words
//! ```
//!
//! | module | is |
//! |---|---|
//! | [`api`] | what every request is served from: upstream, identity, limits, checks |
//! | [`listener`] | the sockets: which, with which rights, and who may not have them |
//! | [`serve`](mod@serve) | connections: how many, how long, and their end |
//! | `peer` | the client at the other end of a connection |
//! | `audit` | one log line for each operator request and each recursive delete |
//! | `body` | what a request brings and a response carries |
//! | `guard` | the deadline of a request's head |
//! | `host` | whether a request over TCP names this host |
//! | [`router`] | from a request to an endpoint and back |
//! | `call` | a request as endpoints see it: parameters, consistency, body |
//! | `answer` | responses and failures, with Consul's headers |
//! | `token` | requests with a token: rejected, or served with one warning per client |
//! | [`archive`] | the file that a backup is |
//! | `event_stream` | a response that goes on, one event after the other |
//! | `file_body` | a response that is read from a file |
//! | `shapes` | from the state's records to the client's JSON |
//! | [`endpoint`] | the endpoints |
//! | [`go`] | durations, numbers, query strings, paths and JSON by the rules of Go |
//!
//! **Invariant:** nothing here decides about locks. A request becomes one `Command` or one `Query`,
//! and the answer's text comes from the state. A handler whose client is gone is dropped, and with
//! it what it waits for.

pub mod api;
pub mod archive;
pub mod endpoint;
pub mod go;
pub mod listener;
pub mod router;
pub mod serve;

mod answer;
mod audit;
mod body;
mod call;
mod event_stream;
mod file_body;
mod guard;
mod host;
mod peer;
mod shapes;
mod token;

pub use api::{Api, HttpLimits};
pub use body::Body;
pub use listener::{ListenError, Listeners, UnixSocket};
pub use peer::Peer;
pub use serve::serve;
pub(crate) use shapes::loss_in_words;
pub use shapes::session_event;

#[cfg(test)]
mod tests;
