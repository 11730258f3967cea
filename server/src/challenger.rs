//! Asks agents whether they live, as the driver wants it while a check of them is open.
//!
//! ```text
//! driver ── challenge ──> a bounded line an agent ──> its task ──> one connection, a stream for each challenge
//!        <── Challenged: the agent's renewal, or nothing within 250 ms ──
//! ```
//!
//! Nothing is decided here. **Invariants:** the driver never waits; only an agent whose certificate
//! names the node is heard; an agent that was not asked is never said to be silent.

use crate::event_queue::{DriverEvent, EventSender};
use crate::metrics::SERVER;
use crate::peers::Peers;
use lockmesh_core::frontend::ChallengeWanted;
use lockmesh_net::client::try_each;
use lockmesh_net::{CallClient, Close, Connection, Endpoint, LinkError, Role};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::{Challenge, Renewal};
use lockmesh_protocol::rpc::{Request, Response};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

/// How long an agent's answer is waited for.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// An answer that comes later, until then, is told all the same: whoever sent it lives.
const LATE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long one attempt to connect may take; the next challenges wait for it as well.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to an agent of which nothing was wanted for so long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// How many challenges may be under way: two for each of 256 agents.
const MAX_CHALLENGES: usize = 512;

/// How many challenges may wait for the task of one agent, which hands each on at once.
const CHALLENGES_IN_LINE: usize = 4;

/// All that is asked of agents.
#[derive(Debug)]
pub(crate) struct Challenger {
    peers: Arc<Peers>,
    permits: Arc<Semaphore>,
    agents: BTreeMap<(NodeName, String), mpsc::Sender<Pending>>,
}

/// A challenge under way.
#[derive(Debug)]
struct Pending {
    challenge: Challenge,
    _permit: OwnedSemaphorePermit,
}

/// An agent that is asked.
#[derive(Clone, Debug)]
struct Agent {
    node: NodeName,
    address: String,
    endpoint: Arc<Endpoint>,
    sender: EventSender,
    connection: Arc<Mutex<Option<Connection>>>,
}

impl Challenger {
    /// Asks from where other servers are called, too.
    pub(crate) fn new(peers: Arc<Peers>) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_CHALLENGES));
        Self { peers, permits, agents: BTreeMap::new() }
    }

    /// Asks each of these agents once. Where too many challenges are under way nothing is told of
    /// those that were not sent: they say nothing of their agents.
    pub(crate) fn ask_all(&mut self, wanted: impl Iterator<Item = ChallengeWanted>) {
        for ChallengeWanted { node, address, challenge } in wanted {
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                SERVER.counts.challenges_unsent.inc();
                continue;
            };
            // Those of agents that were not asked for a while have ended.
            self.agents.retain(|_, agent| !agent.is_closed());
            let peers = &self.peers;
            let agent = self.agents.entry((node, address));
            let agent = agent.or_insert_with_key(|(node, address)| begin(peers, node, address));
            let counts = &SERVER.counts;
            match agent.try_send(Pending { challenge, _permit: permit }) {
                Ok(()) => counts.challenges.inc(),
                Err(_) => counts.challenges_unsent.inc(),
            }
        }
    }
}

/// Begins the task that asks an agent.
fn begin(peers: &Peers, node: &NodeName, address: &str) -> mpsc::Sender<Pending> {
    let (line, challenges) = mpsc::channel(CHALLENGES_IN_LINE);
    let (node, address, sender) = (node.clone(), address.to_owned(), peers.sender().clone());
    peers.spawn(|endpoint| {
        Agent { node, address, endpoint, sender, connection: Arc::default() }.run(challenges)
    });
    line
}

impl Agent {
    /// Asks until nothing was wanted for a while; the connection ends with the last who uses it.
    async fn run(self, mut challenges: mpsc::Receiver<Pending>) {
        // One that comes just as this ends is lost, and the next one begins another task.
        while let Ok(Some(pending)) = timeout(IDLE_TIMEOUT, challenges.recv()).await {
            // Beside each other: on a bad line an answer may be overtaken by the next one.
            tokio::spawn(self.clone().ask(pending));
        }
    }

    async fn ask(self, pending: Pending) {
        let challenge = pending.challenge;
        let mut answering = pin!(timeout(LATE_TIMEOUT, self.answer(challenge)));
        if let Ok(answer) = timeout(ANSWER_TIMEOUT, &mut answering).await {
            return self.tell(challenge, answer.ok().flatten());
        }
        self.tell(challenge, None);
        if let Ok(Some(late)) = answering.await {
            self.tell(challenge, Some(late));
        }
    }

