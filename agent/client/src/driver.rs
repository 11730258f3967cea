//! Drives a [`Holder`]: connects it with the clock, the client and the waiting callers.
//!
//! Every input is processed under one lock, and the resulting requests are sent at once, each in a
//! task of its own. One additional task drives the timers. The driver makes no decisions.

use crate::client::{Answer, Client, Tidying};
use crate::clock::Timer;
use crate::entry::{Acquired, AcquiredAll, Entry};
use crate::error::Error;
use crate::holder::{
    Acquisition, Event, Goal, Grant, GuardState, HoldId, Holder, HolderRequest, Input, KeysRead,
    MAX_STALENESS, Moment, NodeLease, Notice, Outbox, Request, Response, SessionUse, Write,
};
use crate::loss::Loss;
use crate::read::{Consistency, Read};
use crate::session_options::SessionOptions;
use crate::shape::lockmesh::FenceClaim;
use crate::txn::{Outcome, Txn};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tracing::{debug, warn};

/// A reference to a running holder. When the last reference is dropped, everything is released in
/// the background.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<HoldersShared>,
}

/// The state shared by handles, requests and the timer task.
#[derive(Debug)]
struct HoldersShared {
    client: Client,
    runtime: Handle,
    state: Mutex<HoldersState>,
    /// Notified after every input.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct HoldersState {
    holder: Holder,
    outbox: Outbox,
    under_way: BTreeMap<HolderRequest, AbortHandle>,
    kept: Option<oneshot::Sender<Result<String, Error>>>,
    closed: Option<oneshot::Sender<Result<(), Error>>>,
    acquiring: BTreeMap<HoldId, oneshot::Sender<Result<Option<Grant>, Error>>>,
    releasing: BTreeMap<HoldId, oneshot::Sender<Result<bool, Error>>>,
    tidying: Option<Tidying>,
    /// The session that the client knows as its own.
    session: Option<String>,
    last_hold: u64,
}

/// An acquisition or a hold. Dropping it releases it in the background.
#[derive(Debug)]
pub(crate) struct Hold {
    driver: Arc<Driver>,
    id: HoldId,
}

impl Driver {
    /// Starts the driver. Must be called inside a runtime, in which all of its tasks run.
    pub(crate) fn start(client: &Client, options: SessionOptions, session_use: SessionUse) -> Arc<Self> {
        let state = HoldersState {
            holder: Holder::new(options, session_use, random_seed()),
            outbox: Outbox::default(),
            under_way: BTreeMap::new(),
            kept: None,
            closed: None,
            acquiring: BTreeMap::new(),
            releasing: BTreeMap::new(),
            tidying: None,
            session: None,
            last_hold: 0,
        };
        let shared = HoldersShared {
            client: client.clone(),
            runtime: Handle::current(),
            state: Mutex::new(state),
            changed: watch::Sender::new(()),
        };
        let shared = Arc::new(shared);
        shared.runtime.spawn(send_ticks(Arc::clone(&shared)));
        Arc::new(Self { shared })
    }

    /// Creates a session and keeps it alive; returns its id.
    pub(crate) async fn keep(&self) -> Result<String, Error> {
        let (sender, kept) = oneshot::channel();
        self.shared.state().kept = Some(sender);
        self.shared.handle_input(Input::Keep);
        kept.await.expect("a creation is answered")
    }

