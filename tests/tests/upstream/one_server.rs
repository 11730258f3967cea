//! An agent's connection to a real QUIC service whose driver is scripted by each test.

use lockmesh_agent::upstream::calls::{Read, Renew};
use lockmesh_agent::upstream::{Upstream, UpstreamOptions};
use lockmesh_net::{Identity, IdentityFiles, Role};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_server::rpc::RpcOptions;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::service::{Book, Cluster, Mood, Service, SharedBook, destroy, registration, session_id};
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const NODE: &str = "web-1";

struct Story {
    cluster: Cluster,
    book: SharedBook,
    service: Service,
    upstream: Upstream,
}

impl Story {
    fn begin() -> Self {
        let (cluster, book) = (Cluster::new(NODE), SharedBook::default());
        let service = Service::start(&cluster, &book);
        let upstream = Upstream::start(patient(&cluster, service.address)).expect("a socket");
        Self { cluster, book, service, upstream }
    }

    fn read(&self, query: Query, consistency: Consistency) -> JoinHandle<Result<Arc<Answer>, Unavailable>> {
        let upstream = self.upstream.clone();
        let blocking = Some(Blocking { index: LogIndex(5), wait: Duration::from_secs(3600) });
        tokio::spawn(async move { upstream.call(Read { query, consistency, blocking }).await })
    }

    async fn renew(&self) -> Result<(), Unavailable> {
        self.upstream.call(Renew(session_id("s"))).await.map(|_| ())
    }
}

/// Options under which nothing times out on a slow test machine.
fn patient(cluster: &Cluster, server: SocketAddr) -> UpstreamOptions {
    let servers = vec![server.to_string()];
    let options = UpstreamOptions::new(servers, cluster.identity(Role::Agent), registration(NODE));
    UpstreamOptions { hold_time: Duration::from_secs(60), ..options }
}

