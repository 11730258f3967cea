//! Services and health checks of an agent: the real [`Registry`], driven as the agent's own shell
//! drives it, its data folder, the targets that its checks probe, and the applications.
//!
//! During the storm the applications register, report, fall silent and deregister at random, and
//! the targets fail. In the calm the expected services and checks are known, so the catalog must be
//! equal to them. A restart keeps the status of every check, and brings no expiry forward.

use super::agent::{Agent, registration};
use super::applications::Applications;
use super::findings::Findings;
use super::judge::Judge;
use super::stage::{Event, Stage};
use super::world::World;
use lockmesh_agent_core::definitions::MIN_INTERVAL;
use lockmesh_agent_core::quorum_client::{Answered, CallToken, LocalCall};
use lockmesh_agent_core::registry::{
    Input, Limits, Notice, Order, Outbox, Outcome, Registry, RunId, Store, Stored, StoredCheck, StoredService,
};
use lockmesh_core::State;
use lockmesh_protocol::command::{Command, Deregistration, Registration};
use lockmesh_protocol::id::{CheckId, NodeName, ServiceId};
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::{Check, CheckStatus, NODE_MAINTENANCE, SERF_HEALTH};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The mean interval between actions of the applications.
const ACTION_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum duration of a run.
pub(super) const RUN_TIMEOUT: Duration = Duration::from_secs(2);

/// The check of the application that reports in the calm, of the one that falls silent, and of the
/// one that deregisters.
pub(super) const IDS: [&str; 3] = ["steady", "silent", "gone"];

/// The service, its check, which the agent runs, and a check that follows it.
pub(super) const SERVICE: &str = "web";
/// See [`SERVICE`].
pub(super) const PROBE: &str = "probe";
/// See [`SERVICE`].
pub(super) const ALIAS: &str = "alias";

/// A script of the node, and an HTTP request.
pub(super) const SCRIPT: &str = "script";
/// See [`SCRIPT`].
pub(super) const PAGE: &str = "page";

/// The checks that the agent runs, each with the number of failures before it is critical, and its
/// interval.
pub(super) const PROBES: [(&str, u32, Duration); 3] =
    [(PROBE, 1, Duration::from_secs(2)), (SCRIPT, 2, MIN_INTERVAL), (PAGE, 1, MIN_INTERVAL)];

/// The maximum number of checks that run at a time; one that is due may have to wait for a place.
const MAX_RUNNING: usize = PROBES.len() - 1;

/// The maximum delay of a write after a failed one.
pub(super) const RETRY_WITHIN: Duration = Duration::from_secs(5);

/// The limits, with output that is written soon.
const LIMITS: Limits = Limits {
    update_interval: Duration::from_secs(4),
    max_output_bytes: 64,
    max_checks: IDS.len() + PROBES.len() + 1,
    max_services: 1,
    max_running: MAX_RUNNING,
};

/// A timer of an agent's checks.
#[derive(Clone, Copy, Debug)]
pub enum CheckTimer {
    /// An application acts.
    Application,
    /// A timer that the registry requested.
    Tick,
    /// A run is over.
    Ran(RunId),
}

/// The services and checks of one agent.
#[derive(Debug, Default)]
pub(super) struct AgentChecks {
    /// `None` if the plan has no checks.
    registry: Option<Registry>,
    /// The data folder, with the number of folders that were lost before it; `None` before the
    /// first start.
    folder: Option<(u32, Folder)>,
    /// The probes whose targets fail, each with the time since which runs could find that.
    pub(super) down: BTreeMap<&'static str, Time>,
    /// The probes that run.
    running: BTreeMap<RunId, CheckId>,
    /// What is known of the checks.
    pub(super) findings: Findings,
    /// The time of the last failed write or read of the catalog.
    pub(super) sync_failed: Option<Time>,
    /// The time of each check's last report or registration.
    reported: BTreeMap<CheckId, Time>,
    /// The pending call to the servers.
    call: Option<CallToken>,
    wakes_at: Option<Time>,
}

/// The content of a data folder.
#[derive(Debug, Default)]
struct Folder {
    services: BTreeMap<ServiceId, StoredService>,
    checks: BTreeMap<CheckId, StoredCheck>,
    is_adopted: bool,
}

