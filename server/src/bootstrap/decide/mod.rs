//! Cluster bootstrap: decides the next step of a server that belongs to no cluster yet, from the
//! servers that are present. Pure.
//!
//! A cluster begins once. Its first servers find each other, and the one with the lowest node id
//! proposes a [`BootstrapPlan`]: the cluster's id and the voters. Each voter durably promises this
//! plan, and never promises another one. Raft begins only after all voters are known to have
//! promised. Two clusters therefore never begin with a common voter, in any order of crashes, and
//! any server that has promised can complete the same plan.
//!
//! **Invariants:** a server is identified by its instance id, which its data folder keeps. An
//! emptied server is another server, not bound by earlier promises. A server that belongs to no
//! cluster and meets a member of one never founds a cluster: it joins.

use lockmesh_protocol::bootstrap::{BootstrapPlan, Introduction, Standing};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::record::NewServer;
use lockmesh_protocol::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// A server is absent after this time without an introduction.
const PRESENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of other servers remembered.
const MAX_SERVERS: usize = 64;

/// The reason to wait if no cluster to found or join is configured.
const NOTHING_CONFIGURED: &str = "no cluster is configured: set `quorum.bootstrap_expect` to the number of servers \
    that found one (1 for a single server), or `quorum.join` to servers of a cluster, or run `lockmesh operator raft \
    add` with this server's address on a host of the cluster";

/// The bootstrap state of one server, and the servers it has met.
#[derive(Debug)]
pub(crate) struct Bootstrap {
    me: NewServer,
    expect: u32,
    standing: Standing,
    /// `true` if this server asked a cluster to admit it: it no longer founds one.
    is_joining: bool,
    /// The id under which this server founds a cluster, if one is configured.
    cluster_id: Option<String>,
    /// `true` if the configuration or an operator names servers to join.
    has_addresses: bool,
    /// The others, by their instance ids.
    met: BTreeMap<String, Heard>,
}

#[derive(Debug)]
struct Heard {
    introduction: Introduction,
    at: Time,
}

/// The next step of the bootstrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// More servers are needed.
    Wait(String),
    /// Blocked until an operator does what the text describes.
    Trouble(String),
    /// Record the promise of this plan durably, then call [`Bootstrap::promised`].
    Promise(BootstrapPlan),
    /// All have promised: Raft may begin.
    Begin(BootstrapPlan),
    /// A cluster of this id exists: ask one of these addresses for admission.
    Join(String, Vec<String>),
}

impl Bootstrap {
    /// Returns the state of a server whose record holds `standing`: free, or promised.
    pub(crate) fn new(me: NewServer, expect: u32, standing: Standing) -> Self {
        let met = BTreeMap::new();
        Self { me, expect, standing, is_joining: false, cluster_id: None, has_addresses: false, met }
    }

    /// Sets the configured cluster id, if any; `has_addresses` is `true` if servers to join are
    /// named.
    #[must_use]
    pub(crate) fn configured(self, cluster_id: Option<String>, has_addresses: bool) -> Self {
        Self { cluster_id, has_addresses, ..self }
    }

    /// An operator named servers to join.
    pub(crate) fn invited(&mut self) {
        self.has_addresses = true;
    }

    /// Returns this server's own introduction.
    pub(crate) fn introduction(&self, now: Time) -> Introduction {
        let (server, standing) = (self.me.clone(), self.standing.clone());
        let knows = self.present(now).map(|other| other.server.address.clone()).collect();
        Introduction { server, expect: self.expect, standing, knows }
    }

    /// Processes another server's introduction.
    pub(crate) fn note_introduction(&mut self, now: Time, introduction: Introduction) {
        let server = &introduction.server;
        if server.instance_id == self.me.instance_id {
            return;
        }
        // A server with an emptied data folder replaces its earlier instance.
        let replaced = |met: &Heard| {
            let other = &met.introduction.server;
            other.address == server.address && other.node.folded() == server.node.folded()
        };
        // Kept for much longer than it counts as present: an observed promise stays valid.
        self.met.retain(|_, met| now.since(met.at) <= PRESENT_TIMEOUT * 30 && !replaced(met));
        // Bounds the memory that strangers can use.
        if self.met.len() < MAX_SERVERS {
            self.met.insert(server.instance_id.clone(), Heard { introduction, at: now });
        }
    }

