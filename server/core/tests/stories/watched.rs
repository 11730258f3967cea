//! A server's readiness with its reason, and its metrics, while other servers stop and start and
//! its disk misbehaves.

use crate::frontend::{Cluster, agent};
use lockmesh_core::frontend::{DiskHealth, Event, Figures, NotReady};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::rpc::Request;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

impl Cluster {
    pub(crate) fn not_ready(&self, id: ServerId) -> Vec<NotReady> {
        self.servers[&id].frontend.not_ready(self.now())
    }

    pub(crate) fn figures(&self, id: ServerId) -> Figures {
        self.servers[&id].frontend.figures(self.now())
    }

    /// The servers that are not down.
    fn up(&self) -> Vec<ServerId> {
        self.servers.keys().copied().filter(|id| !self.down.contains(id)).collect()
    }
}

#[test]
fn every_server_of_a_quorum_is_ready() {
    for count in [1, 3] {
        let cluster = Cluster::start(count);
        for id in cluster.up() {
            assert_eq!(cluster.not_ready(id), [], "{id} of {count}");
        }
    }
}

#[test]
fn without_a_majority_nobody_is_ready_and_with_one_everybody_is() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    cluster.leave_alone(leader);
    cluster.run(5 * SECOND);
    assert_eq!(cluster.not_ready(leader), [NotReady::NoLeader]);
    cluster.down.clear();
    cluster.run(5 * SECOND);
    for id in cluster.up() {
        assert_eq!(cluster.not_ready(id), []);
    }
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let others = [leader].into_iter().chain(cluster.up()).filter(|id| *id != follower);
    cluster.down = others.collect();
    cluster.run(5 * SECOND);
    assert_eq!(cluster.not_ready(follower), [NotReady::NoLeader]);
    assert!(!cluster.figures(follower).is_leader_known);
}

#[test]
fn a_leader_whose_others_fall_silent_at_once_is_not_ready_before_it_steps_down() {
    let cluster = Cluster::start(3);
    let leader = cluster.leader();
    let silence = cluster.servers[&leader].frontend.core().autopilot(cluster.now()).longest_silence();
    let later = cluster.now() + silence + SECOND;
    assert_eq!(cluster.servers[&leader].frontend.not_ready(later), [NotReady::NoQuorum]);
    let follower = cluster.follower();
    assert_eq!(cluster.servers[&follower].frontend.not_ready(later), [NotReady::LeaderSilent]);
}

#[test]
fn a_server_that_was_removed_or_whose_disk_refuses_is_not_ready() {
    let mut cluster = Cluster::start(3);
    let (leader, goes) = (cluster.leader(), cluster.follower());
    let failing = DiskHealth::Failing("no space".into());
    cluster.turn(goes, Some(Event::Disk(failing)));
    assert_eq!(cluster.not_ready(goes), [NotReady::DiskFailing("no space".into())]);
    cluster.turn(goes, Some(Event::Disk(DiskHealth::Good)));
    assert_eq!(cluster.not_ready(goes), []);
    cluster.call(leader, &agent("a1"), Request::RemoveServer(goes));
    assert_eq!(cluster.not_ready(goes).first(), Some(&NotReady::Removed));
}

#[test]
fn a_stalled_disk_shows_while_it_stalls_and_no_longer() {
    let mut cluster = Cluster::start(3);
    let follower = cluster.follower();
    assert_eq!(cluster.figures(follower).unpersisted_since, None, "nothing is to be written");
    cluster.servers.get_mut(&follower).expect("it runs").held = Some(Vec::new());
    let since = cluster.now();
    cluster.put("k");
    cluster.run(SECOND / 2);
    assert_eq!(
        (cluster.figures(follower).unpersisted_since, cluster.not_ready(follower)),
        (Some(since), vec![])
    );
    cluster.run(SECOND * 5 / 2);
    assert_eq!(cluster.not_ready(follower), [NotReady::DiskStalled(3 * SECOND)]);
    cluster.let_write(follower);
    assert_eq!((cluster.figures(follower).unpersisted_since, cluster.not_ready(follower)), (None, vec![]));
}

#[test]
fn a_leader_sees_a_follower_that_stopped_as_lag_and_silence_and_followers_see_nobody() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let seen = |cluster: &Cluster| {
        let node = format!("s{follower}");
        let followers = cluster.figures(leader).followers;
        assert_eq!(followers.len(), 2);
        followers.into_iter().find(|other| other.node.as_str() == node).expect("it is a member")
    };
    cluster.run(SECOND);
    assert_eq!(seen(&cluster).lag, 0);
    assert!(seen(&cluster).last_contact < SECOND);
    cluster.down = [follower].into();
    for _ in 0..7 {
        cluster.put("k");
    }
    cluster.run(3 * SECOND);
    let stopped = seen(&cluster);
    assert!(stopped.lag >= 7 && stopped.last_contact >= 3 * SECOND, "{stopped:?}");
    let other = cluster.up().into_iter().find(|id| *id != leader).expect("it is up");
    assert_eq!(cluster.figures(other).followers, []);
}

#[test]
fn another_leader_counts_once_on_each_server_that_sees_it() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let before =
        cluster.up().into_iter().map(|id| (id, cluster.figures(id).leader_changes)).collect::<Vec<_>>();
    let term = cluster.figures(leader).term;
    cluster.down = [leader].into();
    cluster.run(5 * SECOND);
    for (id, changes) in before.into_iter().filter(|(id, _)| *id != leader) {
        let now = cluster.figures(id);
        assert!(now.is_leader_known && now.term > term);
        assert_eq!(now.leader_changes, changes + 1, "{id}");
    }
}

#[test]
fn sessions_locks_and_keys_are_counted_alike_by_all() {
    let mut cluster = Cluster::start(3);
    cluster.session();
    cluster.put("a");
    cluster.put("b");
    cluster.run(SECOND);
    for id in cluster.up() {
        let Figures { sessions, keys, locks_held, lock_waiters, .. } = cluster.figures(id);
        assert_eq!((sessions, keys, locks_held, lock_waiters), (1, 2, 0, 0));
    }
}
