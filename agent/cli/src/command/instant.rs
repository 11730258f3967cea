//! Points in time for people: the wall clock of the process that recorded them, in UTC.

use std::time::SystemTime;
use time::OffsetDateTime;
use time::macros::format_description;

/// `2026-11-21 08:41:12Z`; empty for 0, which means no time.
pub(super) fn utc(milliseconds: u64) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]Z");
    let seconds = i64::try_from(milliseconds / 1000).ok().filter(|seconds| *seconds > 0);
    let instant = seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    instant.and_then(|instant| instant.format(&format).ok()).unwrap_or_default()
}

/// Milliseconds since 1970, by this process's wall clock.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_utc_and_omits_unset() {
        assert_eq!(utc(1_795_250_472_999), "2026-11-21 08:41:12Z");
        assert_eq!(utc(0), "");
        assert_eq!(utc(u64::MAX), "");
    }
}
