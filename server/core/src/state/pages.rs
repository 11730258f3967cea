//! Rows in key order, in copy-on-write pages that are shared with readers.
//!
//! ```text
//! Pages ──▶ [ page │ page │ page │ … ]      each: first key, newest index, least bytes, rows
//!                │
//!                └─▶ Arc [ (key, row), (key, row), … ]      128 at most
//! ```
//!
//! A clone is a snapshot: it costs one counter. Later writes copy the list of pages once, and each
//! page that they touch, only while the snapshot exists. Queries on a prefix (newest index, minimum
//! size) read page summaries, and rows only at the prefix's first and last page. The rows of a
//! prefix are removed by page, so that the remover need not free them.

use lockmesh_protocol::id::{Key, LogIndex};
use lockmesh_protocol::record::Entry;
use std::ops::Range;
use std::sync::Arc;

/// The maximum number of rows in a page; a larger one is split.
const PAGE_ROWS: usize = 128;

/// A page with fewer rows is merged with a neighbour, if both fit into three quarters of one.
const SPARSE_ROWS: usize = PAGE_ROWS / 4;

/// The row of a key.
pub(super) trait TreeRow: Clone {
    /// The index of its last change.
    fn index(&self) -> LogIndex;

    /// A lower bound of its encoded size with its key, in bytes.
    fn least_bytes(&self, key: &Key) -> usize;
}

impl TreeRow for Arc<Entry> {
    fn index(&self) -> LogIndex {
        self.modify_index
    }

    fn least_bytes(&self, key: &Key) -> usize {
        // Two lengths, and at least one byte for each of its eight numbers and flags.
        const OTHERS: usize = 10;
        let session = self.lock.session.map_or(0, |id| id.as_bytes().len());
        key.as_str().len() + self.value.len() + session + OTHERS
    }
}

impl TreeRow for LogIndex {
    fn index(&self) -> LogIndex {
        *self
    }

    fn least_bytes(&self, key: &Key) -> usize {
        key.as_str().len()
    }
}

/// A sorted map from keys to rows.
#[derive(Clone, Debug)]
pub(super) struct Pages<R> {
    pages: Arc<Vec<Page<R>>>,
    len: usize,
    /// The size of all rows that were replaced or removed, in bytes: at most that much is kept by
    /// a snapshot alone.
    replaced_bytes: u64,
}

/// Neighbouring rows. Never empty.
#[derive(Clone, Debug)]
struct Page<R> {
    /// At most the first row's key, and greater than all keys of the page before.
    first: Key,
    newest: LogIndex,
    least_bytes: usize,
    rows: Arc<Vec<(Key, R)>>,
}

/// A position between rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct At {
    page: usize,
    row: usize,
}

impl<R> Default for Pages<R> {
    fn default() -> Self {
        Self { pages: Arc::default(), len: 0, replaced_bytes: 0 }
    }
}

/// Maps with equal rows are equal, however the rows are split into pages.
impl<R: TreeRow + PartialEq> PartialEq for Pages<R> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && (Arc::ptr_eq(&self.pages, &other.pages) || self.iter().eq(other.iter()))
    }
}

impl<R: TreeRow + Eq> Eq for Pages<R> {}

impl<R: TreeRow> Page<R> {
    fn new(rows: Vec<(Key, R)>) -> Self {
        let first = rows[0].0.clone();
        let mut page = Self { first, newest: LogIndex(0), least_bytes: 0, rows: Arc::new(rows) };
        page.look();
        page
    }

    /// Recomputes the summary of the page.
    fn look(&mut self) {
        self.newest = newest(&self.rows);
        self.least_bytes = self.rows.iter().map(|(key, row)| row.least_bytes(key)).sum();
    }

    fn find(&self, key: &str) -> Result<usize, usize> {
        self.rows.binary_search_by(|(other, _)| other.as_str().cmp(key))
    }

