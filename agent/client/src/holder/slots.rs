//! Semaphore slots: the list of a semaphore's holders in the format of Consul's clients:
//! `{"Limit":N,"Holders":{"<session>":true}}`.
//!
//! Pure. A list that names a dead holder is valid: the next client that changes it prunes it.

use crate::entry::Entry;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The holders of a semaphore's slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Slots {
    #[serde(deserialize_with = "crate::shape::null_as_default")]
    limit: usize,
    #[serde(default, deserialize_with = "crate::shape::null_as_default")]
    holders: BTreeMap<String, bool>,
    /// The modify index of the entry that it was read from; 0 if there was none.
    #[serde(skip)]
    pub(crate) modify_index: u64,
}

/// The value of a key is no such list.
#[derive(Debug, thiserror::Error)]
#[error("is not the list of a semaphore's holders ({0})")]
pub(crate) struct NotSlots(#[from] serde_json::Error);

impl Slots {
    /// Creates a list with all slots free.
    pub(crate) fn empty(limit: usize) -> Self {
        Self { limit, holders: BTreeMap::new(), modify_index: 0 }
    }

    /// Parses the value of a semaphore's key `PREFIX/.lock` as Go's clients do: names in any letter
    /// case, `null` as empty.
    ///
    /// # Errors
    /// The value is not such a list.
    pub fn from_json(value: &[u8]) -> Result<Self, serde_json::Error> {
        let fields: BTreeMap<String, Value> = serde_json::from_slice(value)?;
        let spelled = |name: String| match name.to_ascii_lowercase().as_str() {
            "limit" => "Limit".into(),
            "holders" => "Holders".into(),
            _ => name,
        };
        let fields = fields.into_iter().map(|(name, value)| (spelled(name), value));
        serde_json::from_value(Value::Object(fields.collect()))
    }

    /// Returns the number of slots.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns `true` if this session has a slot.
    pub fn holds(&self, session: &str) -> bool {
        self.holders.contains_key(session)
    }

    /// Parses the list; an empty one has `limit` slots.
    pub(crate) fn parse(entry: &Entry, limit: usize) -> Result<Self, NotSlots> {
        if entry.value.is_empty() {
            return Ok(Self { modify_index: entry.modify_index, ..Self::empty(limit) });
        }
        Ok(Self { modify_index: entry.modify_index, ..Self::from_json(&entry.value)? })
    }

    /// Removes all holders whose session holds none of these contender entries.
    pub(crate) fn prune(&mut self, entries: &[Entry]) {
        let alive = |id: &String| entries.iter().any(|entry| entry.session.as_ref() == Some(id));
        self.holders.retain(|id, _| alive(id));
    }

    /// Returns the same version of the list, without holders, and with this number of slots.
    pub(crate) fn resized(&self, limit: usize) -> Self {
        Self { modify_index: self.modify_index, ..Self::empty(limit) }
    }

    pub(crate) fn taken(&self) -> usize {
        self.holders.len()
    }

    /// Takes a slot; returns `false` if all are taken.
    pub(crate) fn enter(&mut self, session: &str) -> bool {
        let free = self.holders.len() < self.limit;
        if free {
            self.holders.insert(session.to_owned(), true);
        }
        free
    }

    /// Frees a slot; returns `false` if the session has none.
    pub(crate) fn leave(&mut self, session: &str) -> bool {
        self.holders.remove(session).is_some()
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers, strings and flags always have a JSON form")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Entry {
        Entry { value: text.to_owned().into(), modify_index: 7, ..Entry::default() }
    }

    fn contender(session: &str) -> Entry {
        Entry { session: Some(session.into()), ..Entry::default() }
    }

    #[test]
    fn reads_and_writes_consuls_list() {
        let text = r#"{"Limit":2,"Holders":{"a":true,"b":true}}"#;
        let slots = Slots::parse(&list(text), 2).expect("a list");
        assert_eq!((slots.taken(), slots.modify_index), (2, 7));
        assert_eq!(slots.to_json(), text.as_bytes());
        assert_eq!(Slots::parse(&list(r#"{"Limit":2,"Holders":null}"#), 2).expect("a list").taken(), 0);
        let lower = Slots::parse(&list(r#"{"limit":2,"HOLDERS":{"a":true},"More":1}"#), 2).expect("a list");
        assert_eq!((lower.limit(), lower.holds("a")), (2, true));
        assert_eq!(Slots::parse(&list(""), 2).expect("an empty value is an empty list").modify_index, 7);
    }

    #[test]
    fn other_contents_are_refused() {
        for other in ["hello", "{}", "[]", r#"{"Limit":"2"}"#, r#"{"Limit":2,"Holders":["a"]}"#] {
            assert!(Slots::parse(&list(other), 2).is_err(), "{other}");
        }
    }

    #[test]
    fn the_dead_make_room() {
        let mut slots =
            Slots::parse(&list(r#"{"Limit":2,"Holders":{"a":true,"b":true}}"#), 2).expect("a list");
        assert!(!slots.enter("c"));
        slots.prune(&[contender("b"), contender("c")]);
        assert!(slots.enter("c") && slots.holds("b") && slots.holds("c") && !slots.holds("a"));
        assert!(slots.leave("b") && !slots.leave("b"));
    }
}
