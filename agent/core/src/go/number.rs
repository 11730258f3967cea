//! Numbers and booleans in query strings, as Go's `strconv` reads them.

use super::literal::quoted;

/// The reason why a text is not a number, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    /// It contains characters other than decimal digits.
    #[error("strconv.ParseUint: parsing {0:?}: invalid syntax")]
    Syntax(String),
    /// It exceeds 64 bits.
    #[error("strconv.ParseUint: parsing {0:?}: value out of range")]
    Range(String),
    /// It is not a decimal integer.
    #[error("strconv.Atoi: parsing {}: invalid syntax", quoted(.0))]
    AtoiSyntax(String),
    /// It is a decimal integer beyond 64 bits with a sign.
    #[error("strconv.Atoi: parsing {}: value out of range", quoted(.0))]
    AtoiRange(String),
    /// It is not a signed integer.
    #[error("strconv.ParseInt: parsing {}: invalid syntax", quoted(.0))]
    IntSyntax(String),
    /// It exceeds 64 bits with a sign.
    #[error("strconv.ParseInt: parsing {}: value out of range", quoted(.0))]
    IntRange(String),
}

/// Parses decimal digits: no sign, no spaces, at most 64 bits.
///
/// # Errors
/// The text is not such a number; the error uses Go's words.
pub fn parse_u64(text: &str) -> Result<u64, NumberError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(NumberError::Syntax(text.into()));
    }
    text.parse().map_err(|_| NumberError::Range(text.into()))
}

/// Parses an integer: decimal, or with one of Go's prefixes, and with underscores between digits.
///
/// # Errors
/// The text is not such a number; the error uses Go's words.
pub fn parse_i64(text: &str) -> Result<i64, NumberError> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2), ("0", 8)]
        .into_iter()
        .find_map(|(prefix, radix)| Some((lower.strip_prefix(prefix)?, radix)));
    let (digits, radix) = match prefixed {
        // Zero itself.
        Some(("", 8)) if lower == "0" => ("0", 10),
        Some((digits, radix)) => (digits.strip_prefix('_').unwrap_or(digits), radix),
        None => (lower.as_str(), 10),
    };
    let is_group = |group: &str| !group.is_empty() && group.chars().all(|digit| digit.is_digit(radix));
    if !digits.split('_').all(is_group) {
        return Err(NumberError::IntSyntax(text.into()));
    }
    let sign = if is_negative { "-" } else { "" };
    let digits = format!("{sign}{}", digits.replace('_', ""));
    i64::from_str_radix(&digits, radix).map_err(|_| NumberError::IntRange(text.into()))
}

/// Parses a decimal integer, as Go's `Atoi` does.
///
/// # Errors
/// The text is not such a number; the error uses Go's words.
pub fn parse_int(text: &str) -> Result<i64, NumberError> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(NumberError::AtoiSyntax(text.into()));
    }
    text.parse().map_err(|_| NumberError::AtoiRange(text.into()))
}

/// Parses a boolean in any of Go's spellings.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_match_go() {
        for bad in ["", "-1", "+1", "abc", "1.5", " 1", "0x10", "1_000"] {
            let error = parse_u64(bad).unwrap_err().to_string();
            assert_eq!(error, format!("strconv.ParseUint: parsing \"{bad}\": invalid syntax"));
        }
        let error = parse_u64("18446744073709551616").unwrap_err().to_string();
        assert_eq!(error, "strconv.ParseUint: parsing \"18446744073709551616\": value out of range");
    }

    #[test]
    fn parses_u64_max_and_leading_zeros() {
        assert_eq!(parse_u64("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_u64("007"), Ok(7));
    }

    #[test]
    fn integers_have_prefixes_and_underscores() {
        for (text, number) in [
            ("0", 0),
            ("-0", 0),
            ("+80", 80),
            ("-1", -1),
            ("0x50", 80),
            ("0X5_0", 80),
            ("0_120", 80),
            ("0o120", 80),
            ("0b101_0000", 80),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_i64(text), Ok(number), "{text}");
        }
        for bad in ["", "-", "x", "0x", "080", "1__0", "_1", "1_", "0_8", "1.5", "--1", "+-1"] {
            let error = parse_i64(bad).unwrap_err().to_string();
            assert_eq!(error, format!("strconv.ParseInt: parsing \"{bad}\": invalid syntax"));
        }
        assert_eq!(parse_i64("0x8000000000000000"), Err(NumberError::IntRange("0x8000000000000000".into())));
    }

    #[test]
    fn booleans_have_spellings() {
        assert_eq!(parse_bool("True"), Some(true));
        assert_eq!(parse_bool("f"), Some(false));
        assert_eq!(parse_bool("yes"), None);
    }

    proptest! {
        #[test]
        fn every_number_is_read(number: u64) {
            prop_assert_eq!(parse_u64(&number.to_string()), Ok(number));
        }
    }
}
