//! The exchange of check lists and reports between the leader and the voters.

use crate::core::Core;
use crate::judge::checks::Check;
use crate::judge::messages::{CheckList, CheckOrder, JurorReports};
use crate::outbox::Outbox;
use crate::raft::message::MessageKind;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::time::Time;

impl Core {
    /// Sends the check list to all voters, this server included.
    pub(super) fn tell_jurors(&mut self, now: Time, outbox: &mut Outbox) {
        let Some(number) = self.judge.checks.next_list(now) else { return };
        let orders = self.judge.checks.open.values().filter_map(|check| self.order(now, check));
        let list = CheckList { number, checks: orders.collect() };
        for voter in self.engine.membership().all_voters() {
            if voter == self.config.id {
                self.judge.juror.take_list(now, self.engine.term(), &list);
            } else {
                self.send(voter, MessageKind::CheckNodes, &list, outbox);
            }
        }
    }

    /// Counts the answers to this leader's own challenges repeatedly, like the reports of other
    /// jurors: during a pending verdict they were refused.
    pub(super) fn hear_own_answers(&mut self, now: Time, outbox: &mut Outbox) {
        for answer in self.judge.juror.answers() {
            self.hear_answer(now, answer, outbox);
        }
    }

    /// Takes a juror's reply to a list.
    pub(super) fn take_reports(
        &mut self,
        now: Time,
        from: ServerId,
        reports: JurorReports,
        outbox: &mut Outbox,
    ) {
        self.judge.checks.take_reports(from, &reports);
        // The copy relayed at once may have been lost.
        for answer in reports.reports.into_iter().filter_map(|report| report.answer) {
            self.hear_answer(now, answer, outbox);
        }
    }

    fn order(&self, now: Time, check: &Check) -> Option<CheckOrder> {
        let agent = self.state.agent_of(check.challenge.lease)?;
        let member = self.judge.windows.member(agent.number)?;
        Some(CheckOrder {
            challenge: check.challenge,
            node: agent.node.clone(),
            address: self.state.agent_address(agent),
            age: now.since(check.opened),
            window: member.present().duration(),
        })
    }
}
