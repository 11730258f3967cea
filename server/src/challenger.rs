//! The server's side of the failure detector: challenges agents while a check of them is open, asks
//! other agents to challenge them, and pushes news of the mesh to a few agents.
//!
//! ```text
//! driver ── challenge ──> a bounded queue per agent ──> its task ──> one connection, a stream each
//!        <── Challenged: the agent's renewal, or none within 250 ms ──
//!        <── AgentAnswered: the renewal of a node that another agent challenged; no failures ──
//! ```
//!
//! Nothing is decided here. **Invariants:** the driver never waits; an answer counts only if the
//! certificate names the node; an agent that was not challenged is never reported as silent;
//! questions to other agents and mesh pushes have their own limits, apart from the server's
//! challenges.

use crate::event_queue::EventSender;
use crate::metrics;
use crate::peers::Peers;
use bytes::Bytes;
use lockmesh_core::frontend::{ChallengeWanted, MeshItemsWanted, QuestionWanted};
use lockmesh_core::{Input, NodeInput};
use lockmesh_net::node::NodeConnection;
use lockmesh_protocol::given_up::NodeAnswer;
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::lease::{Challenge, NodeQuestion};
use lockmesh_protocol::rpc::Request;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

/// The timeout of an agent's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// A later answer is still reported until this time: it proves that the agent is alive.
const LATE_TIMEOUT: Duration = Duration::from_millis(500);

/// A connection to an agent is closed after this time without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of challenges in flight: two for each of 256 agents.
const MAX_CHALLENGES: usize = 512;

/// The maximum number of questions to other agents in flight: three for each of 256, and spare.
const MAX_QUESTIONS: usize = 1024;

/// The maximum number of mesh pushes in flight.
const MAX_TOLD: usize = 64;

/// The timeout of a mesh push.
const TELL_TIMEOUT: Duration = Duration::from_secs(2);

/// The queue length of one agent's task, which starts each item at once.
const CHALLENGES_IN_LINE: usize = 16;

/// The tasks that send requests to agents.
#[derive(Debug)]
pub(crate) struct Challenger {
    peers: Arc<Peers>,
    permits: Arc<Semaphore>,
    question_permits: Arc<Semaphore>,
    mesh_permits: Arc<Semaphore>,
    agents: BTreeMap<(NodeName, String), mpsc::Sender<Pending>>,
}

/// A request to an agent.
#[derive(Debug)]
enum AgentRequest {
    /// A challenge of the agent itself.
    Challenge(Challenge),
    /// A question: the agent is to challenge another one.
    Question(NodeQuestion),
    /// A push: news of the mesh.
    Items(Vec<Bytes>),
}

/// A request in flight, with its permit.
#[derive(Debug)]
struct Pending {
    wanted: AgentRequest,
    _permit: OwnedSemaphorePermit,
}

/// The task of one agent.
#[derive(Clone, Debug)]
struct Agent {
    connection: NodeConnection,
    sender: EventSender,
}

impl Challenger {
    /// Creates a challenger that uses the endpoint of the peer connections.
    pub(crate) fn new(peers: Arc<Peers>) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_CHALLENGES));
        let question_permits = Arc::new(Semaphore::new(MAX_QUESTIONS));
        let mesh_permits = Arc::new(Semaphore::new(MAX_TOLD));
        Self { peers, permits, question_permits, mesh_permits, agents: BTreeMap::new() }
    }

    /// Challenges each of these agents once. Challenges beyond the limit are dropped and not
    /// reported: they prove nothing about their agents.
    pub(crate) fn challenge_all(&mut self, wanted: impl Iterator<Item = ChallengeWanted>) {
        for ChallengeWanted { node, address, challenge } in wanted {
            let permit = Arc::clone(&self.permits).try_acquire_owned();
            match self.hand_over((node, address), permit.ok(), AgentRequest::Challenge(challenge)) {
                true => metrics::CHALLENGES.inc(),
                false => metrics::CHALLENGES_UNSENT.inc(),
            }
        }
    }

    /// Asks each of these agents to challenge another one, once. Questions beyond the limit are
    /// dropped.
    pub(crate) fn question_all(&mut self, wanted: impl Iterator<Item = QuestionWanted>) {
        for QuestionWanted { agent, agent_address, question } in wanted {
            let permit = Arc::clone(&self.question_permits).try_acquire_owned();
            match self.hand_over((agent, agent_address), permit.ok(), AgentRequest::Question(question)) {
                true => metrics::QUESTIONS.inc(),
                false => metrics::QUESTIONS_UNSENT.inc(),
            }
        }
    }

    /// Pushes news of the mesh to each of these agents, once. Pushes beyond the limit are dropped:
    /// an agent that learns the news from no other agent asks for it.
    pub(crate) fn notify_all(&mut self, wanted: impl Iterator<Item = MeshItemsWanted>) {
        for MeshItemsWanted { agent, agent_address, items } in wanted {
            let permit = Arc::clone(&self.mesh_permits).try_acquire_owned();
            match self.hand_over((agent, agent_address), permit.ok(), AgentRequest::Items(items)) {
                true => metrics::MESH_PUSHES.inc(),
                false => metrics::MESH_PUSHES_UNSENT.inc(),
            }
        }
    }

    /// Queues a request for the task of an agent; returns `false` if it is rejected.
    fn hand_over(
        &mut self,
        agent: (NodeName, String),
        permit: Option<OwnedSemaphorePermit>,
        wanted: AgentRequest,
    ) -> bool {
        let Some(permit) = permit else { return false };
        // The tasks of agents without recent requests have ended.
        self.agents.retain(|_, agent| !agent.is_closed());
        let peers = &self.peers;
        let agent = self.agents.entry(agent);
        let agent = agent.or_insert_with_key(|(node, address)| begin(peers, node, address));
        agent.try_send(Pending { wanted, _permit: permit }).is_ok()
    }
}

