//! What kind of session to keep.

use crate::duration::format_duration;
use crate::error::Error;
use crate::shape::session::NewSession;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The TTL that Consul's own lock clients use.
pub const DEFAULT_TTL: Duration = Duration::from_secs(15);

/// The shortest TTL that any agent can be told to allow, and the longest.
const TTL_RANGE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);

/// How long an outage of a session's node may last before the session ends with it, counted from
/// when the node's next word to the servers was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthWindow {
    /// 1.5 s: for locks that must pass on at once.
    Fast,
    /// 5 s.
    Default,
    /// 15 s: for holders that would rather wait than fail over in vain.
    Safe,
}

impl HealthWindow {
    /// All, the shortest first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Default, Self::Safe];

    /// The word that the agent understands.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Default => "default",
            Self::Safe => "safe",
        }
    }
}

/// What kind of session to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// A name for people.
    pub name: String,
    /// The server ends the session when it was not renewed for twice this long; the keeper gives it
    /// up after this long. At least 10 s unless the cluster allows less, at most a day.
    pub ttl: Duration,
    /// How long its keys stay closed after an end that is not a release; `None` for the agent's
    /// default of 15 s.
    pub lock_delay: Option<Duration>,
    /// Delete the keys at the session's end, instead of releasing them.
    pub delete_keys: bool,
    /// Checks of this node that it depends on; `None` for the agent's default, the node's own
    /// health.
    pub node_checks: Option<Vec<String>>,
    /// How long the node may stay silent, where the session depends on the node's own health;
    /// `None` for the agent's default.
    pub health_window: Option<HealthWindow>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            name: "Lockmesh session".into(),
            ttl: DEFAULT_TTL,
            lock_delay: None,
            delete_keys: false,
            node_checks: None,
            health_window: None,
        }
    }
}

impl SessionOptions {
    /// The defaults, with a name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Whether a session can be kept so: one without a TTL could not be believed in for any time at
    /// all.
    ///
    /// # Errors
    /// [`Error::Settings`] with what to change.
    pub fn check(&self) -> Result<(), Error> {
        if TTL_RANGE.contains(&self.ttl) {
            return Ok(());
        }
        let ttl = format_duration(self.ttl);
        Err(Error::Settings(format!(
            "a session cannot be kept with a TTL of {ttl}: choose 100ms to 24h, and no less than the agent's \
             `http.session_ttl_min`, which is 10s unless it was changed"
        )))
    }

    pub(crate) fn request(&self) -> NewSession {
        NewSession {
            name: Some(self.name.clone()),
            ttl: Some(format_duration(self.ttl)),
            lock_delay: self.lock_delay.map(lock_delay_text),
            behavior: Some(if self.delete_keys { "delete" } else { "release" }.into()),
            node_checks: self.node_checks.clone(),
            health_window: self.health_window.map(|window| window.as_str().into()),
            ..NewSession::default()
        }
    }
}

/// Agents read anything below a microsecond as seconds; nobody means that here.
fn lock_delay_text(delay: Duration) -> String {
    match delay {
        Duration::ZERO => "0s".into(),
        delay => format_duration(delay.max(Duration::from_micros(1))),
    }
}
