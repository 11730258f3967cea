//! `lockmesh kv import`: keys and values from JSON.
//!
//! The whole input is validated before the first write. Then the keys are written in transactions,
//! so that a failure leaves whole parts. A value that fits into no transaction is written alone.

use super::super::error::CliError;
use super::super::output::print_line;
use super::value;
use lockmesh_agent::go::json::{JsonError, Object, kind};
use lockmesh_client::shape::blob::{Base64Error, decode_base64};
use lockmesh_client::{Client, Error, Outcome, Read, Txn};
use lockmesh_migrate::limits::{KeyError, Limits, check_key, joined, size_of};
use serde_json::Value;
use std::ops::Range;

/// Write keys and values from JSON
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Output of `kv export`, or entries of the agent's API: @FILE, - for stdin, or the JSON itself
    #[arg(value_name = "DATA")]
    data: Option<String>,
    /// Path to put the keys under: `copy` makes `copy/app/limit` of `app/limit`
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
}

/// A key to write.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    key: String,
    value: Vec<u8>,
    flags: u64,
}

pub(super) async fn run(args: Args, client: &Client) -> Result<(), CliError> {
    let said = |text: &str| CliError::in_consuls_words(text);
    let data = args.data.ok_or_else(|| said("Error! Missing DATA argument"))?;
    if data.is_empty() {
        return Err(said("Error! Empty DATA argument"));
    }
    let data = value::bytes_of(&data, &mut std::io::stdin().lock())?;
    let records = parse(&data, &args.prefix)?;
    let limits = Limits::of(client).await?;
    check_sizes(&records, limits)?;
    write_all(client, &records, limits).await
}

/// Parses the whole input and checks every key.
fn parse(data: &[u8], prefix: &str) -> Result<Vec<Record>, CliError> {
    let wrong = |error: String| CliError::in_consuls_words(format!("Cannot unmarshal data: {error}"));
    let input: Value = serde_json::from_slice(data).map_err(|error| wrong(error.to_string()))?;
    let elements = match &input {
        Value::Array(elements) => elements.as_slice(),
        Value::Null => &[],
        other => {
            let error = JsonError::Whole { found: kind(other), wanted: "list of entries" };
            return Err(wrong(error.to_string()));
        }
    };
    let numbered = elements.iter().enumerate();
    let records = numbered.map(|(number, element)| {
        record(element, prefix).map_err(|error| wrong(format!("entry {}: {error}", number + 1)))
    });
    records.collect()
}

/// The reason why an entry is rejected.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    #[error(transparent)]
    NoEntry(#[from] JsonError),
    #[error("it has no key")]
    NoKey,
    #[error("{error} (key {key:?})")]
    Field { error: JsonError, key: String },
    #[error("{error} (key {key:?})")]
    Value { error: Base64Error, key: String },
    #[error("the key {key:?} {defect}")]
    Key { key: String, defect: KeyError },
}

/// Reads an entry of an export or of the API, whose fields have the same names in another letter
/// case. Other fields are ignored: indexes and sessions belong to their cluster.
fn record(element: &Value, prefix: &str) -> Result<Record, EntryError> {
    let object = Object::new("Entry", element)?;
    let key = object.string("Key")?;
    if key.is_empty() {
        return Err(EntryError::NoKey);
    }
    let field = |error| EntryError::Field { error, key: key.into() };
    let value = object.string("Value").map_err(field)?;
    let value = decode_base64(value.trim_ascii())
        .map_err(|error| EntryError::Value { error, key: key.into() })?
        .to_vec();
    let flags = object.u64("Flags").map_err(field)?;
    let joined = joined(prefix, key);
    match check_key(&joined) {
        Ok(()) => Ok(Record { key: joined, value, flags }),
        Err(defect) => Err(EntryError::Key { key: joined, defect }),
    }
}

fn check_sizes(records: &[Record], limits: Limits) -> Result<(), CliError> {
    let Some(long) = records.iter().find(|record| record.value.len() > limits.value) else { return Ok(()) };
    Err(CliError::in_consuls_words(format!(
        "Error! The value of {:?} has {} bytes, but the agent accepts at most {}: shorten it, or raise \
         `http.max_value_bytes` in the agent's configuration. Nothing was written",
        long.key,
        long.value.len(),
        limits.value,
    )))
}

