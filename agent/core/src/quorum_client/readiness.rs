//! Readiness: whether the servers accept this agent and serve its requests, the reasons if they do
//! not, and the notices to operators about that.
//!
//! The decision which servers belong to this agent's cluster is made by the tracker's
//! `identity.rs`. **Invariant:** there is one notice when the set of rejected servers changes, and
//! one when it becomes empty; there is none for each attempt.

use super::QuorumClientConfig;
use super::context::Context;
use super::outbox::Notice;
use super::requests::no_leader;
use super::routes::Routes;
use crate::cluster::{ClusterChoice, ClusterRefusal, Pin};
use crate::servers::Slot;
use lockmesh_protocol::rpc::{Response, Unavailable};
use std::fmt;

/// The reason why an agent cannot serve requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// It is shutting down.
    Stopping,
    /// No server accepts it, for this reason.
    NotAdmitted(String),
    /// Its own cluster serves, but a listed server belongs to another one.
    MixedServers(String),
    /// It has not registered since it started.
    NotRegistered,
    /// It knows of no leader.
    NoLeader,
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopping => f.write_str("this agent is shutting down"),
            Self::NotAdmitted(reason) => write!(f, "no server accepts this agent: {reason}"),
            Self::MixedServers(reason) => f.write_str(reason),
            Self::NotRegistered => f.write_str("this agent is not registered with the servers yet"),
            Self::NoLeader => f.write_str("no leader is known"),
        }
    }
}

/// The readiness of the servers for this agent, and the reasons already logged.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    /// The cluster that the configuration selects.
    pub(super) cluster: ClusterChoice,
    /// The reason why no server accepts this agent, if so.
    pub(super) refusal: Option<String>,
    /// The servers that are rejected because they do not belong to this agent's cluster, and the
    /// message about them.
    pub(super) refused: Vec<(String, ClusterRefusal)>,
    complaint: Option<String>,
    /// The last report of a server that cannot write to its disk, until a command is applied or
    /// another leader is found.
    pub(super) disk_failure: Option<String>,
    /// The pin as last reported.
    reported_pin: Option<Pin>,
}

impl Readiness {
    pub(super) fn new(config: &QuorumClientConfig) -> Self {
        let (cluster, reported_pin) = (config.cluster.clone(), config.pin.clone());
        Self { cluster, reported_pin, ..Self::default() }
    }

    /// Returns the error for a request without a suitable server. A reachable server of another
    /// cluster is the likely reason, or disks on which no server can record its vote.
    pub(super) fn no_route(&self) -> Unavailable {
        match (&self.complaint, &self.disk_failure) {
            (Some(complaint), _) => Unavailable::NotAdmitted(complaint.clone()),
            (None, Some(why)) => Unavailable::Disk(format!("{why}; since then there is no cluster leader")),
            (None, None) => no_leader(),
        }
    }

    /// Returns the reasons why the servers do not serve this agent's requests now.
    pub(super) fn reasons(&self, routes: &Routes, is_registered: bool) -> Vec<NotReady> {
        let complaint = self.complaint.clone();
        let reason = match (self.refusal.clone(), routes.leader) {
            (Some(refusal), _) => Some(NotReady::NotAdmitted(refusal)),
            (None, None) => complaint.map(NotReady::NotAdmitted),
            // Calls are answered, but an agent with the same list and no pin may register with the
            // other cluster, and both clusters then grant one lock.
            (None, Some(_)) => {
                complaint.filter(|_| routes.tracker.lists_another_cluster()).map(NotReady::MixedServers)
            }
        };
        let not_registered = (!is_registered).then_some(NotReady::NotRegistered);
        let no_leader = routes.leader.is_none().then_some(NotReady::NoLeader);
        [reason, not_registered, no_leader].into_iter().flatten().collect()
    }

    /// Records a server's reply to a request.
    pub(super) fn answered(&mut self, response: &Response) {
        match response {
            Response::Unavailable(Unavailable::Disk(why)) => self.disk_failure = Some(why.clone()),
            Response::Applied(_) => self.disk_failure = None,
            _ => {}
        }
    }

    /// Checks whether no server accepts this agent.
    pub(super) fn check_refusal(&mut self, routes: &mut Routes) {
        let slots: Vec<Slot> = routes.tracker.slots().collect();
        let are_foreign = !slots.is_empty() && slots.iter().all(|slot| routes.tracker.is_refused(*slot));
        let refusal = routes.admission.refusal(&slots);
        let refusal = refusal.or_else(|| self.complaint.clone().filter(|_| are_foreign));
        if self.refusal != refusal {
            self.refusal = refusal;
            routes.are_changed = true;
        }
    }

    /// Reports changes of the rejected servers, and a new pin.
    pub(super) fn check_cluster(&mut self, routes: &mut Routes, cx: &mut Context) {
        if let Some(pin) = routes.tracker.pin().filter(|pin| self.reported_pin.as_ref() != Some(pin)) {
            cx.notify(Notice::Pinned(pin.clone()));
            self.reported_pin = Some(pin.clone());
        }
        let refused = if self.cluster == ClusterChoice::Any { Vec::new() } else { routes.tracker.refusals() };
        if self.refused == refused {
            return;
        }
        self.complaint = if refused.is_empty() { None } else { routes.tracker.complaint() };
        cx.notify(match &self.complaint {
            Some(complaint) => Notice::ClusterMismatch(complaint.clone()),
            None => Notice::ClusterMismatchOver,
        });
        self.refused = refused;
        // Calls that wait for a route fail at once if no server is left.
        self.check_refusal(routes);
        routes.are_changed = true;
    }
}
