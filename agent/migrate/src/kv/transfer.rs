//! One pass: writes to Lockmesh what has changed in Consul.
//!
//! Consul's list and the state file are read side by side. Each write has a condition on the modify
//! index in Lockmesh, so that it replaces only what the migration knows. A write whose condition
//! fails, or whose answer was lost, is decided by the entry that is there now.

use super::ledger::{Claim, Ledger, Record, Writer, print_of};
use super::report::{CopyProgress, Listed, Written};
use super::side::{ConsulSource, Row, of_lockmesh};
use super::sorted::{Head, least};
use crate::MigrateError;
use crate::limits::{Limits, size_of};
use lockmesh_client::{Client, Entry, Error, Outcome, Read, Txn};
use lockmesh_net::random;
use lockmesh_protocol::backoff::Backoff;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The maximum number of records that wait for a transaction, so that the state file stays in
/// order.
const MAX_QUEUE: usize = 1024;

/// The maximum number of attempts of a write whose key other clients change.
const MAX_ATTEMPTS: usize = 10;

/// The pause after an error of Lockmesh that may pass: at first, and at most.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A record that waits for its place in the state file.
#[derive(Debug)]
enum Item {
    /// Nothing is written.
    Keep(Record),
    Write {
        entry: Entry,
        print: u128,
        record: Option<Record>,
        expected: u64,
        state: State,
    },
    Delete {
        record: Record,
        expected: u64,
        state: State,
    },
}

/// The state of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    /// The key has this modify index now; 0 if unknown.
    Done(u64),
    /// Another client has changed the key in Lockmesh.
    Refused,
}

/// A pass in progress.
pub(super) struct Pass<'a> {
    target: &'a Client,
    ledger: &'a mut Ledger,
    writer: Writer,
    limits: Limits,
    /// The maximum time that Lockmesh may be unavailable.
    retry_timeout: Duration,
    queue: Vec<Item>,
    pending: usize,
    bytes: usize,
    written: &'a mut Written,
    conflicts: Listed,
}

/// Writes all differences once. Returns the indexes of Consul's lists, and the keys that other
/// clients have changed in Lockmesh.
pub(super) async fn transfer(
    source: &ConsulSource,
    target: &Client,
    ledger: &mut Ledger,
    retry_timeout: Duration,
    written: &mut Written,
    mut progress: CopyProgress,
) -> Result<(Vec<u64>, Listed), MigrateError> {
    let (records, writer, limits) = (ledger.read()?, ledger.rewrite()?, source.limits);
    let (queue, conflicts) = (Vec::new(), Listed::default());
    let (pending, bytes) = (0, 0);
    let mut pass =
        Pass { target, ledger, writer, limits, retry_timeout, queue, pending, bytes, written, conflicts };
    let mut seen = 0_u64;
    let mut rows = Head::of(source.list()).await?;
    let mut records = Head::of(records).await?;
    while let Some(key) = least([rows.key(), records.key()]) {
        let (row, record) = (rows.take(&key).await?, records.take(&key).await?);
        seen += u64::from(row.is_some());
        let is_covered = source.covers(&key);
        let was_copied = || record.as_ref().is_some_and(|record| record.claim == Claim::Copied);
        // A Consul that hides all keys from the token gives an empty list, too.
        if rows.list.is_empty() && is_covered && was_copied() {
            return Err(MigrateError::failed(
                "Consul lists no keys any more, but keys were copied before. Nothing was deleted in Lockmesh. \
                 With ACLs in Consul, give a token that may read the keys with --from-token-file FILE. If \
                 they were deleted, delete them in Lockmesh with `lockmesh kv delete --recurse`",
            ));
        }
        if let Some(item) = Item::of(row, record, is_covered) {
            pass.add(item).await?;
        }
        let total = pass.written.total();
        progress.report(|| format!("copying: {seen} keys read, {total} written so far"));
    }
    pass.flush().await?;
    pass.written.passes += 1;
    pass.writer.finish()?;
    Ok((rows.list.into_indexes(), pass.conflicts))
}

