//! A program on a host of a fleet: it creates a session that ends with its host, and takes one lock
//! under it. One program holds the host's own lock as long as it can. Another one waits for the
//! lock of the previous host, notes the time of its grant, and releases it.

use crate::sim::client::Wish;
use crate::sim::judge::Judge;
use crate::sim::plan::ResidentPlan;
use crate::sim::stage::Stage;
use lockmesh_core::State;
use lockmesh_protocol::command::{Command, KvCommand, NewEntry};
use lockmesh_protocol::id::{Key, SessionId};
use lockmesh_protocol::record::SessionSpec;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Wait in a lock's queue before the request is repeated.
const WAIT: Duration = Duration::from_secs(600);

/// See the [module](self).
#[derive(Debug)]
pub struct Resident {
    /// The host that it runs on.
    host: usize,
    /// The host whose lock it takes.
    of: usize,
    plan: ResidentPlan,
    session: Option<SessionId>,
    /// The time at which it was last notified of a grant.
    granted: Option<Time>,
}

impl Resident {
    /// Returns the programs of one host.
    pub fn all(plan: ResidentPlan, host: usize, hosts: usize) -> Vec<Self> {
        let resident = |of| Self { host, of, plan, session: None, granted: None };
        let before = (host + hosts - 1) % hosts;
        let waiter = plan.is_contended.then(|| resident(before));
        std::iter::once(resident(host)).chain(waiter).collect()
    }

    /// Returns the lock of a host.
    pub fn lock_of(host: usize) -> Key {
        Key::from(format!("host/{host}"))
    }

    /// Returns the time at which it was last granted another host's lock.
    pub fn took_over(&self) -> Option<Time> {
        self.granted.filter(|_| self.of != self.host)
    }

    /// Returns its session if it holds its own host's lock.
    pub fn holds_own(&self, state: &State) -> Option<SessionId> {
        let session = self.session.filter(|_| self.of == self.host)?;
        (state.holder(&Self::lock_of(self.of)) == Some(&session)).then_some(session)
    }

    /// Returns `true` if it waits in the queue for another host's lock.
    pub fn waits(&self, state: &State) -> bool {
        let lock = Self::lock_of(self.of);
        let waits = |id| state.waiters().any(|(key, _, waiter)| *key == lock && waiter.session == id);
        self.of != self.host && self.session.is_some_and(waits)
    }

    /// Returns the next request, if any.
    pub fn wish(&mut self, stage: &mut Stage, judge: &Judge) -> Option<Wish> {
        let state = judge.history.state();
        // As its session's events would report it.
        self.session = self.session.filter(|id| state.session(*id).is_some());
        let Some(session) = self.session else { return Some(self.create(stage)) };
        let key = Self::lock_of(self.of);
        let holder = state.holder(&key);
        let new = NewEntry { key: key.clone(), value: Vec::new().into(), flags: 0 };
        let command = match (holder == Some(&session), self.of == self.host) {
            (true, true) => return None,
            (true, false) => KvCommand::Release(new, session),
            (false, false) if holder.is_none() => return None,
            (false, _) => KvCommand::Enqueue { new, session, wait: WAIT },
        };
        Some(Wish::new(stage.now, Request::Propose(None, Command::Kv(command))))
    }

    fn create(&mut self, stage: &mut Stage) -> Wish {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&stage.draw.bits().to_be_bytes());
        bytes[8..].copy_from_slice(&stage.draw.bits().to_be_bytes());
        let spec = SessionSpec {
            health_window: self.plan.window,
            ..SessionSpec::of(SessionId::from_random(bytes), format!("n{}", self.host).into())
        };
        Wish::new(stage.now, Request::Propose(None, Command::CreateSession(spec)))
    }

    /// Receives the response to a request.
    pub fn receive_response(&mut self, stage: &Stage, response: &Response) {
        let Response::Applied(Applied { reply, .. }) = response else { return };
        match reply {
            Reply::Session(id) => self.session = Some(*id),
            Reply::Granted { .. } => self.granted = Some(stage.now),
            _ => {}
        }
    }

    /// Its host died: it is another program from now on.
    pub fn restart(&mut self) {
        (self.session, self.granted) = (None, None);
    }
}
