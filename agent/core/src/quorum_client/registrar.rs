//! The agent's registration with the leader: at the start, and whenever the servers do not know it
//! any more.
//!
//! **Invariant:** nothing else is sent to a leader that does not know this agent's present
//! registration.

use super::calls::{CallKind, PendingCall, RetryScope};
use super::outbox::Notice;
use super::{QuorumClient, Timer};
use crate::request_ids::Registration;
use crate::servers::Slot;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::time::Duration;

/// How long a registration's answer is waited for.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The pauses between attempts to register.
const REGISTRATION_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Registrar {
    /// Whether the leader knows this agent's registration, as far as can be said.
    pub(super) is_registered: bool,
    /// Whether an attempt is under way.
    is_under_way: bool,
    /// Whether the node leaves: to register again would bring it back.
    pub(super) is_leaving: bool,
    /// Whether the next attempt has to wait.
    is_pausing: bool,
    backoff: Backoff,
    /// Why the last attempt failed.
    log: LogOnChange,
}

impl Registrar {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            is_registered: false,
            is_under_way: false,
            is_leaving: false,
            is_pausing: false,
            backoff: Backoff::new(REGISTRATION_BACKOFF, seed),
            log: LogOnChange::default(),
        }
    }

    fn is_due(&self) -> bool {
        !self.is_registered && !self.is_under_way && !self.is_pausing && !self.is_leaving
    }

    pub(super) fn pause_is_over(&mut self) {
        self.is_pausing = false;
    }
}

impl QuorumClient {
    /// Registers, where that is needed and there is a leader; whether it did.
    pub(super) fn register_if_due(&mut self) -> bool {
        let Some(slot) = self.leader.filter(|_| self.registrar.is_due()) else { return false };
        let Some(connection) = self.links.get(&slot).and_then(|link| link.connection()) else { return false };
        self.registrar.is_under_way = true;
        let (kind, scope) = (CallKind::Registration, RetryScope::Leader);
        let call = PendingCall { kind, scope, begun: self.now, deadline: self.now + REGISTRATION_TIMEOUT };
        // Without an id: request ids begin with a registration.
        let request = Request::Propose(None, Command::RegisterAgent(self.config.registration.clone()));
        self.send(slot, connection, call, request);
        true
    }

    /// The servers do not know this registration of the agent any more: another one must begin
    /// before commands go on.
    pub(super) fn forgotten(&mut self, registration: Registration) {
        // A late answer to a command of an earlier registration says nothing of the present one.
        if self.ids.registration() == Some(registration) {
            self.registrar.is_registered = false;
        }
    }

    /// The node does not leave after all.
    pub(super) fn stay(&mut self, may_have_left: bool) {
        self.registrar.is_leaving = false;
        // Under the lease that it has, if that lives; as a member that came back, if not.
        self.registrar.is_registered &= !may_have_left;
    }

    pub(super) fn registration_answered(&mut self, slot: Slot, response: Response) {
        let failure = match response {
            Response::Applied(Applied {
                reply: Reply::Agent { number, generation, lease, secret }, ..
            }) => {
                return self.registered(Registration { number, generation, lease, secret });
            }
            Response::Applied(Applied { reply: Reply::Refused(refusal), .. }) => {
                // No waiting mends that, so whoever waits for the registration is told.
                self.admission.denied(&refusal.to_string());
                refusal.to_string()
            }
            Response::Unavailable(reason) => {
                match &reason {
                    Unavailable::NotLeader { leader } => {
                        self.tell(|tracker, now| tracker.refused(slot, leader.as_deref(), now));
                    }
                    Unavailable::Removed | Unavailable::Corrupt => {
                        self.tell(|tracker, now| tracker.removed(slot, now));
                    }
                    Unavailable::Denied(why) => self.admission.denied(why),
                    _ => {}
                }
                reason.to_string()
            }
            other => format!("an answer that fits no registration: {other:?}"),
        };
        self.registration_failed(failure);
    }

    fn registered(&mut self, registration: Registration) {
        self.registrar.is_under_way = false;
        self.registrar.is_registered = true;
        self.registrar.backoff.reset();
        self.registrar.log.reset();
        self.counts.registrations += 1;
        self.tracker.registered();
        self.renewals.begin(&registration, self.now);
        let cluster = self.tracker.cluster_id().to_owned();
        self.outbox.notices.push(Notice::Registered { registration, cluster });
        let admitted = self.ids.register(registration);
        self.admit(admitted);
        self.admission.registered();
        self.notice_refusal();
        self.routes_changed = true;
    }

    pub(super) fn registration_failed(&mut self, failure: String) {
        self.registrar.is_under_way = false;
        self.registrar.is_pausing = true;
        let at = self.now + self.registrar.backoff.next_pause();
        self.timers.insert((at, Timer::Registration));
        self.notice_refusal();
        if self.registrar.log.is_new(&failure) {
            self.outbox.notices.push(Notice::NotRegistered(failure));
        }
    }
}
