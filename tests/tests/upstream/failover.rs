//! An agent during the elections of a quorum: three QUIC services that lead, follow, die and are
//! removed, with one shared record of all requests.

use lockmesh_agent::upstream::calls::Read;
use lockmesh_agent::upstream::{Upstream, UpstreamOptions};
use lockmesh_net::{QuicOptions, Role};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_server::rpc::RpcOptions;
use lockmesh_tests::service::{Cluster, Service, SharedBook, destroy, registration, session_id};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const NODE: &str = "web-1";
const LONG: Duration = Duration::from_secs(3600);

/// Number of concurrent commands.
const MANY: usize = 50;

struct Story {
    cluster: Cluster,
    book: SharedBook,
    services: BTreeMap<u64, Service>,
    upstream: Upstream,
}

impl Story {
    /// Three servers, the first of which leads, and an agent that registered there.
    async fn begin(quic: QuicOptions) -> Self {
        let (cluster, book) = (Cluster::new(NODE), SharedBook::default());
        book.open().quic = quic.clone();
        let services = Service::start_many(3, &cluster, &book);
        let servers = services.iter().map(|service| service.address.to_string()).collect();
        let options = UpstreamOptions::new(servers, cluster.identity(Role::Agent), registration(NODE));
        let options = UpstreamOptions { hold_time: Duration::from_secs(60), quic, ..options };
        let upstream = Upstream::start(options).expect("a socket");
        let services = services.into_iter().map(|service| (service.id, service)).collect();
        let story = Self { cluster, book, services, upstream };
        while story.upstream.call(destroy("first")).await.is_err() {}
        story
    }

    async fn kill(&mut self, id: u64) {
        self.services.remove(&id).expect("it runs").kill().await;
    }

    fn restart(&mut self, id: u64) {
        let address = self.book.open().servers[&id];
        let service =
            Service::start_as(id, address, &self.cluster, &self.book, RpcOptions::default(), 16_384);
        self.services.insert(id, service);
    }

    fn propose_many(&self) -> Vec<JoinHandle<Result<Applied, Unavailable>>> {
        let propose = |number: usize| {
            let upstream = self.upstream.clone();
            tokio::spawn(async move { upstream.call(destroy(&format!("s{number}"))).await })
        };
        (0..MANY).map(propose).collect()
    }

    fn read(
        &self,
        consistency: Consistency,
        blocking: Option<Blocking>,
    ) -> JoinHandle<Result<Arc<Answer>, Unavailable>> {
        let upstream = self.upstream.clone();
        tokio::spawn(async move {
            upstream.call(Read { query: Query::Entry("job".into()), consistency, blocking }).await
        })
    }

    /// Returns the home server, found by a stale read.
    async fn home(&self) -> u64 {
        self.book.open().stale_reads.clear();
        self.read(Consistency::Stale, None).await.unwrap().unwrap();
        *self.book.open().stale_reads.keys().next().unwrap()
    }

    /// Makes another server than the home server the leader.
    async fn lead_away_from_home(&self) -> (u64, u64) {
        let home = self.home().await;
        let leader = if home == 2 { 3 } else { 2 };
        self.book.open().elect(leader);
        self.upstream.call(destroy("second")).await.unwrap();
        (leader, home)
    }
}

/// Checks that every command succeeded, with one ID throughout, under one registration.
async fn assert_done_once(story: &Story, proposed: Vec<JoinHandle<Result<Applied, Unavailable>>>) {
    for (number, proposed) in proposed.into_iter().enumerate() {
        let session = format!("s{number}");
        assert_eq!(proposed.await.unwrap().unwrap().reply, Reply::Session(session_id(&session)));
        let book = story.book.open();
        assert_eq!(book.ids[&session_id(&session)].len(), 1, "{session}: {:?}", book.ids);
    }
    let mut book = story.book.open();
    assert_eq!(book.registrations, 1);
    book.ids.clear();
}

fn blocking(index: u64) -> Option<Blocking> {
    Some(Blocking { index: LogIndex(index), wait: LONG })
}

#[tokio::test]
async fn successive_leader_kills_lose_nothing() {
    let mut story = Story::begin(QuicOptions::default()).await;
    for leader in [2, 3, 1, 2] {
        let last = story.book.open().view.leader.unwrap();
        let proposed = story.propose_many();
        story.book.open().elect(leader);
        story.kill(last).await;
        assert_done_once(&story, proposed).await;
        story.restart(last);
    }
}

#[tokio::test]
async fn readers_leave_silent_idle_home_server() {
    // The connection itself would time out only after an hour, the server after more than ten
    // seconds.
    let quic = QuicOptions { idle_time: LONG, ..QuicOptions::default() };
    let mut story = Story::begin(quic).await;
    let (leader, home) = story.lead_away_from_home().await;
    let reader = story.read(Consistency::Default, blocking(5));
    story.book.reaches("a parked reader", move |book| book.parked.keys().any(|key| key.0 == home)).await;
    let begun = Instant::now();
    story.kill(home).await;
    story.book.reaches("the reader elsewhere", |book| book.parked.len() == 1).await;
    assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
    story.services[&leader].raise_index(9);
    assert_eq!(reader.await.unwrap().unwrap().index, LogIndex(9));
}

#[tokio::test]
async fn removed_server_rejections_retried_elsewhere() {
    let story = Story::begin(QuicOptions::default()).await;
    let (leader, home) = story.lead_away_from_home().await;
    let reader = story.read(Consistency::Stale, blocking(5));
    story.book.reaches("a parked reader", move |book| book.parked.keys().any(|key| key.0 == home)).await;
    story.services[&home].hears_of_its_removal();
    story.book.reaches("the reader elsewhere", move |book| book.parked.keys().any(|key| key.0 != home)).await;
    story.services[&leader].raise_index(9);
    assert_eq!(reader.await.unwrap().unwrap().index, LogIndex(9));
    // A leader that is removed transfers leadership first; its pending commands go to the next
    // leader under their IDs all the same.
    story.services[&leader].hears_of_its_removal();
    let proposed = story.propose_many();
    story.book.open().elect(6 - leader - home);
    assert_done_once(&story, proposed).await;
    assert_ne!(story.home().await, home);
}
