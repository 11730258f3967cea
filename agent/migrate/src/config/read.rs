//! The merged files: later files override earlier ones, and lists are appended. Wrong kinds are
//! errors with their lines.

use super::keys::{self, Fields, Kind};
use super::{Finding, Place};
use lockmesh_agent_core::hcl::{Format, Members, Node, Value as Parsed, parse};
use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// The keys whose values are definitions.
const DEFINITIONS: [(&str, bool); 4] =
    [("service", true), ("services", true), ("check", false), ("checks", false)];

/// A value with the place that sets it.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) value: Value,
    pub(super) place: Place,
}

/// All files together.
#[derive(Debug, Default)]
pub(super) struct Merged {
    /// Values by their dotted paths.
    pub(super) leaves: BTreeMap<String, Leaf>,
    pub(super) services: Vec<Leaf>,
    pub(super) checks: Vec<Leaf>,
    /// Keys that Consul does not have.
    pub(super) unknown: Vec<Finding>,
    /// Values of the wrong kind.
    pub(super) errors: Vec<String>,
}

impl Merged {
    /// Adds a file; its errors are kept.
    pub(super) fn add(&mut self, file: &Path, text: &str, format: Format) {
        match parse(text, format) {
            Ok(members) => Reading { merged: self, file }.section(&members, keys::ROOT, ""),
            Err(error) => self.errors.push(format!("{}: {error}", file.display())),
        }
    }
}

struct Reading<'m> {
    merged: &'m mut Merged,
    file: &'m Path,
}