    /// Replaces the row in a slot; returns the previous one.
    fn replace(&mut self, slot: usize, row: R) -> R {
        let (key, kept) = &mut Arc::make_mut(&mut self.rows)[slot];
        let (index, bytes) = (row.index(), row.least_bytes(key));
        let old = std::mem::replace(kept, row);
        self.least_bytes = self.least_bytes + bytes - old.least_bytes(key);
        // Only if the newest row itself became older must the page be searched.
        if index >= self.newest {
            self.newest = index;
        } else if old.index() == self.newest {
            self.newest = newest(&self.rows);
        }
        old
    }

    /// Inserts a row; returns the second half of the rows as a page if they exceed one page.
    fn insert(&mut self, slot: usize, key: Key, row: R) -> Option<Self> {
        if slot == 0 && key < self.first {
            self.first = key.clone();
        }
        self.newest = self.newest.max(row.index());
        self.least_bytes += row.least_bytes(&key);
        let rows = Arc::make_mut(&mut self.rows);
        rows.insert(slot, (key, row));
        if rows.len() <= PAGE_ROWS {
            return None;
        }
        let behind = Self::new(rows.split_off(PAGE_ROWS / 2));
        self.look();
        Some(behind)
    }
}

fn newest<R: TreeRow>(rows: &[(Key, R)]) -> LogIndex {
    rows.iter().map(|(_, row)| row.index()).max().unwrap_or_default()
}

impl<R: TreeRow> Pages<R> {
    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the map is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The size of all rows that were replaced or removed so far, in bytes.
    pub(super) fn replaced_bytes(&self) -> u64 {
        self.replaced_bytes
    }

    /// The row of a key.
    pub(super) fn get(&self, key: &str) -> Option<&R> {
        let page = &self.pages[self.page_of(key)?];
        page.find(key).ok().map(|at| &page.rows[at].1)
    }

