//! JSON bodies, as Go's decoder reads them: only the first value, names without regard to case,
//! `null` as absent.

use serde_json::{Map, Value};

/// The reason why a body is invalid, in words close to Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// There is no value.
    #[error("EOF")]
    Empty,
    /// The bytes are not JSON.
    #[error("{0}")]
    Syntax(String),
    /// A field that the object does not have.
    #[error("json: unknown field {0:?}")]
    UnknownField(String),
    /// A whole value of another type.
    #[error("json: cannot unmarshal {found} into Go value of type {wanted}")]
    Whole {
        /// The actual kind.
        found: &'static str,
        /// The expected type.
        wanted: &'static str,
    },
    /// A field of another type.
    #[error("json: cannot unmarshal {found} into Go struct field {place} of type {wanted}")]
    Type {
        /// The actual kind.
        found: &'static str,
        /// The path of the field.
        place: String,
        /// The expected type.
        wanted: &'static str,
    },
    /// An invalid value of the right type.
    #[error("{0}")]
    Value(String),
}

/// Reads the first value of a body; the rest is ignored.
///
/// # Errors
/// There is no value, or it is not JSON: the client has to change its request.
pub fn first_value(body: &[u8]) -> Result<Value, JsonError> {
    match serde_json::Deserializer::from_slice(body).into_iter::<Value>().next() {
        None => Err(JsonError::Empty),
        Some(Ok(value)) => Ok(value),
        // Go's words, which clients know, for a truncated body.
        Some(Err(error)) if error.is_eof() => Err(JsonError::Syntax("unexpected EOF".into())),
        Some(Err(error)) => Err(JsonError::Syntax(error.to_string())),
    }
}

/// An object whose fields are read by name.
#[derive(Clone, Copy, Debug)]
pub struct Object<'v> {
    name: &'static str,
    fields: Option<&'v Map<String, Value>>,
}

impl<'v> Object<'v> {
    /// Wraps a value as an object; `null` is the empty one. `name` is its name in errors.
    ///
    /// # Errors
    /// The value is not an object: the client has to change its request.
    pub fn new(name: &'static str, value: &'v Value) -> Result<Self, JsonError> {
        match value {
            Value::Object(fields) => Ok(Self { name, fields: Some(fields) }),
            Value::Null => Ok(Self { name, fields: None }),
            other => Err(JsonError::Whole { found: kind(other), wanted: name }),
        }
    }

    /// Rejects a field that is not in the list.
    ///
    /// # Errors
    /// The first field that is not in the list, as the client wrote it.
    pub fn refuse_unknown(&self, known: &[&str]) -> Result<(), JsonError> {
        self.refuse_unknown_or_said(known, &[])
    }

    /// The same, but fields of the second list are accepted if they say nothing.
    ///
    /// # Errors
    /// The first field that is in neither list, or says something, as the client wrote it.
    pub fn refuse_unknown_or_said(&self, known: &[&str], silent: &[&str]) -> Result<(), JsonError> {
        for name in self.names() {
            let is = |list: &[&str]| list.iter().any(|known| known.eq_ignore_ascii_case(name));
            let is_silent = is(silent) && self.sent(name).is_none_or(says_nothing);
            if !is(known) && !is_silent {
                return Err(JsonError::UnknownField(name.into()));
            }
        }
        Ok(())
    }

