//! Keeps the connection to one server for as long as it is wanted, and says what becomes of it.

use super::fleet::Fleet;
use super::table::{CallTable, Lane};
use lockmesh_agent_core::backoff::Backoff;
use lockmesh_agent_core::servers::Slot;
use lockmesh_net::quic::{FrameReceiver, FrameSender};
use lockmesh_net::{Close, Connection, LinkError, Purpose, Role};
use lockmesh_protocol::rpc::{ReplyFrame, Request, Response, Unavailable};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// How long one attempt to connect may take.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// How often calls that got no answer are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// How often it is looked whether anything has arrived at all.
const LISTEN_INTERVAL: Duration = Duration::from_millis(500);

/// A connection on which nothing arrives for so long is quiet: longer than the pause between two signs of life, and
/// shorter than what ends a connection.
const QUIET_TIME: Duration = Duration::from_millis(2500);

/// How long a status is waited for; a server that owes one is given up much earlier.
const STATUS_TIME: Duration = Duration::from_secs(60);

/// What the fleet wants of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wish {
    /// No connection for now.
    #[default]
    Rest,
    /// A connection, again and again.
    Connect,
    /// Never a connection again.
    End,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) slot: Slot,
    pub(super) address: String,
    pub(super) table: CallTable,
    wish: watch::Sender<Wish>,
    hasten: Notify,
    ask: Notify,
    cut: Notify,
    is_cut: AtomicBool,
}

impl Link {
    pub(super) fn new(slot: Slot, address: &str) -> Arc<Self> {
        Arc::new(Self {
            slot,
            address: address.into(),
            table: CallTable::default(),
            wish: watch::Sender::default(),
            hasten: Notify::new(),
            ask: Notify::new(),
            cut: Notify::new(),
            is_cut: AtomicBool::new(false),
        })
    }

    /// Connects, and connects again, as long as this is wanted.
    pub(super) fn want(&self, wanted: bool) {
        let wish = if wanted { Wish::Connect } else { Wish::Rest };
        self.wish.send_if_modified(|now| *now != Wish::End && std::mem::replace(now, wish) != wish);
    }

    /// Ends the connection and [`Link::keep`].
    pub(super) fn end(&self) {
        self.wish.send_replace(Wish::End);
        self.table.close();
    }

    /// Cuts the pause before the next attempt to connect short.
    pub(super) fn hasten(&self) {
        self.hasten.notify_one();
    }

    /// Asks the server for its status, which goes to the fleet.
    pub(super) fn ask(&self) {
        self.ask.notify_one();
    }

