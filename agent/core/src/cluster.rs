//! Cluster identity: the cluster that an agent belongs to, and the servers that it rejects.
//!
//! An agent pins the first cluster that registers it: the cluster id, and the highest index base
//! that one of its servers has reported. A server of another cluster, or of the same id with a
//! lower index base, is rejected before it can register the agent or answer a call. A lower index
//! base means an older copy: a recovery, or a cluster that was rebuilt under the old id, raises it
//! by 2^32.
//!
//! The index base has no field of its own on the wire. The index of a read's reply includes it, and
//! the applied index in [`Status`](lockmesh_protocol::rpc::Status) does not. Their difference is
//! the base, short by the number of entries since the row that was read changed.
//!
//! An agent without a pin first contacts all configured servers. If they belong to two clusters, it
//! registers with neither: two such agents could pin different clusters, and both would hold one
//! lock.
//!
//! **Invariant:** once there is a pin, only the configuration moves the agent to another cluster.

use lockmesh_protocol::time::Time;
use std::time::Duration;

/// Index bases this close count as equal. An estimate is short by less than that, and the bases of
/// two copies of one cluster differ by 2^32.
const BASE_TOLERANCE: u64 = 1 << 31;

/// The maximum time that an agent without a pin waits for all listed servers to answer. A server
/// that is down would otherwise prevent its first registration.
pub(crate) const INTRODUCTION_TIMEOUT: Duration = Duration::from_secs(3);

/// The time without a leader after which an agent that follows any cluster moves to another one.
pub(crate) const FOLLOW_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that a server may lag behind a raised index base before it counts as an older copy.
pub(crate) const LAG_TIMEOUT: Duration = Duration::from_secs(3);

/// A cluster as an agent remembers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pin {
    /// The cluster id.
    pub cluster_id: String,
    /// The highest index base that one of its servers has reported.
    pub index_base: u64,
}

/// The cluster that the configuration selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClusterChoice {
    /// The first cluster that registers the agent.
    #[default]
    First,
    /// The cluster with this id.
    Id(String),
    /// Any cluster that answers.
    Any,
}

/// The reason why a server is rejected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterRefusal {
    /// The server belongs to another cluster, with this id.
    OtherCluster(String),
    /// The server is an older copy of the agent's cluster, with this index base.
    OlderCopy(u64),
}

/// The agent's verdict on a server's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The server belongs to the agent's cluster.
    Ours,
    /// The server has not reported enough yet.
    Unknown,
    /// The server does not belong to the agent's cluster.
    Refused,
}

/// The cluster of an agent: chosen, pinned, or not known yet.
#[derive(Debug)]
pub(crate) struct Cluster {
    choice: ClusterChoice,
    pin: Option<Pin>,
    /// The cluster that the agent uses without a pin.
    current: Option<String>,
    /// The highest index base of the current cluster.
    index_base: u64,
    /// The time at which the agent began to look for its cluster.
    pub(crate) began: Time,
    /// `true` if the listed servers belong to two clusters and there is no pin.
    pub(crate) is_split: bool,
}

impl Cluster {
    /// Creates the identity from the configuration's choice and the pin of an earlier process.
    pub(crate) fn new(choice: ClusterChoice, pin: Option<Pin>, now: Time) -> Self {
        let mut this = Self {
            choice: ClusterChoice::First,
            pin,
            current: None,
            index_base: 0,
            began: now,
            is_split: false,
        };
        this.choose(choice, now);
        this
    }

    /// Applies another choice; returns `true` if that moves the agent to another cluster.
    pub(crate) fn choose(&mut self, choice: ClusterChoice, now: Time) -> bool {
        let before = self.expected().map(String::from);
        match &choice {
            ClusterChoice::Id(id) if self.pin.as_ref().is_none_or(|pin| pin.cluster_id != *id) => {
                self.pin = Some(Pin { cluster_id: id.clone(), index_base: 0 });
            }
            ClusterChoice::Id(_) | ClusterChoice::First => {}
            ClusterChoice::Any => self.current = before.clone(),
        }
        self.choice = choice;
        self.index_base = self.pin.as_ref().map_or(0, |pin| pin.index_base);
        self.began = now;
        before.as_deref() != self.expected()
    }

    /// Returns the pin, which outlives the process.
    pub(crate) fn pin(&self) -> Option<&Pin> {
        self.pin.as_ref().filter(|_| !self.follows_any())
    }

