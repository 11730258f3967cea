//! An agent during the elections of a quorum: three QUIC services that act as leader, follower,
//! deposed, lagging, silent and dead, with one shared record of all requests.

use lockmesh_agent::upstream::calls::{Read, Renew};
use lockmesh_agent::upstream::{Upstream, UpstreamOptions};
use lockmesh_net::{QuicOptions, Role};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::Unavailable;
use lockmesh_server::rpc::RpcOptions;
use lockmesh_tests::service::{
    Book, Cluster, Mood, Service, SharedBook, View, destroy, registration, session_id,
};
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
    async fn begin() -> Self {
        Self::begin_with(3, |options| options).await
    }

    /// An agent whose configuration lists this many of the three servers.
    async fn begin_with(seeds: usize, change: impl FnOnce(UpstreamOptions) -> UpstreamOptions) -> Self {
        Self::begin_from(SharedBook::default(), seeds, change).await
    }

    /// The same with servers that behave unusually from the beginning.
    async fn begin_from(
        book: SharedBook,
        seeds: usize,
        change: impl FnOnce(UpstreamOptions) -> UpstreamOptions,
    ) -> Self {
        let cluster = Cluster::new(NODE);
        let services = Service::start_many(3, &cluster, &book);
        let servers = services.iter().take(seeds).map(|service| service.address.to_string()).collect();
        let options = UpstreamOptions::new(servers, cluster.identity(Role::Agent), registration(NODE));
        let options = change(UpstreamOptions { hold_time: Duration::from_secs(60), ..options });
        let upstream = Upstream::start(options).expect("a socket");
        let services = services.into_iter().map(|service| (service.id, service)).collect();
        let story = Self { cluster, book, services, upstream };
        while story.upstream.call(destroy("first")).await.is_err() {}
        let mut open = story.book.open();
        open.proposals.clear();
        open.told.clear();
        drop(open);
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
        let mut book = self.book.open();
        book.proposals.clear();
        book.told.clear();
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

fn notified(book: &Book, server: u64) -> usize {
    book.told.iter().filter(|told| **told == server).count()
}

#[tokio::test]
async fn commands_go_to_the_leader_and_stale_reads_home() {
    let story = Story::begin().await;
    let home = story.home().await;
    assert_done_once(&story, story.propose_many()).await;
    assert_eq!(notified(&story.book.open(), 1), MANY);
    for _ in 0..20 {
        story.read(Consistency::Stale, None).await.unwrap().unwrap();
    }
    assert_eq!(story.book.open().stale_reads, BTreeMap::from([(home, 21)]));
    // Followers refuse plain reads, and this one is not refused.
    story.read(Consistency::Default, None).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_leader_that_is_named_gets_what_another_one_refused() {
    let story = Story::begin().await;
    story.book.open().elect(3);
    assert_done_once(&story, story.propose_many()).await;
    let book = story.book.open();
    assert_eq!(notified(&book, 3), MANY, "{:?}", book.told);
}

#[tokio::test]
async fn what_a_killed_leader_left_unanswered_goes_to_the_next_one_under_the_same_ids() {
    let mut story = Story::begin().await;
    story.book.open().moods.insert(1, Mood::Silent);
    let proposed = story.propose_many();
    story.book.reaches("all commands", |book| book.proposals.len() == MANY).await;
    story.book.open().view = View { leader: None, term: 1 };
    story.kill(1).await;
    // The old leader sends nothing any more, and there is no leader. Then one is elected.
    let asked = |book: &Book| book.questions.values().sum::<u32>();
    let before = asked(&story.book.open());
    story.book.reaches("questions to the remaining servers", move |book| asked(book) > before + 5).await;
    assert!(proposed.iter().all(|proposed| !proposed.is_finished()));
    story.book.open().elect(2);
    assert_done_once(&story, proposed).await;
    let book = story.book.open();
    assert_eq!((notified(&book, 1), notified(&book, 2)), (MANY, MANY));
}

#[tokio::test]
async fn a_deposed_leader_that_does_not_know_it_is_left() {
    let story = Story::begin().await;
    story.book.open().moods.insert(1, Mood::Silent);
    let proposed = story.propose_many();
    story.book.reaches("all commands", |book| book.proposals.len() == MANY).await;
    story.book.open().elect_unnoticed_by(3, 1);
    assert_done_once(&story, proposed).await;
    assert_eq!(notified(&story.book.open(), 3), MANY);
}

#[tokio::test]
async fn a_follower_that_lags_leads_nobody_astray() {
    let mut story = Story::begin().await;
    let (leader, home) = story.lead_away_from_home().await;
    let third = 6 - leader - home;
    story.book.open().moods.insert(leader, Mood::Silent);
    let proposed = story.propose_many();
    story.book.reaches("all commands", |book| book.proposals.len() == MANY).await;
    story.book.open().elect_unnoticed_by(third, home);
    story.kill(leader).await;
    assert_done_once(&story, proposed).await;
    assert_eq!(notified(&story.book.open(), third), MANY);
}

#[tokio::test]
async fn a_leader_that_takes_everything_and_answers_nothing_is_left() {
    let story = Story::begin().await;
    story.book.open().moods.insert(1, Mood::Mute);
    let proposed = story.propose_many();
    story.book.reaches("all commands", |book| book.proposals.len() == MANY).await;
    story.book.open().elect_unnoticed_by(2, 1);
    assert_done_once(&story, proposed).await;
}

#[tokio::test]
async fn a_leader_that_is_only_slow_is_told_nothing_twice() {
    let story = Story::begin().await;
    story.book.open().moods.insert(1, Mood::Silent);
    let proposed = story.propose_many();
    let asked = |book: &Book| book.questions.get(&2).copied().unwrap_or(0);
    let before = asked(&story.book.open());
    story.book.reaches("doubts", move |book| asked(book) >= before + 10).await;
    assert_eq!(notified(&story.book.open(), 1), MANY);
    proposed.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn one_server_in_the_configuration_is_enough_even_when_it_dies() {
    let mut story = Story::begin_with(1, |options| options).await;
    story.book.open().elect(2);
    story.kill(1).await;
    assert_done_once(&story, story.propose_many()).await;
    story.read(Consistency::Stale, None).await.unwrap().unwrap();
    story.book.open().elect(3);
    story.kill(2).await;
    assert_done_once(&story, story.propose_many()).await;
}

#[tokio::test]
async fn a_chain_of_killed_leaders_loses_nothing() {
    let mut story = Story::begin().await;
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
async fn readers_of_a_killed_leader_wait_on_elsewhere() {
    let mut story = Story::begin().await;
    let home = story.home().await;
    story.book.open().elect(home);
    story.upstream.call(destroy("second")).await.unwrap();
    let reader = story.read(Consistency::Default, blocking(5));
    story.book.reaches("a parked reader", |book| book.parked.len() == 1).await;
    let next = home % 3 + 1;
    story.kill(home).await;
    story.book.open().elect(next);
    // A command detects the loss of the leader; the parked read, which waits at the same server,
    // moves with it.
    story.upstream.call(destroy("third")).await.unwrap();
    story.book.reaches("the reader elsewhere", |book| book.parked.len() == 1).await;
    story.services[&next].raise_index(9);
    assert_eq!(reader.await.unwrap().unwrap().index, LogIndex(9));
}

#[tokio::test]
async fn readers_move_when_their_home_server_stops() {
    let mut story = Story::begin().await;
    let (leader, home) = story.lead_away_from_home().await;
    let reader = story.read(Consistency::Default, blocking(5));
    story.book.reaches("a parked reader", move |book| book.parked.keys().all(|key| key.0 == home)).await;
    story.book.reaches("a parked reader", |book| book.parked.len() == 1).await;
    story.services.remove(&home).unwrap().stop().await;
    story.book.reaches("the reader elsewhere", |book| book.parked.len() == 1).await;
    story.services[&leader].raise_index(9);
    assert_eq!(reader.await.unwrap().unwrap().index, LogIndex(9));
}

#[tokio::test]
async fn readers_leave_a_home_server_that_is_silent_although_nothing_else_is_asked_of_it() {
    // The connection itself would time out only after an hour, the server after more than ten
    // seconds.
    let quic = QuicOptions { idle_time: LONG, ..QuicOptions::default() };
    let book = SharedBook::default();
    book.open().quic = quic.clone();
    let mut story = Story::begin_from(book, 3, |options| UpstreamOptions { quic, ..options }).await;
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
async fn readers_leave_a_home_server_that_was_removed_and_does_not_know_it() {
    let story = Story::begin().await;
    let (leader, home) = story.lead_away_from_home().await;
    let reader = story.read(Consistency::Default, blocking(5));
    story.book.reaches("a parked reader", move |book| book.parked.keys().any(|key| key.0 == home)).await;
    story.book.open().remove_unnoticed(home);
    story.book.reaches("the reader elsewhere", move |book| book.parked.keys().any(|key| key.0 != home)).await;
    story.services[&leader].raise_index(9);
    assert_eq!(reader.await.unwrap().unwrap().index, LogIndex(9));
    assert_ne!(story.home().await, home, "its stale reads would be outdated");
}

#[tokio::test]
async fn what_a_removed_server_refuses_goes_elsewhere() {
    let story = Story::begin().await;
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

#[tokio::test]
async fn readers_of_a_home_server_without_a_leader_are_served_by_the_leader() {
    let story = Story::begin().await;
    let (leader, home) = story.lead_away_from_home().await;
    story.book.open().moods.insert(home, Mood::Leaderless);
    let reader = story.read(Consistency::Default, blocking(5));
    story
        .book
        .reaches("a reader at the leader", move |book| book.parked.keys().any(|key| key.0 == leader))
        .await;
    story.services[&leader].raise_index(9);
    assert_eq!(reader.await.unwrap().unwrap().index, LogIndex(9));
}

#[tokio::test]
async fn without_a_quorum_only_stale_reads_are_answered_and_then_all_goes_on() {
    let hold = Duration::from_millis(300);
    let story = Story::begin_with(3, |options| UpstreamOptions { hold_time: hold, ..options }).await;
    story.book.open().view = View { leader: None, term: 2 };
    let no_leader = Unavailable::NotLeader { leader: None };
    let proposed = story.upstream.call(destroy("s")).await.unwrap_err();
    assert_eq!((proposed.to_string(), proposed.certainly_not_done()), ("No cluster leader".into(), true));
    assert_eq!(story.read(Consistency::Default, None).await.unwrap().unwrap_err(), no_leader);
    assert_eq!(story.upstream.call(Renew(session_id("s"))).await.unwrap_err(), no_leader);
    let stale = story.read(Consistency::Stale, None).await.unwrap().unwrap();
    assert_eq!((stale.known_leader, stale.last_contact.is_zero()), (false, false));
    story.book.open().elect(2);
    while story.upstream.call(destroy("t")).await.is_err() {}
    story.read(Consistency::Default, None).await.unwrap().unwrap();
    assert!(story.read(Consistency::Stale, None).await.unwrap().unwrap().known_leader);
    assert_eq!(story.book.open().registrations, 1);
}

#[tokio::test]
async fn what_may_have_been_done_is_unknown_when_no_leader_comes() {
    let hold = Duration::from_millis(1500);
    let mut story = Story::begin_with(3, |options| UpstreamOptions { hold_time: hold, ..options }).await;
    story.book.open().moods.insert(1, Mood::Silent);
    let upstream = story.upstream.clone();
    let proposed = tokio::spawn(async move { upstream.call(destroy("s")).await });
    story.book.reaches("the command", |book| book.proposals.len() == 1).await;
    story.book.open().view = View { leader: None, term: 1 };
    story.services.remove(&1).unwrap().stop().await;
    let error = proposed.await.unwrap().unwrap_err();
    assert!(!error.certainly_not_done() && error.to_string().contains("unknown whether"), "{error}");
    // A command that was never sent is definitely not done.
    let error = story.upstream.call(destroy("t")).await.unwrap_err();
    assert!(error.certainly_not_done());
}

/// Starts commands that are not sent yet because no leader is known; then the servers forget the
/// agent and the second one becomes the leader. Commands that had been sent before could only have
/// an unknown outcome.
async fn forget_and_elect(story: &Story) -> Vec<JoinHandle<Result<Applied, Unavailable>>> {
    story.book.open().view = View { leader: None, term: 1 };
    let reader = story.read(Consistency::Default, None);
    let asked = |book: &Book| book.questions.values().sum::<u32>();
    let before = asked(&story.book.open());
    story.book.reaches("the search for a leader", move |book| asked(book) > before + 5).await;
    let proposed = story.propose_many();
    {
        let mut book = story.book.open();
        book.generation = None;
        book.elect(2);
        book.moods.clear();
    }
    story.book.changed();
    reader.await.unwrap().unwrap();
    proposed
}

/// No server counts as slow, so that only a refusal makes the agent leave its leader.
fn patient(options: UpstreamOptions) -> UpstreamOptions {
    UpstreamOptions { probe_after: LONG, ..options }
}

async fn assert_registered_first(story: &Story, proposed: Vec<JoinHandle<Result<Applied, Unavailable>>>) {
    for proposed in proposed {
        proposed.await.unwrap().unwrap();
    }
    let book = story.book.open();
    assert_eq!(book.registrations, 2);
    assert!(book.proposals.iter().all(|id| id.generation.0 == 2), "{:?}", book.proposals);
}

#[tokio::test]
async fn an_agent_whose_servers_forgot_it_registers_with_the_leader() {
    let story = Story::begin_with(3, patient).await;
    // The new leader's status does not know the agent, so the commands wait for the next
    // registration.
    let proposed = forget_and_elect(&story).await;
    assert_registered_first(&story, proposed).await;
}

#[tokio::test]
async fn a_leader_that_answers_what_it_was_asked_before_the_registration_is_asked_again() {
    let book = SharedBook::default();
    // It receives the question when the agent connects, and replies when it leads.
    book.open().moods.insert(2, Mood::Stuck);
    let story = Story::begin_from(book, 3, patient).await;
    let proposed = forget_and_elect(&story).await;
    assert_registered_first(&story, proposed).await;
}
