//! Nodes that are cut off from the servers: they answer challenges, but their own renewals do not
//! arrive. Other agents still reach such a node, or the servers reach it and not the reverse.
//!
//! Each answer is a renewal, so no silence ends the sessions of the node. No acknowledgement goes
//! back with it: guards give up their locks at their deadlines, and sessions without a guard live
//! on. The leader cannot tell which sessions have a guard, so it reports the node: in the log, in a
//! gauge, and with its lease.
//!
//! A node counts as cut off after the validity of its shortest window in use: by then no guard of
//! that window relies on its lock. The report changes no verdict.

use super::failed_probes::FailedProbes;
use super::windows::{MemberWindow, Windows};
use crate::state::State;
use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::lease::{FAILED_PROBES, LeaseId, MISSING_RENEWALS, Renewal};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;

/// The nodes that are reported because some traffic with them fails.
#[derive(Debug, Default)]
pub(super) struct Reachability {
    /// The leases of the nodes whose renewals do not arrive.
    cut_off: BTreeMap<AgentNumber, LeaseId>,
    /// The nodes that renew, and that agents cannot probe.
    failed_probes: FailedProbes,
}

impl Reachability {
    /// The number of nodes that renew, and that agents cannot probe.
    pub(super) fn failed_probes_len(&self) -> usize {
        self.failed_probes.len()
    }

    /// The number of nodes that answer challenges and do not renew.
    pub(super) fn cut_off_len(&self) -> usize {
        self.cut_off.len()
    }

    /// Forgets the nodes without renewals, because a restore replaced all rows.
    pub(super) fn restored(&mut self) {
        self.cut_off.clear();
    }

    /// Notes a renewal, which the node either sent itself or returned as the answer to a challenge.
    /// Returns `true` if the node is reported as cut off from now on.
    pub(super) fn renewed(
        &mut self,
        now: Time,
        state: &State,
        windows: &mut Windows,
        renewal: Renewal,
    ) -> bool {
        let lease = renewal.lease;
        if renewal.nonce == 0 {
            windows.renewed_itself(now, lease);
            if self.cut_off.remove(&lease.agent) == Some(lease) {
                tracing::info!(node = %node_of(state, lease.agent), "node renews its lease again");
            }
            return false;
        }
        let Some(member) = windows.member(lease.agent).filter(|member| member.lease == lease) else {
            return false;
        };
        let (window, without_renewal) = (member.present(), now.since(member.renewed));
        // A failed node is reported as failed.
        let is_cut_off = member.status != MemberStatus::Failed && without_renewal >= window.validity();
        if !is_cut_off || self.cut_off.insert(lease.agent, lease) == Some(lease) {
            return false;
        }
        tracing::warn!(
            node = %node_of(state, lease.agent),
            window = window.as_str(),
            without_renewal_ms = without_renewal.as_millis() as u64,
            "node answers challenges, but its renewals do not arrive; its guards give up their locks"
        );
        true
    }

    /// Notes that a probe of a member failed.
    pub(super) fn suspected(&mut self, now: Time, state: &State, lease: LeaseId, by: &NodeName) {
        let others = state.member_counts().alive.saturating_sub(1);
        if self.failed_probes.suspected(now, lease, by, others) {
            tracing::warn!(
                node = %node_of(state, lease.agent),
                address = state.agent(lease.agent).and_then(|agent| state.agent_address(agent)),
                "agents cannot probe this node, although it renews its lease: check `advertise` of its agent, and \
                 firewalls in front of its ports"
            );
        }
    }

    /// Removes nodes that no longer answer either, that registered again, or whose probes succeed
    /// again.
    pub(super) fn forget(&mut self, now: Time, state: &State, windows: &Windows) {
        let is_alive = |lease: LeaseId| {
            let member = windows.member(lease.agent).filter(|member| member.lease == lease);
            member.is_some_and(|member: &MemberWindow| member.status != MemberStatus::Failed)
        };
        self.cut_off.retain(|number, lease| {
            let is_known = is_alive(*lease);
            if !is_known {
                let status = state.agent(*number).map_or("forgotten", |agent| word(agent.status));
                tracing::info!(node = %node_of(state, *number), status, "node without renewals is no longer reported");
            }
            is_known
        });
        for number in self.failed_probes.ended(now, is_alive) {
            tracing::info!(node = %node_of(state, number), "no longer reported as a node that agents cannot probe");
        }
    }

    /// The reports on the holder of this lease, by the names that queries show.
    pub(super) fn reports(&self, lease: LeaseId) -> impl Iterator<Item = NodeName> {
        let is_cut_off = self.cut_off.get(&lease.agent) == Some(&lease);
        let missing = is_cut_off.then(|| NodeName::from(MISSING_RENEWALS));
        let unprobed = self.failed_probes.is_reported(lease).then(|| NodeName::from(FAILED_PROBES));
        missing.into_iter().chain(unprobed)
    }
}

fn node_of(state: &State, number: AgentNumber) -> NodeName {
    state.agent(number).map_or_else(|| "unknown".into(), |agent| agent.node.clone())
}

fn word(status: MemberStatus) -> &'static str {
    match status {
        MemberStatus::Alive => "alive",
        MemberStatus::Restarting => "restarting",
        MemberStatus::Left => "left",
        MemberStatus::Failed => "failed",
    }
}
