//! The local HTTP API: Consul's dialect, for the applications of this machine.
//!
//! ```text
//!  listener   Unix socket, loopback TCP ──▶ serve   accept loops, limits, shutdown (hyper)
//!                                             │ a request
//!                                             ▼
//!                                           router  path, method, flags that every endpoint has
//!                                             │ a call
//!                                             ▼
//!                                    endpoint/…     parse, ask upstream, render
//!                                             │
//!                       go/  parses text ◀────┴────▶ shapes, answer  render text
//! ```
//!
//! | module | is |
//! |---|---|
//! | [`api`] | the context of every request: upstream, identity, limits, checks |
//! | [`listener`] | the sockets |
//! | `unix_socket` | the Unix socket and its access rights |
//! | [`serve`](mod@serve) | connections: limits, timeouts, shutdown |
//! | `admission` | the limits on the number of connections, and reserved places |
//! | `peer` | the client at the other end of a connection |
//! | `access` | the rules of `[access]`: a ceiling on the requests of each client; pure |
//! | `audit` | one log line for each operator request and each recursive delete |
//! | `body` | the bodies of requests and responses |
//! | `compression` | responses compressed with gzip |
//! | `guard` | the deadlines of a request's head and of idle connections |
//! | `host` | the check of the `Host` header |
//! | [`router`] | from a request to an endpoint and back |
//! | `listing` | lists of any size, sent in parts |
//! | `call` | a request as endpoints see it: parameters, consistency, body |
//! | `near` | the reads for rows sorted by the distance from a node |
//! | `answer` | responses and failures, with Consul's headers |
//! | `token` | the token of a request, and its treatment while access control is off |
//! | `rights` | requests that the agent judges by the rights of their tokens |
//! | [`archive`] | the file format of a backup |
//! | `event_stream` | a response that stays open, with one event after the other |
//! | `file_body` | a response that is read from a file |
//! | `filter` | the language of `?filter=`: parser and evaluator; pure |
//! | `fields` | the rows' fields, as filters see them |
//! | `shapes` | from the state's records to the client's JSON |
//! | [`endpoint`] | the endpoints |
//!
//! **Invariant:** nothing here decides about locks. A request becomes one `Command` or one `Query`,
//! and the text of the response comes from the state. A handler whose client is gone is dropped,
//! together with its pending work.

pub mod api;
pub mod archive;
pub mod endpoint;
pub mod listener;
mod listing;
pub mod router;
pub mod serve;

mod access;
mod admission;
mod answer;
mod audit;
mod body;
mod call;
mod compression;
mod event_stream;
mod fields;
mod file_body;
mod filter;
mod guard;
mod host;
mod near;
mod peer;
mod rights;
mod shapes;
mod token;
mod unix_socket;

pub use access::Rules;
pub(crate) use access::SharedRules;
pub use api::{Access, Api, Feeds, HttpLimits};
pub use body::Body;
pub use listener::{ListenError, Listeners};
pub use peer::Peer;
pub use serve::serve;
pub use shapes::session_event;
pub use unix_socket::{LONGEST_SOCKET_PATH, UnixSocket};

#[cfg(test)]
mod tests;