    /// The promise of a plan is durable.
    pub(crate) fn promised(&mut self, plan: BootstrapPlan) {
        self.standing = Standing::Promised(plan);
    }

    /// A cluster was asked to admit this server.
    pub(crate) fn joins(&mut self) {
        self.is_joining = true;
    }

    /// Returns `true` if this server may be invited to join a cluster.
    pub(crate) fn is_free(&self) -> bool {
        self.standing == Standing::Free
    }

    /// Returns the next step.
    pub(crate) fn decide(&self, now: Time) -> Decision {
        match &self.standing {
            Standing::Promised(plan) => self.decide_promised(now, plan),
            Standing::Free | Standing::Member { .. } => self.decide_free(now),
        }
    }

    fn decide_free(&self, now: Time) -> Decision {
        // First: with two indistinguishable servers, every count below is wrong.
        if let Some(trouble) = self.confusion(now) {
            return Decision::Trouble(trouble);
        }
        let members: Vec<_> = self.members(now).collect();
        // Before founding: a server that meets a member of a cluster founds none.
        if let Some((first, _)) = members.first() {
            if let Some((other, _)) = members.iter().find(|(cluster, _)| cluster != first) {
                return Decision::Trouble(format!(
                    "there are two clusters here, {first} and {other}: set `quorum.join` to servers of one of them"
                ));
            }
            if let Some(wanted) = self.cluster_id.as_ref().filter(|wanted| wanted != first) {
                return Decision::Trouble(format!(
                    "{} belongs to the cluster {first}, but `quorum.cluster_id` is {wanted} here: set `quorum.join` to \
                     servers of that cluster, or remove `quorum.cluster_id`",
                    named(members[0].1)
                ));
            }
            let addresses = members.iter().map(|(_, server)| server.address.clone()).collect();
            return Decision::Join((*first).clone(), addresses);
        }
        // A cluster that was asked may have assigned this server an id already. Founding another
        // cluster would make it a member of two.
        if self.expect == 0 && !self.has_addresses && !self.is_joining {
            return Decision::Wait(NOTHING_CONFIGURED.into());
        }
        if self.is_joining || self.expect == 0 {
            return Decision::Wait("waiting for a server that belongs to a cluster".into());
        }
        // A plan that another server has promised stands, even if more servers have appeared since.
        if let Some(decision) = self.asked_to_promise(now) {
            return decision;
        }
        self.gather(now)
    }

    /// Returns the decision if another server has promised a plan with this server in it.
    fn asked_to_promise(&self, now: Time) -> Option<Decision> {
        let mut plans = self.present(now).filter_map(|other| match &other.standing {
            Standing::Promised(plan) => Some((plan, &other.server)),
            _ => None,
        });
        let (plan, other) = plans.next()?;
        // This server's configuration expects another number: an operator must decide which is
        // right.
        Some(if plan.servers.len() != self.expect as usize {
            Decision::Trouble(format!(
                "{} founds a cluster of {} servers, but `quorum.bootstrap_expect` is {} here: set the same value",
                named(other),
                plan.servers.len(),
                self.expect
            ))
        } else if let Some(trouble) = self.id_contradiction(plan, other) {
            Decision::Trouble(trouble)
        } else if plan.server(&self.me.instance_id).is_some() {
            Decision::Promise(plan.clone())
        } else if plan.node(&self.me.node).is_some() {
            Decision::Trouble(format!(
                "{} has promised to found a cluster with this server as it was before its data folder was emptied. That \
                 cluster never began: stop the servers that have promised and empty their data folders too",
                named(other)
            ))
        } else {
            Decision::Wait(format!(
                "{} founds a cluster without this server, which will join it",
                named(other)
            ))
        })
    }

