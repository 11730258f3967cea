//! Answers with very many rows: a snapshot of the pages instead of the rows, which are built
//! elsewhere, whole or in parts.
//!
//! The server's loop must be quick: few rows are built at once, very many not at all. A whole
//! answer that is too long is mostly detected before any of its rows is read.

use super::pages::{Pages, TreeRow};
use super::{State, acl};
use lockmesh_protocol::acl::Rights;
use lockmesh_protocol::command::{KvVerb, TxnOp};
use lockmesh_protocol::id::{Key, LogIndex};
use lockmesh_protocol::query::{Answer, Query, Rows};
use lockmesh_protocol::record::Entry;
use lockmesh_protocol::rpc::{AnswerPart, Response, Unavailable, ViewId};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of rows, and of their bytes, that the server's loop builds itself.
const FEW: (usize, usize) = (256, 64 << 10);

/// The answer to a query.
#[derive(Clone, Debug)]
pub enum Listing {
    /// The rows, and `true` if some are left out that the caller may not see.
    Rows(Rows, bool),
    /// A snapshot from which many rows are built.
    View(View),
    /// The rows exceed the maximum size of an answer.
    TooLong,
}

/// A snapshot of the rows of an answer.
#[derive(Clone, Debug)]
pub struct View(ViewSource);

#[derive(Clone, Debug)]
enum ViewSource {
    /// All keys, and the selection of the wanted ones. It costs only the pages that change while it
    /// exists.
    Keys { entries: Pages<Arc<Entry>>, prefix: Key, wanted: WantedRows, rights: Option<Arc<Rights>> },
    /// Other rows, which are shared with the state, and `true` if some are left out.
    Rows(Arc<Rows>, bool),
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
    /// The wanted part: its view, and the position that it begins at; `None` for the whole answer.
    pub part: Option<(ViewId, u64)>,
}

impl State {
    /// The size of all keys, values, services, checks, coordinates and prepared queries that were
    /// replaced or removed so far, in bytes. Only differences are significant.
    pub fn replaced_bytes(&self) -> u64 {
        self.keys.entries.replaced_bytes() + self.catalog.replaced.0 + self.prepared_queries.replaced.0
    }
}

/// Answers a query with its index, and with rows up to `limit` bytes or a snapshot to build
/// them from. Rows that these rights do not show are left out.
pub fn query_view(
    state: &State,
    query: &Query,
    limit: usize,
    rights: Option<&Arc<Rights>>,
) -> (LogIndex, Listing) {
    let (prefix, wanted) = match query {
        Query::Entries(prefix) => (prefix, WantedRows::Entries),
        Query::Keys { prefix, separator } => (prefix, WantedRows::Names(separator.clone())),
        // A transaction's rows cannot be built elsewhere, so only its size is checked first.
        Query::Txn(ops) if least_bytes_of_trees(state, ops) > limit => {
            return (state.index_of(query), Listing::TooLong);
        }
        _ => {
            let (rows, is_filtered) = rows_for(state, query, rights);
            return (state.index_of(query), Listing::Rows(rows, is_filtered));
        }
    };
    let (count, bytes) = state.keys.entries.size_under(prefix.as_str());
    let listing = match wanted {
        WantedRows::Entries if bytes > limit => Listing::TooLong,
        // Passing very few rows to another thread costs more than building them.
        wanted if count <= FEW.0 && bytes <= FEW.1 => {
            let view = keys_view(state, prefix, wanted, rights);
            view.rows(limit).map_or(Listing::TooLong, |(rows, is_filtered)| Listing::Rows(rows, is_filtered))
        }
        wanted => Listing::View(keys_view(state, prefix, wanted, rights)),
    };
    (state.index_of(query), listing)
}

/// Answers a query with its index and a snapshot to build the rows from, whole or in parts.
pub fn view(state: &State, query: &Query, rights: Option<&Arc<Rights>>) -> (LogIndex, View) {
    let view = match query {
        Query::Entries(prefix) => keys_view(state, prefix, WantedRows::Entries, rights),
        Query::Keys { prefix, separator } => {
            keys_view(state, prefix, WantedRows::Names(separator.clone()), rights)
        }
        _ => {
            let (rows, is_filtered) = rows_for(state, query, rights);
            View(ViewSource::Rows(Arc::new(rows), is_filtered))
        }
    };
    // Not below the index that woke the reader, or it would retry with the same index in a
    // loop.
    (state.news(query, LogIndex(0)).unwrap_or_default(), view)
}

fn keys_view(state: &State, prefix: &Key, wanted: WantedRows, rights: Option<&Arc<Rights>>) -> View {
    let (entries, prefix, rights) = (state.keys.entries.clone(), prefix.clone(), rights.cloned());
    View(ViewSource::Keys { entries, prefix, wanted, rights })
}

/// The rows of a query that these rights show, and `true` if some are left out.
fn rows_for(state: &State, query: &Query, rights: Option<&Arc<Rights>>) -> (Rows, bool) {
    match (rights, query) {
        (Some(rights), Query::Txn(ops)) => {
            let (results, is_filtered) = acl::read_txn_as(state, rights, ops);
            (Rows::Txn(results), is_filtered)
        }
        (Some(rights), _) => acl::visible(state, rights, state.query(query).1),
        (None, _) => (state.query(query).1, false),
    }
}

