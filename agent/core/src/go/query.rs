//! Query strings, as Go's `net/url` reads and writes them.
//!
//! A flag is a parameter that is present, with any value; a value is the first one of its name.

use std::borrow::Cow;

/// The maximum number of characters of a query string that an error repeats.
const MAX_SHOWN: usize = 64;

/// The query string cannot be decoded; each variant has the beginning of the parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// A `%` without two hexadecimal digits.
    #[error("Invalid query string: {0:?} has an invalid URL escape; write a percent sign as %25")]
    Escape(String),
    /// A bare `;`.
    #[error("Invalid query string: {0:?} has a semicolon; write it as %3B, and separate parameters with &")]
    Semicolon(String),
    /// Bytes that are not UTF-8.
    #[error("Invalid query string: {0:?} is not UTF-8; encode text as UTF-8 before escaping it")]
    NotUtf8(String),
}

/// The parameters of a request, in the order in which they were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// Parses a query string, without its `?`.
///
/// # Errors
/// The whole query string is rejected: using a part of it could change its meaning.
pub fn parse(raw: &str) -> Result<Params<'_>, QueryError> {
    let mut pairs = Vec::new();
    for piece in raw.split('&').filter(|piece| !piece.is_empty()) {
        // It once separated parameters: two parsers could read different things.
        if piece.contains(';') {
            return Err(QueryError::Semicolon(beginning(piece)));
        }
        let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
        pairs.push((decode(name)?, decode(value)?));
    }
    Ok(Params { pairs })
}

impl Params<'_> {
    /// Returns `true` if the parameter was sent, with or without a value.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Returns the first value of a parameter; empty if it was sent without one.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// Returns the first value of a parameter, unless that is empty.
    pub fn non_empty(&self, name: &str) -> Option<&str> {
        self.value(name).filter(|value| !value.is_empty())
    }

    /// Returns every value of a parameter.
    pub fn all<'s>(&'s self, name: &str) -> impl Iterator<Item = &'s str> {
        self.pairs.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_ref())
    }

    /// Encodes the parameters, sorted by name.
    pub fn encode(&self) -> String {
        let mut sorted: Vec<_> = self.pairs.iter().collect();
        // A stable sort: values of one name keep their order.
        sorted.sort_by(|left, right| left.0.cmp(&right.0));
        let pieces: Vec<_> =
            sorted.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
        pieces.join("&")
    }
}

fn decode(text: &str) -> Result<Cow<'_, str>, QueryError> {
    if !text.bytes().any(|byte| byte == b'%' || byte == b'+') {
        return Ok(Cow::Borrowed(text));
    }
    let spaced = text.replace('+', " ");
    let bytes = super::path::percent_decode(&spaced).ok_or_else(|| QueryError::Escape(beginning(text)))?;
    let decoded = String::from_utf8(bytes.into_owned()).map(Cow::Owned);
    decoded.map_err(|_| QueryError::NotUtf8(beginning(text)))
}

fn beginning(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(char::from(byte));
            }
            b' ' => escaped.push('+'),
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn flag_present_regardless_of_value() {
        let params = parse("recurse=false&raw&stale=").unwrap();
        assert!(params.has("recurse") && params.has("raw") && params.has("stale"));
        assert!(!params.has("keys"));
        assert_eq!(params.non_empty("stale"), None);
    }

    #[test]
    fn the_first_value_counts() {
        let params = parse("a=1&a=2&&b=x%20y+z&c=a=b").unwrap();
        assert_eq!(params.value("a"), Some("1"));
        assert_eq!(params.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(params.value("b"), Some("x y z"));
        assert_eq!(params.value("c"), Some("a=b"));
    }

    #[test]
    fn undecodable_input_rejected() {
        let escape = |shown: &str| Err(QueryError::Escape(shown.into()));
        assert_eq!(parse("b=1&a=%zz"), escape("%zz"));
        assert_eq!(parse("a=%"), escape("%"));
        assert_eq!(parse("%2=a"), escape("%2"));
        assert_eq!(parse("a;b"), Err(QueryError::Semicolon("a;b".into())));
        assert_eq!(parse("a=%ff"), Err(QueryError::NotUtf8("%ff".into())));
        let long = format!("a=%{}", "é".repeat(10_000));
        assert!(parse(&long).is_err_and(|error| error.to_string().len() < 300));
    }

    #[test]
    fn encoding_sorts_names_and_escapes() {
        let params = parse("cas=1&acquire=a%2Fb+c&%C3%A9=~").unwrap();
        assert_eq!(params.encode(), "acquire=a%2Fb+c&cas=1&%C3%A9=~");
    }

    proptest! {
        #[test]
        fn encode_parse_round_trip(pairs in prop::collection::vec(("[a-c]{1,2}", ".{0,8}"), 0..5)) {
            let text: Vec<_> = pairs.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
            let text = text.join("&");
            let params = parse(&text).unwrap();
            for (name, value) in &pairs {
                prop_assert!(params.all(name).any(|read| read == value));
            }
            let encoded = params.encode();
            let again = parse(&encoded).unwrap().encode();
            prop_assert_eq!(again, encoded);
        }

        #[test]
        fn no_text_is_a_panic(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