    /// Returns whether a key has a row.
    pub(super) fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// All rows, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &R)> {
        self.pages.iter().flat_map(|page| page.rows.iter().map(|(key, row)| (key, row)))
    }

    /// The rows whose key starts with a prefix, ascending.
    pub(super) fn under(&self, prefix: &str) -> impl Iterator<Item = (&Key, &R)> {
        let slices = self.slices(self.range(prefix));
        slices.flat_map(|(page, rows)| page.rows[rows].iter().map(|(key, row)| (key, row)))
    }

    /// The same without the first `skipped` ones. Whole pages are skipped at once.
    pub(super) fn under_after(&self, prefix: &str, skipped: usize) -> impl Iterator<Item = (&Key, &R)> {
        let mut left = skipped;
        let slices = self.slices(self.range(prefix));
        let slices = slices.map(move |(page, rows)| {
            let here = left.min(rows.len());
            left -= here;
            &page.rows[rows.start + here..rows.end]
        });
        slices.flat_map(|rows| rows.iter().map(|(key, row)| (key, row)))
    }

    /// The newest index of the rows under a prefix; `None` without rows.
    pub(super) fn newest_under(&self, prefix: &str) -> Option<LogIndex> {
        let slices = self.slices(self.range(prefix));
        slices
            .map(|(page, rows)| match rows.len() == page.rows.len() {
                true => page.newest,
                false => newest(&page.rows[rows]),
            })
            .max()
    }

    /// The number of rows under a prefix, and a lower bound of their size in bytes.
    pub(super) fn size_under(&self, prefix: &str) -> (usize, usize) {
        self.slices(self.range(prefix)).fold((0, 0), |(count, bytes), (page, rows)| {
            let more = match rows.len() == page.rows.len() {
                true => page.least_bytes,
                false => page.rows[rows.clone()].iter().map(|(key, row)| row.least_bytes(key)).sum(),
            };
            (count + rows.len(), bytes + more)
        })
    }

    /// Sets a row; returns the previous one.
    pub(super) fn insert(&mut self, key: Key, row: R) -> Option<R> {
        let Some(at) = self.page_of(key.as_str()).or((!self.pages.is_empty()).then_some(0)) else {
            Arc::make_mut(&mut self.pages).push(Page::new(vec![(key, row)]));
            self.len = 1;
            return None;
        };
        let pages = Arc::make_mut(&mut self.pages);
        let page = &mut pages[at];
        let slot = match page.find(key.as_str()) {
            Ok(slot) => {
                let old = page.replace(slot, row);
                self.replaced_bytes += old.least_bytes(&page.rows[slot].0) as u64;
                return Some(old);
            }
            Err(slot) => slot,
        };
        // Ascending keys fill page after page, instead of leaving each half full.
        if slot == PAGE_ROWS {
            pages.insert(at + 1, Page::new(vec![(key, row)]));
        } else if let Some(behind) = page.insert(slot, key, row) {
            pages.insert(at + 1, behind);
        }
        self.len += 1;
        None
    }

    /// Removes a row and returns it.
    pub(super) fn remove(&mut self, key: &str) -> Option<R> {
        let at = self.page_of(key)?;
        let slot = self.pages[at].find(key).ok()?;
        let pages = Arc::make_mut(&mut self.pages);
        let page = &mut pages[at];
        let (key, row) = Arc::make_mut(&mut page.rows).remove(slot);
        page.least_bytes -= row.least_bytes(&key);
        self.replaced_bytes += row.least_bytes(&key) as u64;
        if row.index() == page.newest {
            page.newest = newest(&page.rows);
        }
        self.len -= 1;
        join_sparse(pages, at);
        Some(row)
    }

    /// Removes every row whose key starts with a prefix, and returns them as a map.
    pub(super) fn remove_under(&mut self, prefix: &str) -> Self {
        let Range { start, end } = self.range(prefix);
        if start == end {
            return Self::default();
        }
        let pages = Arc::make_mut(&mut self.pages);
        let mut removed = Vec::new();
        if start.page == end.page {
            removed.push(pages[start.page].take(start.row..end.row));
        } else {
            if end.row > 0 {
                removed.push(pages[end.page].take(0..end.row));
            }
            let first_whole = if start.row == 0 { start.page } else { start.page + 1 };
            removed.splice(0..0, pages.drain(first_whole..end.page));
            if start.row > 0 {
                let rows = start.row..pages[start.page].rows.len();
                removed.insert(0, pages[start.page].take(rows));
            }
        }
        // The remainders of the first and the last page are neighbours now.
        for at in [start.page + 1, start.page] {
            if at < pages.len() {
                join_sparse(pages, at);
            }
        }
        let removed_len = removed.iter().map(|page| page.rows.len()).sum();
        self.len -= removed_len;
        self.replaced_bytes += removed.iter().map(|page| page.least_bytes as u64).sum::<u64>();
        Self { pages: Arc::new(removed), len: removed_len, replaced_bytes: 0 }
    }

    /// The page of a key, if it has a row.
    fn page_of(&self, key: &str) -> Option<usize> {
        self.pages.partition_point(|page| page.first.as_str() <= key).checked_sub(1)
    }

    /// The start and end of the rows under a prefix.
    fn range(&self, prefix: &str) -> Range<At> {
        let start = self.position(|key| key < prefix);
        let end = self.position(|key| key < prefix || key.starts_with(prefix));
        start..end
    }

    /// The first row for which `is_before` is false. It must be true for all smaller keys only.
    fn position(&self, is_before: impl Fn(&str) -> bool) -> At {
        let behind = self.pages.partition_point(|page| is_before(page.first.as_str()));
        let Some(page) = behind.checked_sub(1) else { return At { page: 0, row: 0 } };
        let rows = &self.pages[page].rows;
        match rows.partition_point(|(key, _)| is_before(key.as_str())) {
            row if row == rows.len() => At { page: behind, row: 0 },
            row => At { page, row },
        }
    }

    /// The pages of a range, each with its rows in the range.
    fn slices(&self, range: Range<At>) -> impl Iterator<Item = (&Page<R>, Range<usize>)> {
        let Range { start, end } = range;
        let pages = self.pages.iter().enumerate().take(end.page + 1).skip(start.page);
        let slices = pages.map(move |(at, page)| {
            let from = if at == start.page { start.row } else { 0 };
            let to = if at == end.page { end.row } else { page.rows.len() };
            (page, from..to)
        });
        slices.filter(|(_, rows)| !rows.is_empty())
    }
}

impl<R: TreeRow> Page<R> {
    /// Removes at least one row from the page; the caller handles an empty page.
    fn take(&mut self, rows: Range<usize>) -> Self {
        let taken = Self::new(Arc::make_mut(&mut self.rows).drain(rows).collect());
        self.look();
        taken
    }
}

