//! The links to the servers, and what each is for: carries out what the tracker decides.
//!
//! At rest there are two connections: to the leader and to the home server, or where these are one server, to it and
//! to another one in reserve. While the leader is looked for there are more.
//! **Invariant:** nobody but the registrar is sent to a leader that does not know this agent's present registration.

use super::link::Link;
use super::registrar;
use super::sequences::Sequences;
use super::table::Roles;
use super::{UpstreamCounters, UpstreamOptions};
use lockmesh_agent_core::admission::Admission;
use lockmesh_agent_core::leader_tracker::{Actions, LeaderTracker};
use lockmesh_agent_core::request_ids::Registration;
use lockmesh_agent_core::servers::Slot;
use lockmesh_net::Endpoint;
use lockmesh_protocol::rpc::{Status, Unavailable};
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Where calls go now.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes {
    /// The leader, if one is known and connected.
    leader: Option<Arc<Link>>,
    /// The home server, if one is connected.
    home: Option<Arc<Link>>,
    /// Whether the leader knows this agent's registration, as far as can be said.
    is_registered: bool,
    /// Whether there will never be a connection again.
    is_closed: bool,
}

/// Which of the routes a caller wants.
pub(super) type Pick = fn(&Routes) -> Option<&Arc<Link>>;

impl Routes {
    /// The leader, for everybody.
    pub(super) fn leader(&self) -> Option<&Arc<Link>> {
        self.leader.as_ref().filter(|_| self.is_registered)
    }

    /// The leader, for the registration alone.
    pub(super) fn leader_to_register_with(&self) -> Option<&Arc<Link>> {
        self.leader.as_ref().filter(|_| !self.is_registered)
    }

    /// The home server.
    pub(super) fn home(&self) -> Option<&Arc<Link>> {
        self.home.as_ref()
    }
}

#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) sequences: Sequences,
    pub(super) endpoint: Endpoint,
    pub(super) counters: UpstreamCounters,
    pub(super) probe_after: Duration,
    helm: Mutex<Helm>,
    routes: watch::Sender<Routes>,
    /// Why no server takes this agent, where that is so.
    refusal: watch::Sender<Option<String>>,
    /// When the tracker is to be looked at although nothing happened.
    wake: watch::Sender<Option<Instant>>,
    /// The tracker's time 0.
    started: Instant,
}

#[derive(Debug)]
struct Helm {
    tracker: LeaderTracker,
    links: BTreeMap<Slot, Arc<Link>>,
    admission: Admission,
    is_closed: bool,
}

impl Fleet {
    /// Begins to connect and to register.
    pub(super) fn start(options: UpstreamOptions) -> io::Result<Arc<Self>> {
        let endpoint = Endpoint::dial_only(&options.identity, &options.quic)?;
        let agent = options.registration.node.name.as_str();
        let tracker = LeaderTracker::new(agent, &options.servers, super::seed(), Time(0));
        let this = Arc::new(Self {
            sequences: Sequences::default(),
            endpoint,
            counters: UpstreamCounters::default(),
            probe_after: options.probe_after,
            helm: Mutex::new(Helm {
                tracker,
                links: BTreeMap::new(),
                admission: Admission::default(),
                is_closed: false,
            }),
            routes: watch::Sender::default(),
            refusal: watch::Sender::default(),
            wake: watch::Sender::default(),
            started: Instant::now(),
        });
        this.steer(|_, _| {});
        tokio::spawn(this.clone().look_by_the_clock());
        tokio::spawn(registrar::keep_registered(this.clone(), options.registration));
        Ok(this)
    }

    /// A route, if it is there now.
    pub(super) fn route_now(&self, pick: Pick) -> Option<Arc<Link>> {
        pick(&self.routes.borrow()).cloned()
    }

