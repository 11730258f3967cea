//! Go's notation for durations: a sign, then one or more decimal numbers each with a unit, such as `1h15m30.5s`.
//!
//! Nanoseconds in an `i64`, as in Go. A bare number is refused, except `0`.

use std::time::Duration;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// The magnitude of the most negative duration; one more than the greatest positive one.
const LIMIT: u64 = 1 << 63;

/// Why a text is no duration, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It is not of the form, or too long for 64 bits of nanoseconds.
    #[error("time: invalid duration {}", quote(.0))]
    Invalid(String),
    /// A number has no unit.
    #[error("time: missing unit in duration {}", quote(.0))]
    MissingUnit(String),
    /// A number has a unit that no one knows.
    #[error("time: unknown unit {} in duration {}", quote(.unit), quote(.text))]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

/// Reads a duration as nanoseconds.
pub fn parse(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.into());
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0_u64;
    while !rest.is_empty() {
        let (part, after) = parse_part(text, rest)?;
        total = total.checked_add(part).filter(|total| *total <= LIMIT).ok_or_else(invalid)?;
        rest = after;
    }
    match (negative, total) {
        (true, LIMIT) => Ok(i64::MIN),
        (false, LIMIT) => Err(invalid()),
        (true, total) => Ok(-(total as i64)),
        (false, total) => Ok(total as i64),
    }
}

/// Reads one number with its unit from the front of `rest`; `text` is the whole, for errors.
fn parse_part<'a>(text: &str, rest: &'a str) -> Result<(u64, &'a str), DurationError> {
    let invalid = || DurationError::Invalid(text.into());
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let whole = leading_integer(&rest[..digits]).ok_or_else(invalid)?;
    let after_whole = &rest[digits..];
    let (fraction, scale, after) = match after_whole.strip_prefix('.') {
        Some(after_point) => leading_fraction(after_point),
        None => (0, 1.0, after_whole),
    };
    let fraction_digits = after_whole.len().saturating_sub(after.len() + 1);
    if digits == 0 && fraction_digits == 0 {
        return Err(invalid());
    }
    let unit_length =
        after.bytes().position(|byte| byte == b'.' || byte.is_ascii_digit()).unwrap_or(after.len());
    let (unit, after) = after.split_at(unit_length);
    if unit.is_empty() {
        return Err(DurationError::MissingUnit(text.into()));
    }
    let nanoseconds = unit_length_of(unit)
        .ok_or_else(|| DurationError::UnknownUnit { unit: unit.into(), text: text.into() })?;
    if whole > LIMIT / nanoseconds {
        return Err(invalid());
    }
    let small = (fraction as f64 * (nanoseconds as f64 / scale)) as u64;
    let part = whole * nanoseconds + small;
    if part > LIMIT {
        return Err(invalid());
    }
    Ok((part, after))
}

fn leading_integer(digits: &str) -> Option<u64> {
    if digits.is_empty() {
        return Some(0);
    }
    digits.parse().ok().filter(|value| *value <= LIMIT)
}

/// The digits after a point: their value, the power of ten that they are parts of, and what follows. Digits that no
/// longer fit are dropped.
fn leading_fraction(text: &str) -> (u64, f64, &str) {
    let mut value = 0_u64;
    let mut scale = 1.0;
    let mut full = false;
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    for digit in text[..length].bytes() {
        if full {
            continue;
        }
        match value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0'))) {
            Some(next) if next < LIMIT => {
                value = next;
                scale *= 10.0;
            }
            _ => full = true,
        }
    }
    (value, scale, &text[length..])
}

fn unit_length_of(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    })
}

/// Writes nanoseconds as Go does: `1h15m30.918s`, `1.5ms`, `0s`.
pub fn format(nanoseconds: i64) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let magnitude = nanoseconds.unsigned_abs();
    if magnitude < SECOND {
        let text = match magnitude {
            0 => return "0s".into(),
            1..MICROSECOND => format!("{magnitude}ns"),
            MICROSECOND..MILLISECOND => decimal(magnitude, MICROSECOND, "µs"),
            _ => decimal(magnitude, MILLISECOND, "ms"),
        };
        return format!("{sign}{text}");
    }
    let seconds = decimal(magnitude % MINUTE, SECOND, "s");
    let minutes = magnitude / MINUTE;
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{sign}{seconds}"),
        (0, minutes) => format!("{sign}{minutes}m{seconds}"),
        (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}"),
    }
}

/// Writes a duration as Go does; one that is longer than Go knows as the longest that it knows.
pub fn format_duration(duration: Duration) -> String {
    format(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// Nanoseconds as a duration; nothing for a negative number.
pub fn clamped(nanoseconds: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}

fn decimal(value: u64, unit: u64, name: &str) -> String {
    let (whole, fraction) = (value / unit, value % unit);
    if fraction == 0 {
        return format!("{whole}{name}");
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{whole}.{}{name}", digits.trim_end_matches('0'))
}

/// Quotes as Go's `time` does: bytes outside of printable ASCII become `\xNN`.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'\x7f' => quoted.push(char::from(byte)),
            other => quoted.push_str(&format!("\\x{other:02x}")),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_clients_send() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("-0", 0),
            ("0s", 0),
            ("15s", 15_000_000_000),
            ("15.0s", 15_000_000_000),
            ("0.001s", 1_000_000),
            ("9.999s", 9_999_000_000),
            ("15000ms", 15_000_000_000),
            ("1h15m30.5s", 4_530_500_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("1us", 1_000),
            ("1µs", 1_000),
            ("1μs", 1_000),
            ("-1.5h", -5_400_000_000_000),
            ("+3ns", 3),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("0.100000000000000000000h", 360_000_000_000),
            ("0.9223372036854775807h", 3_320_413_933_267),
        ] {
            assert_eq!(parse(text), Ok(nanoseconds), "{text}");
        }
    }

    #[test]
    fn refuses_in_the_words_of_go() {
        for (text, error) in [
            ("", r#"time: invalid duration """#),
            ("abc", r#"time: invalid duration "abc""#),
            ("-", r#"time: invalid duration "-""#),
            (".s", r#"time: invalid duration ".s""#),
            ("15", r#"time: missing unit in duration "15""#),
            ("1s15", r#"time: missing unit in duration "1s15""#),
            ("1x", r#"time: unknown unit "x" in duration "1x""#),
            ("1 s", r#"time: unknown unit " s" in duration "1 s""#),
            ("9223372036854775808ns", r#"time: invalid duration "9223372036854775808ns""#),
            ("99999999999999999999s", r#"time: invalid duration "99999999999999999999s""#),
            ("é\"", r#"time: invalid duration "\xc3\xa9\"""#),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), error, "{text}");
        }
    }

    #[test]
    fn writes_as_go_does() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (86_400_000_000_000, "24h0m0s"),
            (-1_500_000, "-1.5ms"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(format(nanoseconds), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(nanoseconds: i64) {
            prop_assert_eq!(parse(&format(nanoseconds)), Ok(nanoseconds));
        }

        #[test]
        fn no_text_is_a_panic(text in r"[-+0-9.a-zµ ]{0,24}") {
            let _ = parse(&text);
        }

        #[test]
        fn whole_units_are_exact(count in 0_u32..100_000, unit in prop::sample::select(vec!["ns", "us", "ms", "s", "m", "h"])) {
            let expected = i64::from(count) * unit_length_of(unit).unwrap() as i64;
            let text = format!("{count}{unit}");
            prop_assert_eq!(parse(&text), Ok(expected));
        }
    }
}