/// Removes the page if it is empty, or merges it with a neighbour if both are small.
fn join_sparse<R: TreeRow>(pages: &mut Vec<Page<R>>, at: usize) {
    let len = pages[at].rows.len();
    if len == 0 {
        pages.remove(at);
        return;
    }
    if len >= SPARSE_ROWS {
        return;
    }
    // With spare room, or the next insert would split the page again.
    let fits =
        |other: usize| pages.get(other).is_some_and(|page| page.rows.len() + len <= PAGE_ROWS - SPARSE_ROWS);
    let before = at.checked_sub(1).filter(|before| fits(*before));
    let Some(left) = before.or(fits(at + 1).then_some(at)) else { return };
    let right = pages.remove(left + 1);
    let page = &mut pages[left];
    // Rows are copied while a snapshot shares the page, otherwise moved.
    Arc::make_mut(&mut page.rows).extend(Arc::unwrap_or_clone(right.rows));
    page.newest = page.newest.max(right.newest);
    page.least_bytes += right.least_bytes;
}

#[cfg(test)]
mod tests {
    use super::{PAGE_ROWS, Pages, SPARSE_ROWS};
    use lockmesh_protocol::id::{Key, LogIndex};
    use proptest::prelude::{Strategy, any};
    use proptest::{collection, prop_assert_eq, prop_oneof, proptest};
    use std::collections::BTreeMap;

    type Model = BTreeMap<Key, LogIndex>;

    /// An action on a map.
    #[derive(Clone, Debug)]
    enum Action {
        Set(String, u64),
        /// Inserts a run of keys, as a load writes them.
        Fill(String, u8),
        Remove(String),
        RemoveUnder(String),
        /// Takes a snapshot and keeps it.
        View,
        ForgetViews,
    }