impl Pass<'_> {
    async fn add(&mut self, item: Item) -> Result<(), MigrateError> {
        let size = match &item {
            Item::Keep(_) => 0,
            Item::Write { entry, .. } => size_of(&entry.key, &entry.value),
            Item::Delete { record, .. } => size_of(&record.key, &[]),
        };
        let is_full = self.pending >= self.limits.operations || self.bytes + size > self.limits.body;
        if self.pending > 0 && size > 0 && is_full || self.queue.len() >= MAX_QUEUE {
            self.flush().await?;
        }
        self.pending += usize::from(size > 0);
        self.bytes += size;
        self.queue.push(item);
        Ok(())
    }

    /// Writes what is pending, and notes the queue in the state file.
    async fn flush(&mut self) -> Result<(), MigrateError> {
        let mut queue = std::mem::take(&mut self.queue);
        if self.pending > 0 {
            // Before it is sent: a write without an answer must not look like that of another
            // client.
            self.ledger.begin(queue.iter().filter_map(Item::intent))?;
            self.write(&mut queue).await?;
        }
        for item in queue {
            if let Some(record) = self.settle(item) {
                self.writer.put(&record)?;
            }
        }
        if self.pending > 0 {
            // The next batch overwrites the notes of this one, which its records must replace
            // first.
            self.writer.flush()?;
        }
        (self.pending, self.bytes) = (0, 0);
        Ok(())
    }

    async fn write(&self, queue: &mut [Item]) -> Result<(), MigrateError> {
        let mut backoff = Backoff::new(RETRY_BACKOFF, random::seed());
        let (mut attempts, mut began) = (0, Instant::now());
        loop {
            let open: Vec<usize> = (0..queue.len()).filter(|at| queue[*at].is_pending()).collect();
            if open.is_empty() {
                return Ok(());
            }
            let error = match self.attempt(queue, &open).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) if attempts < MAX_ATTEMPTS => {
                    // Lockmesh has answered, so it is available.
                    (attempts, began) = (attempts + 1, Instant::now());
                    backoff.reset();
                    continue;
                }
                Ok(Some(what)) => {
                    let key = queue[open[0]].key();
                    return Err(MigrateError::failed(format!(
                        "Lockmesh refuses to write {key:?} or a key behind it: {what}; correct that, \
                        then run the \
                         same command again, which continues"
                    )));
                }
                Err(error) => error,
            };
            if !error.is_transient() || began.elapsed() >= self.retry_timeout {
                return Err(of_lockmesh(error));
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }

    /// Sends the pending writes once. Returns a reason if a condition failed: the keys that are
    /// there now have decided which writes are still pending.
    async fn attempt(&self, queue: &mut [Item], open: &[usize]) -> Result<Option<String>, Error> {
        if let [at] = open
            && let Item::Write { entry, expected, state, .. } = &mut queue[*at]
            && size_of(&entry.key, &entry.value) > self.limits.body
        {
            let kv = self.target.kv();
            // Too long for a transaction. A plain write does not return its index, so 0 is noted.
            if kv.cas(&entry.key, entry.value.clone(), entry.flags, *expected).await? {
                *state = State::Done(0);
                return Ok(None);
            }
            self.resolve(&mut queue[*at]).await?;
            return Ok(Some("its condition failed".into()));
        }
        let txn = open.iter().fold(Txn::new(), |txn, at| queue[*at].operation(txn));
        match self.target.txn(&txn, &Read::default()).await? {
            Outcome::Done(entries) => {
                let indexes: BTreeMap<_, _> =
                    entries.into_iter().map(|entry| (entry.key, entry.modify_index)).collect();
                for at in open {
                    let index = indexes.get(queue[*at].key()).copied().unwrap_or_default();
                    queue[*at].set(State::Done(index));
                }
                Ok(None)
            }
            Outcome::RolledBack(errors) => {
                for error in &errors {
                    if let Some(at) = open.get(error.op_index as usize) {
                        self.resolve(&mut queue[*at]).await?;
                    }
                }
                Ok(Some(errors.into_iter().next().map(|error| error.what).unwrap_or_default()))
            }
        }
    }

    /// Decides a write by the entry that is there now.
    async fn resolve(&self, item: &mut Item) -> Result<(), Error> {
        let there = self.target.kv().get(item.key(), &Read::consistent()).await?.value;
        let print = there.as_ref().map(print_of);
        let is_free = there.as_ref().is_none_or(|there| there.session.is_none());
        let index = there.map_or(0, |there| there.modify_index);
        match item {
            Item::Keep(_) => {}
            Item::Write { print: wanted, state, .. } if print == Some(*wanted) => {
                // The index of a locked entry must not permit the next write.
                *state = State::Done(index * u64::from(is_free));
            }
            Item::Delete { state, .. } if print.is_none() => *state = State::Done(0),
            Item::Write { record, expected, state, .. } => {
                let known = record.as_ref().map(|record| record.print);
                match print.is_none() || (known == print && is_free) {
                    true => *expected = index,
                    false => *state = State::Refused,
                }
            }
            Item::Delete { record, expected, state } => match print == Some(record.print) && is_free {
                true => *expected = index,
                false => *state = State::Refused,
            },
        }
        Ok(())
    }

    /// Counts a write; returns what is noted about its key.
    fn settle(&mut self, item: Item) -> Option<Record> {
        match item {
            Item::Keep(record) => Some(record),
            Item::Write { record, state: State::Refused, entry, .. } => {
                self.conflicts.add(&entry.key, "changed in Lockmesh during the migration");
                record
            }
            Item::Write { entry, print, record, state, .. } => {
                match record {
                    Some(_) => self.written.updated += 1,
                    None => self.written.copied += 1,
                }
                let target = if let State::Done(index) = state { index } else { 0 };
                let (source, claim) = (entry.modify_index, Claim::Copied);
                Some(Record { key: entry.key, print, source, target, claim })
            }
            Item::Delete { record, state: State::Refused, .. } => {
                self.conflicts
                    .add(&record.key, "deleted in Consul, but changed in Lockmesh during the migration");
                // The index is outdated: the condition of the next pass fails, and the entry is
                // read again.
                Some(Record { target: 0, ..record })
            }
            Item::Delete { .. } => {
                self.written.deleted += 1;
                None
            }
        }
    }
}

