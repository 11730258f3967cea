//! The leader tells the voters which nodes are under check, and takes what they report.

use crate::core::Core;
use crate::judge::checks::Check;
use crate::judge::messages::{CheckList, CheckOrder, JurorReports};
use crate::outbox::Outbox;
use crate::raft::message::MessageKind;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::time::Time;

impl Core {
    /// Tells all voters, this server among them, which nodes are under check.
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

    /// What nodes answered to this leader itself counts again and again, as what other jurors
    /// report: while a verdict was being decided it was refused.
    pub(super) fn hear_own_answers(&mut self, now: Time, outbox: &mut Outbox) {
        for answer in self.judge.juror.answers() {
            self.hear_answer(now, answer, outbox);
        }
    }

    /// A juror answered a list.
    pub(super) fn take_reports(
        &mut self,
        now: Time,
        from: ServerId,
        reports: JurorReports,
        outbox: &mut Outbox,
    ) {
        self.judge.checks.take_reports(from, &reports);
        // What it relayed at once may be lost.
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