    fn key() -> impl Strategy<Value = String> {
        prop_oneof!["[a-c]{0,3}", "[a-c]/[0-9]{1,3}", "[a-c]/[0-9]{1,2}/[a-cçé]{0,2}"]
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            4 => (key(), 1..1000u64).prop_map(|(key, index)| Action::Set(key, index)),
            3 => ("[a-c]/", any::<u8>()).prop_map(|(prefix, count)| Action::Fill(prefix, count)),
            4 => key().prop_map(Action::Remove),
            2 => prop_oneof!["[a-c]?/?[0-9]?", key()].prop_map(Action::RemoveUnder),
            1 => proptest::strategy::Just(Action::View),
            1 => proptest::strategy::Just(Action::ForgetViews),
        ]
    }

    fn under<'a>(model: &'a Model, prefix: &'a str) -> impl Iterator<Item = (&'a Key, &'a LogIndex)> {
        model.iter().filter(move |(key, _)| key.as_str().starts_with(prefix))
    }

    fn set(pages: &mut Pages<LogIndex>, model: &mut Model, key: String, index: u64) {
        let key = Key::from(key);
        let before = model.insert(key.clone(), LogIndex(index));
        assert_eq!(pages.insert(key, LogIndex(index)), before);
    }

    fn act(pages: &mut Pages<LogIndex>, model: &mut Model, action: Action) {
        match action {
            Action::Set(key, index) => set(pages, model, key, index),
            Action::Fill(prefix, count) => {
                (0..count).for_each(|at| set(pages, model, format!("{prefix}{at:03}"), u64::from(at) + 1));
            }
            Action::Remove(key) => {
                let before = model.remove(key.as_str());
                assert_eq!(pages.remove(&key), before);
            }
            Action::RemoveUnder(prefix) => {
                let removed = pages.remove_under(&prefix);
                let gone: Model = under(model, &prefix).map(|(key, row)| (key.clone(), *row)).collect();
                model.retain(|key, _| !gone.contains_key(key));
                assert_eq!(removed.len(), gone.len());
                assert!(removed.iter().eq(gone.iter()));
                pages_are_sound(&removed, true);
            }
            Action::View | Action::ForgetViews => {}
        }
    }

    fn pages_are_sound(pages: &Pages<LogIndex>, may_be_sparse: bool) {
        let list = &pages.pages;
        for (at, page) in list.iter().enumerate() {
            assert!((1..=PAGE_ROWS).contains(&page.rows.len()));
            assert!(page.first <= page.rows[0].0);
            assert!(at == 0 || list[at - 1].rows.last().is_some_and(|(last, _)| *last < page.first));
            let mut fresh = page.clone();
            fresh.look();
            assert_eq!((fresh.newest, fresh.least_bytes), (page.newest, page.least_bytes));
        }
        let is_sparse = list.windows(2).any(|two| two[0].rows.len() + two[1].rows.len() <= SPARSE_ROWS);
        assert!(may_be_sparse || !is_sparse, "small neighbours are joined");
    }

    proptest! {
        /// Pages behave like a plain map under any actions, and a snapshot never changes.
        #[test]
        fn pages_behave_like_map(actions in collection::vec(action(), 1..60), prefixes in collection::vec(key(), 4)) {
            let (mut pages, mut model) = (Pages::default(), Model::new());
            let mut views: Vec<(Pages<LogIndex>, Model)> = Vec::new();
            for action in actions {
                match action {
                    Action::View => views.push((pages.clone(), model.clone())),
                    Action::ForgetViews => views.clear(),
                    _ => {}
                }
                act(&mut pages, &mut model, action);
                pages_are_sound(&pages, true);
                prop_assert_eq!(pages.len(), model.len());
                prop_assert_eq!(pages.is_empty(), model.is_empty());
                prop_assert_eq!(pages.iter().collect::<Vec<_>>(), model.iter().collect::<Vec<_>>());
                for prefix in prefixes.iter().map(String::as_str).chain(["", "a", "b/", "c/1"]) {
                    prop_assert_eq!(pages.get(prefix), model.get(prefix));
                    prop_assert_eq!(pages.under(prefix).collect::<Vec<_>>(), under(&model, prefix).collect::<Vec<_>>());
                    prop_assert_eq!(pages.newest_under(prefix), under(&model, prefix).map(|(_, row)| *row).max());
                    let bytes: usize = under(&model, prefix).map(|(key, _)| key.as_str().len()).sum();
                    prop_assert_eq!(pages.size_under(prefix), (under(&model, prefix).count(), bytes));
                }
            }
            for (view, model) in views {
                prop_assert_eq!(view.iter().collect::<Vec<_>>(), model.iter().collect::<Vec<_>>());
            }
        }
    }

    /// A map of `count` rows with ascending keys.
    fn filled(count: u64) -> Pages<LogIndex> {
        let mut pages = Pages::default();
        for at in 0..count {
            pages.insert(Key::from(format!("k{at:06}")), LogIndex(at + 1));
        }
        pages
    }

    #[test]
    fn sequential_inserts_fill_pages() {
        let pages = filled(10 * PAGE_ROWS as u64);
        assert_eq!(pages.pages.len(), 10);
    }

    #[test]
    fn page_copied_only_while_shared() {
        let mut pages = filled(3 * PAGE_ROWS as u64);
        let slot = |pages: &Pages<LogIndex>, page: usize| std::sync::Arc::as_ptr(&pages.pages[page].rows);
        let before = [0, 1, 2].map(|page| slot(&pages, page));
        pages.insert(Key::from("k000000"), LogIndex(9_000));
        assert_eq!(before, [0, 1, 2].map(|page| slot(&pages, page)), "nobody looks");
        let view = pages.clone();
        pages.insert(Key::from("k000000"), LogIndex(9_001));
        assert_ne!(slot(&pages, 0), before[0]);
        assert_eq!([1, 2].map(|page| slot(&pages, page)), [before[1], before[2]]);
        assert_eq!(view.get("k000000"), Some(&LogIndex(9_000)));
    }

    #[test]
    fn removals_leave_no_small_neighbours() {
        let mut pages = filled(20 * PAGE_ROWS as u64);
        for at in (0..20 * PAGE_ROWS).filter(|at| at % 16 != 0) {
            pages.remove(&format!("k{at:06}"));
        }
        pages_are_sound(&pages, false);
        assert_eq!(pages.len(), 20 * PAGE_ROWS / 16);
    }
}
