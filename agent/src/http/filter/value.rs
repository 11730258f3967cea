//! The fields of rows, as filters see them: a small set of types, each with its own operators.
//!
//! A row type implements [`Record`] once. The types of its fields are read from a default row, so
//! there is no second table that could disagree.

use std::collections::BTreeMap;

/// A struct with named fields: a row, or a part of one.
pub(in super::super) trait Record {
    /// Returns a field; `None` if there is none with this name.
    fn field(&self, name: &str) -> Option<Value<'_>>;
}

/// The value of a field.
pub(in super::super) enum Value<'a> {
    /// A string.
    Text(&'a str),
    /// An integer.
    Number(i64),
    /// A boolean.
    Bool(bool),
    /// A list of strings.
    Texts(&'a [String]),
    /// A map of strings.
    TextMap(&'a BTreeMap<String, String>),
    /// A struct.
    Record(Box<dyn Record + 'a>),
    /// A list of structs.
    Records(Box<dyn List + 'a>),
    /// A map of structs.
    RecordMap(&'a dyn RecordMap),
}

/// A list or map that may be empty.
pub(in super::super) trait Count {
    /// Returns `true` if there is no element.
    fn has_none(&self) -> bool;
    /// Returns an element with default values, from which its fields' types are read.
    fn sample(&self) -> Box<dyn Record>;
}

/// A list of structs. Selectors go through it: one element that fits is enough.
pub(in super::super) trait List: Count {
    /// Returns `true` if one of the elements fits.
    fn any(&self, fits: &mut dyn FnMut(&dyn Record) -> bool) -> bool;
}

/// A map of structs.
pub(in super::super) trait RecordMap: Count {
    /// Returns the struct with this key.
    fn entry(&self, key: &str) -> Option<&dyn Record>;
}

impl<T: Record> Record for &T {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        (**self).field(name)
    }
}

impl<T: Record + Default + 'static> Count for &[T] {
    fn has_none(&self) -> bool {
        self.is_empty()
    }

    fn sample(&self) -> Box<dyn Record> {
        Box::new(T::default())
    }
}

impl<T: Record + Default + 'static> List for &[T] {
    fn any(&self, fits: &mut dyn FnMut(&dyn Record) -> bool) -> bool {
        self.iter().any(|element| fits(element))
    }
}

impl<T: Record + Default + 'static> Count for BTreeMap<String, T> {
    fn has_none(&self) -> bool {
        self.is_empty()
    }

    fn sample(&self) -> Box<dyn Record> {
        Box::new(T::default())
    }
}

impl<T: Record + Default + 'static> RecordMap for BTreeMap<String, T> {
    fn entry(&self, key: &str) -> Option<&dyn Record> {
        self.get(key).map(|entry| entry as &dyn Record)
    }
}
