//! The way to ask this process to reload: its API asks, and whoever runs the process carries the
//! order out.

use tokio::sync::{mpsc, oneshot};

/// How many reloads may be asked for and not yet begun; more wait for their turn.
const ORDERS: usize = 4;

/// What changed, in words, one thing a line; or why nothing did.
pub type Outcome = Result<Vec<String>, String>;

/// The order to reload, with the one who waits for its outcome, if anybody does.
#[derive(Debug)]
pub struct Order(Option<oneshot::Sender<Outcome>>);

/// A way to ask this process to reload. The default leads nowhere.
#[derive(Clone, Debug, Default)]
pub struct Asking(Option<mpsc::Sender<Order>>);

/// A way to ask, and the orders of whoever does, to be carried out one after the other.
pub fn channel() -> (Asking, mpsc::Receiver<Order>) {
    let (sender, orders) = mpsc::channel(ORDERS);
    (Asking(Some(sender)), orders)
}

impl Order {
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

impl Asking {
    /// Asks, and waits for the outcome.
    ///
    /// # Errors
    /// Everything stays as it was, and the words say why: what is read anew is broken, or the
    /// process is about to stop.
    pub async fn reload(&self) -> Outcome {
        let gone = "this process cannot reload: it is about to stop";
        let (caller, outcome) = oneshot::channel();
        let orders = self.0.as_ref().ok_or(gone)?;
        orders.send(Order(Some(caller))).await.map_err(|_| gone)?;
        outcome.await.map_err(|_| gone)?
    }
}
