//! The options of a session.

use crate::duration::format_duration;
use crate::error::Error;
use crate::holder::lease::{MAX_RETRY_DELAY, least_ttl, tolerated_outage};
use crate::shape::session::NewSession;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The TTL that Consul's own lock clients use.
pub const DEFAULT_TTL: Duration = Duration::from_secs(15);

/// The default TTL with [`HealthWindow::Safe`]. [`DEFAULT_TTL`] is too short for outages of that
/// length.
pub const DEFAULT_TTL_SAFE: Duration = Duration::from_secs(30);

/// The id of the check that represents a node's own health.
const NODE_HEALTH: &str = "serfHealth";

/// The shortest and the longest TTL that any agent can be configured to accept.
const TTL_RANGE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);

/// The maximum outage of a session's node before the session ends, counted from when the node's
/// next message to the servers was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthWindow {
    /// 1.5 s: for fast failover.
    Fast,
    /// 5 s.
    Default,
    /// 15 s: for holders that prefer waiting to an unnecessary failover. Needs a TTL of at least
    /// [`HealthWindow::least_ttl`].
    Safe,
}

impl HealthWindow {
    /// All windows, the shortest first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Default, Self::Safe];

    /// Returns the agent's name of the window.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Default => "default",
            Self::Safe => "safe",
        }
    }

    /// Parses the agent's name of a window; `None` if it is unknown.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|window| window.as_str() == word)
    }

    /// Returns the longest outage that ends no session.
    pub const fn duration(self) -> Duration {
        match self {
            Self::Fast => Duration::from_millis(1_500),
            Self::Default => Duration::from_secs(5),
            Self::Safe => Duration::from_secs(15),
        }
    }

    /// Returns the shortest TTL with which a guard survives an outage of the window's length.
    /// `fast` and `default` accept any TTL, because the TTLs that agents accept by default are
    /// longer.
    pub const fn least_ttl(self) -> Duration {
        match self {
            Self::Fast | Self::Default => Duration::ZERO,
            Self::Safe => least_ttl(self.duration()),
        }
    }

    /// Returns the TTL of a session that specifies none.
    pub const fn default_ttl(self) -> Duration {
        match self {
            Self::Fast | Self::Default => DEFAULT_TTL,
            Self::Safe => DEFAULT_TTL_SAFE,
        }
    }
}

/// Returns `true` if the default TTL leaves room for the pause after the last failed renewal.
const fn is_tolerated_by_default(window: HealthWindow) -> bool {
    let longest = window.duration().saturating_add(MAX_RETRY_DELAY);
    tolerated_outage(window.default_ttl()).as_micros() >= longest.as_micros()
}

const _: () = {
    assert!(is_tolerated_by_default(HealthWindow::Fast) && is_tolerated_by_default(HealthWindow::Default));
    assert!(is_tolerated_by_default(HealthWindow::Safe));
    // Agents accept no less than 10 s unless `http.session_ttl_min` was changed.
    let outage = HealthWindow::Default.duration();
    assert!(tolerated_outage(Duration::from_secs(10)).as_micros() >= outage.as_micros());
};

/// The options of a session. Begin with [`SessionOptions::named`]; everything else has a default.
///
/// ```
/// use lockmesh_client::{HealthWindow, SessionOptions};
/// use std::time::Duration;
///
/// let options = SessionOptions::named("report")
///     .ttl(Duration::from_secs(30))
///     .health_window(HealthWindow::Safe)
///     .lock_delay(Duration::ZERO);
/// assert_eq!(options.ttl, Some(Duration::from_secs(30)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionOptions {
    /// A human-readable name.
    pub name: String,
    /// The TTL. The server ends the session after twice this time without a renewal; the keeper
    /// gives it up after this time. At least 10 s unless the cluster allows less, at most a day,
    /// and at least [`HealthWindow::least_ttl`]. `None` for 15 s, or for 30 s with
    /// [`HealthWindow::Safe`], even if that is the agent's default.
    pub ttl: Option<Duration>,
    /// The lock-delay: the time for which its keys stay blocked after an end that is not a release.
    /// `None` for the agent's default of 15 s.
    pub lock_delay: Option<Duration>,
    /// Set to delete the keys at the session's end instead of releasing them.
    pub delete_keys: bool,
    /// The checks of this node that the session depends on; `None` for the agent's default, the
    /// node's own health.
    pub node_checks: Option<Vec<String>>,
    /// The maximum time that the node may be unreachable, if the session depends on the node's own
    /// health; `None` for the agent's default.
    pub health_window: Option<HealthWindow>,
    /// Set to end the session within milliseconds when this process dies. Its locks then pass on
    /// without lock-delay, unless one is set. Only over the agent's Unix socket.
    pub bind_process: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            name: "Lockmesh session".into(),
            ttl: None,
            lock_delay: None,
            delete_keys: false,
            node_checks: None,
            health_window: None,
            bind_process: false,
        }
    }
}

impl SessionOptions {
    /// Returns the default options with a name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Sets the TTL; `None` for the default.
    #[must_use]
    pub fn ttl(self, ttl: impl Into<Option<Duration>>) -> Self {
        Self { ttl: ttl.into(), ..self }
    }

    /// Sets the lock-delay; `None` for the default.
    #[must_use]
    pub fn lock_delay(self, lock_delay: impl Into<Option<Duration>>) -> Self {
        Self { lock_delay: lock_delay.into(), ..self }
    }

    /// Sets if the keys are deleted at the session's end instead of released.
    #[must_use]
    pub fn delete_keys(self, delete_keys: bool) -> Self {
        Self { delete_keys, ..self }
    }