/// Splits the records into transactions. A part of one record may exceed the limit of bytes: it is
/// written without a transaction.
fn parts(records: &[Record], limits: Limits) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (number, record) in records.iter().enumerate() {
        let size = size_of(&record.key, &record.value);
        match parts.last_mut() {
            Some(part) if part.len() < limits.operations && bytes + size <= limits.body => {
                part.end = number + 1;
                bytes += size;
            }
            _ => {
                parts.push(number..number + 1);
                bytes = size;
            }
        }
    }
    parts
}

async fn write_all(client: &Client, records: &[Record], limits: Limits) -> Result<(), CliError> {
    let mut printed = Ok(());
    for part in parts(records, limits) {
        let (written, count) = (part.start, part.len());
        write(client, &records[part.clone()], limits)
            .await
            .map_err(|failure| CliError::in_consuls_words(failure.in_words(written, count, records.len())))?;
        for record in &records[part] {
            // The import continues without a reader of its output: half of it would be worse.
            printed = printed.and_then(|()| print_line(&format!("Imported: {}", record.key)));
        }
    }
    printed
}

async fn write(client: &Client, records: &[Record], limits: Limits) -> Result<(), Failure> {
    if let [record] = records
        && size_of(&record.key, &record.value) > limits.body
    {
        client.kv().put(&record.key, record.value.clone(), record.flags).await?;
        return Ok(());
    }
    let set = |txn: Txn, record: &Record| txn.set(&record.key, record.value.clone(), record.flags);
    match client.txn(&records.iter().fold(Txn::new(), set), &Read::default()).await? {
        Outcome::Done(_) => Ok(()),
        Outcome::RolledBack(errors) => {
            let why = errors.into_iter().next().map(|error| error.what).unwrap_or_default();
            Err(Failure { why, may_be_written: false })
        }
    }
}

/// The failure of one part.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    why: String,
    may_be_written: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { why: error.to_string(), may_be_written: !error.certainly_not_done() }
    }
}

