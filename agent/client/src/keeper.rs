//! A session that keeps itself alive.
//!
//! It is renewed at about a third of the TTL, outlives every transient error until the lease's
//! deadline, and is never believed in longer than the server has promised to keep it. What decides
//! that is [`crate::holder`].

use crate::client::Client;
use crate::driver::Driver;
use crate::error::Error;
use crate::holder::{GuardState, SessionUse};
use crate::loss::Loss;
use crate::session_options::SessionOptions;
use std::sync::Arc;
use std::time::Duration;

/// A session that is renewed until it is closed, dropped or lost. Clones stand for the same
/// session.
#[derive(Clone, Debug)]
pub struct SessionKeeper {
    driver: Arc<Driver>,
    id: String,
}

impl SessionKeeper {
    /// Creates a session and keeps it.
    ///
    /// # Errors
    /// [`Error::Settings`] for a TTL that is none. [`Error::SessionLost`] where the agent did not
    /// say in time until when the session can be believed in. Whatever creating it says; a session
    /// that may have been created all the same ends with its TTL.
    pub async fn create(client: &Client, options: &SessionOptions) -> Result<Self, Error> {
        options.check()?;
        let driver = Driver::start(client, options.clone(), SessionUse::Shared);
        let id = driver.keep().await?;
        Ok(Self { driver, id })
    }

    /// The session's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How long the session is surely alive from now on, unless somebody ends it on purpose or a
    /// health check does.
    pub fn remaining(&self) -> Duration {
        self.driver.remaining()
    }

    /// Whether the session can still be believed in: see [`SessionKeeper::remaining`].
    pub fn is_alive(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How the session stands now.
    pub fn state(&self) -> GuardState {
        self.driver.state()
    }

    /// Waits until the session stands otherwise than `known`, and tells how: a deadline that moved on
    /// is no change. Start with [`SessionKeeper::state`], then give back what this told last.
    pub async fn changed(&self, known: &GuardState) -> GuardState {
        self.driver.changed(known).await
    }

    /// Waits until the session is lost, or suspended, and tells why: see [`crate::LockGuard::lost`].
    pub async fn lost(&self) -> Loss {
        self.driver.lost().await
    }

    /// Ends the session now. Keys that it still holds are released or deleted, and closed for its
    /// lock-delay.
    ///
    /// # Errors
    /// When the agent could not be told; the session then ends with its TTL.
    pub async fn close(self) -> Result<(), Error> {
        self.driver.close().await
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

/// Where the session of a hold comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// One of its own, destroyed with the hold.
    Own(SessionOptions),
    /// The caller's, which outlives the hold.
    Shared(SessionKeeper),
}

impl Source {
    pub(crate) fn driver(&self, client: &Client) -> Result<Arc<Driver>, Error> {
        match self {
            Self::Own(options) => {
                options.check()?;
                Ok(Driver::start(client, options.clone(), SessionUse::OneHold))
            }
            Self::Shared(keeper) => Ok(Arc::clone(keeper.driver())),
        }
    }
}

#[cfg(test)]
mod tests;
