//! The channel for requests to reload this process, or to leave the cluster and exit. The API sends
//! the requests, and the owner of the process executes them.

use lockmesh_protocol::rpc::Unavailable;
use tokio::sync::{mpsc, oneshot};

/// The maximum number of queued orders; further ones wait.
const ORDERS: usize = 4;

/// The changes, one per line; or the reason why nothing changed.
pub type Outcome = Result<Vec<String>, String>;

/// A request to this process.
#[derive(Debug)]
pub enum Order {
    /// Reload the certificate and the log level.
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
    pub fn of_nobody() -> Self {
        Self(None)
    }

    /// Reports the outcome, to the log and to the waiting caller.
    pub fn carried_out(self, outcome: Outcome) {
        match &outcome {
            Ok(changes) => changes.iter().for_each(|change| tracing::info!("reloaded: {change}")),
            // One line, regardless of the number of invalid keys: a log line is found by its own
            // words.
            Err(reason) => {
                let reason = reason.lines().map(str::trim).collect::<Vec<_>>().join("; ");
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
    /// Nothing changes, and the text is the reason: a reloaded file is invalid, or the process is
    /// shutting down.
    pub async fn reload(&self) -> Outcome {
        let gone = "this process cannot reload: it is shutting down";
        let (caller, outcome) = oneshot::channel();
        let orders = self.0.as_ref().ok_or(gone)?;
        orders.send(Order::Reload(ReloadOrder(Some(caller)))).await.map_err(|_| gone)?;
        outcome.await.map_err(|_| gone)?
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