    /// A route, as soon as it is there; `None` when it is not until `deadline`, or never again.
    pub(super) async fn route(&self, pick: Pick, deadline: Option<Instant>) -> Option<Arc<Link>> {
        if let Some(link) = self.route_now(pick) {
            return Some(link);
        }
        let mut routes = self.routes.subscribe();
        let found = async {
            let routes = routes.wait_for(|routes| routes.is_closed || pick(routes).is_some()).await.ok()?;
            pick(&routes).cloned()
        };
        match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), found).await.ok().flatten(),
            None => found.await,
        }
    }

    /// Whether there will never be a connection again.
    pub(super) fn is_closed(&self) -> bool {
        self.routes.borrow().is_closed
    }

    /// How many calls wait for an answer.
    pub(super) fn calls(&self) -> usize {
        self.lock().links.values().map(|link| link.table.waiting()).sum()
    }

    /// Ends every link, and every call on it.
    pub(super) async fn close(&self) {
        self.end_links();
        self.endpoint.close("the agent is shutting down").await;
    }

    fn end_links(&self) {
        let mut helm = self.lock();
        helm.is_closed = true;
        for link in helm.links.values() {
            link.end();
        }
        drop(helm);
        self.wake.send_replace(None);
        self.routes.send_modify(|routes| {
            *routes = Routes { is_closed: true, ..Routes::default() };
        });
    }

    /// The servers do not know this registration of the agent any more: another one must begin before commands go on.
    pub(super) fn forgotten(&self, registration: Registration) {
        self.routes.send_if_modified(|routes| {
            self.sequences.registration() == Some(registration) && std::mem::take(&mut routes.is_registered)
        });
    }

    /// A new registration began.
    pub(super) fn registered(&self, registration: Registration) {
        self.routes.send_modify(|routes| {
            self.sequences.register(registration);
            routes.is_registered = true;
        });
        self.note_admission(Admission::registered);
    }

    /// The leader does not take this agent's registration, for what its certificate says or who has its name already.
    pub(super) fn denied(&self, reason: &str) {
        self.note_admission(|admission| admission.denied(reason));
    }

    /// A server and this agent did not believe each other's certificates.
    pub(super) fn not_admitted(&self, slot: Slot, reason: String) {
        self.note_admission(|admission| admission.refused(slot, reason));
    }

    /// They did; or the server was not reached, and may be a friend.
    pub(super) fn not_refused(&self, slot: Slot) {
        self.note_admission(|admission| admission.not_refused(slot));
    }

    fn note_admission(&self, note: impl FnOnce(&mut Admission)) {
        let mut helm = self.lock();
        note(&mut helm.admission);
        self.publish_refusal(&mut helm);
    }

    fn publish_refusal(&self, helm: &mut Helm) {
        let slots: Vec<Slot> = helm.tracker.slots().collect();
        let refusal = helm.admission.refusal(&slots);
        self.refusal.send_if_modified(|known| {
            let is_new = *known != refusal;
            *known = refusal;
            is_new
        });
    }

    /// Why no server takes this agent, as soon as that is so.
    pub(super) async fn refusal(&self) -> Unavailable {
        let mut refusal = self.refusal.subscribe();
        match refusal.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone()) {
            Some(reason) => Unavailable::NotAdmitted(reason),
            // The sender lives as long as this value.
            None => std::future::pending().await,
        }
    }

    pub(super) fn connected(self: &Arc<Self>, slot: Slot) {
        self.steer(|tracker, _| tracker.connected(slot));
    }

    pub(super) fn lost(self: &Arc<Self>, slot: Slot) {
        self.steer(|tracker, now| tracker.lost(slot, now));
    }

    pub(super) fn slow(self: &Arc<Self>, slot: Slot, is_slow: bool) {
        self.steer(|tracker, _| tracker.slow(slot, is_slow));
    }

    /// Nothing arrives from a server any more, or something does again.
    pub(super) fn quiet(self: &Arc<Self>, slot: Slot, is_quiet: bool) {
        self.steer(|tracker, _| tracker.quiet(slot, is_quiet));
    }

    /// A server refused a call because it does not lead.
    pub(super) fn refused(self: &Arc<Self>, link: &Link, hint: Option<&str>) {
        self.steer(|tracker, now| tracker.refused(link.slot, hint, now));
    }

    /// A server refused a call because it was taken out of the quorum.
    pub(super) fn removed(self: &Arc<Self>, slot: Slot) {
        self.steer(|tracker, now| tracker.removed(slot, now));
    }

    /// A server told its status, after it was asked in a certain registration.
    pub(super) fn heard(self: &Arc<Self>, slot: Slot, status: &Status, registration: Option<Registration>) {
        // Only the leader's word counts: another server may not have applied the registration yet.
        if status.leader == Some(status.server) {
            // An answer to a question from before the present registration says nothing of it, and whoever leads is sent that
            // registration's commands: so it is asked again.
            if registration != self.sequences.registration() {
                return self.steer(|tracker, _| tracker.ask_again(slot));
            }
            if let Some(registration) =
                registration.filter(|registration| status.asker != Some(registration.number))
            {
                self.forgotten(registration);
            }
        }
        self.not_refused(slot);
        self.steer(|tracker, now| tracker.heard(slot, status, now));
    }

    /// A server answered a question for its status with something else.
    pub(super) fn unheard(self: &Arc<Self>, slot: Slot) {
        self.steer(|tracker, _| tracker.unheard(slot));
    }

    async fn look_by_the_clock(self: Arc<Self>) {
        let mut wake = self.wake.subscribe();
        while !self.is_closed() {
            let at = *wake.borrow_and_update();
            match at {
                None => drop(wake.changed().await),
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at.into()) => self.steer(|_, _| {}),
                    _ = wake.changed() => {}
                },
            }
        }
    }

    /// Tells the tracker something, and does what it says then.
    fn steer(self: &Arc<Self>, tell: impl FnOnce(&mut LeaderTracker, Time)) {
        let mut helm = self.lock();
        if helm.is_closed {
            return;
        }
        let now = Time(self.started.elapsed().as_micros() as u64);
        tell(&mut helm.tracker, now);
        let actions = helm.tracker.actions(now);
        self.carry_out(&mut helm, &actions);
        self.publish_refusal(&mut helm);
        let wakes_at = actions.wakes_at.map(|at| self.started + at.since(Time(0)));
        self.wake.send_if_modified(|wake| std::mem::replace(wake, wakes_at) != wakes_at);
    }

    fn carry_out(self: &Arc<Self>, helm: &mut Helm, actions: &Actions) {
        let Helm { tracker, links, .. } = helm;
        for slot in &actions.keep {
            if let Some(address) = tracker.address(*slot) {
                links.entry(*slot).or_insert_with(|| {
                    let link = Link::new(*slot, address);
                    tokio::spawn(link.clone().keep(self.clone()));
                    link
                });
            }
        }
        let roles =
            |slot: Slot| Roles { leads: actions.leader == Some(slot), is_home: actions.home == Some(slot) };
        let link = |slot: Option<Slot>| slot.and_then(|slot| links.get(&slot));
        // Whoever loses a call below finds the new routes, and the new links take it.
        for link in [actions.leader, actions.home].into_iter().filter_map(&link) {
            link.table.set_roles(roles(link.slot));
        }
        self.publish(link(actions.leader), link(actions.home));
        for (slot, link) in &*links {
            link.table.set_roles(roles(*slot));
            link.want(actions.keep.contains(slot));
        }
        let is_forgotten = |slot: &Slot| tracker.address(*slot).is_none();
        for link in links.values().filter(|link| is_forgotten(&link.slot)) {
            link.end();
        }
        links.retain(|slot, _| !is_forgotten(slot));
        let each = |slots: &[Slot], order: fn(&Link)| {
            slots.iter().filter_map(|slot| links.get(slot)).for_each(|link| order(link));
        };
        each(&actions.cut, Link::cut);
        each(&actions.ask, Link::ask);
        each(actions.hasten.as_slice(), Link::hasten);
    }

    fn publish(&self, leader: Option<&Arc<Link>>, home: Option<&Arc<Link>>) {
        let slot = |link: Option<&Arc<Link>>| link.map(|link| link.slot);
        self.routes.send_if_modified(|routes| {
            let is_new_leader = slot(routes.leader.as_ref()) != slot(leader);
            let is_new_home = slot(routes.home.as_ref()) != slot(home);
            if is_new_leader {
                routes.leader = leader.cloned();
                match leader {
                    Some(link) => {
                        self.counters.leaders.fetch_add(1, Ordering::Relaxed);
                        tracing::info!(server = %link.address, "found the leader");
                    }
                    None => tracing::info!("the leader is not known"),
                }
            }
            if is_new_home {
                routes.home = home.cloned();
            }
            is_new_leader || is_new_home
        });
    }

    fn lock(&self) -> MutexGuard<'_, Helm> {
        // What shall be done is decided anew from the whole at each step, so a panic elsewhere left nothing half done.
        self.helm.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
