//! Durations in Consul's notation: `15s`, `1m30s`, `250ms`, `1.5h`.
//!
//! A bare number is an error, because its unit is ambiguous; only `0` needs no unit.

use std::time::Duration;

const UNITS: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    // The micro sign, then the Greek letter: Go accepts both.
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// The reason why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the duration {text:?} {why}: write something like 15s, 250ms or 1m30s")]
pub(crate) struct DurationError {
    text: String,
    why: &'static str,
}

/// Parses a duration such as `15s` or `1m30s`; never negative.
///
/// # Errors
/// Describes the invalid part of the text.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let wrong = |why| DurationError { text: text.into(), why };
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(wrong("is empty"));
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let seconds = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, seconds)| seconds);
        let number: f64 = number.parse().map_err(|_| wrong("has no number where one is needed"))?;
        let seconds = seconds.ok_or_else(|| wrong("has a number without a unit (ns, us, ms, s, m, h)"))?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong("is out of range"))?;
        total = total.checked_add(part).ok_or_else(|| wrong("is out of range"))?;
        rest = tail;
    }
    Ok(total)
}

/// Formats a duration so that an agent parses exactly the same value.
pub(crate) fn format_duration(duration: Duration) -> String {
    match duration.subsec_nanos() {
        0 => format!("{}s", duration.as_secs()),
        nanos if nanos % 1_000_000 == 0 => format!("{}ms", duration.as_millis()),
        nanos if nanos % 1_000 == 0 => format!("{}us", duration.as_micros()),
        _ => format!("{}ns", duration.as_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_users_write() {
        for (text, millis) in
            [("15s", 15_000), ("1m30s", 90_000), ("250ms", 250), ("1.5h", 5_400_000), ("0", 0), (".5s", 500)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "15", "s", "-1s", "1x", "1s2", "1..2s", "99999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn format_parse_round_trip() {
        for nanos in [0, 1, 1_500, 15_000_000, 90_000_000_000, 1_000_000_001] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}