/// Starts the task of an agent.
fn begin(peers: &Peers, node: &NodeName, address: &str) -> mpsc::Sender<Pending> {
    let (line, challenges) = mpsc::channel(CHALLENGES_IN_LINE);
    let (node, address, sender) = (node.clone(), address.to_owned(), peers.sender().clone());
    peers.spawn(|endpoint| {
        Agent { connection: NodeConnection::new(endpoint, node, address), sender }.run(challenges)
    });
    line
}

impl Agent {
    /// Runs until no request has come for a while; the connection ends with its last user.
    async fn run(self, mut challenges: mpsc::Receiver<Pending>) {
        // A request that arrives as this ends is lost, and the next one starts another task.
        while let Ok(Some(pending)) = timeout(IDLE_TIMEOUT, challenges.recv()).await {
            // Concurrently: on a lossy line an answer may be overtaken by the next one.
            tokio::spawn(self.clone().carry_out(pending));
        }
    }

    async fn carry_out(self, pending: Pending) {
        match pending.wanted {
            AgentRequest::Challenge(challenge) => self.challenge(challenge).await,
            AgentRequest::Question(question) => self.question(question).await,
            AgentRequest::Items(items) => {
                let _ = self.connection.notify(Request::TellMesh(items), TELL_TIMEOUT).await;
            }
        }
    }

    async fn challenge(&self, challenge: Challenge) {
        let answer = self.connection.answer(Request::Challenge(challenge), challenge, LATE_TIMEOUT);
        let mut answering = pin!(timeout(LATE_TIMEOUT, answer));
        if let Ok(answer) = timeout(ANSWER_TIMEOUT, &mut answering).await {
            return self.report(challenge, answer.ok().flatten());
        }
        self.report(challenge, None);
        if let Ok(Some(late)) = answering.await {
            self.report(challenge, Some(late));
        }
    }

    /// Asks the agent to challenge another one; a missing answer is not reported.
    async fn question(&self, question: NodeQuestion) {
        let challenge = question.challenge;
        let answer = self.connection.answer(Request::AskNode(question), challenge, LATE_TIMEOUT);
        if let Ok(Some(answer)) = timeout(LATE_TIMEOUT, answer).await {
            // Never rejected for lack of room; the driver may have stopped.
            let _ = self.sender.post(Input::Node(NodeInput::AgentAnswered(Box::new(answer))));
        }
    }

