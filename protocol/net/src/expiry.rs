//! The remaining validity of certificates, with warnings before they expire.

use crate::certificate::Facts;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

/// The time before a certificate's expiry when the warnings begin.
pub const WARNING_WINDOW: Duration = Duration::from_secs(30 * 86_400);

/// The interval between checks of the certificates.
const LOOK_INTERVAL: Duration = Duration::from_secs(3600);

/// The number of checks between repeated warnings.
const LOOKS_PER_WARNING: u32 = 24;

/// A certificate's file and its expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateLife {
    /// The path of the file.
    pub path: PathBuf,
    /// Its subject, for humans.
    pub subject: String,
    /// The time of its expiry.
    pub not_after: SystemTime,
}

impl CertificateLife {
    pub(crate) fn new(path: &Path, facts: &Facts) -> Self {
        Self { path: path.into(), subject: facts.subject.clone(), not_after: facts.not_after }
    }

    /// Returns the remaining validity in seconds; negative after its expiry.
    pub fn seconds_left(&self, now: SystemTime) -> i64 {
        let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        match self.not_after.duration_since(now) {
            Ok(left) => seconds(left),
            Err(past) => -seconds(past.duration()),
        }
    }

    /// Returns the time of its expiry, in seconds since 1970.
    pub fn ends_at(&self) -> f64 {
        self.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }

    /// Returns the warning that is due at `now`, if there is one.
    pub fn warning(&self, now: SystemTime) -> Option<String> {
        let left = self.seconds_left(now);
        let (path, subject) = (self.path.display(), &self.subject);
        let way_out = "issue a new one with `lockmesh operator tls issue`";
        match u64::try_from(left) {
            Err(_) | Ok(0) => Some(format!("the certificate {path} ({subject}) has ended: {way_out}")),
            Ok(left) if left <= WARNING_WINDOW.as_secs() => {
                let (days, hours) = (left / 86_400, left % 86_400 / 3600);
                Some(format!("the certificate {path} ({subject}) ends in {days} d {hours} h: {way_out}"))
            }
            Ok(_) => None,
        }
    }
}

/// Waits until a certificate with this expiry is rejected. The clock may be set meanwhile.
pub(crate) async fn ended(not_after: SystemTime) {
    // The certificate is still valid in the second of its expiry.
    let end = not_after + Duration::from_secs(1);
    while let Ok(left) = end.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        sleep(left.min(LOOK_INTERVAL)).await;
    }
}

/// Checks the certificates once an hour, at each expiry, and after each replacement, until the
/// sender is dropped. Passes the one that expires first to `gauge`. Warns in the log once a day
/// from 30 days before the expiry, and at the expiry.
pub async fn watch(mut lives: Receiver<Vec<CertificateLife>>, gauge: impl Fn(&CertificateLife)) {
    let (mut looks, mut ended) = (0u32, 0);
    loop {
        let (now, known) = (SystemTime::now(), lives.borrow_and_update().clone());
        let ends = known.iter().filter_map(|life| life.not_after.duration_since(now).ok());
        let next = ends.filter(|left| !left.is_zero()).min().unwrap_or(LOOK_INTERVAL).min(LOOK_INTERVAL);
        let have_ended = known.iter().filter(|life| life.not_after <= now).count();
        // Otherwise an expiry would be logged only with the next daily warning.
        if std::mem::replace(&mut ended, have_ended) < have_ended {
            looks = 0;
        }
        if let Some(first) = known.iter().min_by_key(|life| life.not_after) {
            gauge(first);
        }
        if looks.is_multiple_of(LOOKS_PER_WARNING) {
            for warning in known.iter().filter_map(|life| life.warning(now)) {
                tracing::warn!("{warning}");
            }
        }
        match timeout(next, lives.changed()).await {
            Ok(Ok(())) => looks = 0,
            Ok(Err(_)) => return,
            Err(_) => looks = looks.wrapping_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CertificateLife, WARNING_WINDOW, watch};
    use std::time::{Duration, SystemTime};

    #[test]
    fn warns_thirty_days_before_expiry() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let life = |not_after| CertificateLife { path: "a.pem".into(), subject: "CN=a".into(), not_after };
        let second = Duration::from_secs(1);
        assert_eq!(life(now + WARNING_WINDOW + second).warning(now), None);
        let soon = life(now + WARNING_WINDOW - second).warning(now).unwrap();
        assert!(soon.contains("a.pem") && soon.contains("ends in 29 d 23 h"), "{soon}");
        let past = life(now - second);
        assert!(past.warning(now).unwrap().contains("has ended"));
        assert_eq!(past.seconds_left(now), -1);
        assert!(life(now).warning(now).unwrap().contains("has ended"));
    }

    fn left(life: &CertificateLife) -> i64 {
        life.seconds_left(SystemTime::now())
    }

    #[tokio::test]
    async fn expiry_triggers_check() {
        let not_after = SystemTime::now() + Duration::from_millis(1200);
        let life = CertificateLife { path: "a.pem".into(), subject: "CN=a".into(), not_after };
        let (_replace, lives) = tokio::sync::watch::channel(vec![life]);
        let (tell, mut told) = tokio::sync::mpsc::channel(4);
        let watching = tokio::spawn(watch(lives, move |life| tell.try_send(left(life)).unwrap()));
        assert_eq!(told.recv().await, Some(1));
        let at_the_end = tokio::time::timeout(Duration::from_secs(60), told.recv()).await;
        assert_eq!(at_the_end.expect("the expiry itself triggers a check"), Some(0));
        assert!(SystemTime::now() >= not_after);
        watching.abort();
    }

    #[tokio::test]
    async fn replaced_certificate_checked_immediately() {
        let of_days = |days: u64| {
            let not_after = SystemTime::now() + Duration::from_secs(days * 86_400);
            vec![CertificateLife { path: "a.pem".into(), subject: "CN=a".into(), not_after }]
        };
        let (replace, lives) = tokio::sync::watch::channel(of_days(1));
        let (tell, mut told) = tokio::sync::mpsc::channel(4);
        let watching = tokio::spawn(watch(lives, move |life| tell.try_send(left(life) / 86_400).unwrap()));
        assert_eq!(told.recv().await, Some(0));
        replace.send_replace(of_days(365));
        assert_eq!(told.recv().await, Some(364));
        drop(replace);
        watching.await.expect("it ends when the sender is dropped");
    }
}