    async fn answer(&self, challenge: Challenge) -> Option<Renewal> {
        match self.call(challenge).await {
            Ok(Response::Alive(renewal)) => {
                // It answers nothing else than what it was asked.
                Some(renewal).filter(|r| r.lease == challenge.lease && r.nonce == challenge.nonce)
            }
            Ok(other) => {
                tracing::debug!(node = %self.node, answer = ?other, "an agent does not hold the lease that is checked");
                None
            }
            Err(error) => {
                tracing::debug!(node = %self.node, address = self.address, %error, "cannot ask an agent");
                None
            }
        }
    }

    async fn call(&self, challenge: Challenge) -> Result<Response, LinkError> {
        let mut client = CallClient::on(self.connected().await?).await?;
        client.call(Request::Challenge(challenge), LATE_TIMEOUT).await
    }

    /// The connection to the agent, made where there is none.
    async fn connected(&self) -> Result<Connection, LinkError> {
        let mut shared = Arc::clone(&self.connection).lock_owned().await;
        if let Some(connection) = shared.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let agent = self.clone();
        // In a task of its own: whoever began it waits no longer than for its own answer, and the
        // next challenge finds the connection.
        let connecting = tokio::spawn(async move {
            let connection = agent.connect().await?;
            *shared = Some(connection.clone());
            Ok(connection)
        });
        connecting.await.unwrap_or_else(|error| Err(LinkError::Lost(error.to_string())))
    }

    async fn connect(&self) -> Result<Connection, LinkError> {
        let connecting =
            try_each(&self.address, CONNECT_TIMEOUT, |address| self.endpoint.connect(address, Role::Agent));
        let connection = connecting.await?;
        let certified = &connection.peer().node;
        if certified.folded() == self.node.folded() {
            return Ok(connection);
        }
        let reason = format!("its certificate names the node {certified}, but {} was asked for", self.node);
        connection.close(Close::Denied, &reason);
        Err(LinkError::Stranger(reason))
    }

    fn tell(&self, challenge: Challenge, answer: Option<Renewal>) {
        if answer.is_none() {
            SERVER.counts.challenges_unanswered.inc();
        }
        // It always gets in, and the driver may be gone.
        let _ = self.sender.post(DriverEvent::Challenged { challenge, answer });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_queue::{EventReceiver, event_queue};
    use lockmesh_net::frame::FrameQueue;
    use lockmesh_net::{Development, Identity, QuicOptions};
    use lockmesh_protocol::id::{AgentNumber, LogIndex};
    use lockmesh_protocol::lease::{LeaseId, LeaseKey};
    use lockmesh_protocol::rpc::{Call, CallFrame};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    /// After so long a test is told that what it waits for does not happen.
    const LONG: Duration = Duration::from_secs(30);
    const LEASE: LeaseId = LeaseId { agent: AgentNumber(3), began: LogIndex(9) };

    struct Story {
        folder: tempfile::TempDir,
        challenger: Challenger,
        receiver: EventReceiver,
    }

    impl Story {
        fn begin() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let server = identity(folder.path(), "s1", Role::Server);
            let endpoint = Endpoint::dial_only(&server, &QuicOptions::default()).expect("a socket");
            let (sender, receiver) = event_queue(16);
            let challenger = Challenger::new(Peers::new(Arc::new(endpoint), sender));
            Self { folder, challenger, receiver }
        }

        /// An agent of this node that answers the first so many challenges, and counts its
        /// connections.
        fn agent(&self, node: &str, answers: usize) -> (String, Arc<AtomicUsize>) {
            let any = "127.0.0.1:0".parse().expect("an address");
            let identity = identity(self.folder.path(), node, Role::Agent);
            let endpoint = Endpoint::listen(any, &identity, &QuicOptions::default()).expect("a free port");
            let address = endpoint.local_address().expect("it is bound").to_string();
            let connections = Arc::new(AtomicUsize::new(0));
            tokio::spawn(serve(endpoint, answers, Arc::clone(&connections)));
            (address, connections)
        }

        fn ask(&mut self, node: &str, address: &str, nonce: u64) {
            let challenge = Challenge { lease: LEASE, nonce };
            let wanted = ChallengeWanted { node: node.into(), address: address.into(), challenge };
            self.challenger.ask_all(std::iter::once(wanted));
        }

        /// What the driver is told next: of which nonce, and the nonce of the answer.
        async fn told(&mut self) -> (u64, Option<u64>) {
            let (mut events, mut alarm) = (Vec::new(), pin!(tokio::time::sleep(LONG)));
            self.receiver.arrive(&mut events, 1, alarm.as_mut()).await;
            match events.pop() {
                Some(DriverEvent::Challenged { challenge, answer }) => {
                    let secret = LeaseKey::default().secret(LEASE);
                    assert!(answer.is_none_or(|answer| secret.made(&answer)));
                    (challenge.nonce, answer.map(|answer| answer.nonce))
                }
                other => panic!("not what was asked: {other:?}"),
            }
        }
    }

