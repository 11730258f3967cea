//! The applications of an agent: they register services and checks, report, fall silent and
//! deregister, at random during the storm and as expected in the calm. What they do is noted in the
//! findings too.

use super::checks::{ALIAS, IDS, PAGE, PROBE, PROBES, SCRIPT, SERVICE};
use super::findings::{Findings, Moment};
use super::stage::Stage;
use lockmesh_agent_core::definitions::{
    CheckKind, HttpTarget, NewCheck, Probe, ServiceRegistration, Target, Thresholds,
};
use lockmesh_agent_core::registry::{Outbox, Registry, Source};
use lockmesh_protocol::id::CheckId;
use lockmesh_protocol::record::{CheckStatus, NODE_MAINTENANCE, SERVICE_MAINTENANCE, Service};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// The applications of one agent at one moment.
pub(super) struct Applications<'a> {
    pub(super) registry: &'a mut Registry,
    pub(super) findings: &'a mut Findings,
    /// The probes whose targets fail, each with the time since which runs could find that.
    pub(super) down: &'a mut BTreeMap<&'static str, Time>,
    /// The time of each check's last report.
    pub(super) reported: &'a mut BTreeMap<CheckId, Time>,
    /// The time on the host's clock.
    pub(super) now: Time,
    /// The moment in true time.
    pub(super) moment: Moment,
    pub(super) outbox: Outbox,
}

impl Applications<'_> {
    /// Acts at random.
    pub(super) fn act(&mut self, stage: &mut Stage) {
        let id = *stage.draw.pick(&IDS);
        let status = *stage.draw.pick(&[CheckStatus::Passing, CheckStatus::Warning, CheckStatus::Critical]);
        match stage.draw.below(26) {
            0 => self.deregister(id),
            1 => self.maintain(Some("storm")),
            2 => self.maintain(None),
            3..=5 => self.register(ttl(id, stage.draw.within(3, 8))),
            6 => self.deregister_service(),
            7..=9 => self.register_service(),
            10 => self.register(alias()),
            11 => self.maintain_service(Some("storm")),
            12 => self.maintain_service(None),
            13 => self.deregister(if stage.draw.once_in(2) { SCRIPT } else { PAGE }),
            14 => self.register_probes(),
            15..=17 => {
                let (probe, ..) = *stage.draw.pick(&PROBES);
                if self.down.remove(probe).is_none() {
                    self.down.insert(probe, self.moment.0);
                }
            }
            18 | 19 => self.repair(),
            output => self.report(id, status, &format!("output {output}")),
        }
    }

    /// Registers and reports what exists in the calm, and deregisters the rest.
    pub(super) fn settle(&mut self) {
        let [steady, silent, gone] = IDS;
        self.deregister(gone);
        for id in [steady, silent] {
            if !self.is_known(id) {
                self.register(ttl(id, 3));
            }
        }
        self.register_all();
        self.report(steady, CheckStatus::Passing, "calm");
    }

    /// Makes everything pass for a while: the alias follows all other checks.
    fn repair(&mut self) {
        for id in IDS {
            self.register(ttl(id, 8));
            self.report(id, CheckStatus::Passing, "repaired");
        }
        self.register_all();
    }

    /// Ends the maintenance and the failures of targets, and registers what the agent runs.
    fn register_all(&mut self) {
        self.down.clear();
        self.maintain(None);
        if !self.is_known(PROBE) {
            self.register_service();
        }
        self.maintain_service(None);
        self.register_probes();
        if !self.is_known(ALIAS) {
            self.register(alias());
        }
    }

    /// Registers the script and the HTTP request, unless they are.
    pub(super) fn register_probes(&mut self) {
        let page = HttpTarget { url: "http://127.0.0.1:9/".into(), ..HttpTarget::default() };
        let targets = [(SCRIPT, Target::Script { args: vec!["true".into()] }), (PAGE, Target::Http(page))];
        for (id, target) in targets {
            if !self.is_known(id) {
                self.register(probe(id, target));
            }
        }
    }

    fn is_known(&self, id: &str) -> bool {
        self.registry.checks().iter().any(|check| check.id.as_str() == id)
    }

    fn report(&mut self, id: &str, status: CheckStatus, output: &str) {
        if self.registry.report(self.now, &id.into(), (status, output), &mut self.outbox).is_ok() {
            self.reported.insert(id.into(), self.now);
            self.findings.report(self.moment, id, status);
        }
    }

    fn register(&mut self, check: NewCheck) {
        let (id, status) = (check.id.clone(), check.status);
        // Checks of maintenance may have taken the room.
        if self.registry.register_check(self.now, check, Source::Api, &mut self.outbox).is_ok() {
            self.findings.register(self.moment, id.as_str(), status);
        }
    }

    fn deregister(&mut self, id: &str) {
        self.findings.remove(self.moment, id);
        self.registry.deregister_check(&id.into(), &mut self.outbox);
    }

    fn register_service(&mut self) {
        let service = Service { port: 80, ..Service::of("".into(), SERVICE.into(), SERVICE) };
        let checks = vec![probe(PROBE, Target::Udp { address: "127.0.0.1:9".into() })];
        let registration = ServiceRegistration { service, checks, replaces_checks: false, sidecar: None };
        let registered =
            self.registry.register_service(self.now, registration, Source::Api, &mut self.outbox);
        if registered.is_ok() {
            self.findings.register(self.moment, PROBE, CheckStatus::Critical);
        }
    }

    fn deregister_service(&mut self) {
        self.findings.remove(self.moment, PROBE);
        self.findings.remove(self.moment, &service_maintenance());
        self.registry.deregister_service(&SERVICE.into(), &mut self.outbox);
    }

    fn maintain(&mut self, reason: Option<&str>) {
        self.registry.maintain(self.now, reason, &mut self.outbox);
        match reason {
            Some(_) => self.findings.register(self.moment, NODE_MAINTENANCE, CheckStatus::Critical),
            None => self.findings.remove(self.moment, NODE_MAINTENANCE),
        }
    }

    fn maintain_service(&mut self, reason: Option<&str>) {
        let maintained = self.registry.maintain_service(self.now, &SERVICE.into(), reason, &mut self.outbox);
        match reason {
            _ if maintained.is_err() => {}
            Some(_) => self.findings.register(self.moment, &service_maintenance(), CheckStatus::Critical),
            None => self.findings.remove(self.moment, &service_maintenance()),
        }
    }
}

fn service_maintenance() -> String {
    format!("{SERVICE_MAINTENANCE}{SERVICE}")
}

/// Returns a check with a TTL in seconds.
fn ttl(id: &str, seconds: u64) -> NewCheck {
    NewCheck::of(id.into(), CheckStatus::Passing, CheckKind::Ttl(Duration::from_secs(seconds)))
}

/// Returns a check that the agent runs.
fn probe(id: &str, target: Target) -> NewCheck {
    let known = PROBES.iter().find(|(probe, ..)| *probe == id);
    let (_, failures_before_critical, interval) = *known.expect("it is in the table");
    let kind = CheckKind::Probe(Probe { target, interval, timeout: None });
    let thresholds = Thresholds { failures_before_critical, ..Thresholds::default() };
    NewCheck { thresholds, ..NewCheck::of(id.into(), CheckStatus::Critical, kind) }
}

fn alias() -> NewCheck {
    let kind = CheckKind::Alias { node: None, service: Some(SERVICE.into()) };
    NewCheck::of(ALIAS.into(), CheckStatus::Critical, kind)
}