    /// Acquires a hold. If the future is dropped, the acquisition is released.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        wanted: Acquisition,
    ) -> Result<Option<(Hold, Grant)>, Error> {
        let (sender, acquired) = oneshot::channel();
        let id = {
            let mut state = self.shared.state();
            let id = state.next_hold();
            // Registered before the input is processed, because the result may come in the same
            // turn.
            state.acquiring.insert(id, sender);
            id
        };
        // Created before the grant: if this future is dropped, its drop releases the outcome.
        let hold = Hold { driver: Arc::clone(self), id };
        self.shared.handle_input(Input::Acquire(id, wanted));
        let grant = acquired.await.expect("an acquisition is answered")?;
        Ok(grant.map(|grant| (hold, grant)))
    }

    /// Releases what a dead process holds under this session, then ends the session.
    pub(crate) async fn give_back(
        self: &Arc<Self>,
        goal: Goal,
        session: (String, Moment),
    ) -> Result<bool, Error> {
        let (sender, released) = oneshot::channel();
        let id = self.shared.state().next_hold();
        self.shared.state().releasing.insert(id, sender);
        self.shared.handle_input(Input::GiveBack(id, goal, session));
        // The sender is dropped without a result only with the driver, which this borrows.
        released.await.expect("a release is answered")
    }

    /// Ends the session.
    pub(crate) async fn close(&self) -> Result<(), Error> {
        let (sender, closed) = oneshot::channel();
        self.shared.state().closed = Some(sender);
        self.shared.handle_input(Input::Close);
        // The sender is dropped only for a later close, which ends the same session.
        closed.await.unwrap_or(Ok(()))
    }

    pub(crate) fn remaining(&self) -> Duration {
        let now = self.shared.client.clock().now();
        self.shared.state().holder.session_remaining(now)
    }

    /// Waits until the session is lost or suspended.
    pub(crate) async fn lost(&self) -> Loss {
        self.shared.when(|holder, now| holder.session_state(now).reason_to_stop()).await
    }

    pub(crate) fn state(&self) -> GuardState {
        let now = self.shared.client.clock().now();
        self.shared.state().holder.session_state(now)
    }

    /// Waits until the state of the session differs from `known`.
    pub(crate) async fn changed(&self, known: &GuardState) -> GuardState {
        self.shared.when(|holder, now| unlike(known, holder.session_state(now))).await
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.handle_input(Input::Abandon);
    }
}

impl Hold {
    pub(crate) fn remaining(&self) -> Duration {
        let now = self.driver.shared.client.clock().now();
        self.driver.shared.state().holder.remaining(self.id, now)
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Waits until the hold is lost or suspended.
    pub(crate) async fn lost(&self) -> Loss {
        self.driver.shared.when(|holder, now| holder.reason_to_stop(self.id, now)).await
    }

    pub(crate) fn state(&self) -> GuardState {
        let now = self.driver.shared.client.clock().now();
        self.driver.shared.state().holder.state(self.id, now)
    }

    /// Waits until the state of the hold differs from `known`.
    pub(crate) async fn changed(&self, known: &GuardState) -> GuardState {
        self.driver.shared.when(|holder, now| unlike(known, holder.state(self.id, now))).await
    }

    /// Waits until the state of the hold differs from `known`, a later deadline included. The state
    /// of a loss comes with its reason.
    pub(crate) async fn next_state(&self, known: &GuardState) -> GuardState {
        let explained = |holder: &Holder, now| holder.explained_state(self.id, now);
        self.driver.shared.when(|holder, now| explained(holder, now).filter(|state| state != known)).await
    }

    /// Sets the value that is written to the lock when it is released.
    pub(crate) fn written(&self, value: Bytes) {
        self.driver.shared.handle_input(Input::Written(self.id, value));
    }

    pub(crate) async fn release(self) -> Result<bool, Error> {
        let (sender, released) = oneshot::channel();
        self.driver.shared.state().releasing.insert(self.id, sender);
        self.driver.shared.handle_input(Input::Release(self.id));
        released.await.unwrap_or(Ok(false))
    }

    /// Releases the hold in the background, as lost.
    pub(crate) fn give_up(self) {
        self.driver.shared.handle_input(Input::GiveUp(self.id));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.driver.shared.handle_input(Input::Drop(self.id));
    }
}

impl HoldersShared {
    fn state(&self) -> MutexGuard<'_, HoldersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes an input to the holder and carries out the resulting actions.
    fn handle_input(self: &Arc<Self>, input: Input) {
        let mut state = self.state();
        let HoldersState { holder, outbox, .. } = &mut *state;
        holder.handle(self.client.clock().now(), input, outbox);
        let Outbox { cancelled, requests, events, notices } = std::mem::take(outbox);
        for number in cancelled {
            if let Some(task) = state.under_way.remove(&number) {
                // Ends its connection too, so that the agent frees what the request waits for.
                task.abort();
            }
        }
        for (number, request) in requests {
            let task = self.runtime.spawn(answer(Arc::clone(self), number, request));
            // Under the lock, which the task needs to remove itself: it cannot have done so before.
            state.under_way.insert(number, task.abort_handle());
        }
        events.into_iter().for_each(|event| state.notify_waiting(event));
        notices.into_iter().for_each(log);
        // Counted until everything is released, because `Client::settled` waits for that.
        if state.holder.is_tidying() != state.tidying.is_some() {
            state.tidying = state.holder.is_tidying().then(|| self.client.begin_tidying());
        }
        state.note_session(&self.client);
        drop(state);
        // Notifies without the lock, because all woken tasks acquire it.
        self.changed.send_replace(());
    }