/// A lower bound of the size of the trees that a transaction reads, in bytes.
fn least_bytes_of_trees(state: &State, ops: &[TxnOp]) -> usize {
    let trees = ops.iter().filter_map(|op| match op {
        TxnOp::Kv(op) if op.verb == KvVerb::GetTree => Some(&op.key),
        _ => None,
    });
    trees.map(|prefix| state.keys.entries.size_under(prefix.as_str()).1).sum()
}

impl View {
    /// Builds the rows, with `true` if some are left out; `None` if they exceed `limit` bytes.
    pub fn rows(&self, limit: usize) -> Option<(Rows, bool)> {
        let (entries, prefix, wanted, rights) = match &self.0 {
            ViewSource::Keys { entries, prefix, wanted, rights } => {
                (entries, prefix.as_str(), wanted, rights)
            }
            ViewSource::Rows(rows, is_filtered) => return Some((Rows::clone(rows), *is_filtered)),
        };
        let mut is_filtered = false;
        let visible = entries.under(prefix).filter(|(key, _)| {
            let is_shown = shows(rights, key);
            is_filtered |= !is_shown;
            is_shown
        });
        let rows = match wanted {
            WantedRows::Entries => Rows::Entries(visible.map(|(_, entry)| entry.clone()).collect()),
            WantedRows::Names(separator) => names(visible.map(|(key, _)| key), prefix, separator, limit)?,
        };
        Some((rows, is_filtered))
    }

    /// Builds the part that begins at a position, of about `size` bytes, with `true` if rows are
    /// left out. Returns the position of the next part, if any.
    pub fn part(&self, after: u64, size: usize) -> (Rows, Option<u64>, bool) {
        let after = usize::try_from(after).unwrap_or(usize::MAX);
        let (entries, prefix, wanted, rights) = match &self.0 {
            ViewSource::Keys { entries, prefix, wanted, rights } => {
                (entries, prefix.as_str(), wanted, rights)
            }
            ViewSource::Rows(rows, is_filtered) => {
                let (rows, next) = rows.part(after, size);
                return (rows, next.map(|next| next as u64), *is_filtered);
            }
        };
        let (taken, count) = taken(entries.under_after(prefix, after), size, |(key, entry)| match wanted {
            WantedRows::Entries => entry.least_bytes(key),
            WantedRows::Names(_) => key.as_str().len(),
        });
        let shown = taken.into_iter().filter(|(key, _)| shows(rights, key));
        let (rows, shown_count) = match wanted {
            WantedRows::Entries => {
                let rows: Vec<_> = shown.map(|(_, entry)| entry.clone()).collect();
                let count = rows.len();
                (Rows::Entries(rows), count)
            }
            WantedRows::Names(separator) => {
                let mut shown = shown.peekable();
                // The last name of the part before may continue, in a key that is shown.
                let first = shown.peek().map(|(key, _)| cut(key.as_str(), prefix.len(), separator));
                let before = (0..after).rev().filter_map(|at| entries.under_after(prefix, at).next());
                let mut same = before
                    .map(|(key, _)| key)
                    .take_while(|key| Some(cut(key.as_str(), prefix.len(), separator)) == first);
                let known = first.filter(|_| same.any(|key| shows(rights, key)));
                let (mut names, mut count): (Vec<String>, _) = (Vec::new(), 0);
                for (key, _) in shown {
                    count += 1;
                    let name = cut(key.as_str(), prefix.len(), separator);
                    if names.last().map(String::as_str).or(known) != Some(name) {
                        names.push(name.into());
                    }
                }
                (Rows::Keys(names), count)
            }
        };
        let next = after + count;
        let next = (next < entries.size_under(prefix).0).then_some(next as u64);
        (rows, next, shown_count < count)
    }
}

fn shows(rights: &Option<Arc<Rights>>, key: &Key) -> bool {
    rights.as_ref().is_none_or(|rights| acl::may_read_key(rights, key))
}

/// Takes rows of up to about `size` bytes, and returns their number.
fn taken<T>(rows: impl Iterator<Item = T>, size: usize, size_of: impl Fn(&T) -> usize) -> (Vec<T>, usize) {
    let mut bytes = 0;
    let has_room = |row: &T| {
        let had_room = bytes < size;
        bytes += size_of(row);
        had_room
    };
    let rows: Vec<T> = rows.take_while(has_room).collect();
    let count = rows.len();
    (rows, count)
}

impl LongRead {
    /// Builds the response, which takes a while: a whole answer of up to `limit` bytes, or a part
    /// of about `part_size` bytes.
    pub fn into_response(self, limit: usize, part_size: usize) -> Response {
        let Self { index, known_leader, last_contact, view, part } = self;
        if let Some((id, after)) = part {
            let (rows, next, is_filtered) = view.part(after, part_size);
            let answer = Answer { index, rows, known_leader, last_contact, is_filtered };
            return Response::part(AnswerPart { answer, view: id, next });
        }
        match view.rows(limit) {
            Some((rows, is_filtered)) => {
                Response::answer(Answer { index, rows, known_leader, last_contact, is_filtered })
            }
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
