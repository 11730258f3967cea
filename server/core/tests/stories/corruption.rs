//! Corruption checks: servers whose states differ after the same log, and their quarantine.

use crate::frontend::Cluster;
use crate::solo::CORRUPTION_CHECK_INTERVAL;
use lockmesh_core::corruption::Finding;
use lockmesh_core::raft::TICK;
use lockmesh_protocol::change::{Change, Table};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::time::Time;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Corrupts a server's disk with a row that no log entry made, as a bug in the state machine would.
pub(crate) fn corrupt(cluster: &mut Cluster, id: ServerId) {
    let row = Change::Tombstone("never deleted".into(), Some(LogIndex(1)));
    cluster.servers.get_mut(&id).expect("it runs").recorded.load(row);
}

#[test]
fn check_covers_only_preceding_entries() {
    let mut cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    cluster.put("before");
    cluster.run(CORRUPTION_CHECK_INTERVAL - cluster.now().since(Time(0)) - 3 * TICK);
    // The leader's decisions meanwhile reach this follower in one batch.
    cluster.down.insert(follower);
    while cluster.servers[&leader].exact.is_empty() {
        cluster.put("meanwhile");
        cluster.run(TICK);
    }
    let check = cluster.servers[&leader].exact[0].0.index;
    let last = cluster.put("after");
    assert!(last > check);
    cluster.down.clear();
    cluster.run(3 * SECOND);
    for one in cluster.servers.values() {
        let (mark, state) = &one.exact[0];
        assert_eq!((mark.index, state.table_index(Table::Entries)), (check, LogIndex(check.0 - 1)));
    }
    let checks = cluster.servers[&leader].frontend.core().corruption_checks();
    assert_eq!((checks.reported(), checks.finding()), (3, &Finding::Alike));
}

crate::script::stories! { crate::judge::Fleet, "corruption.txt",
    identical_servers_pass_check no_check_without_writes_or_peers
    corrupt_follower_refuses_agents_but_votes corrupt_leader_hands_over
    two_differing_servers_remain_undecided server_without_checksum_is_skipped mixed_versions_skip_check
    only_the_leader_is_believed copied_corruption_forms_no_majority confirmed_copy_regains_vote
    correct_copy_clears_corruption
}