    /// Gives the connection up, although it may seem to stand.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.cut.notify_one();
    }

    /// Carries out what is wanted until [`Link::end`].
    pub(super) async fn keep(self: Arc<Self>, fleet: Arc<Fleet>) {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2), super::seed());
        let (mut said, mut is_first) = (String::new(), true);
        loop {
            match self.wished(|wish| wish != Wish::Rest).await {
                Wish::End => return,
                Wish::Rest | Wish::Connect => {}
            }
            if !std::mem::take(&mut is_first) {
                fleet.counters.reconnects.fetch_add(1, Ordering::Relaxed);
            }
            let Some(connected) = self.unless_unwanted(self.connect(&fleet)).await else { continue };
            let ended = match connected {
                Ok(connection) => {
                    let ended = self.use_up(&connection, &fleet).await;
                    // Where the server did not believe this agent's certificate, it was no connection.
                    if !matches!(ended, Some(LinkError::Stranger(_))) {
                        backoff.reset();
                        said.clear();
                    }
                    ended
                }
                Err(error) => Some(error),
            };
            match &ended {
                Some(LinkError::Stranger(reason)) => fleet.not_admitted(self.slot, reason.clone()),
                Some(_) => fleet.not_refused(self.slot),
                None => {}
            }
            fleet.lost(self.slot);
            let Some(reason) = ended.map(|error| error.to_string()) else { continue };
            // One line for each change: a server that stays away says nothing new.
            if said != reason {
                tracing::warn!("{reason}; trying again as long as it is needed");
                said = reason;
            }
            let pause = tokio::time::sleep(backoff.next_pause());
            tokio::select! {
                () = pause => {}
                () = self.hasten.notified() => {}
                _ = self.wished(|wish| wish == Wish::End) => {}
            }
        }
    }

    async fn wished(&self, is_it: impl Fn(Wish) -> bool) -> Wish {
        // The sender lives as long as this value, so that the wait ends only when the wish is there.
        self.wish.subscribe().wait_for(|wish| is_it(*wish)).await.map_or(Wish::End, |wish| *wish)
    }

    async fn unless_unwanted<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            output = future => Some(output),
            _ = self.wished(|wish| wish != Wish::Connect) => None,
        }
    }

    /// Tries every address of the server once.
    async fn connect(&self, fleet: &Fleet) -> Result<Connection, LinkError> {
        let server = &self.address;
        let addresses: Vec<SocketAddr> = match tokio::net::lookup_host(server.as_str()).await {
            Ok(addresses) => addresses.collect(),
            Err(error) => {
                return Err(LinkError::Lost(format!(
                    "cannot find the address of the server {server}: {error}"
                )));
            }
        };
        let mut reason = LinkError::Lost(format!("the server {server} has no address"));
        for address in addresses {
            let connecting = fleet.endpoint.connect(address, Role::Server);
            reason = match tokio::time::timeout(CONNECT_TIME, connecting).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => {
                    let text = format!("cannot connect to the server {server} ({address}): {error}");
                    if matches!(error, LinkError::Stranger(_)) {
                        LinkError::Stranger(text)
                    } else {
                        LinkError::Lost(text)
                    }
                }
                Err(_) => {
                    LinkError::Lost(format!("cannot connect to the server {server} ({address}): no answer"))
                }
            };
        }
        Err(reason)
    }

    /// Uses a connection until it ends, and says why it did; `None` when it was not wanted any more.
    async fn use_up(&self, connection: &Connection, fleet: &Arc<Fleet>) -> Option<LinkError> {
        let ended = self.unless_unwanted(self.serve(connection, fleet)).await;
        let refusal = connection.identity_refusal();
        self.table.close();
        match &ended {
            Some(Err(error @ LinkError::Malformed(_))) => {
                connection.close(Close::Malformed, &error.to_string());
            }
            _ => connection.close(Close::Done, ""),
        }
        let reason = match ended? {
            Ok(reason) => reason.into(),
            Err(error) => error.to_string(),
        };
        let address = connection.remote_address();
        Some(match refusal {
            Some(refusal) => LinkError::Stranger(format!("the server {address} refuses it: {refusal}")),
            None => LinkError::Lost(format!("lost the server {address}: {reason}")),
        })
    }

    async fn serve(&self, connection: &Connection, fleet: &Arc<Fleet>) -> Result<&'static str, LinkError> {
        let (mut sender, mut receiver) = connection.open(Purpose::Calls).await?;
        self.is_cut.store(false, Ordering::Relaxed);
        self.table.open();
        fleet.connected(self.slot);
        tokio::select! {
            ended = self.send(fleet, &mut sender) => ended,
            ended = self.receive(fleet, connection, &mut receiver) => ended,
            () = self.watch(fleet) => Ok("it was watched no longer"),
            () = self.sweep() => Ok("it was swept no longer"),
            () = self.answer_for_status(fleet) => Ok("it did not tell its status"),
            () = self.listen(connection, fleet) => Ok("it was listened to no longer"),
            () = self.cut_off() => Ok("it keeps silent"),
        }
    }

    async fn send(&self, fleet: &Fleet, sender: &mut FrameSender) -> Result<&'static str, LinkError> {
        loop {
            self.table.ready().await;
            // Callers that are about to run may have something to say as well: let them, so that it shares a frame.
            tokio::task::yield_now().await;
            let frames = self.table.take();
            fleet.counters.call_frames.fetch_add(frames.len() as u64, Ordering::Relaxed);
            sender.send(frames).await?;
        }
    }

    async fn receive(
        &self,
        fleet: &Fleet,
        connection: &Connection,
        receiver: &mut FrameReceiver,
    ) -> Result<&'static str, LinkError> {
        let mut is_first = true;
        while let Some(ReplyFrame(answers)) = receiver.receive().await? {
            // Before it answers it may yet find that it does not believe this agent's certificate.
            if std::mem::take(&mut is_first) {
                let (address, peer) = (connection.remote_address(), connection.peer());
                tracing::info!(%address, %peer, "connected to a server");
            }
            fleet.counters.reply_frames.fetch_add(1, Ordering::Relaxed);
            self.table.answer(answers);
        }
        Ok("it finished the stream")
    }

    /// Says when a call that is to be answered soon is not, and when that is over. Costs nothing while there is none.
    async fn watch(&self, fleet: &Arc<Fleet>) {
        let probe_after = fleet.probe_after;
        let mut is_slow = false;
        loop {
            let oldest = if is_slow { self.table.oldest_now() } else { Some(self.table.oldest().await) };
            let (now, due) = (Instant::now(), oldest.map(|oldest| oldest + probe_after));
            let was_slow = std::mem::replace(&mut is_slow, due.is_some_and(|due| due <= now));
            if was_slow != is_slow {
                fleet.slow(self.slot, is_slow);
            }
            match due {
                Some(due) if due > now => tokio::time::sleep_until(due.into()).await,
                // The end of slowness is looked for in smaller steps.
                Some(_) => tokio::time::sleep(probe_after / 4).await,
                None => {}
            }
        }
    }

    /// Says when nothing arrives any more, and when that is over. Whoever waits for news may wait for long, so that only
    /// this tells a server that is stopped or cut off from one that has no news.
    async fn listen(&self, connection: &Connection, fleet: &Arc<Fleet>) {
        let (mut heard, mut since, mut is_quiet) = (connection.datagrams_received(), Instant::now(), false);
        loop {
            tokio::time::sleep(LISTEN_INTERVAL).await;
            let (count, now) = (connection.datagrams_received(), Instant::now());
            if std::mem::replace(&mut heard, count) != count {
                since = now;
            }
            let was_quiet = std::mem::replace(&mut is_quiet, now.duration_since(since) >= QUIET_TIME);
            if was_quiet != is_quiet {
                fleet.quiet(self.slot, is_quiet);
            }
        }
    }

    async fn sweep(&self) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            self.table.expire(Instant::now());
        }
    }

    /// Asks for the status whenever the fleet wants to know it.
    async fn answer_for_status(&self, fleet: &Arc<Fleet>) {
        loop {
            self.ask.notified().await;
            fleet.counters.questions.fetch_add(1, Ordering::Relaxed);
            let registration = fleet.sequences.registration();
            match self.table.call(&Request::Status, Lane::Own, STATUS_TIME).await {
                Ok(Response::Status(status)) => fleet.heard(self.slot, &status, registration),
                Ok(Response::Unavailable(Unavailable::Removed | Unavailable::Corrupt)) => {
                    fleet.removed(self.slot);
                }
                Ok(other) => {
                    tracing::debug!(server = %self.address, ?other, "no status");
                    fleet.unheard(self.slot);
                }
                Err(_) => return,
            }
        }
    }

    async fn cut_off(&self) {
        while !self.is_cut.load(Ordering::Relaxed) {
            self.cut.notified().await;
        }
    }
}