impl Folder {
    fn store(&mut self, store: Store) {
        match store {
            Store::Service(id, Some(entry)) => drop(self.services.insert(id, *entry)),
            Store::Service(id, None) => drop(self.services.remove(&id)),
            Store::Check(id, Some(entry)) => drop(self.checks.insert(id, *entry)),
            Store::Check(id, None) => drop(self.checks.remove(&id)),
            Store::Adopted => self.is_adopted = true,
        }
    }

    fn content(&self) -> Stored {
        Stored {
            services: self.services.values().cloned().collect(),
            checks: self.checks.values().cloned().collect(),
            is_adopted: self.is_adopted,
        }
    }
}

impl AgentChecks {
    /// The times of an earlier boot mean nothing on the new clock of the host.
    pub(super) fn host_dies(&mut self) {
        self.reported.clear();
        let folder = self.folder.iter_mut().map(|(_, folder)| folder);
        folder
            .flat_map(|folder| folder.checks.values_mut())
            .for_each(|stored| stored.times = Default::default());
    }
}

impl World {
    /// A timer of an agent's checks fired.
    pub(super) fn check_timer(&mut self, agent: usize, life: u64, timer: CheckTimer) {
        self.agents[agent].check_timer_fired(&mut self.stage, &mut self.judge, life, timer);
    }
}

impl Agent {
    /// Starts the registry of a new process.
    pub(super) fn begin_checks(&mut self, stage: &mut Stage) {
        let earlier = std::mem::take(&mut self.checks);
        if !stage.plan.clients.has_checks {
            return;
        }
        let (seed, now) = (stage.draw.bits(), self.boot_time(stage));
        let kept = earlier.folder.filter(|(lost, _)| *lost == self.folders_lost);
        let stored = kept.as_ref().map(|(_, folder)| folder.content()).unwrap_or_default();
        let registry = Registry::new(self.node(), LIMITS, seed, now, stored);
        if let (Some(before), Some(_)) = (&earlier.registry, &kept) {
            let statuses = |registry: &Registry| {
                registry.checks().into_iter().map(|check| (check.id, check.status)).collect::<Vec<_>>()
            };
            assert_eq!(statuses(before), statuses(&registry), "a restart changes the status of a check");
            assert_eq!(before.services(), registry.services(), "a restart changes a service");
        }
        let mut findings = earlier.findings;
        if kept.is_none() {
            findings.forget_runs();
        }
        self.checks = AgentChecks {
            reported: if kept.is_some() { earlier.reported } else { BTreeMap::new() },
            registry: Some(registry),
            folder: Some(kept.unwrap_or_else(|| (self.folders_lost, Folder::default()))),
            down: earlier.down.into_keys().map(|probe| (probe, stage.now)).collect(),
            running: BTreeMap::new(),
            findings,
            sync_failed: None,
            call: None,
            wakes_at: Some(stage.now),
        };
        stage.after(Duration::ZERO, Event::Checks(self.place, self.life, CheckTimer::Tick));
        self.next_action(stage);
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
        let input = match timer {
            CheckTimer::Application => {
                self.applications_act(stage, judge);
                self.next_action(stage);
                Input::Tick
            }
            CheckTimer::Tick if self.checks.wakes_at.is_some_and(|at| at <= stage.now) => {
                self.checks.wakes_at = None;
                Input::Tick
            }
            CheckTimer::Tick => return,
            CheckTimer::Ran(run) => {
                let probe = self.checks.running.remove(&run);
                let is_down = probe.as_ref().is_some_and(|id| self.checks.down.contains_key(id.as_str()));
                let status = if is_down { CheckStatus::Critical } else { CheckStatus::Passing };
                if let Some(id) = probe {
                    let threshold = PROBES.iter().find(|(probe, ..)| *probe == id.as_str());
                    let threshold = threshold.map_or(1, |(_, failures, _)| *failures);
                    let moment = (stage.now, judge.history.last());
                    self.checks.findings.ran(moment, &id, status, threshold);
                }
                Input::Ran(run, Outcome { status, output: format!("down: {is_down}") })
            }
        };
        self.check_input(stage, judge, input);
    }