fn entry(key: &str) -> Query {
    Query::Entry(key.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_calls_share_frames() {
    let story = Story::begin();
    story.renew().await.unwrap();
    let renewals: Vec<_> = (0..2000)
        .map(|_| {
            let upstream = story.upstream.clone();
            tokio::spawn(async move { upstream.call(Renew(session_id("s"))).await })
        })
        .collect();
    for renewal in renewals {
        assert_eq!(renewal.await.unwrap(), Ok(None));
    }
    let counters = &story.service.counters;
    let [calls, call_frames, replies, reply_frames] =
        [&counters.calls, &counters.call_frames, &counters.replies, &counters.reply_frames]
            .map(|counter| counter.load(Ordering::Relaxed));
    assert!(calls > 2000 && replies > 2000, "{calls} calls, {replies} replies");
    assert!(call_frames * 2 < calls, "{call_frames} frames for {calls} calls");
    assert!(reply_frames * 2 < replies, "{reply_frames} frames for {replies} replies");
    // A renewal of the agent's own lease may be on its way.
    tokio::task::block_in_place(|| wait_until(|| story.upstream.load().calls == 0));
}

#[tokio::test]
async fn aborted_read_cancels_call() {
    let story = Story::begin();
    let reader = story.read(entry("job"), Consistency::Default);
    story.book.reaches("a parked reader", |book| book.parked.len() == 1).await;
    assert_eq!(story.upstream.load().waiters, 1);
    reader.abort();
    story.book.reaches("no parked reader", |book| book.parked.is_empty()).await;
    assert_eq!(story.upstream.load().shared_reads, 0);
    assert_eq!(story.service.counters.cancels.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn lists_use_own_cancellable_stream() {
    let story = Story::begin();
    let read = |query: Query| story.read(query, Consistency::Default);
    let (list, one) = (read(Query::Entries("job".into())), read(entry("job")));
    story.book.reaches("two parked readers", |book| book.parked.len() == 2).await;
    let streams = |book: &Book| book.parked.keys().map(|(_, stream, _)| *stream).collect::<BTreeSet<_>>();
    assert_eq!(streams(&story.book.open()).len(), 2);
    list.abort();
    story.book.reaches("one parked reader", |book| book.parked.len() == 1).await;
    assert!(!one.is_finished());
    // A later list, to which an answer is sent.
    let list = read(Query::Entries("job".into()));
    story.book.reaches("two parked readers", |book| book.parked.len() == 2).await;
    story.service.raise_index(6);
    assert_eq!(list.await.unwrap().unwrap().index, LogIndex(6));
    assert_eq!(one.await.unwrap().unwrap().index, LogIndex(6));
}

#[tokio::test]
async fn closed_agent_frees_all_reads() {
    let story = Story::begin();
    let _reads = ["a", "b", "c"].map(|key| story.read(entry(key), Consistency::Stale));
    story.book.reaches("three parked readers", |book| book.parked.len() == 3).await;
    story.upstream.close().await;
    story.book.reaches("no parked reader", |book| book.parked.is_empty()).await;
    let error = story.renew().await.unwrap_err();
    assert_eq!(error, Unavailable::Unknown("the agent is shutting down".into()));
}

#[tokio::test]
async fn command_and_read_survive_reconnect() {
    let story = Story::begin();
    story.renew().await.unwrap();
    story.book.open().mood = Mood::Silent;
    let upstream = story.upstream.clone();
    let proposed = tokio::spawn(async move { upstream.call(destroy("s")).await });
    let read = story.read(entry("job"), Consistency::Default);
    story.book.reaches("both", |book| book.proposals.len() == 1 && book.parked.len() == 1).await;
    let address = story.service.address;
    story.service.stop().await;
    story.book.open().mood = Mood::Serving;
    let service = Service::start_at(address, &story.cluster, &story.book, RpcOptions::default(), 16_384);
    assert_eq!(proposed.await.unwrap().unwrap().reply, Reply::Session(session_id("s")));
    story.book.reaches("the reader again", |book| book.parked.len() == 1).await;
    service.raise_index(9);
    assert_eq!(read.await.unwrap().unwrap().index, LogIndex(9));
    let book = story.book.open();
    let [first, second] = book.proposals[..] else { panic!("two attempts: {:?}", book.proposals) };
    assert_eq!(first, second);
    // The server still knew the agent, so that it could recognize the retry.
    assert_eq!((book.registrations, book.applied.get(&first.sequence)), (1, Some(&1)));
}

#[tokio::test]
async fn certificate_of_other_node_rejected() {
    let (cluster, book) = (Cluster::new("web-2"), SharedBook::default());
    let service = Service::start(&cluster, &book);
    // The timeout here is a minute, but the call fails at once.
    let upstream = Upstream::start(patient(&cluster, service.address)).unwrap();
    let error = upstream.call(destroy("s")).await.unwrap_err();
    assert!(error.certainly_not_done() && error.to_string().contains("its certificate names"), "{error}");
    assert!(service.counters.denied.count() > 0);
    assert_eq!((book.open().registrations, upstream.is_registered()), (0, false));
}

#[tokio::test]
async fn foreign_authority_fails_immediately() {
    let (cluster, foreign, book) = (Cluster::new(NODE), Cluster::new(NODE), SharedBook::default());
    let service = Service::start(&cluster, &book);
    let upstream = Upstream::start(patient(&foreign, service.address)).unwrap();
    for _ in 0..2 {
        let error = upstream.call(destroy("s")).await.unwrap_err();
        assert!(matches!(error, Unavailable::NotAdmitted(_)), "{error}");
        let why = "its certificate is not trusted here, as no authority in `tls.ca` has signed it";
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(matches!(upstream.call(Renew(session_id("s"))).await, Err(Unavailable::NotAdmitted(_))));
}

/// The node's certificate of one cluster, for an agent that also trusts the servers of another.
fn believing(foreign: &Cluster, other: &Cluster) -> Identity {
    let authority = |cluster: &Cluster| fs::read(cluster.folder().join("ca.pem")).unwrap();
    let authorities = foreign.folder().join("both.pem");
    fs::write(&authorities, [authority(foreign), authority(other)].concat()).unwrap();
    let [certificate, key] = ["agent.pem", "agent-key.pem"].map(|name| foreign.folder().join(name));
    Identity::load(&IdentityFiles { authorities, certificate, key }).unwrap()
}

#[tokio::test]
async fn untrusted_agent_backs_off_until_trusted() {
    let (cluster, foreign, book) = (Cluster::new(NODE), Cluster::new(NODE), SharedBook::default());
    let service = Service::start(&cluster, &book);
    let options = patient(&cluster, service.address);
    let begun = Instant::now();
    let upstream =
        Upstream::start(UpstreamOptions { identity: believing(&foreign, &cluster), ..options }).unwrap();
    let error = upstream.call(destroy("s")).await.unwrap_err();
    let why = "refuses it: it does not trust the certificate of this end, as no authority in `tls.ca` has signed it";
    assert!(matches!(&error, Unavailable::NotAdmitted(reason) if reason.contains(why)), "{error}");
    while service.counters.strangers.count() < 6 {
        tokio::task::yield_now().await;
    }
    // The server rejects the certificate after the agent's own handshake, so the attempt does not
    // count as a connection: the backoffs are at least 10, 20, 40, 80 and 160 ms.
    assert!(begun.elapsed() >= Duration::from_millis(310), "{:?}", begun.elapsed());
    upstream.replace_identity(&cluster.identity(Role::Agent));
    while upstream.call(destroy("s")).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert!(upstream.is_registered());
}

#[tokio::test]
async fn ipv6_is_as_good() {
    let (cluster, book) = (Cluster::new(NODE), SharedBook::default());
    let loopback: SocketAddr = "[::1]:0".parse().unwrap();
    let service = Service::start_at(loopback, &cluster, &book, RpcOptions::default(), 100);
    let upstream = Upstream::start(patient(&cluster, service.address)).unwrap();
    assert_eq!(upstream.call(Renew(session_id("s"))).await, Ok(None));
}
