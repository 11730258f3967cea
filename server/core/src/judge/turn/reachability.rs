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
use lockmesh_protocol::lease::{LeaseId, MISSING_RENEWALS, Renewal};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_protocol::time::Time;

impl Judge {
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

    /// The suspecting parties of the holder of this lease: the leader itself if no renewals arrive,
    /// and the accusers, by their folded names.
    pub(super) fn suspicions(&self, lease: LeaseId) -> Vec<NodeName> {
        let is_cut_off = self.judge.cut_off.get(&lease.agent) == Some(&lease);
        let missing = is_cut_off.then(|| NodeName::from(MISSING_RENEWALS));
        missing.into_iter().chain(self.suspected_by(lease.agent).iter().cloned()).collect()
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
