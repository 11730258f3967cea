//! Requests to a running process: stop (SIGTERM, SIGINT), reload (SIGHUP or a request of its API),
//! and leave the cluster (a request of its API).

use crate::error::RunError;
use lockmesh_agent::reload::{self, Asking, LeaveOrder, Order, Outcome, ReloadOrder};
use lockmesh_protocol::rpc::Unavailable;
use std::io::{IsTerminal, stderr};
use std::pin::pin;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// Everything that a process is asked, one after the other.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    orders: mpsc::Receiver<Order>,
    on_terminal: bool,
    /// Closes with standard input, where that counts.
    stdin_end: Option<oneshot::Receiver<()>>,
}

/// A request.
#[derive(Debug)]
pub enum Event {
    /// To end.
    Stop(Ending),
    /// To reload.
    Reload(ReloadOrder),
    /// To leave, and to end then.
    Leave(LeaveOrder),
}

/// The reason for the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By SIGTERM, from the service manager.
    Terminated,
    /// By SIGINT, or because its parent process has ended.
    Interrupted,
    /// Its node has left the cluster.
    Left,
}

impl Signals {
    /// Begins to listen; must be called on a runtime, and before anything that a signal must not
    /// cut off.
    ///
    /// # Errors
    /// The system refuses to hand signals over. The process must not start: it could not be stopped
    /// in order.
    pub fn new() -> Result<(Self, Asking), RunError> {
        let listen =
            |kind| signal(kind).map_err(|error| RunError::system("cannot listen for signals", error));
        let (asking, orders) = reload::channel();
        let this = Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            orders,
            on_terminal: stderr().is_terminal(),
            stdin_end: None,
        };
        Ok((this, asking))
    }

    /// Stops the process at the end of standard input, when the parent process that holds the other
    /// end has ended.
    pub fn stop_with_stdin(&mut self) {
        let (life, end) = oneshot::channel();
        self.stdin_end = Some(end);
        // A thread of its own, since a read of standard input cannot be called off when the process
        // stops.
        std::thread::spawn(move || {
            let _life: oneshot::Sender<()> = life;
            // An error is an end too.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        });
    }

    /// Waits for what is asked next.
    pub async fn next(&mut self) -> Event {
        tokio::select! {
            _ = self.interrupt.recv() => tracing::info!("interrupted: stopping"),
            _ = self.terminate.recv() => {
                tracing::info!("terminated: stopping");
                return Event::Stop(Ending::Terminated);
            }
            // A closed terminal sends SIGHUP as well, without a request to reload.
            _ = self.hangup.recv() => match self.on_terminal && !stderr().is_terminal() {
                true => {}
                false => return Event::Reload(ReloadOrder::without_caller()),
            },
            () = closed(&mut self.stdin_end) => tracing::info!("the end of standard input: stopping"),
            Some(order) = self.orders.recv() => return match order {
                Order::Reload(order) => Event::Reload(order),
                Order::Leave(order) => Event::Leave(order),
            },
        }
        Event::Stop(Ending::Interrupted)
    }

    /// Handles reload requests until the process has to end, by a signal or after a successful
    /// `leave`; reports once that it is ready.
    pub async fn serve(
        mut self,
        ready: impl Future<Output = ()>,
        say_ready: impl FnOnce(),
        mut reload: impl FnMut() -> Outcome,
        leave: impl AsyncFn() -> Result<(), Unavailable>,
    ) -> Ending {
        let mut ready = pin!(ready);
        let mut say_ready = Some(say_ready);
        loop {
            tokio::select! {
                // A future that has ended must not be polled again.
                () = &mut ready, if say_ready.is_some() => say_ready.take().into_iter().for_each(|say| say()),
                event = self.next() => match event {
                    Event::Stop(ending) => return ending,
                    Event::Reload(order) => order.carried_out(reload()),
                    Event::Leave(order) => {
                        if let Some(ending) = self.leave(order, &mut reload, &leave).await {
                            return ending;
                        }
                    }
                },
            }
        }
    }

    /// Leaves; why the process ends then, if it does. A signal is obeyed meanwhile.
    async fn leave(
        &mut self,
        order: LeaveOrder,
        reload: &mut impl FnMut() -> Outcome,
        leave: &impl AsyncFn() -> Result<(), Unavailable>,
    ) -> Option<Ending> {
        let mut leaving = pin!(leave());
        let outcome = loop {
            tokio::select! {
                outcome = &mut leaving => break outcome,
                event = self.next() => match event {
                    Event::Stop(ending) => return Some(ending),
                    Event::Reload(order) => order.carried_out(reload()),
                    Event::Leave(second) => {
                        let reason = "this node is about to leave already";
                        second.carried_out(Err(Unavailable::Denied(reason.into())));
                    }
                },
            }
        };
        let ending = outcome.is_ok().then_some(Ending::Left);
        order.carried_out(outcome);
        ending
    }
}

async fn closed(end: &mut Option<oneshot::Receiver<()>>) {
    match end {
        // Nothing is ever sent.
        Some(end) => drop(end.await),
        None => std::future::pending().await,
    }
}
