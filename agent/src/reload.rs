//! The channel for requests to reload this process, or to leave the cluster and exit. The API sends
//! the requests, and the owner of the process executes them.

use lockmesh_net::Peer;
use lockmesh_protocol::rpc::Unavailable;
use std::error::Error;
use std::path::PathBuf;
use tokio::sync::{mpsc, oneshot};

/// The maximum number of queued orders; further ones wait.
const ORDERS: usize = 4;

/// The changes, one per line; or the reason why nothing changed.
pub type Outcome = Result<Vec<String>, ReloadError>;

/// The reason why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// No order is executed any more.
    #[error("this process cannot reload: it is shutting down")]
    ShuttingDown,
    /// The certificate names another node or role.
    #[error("{} is the certificate of {new}, but this process is {own}", file.display())]
    OtherPeer {
        /// The certificate.
        file: PathBuf,
        /// The peer that it names.
        new: Peer,
        /// This process.
        own: Peer,
    },
    /// A reloaded file is invalid.
    #[error(transparent)]
    Invalid(Box<dyn Error + Send + Sync>),
}

impl ReloadError {
    /// The error of a reloaded file.
    pub fn invalid(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Invalid(Box::new(error))
    }
}

/// A request to this process.
#[derive(Debug)]
pub enum Order {
    /// Reload the certificates and the reloadable keys of the configuration.
    Reload(ReloadOrder),
    /// Remove the node from the cluster, and exit.
    Leave(LeaveOrder),
}

/// The order to reload, with the caller that waits for its outcome, if any.
#[derive(Debug)]
pub struct ReloadOrder(Option<oneshot::Sender<Outcome>>);

/// The order to leave, with the caller that waits for its outcome.
#[derive(Debug)]
pub struct LeaveOrder(oneshot::Sender<Result<(), Unavailable>>);

/// A sender of orders to this process. The default has no receiver.
#[derive(Clone, Debug, Default)]
pub struct Asking(Option<mpsc::Sender<Order>>);

/// Returns a sender, and the receiver of its orders, which are executed one after the other.
pub fn channel() -> (Asking, mpsc::Receiver<Order>) {
    let (sender, orders) = mpsc::channel(ORDERS);
    (Asking(Some(sender)), orders)
}

impl ReloadOrder {
    /// Returns an order without a waiting caller; its outcome is only logged.
    pub fn without_caller() -> Self {
        Self(None)
    }

    /// Reports the outcome, to the log and to the waiting caller.
    pub fn carried_out(self, outcome: Outcome) {
        match &outcome {
            Ok(changes) => changes.iter().for_each(|change| tracing::info!("reloaded: {change}")),
            // One line, regardless of the number of invalid keys: a log line is found by its own
            // words.
            Err(reason) => {
                let reason = reason.to_string().lines().map(str::trim).collect::<Vec<_>>().join("; ");
                tracing::error!(%reason, "reload failed; nothing was changed");
            }
        }
        if let Some(caller) = self.0 {
            // A caller that is gone can read the log.
            let _ = caller.send(outcome);
        }
    }
}

impl LeaveOrder {
    /// Reports the outcome to the waiting caller; it is already logged.
    pub fn carried_out(self, outcome: Result<(), Unavailable>) {
        // A caller that is gone can read the log.
        let _ = self.0.send(outcome);
    }
}

impl Asking {
    /// Requests a reload, and waits for the outcome.
    ///
    /// # Errors
    /// Nothing changes: a reloaded file is invalid, or the process is shutting down.
    pub async fn reload(&self) -> Outcome {
        let (caller, outcome) = oneshot::channel();
        let orders = self.0.as_ref().ok_or(ReloadError::ShuttingDown)?;
        let sent = orders.send(Order::Reload(ReloadOrder(Some(caller)))).await;
        sent.map_err(|_| ReloadError::ShuttingDown)?;
        outcome.await.map_err(|_| ReloadError::ShuttingDown)?
    }

    /// Requests that the process leaves and exits, and waits until it has left.
    ///
    /// # Errors
    /// Nothing stops. Unless [`Unavailable::certainly_not_done`], the node may have left, and the
    /// agent registers it again. Or the process is already shutting down.
    pub async fn leave(&self) -> Result<(), Unavailable> {
        let gone = || Unavailable::Denied("this process cannot leave: it is shutting down".into());
        let (caller, outcome) = oneshot::channel();
        let orders = self.0.as_ref().ok_or_else(gone)?;
        orders.send(Order::Leave(LeaveOrder(caller))).await.map_err(|_| gone())?;
        outcome.await.map_err(|_| gone())?
    }
}
