//! The guarantees that a holder gives its guard, besides exclusive possession.
//!
//! Violations:
//! - A hold loses belief and regains it, without a later read that shows it as its own. Another
//!   client may have held it in between.
//! - A hold is believed in after a read that shows it gone. The cause may be read later, but not
//!   the loss.
//! - A grant is reported that cannot be believed in. It is of no use to the program.
//! - A release took effect and is reported as too late. The program would conclude that it worked
//!   without a lock.
//! - A wait ends because a session ended that was for this wait alone. Only the holder knows of
//!   that session.

use lockmesh_client::holder::HoldId;
use lockmesh_client::{Entry, Error};
use lockmesh_protocol::id::{LogIndex, SessionId};
use lockmesh_protocol::time::Time;

/// The state of a guard's holds, as far as the guarantees depend on it.
#[derive(Debug, Default)]
pub struct Promises {
    /// A hold that another client's act took away from this session, with the index and the time
    /// of the act, until the guard learns of it.
    taken: Option<(HoldId, SessionId, LogIndex, Time)>,
    /// A hold that was not believed in at the last check.
    doubted: Option<Doubt>,
    /// The hold that the guard's own session released.
    given_back: Option<HoldId>,
    /// The hold that is tried only once.
    tried_once: Option<HoldId>,
    /// Broken guarantees.
    pub broken: Vec<String>,
}

/// A hold that was not believed in at a check.
#[derive(Debug)]
struct Doubt {
    id: HoldId,
    since: Time,
    /// `true` if a read that began later showed that its session still holds it.
    is_cleared: bool,
}

impl Promises {
    /// Notes that another client's act took this away; the guard learns of it later.
    pub fn took(&mut self, id: HoldId, session: SessionId, index: LogIndex, now: Time) {
        self.taken = Some((id, session, index, now));
    }

    /// Returns the time at which another client took this away, if it may still be believed in.
    pub fn taken_at(&self, id: HoldId, session: &SessionId) -> Option<Time> {
        let (taken, of, _, at) = self.taken.as_ref()?;
        (*taken == id && of == session).then_some(*at)
    }

    /// Notes that the guard's session released this.
    pub fn gave_back(&mut self, id: HoldId) {
        self.given_back = Some(id);
    }

    /// Checks the belief in a granted hold.
    pub fn looked(&mut self, now: Time, id: HoldId, is_believed: bool) {
        match (&self.doubted, is_believed) {
            (Some(doubt), false) if doubt.id == id && !doubt.is_cleared => {}
            (_, false) => self.doubted = Some(Doubt { id, since: now, is_cleared: false }),
            (Some(doubt), true) if doubt.id == id => {
                if !doubt.is_cleared {
                    self.broken.push(format!("{id:?} was not believed in, but is again"));
                }
                self.doubted = None;
            }
            (_, true) => {}
        }
    }

    /// Notes the reply to a read of the held key, with the time at which the read was sent.
    pub fn saw(&mut self, sent: Time, session: Option<&str>, entries: &[Entry], index: u64) {
        let is_own = entries.first().is_some_and(|entry| entry.session.as_deref() == session);
        if !is_own && self.taken.as_ref().is_some_and(|(_, _, taken, _)| taken.0 <= index) {
            self.taken = None;
        }
        if let Some(doubt) = self.doubted.as_mut().filter(|doubt| is_own && sent >= doubt.since) {
            doubt.is_cleared = true;
        }
    }

    /// Notes that a read found no session.
    pub fn saw_no_session(&mut self) {
        self.taken = None;
    }

    /// Notes that a hold is tried once, without waiting.
    pub fn tries_once(&mut self, id: HoldId) {
        self.tried_once = Some(id);
    }

    /// Checks a grant that was reported to the guard.
    pub fn granted(&mut self, id: HoldId, is_believed: bool) {
        if !is_believed {
            self.broken.push(format!("{id:?} was granted, but cannot be believed in"));
        }
    }

    /// Checks the result of a release that was reported to the guard.
    pub fn released(&mut self, id: HoldId, result: &Result<bool, Error>) {
        if self.given_back == Some(id) && matches!(result, Ok(false)) {
            self.broken.push(format!("{id:?} was released, but reported as lost before"));
        }
    }

    /// Checks the error that ended a wait whose session was for that wait alone.
    pub fn failed(&mut self, id: HoldId, error: &Error) {
        let is_replaceable = matches!(error, Error::Refused { text, .. } if text.contains("invalid session"));
        if is_replaceable && self.tried_once != Some(id) {
            self.broken.push(format!("{id:?} ended with its own session: {error}"));
        }
    }
}
