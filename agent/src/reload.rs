//! The way to ask this process to reload, or to leave the cluster and end: its API asks, and
//! whoever runs the process carries the order out.

use lockmesh_protocol::rpc::Unavailable;
use tokio::sync::{mpsc, oneshot};

/// How many orders may be given and not yet begun; more wait for their turn.
const ORDERS: usize = 4;

/// What changed, in words, one thing a line; or why nothing did.
pub type Outcome = Result<Vec<String>, String>;

/// What this process is asked.
#[derive(Debug)]
pub enum Order {
    /// To read its certificate and its log level again.
    Reload(ReloadOrder),
    /// To take its node out of the cluster, and to end.
    Leave(LeaveOrder),
}

/// The order to reload, with the one who waits for its outcome, if anybody does.
#[derive(Debug)]
pub struct ReloadOrder(Option<oneshot::Sender<Outcome>>);

/// The order to leave, with the one who waits for its outcome.
#[derive(Debug)]
pub struct LeaveOrder(oneshot::Sender<Result<(), Unavailable>>);

/// A way to ask this process. The default leads nowhere.
#[derive(Clone, Debug, Default)]
pub struct Asking(Option<mpsc::Sender<Order>>);

/// A way to ask, and the orders of whoever does, to be carried out one after the other.
pub fn channel() -> (Asking, mpsc::Receiver<Order>) {
    let (sender, orders) = mpsc::channel(ORDERS);
    (Asking(Some(sender)), orders)
}

impl ReloadOrder {
    /// An order whose outcome nobody waits for; the log tells it.
    pub fn of_nobody() -> Self {
        Self(None)
    }

    /// Says what came of it: in the log, and to whoever waits.
    pub fn carried_out(self, outcome: Outcome) {
        match &outcome {
            Ok(changes) => changes.iter().for_each(|change| tracing::info!("reloaded: {change}")),
            // One line, however many keys are wrong: a line of a log is found by its own words.
            Err(reason) => {
                let reason = reason.lines().map(str::trim).collect::<Vec<_>>().join("; ");
                tracing::error!(%reason, "the reload is refused: everything stays as it was");
            }
        }
        if let Some(caller) = self.0 {
            // A caller who is gone has the log.
            let _ = caller.send(outcome);
        }
    }
}

impl LeaveOrder {
    /// Says what came of it to whoever waits; the log has it already.
    pub fn carried_out(self, outcome: Result<(), Unavailable>) {
        // A caller who is gone has the log.
        let _ = self.0.send(outcome);
    }
}

impl Asking {
    /// Asks for a reload, and waits for the outcome.
    ///
    /// # Errors
    /// Everything stays as it was, and the words say why: what is read anew is broken, or the
    /// process is about to stop.
    pub async fn reload(&self) -> Outcome {
        let gone = "this process cannot reload: it is about to stop";
        let (caller, outcome) = oneshot::channel();
        let orders = self.0.as_ref().ok_or(gone)?;
        orders.send(Order::Reload(ReloadOrder(Some(caller)))).await.map_err(|_| gone)?;
        outcome.await.map_err(|_| gone)?
    }

    /// Asks the process to leave and to end, and waits until it has left.
    ///
    /// # Errors
    /// Nothing stops. Unless [`Unavailable::certainly_not_done`], the node may have left: then the
    /// agent registers it again. Or the process is about to stop already.
    pub async fn leave(&self) -> Result<(), Unavailable> {
        let gone = || Unavailable::Denied("this process cannot leave: it is about to stop".into());
        let (caller, outcome) = oneshot::channel();
        let orders = self.0.as_ref().ok_or_else(gone)?;
        orders.send(Order::Leave(LeaveOrder(caller))).await.map_err(|_| gone())?;
        outcome.await.map_err(|_| gone())?
    }
}