    /// Returns the founders that are present, in the same order on each server, so that all agree
    /// on the proposer and on the ids; or the trouble with one.
    fn founders(&self, now: Time) -> Result<Vec<&NewServer>, Decision> {
        let mut founders: Vec<&NewServer> = vec![&self.me];
        // Servers that expect no founders only join.
        for other in self.present(now).filter(|other| other.expect != 0) {
            if other.expect != self.expect {
                return Err(Decision::Trouble(format!(
                    "`quorum.bootstrap_expect` is {} here, but {} on {}: set the same value",
                    self.expect,
                    other.expect,
                    named(&other.server)
                )));
            }
            founders.push(&other.server);
        }
        founders.sort_by(|a, b| (&a.node_id, &a.instance_id).cmp(&(&b.node_id, &b.instance_id)));
        Ok(founders)
    }

    /// Decides while no server has promised a plan.
    fn gather(&self, now: Time) -> Decision {
        let founders = match self.founders(now) {
            Ok(founders) => founders,
            Err(trouble) => return trouble,
        };
        let names = founders.iter().map(|server| named(server)).collect::<Vec<_>>().join(", ");
        let expect = self.expect as usize;
        // Any choice among them would exclude one against its configuration.
        if founders.len() > expect {
            return Decision::Trouble(format!(
                "{} servers want to found a cluster of {expect}: {names}. Set `quorum.bootstrap_expect` to 0 on those \
                 that are only to join it",
                founders.len()
            ));
        }
        if founders.len() < expect {
            return Decision::Wait(format!(
                "waiting for {} more of {expect} servers; present: {names}",
                expect - founders.len()
            ));
        }
        if let Some(trouble) = self.cluster_id.as_ref().and_then(|_| self.too_old(&founders)) {
            return Decision::Trouble(trouble);
        }
        // Only one proposes: of two plans, each could find servers that promise it.
        if founders[0].instance_id != self.me.instance_id {
            return Decision::Wait(format!(
                "all founders are present: {names}; {} proposes",
                named(founders[0])
            ));
        }
        Decision::Promise(self.plan(&founders))
    }

    /// Returns the plan to propose for these founders.
    fn plan(&self, founders: &[&NewServer]) -> BootstrapPlan {
        let ids = (1..).map(ServerId);
        let servers = ids.zip(founders).map(|(id, server)| server.with_id(id)).collect();
        // The proposer's instance id is drawn for this data folder, so no other cluster has that
        // id.
        let cluster_id = self.cluster_id.clone().unwrap_or_else(|| self.me.instance_id.clone());
        BootstrapPlan { cluster_id, servers }
    }

    /// Returns why this server cannot promise a plan under its cluster id. Agents identify their
    /// cluster by that id, so all founders must configure the same one.
    fn id_contradiction(&self, plan: &BootstrapPlan, other: &NewServer) -> Option<String> {
        let is_drawn = plan.server(&plan.cluster_id).is_some();
        let (theirs, ours) = match &self.cluster_id {
            Some(ours) if *ours == plan.cluster_id => return None,
            None if is_drawn => return None,
            Some(ours) if is_drawn => ("a generated id".to_owned(), ours.as_str()),
            ours => (format!("the id {}", plan.cluster_id), ours.as_deref().unwrap_or("empty")),
        };
        Some(format!(
            "{} founds a cluster under {theirs}, but `quorum.cluster_id` is {ours} here: set the same value on all \
             founders, and empty the data folders of those that have promised another id",
            named(other)
        ))
    }

    /// Returns the reason to wait for builds before the key: they would begin such a cluster with
    /// other indexes and fencing tokens.
    fn too_old(&self, founders: &[&NewServer]) -> Option<String> {
        let old = founders.iter().find(|founder| founder.format < self.me.format)?;
        Some(format!(
            "{} runs an older build, which ignores `quorum.cluster_id`: upgrade it first",
            named(old)
        ))
    }