    /// Sets the checks of this node that the session depends on.
    #[must_use]
    pub fn node_checks(self, checks: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { node_checks: Some(checks.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets the health window; `None` for the agent's default.
    #[must_use]
    pub fn health_window(self, window: impl Into<Option<HealthWindow>>) -> Self {
        Self { health_window: window.into(), ..self }
    }

    /// Sets if the session ends with this process: see [`Self::bind_process`].
    #[must_use]
    pub fn bind_process(self, bind_process: bool) -> Self {
        Self { bind_process, ..self }
    }

    /// Checks the options. A session without a TTL could never be relied on. A session whose TTL is
    /// shorter than its window requires could not be relied on for the whole window.
    ///
    /// # Errors
    /// [`Error::Settings`] describes the correction.
    pub fn check(&self) -> Result<(), Error> {
        if let Some(ttl) = self.ttl.filter(|ttl| !TTL_RANGE.contains(ttl)) {
            let ttl = format_duration(ttl);
            return Err(Error::Settings(format!(
                "a session cannot be kept with a TTL of {ttl}: choose 100ms to 24h, and no less than the agent's \
                 `http.session_ttl_min`, which is 10s unless it was changed"
            )));
        }
        self.health_window.map_or(Ok(()), |window| self.check_window(window, ""))
    }

    /// Checks if the TTL fits the window that the agent has chosen for a session with these
    /// options.
    ///
    /// # Errors
    /// As [`SessionOptions::check`].
    pub(crate) fn check_default_window(&self, window: HealthWindow) -> Result<(), Error> {
        self.check_window(window, ", this agent's `session.default_health_window`")
    }

    fn check_window(&self, window: HealthWindow, whose: &str) -> Result<(), Error> {
        let least = window.least_ttl();
        let Some(ttl) = self.ttl.filter(|ttl| *ttl < least && self.depends_on_its_node()) else {
            return Ok(());
        };
        let outages = [tolerated_outage(ttl), window.duration()].map(format_duration);
        let (ttl, least, [tolerated, wanted]) = (format_duration(ttl), format_duration(least), outages);
        Err(Error::Settings(format!(
            "a TTL of {ttl} is too short for the window {}{whose}: the lock would be given up after an outage of \
             {tolerated}, not {wanted}; choose a TTL of {least} or more, or the window default",
            window.as_str(),
        )))
    }

    /// Returns `true` if an outage of its node ends the session.
    fn depends_on_its_node(&self) -> bool {
        self.node_checks.as_ref().is_none_or(|checks| checks.iter().any(|check| check == NODE_HEALTH))
    }

    /// Returns the TTL for a new session; `default` is the agent's default window, if known.
    pub(crate) fn ttl_with(&self, default: Option<HealthWindow>) -> Duration {
        let window = self.health_window.or(default).filter(|_| self.depends_on_its_node());
        self.ttl.unwrap_or(window.unwrap_or(HealthWindow::Default).default_ttl())
    }

    pub(crate) fn request(&self) -> NewSession {
        NewSession {
            name: Some(self.name.clone()),
            ttl: Some(format_duration(self.ttl_with(None))),
            lock_delay: self.lock_delay.map(lock_delay_text),
            behavior: Some(if self.delete_keys { "delete" } else { "release" }.into()),
            node_checks: self.node_checks.clone(),
            health_window: self.health_window.map(|window| window.as_str().into()),
            bind_process: self.bind_process.then_some(true),
            ..NewSession::default()
        }
    }
}

/// Agents interpret any value below a microsecond as seconds, which is never intended here.
fn lock_delay_text(delay: Duration) -> String {
    match delay {
        Duration::ZERO => "0s".into(),
        delay => format_duration(delay.max(Duration::from_micros(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(ttl: u64, window: Option<HealthWindow>) -> SessionOptions {
        SessionOptions {
            ttl: Some(Duration::from_secs(ttl)),
            health_window: window,
            ..SessionOptions::default()
        }
    }

    #[test]
    fn ttl_below_window_minimum_rejected() {
        let safe = Some(HealthWindow::Safe);
        let refused = options(25, safe).check().expect_err("it is too short").to_string();
        for part in
            ["a TTL of 25s is too short for the window safe:", "an outage of 14500ms, not 15s", "26s or more"]
        {
            assert!(refused.contains(part), "{refused}");
        }
        assert!(
            options(26, safe).check().is_ok() && options(10, Some(HealthWindow::Default)).check().is_ok()
        );
        // An outage of its node does not end it.
        let without_checks = SessionOptions { node_checks: Some(Vec::new()), ..options(15, safe) };
        assert!(without_checks.check().is_ok());
        assert!(options(15, None).check().is_ok());
        let refused =
            options(15, None).check_default_window(HealthWindow::Safe).expect_err("too short").to_string();
        assert!(refused.contains("safe, this agent's `session.default_health_window`:"), "{refused}");
    }

    #[test]
    fn default_ttl_follows_window() {
        let ttl = |window, default| {
            let options = SessionOptions { health_window: window, ..SessionOptions::default() };
            (options.check().is_ok(), options.ttl_with(default).as_secs())
        };
        let (safe, default) = (Some(HealthWindow::Safe), Some(HealthWindow::Default));
        assert_eq!([ttl(None, None), ttl(default, safe)], [(true, 15); 2]);
        assert_eq!([ttl(safe, None), ttl(None, safe)], [(true, 30); 2]);
    }
}
