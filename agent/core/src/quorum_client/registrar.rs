//! The agent's registration with the leader: at startup, and again when the servers no longer know
//! it.
//!
//! **Invariant:** nothing else is sent to a leader that does not know this agent's current
//! registration.

use super::calls::{CallKind, PendingCall, RetryScope};
use super::context::{Context, Timer};
use super::outbox::Notice;
use super::routes::Routes;
use crate::request_ids::Registration;
use crate::servers::Slot;
use core::net::IpAddr;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::reply::{Applied, Refusal, Reply};
use lockmesh_protocol::rpc::{Request, Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The timeout of a registration.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The pauses between attempts to register.
const REGISTRATION_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// The reason why a registration failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistrationError {
    /// The state rejects it.
    #[error("{0}")]
    Refused(Refusal),
    /// The server cannot do it.
    #[error("{0}")]
    Unavailable(Unavailable),
    /// The reply belongs to another request.
    #[error("unexpected reply to the registration: {0:?}")]
    Unexpected(Box<Response>),
}

/// The registration of this agent, and its attempt under way.
#[derive(Debug)]
pub(super) struct Registrar {
    registration: AgentRegistration,
    /// `true` if the leader knows this agent's registration, as far as the agent can tell.
    pub(super) is_registered: bool,
    /// `true` if the agent's address or its node's metadata has changed since it registered.
    is_outdated: bool,
    /// `true` while an attempt is under way.
    is_under_way: bool,
    /// `true` if the node is leaving: registering again would bring it back.
    pub(super) is_leaving: bool,
    /// `true` while the next attempt has to wait.
    pub(super) is_pausing: bool,
    backoff: Backoff,
    /// The reason why the last attempt failed.
    log: LogOnChange,
}

impl Registrar {
    pub(super) fn new(registration: AgentRegistration, seed: u64) -> Self {
        Self {
            registration,
            is_registered: false,
            is_outdated: false,
            is_under_way: false,
            is_leaving: false,
            is_pausing: false,
            backoff: Backoff::new(REGISTRATION_BACKOFF, seed),
            log: LogOnChange::default(),
        }
    }

    /// Returns the name of the agent's node.
    pub(super) fn node(&self) -> &NodeName {
        &self.registration.node.name
    }

    /// Returns `true` if the agent must register. `is_idle` is `true` if no command is under way:
    /// the outcome of those would be lost, and a change of the node is not that urgent.
    fn is_due(&self, is_idle: bool) -> bool {
        let is_wanted = !self.is_registered || (self.is_outdated && is_idle);
        is_wanted && !self.is_under_way && !self.is_pausing && !self.is_leaving
    }

    /// Registers if that is due and there is a leader; returns `true` if it did.
    pub(super) fn register_if_due(&mut self, is_idle: bool, routes: &mut Routes, cx: &mut Context) -> bool {
        let Some(slot) = routes.leader.filter(|_| self.is_due(is_idle)) else { return false };
        let Some(connection) = routes.connection(slot) else { return false };
        self.is_under_way = true;
        // Until the reply, commands wait: they would belong to the former registration.
        (self.is_registered, self.is_outdated) = (false, false);
        let (kind, scope) = (CallKind::Registration, RetryScope::Leader);
        let call = PendingCall { kind, scope, begun: cx.now, deadline: cx.now + REGISTRATION_TIMEOUT };
        // Without an id: request ids begin with a registration.
        let request = Request::Propose(None, Command::RegisterAgent(self.registration.clone()));
        routes.send(slot, connection, call, request, cx);
        true
    }

    /// Handles a change of the agent's address, which its next registration reports.
    pub(super) fn own_address_changed(&mut self, address: IpAddr) {
        let AgentRegistration { node, gossip, .. } = &mut self.registration;
        if node.address == address.to_string() {
            return;
        }
        node.address = address.to_string();
        node.tagged_addresses = tagged_addresses(address);
        if let Some(gossip) = gossip {
            gossip.set_ip(address);
        }
        self.is_outdated = true;
    }

    /// Handles a change of the node's metadata, which its next registration reports.
    pub(super) fn node_meta_changed(&mut self, meta: BTreeMap<String, String>) {
        self.is_outdated |= self.registration.node.meta != meta;
        self.registration.node.meta = meta;
    }

    /// Resumes after a leave that did not happen.
    pub(super) fn stay(&mut self, may_have_left: bool) {
        self.is_leaving = false;
        // Under the current lease if it is valid; otherwise as a member that returns.
        self.is_registered &= !may_have_left;
    }

    /// Returns the registration in the leader's reply.
    ///
    /// # Errors
    /// The registration failed, for the returned reason.
    pub(super) fn answered(
        response: Response,
        slot: Slot,
        routes: &mut Routes,
        now: Time,
    ) -> Result<Registration, RegistrationError> {
        match response {
            Response::Applied(Applied {
                reply: Reply::Agent { number, generation, lease, secret }, ..
            }) => Ok(Registration { number, generation, lease, secret }),
            Response::Applied(Applied { reply: Reply::Refused(refusal), .. }) => {
                // Waiting does not change that, so callers that wait for the registration get an
                // error.
                routes.admission.denied(&refusal.to_string());
                Err(RegistrationError::Refused(refusal))
            }
            Response::Unavailable(reason) => {
                routes.rejected(slot, &reason, now);
                if let Unavailable::Denied(why) = &reason {
                    routes.admission.denied(why);
                }
                Err(RegistrationError::Unavailable(reason))
            }
            other => Err(RegistrationError::Unexpected(Box::new(other))),
        }
    }

    /// Records that the leader registered this agent.
    pub(super) fn registered(&mut self, cx: &mut Context) {
        (self.is_under_way, self.is_registered) = (false, true);
        self.backoff.reset();
        self.log.reset();
        cx.counts.registrations += 1;
    }

    /// Records that an attempt failed; the next one waits.
    pub(super) fn failed(&mut self, failure: String, cx: &mut Context) {
        (self.is_under_way, self.is_pausing) = (false, true);
        cx.start_timer(cx.now + self.backoff.next_pause(), Timer::Registration);
        if self.log.is_new(&failure) {
            cx.notify(Notice::NotRegistered(failure));
        }
    }
}

/// Returns a node's addresses by purpose, as Consul's agents report them.
pub fn tagged_addresses(address: IpAddr) -> BTreeMap<String, String> {
    let families = if address.is_ipv4() { ["lan_ipv4", "wan_ipv4"] } else { ["lan_ipv6", "wan_ipv6"] };
    ["lan", "wan"].into_iter().chain(families).map(|tag| (tag.to_owned(), address.to_string())).collect()
}
