//! Health checks of an agent: the real [`Checks`], driven as the agent's own shell drives it, and
//! the applications that report to it.
//!
//! During the storm the applications register, report, fall silent and deregister at random. In the
//! calm one of them reports and one does not, so that the expected catalog is known.

use super::agent::{Agent, registration};
use super::judge::Judge;
use super::stage::{Event, Stage};
use super::world::World;
use lockmesh_agent_core::checks::{
    CheckKind, CheckLimits, Checks, Input, NODE_MAINTENANCE, NewCheck, Order, Outbox,
};
use lockmesh_agent_core::quorum_client::{Answered, CallToken, LocalCall};
use lockmesh_core::State;
use lockmesh_protocol::command::{Command, Deregistration, Registration};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::{Check, CheckStatus};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::time::Duration;

/// The mean interval between actions of the applications.
const ACTION_INTERVAL: Duration = Duration::from_secs(1);

/// The check of the application that reports in the calm, of the one that falls silent, and of the
/// one that deregisters.
const IDS: [&str; 3] = ["steady", "silent", "gone"];

/// The limits, with output that is written soon.
const LIMITS: CheckLimits =
    CheckLimits { update_interval: Duration::from_secs(4), max_output_bytes: 64, max_checks: IDS.len() + 1 };

/// A timer of an agent's checks.
#[derive(Clone, Copy, Debug)]
pub enum CheckTimer {
    /// An application acts.
    Application,
    /// A timer that the checks requested.
    Tick,
}

/// The checks of one agent.
#[derive(Debug, Default)]
pub(super) struct AgentChecks {
    /// `None` if the plan has no checks.
    checks: Option<Checks>,
    /// The pending call to the servers.
    call: Option<CallToken>,
    wakes_at: Option<Time>,
}

impl World {
    /// A timer of an agent's checks fired.
    pub(super) fn check_timer(&mut self, agent: usize, life: u64, timer: CheckTimer) {
        self.agents[agent].check_timer_fired(&mut self.stage, &mut self.judge, life, timer);
    }
}

impl Agent {
    /// Starts the checks of a new process.
    pub(super) fn begin_checks(&mut self, stage: &mut Stage) {
        self.checks = AgentChecks::default();
        if stage.plan.clients.has_checks {
            let seed = stage.draw.bits();
            let checks = Checks::new(self.node(), LIMITS, seed, self.boot_time(stage));
            self.checks = AgentChecks { checks: Some(checks), call: None, wakes_at: Some(stage.now) };
            stage.after(Duration::ZERO, Event::Checks(self.place, self.life, CheckTimer::Tick));
            self.next_action(stage);
        }
    }

    fn node(&self) -> NodeName {
        format!("n{}", self.place).into()
    }

    fn next_action(&self, stage: &mut Stage) {
        let wait = stage.around(ACTION_INTERVAL);
        stage.after(wait, Event::Checks(self.place, self.life, CheckTimer::Application));
    }

    fn check_timer_fired(&mut self, stage: &mut Stage, judge: &mut Judge, life: u64, timer: CheckTimer) {
        if life != self.life {
            return;
        }
        match timer {
            CheckTimer::Application => {
                self.application_acts(stage);
                self.next_action(stage);
            }
            CheckTimer::Tick if self.checks.wakes_at.is_some_and(|at| at <= stage.now) => {
                self.checks.wakes_at = None;
            }
            CheckTimer::Tick => return,
        }
        self.check_input(stage, judge, Input::Tick);
    }

    /// Lets an application act. Errors are those of an application that acts at random.
    fn application_acts(&mut self, stage: &mut Stage) {
        let now = self.boot_time(stage);
        let Some(checks) = &mut self.checks.checks else { return };
        let is_known = |checks: &Checks, id: &str| checks.list().iter().any(|check| check.id.as_str() == id);
        if stage.calm {
            let [steady, silent, gone] = IDS;
            for id in [steady, silent] {
                if !is_known(checks, id) {
                    let _ = checks.register(now, new(id, 3));
                }
            }
            let _ = checks.report(now, &steady.into(), CheckStatus::Passing, "calm");
            let _ = checks.deregister(&gone.into());
            checks.maintain(now, None, &mut Outbox::default());
            return;
        }
        let id = *stage.draw.pick(&IDS);
        let status = *stage.draw.pick(&[CheckStatus::Passing, CheckStatus::Warning, CheckStatus::Critical]);
        let _ = match stage.draw.below(12) {
            0 => checks.deregister(&id.into()),
            1 => Ok(checks.maintain(now, Some("storm"), &mut Outbox::default())),
            2 => Ok(checks.maintain(now, None, &mut Outbox::default())),
            3..=5 => checks.register(now, new(id, stage.draw.within(1, 8))),
            output => checks.report(now, &id.into(), status, &format!("output {output}")),
        };
    }