    /// Lets the applications act.
    fn applications_act(&mut self, stage: &mut Stage, judge: &Judge) {
        let (now, moment) = (self.boot_time(stage), (stage.now, judge.history.last()));
        let AgentChecks { registry: Some(registry), folder, reported, down, findings, running, .. } =
            &mut self.checks
        else {
            return;
        };
        let is_new = folder.as_ref().is_some_and(|(_, folder)| folder.checks.is_empty());
        let outbox = Outbox::default();
        let mut applications = Applications { registry, findings, down, reported, now, moment, outbox };
        if stage.calm {
            applications.settle();
        } else {
            if is_new {
                applications.register_probes();
            }
            applications.act(stage);
        }
        let outbox = applications.outbox;
        // The result of a run counts only for the registration that it began with.
        running.retain(|_, id| findings.status(id.as_str()).is_some());
        // A registration restarts the TTL, and what is gone has none.
        reported.retain(|id, _| registry.checks().iter().any(|check| check.id == *id));
        for store in outbox.stores {
            if let (Store::Check(id, Some(_)), false) = (&store, stage.calm) {
                reported.insert(id.clone(), now);
            }
            if let Some((_, folder)) = folder {
                folder.store(store);
            }
        }
    }

    /// Passes an input to the registry, and executes what results.
    fn check_input(&mut self, stage: &mut Stage, judge: &mut Judge, input: Input) {
        let (now, mut outbox) = (self.boot_time(stage), Outbox::default());
        let AgentChecks { registry: Some(registry), findings, reported, sync_failed, folder, .. } =
            &mut self.checks
        else {
            return;
        };
        let moment = (stage.now, judge.history.last());
        registry.handle(now, input, &mut outbox);
        for notice in &outbox.notices {
            stage.log(|| format!("agent {}: {notice:?}", self.place));
            if let Notice::Expired(id) = notice {
                let began = reported.get(id).copied().unwrap_or_default();
                assert!(now.since(began) >= Duration::from_secs(3), "{id} expires before its TTL is over");
                findings.report(moment, id.as_str(), CheckStatus::Critical);
            }
            if let Notice::SyncFailed { .. } = notice {
                *sync_failed = Some(stage.now);
            }
        }
        findings.follow(moment);
        if let Some((_, folder)) = folder {
            let was_adopted = folder.is_adopted;
            outbox.stores.into_iter().for_each(|store| folder.store(store));
            if !was_adopted {
                findings.adopt(moment, &registry.checks());
            }
        }
        if let Some(difference) = findings.difference(&registry.checks()) {
            judge.object("checks_are_as_found", format!("agent {}: {difference}", self.place));
        }
        if let Some(unfounded) = outbox.order.as_ref().and_then(|order| unfounded(findings, order)) {
            judge.object("checks_are_as_found", format!("agent {}: {unfounded}", self.place));
        }
        for run in outbox.runs {
            self.checks.running.insert(run.id, run.check);
            let length = stage.draw.duration(Duration::ZERO, RUN_TIMEOUT);
            stage.after(length, Event::Checks(self.place, self.life, CheckTimer::Ran(run.id)));
        }
        if let Some(order) = outbox.order {
            let token = self.next_token();
            self.checks.call = Some(token);
            let call = self.check_call(order);
            self.call_locally(stage, judge, token, call);
        }
        self.wake_checks_later(stage);
    }

    /// The agent found a leader.
    pub(super) fn checks_find_leader(&mut self, stage: &mut Stage, judge: &mut Judge) {
        self.check_input(stage, judge, Input::LeaderFound);
    }

    /// The catalog may have lost what this agent registered.
    pub(super) fn checks_lose_catalog(&mut self, stage: &mut Stage, judge: &mut Judge) {
        self.check_input(stage, judge, Input::CatalogLost);
    }

    fn check_call(&self, order: Order) -> LocalCall {
        let node = self.node();
        let deregister = |service, check| {
            LocalCall::Propose(Command::Deregister(Deregistration { node: node.clone(), service, check }))
        };
        let query = match order {
            Order::Register(service, checks) => {
                let node = registration(self.place, self.folders_lost).node;
                let registration = Registration { node, skip_node_update: true, service, checks };
                return LocalCall::Propose(Command::Register(registration));
            }
            Order::DeregisterService(id) => return deregister(Some(id), None),
            Order::DeregisterCheck(id) => return deregister(None, Some(id)),
            Order::ReadServices => Query::Node(node),
            Order::ReadChecks => Query::NodeChecks(node),
        };
        LocalCall::Read { query, consistency: Consistency::Default, blocking: None }
    }

