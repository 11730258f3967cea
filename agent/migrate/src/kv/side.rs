//! The two sides of a migration: lists of their keys in ascending order, and their errors in words
//! for the operator.

use super::report::Listed;
use super::sorted::Sorted;
use super::tls::is_fault;
use crate::MigrateError;
use crate::limits::{KeyError, Limits, check_key, joined};
use lockmesh_client::{Client, Entries, Entry, Error, Read};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The maximum time until a list begins to arrive: a Consul agent collects the whole list first.
const LIST_TIMEOUT: Duration = Duration::from_secs(300);

/// The maximum time of one blocking query.
const QUERY_WAIT_TIME: Duration = Duration::from_secs(300);

/// The prefix without a key, by which an agent is known as Lockmesh's: Consul has no such route.
const NO_KEY: &str = "lockmesh-migrate-probe/";

/// The accessor id of Consul's token for requests without one.
const ANONYMOUS: &str = "00000000-0000-0000-0000-000000000002";

/// Consul.
#[derive(Clone, Debug)]
pub(super) struct ConsulSource {
    pub(super) client: Client,
    /// Ascending, and none begins with another.
    pub(super) prefixes: Vec<String>,
    /// The path in Lockmesh for all keys.
    pub(super) root: String,
    /// The limits of Lockmesh.
    pub(super) limits: Limits,
}

/// An entry of a list.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The entry with the name that it has in Lockmesh.
    pub(super) entry: Entry,
    /// The reason why Lockmesh cannot have it.
    pub(super) misfit: Option<String>,
}

/// Sorts prefixes, and drops those that another one includes.
pub(super) fn distinct(prefixes: &[String]) -> Vec<String> {
    let mut sorted: Vec<String> =
        prefixes.iter().map(|prefix| prefix.trim_start_matches('/').into()).collect();
    // In this order, a prefix precedes all others that it includes.
    sorted.sort();
    sorted.dedup_by(|later, earlier| later.starts_with(earlier.as_str()));
    match sorted.is_empty() {
        true => vec![String::new()],
        false => sorted,
    }
}

impl ConsulSource {
    /// Lists the keys of Consul that fit into Lockmesh. Too large ones are marked.
    pub(super) fn list(&self) -> Listing<'_> {
        Listing {
            source: self,
            rest: self.prefixes.iter(),
            open: None,
            indexes: Vec::new(),
            count: 0,
            misfits: Listed::default(),
        }
    }

    /// The same prefixes in Lockmesh.
    pub(super) fn target_prefixes(&self) -> Vec<String> {
        self.prefixes.iter().map(|prefix| joined(&self.root, prefix)).collect()
    }

    /// `true` if a key of Lockmesh belongs to this migration.
    pub(super) fn covers(&self, key: &str) -> bool {
        self.target_prefixes().iter().any(|prefix| key.starts_with(prefix.as_str()))
    }

    /// Waits until one of the prefixes has changed since these indexes, or for some minutes.
    pub(super) async fn changed(&self, indexes: &[u64]) -> Result<(), MigrateError> {
        let mut queries = JoinSet::new();
        for (prefix, index) in self.prefixes.iter().cloned().zip(indexes.iter().copied()) {
            let client = self.client.clone();
            queries.spawn(async move {
                // With index 0, Consul would answer at once.
                let read = Read::default().newer_than(index.max(1), QUERY_WAIT_TIME);
                // Only the change matters, and names up to a slash are the shortest answer.
                client.kv().keys(&prefix, "/", &read).await
            });
        }
        // The first answer is enough; the other queries end with the set.
        match queries.join_next().await {
            Some(Ok(Ok(_))) | None => Ok(()),
            Some(Ok(Err(error))) => Err(of_consul(error)),
            Some(Err(error)) => Err(MigrateError::failed(error)),
        }
    }
}