impl Reading<'_> {
    fn place(&self, line: usize) -> Place {
        Place { file: self.file.into(), line }
    }

    fn section(&mut self, members: &Members, fields: Fields, path: &str) {
        for (key, node) in members {
            if node.value == Parsed::Null {
                continue;
            }
            let Some((name, kind)) = self.known(fields, key, path, node.line) else { continue };
            let full = format!("{path}{name}");
            // Only at the top: the checks inside a service belong to it.
            let list = DEFINITIONS.iter().find(|(list, _)| path.is_empty() && *list == name);
            match (list, kind) {
                (Some((_, are_services)), _) => self.definitions(node, kind, &full, *are_services),
                (None, Kind::Section(fields)) => {
                    if let Some(members) = self.only_section(node, &full) {
                        self.section(members, fields, &format!("{full}."));
                    }
                }
                _ => {
                    if let Some(value) = self.value(node, kind, &full) {
                        self.put(full, value, node.line);
                    }
                }
            }
        }
    }

    /// The field of a key; without one, the key is listed.
    fn known(
        &mut self,
        fields: Fields,
        key: &str,
        path: &str,
        line: usize,
    ) -> Option<(&'static str, &'static Kind)> {
        let found = keys::find(fields, key);
        if found.is_none() {
            let key = format!("{path}{key}");
            let advice = format!("`{key}` is not a key of Consul: check its spelling");
            self.merged.unknown.push(Finding { place: self.place(line), key, advice });
        }
        found
    }

    /// Lists and maps of earlier files are extended, other values are overridden.
    fn put(&mut self, path: String, value: Value, line: usize) {
        let place = self.place(line);
        match (self.merged.leaves.get_mut(&path).map(|leaf| &mut leaf.value), value) {
            (Some(Value::Array(known)), Value::Array(mut new)) => known.append(&mut new),
            (Some(Value::Object(known)), Value::Object(new)) => known.extend(new),
            (_, value) => {
                self.merged.leaves.insert(path, Leaf { value, place });
            }
        }
    }

    fn definitions(&mut self, node: &Node, kind: &'static Kind, path: &str, are_services: bool) {
        let (nodes, fields) = match (kind, &node.value) {
            (Kind::Sections(fields), Parsed::List(nodes)) => (nodes.as_slice(), fields),
            (Kind::Section(fields), _) => (std::slice::from_ref(node), fields),
            _ => return self.wrong(node, path, "a list of sections"),
        };
        for node in nodes {
            let Some(members) = self.only_section(node, path) else { continue };
            let value = self.object(members, fields, path);
            let leaf = Leaf { value, place: self.place(node.line) };
            let list = if are_services { &mut self.merged.services } else { &mut self.merged.checks };
            list.push(leaf);
        }
    }

    fn wrong(&mut self, node: &Node, path: &str, wanted: &str) {
        let found = match &node.value {
            Parsed::Null => "empty".into(),
            Parsed::Flag(flag) => format!("`{flag}`"),
            Parsed::Integer(number) => number.to_string(),
            Parsed::Float(number) => number.to_string(),
            Parsed::Text(_) => "text".into(),
            Parsed::List(list) => format!("a list of {}", list.len()),
            Parsed::Section(_) => "a section".into(),
        };
        let place = self.place(node.line);
        self.merged.errors.push(format!("{place}: `{path}` is {found}, but must be {wanted}"));
    }

    /// A section, which may be the only element of a list.
    fn only_section<'n>(&mut self, node: &'n Node, path: &str) -> Option<&'n Members> {
        let section = match &node.value {
            Parsed::Section(members) => Some(members),
            Parsed::List(list) => match list.as_slice() {
                [Node { value: Parsed::Section(members), .. }] => Some(members),
                _ => None,
            },
            _ => None,
        };
        if section.is_none() {
            self.wrong(node, path, "one section");
        }
        section
    }

    fn object(&mut self, members: &Members, fields: Fields, path: &str) -> Value {
        let mut object = Map::new();
        for (key, node) in members.iter().filter(|(_, node)| node.value != Parsed::Null) {
            let inner = format!("{path}.");
            if let Some((name, kind)) = self.known(fields, key, &inner, node.line)
                && let Some(value) = self.value(node, kind, &format!("{inner}{name}"))
            {
                object.insert(name.into(), value);
            }
        }
        Value::Object(object)
    }

    /// The members of a map by their free keys.
    fn map(&mut self, node: &Node, kind: &'static Kind, path: &str) -> Option<Value> {
        let members = self.only_section(node, path)?;
        let entries = members
            .iter()
            .filter_map(|(key, node)| Some((key.clone(), self.value(node, kind, &format!("{path}.{key}"))?)));
        Some(Value::Object(entries.collect()))
    }

    /// Sections by their free keys, without those that are wrong.
    fn sections_by_name(&mut self, node: &Node, fields: Fields, path: &str) -> Option<Value> {
        let members = self.only_section(node, path)?;
        let entries = members.iter().filter_map(|(key, node)| {
            let inner = format!("{path}.{key}");
            let members = self.only_section(node, &inner)?;
            Some((key.clone(), self.object(members, fields, &inner)))
        });
        Some(Value::Object(entries.collect()))
    }

    /// A value of its kind; otherwise the error is kept.
    fn value(&mut self, node: &Node, kind: &'static Kind, path: &str) -> Option<Value> {
        let wanted = match (kind, &node.value) {
            (Kind::Any, _)
            | (Kind::Text, Parsed::Text(_))
            | (Kind::Flag, Parsed::Flag(_))
            | (Kind::Integer, Parsed::Integer(_))
            | (Kind::Number, Parsed::Integer(_) | Parsed::Float(_)) => return Some(plain(node)),
            // JSON may write 80 as `80.0`; up to this limit, a float is exact.
            (Kind::Integer, Parsed::Float(number)) if number.fract() == 0.0 && number.abs() < 1e15 => {
                return Some(Value::from(*number as i64));
            }
            (Kind::Texts, Parsed::List(list)) => {
                let texts = list.iter().map(|node| self.value(node, &Kind::Text, path));
                return texts.collect::<Option<Vec<_>>>().map(Value::Array);
            }
            (Kind::TextMap, _) => return self.map(node, &Kind::Text, path),
            (Kind::TextsMap, _) => return self.map(node, &Kind::Texts, path),
            (Kind::Section(fields), _) => {
                let members = self.only_section(node, path)?;
                return Some(self.object(members, fields, path));
            }
            (Kind::Sections(fields), Parsed::List(list)) => {
                let sections = list.iter().map(|node| {
                    let members = self.only_section(node, path)?;
                    Some(self.object(members, fields, path))
                });
                return sections.collect::<Option<Vec<_>>>().map(Value::Array);
            }
            (Kind::SectionsByName(fields), _) => return self.sections_by_name(node, fields, path),
            (Kind::Text, _) => "text in quotes",
            (Kind::Flag, _) => "`true` or `false`",
            (Kind::Integer, _) => "a whole number",
            (Kind::Number, _) => "a number",
            (Kind::Texts, _) => "a list of texts",
            (Kind::Sections(_), _) => "a list of sections",
        };
        self.wrong(node, path, wanted);
        None
    }
}

/// A value as it is, without empty members, which TOML does not have. A section that is the only
/// one in its list is meant literally, as in Consul.
fn plain(node: &Node) -> Value {
    match &node.value {
        Parsed::Null => Value::Null,
        Parsed::Flag(flag) => (*flag).into(),
        Parsed::Integer(number) => (*number).into(),
        Parsed::Float(number) => Number::from_f64(*number).map_or(Value::Null, Value::Number),
        Parsed::Text(text) => text.as_str().into(),
        Parsed::List(list) => match list.as_slice() {
            [only @ Node { value: Parsed::Section(_), .. }] => plain(only),
            list => list.iter().filter(|node| node.value != Parsed::Null).map(plain).collect(),
        },
        Parsed::Section(members) => {
            let members = members.iter().filter(|(_, node)| node.value != Parsed::Null);
            Value::Object(members.map(|(key, node)| (key.clone(), plain(node))).collect())
        }
    }
}