impl Item {
    /// The item of a key, by its entry in Consul and its record.
    fn of(row: Option<Row>, record: Option<Record>, is_covered: bool) -> Option<Self> {
        match (row, record) {
            (Some(Row { misfit: Some(_), .. }), record) => record.map(Self::Keep),
            (Some(Row { entry, .. }), record) => {
                let print = print_of(&entry);
                Some(match record {
                    // Its index also changes with its lock.
                    Some(record) if record.print == print => {
                        Self::Keep(Record { source: entry.modify_index, ..record })
                    }
                    record => {
                        let expected = record.as_ref().map_or(0, |record| record.target);
                        Self::Write { entry, print, record, expected, state: State::Pending }
                    }
                })
            }
            (None, Some(record)) if is_covered && record.claim == Claim::Copied => {
                let expected = record.target;
                Some(Self::Delete { record, expected, state: State::Pending })
            }
            // Not deleted: another client wrote it, or it has another prefix.
            (None, record) => record.map(Self::Keep),
        }
    }

    fn key(&self) -> &str {
        match self {
            Self::Keep(record) | Self::Delete { record, .. } => &record.key,
            Self::Write { entry, .. } => &entry.key,
        }
    }

    fn is_pending(&self) -> bool {
        match self {
            Self::Keep(_) => false,
            Self::Write { state, .. } | Self::Delete { state, .. } => *state == State::Pending,
        }
    }

    fn set(&mut self, new: State) {
        if let Self::Write { state, .. } | Self::Delete { state, .. } = self {
            *state = new;
        }
    }

    fn intent(&self) -> Option<(&str, u128)> {
        match self {
            Self::Write { entry, print, .. } => Some((&entry.key, *print)),
            Self::Keep(_) | Self::Delete { .. } => None,
        }
    }

    fn operation(&self, txn: Txn) -> Txn {
        match self {
            Self::Keep(_) => txn,
            Self::Write { entry, expected, .. } => {
                txn.cas(&entry.key, entry.value.clone(), entry.flags, *expected)
            }
            Self::Delete { record, expected, .. } => txn.delete_cas(&record.key, *expected),
        }
    }
}