/// `true` if a Lockmesh agent replies.
pub(super) async fn is_lockmesh(client: &Client) -> Result<bool, Error> {
    match client.operator().locks(NO_KEY, &Read::stale()).await {
        Ok(_) => Ok(true),
        // A rejected token proves nothing about the program.
        Err(error @ Error::Refused { status: 401 | 403, .. }) => Err(error),
        Err(Error::Refused { .. } | Error::Garbled { .. } | Error::UnknownOutcome { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Rejects a Consul with ACLs if there is no token: its lists then lack keys without notice.
pub(super) async fn check_token(client: &Client, has_token: bool) -> Result<(), MigrateError> {
    if has_token {
        return Ok(());
    }
    match client.agent().token_accessor().await {
        Ok(accessor) if accessor.as_deref() != Some(ANONYMOUS) => Ok(()),
        Ok(_) | Err(Error::Refused { status: 403, .. }) => Err(MigrateError::failed(
            "Consul has ACLs, and does not report which keys it hides from a request without a token: give \
             one that may read all keys of the prefixes with --from-token-file FILE",
        )),
        Err(error) => Err(of_consul(error)),
    }
}

/// Returns the datacenter of Consul's agent, which needs no permission: it is the nearest one.
pub(super) async fn datacenter(client: &Client) -> Result<String, MigrateError> {
    let datacenters = client.catalog().datacenters().await.map_err(of_consul)?;
    datacenters
        .into_iter()
        .next()
        .ok_or_else(|| MigrateError::failed("Consul knows no datacenter: see its log"))
}

/// Awaits the beginning of a list.
pub(super) async fn begun<T>(
    client: &Client,
    list: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let reason = || format!("no reply within {} s", LIST_TIMEOUT.as_secs());
    let late = |_| Error::Unanswered { address: client.address().clone(), reason: reason() };
    timeout(LIST_TIMEOUT, list).await.map_err(late)?
}

/// The entries of Consul with their names in Lockmesh.
pub(super) struct Listing<'a> {
    source: &'a ConsulSource,
    /// The prefixes whose lists are not open.
    rest: std::slice::Iter<'a, String>,
    open: Option<Entries>,
    /// The index of each list that was opened.
    indexes: Vec<u64>,
    count: u64,
    /// Keys that Lockmesh cannot have.
    pub(super) misfits: Listed,
}

impl Sorted for Listing<'_> {
    type Item = Row;

    fn key_of(row: &Row) -> &str {
        &row.entry.key
    }

    async fn next(&mut self) -> Result<Option<Row>, MigrateError> {
        while let Some(mut entry) = self.entry().await.map_err(of_consul)? {
            self.count += 1;
            let name = joined(&self.source.root, &entry.key);
            if let Err(defect) = check_name(&entry.key).and_then(|()| check_key(&name)) {
                self.misfits.add(&entry.key, format!("the key {defect}"));
                continue;
            }
            entry.key = name;
            let (size, most) = (entry.value.len(), self.source.limits.value);
            let misfit = (size > most).then(|| {
                format!(
                    "the value has {size} bytes, but the agent accepts at most {most}: raise \
                     `http.max_value_bytes` in the agents' configuration"
                )
            });
            return Ok(Some(Row { entry, misfit }));
        }
        Ok(None)
    }
}

impl Listing<'_> {
    async fn entry(&mut self) -> Result<Option<Entry>, Error> {
        loop {
            if let Some(open) = &mut self.open
                && let Some(entry) = open.next().await?
            {
                return Ok(Some(entry));
            }
            let Some(prefix) = self.rest.next() else { return Ok(None) };
            let (kv, read) = (self.source.client.kv(), Read::consistent());
            let opened = begun(&self.source.client, kv.entries(prefix, &read)).await?;
            // Keys that are hidden would be taken for deleted ones.
            if opened.is_filtered() {
                let text = "the token may not read all of them".into();
                return Err(Error::Refused { status: 403, text });
            }
            // Of the beginning: what changes while the list arrives has a higher index.
            self.indexes.push(opened.index());
            self.open = Some(opened);
        }
    }

    /// `true` if there was no key so far.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The indexes of the lists, for [`ConsulSource::changed`].
    pub(super) fn into_indexes(self) -> Vec<u64> {
        self.indexes
    }
}

/// Rejects a key whose bytes got lost: JSON shows those that are not UTF-8 as U+FFFD.
fn check_name(key: &str) -> Result<(), KeyError> {
    match key.contains('\u{fffd}') {
        true => Err(KeyError::NotText),
        false => check_key(key),
    }
}

/// Describes an error of the source. [`MigrateError::Unreachable`] may pass.
pub(super) fn of_consul(error: Error) -> MigrateError {
    const AGAIN: &str = "run the same command again, which continues";
    match error {
        // It has its own advice. A pass is repeated, because it may be a passing one.
        Error::Unreachable { address, source } if is_fault(&source) => {
            MigrateError::Unreachable(format!("cannot connect to Consul at {address}: {source}"))
        }
        Error::Unreachable { address, source } => MigrateError::Unreachable(format!(
            "cannot connect to Consul at {address}: {source}; start its agent, or name another with \
            --from, then {AGAIN}"
        )),
        Error::Unanswered { address, reason } => {
            MigrateError::Unreachable(format!("lost Consul at {address}: {reason}; {AGAIN}"))
        }
        Error::Refused { status: 400, text } if text.contains("HTTPS") => {
            MigrateError::failed(format!("Consul: {}; write https:// in --from", text.trim_end_matches('.')))
        }
        // The lists have no other redirects: `--prefix` names no path that needs one.
        Error::Refused { status: status @ (301 | 302 | 303 | 307 | 308), .. } => {
            MigrateError::failed(format!(
                "Consul's address redirects ({status}): write https:// in --from, or name the HTTP address of a \
             Consul agent"
            ))
        }
        Error::Refused { status: status @ (401 | 403), text } => MigrateError::failed(format!(
            "Consul refused to list the keys ({status}): {text}; give a token that may read them with \
             --from-token-file FILE"
        )),
        Error::Unavailable { status, text } | Error::UnknownOutcome { status, text } => {
            MigrateError::Unreachable(format!("Consul is unavailable ({status}): {text}; {AGAIN}"))
        }
        Error::Garbled { address, reason } => MigrateError::failed(format!(
            "unexpected reply from {address}: {reason}; name the HTTP address of a Consul agent with --from"
        )),
        other => MigrateError::failed(format!("Consul: {other}")),
    }
}

/// Describes an error of the target. Only a new run finds out which writes of a transaction without
/// an answer were done: none is [`MigrateError::Unreachable`], which a pass repeats.
pub(super) fn of_lockmesh(error: Error) -> MigrateError {
    MigrateError::failed(match error.is_transient() {
        true => format!("Lockmesh: {error}; run the same command again, which continues"),
        false => format!("Lockmesh: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_sorted_without_overlap() {
        let distinct =
            |prefixes: &[&str]| distinct(&prefixes.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(distinct(&["b/", "/a/", "a/x", "a"]), ["a", "b/"]);
        assert_eq!(distinct(&[]), [""]);
        assert_eq!(distinct(&["x", "", "y"]), [""]);
    }
}