    fn decide_promised(&self, now: Time, plan: &BootstrapPlan) -> Decision {
        let begun = |met: &Heard| match &met.introduction.standing {
            Standing::Member { cluster_id, .. } => *cluster_id == plan.cluster_id,
            _ => false,
        };
        if self.met.values().any(begun) {
            return Decision::Begin(plan.clone());
        }
        let mut missing = Vec::new();
        for voter in plan.servers.iter().filter(|voter| voter.instance_id != self.me.instance_id) {
            // A promise never expires, so it counts regardless of its age.
            let met = self.met.get(&voter.instance_id).map(|met| &met.introduction.standing);
            match met {
                Some(Standing::Promised(theirs)) if theirs == plan => {}
                Some(Standing::Free) | None => missing.push(voter),
                // One voter is bound to another plan, so this one can never begin.
                Some(_) => {
                    return Decision::Trouble(format!(
                        "this server has promised to found the cluster {}, but node {} has promised another one: stop \
                         this server and empty its data folder, so that it joins that one",
                        plan.cluster_id, voter.node
                    ));
                }
            }
        }
        // Every voter is bound to this plan and to no other: Raft may begin.
        if missing.is_empty() {
            return Decision::Begin(plan.clone());
        }
        for other in self.present(now) {
            if let Some(trouble) = contradiction(plan, other) {
                return Decision::Trouble(trouble);
            }
        }
        let missing: Vec<_> =
            missing.iter().map(|server| format!("{} at {}", server.node, server.address)).collect();
        Decision::Wait(format!("waiting for {} to agree to found this cluster", missing.join(" and ")))
    }

    /// Returns an error if two servers are indistinguishable.
    fn confusion(&self, now: Time) -> Option<String> {
        let mut all: Vec<&NewServer> = vec![&self.me];
        all.extend(self.present(now).map(|other| &other.server));
        let pairs =
            all.iter().enumerate().flat_map(|(at, one)| all[..at].iter().map(move |other| (one, other)));
        for (one, other) in pairs {
            if one.address == other.address {
                return Some(format!(
                    "{} and {} advertise the same address, {}: set `rpc.advertise` on both",
                    one.node, other.node, one.address
                ));
            }
            if one.node.folded() == other.node.folded() || one.node_id == other.node_id {
                return Some(format!(
                    "{} and {} have the same node name or node id: give each its own `node.name` with its certificate, \
                     and its own data folder",
                    named(one),
                    named(other)
                ));
            }
        }
        None
    }

    fn members(&self, now: Time) -> impl Iterator<Item = (&String, &NewServer)> {
        self.present(now).filter_map(|other| match &other.standing {
            Standing::Member { cluster_id, .. } => Some((cluster_id, &other.server)),
            _ => None,
        })
    }

    fn present(&self, now: Time) -> impl Iterator<Item = &Introduction> {
        let met = self.met.values();
        met.filter(move |met| now.since(met.at) <= PRESENT_TIMEOUT).map(|met| &met.introduction)
    }
}

/// Returns why a plan cannot be completed, given another server's introduction.
fn contradiction(plan: &BootstrapPlan, other: &Introduction) -> Option<String> {
    let server = &other.server;
    if let Standing::Member { cluster_id, .. } = &other.standing
        && *cluster_id != plan.cluster_id
    {
        return Some(format!(
            "this server has promised to found the cluster {}, but {} belongs to the cluster {cluster_id}: to join that \
             one, stop this server and empty its data folder",
            plan.cluster_id,
            named(server)
        ));
    }
    let voter = plan.node(&server.node)?;
    (voter.instance_id != server.instance_id).then(|| {
        format!(
            "{} was emptied before the cluster began that this server has promised to found. Unless another server of \
             {} has begun: stop all that have promised and empty their data folders too",
            named(server),
            plan.servers.iter().map(|voter| voter.node.as_str()).collect::<Vec<_>>().join(", ")
        )
    })
}

fn named(server: &NewServer) -> String {
    format!("{} at {}", server.node, server.address)
}

#[cfg(test)]
mod tests;