impl Failure {
    /// Describes the failure of the `count` keys after the first `written` ones.
    fn in_words(&self, written: usize, count: usize, total: usize) -> String {
        let doubtful = match self.may_be_written {
            true => format!(", and the next {count} may have been written"),
            false => String::new(),
        };
        format!(
            "Error! {}. {written} of {total} keys were written{doubtful}. Run the import again, which writes all keys",
            self.why.trim_end(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_migrate::limits::{MAX_BODY, MAX_KEY};

    fn parsed(text: &str, prefix: &str) -> Result<Vec<Record>, String> {
        parse(text.as_bytes(), prefix).map_err(|error| error.to_string())
    }

    fn record(key: &str, length: usize) -> Record {
        Record { key: key.into(), value: vec![b'x'; length], flags: 0 }
    }

    #[test]
    fn names_case_insensitive_null_value_empty() {
        let hi = |key: &str| Record { key: key.into(), value: b"hi".to_vec(), flags: 7 };
        for text in [
            r#"[{"key": "a/b", "flags": 7, "value": "aGk="}]"#,
            r#"[{"key": "a/b", "flags": 7, "value": "aGk=\n", "namespace": "default"}]"#,
            r#"[{"LockIndex": 1, "Key": "a/b", "Flags": 7, "Value": "aGk=", "Session": "s", "ModifyIndex": 9}]"#,
            r#"[{"KEY": "a/b", "FLAGS": 7, "VALUE": "aGk="}]"#,
        ] {
            assert_eq!(parsed(text, ""), Ok(vec![hi("a/b")]), "{text}");
        }
        let empty = Record { key: "k".into(), value: Vec::new(), flags: 0 };
        for text in [r#"[{"Key": "k", "Value": null, "Flags": null}]"#, r#"[{"key": "k"}]"#] {
            assert_eq!(parsed(text, ""), Ok(vec![empty.clone()]), "{text}");
        }
        let largest = format!(r#"[{{"key": "k", "flags": {}}}]"#, u64::MAX);
        assert_eq!(parsed(&largest, "").expect("it is good")[0].flags, u64::MAX);
        assert_eq!(parsed("null", ""), Ok(Vec::new()), "as Go writes an empty list");
    }

    #[test]
    fn prefix_joined_as_path() {
        for (prefix, key, expected) in [
            ("", "app/limit", "app/limit"),
            ("copy", "app/limit", "copy/app/limit"),
            ("copy/", "app/limit", "copy/app/limit"),
            ("/copy/of/", "app/", "copy/of/app/"),
            ("copy", "/app", "copy/app"),
            ("/", "app", "app"),
        ] {
            let text = format!(r#"[{{"key": "{key}"}}]"#);
            assert_eq!(parsed(&text, prefix).expect("it is good")[0].key, expected, "{prefix} {key}");
        }
    }

    #[test]
    fn one_invalid_entry_rejects_input() {
        let complaint = |entry: &str| {
            let text = format!(r#"[{{"key": "good"}}, {entry}]"#);
            let error = parsed(&text, "").expect_err("it is wrong");
            error.strip_prefix("Cannot unmarshal data: entry 2: ").expect("it is named").to_owned()
        };
        for (entry, expected) in [
            ("{}", "it has no key"),
            (r#"{"key": ""}"#, "it has no key"),
            ("null", "it has no key"),
            ("7", "json: cannot unmarshal number into Go value of type Entry"),
            (r#"{"key": 7}"#, "json: cannot unmarshal number into Go struct field Entry.Key of type string"),
            (r#"{"key": "k", "value": "!"}"#, "illegal base64 data at input byte 0 (key \"k\")"),
            (r#"{"key": "a\nb"}"#, "the key \"a\\nb\" has the character U+000A, which cannot be printed"),
            (r#"{"key": "/a"}"#, "the key \"/a\" begins with a slash"),
            (r#"{"key": "a//b"}"#, "the key \"a//b\" begins with a slash, or has an empty part"),
            (r#"{"key": "a/../b"}"#, "the key \"a/../b\" begins with a slash"),
        ] {
            let text = complaint(entry);
            assert!(text.starts_with(expected), "{entry}: {text}");
        }
        assert!(complaint(r#"{"key": "k", "flags": -1}"#).contains("Entry.Flags of type uint64 (key \"k\")"));
        let long = complaint(&format!(r#"{{"key": "{}"}}"#, "k".repeat(MAX_KEY + 1)));
        assert!(long.ends_with("is longer than 32768 bytes; use a shorter name"));
        for text in ["x", "", "[] trash", "[{\"key\": \"k\"}", "{}", "7"] {
            let error = parsed(text, "").expect_err("it is wrong");
            assert!(error.starts_with("Cannot unmarshal data: "), "{text}: {error}");
        }
    }

    #[test]
    fn oversized_value_rejected_before_writing() {
        let limits = Limits::default();
        let edge = [record("a", 1), record("b", limits.value)];
        check_sizes(&edge, limits).expect("the limit itself is accepted");
        let error = check_sizes(&[record("a", 1), record("b", limits.value + 1)], limits);
        let error = error.expect_err("one byte more").to_string();
        assert!(error.contains("value of \"b\" has 524289 bytes") && error.ends_with("Nothing was written"));
    }

    #[test]
    fn parts_stay_below_both_limits() {
        let limits = Limits::default();
        let small: Vec<_> = (0..150).map(|number| record(&format!("k{number}"), 1)).collect();
        assert_eq!(parts(&small, limits), [0..64, 64..128, 128..150]);
        let few = Limits { operations: 1, ..limits };
        assert_eq!(parts(&small[..3], few), [0..1, 1..2, 2..3]);
        assert_eq!(parts(&[], limits), Vec::<Range<usize>>::new());
        // Two of 90 KiB fit, in base64; a third does not; the largest value stands alone.
        let sizes = [90 << 10, 90 << 10, 90 << 10, 512 << 10, 1];
        let mixed: Vec<_> = sizes.map(|size| record("k", size)).into();
        assert_eq!(parts(&mixed, limits), [0..2, 2..3, 3..4, 4..5]);
        for part in parts(&mixed, limits).into_iter().filter(|part| part.len() > 1) {
            let set = |txn: Txn, record: &Record| txn.set(&record.key, record.value.clone(), u64::MAX);
            let txn = mixed[part].iter().fold(Txn::new(), set);
            assert!(txn.to_json().expect("it is encodable").len() <= MAX_BODY);
        }
    }

    #[test]
    fn failure_reports_written_key_count() {
        let failure = |may_be_written| Failure { why: "no reply\n".into(), may_be_written };
        assert_eq!(
            failure(false).in_words(64, 64, 150),
            "Error! no reply. 64 of 150 keys were written. Run the import again, which writes all keys"
        );
        assert!(
            failure(true)
                .in_words(0, 5, 5)
                .contains("0 of 5 keys were written, and the next 5 may have been written. Run")
        );
    }
}
