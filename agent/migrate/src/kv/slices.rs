//! The entries of Lockmesh, read in slices.
//!
//! Servers keep a view for a limited time, and a comparison takes as long as Consul needs for its
//! list. Therefore only the names are read from views: if one is ended early, a new one continues
//! behind the last name. The entries of some names at a time are read in a transaction.

use super::RETRY_PAUSE;
use super::side::{begun, of_lockmesh};
use super::sorted::Sorted;
use crate::MigrateError;
use lockmesh_client::{Client, Entry, Error, Names, Outcome, Read, Txn};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The entries under several prefixes, in ascending order.
pub(super) struct Slices<'a> {
    target: &'a Client,
    /// The prefixes whose names are not all read; ascending, and none begins with another.
    prefixes: VecDeque<String>,
    /// The names of the first one.
    open: Option<Names>,
    /// The last name that was read.
    last: Option<String>,
    /// The names whose entries are not read.
    names: VecDeque<String>,
    /// The maximum number of entries to read at once, and its limit.
    size: (usize, usize),
    ready: std::vec::IntoIter<Entry>,
    retry_timeout: Duration,
    /// The last name at the previous error.
    lost_at: Option<String>,
    /// The time of the first error since the last progress.
    lost_since: Option<Instant>,
}

impl<'a> Slices<'a> {
    /// `size` is the maximum number of operations of a transaction, and `retry_timeout` that of the
    /// time without progress.
    pub(super) fn new(
        target: &'a Client,
        prefixes: Vec<String>,
        size: usize,
        retry_timeout: Duration,
    ) -> Self {
        Self {
            target,
            prefixes: prefixes.into(),
            open: None,
            last: None,
            names: VecDeque::new(),
            size: (size, size),
            ready: Vec::new().into_iter(),
            retry_timeout,
            lost_at: None,
            lost_since: None,
        }
    }

    /// Reads the next slice, which is empty if its keys were deleted; `false` behind the last.
    async fn fill(&mut self) -> Result<bool, Error> {
        while self.names.len() < self.size.0
            && let Some(prefix) = self.prefixes.front()
        {
            let open = match &mut self.open {
                Some(open) => open,
                None => {
                    let (kv, read) = (self.target.kv(), Read::consistent());
                    self.open.insert(begun(self.target, kv.names(prefix, &read)).await?)
                }
            };
            match open.next().await? {
                // Read before the list was opened again.
                Some(name) if self.last.as_ref().is_some_and(|last| name <= *last) => {}
                Some(name) => {
                    self.names.push_back(name.clone());
                    self.last = Some(name);
                }
                None => {
                    self.open = None;
                    self.prefixes.pop_front();
                }
            }
        }
        let count = self.names.len().min(self.size.0);
        let entries = match self.read(count).await {
            // Their values exceed the limit of a reply.
            Err(Error::Refused { status: 413, .. }) if count > 1 => {
                self.size.0 = count / 2;
                return Ok(true);
            }
            entries => entries?,
        };
        // Grows again, so that a few large values do not slow down the rest.
        self.size.0 = (self.size.0 + 1).min(self.size.1);
        // Only now: after an error, the same names are read again.
        self.names.drain(..count);
        self.ready = entries.into_iter();
        Ok(count > 0)
    }

    /// Reads the entries of the next names: in a transaction, because there are keys that no path
    /// can name, such as `a//x`.
    async fn read(&self, count: usize) -> Result<Vec<Entry>, Error> {
        let (Some(first), read) = (self.names.front(), Read::consistent()) else { return Ok(Vec::new()) };
        let txn = self.names.iter().take(count).fold(Txn::new(), |txn, name| txn.get_or_empty(name));
        let outcome = match self.target.txn(&txn, &read).await {
            // The limit of a reply is not that of an entry.
            Err(Error::Refused { status: 413, .. }) if count == 1 => {
                return Ok(self.target.kv().get(first, &read).await?.value.into_iter().collect());
            }
            outcome => outcome?,
        };
        match outcome {
            Outcome::Done(entries) => {
                // A key that was deleted after its name was listed is an empty entry here.
                Ok(entries.into_iter().filter(|entry| entry.create_index > 0).collect())
            }
            Outcome::RolledBack(errors) => {
                let text = errors.into_iter().map(|error| error.what).collect::<Vec<_>>().join(", ");
                Err(Error::Refused { status: 409, text })
            }
        }
    }

    /// Opens the list again at once if it has got further, otherwise after a pause.
    async fn recover(&mut self, error: Error) -> Result<(), MigrateError> {
        self.open = None;
        if error.is_transient() && self.lost_at != self.last {
            (self.lost_at, self.lost_since) = (self.last.clone(), None);
            return Ok(());
        }
        let lost_since = *self.lost_since.get_or_insert_with(Instant::now);
        if !error.is_transient() || lost_since.elapsed() >= self.retry_timeout {
            return Err(of_lockmesh(error));
        }
        tokio::time::sleep(RETRY_PAUSE).await;
        Ok(())
    }
}

impl Sorted for Slices<'_> {
    type Item = Entry;

    fn key_of(entry: &Entry) -> &str {
        &entry.key
    }

    async fn next(&mut self) -> Result<Option<Entry>, MigrateError> {
        loop {
            if let Some(entry) = self.ready.next() {
                return Ok(Some(entry));
            }
            match self.fill().await {
                Ok(true) => self.lost_since = None,
                Ok(false) => return Ok(None),
                Err(error) => self.recover(error).await?,
            }
        }
    }
}
