//! Durations in the notation of users and HTTP clients: `10s`, `1m30s`, `0.5h`, `250ms`.
//!
//! The grammar and the error texts are those of Go's `time` package, because Consul's clients send
//! and match them. [`text`] is the equivalent for files: an unsigned duration for `#[serde(with)]`.

use std::time::Duration;

/// The reason why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It violates the grammar, or does not fit into 64 bits of nanoseconds.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// A number other than a bare `0` has no unit.
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// The unit is not one of `ns us µs ms s m h`.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// The text in place of the unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    // The micro sign, then the Greek letter: Go accepts both.
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a signed duration in nanoseconds.
///
/// # Errors
/// The text is not a duration, or does not fit into 64 bits. The error quotes the text like Go.
pub fn parse_nanos(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.into());
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    // Go requires no unit for zero alone.
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (nanos, after) = leading_part(text, rest)?;
        // Go accepts the lowest negative number, which has no positive counterpart.
        total = total.checked_add(nanos).filter(|total| *total <= 1 << 63).ok_or_else(invalid)?;
        rest = after;
    }
    match (negative, i64::try_from(total)) {
        (true, _) => Ok(0i64.wrapping_sub_unsigned(total)),
        (false, Ok(nanos)) => Ok(nanos),
        (false, Err(_)) => Err(invalid()),
    }
}

/// Parses a duration that must not be negative.
///
/// # Errors
/// As [`parse_nanos`]; a negative duration is also [`DurationError::Invalid`].
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let nanos = parse_nanos(text)?;
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| DurationError::Invalid(text.into()))
}

/// Formats a duration like Go: `10s`, `1m30s`, `1.5ms`, `0s`.
pub fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    match nanos {
        0 => return "0s".into(),
        1..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => return format!("{}µs", fraction(nanos, 3)),
        1_000_000..1_000_000_000 => return format!("{}ms", fraction(nanos, 6)),
        _ => {}
    }
    let (minutes, seconds) = (nanos / 60_000_000_000, fraction(nanos % 60_000_000_000, 9));
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Parses one number with its unit; returns its nanoseconds and the rest of the text.
fn leading_part<'a>(text: &str, rest: &'a str) -> Result<(u64, &'a str), DurationError> {
    let invalid = || DurationError::Invalid(text.into());
    let (whole, after_whole) = digits(rest);
    let (decimals, after_number) = match after_whole.strip_prefix('.') {
        Some(after) => digits(after),
        None => ("", after_whole),
    };
    if whole.is_empty() && decimals.is_empty() {
        return Err(invalid());
    }
    let unit_end = after_number.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after_number.len());
    let (unit, after) = after_number.split_at(unit_end);
    if unit.is_empty() {
        return Err(DurationError::MissingUnit(text.into()));
    }
    let (_, scale) = UNITS
        .into_iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| DurationError::UnknownUnit { unit: unit.into(), text: text.into() })?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
    let nanos = whole.checked_mul(scale).ok_or_else(invalid)?;
    Ok((nanos.checked_add(fraction_of(decimals, scale)).ok_or_else(invalid)?, after))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Returns `0.decimals × scale`, rounded down. Digits worth less than a nanosecond of an hour are
/// ignored.
fn fraction_of(decimals: &str, scale: u64) -> u64 {
    let kept = &decimals[..decimals.len().min(18)];
    let value = kept.parse::<u128>().unwrap_or(0);
    let nanos = value * u128::from(scale) / 10u128.pow(kept.len() as u32);
    u64::try_from(nanos).unwrap_or(scale)
}

/// Returns `value / 10^places` as a decimal without trailing zeros.
fn fraction(value: u128, places: u32) -> String {
    let divisor = 10u128.pow(places);
    let decimals = format!("{:0width$}", value % divisor, width = places as usize);
    match decimals.trim_end_matches('0') {
        "" => (value / divisor).to_string(),
        decimals => format!("{}.{decimals}", value / divisor),
    }
}

/// A [`Duration`] in a file: `#[serde(with = "lockmesh_protocol::duration::text")]`.
pub mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::time::Duration;

    /// Serializes as `10s`.
    ///
    /// # Errors
    /// Only the serializer's own: every duration can be serialized.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::format(*duration))
    }

    /// Deserializes `10s`.
    ///
    /// # Errors
    /// The value is not a text, or not a duration that [`parse`](super::parse) accepts; the error
    /// quotes it.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse(&text)
            .map_err(|_| D::Error::custom(format!("{text:?} is not a duration such as \"10s\" or \"1m30s\"")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        parse_nanos(text).unwrap_err().to_string()
    }

    #[test]
    fn parses_go_durations() {
        let known = [
            ("0", 0),
            ("-0", 0),
            ("15.0s", 15_000_000_000),
            ("0.001s", 1_000_000),
            ("9.999s", 9_999_000_000),
            ("1h2m3.5s", 3_723_500_000_000),
            ("-1.5h", -5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("15000ms", 15_000_000_000),
            ("3µs", 3_000),
            ("3μs", 3_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("0.33333333333333333333h", 1_199_999_999_999),
        ];
        for (text, nanos) in known {
            assert_eq!(parse_nanos(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn errors_match_go_messages() {
        assert_eq!(complaint("15"), "time: missing unit in duration \"15\"");
        assert_eq!(complaint("abc"), "time: invalid duration \"abc\"");
        assert_eq!(complaint("1x"), "time: unknown unit \"x\" in duration \"1x\"");
        for text in
            ["", "-", ".s", "+.s", "9223372036854775808ns", "99999999999999999999s", "3000000h", "1s-1s"]
        {
            let expected = match text {
                "1s-1s" => "time: unknown unit \"s-\" in duration \"1s-1s\"".to_string(),
                _ => format!("time: invalid duration {text:?}"),
            };
            assert_eq!(complaint(text), expected);
        }
        assert!(parse("-1s").is_err(), "a length of time is not negative");
    }

    #[test]
    fn formatted_durations_parse_back() {
        let known = [
            (0, "0s"),
            (7, "7ns"),
            (1_500, "1.5µs"),
            (250_000_000, "250ms"),
            (10_000_000_000, "10s"),
            (90_000_000_000, "1m30s"),
            (900_000_000_000, "15m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (5_400_500_000_000, "1h30m0.5s"),
        ];
        for (nanos, text) in known {
            assert_eq!(format(Duration::from_nanos(nanos)), text);
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)));
        }
    }
}
