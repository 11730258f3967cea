//! A session that is kept alive automatically.
//!
//! It is renewed at about a third of the TTL and survives every transient error until the lease's
//! deadline. It never counts as alive longer than the server has promised to keep it. The decisions
//! are made in [`crate::holder`].

use crate::client::Client;
use crate::driver::Driver;
use crate::error::Error;
use crate::holder::{GuardState, SessionUse};
use crate::loss::Loss;
use crate::session_options::SessionOptions;
use std::sync::Arc;
use std::time::Duration;

/// A session that is renewed until it is closed, dropped or lost. Clones share the session.
#[derive(Clone, Debug)]
pub struct SessionKeeper {
    driver: Arc<Driver>,
    id: String,
}

impl SessionKeeper {
    /// Creates a session and keeps it alive.
    ///
    /// # Errors
    /// [`Error::Settings`] for an invalid TTL. [`Error::SessionLost`] if the agent did not report
    /// the session's deadline in time. Otherwise the errors of the creation; a session that was
    /// created nevertheless ends with its TTL.
    pub async fn create(client: &Client, options: &SessionOptions) -> Result<Self, Error> {
        options.check()?;
        let driver = Driver::start(client, options.clone(), SessionUse::Shared);
        let id = driver.keep().await?;
        Ok(Self { driver, id })
    }

    /// Returns the session's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the time for which the session is guaranteed to be alive, unless an operator or a
    /// health check ends it.
    pub fn remaining(&self) -> Duration {
        self.driver.remaining()
    }

    /// Returns `true` if the session is guaranteed to be alive: see [`SessionKeeper::remaining`].
    pub fn is_alive(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns the state of the session.
    pub fn state(&self) -> GuardState {
        self.driver.state()
    }

    /// Waits until the state differs from `known`, and returns the new one. An extended deadline is
    /// not a change. Start with [`SessionKeeper::state`], then pass the last result.
    pub async fn changed(&self, known: &GuardState) -> GuardState {
        self.driver.changed(known).await
    }

    /// Waits until the session is lost or suspended, and returns the reason: see
    /// [`crate::HoldGuard::lost`].
    pub async fn lost(&self) -> Loss {
        self.driver.lost().await
    }

    /// Ends the session now. Keys that it still holds are released or deleted, and blocked for its
    /// lock-delay.
    ///
    /// # Errors
    /// The agent could not be reached; the session then ends with its TTL.
    pub async fn close(self) -> Result<(), Error> {
        self.driver.close().await
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

/// The source of a hold's session.
#[derive(Clone, Debug)]
pub(crate) enum SessionSource {
    /// A session of its own, destroyed with the hold.
    Own(SessionOptions),
    /// The caller's session, which outlives the hold.
    Shared(SessionKeeper),
}

impl SessionSource {
    pub(crate) fn driver(&self, client: &Client) -> Result<Arc<Driver>, Error> {
        match self {
            Self::Own(options) => {
                options.check()?;
                Ok(Driver::start(client, options.clone(), SessionUse::OneHold))
            }
            Self::Shared(keeper) => Ok(Arc::clone(keeper.driver())),
        }
    }

    /// Starts a driver for a session that another process created with these options.
    pub(crate) fn driver_of_another(&self, client: &Client) -> Arc<Driver> {
        let options = match self {
            Self::Own(options) => options.clone(),
            Self::Shared(_) => SessionOptions::default(),
        };
        Driver::start(client, options, SessionUse::OneHold)
    }
}

#[cfg(test)]
mod tests;
