//! Answers of very many rows: a view of this moment instead of the rows, so that they can be built
//! elsewhere.
//!
//! Whoever answers questions has to be quick: few rows are built at once, very many not at all, and
//! whether an answer is too long is mostly known before any of its rows was looked at.

use super::State;
use super::pages::Pages;
use lockmesh_protocol::command::{KvVerb, TxnOp};
use lockmesh_protocol::id::{Key, LogIndex};
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::record::Entry;
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::sync::Arc;
use std::time::Duration;

/// So many rows, and so many bytes of them, are built at once by whoever answers.
const FEW: (usize, usize) = (256, 64 << 10);

/// What a query is answered with.
#[derive(Clone, Debug)]
pub enum Listing {
    /// Its rows.
    Rows(Rows),
    /// Where its rows are, since there are many.
    View(View),
    /// Nothing: its rows take more bytes than an answer may have.
    TooLong,
}

/// All keys as they were at one moment, and which of them are wanted. Costs nothing but the pages
/// that change while it lives.
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

/// An answer whose rows are still to be built.
#[derive(Clone, Debug)]
pub struct LongRead {
    /// The answer's index.
    pub index: LogIndex,
    /// Whether the server knew a leader when it was asked.
    pub known_leader: bool,
    /// How long ago it had heard from that leader.
    pub last_contact: Duration,
    /// Where the rows are.
    pub view: View,
}

impl State {
    /// Answers a query with its index, and with rows of no more than `limit` bytes or a place to
    /// take them from.
    pub fn query_view(&self, query: &Query, limit: usize) -> (LogIndex, Listing) {
        let (prefix, wanted) = match query {
            Query::Entries(prefix) => (prefix, WantedRows::Entries),
            Query::Keys { prefix, separator } => (prefix, WantedRows::Names(separator.clone())),
            // A transaction's rows cannot be built elsewhere, so only its length is looked at
            // first.
            Query::Txn(ops) if self.least_bytes_of_trees(ops) > limit => {
                return (self.index_of(query), Listing::TooLong);
            }
            _ => {
                let (index, rows) = self.query(query);
                return (index, Listing::Rows(rows));
            }
        };
        let (count, bytes) = self.entries.size_under(prefix.as_str());
        let listing = match wanted {
            WantedRows::Entries if bytes > limit => Listing::TooLong,
            // To hand very few to another thread costs more than to build them.
            _ if count <= FEW.0 && bytes <= FEW.1 => Listing::Rows(self.query(query).1),
            wanted => Listing::View(View { entries: self.entries.clone(), prefix: prefix.clone(), wanted }),
        };
        (self.index_of(query), listing)
    }

    /// How many bytes the trees take at least that a transaction reads.
    fn least_bytes_of_trees(&self, ops: &[TxnOp]) -> usize {
        let trees = ops.iter().filter_map(|op| match op {
            TxnOp::Kv(op) if op.verb == KvVerb::GetTree => Some(&op.key),
            _ => None,
        });
        trees.map(|prefix| self.entries.size_under(prefix.as_str()).1).sum()
    }
}

impl View {
    /// Builds the rows; none where they would take more bytes than `limit`.
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
    /// The answer. Takes a while.
    pub fn into_response(self, limit: usize) -> Response {
        let Self { index, known_leader, last_contact, view } = self;
        match view.rows(limit) {
            Some(rows) => Response::Answer(Answer { index, rows, known_leader, last_contact }),
            None => too_long(limit),
        }
    }
}

/// The refusal of an answer that takes more bytes than `limit`.
pub fn too_long(limit: usize) -> Response {
    Response::Unavailable(Unavailable::AnswerTooLong { limit: limit as u64 })
}

/// The names of keys under a prefix, each cut after the first separator behind the prefix; none
/// where they take more bytes than `limit`.
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
        // All names that are cut to the same follow each other.
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