    /// Waits until `known` returns a value.
    async fn when<T>(&self, known: impl Fn(&Holder, Moment) -> Option<T>) -> T {
        // Subscribes before the first check, so that no change is missed.
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(known) = known(&self.state().holder, self.client.clock().now()) {
                return known;
            }
            // This value owns the sender, so the channel cannot close.
            let _ = changed.changed().await;
        }
    }
}

impl HoldersState {
    fn next_hold(&mut self) -> HoldId {
        self.last_hold += 1;
        HoldId(self.last_hold)
    }

    /// Tells the client the current session, which is none once it is lost.
    fn note_session(&mut self, client: &Client) {
        let current = self.holder.session().filter(|_| self.holder.session_loss().is_none());
        if current != self.session.as_deref() {
            client.note_session(self.session.as_deref(), current);
            self.session = current.map(str::to_owned);
        }
    }

    /// Delivers an event to its waiting caller, which may be gone.
    fn notify_waiting(&mut self, event: Event) {
        match event {
            Event::Kept(result) => drop(self.kept.take().map(|waiting| waiting.send(result))),
            Event::Closed(result) => drop(self.closed.take().map(|waiting| waiting.send(result))),
            Event::Acquired(id, result) => {
                drop(self.acquiring.remove(&id).map(|waiting| waiting.send(result)));
            }
            Event::Released(id, result) => {
                drop(self.releasing.remove(&id).map(|waiting| waiting.send(result)));
            }
            // These stay visible in the state: waiting callers check again.
            Event::Lost(..) | Event::SessionLost(_) => {}
        }
    }
}

fn unlike(known: &GuardState, state: GuardState) -> Option<GuardState> {
    (!state.is_like(known)).then_some(state)
}