    fn report(&self, challenge: Challenge, answer: Option<NodeAnswer>) {
        if answer.is_none() {
            metrics::CHALLENGES_UNANSWERED.inc();
        }
        // Never rejected for lack of room; the driver may have stopped.
        let answer = answer.map(Box::new);
        let _ = self.sender.post(Input::Node(NodeInput::Challenged(challenge, answer)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_queue::{DriverEvent, EventReceiver, event_queue};
    use lockmesh_core::frontend::Event;
    use lockmesh_net::{Development, Endpoint, Identity, QuicOptions, Role};
    use lockmesh_protocol::id::{AgentNumber, LogIndex};
    use lockmesh_protocol::lease::{LeaseId, LeaseKey};
    use lockmesh_protocol::rpc::{Call, CallFrame, Response};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    /// The time after which a test fails because an expected event is missing.
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

        /// Starts an agent of this node that answers the first `answers` challenges; returns its
        /// address and the count of its connections.
        fn agent(&self, node: &str, answers: usize) -> (String, Arc<AtomicUsize>) {
            let any = "127.0.0.1:0".parse().expect("an address");
            let identity = identity(self.folder.path(), node, Role::Agent);
            let endpoint = Endpoint::listen(any, &identity, &QuicOptions::default()).expect("a free port");
            let address = endpoint.local_address().expect("it is bound").to_string();
            let connections = Arc::new(AtomicUsize::new(0));
            tokio::spawn(serve(endpoint, answers, Arc::clone(&connections)));
            (address, connections)
        }

        fn challenge(&mut self, node: &str, address: &str, nonce: u64) {
            let challenge = Challenge { lease: LEASE, nonce };
            let wanted = ChallengeWanted { node: node.into(), address: address.into(), challenge };
            self.challenger.challenge_all(std::iter::once(wanted));
        }

        /// Returns the nonce of the next reported challenge, and that of its answer.
        async fn next_report(&mut self) -> (u64, Option<u64>) {
            let (mut events, mut alarm) =
                (Vec::new(), pin!(tokio::time::sleep_until(tokio::time::Instant::now() + LONG)));
            self.receiver.arrive(&mut events, 1, alarm.as_mut()).await;
            match events.pop() {
                Some(DriverEvent::Frontend(Event::Core(Input::Node(NodeInput::Challenged(
                    challenge,
                    answer,
                ))))) => {
                    let secret = LeaseKey::default().secret(LEASE);
                    assert!(answer.as_ref().is_none_or(|answer| secret.made(&answer.renewal)));
                    (challenge.nonce, answer.map(|answer| answer.renewal.nonce))
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
                    sender.send_one(&(*call, Response::Alive(renewal))).await.expect("the server listens");
                }
            });
        }
    }

    #[tokio::test]
    async fn answers_share_one_connection() {
        let mut story = Story::begin();
        let (address, connections) = story.agent("web-1", usize::MAX);
        for nonce in 1..=5 {
            story.challenge("WEB-1", &address, nonce);
            // The first handshake may take longer than the answer timeout; its answer is late then.
            let mut told = story.next_report().await;
            while told.1.is_none() || told.0 != nonce {
                if told.1.is_none() {
                    story.challenge("WEB-1", &address, nonce);
                }
                told = story.next_report().await;
            }
            assert_eq!(told, (nonce, Some(nonce)));
        }
        assert_eq!(connections.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn silent_or_absent_agent_reported_silent() {
        let mut story = Story::begin();
        let (address, _) = story.agent("web-1", 0);
        let begun = Instant::now();
        story.challenge("web-1", &address, 1);
        assert_eq!(story.next_report().await, (1, None));
        assert!(begun.elapsed() >= ANSWER_TIMEOUT);
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let nobody = nobody.local_addr().expect("it is bound").to_string();
        story.challenge("web-1", &nobody, 2);
        assert_eq!(story.next_report().await, (2, None));
        story.challenge("web-1", "no.such.host.invalid:1", 3);
        assert_eq!(story.next_report().await, (3, None));
    }

    #[tokio::test]
    async fn other_node_answer_is_ignored() {
        let mut story = Story::begin();
        let (address, _) = story.agent("web-2", usize::MAX);
        for nonce in 1..=3 {
            story.challenge("web-1", &address, nonce);
            assert_eq!(story.next_report().await, (nonce, None));
        }
    }

    #[tokio::test]
    async fn challenges_over_limit_are_dropped() {
        let mut story = Story::begin();
        let (address, _) = story.agent("web-1", 0);
        let taken = Arc::clone(&story.challenger.permits);
        let taken = taken.acquire_many_owned(MAX_CHALLENGES as u32 - 1).await.expect("it is open");
        let unsent = metrics::CHALLENGES_UNSENT.get();
        story.challenge("web-1", &address, 1);
        story.challenge("web-1", &address, 2);
        assert_eq!(metrics::CHALLENGES_UNSENT.get(), unsent + 1);
        assert_eq!(story.next_report().await, (1, None));
        drop(taken);
        story.challenge("web-1", &address, 3);
        assert_eq!(story.next_report().await, (3, None), "nothing was said of the second one");
    }
}