    /// Returns `true` if the agent follows any cluster that answers.
    pub(crate) fn follows_any(&self) -> bool {
        self.choice == ClusterChoice::Any
    }

    /// Returns `true` if the agent has yet to choose its cluster.
    pub(crate) fn is_open(&self) -> bool {
        self.choice == ClusterChoice::First && self.pin.is_none()
    }

    /// Returns the id of the cluster that the agent uses.
    pub(crate) fn expected(&self) -> Option<&str> {
        match &self.pin {
            Some(pin) if !self.follows_any() => Some(&pin.cluster_id),
            _ => self.current.as_deref(),
        }
    }

    /// Uses this cluster from now on; returns `true` if the agent used another one.
    pub(crate) fn follow(&mut self, cluster_id: &str) -> bool {
        let was_another = self.current.as_deref().is_some_and(|current| current != cluster_id);
        self.current = Some(cluster_id.into());
        if was_another {
            self.index_base = 0;
        }
        was_another
    }

    /// Returns `true` if the agent uses a cluster with another id.
    pub(crate) fn is_foreign(&self, cluster_id: &str) -> bool {
        self.expected().is_some_and(|expected| expected != cluster_id)
    }

    /// Returns `true` if this index base belongs to an older copy.
    pub(crate) fn is_older(&self, index_base: u64) -> bool {
        index_base.saturating_add(BASE_TOLERANCE) < self.index_base
    }

    /// Records the index base of a server of this cluster; returns `true` if older copies are
    /// rejected from now on.
    pub(crate) fn raise(&mut self, index_base: u64) -> bool {
        let is_raised = index_base > self.index_base.saturating_add(BASE_TOLERANCE);
        self.index_base = self.index_base.max(index_base);
        if let Some(pin) = self.pin.as_mut().filter(|_| is_raised && self.choice != ClusterChoice::Any) {
            pin.index_base = self.index_base;
        }
        is_raised
    }

    /// Records that a server of the current cluster registered the agent.
    pub(crate) fn registered(&mut self) {
        if self.is_open()
            && let Some(cluster_id) = self.current.clone()
        {
            self.pin = Some(Pin { cluster_id, index_base: self.index_base });
        }
    }

    /// Returns the highest index base seen.
    pub(crate) fn index_base(&self) -> u64 {
        self.index_base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAISE: u64 = 1 << 32;

    fn pinned(choice: ClusterChoice) -> Cluster {
        Cluster::new(choice, Some(Pin { cluster_id: "x".into(), index_base: RAISE }), Time(0))
    }

    #[test]
    fn first_registration_sets_permanent_pin() {
        let mut cluster = Cluster::new(ClusterChoice::First, None, Time(0));
        assert!(cluster.is_open() && !cluster.is_foreign("x"));
        assert!(!cluster.follow("x"));
        cluster.raise(7);
        cluster.registered();
        assert_eq!(cluster.pin(), Some(&Pin { cluster_id: "x".into(), index_base: 7 }));
        cluster.follow("y");
        cluster.registered();
        assert!(cluster.is_foreign("y") && !cluster.is_foreign("x"));
    }

    #[test]
    fn index_base_reveals_older_copy() {
        let mut cluster = pinned(ClusterChoice::First);
        assert!(cluster.is_older(0) && !cluster.is_older(RAISE - 1_000_000));
        assert!(!cluster.raise(RAISE + 5), "a restore or a better estimate");
        assert!(cluster.raise(2 * RAISE + 5) && cluster.is_older(RAISE));
        assert_eq!(cluster.pin().map(|pin| pin.index_base), Some(2 * RAISE + 5));
    }

    #[test]
    fn the_configuration_moves_an_agent() {
        let mut cluster = pinned(ClusterChoice::Id("x".into()));
        assert_eq!(cluster.pin().map(|pin| pin.index_base), Some(RAISE), "it is the pinned one");
        assert!(cluster.choose(ClusterChoice::Id("y".into()), Time(1)));
        assert!(cluster.is_foreign("x") && !cluster.is_older(0));
        assert!(!cluster.choose(ClusterChoice::Any, Time(2)) && cluster.pin().is_none());
        assert!(cluster.follow("x") && cluster.is_foreign("y"));
        assert!(cluster.choose(ClusterChoice::First, Time(3)), "its pin counts again");
        assert_eq!(cluster.expected(), Some("y"));
    }
}
