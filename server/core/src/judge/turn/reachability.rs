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

use crate::core::Core;
use crate::judge::Judge;
use crate::state::State;
use lockmesh_protocol::id::{AgentNumber, NodeName};
use lockmesh_protocol::lease::{FAILED_PROBES, LeaseId, MISSING_RENEWALS, Renewal};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::time::Time;

impl Judge {
    /// The number of nodes that renew, and that agents cannot probe.
    pub(crate) fn failed_probes_len(&self) -> usize {
        self.failed_probes.len()
    }

    /// The number of nodes that answer challenges and do not renew.
    pub(crate) fn cut_off_len(&self) -> usize {
        self.cut_off.len()
    }
}

impl Core {
    /// Notes a renewal, which the node either sent itself or returned as the answer to a challenge.
    pub(super) fn note_whether_it_renews(&mut self, now: Time, renewal: Renewal) {
        let Self { judge, state, observer, .. } = self;
        let lease = renewal.lease;
        if renewal.nonce == 0 {
            judge.windows.renewed_itself(now, lease);
            if judge.cut_off.remove(&lease.agent) == Some(lease) {
                tracing::info!(node = %node_of(state, lease.agent), "node renews its lease again");
            }
            return;
        }
        let Some(member) = judge.windows.member(lease.agent).filter(|member| member.lease == lease) else {
            return;
        };
        let (window, without_renewal) = (member.present(), now.since(member.renewed));
        // A failed node is reported as failed.
        let is_cut_off = member.status != MemberStatus::Failed && without_renewal >= window.validity();
        if is_cut_off && judge.cut_off.insert(lease.agent, lease) != Some(lease) {
            observer.observed.nodes_cut_off += 1;
            tracing::warn!(
                node = %node_of(state, lease.agent),
                window = window.as_str(),
                without_renewal_ms = without_renewal.as_millis() as u64,
                "node answers challenges, but its renewals do not arrive; its guards give up their locks"
            );
        }
    }

    /// Removes nodes that no longer answer either, or that registered again.
    pub(super) fn forget_cut_off(&mut self) {
        let Self { judge, state, .. } = self;
        judge.cut_off.retain(|number, lease| {
            let member = judge.windows.member(*number).filter(|member| member.lease == *lease);
            let is_known = member.is_some_and(|member| member.status != MemberStatus::Failed);
            if !is_known {
                let status = state.agent(*number).map_or("forgotten", |agent| word(agent.status));
                tracing::info!(node = %node_of(state, *number), status, "node without renewals is no longer reported");
            }
            is_known
        });
    }

    /// Notes that a probe of a member failed.
    pub(super) fn note_failed_probe(&mut self, now: Time, lease: LeaseId, by: &NodeName) {
        let Self { judge, state, .. } = self;
        let others = state.member_counts().alive.saturating_sub(1);
        if judge.failed_probes.suspected(now, lease, by, others) {
            tracing::warn!(
                node = %node_of(state, lease.agent),
                address = state.agent(lease.agent).and_then(|agent| state.agent_address(agent)),
                "agents cannot probe this node, although it renews its lease: check `advertise` of its agent, and \
                 firewalls in front of its ports"
            );
        }
    }

    /// Removes nodes whose probes succeed again, or that failed.
    pub(super) fn forget_failed_probes(&mut self, now: Time) {
        let Self { judge, state, .. } = self;
        let Judge { failed_probes, windows, .. } = judge;
        let is_alive = |lease: LeaseId| {
            let member = windows.member(lease.agent).filter(|member| member.lease == lease);
            member.is_some_and(|member| member.status != MemberStatus::Failed)
        };
        for number in failed_probes.ended(now, is_alive) {
            tracing::info!(node = %node_of(state, number), "no longer reported as a node that agents cannot probe");
        }
    }

    /// The suspecting parties of the holder of this lease: the leader itself if no renewals arrive,
    /// or if probes have failed for long,
    /// and the accusers, by their folded names.
    pub(super) fn suspicions(&self, lease: LeaseId) -> Vec<NodeName> {
        let is_cut_off = self.judge.cut_off.get(&lease.agent) == Some(&lease);
        let missing = is_cut_off.then(|| NodeName::from(MISSING_RENEWALS));
        let unprobed = self.judge.failed_probes.is_reported(lease).then(|| NodeName::from(FAILED_PROBES));
        missing.into_iter().chain(unprobed).chain(self.suspected_by(lease.agent).iter().cloned()).collect()
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
