//! A server's readiness with its reason, and its metrics, while other servers stop and start and
//! its disk misbehaves; and the limits of its parked readers.

use crate::frontend::{Cluster, MAX_WATCHES, agent, read};
use lockmesh_core::frontend::{Figures, NotReady};
use lockmesh_protocol::id::{LogIndex, ServerId};
use lockmesh_protocol::query::Consistency;
use lockmesh_protocol::rpc::{Response, Unavailable};

impl Cluster {
    pub(crate) fn not_ready(&self, id: ServerId) -> Vec<NotReady> {
        self.servers[&id].frontend.not_ready(self.now())
    }

    pub(crate) fn figures(&self, id: ServerId) -> Figures {
        self.servers[&id].frontend.figures(self.now())
    }
}

#[test]
fn excess_blocking_queries_are_rejected() {
    let mut cluster = Cluster::start(3);
    let (leader, known) = (cluster.leader(), cluster.put("k"));
    let request = || read("k", Consistency::Stale, Some(known));
    let refused = |cluster: &mut Cluster, node: &str, why: &str| {
        let answer = cluster.ask(leader, &agent(node), request());
        let Response::Unavailable(Unavailable::Overloaded(text)) = &answer else { panic!("{answer:?}") };
        assert!(text.contains(why), "{text}");
    };
    for number in 0..MAX_WATCHES {
        let node = format!("a{}", number / 3);
        let call = cluster.call(leader, &agent(&node), request());
        assert_eq!(cluster.answer(leader, call), None);
        if number == 2 {
            refused(&mut cluster, "A0", "3 blocking queries of this agent are parked here");
        }
    }
    refused(&mut cluster, "a9", "24 blocking queries are parked here");
    cluster.put("k");
    let call = cluster.call(leader, &agent("a0"), read("k", Consistency::Stale, Some(LogIndex(1_000))));
    assert_eq!(cluster.answer(leader, call), None, "all others were answered");
}

crate::script::stories! { crate::judge::Fleet, "watched.txt",
    quorum_servers_are_ready readiness_requires_majority leader_unready_when_followers_silent
    failing_or_removed_server_unready dead_voter_lowers_failure_tolerance
    disk_stall_visible_until_written only_leader_reports_follower_lag leader_change_is_counted_once
    all_servers_report_equal_counts
}