    /// Returns the names of the fields, as they were sent.
    pub fn names(&self) -> impl Iterator<Item = &'v str> {
        self.fields.into_iter().flatten().map(|(name, _)| name.as_str())
    }

    /// Returns a field's value: of that exact name, or else of one that differs in case. `null`
    /// counts as absent.
    pub fn value(&self, name: &str) -> Option<&'v Value> {
        self.sent(name).filter(|value| !value.is_null())
    }

    /// Returns a field's value, including `null`.
    pub fn sent(&self, name: &str) -> Option<&'v Value> {
        let fields = self.fields?;
        fields.get(name).or_else(|| {
            fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        })
    }

    /// Returns a string; the default if absent.
    ///
    /// # Errors
    /// The field has another type; the error names it as Go would.
    pub fn string(&self, name: &str) -> Result<&'v str, JsonError> {
        Ok(self.optional_string(name)?.unwrap_or_default())
    }

    /// Returns a string; `None` if absent.
    ///
    /// # Errors
    /// The field has another type; the error names it as Go would.
    pub fn optional_string(&self, name: &str) -> Result<Option<&'v str>, JsonError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(name, value, "string"))
    }

    /// Returns an unsigned 64-bit number; 0 if absent.
    ///
    /// # Errors
    /// The field has another type; the error names it as Go would.
    pub fn u64(&self, name: &str) -> Result<u64, JsonError> {
        let Some(value) = self.value(name) else { return Ok(0) };
        value.as_u64().ok_or_else(|| self.wrong(name, value, "uint64"))
    }

    /// Returns a signed number; 0 if absent.
    ///
    /// # Errors
    /// The field has another type; the error names it as Go would.
    pub fn i64(&self, name: &str) -> Result<i64, JsonError> {
        let Some(value) = self.value(name) else { return Ok(0) };
        value.as_i64().ok_or_else(|| self.wrong(name, value, "int"))
    }

    /// Returns a port; 0 if absent.
    ///
    /// # Errors
    /// The field has another type, or is out of range; the error names it.
    pub fn port(&self, name: &str) -> Result<u16, JsonError> {
        let Some(value) = self.value(name) else { return Ok(0) };
        let number = value.as_u64().ok_or_else(|| self.wrong(name, value, "int"))?;
        u16::try_from(number).map_err(|_| JsonError::Value(format!("{name} must be between 0 and 65535")))
    }

    /// Returns a boolean; false if absent.
    ///
    /// # Errors
    /// The field has another type; the error names it as Go would.
    pub fn bool(&self, name: &str) -> Result<bool, JsonError> {
        let Some(value) = self.value(name) else { return Ok(false) };
        value.as_bool().ok_or_else(|| self.wrong(name, value, "bool"))
    }

    /// Returns a list; empty if absent. `type_name` is its type in errors.
    ///
    /// # Errors
    /// The field has another type; the error names it as Go would.
    pub fn list(&self, name: &str, type_name: &'static str) -> Result<&'v [Value], JsonError> {
        let Some(value) = self.value(name) else { return Ok(&[]) };
        value.as_array().map(Vec::as_slice).ok_or_else(|| self.wrong(name, value, type_name))
    }

    /// Returns a list of strings; empty if absent.
    ///
    /// # Errors
    /// The field has another type; the error names it as Go would.
    pub fn strings(&self, name: &str) -> Result<Vec<&'v str>, JsonError> {
        let elements = self.list(name, "[]string")?.iter();
        elements.map(|value| text(value).ok_or_else(|| self.wrong(name, value, "string"))).collect()
    }

    /// Returns a map of strings; empty if absent.
    ///
    /// # Errors
    /// The field has another type; the error names it as Go would.
    pub fn string_map(&self, name: &str) -> Result<impl Iterator<Item = (String, String)>, JsonError> {
        let object = self.object(name, "map[string]string")?;
        let mut pairs = Vec::new();
        for (key, value) in object.fields.into_iter().flatten() {
            let text = text(value).ok_or_else(|| self.wrong(name, value, "string"))?;
            pairs.push((key.clone(), text.to_owned()));
        }
        Ok(pairs.into_iter())
    }

    /// Returns an object; the empty one if absent.
    ///
    /// # Errors
    /// The field has another type; the error names it as Go would.
    pub fn object(&self, name: &str, type_name: &'static str) -> Result<Object<'v>, JsonError> {
        // Go names the field that is wrong, not the type of its value.
        let value = self.value(name).unwrap_or(&Value::Null);
        Object::new(type_name, value).map_err(|_| self.wrong(name, value, type_name))
    }

    /// Returns the error for a field of the wrong type.
    pub fn wrong(&self, name: &str, value: &Value, wanted: &'static str) -> JsonError {
        JsonError::Type { found: kind(value), place: format!("{}.{name}", self.name), wanted }
    }
}

