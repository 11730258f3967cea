//! Answers with very many rows: a snapshot of the pages instead of the rows, which are built
//! elsewhere.
//!
//! The server's loop must be quick: few rows are built at once, very many not at all. An answer
//! that is too long is mostly detected before any of its rows is read.

use super::State;
use super::pages::Pages;
use lockmesh_protocol::command::{KvVerb, TxnOp};
use lockmesh_protocol::id::{Key, LogIndex};
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::record::Entry;
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of rows, and of their bytes, that the server's loop builds itself.
const FEW: (usize, usize) = (256, 64 << 10);

/// The answer to a query.
#[derive(Clone, Debug)]
pub enum Listing {
    /// The rows.
    Rows(Rows),
    /// A snapshot from which many rows are built.
    View(View),
    /// The rows exceed the maximum size of an answer.
    TooLong,
}

/// A snapshot of all keys, and the selection of the wanted ones. It costs only the pages that
/// change while it exists.
#[derive(Clone, Debug)]
pub struct View {
    entries: Pages<Arc<Entry>>,
    prefix: Key,
    wanted: WantedRows,
}

#[derive(Clone, Debug)]
enum WantedRows {
    Entries,
    /// Names, each cut after the first separator behind the prefix.
    Names(String),
}

/// An answer whose rows are not built yet.
#[derive(Clone, Debug)]
pub struct LongRead {
    /// The answer's index.
    pub index: LogIndex,
    /// Set if the server knew a leader at the time of the query.
    pub known_leader: bool,
    /// The time since that leader's last message.
    pub last_contact: Duration,
    /// The snapshot with the rows.
    pub view: View,
}

impl State {
    /// Answers a query with its index, and with rows up to `limit` bytes or a snapshot to build
    /// them from.
    pub fn query_view(&self, query: &Query, limit: usize) -> (LogIndex, Listing) {
        let (prefix, wanted) = match query {
            Query::Entries(prefix) => (prefix, WantedRows::Entries),
            Query::Keys { prefix, separator } => (prefix, WantedRows::Names(separator.clone())),
            // A transaction's rows cannot be built elsewhere, so only its size is checked first.
            Query::Txn(ops) if self.least_bytes_of_trees(ops) > limit => {
                return (self.index_of(query), Listing::TooLong);
            }
            _ => {
                let (index, rows) = self.query(query);
                return (index, Listing::Rows(rows));
            }
        };
        let (count, bytes) = self.keys.entries.size_under(prefix.as_str());
        let listing = match wanted {
            WantedRows::Entries if bytes > limit => Listing::TooLong,
            // Passing very few rows to another thread costs more than building them.
            _ if count <= FEW.0 && bytes <= FEW.1 => Listing::Rows(self.query(query).1),
            wanted => {
                Listing::View(View { entries: self.keys.entries.clone(), prefix: prefix.clone(), wanted })
            }
        };
        (self.index_of(query), listing)
    }

    /// A lower bound of the size of the trees that a transaction reads, in bytes.
    fn least_bytes_of_trees(&self, ops: &[TxnOp]) -> usize {
        let trees = ops.iter().filter_map(|op| match op {
            TxnOp::Kv(op) if op.verb == KvVerb::GetTree => Some(&op.key),
            _ => None,
        });
        trees.map(|prefix| self.keys.entries.size_under(prefix.as_str()).1).sum()
    }
}

impl View {
    /// Builds the rows; `None` if they exceed `limit` bytes.
    pub fn rows(&self, limit: usize) -> Option<Rows> {
        let prefix = self.prefix.as_str();
        match &self.wanted {
            WantedRows::Entries => {
                let entries = self.entries.under(prefix).map(|(_, entry)| entry.clone());
                Some(Rows::Entries(entries.collect()))
            }
            WantedRows::Names(separator) => {
                names(self.entries.under(prefix).map(|(key, _)| key), prefix, separator, limit)
            }
        }
    }
}

impl LongRead {
    /// Builds the response, which takes a while.
    pub fn into_response(self, limit: usize) -> Response {
        let Self { index, known_leader, last_contact, view } = self;
        match view.rows(limit) {
            Some(rows) => Response::Answer(Answer { index, rows, known_leader, last_contact }),
            None => too_long(limit),
        }
    }
}

/// The error for an answer that exceeds `limit` bytes.
pub fn too_long(limit: usize) -> Response {
    Response::Unavailable(Unavailable::AnswerTooLong { limit: limit as u64 })
}

/// The names of keys under a prefix, each cut after the first separator behind the prefix; `None`
/// if they exceed `limit` bytes.
pub(super) fn names<'a>(
    keys: impl Iterator<Item = &'a Key>,
    prefix: &str,
    separator: &str,
    limit: usize,
) -> Option<Rows> {
    let mut names: Vec<String> = Vec::new();
    let mut bytes = 0;
    for key in keys {
        let name = cut(key.as_str(), prefix.len(), separator);
        // Names cut to the same text are adjacent.
        if names.last().is_none_or(|last| last != name) {
            bytes += 1 + name.len();
            if bytes > limit {
                return None;
            }
            names.push(name.into());
        }
    }
    Some(Rows::Keys(names))
}

fn cut<'a>(key: &'a str, prefix_length: usize, separator: &str) -> &'a str {
    if separator.is_empty() {
        return key;
    }
    match key[prefix_length..].find(separator) {
        Some(place) => &key[..prefix_length + place + separator.len()],
        None => key,
    }
}
