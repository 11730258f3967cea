//! Services and health checks of an agent: the real [`Registry`], driven as the agent's own shell
//! drives it, its data folder, the targets that its checks probe, and the applications.
//!
//! During the storm the applications register, report, fall silent and deregister at random, and
//! the targets fail. In the calm the expected services and checks are known, so the catalog must be
//! equal to them. A restart keeps the status of every check, and gives its application a whole TTL.

use super::agent::{Agent, registration};
use super::judge::Judge;
use super::stage::{Event, Stage};
use super::world::World;
use lockmesh_agent_core::quorum_client::{Answered, CallToken, LocalCall};
use lockmesh_agent_core::registry::{
    CheckKind, Input, Limits, MIN_INTERVAL, NewCheck, Notice, Order, Outbox, Outcome, Probe, Registry, RunId,
    ServiceRegistration, Source, Store, Stored, StoredCheck, StoredService, Target,
};
use lockmesh_core::State;
use lockmesh_protocol::command::{Command, Deregistration, Registration};
use lockmesh_protocol::id::{CheckId, NodeName, ServiceId};
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::{Check, CheckStatus, NODE_MAINTENANCE, SERF_HEALTH, Service};
use lockmesh_protocol::rpc::{Response, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The mean interval between actions of the applications.
const ACTION_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum duration of a run.
const RUN_TIMEOUT: Duration = Duration::from_secs(2);

/// The check of the application that reports in the calm, of the one that falls silent, and of the
/// one that deregisters.
const IDS: [&str; 3] = ["steady", "silent", "gone"];

/// The service, its check, which the agent runs, and a check that follows it.
const SERVICE: &str = "web";
/// See [`SERVICE`].
pub(super) const PROBE: &str = "probe";
const ALIAS: &str = "alias";

/// The limits, with output that is written soon.
const LIMITS: Limits = Limits {
    update_interval: Duration::from_secs(4),
    max_output_bytes: 64,
    max_checks: IDS.len() + 2,
    max_services: 1,
    max_running: 2,
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
    /// Set while the target of the probe fails.
    is_down: bool,
    /// The time of each check's last report or registration, or of the start of the process.
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
        self.checks = AgentChecks {
            reported: registry.checks().into_iter().map(|check| (check.id, now)).collect(),
            registry: Some(registry),
            folder: Some(kept.unwrap_or_else(|| (self.folders_lost, Folder::default()))),
            is_down: earlier.is_down,
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
                self.application_acts(stage);
                self.next_action(stage);
                Input::Tick
            }
            CheckTimer::Tick if self.checks.wakes_at.is_some_and(|at| at <= stage.now) => {
                self.checks.wakes_at = None;
                Input::Tick
            }
            CheckTimer::Tick => return,
            CheckTimer::Ran(run) => {
                let is_down = self.checks.is_down;
                let status = if is_down { CheckStatus::Critical } else { CheckStatus::Passing };
                Input::Ran(run, Outcome { status, output: format!("down: {is_down}") })
            }
        };
        self.check_input(stage, judge, input);
    }

    /// Lets an application act. Errors are those of an application that acts at random.
    fn application_acts(&mut self, stage: &mut Stage) {
        let now = self.boot_time(stage);
        let AgentChecks { registry: Some(registry), folder, reported, is_down, .. } = &mut self.checks else {
            return;
        };
        let mut outbox = Outbox::default();
        let mut report =
            |registry: &mut Registry, id: &str, news: (CheckStatus, &str), outbox: &mut Outbox| {
                if registry.report(now, &id.into(), news, outbox).is_ok() {
                    reported.insert(id.into(), now);
                }
            };
        if stage.calm {
            *is_down = false;
            settle(registry, now, &mut outbox);
            report(registry, IDS[0], (CheckStatus::Passing, "calm"), &mut outbox);
        } else {
            let id = *stage.draw.pick(&IDS);
            let status =
                *stage.draw.pick(&[CheckStatus::Passing, CheckStatus::Warning, CheckStatus::Critical]);
            match stage.draw.below(18) {
                0 => drop(registry.deregister_check(&id.into(), &mut outbox)),
                1 => drop(registry.maintain(now, Some("storm"), &mut outbox)),
                2 => drop(registry.maintain(now, None, &mut outbox)),
                3..=5 => register(registry, now, ttl(id, stage.draw.within(3, 8)), &mut outbox),
                6 => drop(registry.deregister_service(&SERVICE.into(), &mut outbox)),
                7..=8 => register_service(registry, now, &mut outbox),
                9 => register(registry, now, alias(), &mut outbox),
                10 => drop(registry.maintain_service(now, &SERVICE.into(), Some("storm"), &mut outbox)),
                11 => drop(registry.maintain_service(now, &SERVICE.into(), None, &mut outbox)),
                12 => *is_down = !*is_down,
                output => report(registry, id, (status, &format!("output {output}")), &mut outbox),
            }
        }
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
        let Some(registry) = &mut self.checks.registry else { return };
        registry.handle(now, input, &mut outbox);
        for notice in &outbox.notices {
            stage.log(|| format!("agent {}: {notice:?}", self.place));
            if let Notice::Expired(id) = notice {
                let began = self.checks.reported.get(id).copied().unwrap_or_default();
                assert!(now.since(began) >= Duration::from_secs(3), "{id} expires before its TTL is over");
            }
        }
        if let Some((_, folder)) = &mut self.checks.folder {
            outbox.stores.into_iter().for_each(|store| folder.store(store));
        }
        for run in outbox.runs {
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

/// Registers what exists in the calm, and deregisters the rest.
fn settle(registry: &mut Registry, now: Time, outbox: &mut Outbox) {
    let [steady, silent, gone] = IDS;
    let is_known =
        |registry: &Registry, id: &str| registry.checks().iter().any(|check| check.id.as_str() == id);
    let _ = registry.deregister_check(&gone.into(), outbox);
    registry.maintain(now, None, outbox);
    for id in [steady, silent] {
        if !is_known(registry, id) {
            register(registry, now, ttl(id, 3), outbox);
        }
    }
    if !is_known(registry, PROBE) {
        register_service(registry, now, outbox);
    }
    let _ = registry.maintain_service(now, &SERVICE.into(), None, outbox);
    if !is_known(registry, ALIAS) {
        register(registry, now, alias(), outbox);
    }
}

fn register(registry: &mut Registry, now: Time, check: NewCheck, outbox: &mut Outbox) {
    let _ = registry.register_check(now, check, Source::Api, outbox);
}

fn register_service(registry: &mut Registry, now: Time, outbox: &mut Outbox) {
    let service = Service { port: 80, ..Service::of("".into(), SERVICE.into(), SERVICE) };
    let target = Target::Udp { address: "127.0.0.1:9".into() };
    let kind = CheckKind::Probe(Probe { target, interval: MIN_INTERVAL * 2, timeout: None });
    let checks = vec![NewCheck::of(PROBE.into(), CheckStatus::Critical, kind)];
    let registration = ServiceRegistration { service, checks, replaces_checks: false, sidecar: None };
    let _ = registry.register_service(now, registration, Source::Api, outbox);
}

/// Returns a check with a TTL of so many seconds.
fn ttl(id: &str, seconds: u64) -> NewCheck {
    NewCheck::of(id.into(), CheckStatus::Passing, CheckKind::Ttl(Duration::from_secs(seconds)))
}

fn alias() -> NewCheck {
    let kind = CheckKind::Alias { node: None, service: Some(SERVICE.into()) };
    NewCheck::of(ALIAS.into(), CheckStatus::Critical, kind)
}
