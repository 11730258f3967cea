//! How long certificates still live, said aloud before they end.

use crate::certificate::Facts;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How long before a certificate's end the warnings begin.
pub const WARNING_TIME: Duration = Duration::from_secs(30 * 86_400);

/// How often certificates are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);

/// After how many looks a warning is repeated.
const LOOKS_PER_WARNING: u32 = 24;

/// A certificate's file and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateLife {
    /// Where it lies.
    pub path: PathBuf,
    /// Whose it is, for people.
    pub subject: String,
    /// When it ends.
    pub not_after: SystemTime,
}

impl CertificateLife {
    pub(crate) fn new(path: &Path, facts: &Facts) -> Self {
        Self { path: path.into(), subject: facts.subject.clone(), not_after: facts.not_after }
    }

    /// How many seconds it still lives; negative when it has ended.
    pub fn seconds_left(&self, now: SystemTime) -> i64 {
        let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        match self.not_after.duration_since(now) {
            Ok(left) => seconds(left),
            Err(past) => -seconds(past.duration()),
        }
    }

    /// The warning that is due at `now`, if one is.
    pub fn warning(&self, now: SystemTime) -> Option<String> {
        let left = self.seconds_left(now);
        let (path, subject) = (self.path.display(), &self.subject);
        let way_out = "issue a new one with `lockmesh operator tls issue`";
        match u64::try_from(left) {
            Err(_) | Ok(0) => Some(format!("the certificate {path} ({subject}) has ended: {way_out}")),
            Ok(left) if left <= WARNING_TIME.as_secs() => {
                let (days, hours) = (left / 86_400, left % 86_400 / 3600);
                Some(format!("the certificate {path} ({subject}) ends in {days} d {hours} h: {way_out}"))
            }
            Ok(_) => None,
        }
    }
}

/// Looks at the certificates once an hour, for ever: tells `gauge` the fewest seconds that one of them still lives,
/// and warns in the log once a day from 30 days before the end. `lives` is asked each time, so that a replaced
/// certificate is seen.
pub async fn watch(lives: impl Fn() -> Vec<CertificateLife>, gauge: impl Fn(i64)) {
    let mut looks = 0u32;
    loop {
        let (now, lives) = (SystemTime::now(), lives());
        if let Some(least) = lives.iter().map(|life| life.seconds_left(now)).min() {
            gauge(least);
        }
        if looks.is_multiple_of(LOOKS_PER_WARNING) {
            for warning in lives.iter().filter_map(|life| life.warning(now)) {
                tracing::warn!("{warning}");
            }
        }
        looks = looks.wrapping_add(1);
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{CertificateLife, WARNING_TIME};
    use std::time::{Duration, SystemTime};

    #[test]
    fn warnings_begin_thirty_days_before_the_end() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let life = |not_after| CertificateLife { path: "a.pem".into(), subject: "CN=a".into(), not_after };
        let second = Duration::from_secs(1);
        assert_eq!(life(now + WARNING_TIME + second).warning(now), None);
        let soon = life(now + WARNING_TIME - second).warning(now).unwrap();
        assert!(soon.contains("a.pem") && soon.contains("ends in 29 d 23 h"), "{soon}");
        let past = life(now - second);
        assert!(past.warning(now).unwrap().contains("has ended"));
        assert_eq!(past.seconds_left(now), -1);
        assert!(life(now).warning(now).unwrap().contains("has ended"));
    }
}