/// Returns an element of a list or a map of strings; `null` is empty.
fn text(value: &Value) -> Option<&str> {
    if value.is_null() { Some("") } else { value.as_str() }
}

/// Returns `true` if a value is what Go writes for an unset field.
pub fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.values().all(says_nothing),
    }
}

/// Returns Go's name for a value's kind.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn reads_only_first_value() {
        assert_eq!(first_value(b" {\"a\":1}{\"b\":2} trash"), Ok(json!({"a": 1})));
        assert_eq!(first_value(b"{\"a\":1}trash"), Ok(json!({"a": 1})));
        assert_eq!(first_value(b" \n"), Err(JsonError::Empty));
        assert_eq!(first_value(b"{\"a\":"), Err(JsonError::Syntax("unexpected EOF".into())));
        assert!(matches!(first_value(b"nonsense"), Err(JsonError::Syntax(_))));
    }

    #[test]
    fn deep_nesting_rejected() {
        let deep = "[".repeat(100_000);
        assert!(matches!(first_value(deep.as_bytes()), Err(JsonError::Syntax(_))));
    }

    #[test]
    fn field_names_prefer_exact_case() {
        let value = json!({"name": "lower", "Name": "exact", "ttl": "10s", "Node": null});
        let object = Object::new("Session", &value).unwrap();
        assert_eq!(object.string("Name"), Ok("exact"));
        assert_eq!(object.string("TTL"), Ok("10s"));
        assert_eq!(object.optional_string("Node"), Ok(None));
        assert_eq!(object.sent("Node"), Some(&Value::Null));
    }

    #[test]
    fn null_reads_as_zero_value() {
        let value =
            json!({"Name": null, "Flags": null, "Tags": ["a", null], "Meta": {"a": null}, "Checks": null});
        let object = Object::new("Session", &value).unwrap();
        assert_eq!(
            (object.string("Name"), object.u64("Flags"), object.bool("Flags")),
            (Ok(""), Ok(0), Ok(false))
        );
        assert_eq!(object.strings("Tags"), Ok(vec!["a", ""]));
        assert_eq!(object.strings("Checks"), Ok(Vec::new()));
        let meta: Vec<_> = object.string_map("Meta").unwrap().collect();
        assert_eq!(meta, [("a".into(), String::new())]);
    }

    #[test]
    fn wrong_types_are_named() {
        let value = json!({"TTL": 10, "Flags": -1, "Big": 1.5, "Tags": ["a", 1], "Meta": {"a": 1}});
        let object = Object::new("Session", &value).unwrap();
        let error = object.string("TTL").unwrap_err().to_string();
        assert_eq!(error, "json: cannot unmarshal number into Go struct field Session.TTL of type string");
        assert!(object.u64("Flags").is_err());
        assert!(object.u64("Big").is_err());
        assert!(object.strings("Tags").is_err());
        let error = object.strings("TTL").unwrap_err().to_string();
        assert_eq!(error, "json: cannot unmarshal number into Go struct field Session.TTL of type []string");
        let error = Object::new("Session", &json!([])).unwrap_err().to_string();
        assert_eq!(error, "json: cannot unmarshal array into Go value of type Session");
        assert!(object.string_map("Meta").is_err());
        assert!(object.list("Meta", "[]string").is_err());
    }

    #[test]
    fn unknown_fields_are_named() {
        let value = json!({"verb": "set", "Nonsense": 1});
        let object = Object::new("KV", &value).unwrap();
        let error = object.refuse_unknown(&["Verb"]).unwrap_err().to_string();
        assert_eq!(error, "json: unknown field \"Nonsense\"");
    }

    proptest! {
        #[test]
        fn no_body_is_a_panic(body in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = first_value(&body);
        }
    }
}
