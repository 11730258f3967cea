//! What a guard was promised by its holder, beside that nobody else has what it believes in.
//!
//! | it is broken by | |
//! |---|---|
//! | a hold that was not believed in, and is again without a look that began later and shows it as its own | somebody else may have had it in between |
//! | a hold that is believed in after a look that shows it gone | why it went may be asked for, but later |
//! | a grant that may not be believed in when it is told | there is nothing that it could be used for |
//! | a release that took effect and is told as too late | the program would think that it worked unguarded |
//! | a wait that ends since a session did that was for this wait alone | nobody but the holder knows of it |

use lockmesh_client::holder::HoldId;
use lockmesh_client::{Entry, Error};
use lockmesh_protocol::id::{LogIndex, SessionId};
use lockmesh_protocol::time::Time;

/// What became of a guard's holds, as far as promises rest on it.
#[derive(Debug, Default)]
pub struct Promises {
    /// What somebody took away from this session by an act that has this index, and of which the
    /// guard has not heard yet.
    taken: Option<(HoldId, SessionId, LogIndex)>,
    /// What was not believed in any more when it was last looked at.
    doubted: Option<Doubt>,
    /// What the guard's own session gave back.
    given_back: Option<HoldId>,
    /// What is tried once only.
    tried_once: Option<HoldId>,
    /// What was broken.
    pub broken: Vec<String>,
}

/// A hold that was not believed in when it was looked at.
#[derive(Debug)]
struct Doubt {
    id: HoldId,
    since: Time,
    /// Whether a look that began later showed it as its session's own.
    is_cleared: bool,
}

impl Promises {
    /// Somebody took this away by an act, which the guard hears of later.
    pub fn took(&mut self, id: HoldId, session: SessionId, index: LogIndex) {
        self.taken = Some((id, session, index));
    }

    /// Whether this may still be believed in though somebody took it away.
    pub fn is_taken(&self, id: HoldId, session: &SessionId) -> bool {
        self.taken.as_ref().is_some_and(|(taken, of, _)| *taken == id && of == session)
    }

    /// The guard's session gave this back.
    pub fn gave_back(&mut self, id: HoldId) {
        self.given_back = Some(id);
    }

    /// Something that was granted is looked at.
    pub fn looked(&mut self, now: Time, id: HoldId, is_believed: bool) {
        match (&self.doubted, is_believed) {
            (Some(doubt), false) if doubt.id == id && !doubt.is_cleared => {}
            (_, false) => self.doubted = Some(Doubt { id, since: now, is_cleared: false }),
            (Some(doubt), true) if doubt.id == id => {
                if !doubt.is_cleared {
                    self.broken.push(format!("{id:?} was not believed in, and is again"));
                }
                self.doubted = None;
            }
            (_, true) => {}
        }
    }

    /// A look at the key of what is held, which was sent then, was answered.
    pub fn saw(&mut self, sent: Time, session: Option<&str>, entries: &[Entry], index: u64) {
        let is_own = entries.first().is_some_and(|entry| entry.session.as_deref() == session);
        if !is_own && self.taken.as_ref().is_some_and(|(.., taken)| taken.0 <= index) {
            self.taken = None;
        }
        if let Some(doubt) = self.doubted.as_mut().filter(|doubt| is_own && sent >= doubt.since) {
            doubt.is_cleared = true;
        }
    }

    /// A look for the session found none.
    pub fn saw_no_session(&mut self) {
        self.taken = None;
    }

    /// Something is tried, and not waited for.
    pub fn tries_once(&mut self, id: HoldId) {
        self.tried_once = Some(id);
    }

    /// The guard was told of a grant.
    pub fn granted(&mut self, id: HoldId, is_believed: bool) {
        if !is_believed {
            self.broken.push(format!("{id:?} was granted, and is not to be believed in"));
        }
    }

    /// The guard was told what came of a release.
    pub fn released(&mut self, id: HoldId, result: &Result<bool, Error>) {
        if self.given_back == Some(id) && matches!(result, Ok(false)) {
            self.broken.push(format!("{id:?} was given back, and told as lost before"));
        }
    }

    /// The guard was told why it waits no more for what had a session of its own.
    pub fn failed(&mut self, id: HoldId, error: &Error) {
        let is_replaceable = matches!(error, Error::Refused { text, .. } if text.contains("invalid session"));
        if is_replaceable && self.tried_once != Some(id) {
            self.broken.push(format!("{id:?} ended with the session that was for it alone: {error}"));
        }
    }
}
