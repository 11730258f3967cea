//! A hundred agents that connect at once, over real QUIC: each is registered, and has its lease
//! acknowledged.

use lockmesh_agent::upstream::calls::Read;
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::MemberStatus;
use lockmesh_tests::quorum::Quorum;
use lockmesh_tests::stand_ins::{Issuer, StandIn};
use std::time::Duration;
use tokio::time::timeout;

const AGENTS: usize = 100;

/// Timeout of every wait in this test.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_simultaneous_agents_keep_leases() {
    let quorum = Quorum::found(3, "somebody");
    let (issuer, servers) = (Issuer::of(&quorum.authority()), quorum.addresses());
    let agents: Vec<StandIn> = (0..AGENTS).map(|number| StandIn::start(&issuer, number, &servers)).collect();
    for agent in &agents {
        timeout(TIMEOUT, agent.is_acknowledged()).await.expect("its lease is acknowledged");
    }
    let read = agents[0]
        .upstream
        .call(Read { query: Query::Agents, consistency: Consistency::Consistent, blocking: None })
        .await;
    let Rows::Agents(members) = &read.expect("there is a leader").rows else { panic!("no members") };
    let alive = members.iter().filter(|member| member.status == MemberStatus::Alive).count();
    assert_eq!(alive, AGENTS);
    for agent in &agents {
        assert_eq!(agent.upstream.not_ready(), [], "it can have requests answered");
    }
    StandIn::close_all(agents).await;
    quorum.end().await;
}
