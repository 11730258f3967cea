//! Several lists in ascending order of their keys, read side by side: one element of each is in
//! memory.

use crate::MigrateError;

/// A list in ascending order of its keys, each of which it has once.
pub(super) trait Sorted {
    type Item;

    async fn next(&mut self) -> Result<Option<Self::Item>, MigrateError>;

    fn key_of(item: &Self::Item) -> &str;
}

/// A list and its first element.
pub(super) struct Head<L: Sorted> {
    pub(super) list: L,
    first: Option<L::Item>,
}

impl<L: Sorted> Head<L> {
    pub(super) async fn of(mut list: L) -> Result<Self, MigrateError> {
        let first = list.next().await?;
        Ok(Self { list, first })
    }

    pub(super) fn key(&self) -> Option<&str> {
        self.first.as_ref().map(L::key_of)
    }

    /// Takes the element of this key, if the list has one.
    pub(super) async fn take(&mut self, key: &str) -> Result<Option<L::Item>, MigrateError> {
        match self.key() == Some(key) {
            true => Ok(std::mem::replace(&mut self.first, self.list.next().await?)),
            false => Ok(None),
        }
    }
}

/// The smallest key of several lists.
pub(super) fn least<const LISTS: usize>(keys: [Option<&str>; LISTS]) -> Option<String> {
    keys.into_iter().flatten().min().map(str::to_owned)
}