    fn identity(folder: &std::path::Path, node: &str, role: Role) -> Identity {
        let certificates = Development::prepare(folder, &node.into()).expect("they can be made");
        certificates.identity(role).expect("a certificate")
    }

    async fn serve(endpoint: Endpoint, answers: usize, connections: Arc<AtomicUsize>) {
        let left = Arc::new(AtomicUsize::new(answers));
        while let Some(arrival) = endpoint.accept().await {
            let Ok(connection) = arrival.handshake().await else { continue };
            connections.fetch_add(1, Ordering::Relaxed);
            let left = Arc::clone(&left);
            tokio::spawn(async move {
                let mut silent = Vec::new();
                while let Ok((_, mut sender, mut receiver)) = connection.accept().await {
                    let frame = receiver.receive().await.expect("it is well formed");
                    let Some(CallFrame(calls)) = frame else { continue };
                    let [Call::Begin(call, Request::Challenge(challenge))] = calls.as_slice() else {
                        panic!("not what was asked: {calls:?}")
                    };
                    let take_one = |left: usize| left.checked_sub(1);
                    if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_one).is_err() {
                        silent.push((sender, receiver));
                        continue;
                    }
                    let secret = LeaseKey::default().secret(challenge.lease);
                    let renewal = secret.renewal(challenge.lease, 1, challenge.nonce);
                    let mut queue = FrameQueue::default();
                    queue.push(&(*call, Response::Alive(renewal))).expect("it is short");
                    sender.send(queue.take()).await.expect("the server listens");
                }
            });
        }
    }

    #[tokio::test]
    async fn an_agent_that_lives_answers_on_one_connection() {
        let mut story = Story::begin();
        let (address, connections) = story.agent("web-1", usize::MAX);
        for nonce in 1..=5 {
            story.ask("WEB-1", &address, nonce);
            // The first handshake may take longer than an answer may, and its answer comes late
            // then.
            let mut told = story.told().await;
            while told.1.is_none() || told.0 != nonce {
                if told.1.is_none() {
                    story.ask("WEB-1", &address, nonce);
                }
                told = story.told().await;
            }
            assert_eq!(told, (nonce, Some(nonce)));
        }
        assert_eq!(connections.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn an_agent_that_says_nothing_is_told_as_silent_and_so_is_one_that_is_not_there() {
        let mut story = Story::begin();
        let (address, _) = story.agent("web-1", 0);
        let begun = Instant::now();
        story.ask("web-1", &address, 1);
        assert_eq!(story.told().await, (1, None));
        assert!(begun.elapsed() >= ANSWER_TIMEOUT);
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let nobody = nobody.local_addr().expect("it is bound").to_string();
        story.ask("web-1", &nobody, 2);
        assert_eq!(story.told().await, (2, None));
        story.ask("web-1", "no.such.host.invalid:1", 3);
        assert_eq!(story.told().await, (3, None));
    }

    #[tokio::test]
    async fn another_node_at_the_address_is_not_heard() {
        let mut story = Story::begin();
        let (address, _) = story.agent("web-2", usize::MAX);
        for nonce in 1..=3 {
            story.ask("web-1", &address, nonce);
            assert_eq!(story.told().await, (nonce, None));
        }
    }

    #[tokio::test]
    async fn more_than_may_be_under_way_are_not_sent_and_not_told() {
        let mut story = Story::begin();
        let (address, _) = story.agent("web-1", 0);
        let taken = Arc::clone(&story.challenger.permits);
        let taken = taken.acquire_many_owned(MAX_CHALLENGES as u32 - 1).await.expect("it is open");
        let unsent = SERVER.counts.challenges_unsent.get();
        story.ask("web-1", &address, 1);
        story.ask("web-1", &address, 2);
        assert_eq!(SERVER.counts.challenges_unsent.get(), unsent + 1);
        assert_eq!(story.told().await, (1, None));
        drop(taken);
        story.ask("web-1", &address, 3);
        assert_eq!(story.told().await, (3, None), "nothing was said of the second one");
    }
}
