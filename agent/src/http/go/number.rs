//! Numbers and booleans in query strings, as Go's `strconv` reads them.

/// The reason why a text is not a number, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    /// It contains characters other than decimal digits.
    #[error("strconv.ParseUint: parsing {0:?}: invalid syntax")]
    Syntax(String),
    /// It exceeds 64 bits.
    #[error("strconv.ParseUint: parsing {0:?}: value out of range")]
    Range(String),
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
    fn refuses_in_the_words_of_go() {
        for bad in ["", "-1", "+1", "abc", "1.5", " 1", "0x10", "1_000"] {
            let error = parse_u64(bad).unwrap_err().to_string();
            assert_eq!(error, format!("strconv.ParseUint: parsing \"{bad}\": invalid syntax"));
        }
        let error = parse_u64("18446744073709551616").unwrap_err().to_string();
        assert_eq!(error, "strconv.ParseUint: parsing \"18446744073709551616\": value out of range");
    }

    #[test]
    fn reads_all_of_64_bits_and_leading_zeros() {
        assert_eq!(parse_u64("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_u64("007"), Ok(7));
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
