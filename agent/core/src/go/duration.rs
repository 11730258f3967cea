//! Go's notation for durations: the protocol's own parser and formatter, under the names that
//! endpoints use.

use std::time::Duration;

pub use lockmesh_protocol::duration::{DurationError, format as format_duration, parse_nanos as parse};

/// Returns nanoseconds as a duration; zero for a negative number.
pub fn clamped(nanoseconds: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}

/// Returns a duration of silence, in whole milliseconds.
pub fn silence(time: Duration) -> String {
    format_duration(Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_clients_send() {
        for (text, nanoseconds) in [
            ("5.s", 5_000_000_000),
            ("+3ns", 3),
            ("1us", 1_000),
            ("0.100000000000000000000h", 360_000_000_000),
            ("0.9223372036854775807h", 3_320_413_933_267),
        ] {
            assert_eq!(parse(text), Ok(nanoseconds), "{text}");
        }
    }

    proptest! {
        #[test]
        fn format_parse_round_trip(nanoseconds in 0..i64::MAX) {
            prop_assert_eq!(parse(&format_duration(clamped(nanoseconds))), Ok(nanoseconds));
        }

        #[test]
        fn no_text_is_a_panic(text in r"[-+0-9.a-zµ ]{0,24}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_sign_turns_it_round(count in 0_u32..100_000, unit in prop::sample::select(vec!["ns", "us", "ms", "s", "m", "h"])) {
            let text = format!("{count}{unit}");
            prop_assert_eq!(parse(&format!("-{text}")), parse(&text).map(|nanoseconds| -nanoseconds));
        }
    }
}
