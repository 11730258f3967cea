//! The agent's registration with the leader: at startup, and again when the servers no longer know
//! it.
//!
//! **Invariant:** nothing else is sent to a leader that does not know this agent's current
//! registration.

use super::calls::{CallKind, PendingCall, RetryScope};
use super::outbox::Notice;
use super::{QuorumClient, Timer};
use crate::request_ids::Registration;
use crate::servers::Slot;
use core::net::IpAddr;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use std::collections::BTreeMap;
use std::time::Duration;

/// The timeout of a registration.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The pauses between attempts to register.
const REGISTRATION_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Registrar {
    /// `true` if the leader knows this agent's registration, as far as the agent can tell.
    pub(super) is_registered: bool,
    /// `true` if the agent's address has changed since it registered.
    is_outdated: bool,
    /// `true` while an attempt is under way.
    is_under_way: bool,
    /// `true` if the node is leaving: registering again would bring it back.
    pub(super) is_leaving: bool,
    /// `true` while the next attempt has to wait.
    is_pausing: bool,
    backoff: Backoff,
    /// The reason why the last attempt failed.
    log: LogOnChange,
}

impl Registrar {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            is_registered: false,
            is_outdated: false,
            is_under_way: false,
            is_leaving: false,
            is_pausing: false,
            backoff: Backoff::new(REGISTRATION_BACKOFF, seed),
            log: LogOnChange::default(),
        }
    }

    /// Returns `true` if the agent must register. `is_idle` is `true` if no command is under way:
    /// the outcome of those would be lost, and a new address is not that urgent.
    fn is_due(&self, is_idle: bool) -> bool {
        let is_wanted = !self.is_registered || (self.is_outdated && is_idle);
        is_wanted && !self.is_under_way && !self.is_pausing && !self.is_leaving
    }

    pub(super) fn pause_is_over(&mut self) {
        self.is_pausing = false;
    }
}

/// Returns a node's addresses by purpose, as Consul's agents report them.
pub fn tagged_addresses(address: IpAddr) -> BTreeMap<String, String> {
    let families = if address.is_ipv4() { ["lan_ipv4", "wan_ipv4"] } else { ["lan_ipv6", "wan_ipv6"] };
    ["lan", "wan"].into_iter().chain(families).map(|tag| (tag.to_owned(), address.to_string())).collect()
}

impl QuorumClient {
    /// Registers if that is due and there is a leader; returns `true` if it did.
    pub(super) fn register_if_due(&mut self) -> bool {
        let is_idle = self.ids.span() == 0;
        let Some(slot) = self.leader.filter(|_| self.registrar.is_due(is_idle)) else { return false };
        let Some(connection) = self.links.get(&slot).and_then(|link| link.connection()) else { return false };
        self.registrar.is_under_way = true;
        // Until the reply, commands wait: they would belong to the former registration.
        (self.registrar.is_registered, self.registrar.is_outdated) = (false, false);
        let (kind, scope) = (CallKind::Registration, RetryScope::Leader);
        let call = PendingCall { kind, scope, begun: self.now, deadline: self.now + REGISTRATION_TIMEOUT };
        // Without an id: request ids begin with a registration.
        let request = Request::Propose(None, Command::RegisterAgent(self.config.registration.clone()));
        self.send(slot, connection, call, request);
        true
    }

    /// Handles servers that no longer know this registration: the agent must register again before
    /// commands continue.
    pub(super) fn forgotten(&mut self, registration: Registration) {
        // A late reply to a command of an earlier registration does not concern the current one.
        if self.ids.registration() == Some(registration) {
            self.registrar.is_registered = false;
        }
    }

    /// Handles a change of the agent's address, which its next registration reports.
    pub(super) fn own_address_changed(&mut self, address: IpAddr) {
        let AgentRegistration { node, gossip, .. } = &mut self.config.registration;
        if node.address == address.to_string() {
            return;
        }
        node.address = address.to_string();
        node.tagged_addresses = tagged_addresses(address);
        if let Some(gossip) = gossip {
            gossip.set_ip(address);
        }
        self.registrar.is_outdated = true;
    }

    /// Resumes after a leave that did not happen.
    pub(super) fn stay(&mut self, may_have_left: bool) {
        self.registrar.is_leaving = false;
        // Under the current lease if it is valid; otherwise as a member that returns.
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
                // Waiting does not change that, so callers that wait for the registration get an
                // error.
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
            other => format!("unexpected reply to the registration: {other:?}"),
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
