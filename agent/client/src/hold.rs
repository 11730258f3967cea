//! What all guards have in common: a session and a watch over what it holds.
//!
//! A hold ends once, with the first reason that is found. It believes in itself only as long as its session's lease
//! runs, whatever else is or is not heard.

use crate::client::Client;
use crate::error::Error;
use crate::keeper::{SessionKeeper, SessionOptions};
use crate::loss::Loss;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Where a hold's session comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// One of its own, destroyed with the hold.
    Own(SessionOptions),
    /// The caller's, which outlives the hold.
    Shared(SessionKeeper),
}

impl Source {
    pub(crate) async fn keeper(&self, client: &Client) -> Result<SessionKeeper, Error> {
        match self {
            Self::Own(options) => SessionKeeper::create(client, options).await,
            Self::Shared(keeper) if keeper.is_alive() => Ok(keeper.clone()),
            Self::Shared(keeper) => Err(Error::SessionLost(keeper.lost().await)),
        }
    }

    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }
}

/// Something held, watched over.
#[derive(Debug)]
pub(crate) struct Hold {
    keeper: SessionKeeper,
    loss: watch::Receiver<Option<Loss>>,
    watcher: AbortHandle,
}

impl Hold {
    /// Begins to watch. `monitor` ends when it finds that the hold is lost.
    pub(crate) fn begin(keeper: SessionKeeper, monitor: impl Future<Output = Loss> + Send + 'static) -> Self {
        let (sender, loss) = watch::channel(None);
        let session = keeper.clone();
        let watcher = tokio::spawn(async move {
            let reason = tokio::select! {
                biased;
                reason = session.lost() => reason,
                reason = monitor => reason,
            };
            sender.send_replace(Some(reason));
        });
        Self { keeper, loss, watcher: watcher.abort_handle() }
    }

    pub(crate) fn keeper(&self) -> &SessionKeeper {
        &self.keeper
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.loss.borrow().is_some() { Duration::ZERO } else { self.keeper.remaining() }
    }

    pub(crate) async fn lost(&self) -> Loss {
        let mut loss = self.loss.clone();
        let lost = loss.wait_for(Option::is_some).await.ok().and_then(|loss| loss.clone());
        lost.unwrap_or(Loss::Closed)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The watcher holds a clone of the keeper; it must go for the session to end.
        self.watcher.abort();
    }
}
