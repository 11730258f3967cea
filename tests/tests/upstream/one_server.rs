//! An agent's connection to a real QUIC service whose driver is scripted by each test.

use lockmesh_agent::upstream::calls::{Read, Renew, StatusOf};
use lockmesh_agent::upstream::{Upstream, UpstreamOptions};
use lockmesh_net::{Identity, IdentityFiles, Role};
use lockmesh_protocol::id::{LogIndex, RequestId};
use lockmesh_protocol::query::{Blocking, Consistency, Query};
use lockmesh_protocol::reply::Reply;
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_server::rpc::RpcOptions;
use lockmesh_tests::service::{Book, Cluster, Mood, Service, SharedBook, destroy, registration, session_id};
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const NODE: &str = "web-1";
const LONG: Duration = Duration::from_secs(3600);

struct Story {
    cluster: Cluster,
    book: SharedBook,
    service: Service,
    upstream: Upstream,
}

impl Story {
    fn begin() -> Self {
        Self::begin_with(RpcOptions::default(), 16_384, |options| options)
    }

    fn begin_with(
        limits: RpcOptions,
        queue_limit: usize,
        change: impl FnOnce(UpstreamOptions) -> UpstreamOptions,
    ) -> Self {
        let (cluster, book) = (Cluster::new(NODE), SharedBook::default());
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let service = Service::start_at(loopback, &cluster, &book, limits, queue_limit);
        let options = change(patient(&cluster, service.address));
        let upstream = Upstream::start(options).expect("a socket");
        Self { cluster, book, service, upstream }
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

fn blocking(index: u64, wait: Duration) -> Option<Blocking> {
    Some(Blocking { index: LogIndex(index), wait })
}

fn entry(key: &str) -> Query {
    Query::Entry(key.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_ready_together_share_frames() {
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
    assert_eq!(story.upstream.load().calls, 0);
}

#[tokio::test]
async fn nobody_is_heard_before_the_agent_registered() {
    let (cluster, book) = (Cluster::new(NODE), SharedBook::default());
    book.open().mood = Mood::Leaderless;
    let service = Service::start(&cluster, &book);
    let upstream = Upstream::start(patient(&cluster, service.address)).unwrap();
    assert!(!upstream.is_registered());
    assert_eq!(upstream.call(StatusOf::Nearest).await, Err(Unavailable::NotLeader { leader: None }));
    let (proposed, ()) = tokio::join!(upstream.call(destroy("s")), async {
        book.open().mood = Mood::Serving;
    });
    assert_eq!(proposed.unwrap().reply, Reply::Session(session_id("s")));
    assert!(upstream.is_registered() && upstream.call(StatusOf::Nearest).await.is_ok());
    assert_eq!(book.open().registrations, 1);
}

#[tokio::test]
async fn a_reader_that_goes_away_frees_its_place() {
    let story = Story::begin();
    let upstream = story.upstream.clone();
    let reader = tokio::spawn(async move {
        upstream
            .call(Read {
                query: entry("job"),
                consistency: Consistency::Default,
                blocking: blocking(5, LONG),
            })
            .await
    });
    story.book.reaches("a parked reader", |book| book.parked.len() == 1).await;
    assert_eq!(story.upstream.load().waiters, 1);
    reader.abort();
    story.book.reaches("no parked reader", |book| book.parked.is_empty()).await;
    assert_eq!(story.upstream.load().shared_reads, 0);
    assert_eq!(story.service.counters.cancels.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_list_has_a_stream_of_its_own_where_it_is_cancelled_too() {
    let story = Story::begin();
    let read = |query: Query| {
        let upstream = story.upstream.clone();
        let blocking = blocking(5, LONG);
        tokio::spawn(async move {
            upstream.call(Read { query, consistency: Consistency::Default, blocking }).await
        })
    };
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
async fn an_agent_that_goes_away_frees_all_its_places() {
    let story = Story::begin();
    for key in ["a", "b", "c"] {
        let upstream = story.upstream.clone();
        tokio::spawn(async move {
            upstream
                .call(Read {
                    query: entry(key),
                    consistency: Consistency::Stale,
                    blocking: blocking(5, LONG),
                })
                .await
        });
    }
    story.book.reaches("three parked readers", |book| book.parked.len() == 3).await;
    story.upstream.close().await;
    story.book.reaches("no parked reader", |book| book.parked.is_empty()).await;
    let error = story.renew().await.unwrap_err();
    assert_eq!(error, Unavailable::Unknown("the agent is shutting down".into()));
}

#[tokio::test]
async fn an_agent_in_a_hurry_answers_its_readers_with_what_there_is() {
    let story = Story::begin();
    let upstream = story.upstream.clone();
    let reader = tokio::spawn(async move {
        upstream
            .call(Read {
                query: entry("job"),
                consistency: Consistency::Default,
                blocking: blocking(5, LONG),
            })
            .await
    });
    story.book.reaches("a parked reader", |book| book.parked.len() == 1).await;
    story.upstream.hurry();
    assert_eq!(reader.await.unwrap().unwrap().index, LogIndex(0));
    story.book.reaches("no parked reader", |book| book.parked.is_empty()).await;
    let late = story
        .upstream
        .call(Read { query: entry("job"), consistency: Consistency::Default, blocking: blocking(5, LONG) })
        .await;
    assert_eq!(late.unwrap().index, LogIndex(0));
}

#[tokio::test]
async fn readers_of_the_same_news_share_one_call() {
    let story = Story::begin();
    let read = |wait: Duration, index: u64| {
        let upstream = story.upstream.clone();
        tokio::spawn(async move {
            upstream
                .call(Read {
                    query: entry("job"),
                    consistency: Consistency::Default,
                    blocking: blocking(index, wait),
                })
                .await
        })
    };
    let readers: Vec<_> = (0..100).map(|_| read(LONG, 5)).collect();
    let other = read(LONG, 6);
    story.book.reaches("two parked calls", |book| book.parked.len() == 2).await;
    // An agent reads the index base of a cluster before it registers.
    let before = story.book.open().plain_reads;
    // A read with a short timeout gets the present answer by a read of its own, and the others
    // continue to wait.
    let now = read(Duration::from_millis(1), 5).await.unwrap().unwrap();
    assert_eq!(now.index, LogIndex(0));
    story
        .book
        .reaches("two calls that wait on", move |book| {
            (book.plain_reads - before, book.parked.len()) == (1, 2)
        })
        .await;
    story.service.raise_index(6);
    for reader in readers {
        assert_eq!(reader.await.unwrap().unwrap().index, LogIndex(6));
    }
    // Callers that joined later receive the state as of their request: one more read for all of
    // them.
    story
        .book
        .reaches("one more read", move |book| (book.blocking_reads, book.plain_reads - before) == (2, 2))
        .await;
    assert!(!other.is_finished());
    other.abort();
    story.book.reaches("no parked reader", |book| book.parked.is_empty()).await;
}

#[tokio::test]
async fn a_read_that_waits_for_nothing_does_not_wait() {
    let story = Story::begin();
    let answer = story
        .upstream
        .call(Read { query: entry("job"), consistency: Consistency::Default, blocking: blocking(0, LONG) })
        .await
        .unwrap();
    assert_eq!((answer.index, story.book.open().blocking_reads), (LogIndex(0), 0));
}

#[tokio::test]
async fn a_command_and_a_reader_outlive_the_connection() {
    let story = Story::begin();
    story.renew().await.unwrap();
    story.book.open().mood = Mood::Silent;
    let upstream = story.upstream.clone();
    let proposed = tokio::spawn(async move { upstream.call(destroy("s")).await });
    let upstream = story.upstream.clone();
    let read = tokio::spawn(async move {
        upstream
            .call(Read {
                query: entry("job"),
                consistency: Consistency::Default,
                blocking: blocking(5, LONG),
            })
            .await
    });
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
async fn a_forgotten_agent_registers_again_and_its_command_goes_through() {
    let story = Story::begin();
    story.upstream.call(destroy("s")).await.unwrap();
    story.book.open().generation = None;
    assert_eq!(story.upstream.call(destroy("t")).await.unwrap().reply, Reply::Session(session_id("t")));
    let book = story.book.open();
    let numbers = |id: &RequestId| (id.generation.0, id.sequence, id.lowest);
    assert_eq!(book.proposals.iter().map(numbers).collect::<Vec<_>>(), [(1, 1, 1), (1, 2, 2), (2, 1, 1)]);
}

#[tokio::test]
async fn a_command_that_may_have_been_done_is_not_sent_under_another_life() {
    let story = Story::begin();
    story.renew().await.unwrap();
    story.book.open().mood = Mood::Silent;
    let upstream = story.upstream.clone();
    let proposed = tokio::spawn(async move { upstream.call(destroy("s")).await });
    story.book.reaches("the proposal", |book| book.proposals.len() == 1).await;
    let address = story.service.address;
    story.service.stop().await;
    story.book.open().mood = Mood::Serving;
    story.book.open().generation = None;
    let _service = Service::start_at(address, &story.cluster, &story.book, RpcOptions::default(), 16_384);
    let error = proposed.await.unwrap().unwrap_err();
    assert!(!error.certainly_not_done() && error.to_string().contains("unknown whether"), "{error}");
    assert_eq!(story.book.open().proposals.len(), 1);
}

#[tokio::test]
async fn without_a_leader_requests_are_held_and_then_given_up() {
    let hold = Duration::from_millis(300);
    let story = Story::begin_with(RpcOptions::default(), 100, |options| UpstreamOptions {
        hold_time: hold,
        ..options
    });
    while story.renew().await.is_err() {}
    story.book.open().mood = Mood::Leaderless;
    let begun = Instant::now();
    let error = story.upstream.call(destroy("s")).await.unwrap_err();
    // An attempt that is pending when the agent learns that there is no leader may have taken
    // effect: the core's stories show which attempts are certain.
    assert!(error.to_string().starts_with("No cluster leader"), "{error}");
    assert!(begun.elapsed() > hold / 4, "{:?}", begun.elapsed());
    assert!(story.upstream.counters().unwrap().retries.load(Ordering::Relaxed) > 0);
    assert_eq!(story.renew().await, Err(Unavailable::NotLeader { leader: None }));
}

#[tokio::test]
async fn without_a_server_requests_are_held_and_then_given_up() {
    let cluster = Cluster::new(NODE);
    let nowhere = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let options = patient(&cluster, nowhere.local_addr().unwrap());
    let upstream =
        Upstream::start(UpstreamOptions { hold_time: Duration::from_millis(50), ..options }).unwrap();
    let error = upstream.call(destroy("s")).await.unwrap_err();
    assert_eq!((error.to_string(), error.certainly_not_done()), ("No cluster leader".into(), true));
}

#[tokio::test]
async fn what_would_do_no_good_is_not_tried_again() {
    let story = Story::begin();
    story.renew().await.unwrap();
    story.book.open().mood = Mood::DiskFull;
    let error = story.upstream.call(destroy("s")).await.unwrap_err();
    assert_eq!(error, Unavailable::Disk("no space left".into()));
    assert_eq!(story.book.open().proposals.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_event_queue_sheds_load_and_the_rest_is_served() {
    let story = Story::begin_with(RpcOptions::default(), 10, |options| options);
    story.renew().await.unwrap();
    story.book.open().mood = Mood::Stuck;
    let renewals: Vec<_> = (0..5000)
        .map(|_| {
            let upstream = story.upstream.clone();
            tokio::spawn(async move { upstream.call(Renew(session_id("s"))).await })
        })
        .collect();
    // The driver holds one turn, the event queue ten calls; all others are rejected at once.
    while story.service.counters.overloaded.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    story.book.open().mood = Mood::Serving;
    story.book.changed();
    let mut shed = 0;
    for renewal in renewals {
        match renewal.await.unwrap() {
            Ok(_) => {}
            Err(Unavailable::Overloaded(_)) => shed += 1,
            Err(other) => panic!("{other}"),
        }
    }
    // A question of the agent itself may have been rejected as well: it checks on a late leader.
    let all = story.service.counters.overloaded.load(Ordering::Relaxed);
    assert!((1..=all).contains(&shed), "{shed} of {all}");
    story.renew().await.unwrap();
}

#[tokio::test]
async fn a_certificate_registers_no_other_node() {
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
async fn an_agent_of_another_authority_is_told_so_at_once() {
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
async fn an_agent_that_is_not_believed_pauses_and_is_served_when_it_is() {
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