    fn wake_checks_later(&mut self, stage: &mut Stage) {
        let Some(shown) = self.checks.registry.as_ref().and_then(Registry::wakes_at) else { return };
        let at = self.when(stage, shown);
        if self.checks.wakes_at.is_none_or(|known| at < known) {
            self.checks.wakes_at = Some(at);
            stage.at(at, Event::Checks(self.place, self.life, CheckTimer::Tick));
        }
    }

    /// Handles the reply to a call of the registry; returns `false` for any other call.
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
        let other = |other: String| Input::Written(Err(Unavailable::Unknown(other)));
        let rows = |rows: &Rows| match rows {
            Rows::Checks(checks) => Input::Checks(Ok(checks.clone())),
            Rows::Node(node) => {
                Input::Services(Ok(node.clone().map(|(_, services)| services).unwrap_or_default()))
            }
            rows => other(format!("{rows:?}")),
        };
        let input = match answer {
            Ok(Answered::Response(Response::Applied(applied))) => Input::Written(Ok(applied.reply.clone())),
            Ok(Answered::Response(Response::Answer(answer))) => rows(&answer.rows),
            Ok(Answered::Shared(answer)) => rows(&answer.rows),
            Ok(response) => other(format!("{response:?}")),
            Err(reason) => Input::Written(Err(reason.clone())),
        };
        self.check_input(stage, judge, input);
        true
    }

    /// Returns the differences between what this agent owns and the catalog, and between that and
    /// the applications, once these behave as in the calm.
    pub(super) fn unsynchronized(&self, state: &State) -> Vec<String> {
        let Some(registry) = &self.checks.registry else { return Vec::new() };
        let (_, Rows::Checks(catalog)) = state.query(&Query::NodeChecks(self.node())) else {
            return vec!["the catalog replies with no checks".into()];
        };
        let (_, Rows::Node(node)) = state.query(&Query::Node(self.node())) else {
            return vec!["the catalog replies with no node".into()];
        };
        let place = self.place;
        let status = |check: &Check| (check.id.clone(), check.status);
        let in_catalog = catalog.iter().filter(|check| check.id.as_str() != SERF_HEALTH);
        let in_catalog: BTreeMap<_, _> = in_catalog.map(|check| status(check)).collect();
        let own: BTreeMap<_, _> = registry.checks().iter().map(status).collect();
        let mut wrong = Vec::new();
        if own != in_catalog {
            wrong.push(format!("agent {place}: its checks are {own:?}, and in the catalog {in_catalog:?}"));
        }
        let services = node.map(|(_, services)| services).unwrap_or_default();
        let names = services.iter().map(|service| service.id.clone()).collect::<Vec<_>>();
        let own_names = registry.services().into_iter().map(|service| service.id).collect::<Vec<_>>();
        if names != own_names {
            wrong
                .push(format!("agent {place}: its services are {own_names:?}, and in the catalog {names:?}"));
        }
        let [steady, silent, gone] = IDS;
        let expected = [
            (steady, Some(CheckStatus::Passing)),
            (silent, Some(CheckStatus::Critical)),
            (gone, None),
            (NODE_MAINTENANCE, None),
            (PROBE, Some(CheckStatus::Passing)),
            (SCRIPT, Some(CheckStatus::Passing)),
            (PAGE, Some(CheckStatus::Passing)),
            // It follows the node's checks too.
            (ALIAS, Some(CheckStatus::Critical)),
        ];
        for (id, status) in expected {
            let found = own.get(&CheckId::from(id)).copied();
            if found != status {
                wrong.push(format!("agent {place}: check {id} is {found:?}, not {status:?}"));
            }
        }
        wrong
    }
}

/// Returns what is wrong with an order that removes something that is registered.
fn unfounded(findings: &Findings, order: &Order) -> Option<String> {
    let (id, what) = match order {
        Order::DeregisterService(id) => (PROBE, format!("service {id}")),
        Order::DeregisterCheck(id) => (id.as_str(), format!("check {id}")),
        _ => return None,
    };
    findings.status(id).map(|_| format!("{what} is removed from the catalog, and is registered"))
}