    /// Passes an input to the checks, and executes the resulting order.
    fn check_input(&mut self, stage: &mut Stage, judge: &mut Judge, input: Input) {
        let (now, mut outbox) = (self.boot_time(stage), Outbox::default());
        let Some(checks) = &mut self.checks.checks else { return };
        checks.handle(now, input, &mut outbox);
        outbox.notices.iter().for_each(|notice| stage.log(|| format!("agent {}: {notice:?}", self.place)));
        if let Some(order) = outbox.order {
            let token = self.next_token();
            self.checks.call = Some(token);
            let call = self.check_call(order);
            self.call_locally(stage, judge, token, call);
        }
        self.wake_checks_later(stage);
    }

    fn check_call(&self, order: Order) -> LocalCall {
        let node = self.node();
        match order {
            Order::Register(checks) => {
                let node = registration(self.place, self.folders_lost).node;
                let registration = Registration { node, skip_node_update: true, service: None, checks };
                LocalCall::Propose(Command::Register(registration))
            }
            Order::Deregister(id) => {
                let deregistration = Deregistration { node, service: None, check: Some(id) };
                LocalCall::Propose(Command::Deregister(deregistration))
            }
            Order::Read => LocalCall::Read {
                query: Query::NodeChecks(node),
                consistency: Consistency::Default,
                blocking: None,
            },
        }
    }

    fn wake_checks_later(&mut self, stage: &mut Stage) {
        let Some(shown) = self.checks.checks.as_ref().and_then(Checks::wakes_at) else { return };
        let at = self.when(stage, shown);
        if self.checks.wakes_at.is_none_or(|known| at < known) {
            self.checks.wakes_at = Some(at);
            stage.at(at, Event::Checks(self.place, self.life, CheckTimer::Tick));
        }
    }

    /// Handles the reply to a call of the checks; returns `false` for any other call.
    pub(super) fn checks_heard(
        &mut self,
        stage: &mut Stage,
        judge: &mut Judge,
        token: CallToken,
        answer: &Result<Answered, Unavailable>,
    ) -> bool {
        if self.checks.call != Some(token) {
            return false;
        }
        self.checks.call = None;
        let rows = |rows: &Rows| match rows {
            Rows::Checks(checks) => Input::Read(Ok(checks.clone())),
            other => Input::Read(Err(Unavailable::Unknown(format!("{other:?}")))),
        };
        let input = match answer {
            Ok(Answered::Response(Response::Applied(applied))) => Input::Written(Ok(applied.reply.clone())),
            Ok(Answered::Response(Response::Answer(answer))) => rows(&answer.rows),
            Ok(Answered::Shared(answer)) => rows(&answer.rows),
            Ok(other) => Input::Written(Err(Unavailable::Unknown(format!("{other:?}")))),
            Err(reason) => Input::Written(Err(reason.clone())),
        };
        self.check_input(stage, judge, input);
        true
    }

    /// Returns the differences between this agent's checks and the catalog, and between them and
    /// the applications, once these behave as in the calm.
    pub(super) fn unsynchronized(&self, state: &State) -> Vec<String> {
        let Some(checks) = &self.checks.checks else { return Vec::new() };
        let (_, Rows::Checks(catalog)) = state.query(&Query::NodeChecks(self.node())) else {
            return vec!["the catalog replies with no checks".into()];
        };
        let (place, own) = (self.place, checks.list());
        let mut wrong = Vec::new();
        // The output may differ after a restored backup: the agent compares the status.
        for Check { id, status, .. } in &own {
            let known = catalog.iter().find(|known| known.id == *id).map(|known| known.status);
            if known != Some(*status) {
                wrong.push(format!("agent {place}: check {id} is {status:?}, and {known:?} in the catalog"));
            }
        }
        let [steady, silent, gone] = IDS;
        let expected = [
            (steady, Some(CheckStatus::Passing)),
            (silent, Some(CheckStatus::Critical)),
            (gone, None),
            (NODE_MAINTENANCE, None),
        ];
        for (id, status) in expected {
            let found = own.iter().find(|check| check.id.as_str() == id).map(|check| check.status);
            if found != status {
                wrong.push(format!("agent {place}: check {id} is {found:?}, not {status:?}"));
            }
        }
        wrong
    }
}

/// Returns the registration of a check with a TTL of so many seconds.
fn new(id: &str, ttl_seconds: u64) -> NewCheck {
    NewCheck {
        id: id.into(),
        name: id.into(),
        notes: String::new(),
        status: CheckStatus::Passing,
        kind: CheckKind::Ttl(Duration::from_secs(ttl_seconds)),
        max_output_bytes: None,
    }
}