/// Ticks at the holder's wake-up times until the holder is done.
async fn send_ticks(shared: Arc<HoldersShared>) {
    let mut changed = shared.changed.subscribe();
    let mut timer = Timer::new(shared.client.clock());
    loop {
        // Before the check: any later change wakes this task again.
        changed.borrow_and_update();
        let (wakes_at, is_done) = {
            let state = shared.state();
            (state.holder.wakes_at(), state.holder.is_done())
        };
        // Without handles no input can come, so no timers are needed any more.
        if is_done {
            return;
        }
        let wake = async {
            match wakes_at {
                Some(at) => timer.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = changed.changed() => {}
            () = wake => shared.handle_input(Input::Tick),
        }
    }
}

async fn answer(shared: Arc<HoldersShared>, number: HolderRequest, request: Request) {
    let result = carry_out(&shared.client, request).await;
    shared.state().under_way.remove(&number);
    shared.handle_input(Input::Answered(number, result));
}

async fn carry_out(client: &Client, request: Request) -> Result<Response, Error> {
    let (kv, sessions) = (client.kv(), client.sessions());
    match request {
        Request::CreateSession(options) => {
            sessions.create_with_window(&options.request()).await.map(Response::Created)
        }
        Request::Renew(session, limit) => {
            sessions.renew_within(&session, limit).await.map(|found| Response::Found(found.is_some()))
        }
        Request::FindSession(session, limit) => {
            let found = sessions.info_within(&session, &Read::default(), limit).await;
            found.map(|found| Response::Found(found.value.is_some()))
        }
        Request::NodeLease(session, read) => {
            let answer = sessions.events(&session, &read).await?;
            let lease = NodeLease::of(answer.value, client.clock().now());
            lease.map(Response::NodeLease).map_err(|why| client.garbled(why.to_string()))
        }
        Request::EndSession(session, reason) => sessions.end(&session, reason).await.map(|()| Response::Done),
        Request::Get(key, read) => kv.get(&key, &read).await.map(|entry| looked(entry, read)),
        Request::GetHeld(key, session, read) => {
            kv.held(&key, &session, &read).await.map(|entry| looked(entry, read))
        }
        Request::GetAll(wanted) => read_all(client, wanted).await,
        Request::List(prefix, read) => {
            kv.list(&prefix, &read).await.map(|answer| Response::Entries(answer.value, answer.index))
        }
        Request::Acquire(Write { key, value, flags }, session, queue_for) => match queue_for {
            Some(wait) => kv.acquire_waiting(&key, &session, value, flags, wait).await,
            None => kv.acquire(&key, &session, value, flags).await,
        }
        .map(Response::Acquired),
        Request::AcquireShared(Write { key, flags, .. }, session, queue_for) => {
            kv.acquire_shared(&key, &session, flags, queue_for).await.map(Response::Acquired)
        }
        Request::AcquireAll(request, wait) => Ok(match kv.acquire_all(&request, wait).await? {
            AcquiredAll::Granted { fences } => Response::AcquiredAll(fences),
            AcquiredAll::Refused { delay } => Response::Acquired(Acquired::Refused { delay }),
        }),
        Request::ReleaseAll(writes, session) => {
            let unlock = |txn: Txn, Write { key, value, flags }| txn.unlock(&key, &session, value, flags);
            let txn = writes.into_iter().fold(Txn::new(), unlock);
            let outcome = client.txn(&txn, &Read::default()).await?;
            Ok(Response::Verdict(matches!(outcome, Outcome::Done(_))))
        }
        Request::Release(write, session) => {
            kv.release(&write.key, &session, write.value, write.flags).await.map(Response::Verdict)
        }
        Request::Cas(write, index) => {
            kv.cas(&write.key, write.value, write.flags, index).await.map(Response::Verdict)
        }
        Request::Delete(key) => kv.delete(&key).await.map(|()| Response::Done),
    }
}

async fn read_all(client: &Client, wanted: KeysRead) -> Result<Response, Error> {
    let KeysRead { keys, session, fences, read } = wanted;
    if read.index > 0 {
        let claims = keys.iter().cloned().zip(fences).map(|(key, fence)| FenceClaim { key, fence });
        client.kv().verify_fences(&claims.collect::<Vec<_>>(), read.wait).await?;
    }
    let read = Read { index: 0, ..read };
    let (mut entries, mut index) = (Vec::new(), 0);
    for key in &keys {
        match looked(client.kv().held(key, &session, &read).await?, read) {
            Response::Entries(found, at) => {
                entries.extend(found);
                index = at.max(index);
            }
            outdated => return Ok(outdated),
        }
    }
    Ok(Response::Entries(entries, index))
}

fn looked(entry: Answer<Option<Entry>>, read: Read) -> Response {
    let is_stale = read.consistency == Consistency::Stale;
    match is_stale && entry.last_contact > MAX_STALENESS {
        true => Response::Outdated,
        false => Response::Entries(entry.value.into_iter().collect(), entry.index),
    }
}

fn log(notice: Notice) {
    match notice {
        Notice::RenewalFailed(error) => debug!(error, "session renewal failed; retrying"),
        Notice::DeadlinePassed(session, keys) => {
            let keys = keys.join(" ");
            warn!(session, keys, "session not renewed before its deadline; its locks are lost");
        }
        Notice::Suspended(session, keys) => {
            let keys = keys.join(" ");
            warn!(
                session,
                keys,
                "node's lease not renewed before its deadline; locks do not count as held until it is renewed and \
                 they are read again, or are lost with the session"
            );
        }
        Notice::Resumed(session, keys) => {
            let keys = keys.join(" ");
            warn!(session, keys, "node's lease renewed again; reading the locks");
        }
        Notice::TryingAgain(name, error) => debug!(name, error, "request failed; retrying"),
        Notice::NotGivenBack(name, error) => {
            debug!(name, error, "release failed; the hold ends with its session");
        }
        Notice::NotDestroyed(session, error) => {
            debug!(session, error, "cannot destroy the session; it ends with its TTL");
        }
    }
}

/// Returns a random seed. For jitter, not for secrets.
pub(crate) fn random_seed() -> u64 {
    fastrand::u64(..)
}
