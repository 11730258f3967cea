//! Real servers in one process, on loopback, with real files and certificates.

use lockmesh_net::{Development, Endpoint, Identity, Purpose, QuicOptions, Role};
use lockmesh_protocol::command::{AgentRegistration, Command, KvCommand, NewEntry};
use lockmesh_protocol::id::{AgentNumber, Generation, Key, LogIndex, NodeName, RequestId, ServerId};
use lockmesh_protocol::lease::LeaseKey;
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::Node;
use lockmesh_protocol::reply::{Applied, Reply};
use lockmesh_protocol::rpc::{Call, CallId, ReplyFrame, Request, Response, Status, Unavailable};
use lockmesh_server::config::{QuorumConfig, RpcConfig, ServerConfig};
use lockmesh_server::{Server, ServerOptions};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time after which a test fails because an expected event is missing.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Servers `s1`, `s2`, … with their addresses; some may be down.
pub(crate) struct Cluster {
    folder: TempDir,
    agent: Identity,
    endpoint: Endpoint,
    servers: Vec<Place>,
    sequence: AtomicU64,
    agent_number: tokio::sync::OnceCell<(AgentNumber, Generation)>,
    tune: fn(&mut ServerConfig),
}

struct Place {
    node: NodeName,
    node_id: String,
    identity: Identity,
    address: SocketAddr,
    quorum: QuorumConfig,
    folders: u64,
    server: Option<Server>,
}

/// Waits until `look` returns a value.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + TIMEOUT;
    if let Some(found) = look().await {
        return found;
    }
    while Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if let Some(found) = look().await {
            return found;
        }
    }
    panic!("timed out waiting until {what}");
}

/// Prints the servers' logs if `LOCKMESH_TEST_LOG` is set in the environment, for debugging.
fn show_logs_if_wanted() {
    if std::env::var_os("LOCKMESH_TEST_LOG").is_some() {
        // Another test of this process may have done so already.
        let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).try_init();
    }
}

/// Returns an address that no other test uses: below the ports that the system assigns for port 0.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let first = u64::from(std::process::id()) * 131;
    loop {
        let offset = (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let address = SocketAddr::from(([127, 0, 0, 1], 20_000 + offset as u16));
        if UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
}

impl Cluster {
    /// Creates `count` servers that are not started, with the configuration of each changed by
    /// `tune`.
    pub(crate) fn new(count: usize, tune: fn(&mut ServerConfig)) -> Self {
        show_logs_if_wanted();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tls = folder.path().join("tls");
        let prepare = |node: &NodeName| Development::prepare(&tls, node).expect("certificates");
        let agent = prepare(&"a1".into()).identity(Role::Agent).expect("an agent's certificate");
        let places = (1..=count).map(|number| {
            let node = NodeName::from(format!("s{number}"));
            let identity = prepare(&node).identity(Role::Server).expect("a server's certificate");
            let node_id = format!("00000000-0000-4000-8000-{number:012}");
            let quorum = QuorumConfig { bootstrap_expect: 1, ..QuorumConfig::default() };
            Place { node, node_id, identity, address: free_address(), quorum, folders: 0, server: None }
        });
        let servers = places.collect();
        let endpoint = Endpoint::dial_only(&agent, &QuicOptions::default()).expect("a socket");
        let (sequence, agent_number) = (AtomicU64::new(1), tokio::sync::OnceCell::new());
        Self { folder, agent, endpoint, servers, sequence, agent_number, tune }
    }

    /// Starts `count` servers that found a cluster together.
    pub(crate) async fn founded(count: usize, tune: fn(&mut ServerConfig)) -> Self {
        let mut this = Self::new(count, tune);
        for number in 1..=count {
            this.configure(number, count as u32, &[1]);
            this.start(number);
        }
        this.leader().await;
        this
    }

    /// Configures a server's quorum: the number of founders, and the servers to join.
    pub(crate) fn configure(&mut self, number: usize, bootstrap_expect: u32, join: &[usize]) {
        let join = join.iter().map(|other| self.address(*other).to_string()).collect();
        self.servers[number - 1].quorum = QuorumConfig { bootstrap_expect, join, ..QuorumConfig::default() };
    }

    /// Names the cluster in a server's configuration.
    pub(crate) fn configure_cluster(&mut self, number: usize, cluster_id: &str) {
        self.servers[number - 1].quorum.cluster_id = cluster_id.into();
    }

    /// Starts a server.
    pub(crate) fn start(&mut self, number: usize) {
        let started = self.try_start(number);
        self.servers[number - 1].server = Some(started.expect("the server starts"));
    }

    /// Starts a server, if it can start.
    pub(crate) fn try_start(&mut self, number: usize) -> Result<Server, lockmesh_server::ServerError> {
        let data_dir = self.data_dir(number);
        let place = &mut self.servers[number - 1];
        place.folders += 1;
        let mut config = ServerConfig {
            data_dir,
            rpc: RpcConfig { listen: place.address, advertise: String::new() },
            quorum: place.quorum.clone(),
            ..ServerConfig::default()
        };
        (self.tune)(&mut config);
        Server::start(ServerOptions {
            config,
            node: place.node.to_string(),
            node_id: place.node_id.clone(),
            identity: place.identity.clone(),
            instance_id: format!("{}-folder-{}", place.node, place.folders),
            seed: number as u64,
            lease_key: LeaseKey([number as u8; 32]),
            socket: Some(UdpSocket::bind(place.address).expect("its port is free")),
        })
    }

    /// Waits until the port of a server that failed to start is free: its endpoint closes in the
    /// background.
    pub(crate) async fn until_port_is_free(&self, number: usize) {
        let address = self.servers[number - 1].address;
        while UdpSocket::bind(address).is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops a server.
    pub(crate) async fn stop(&mut self, number: usize) {
        let place = &mut self.servers[number - 1];
        place.server.take().expect("it is up").stop().await;
        let address = place.address;
        until("its port is free", || async { UdpSocket::bind(address).ok() }).await;
    }

    /// Removes the data folder of a stopped server.
    pub(crate) fn empty(&self, number: usize) {
        std::fs::remove_dir_all(self.data_dir(number)).expect("it was there");
    }

    /// Gives a server that was not started another node name than its certificate has.
    pub(crate) fn rename(&mut self, number: usize, node: &str) {
        self.servers[number - 1].node = node.into();
    }

    /// Gives a stopped server another address.
    pub(crate) fn move_away(&mut self, number: usize) {
        self.servers[number - 1].address = free_address();
    }

    pub(crate) fn data_dir(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("s{number}"))
    }

    pub(crate) fn address(&self, number: usize) -> SocketAddr {
        self.servers[number - 1].address
    }

    fn up(&self) -> impl Iterator<Item = usize> {
        (1..=self.servers.len()).filter(|number| self.servers[number - 1].server.is_some())
    }

    /// Sends a request to a server over a new connection.
    pub(crate) async fn ask(&self, number: usize, request: Request) -> Result<Response, String> {
        let text = |error: lockmesh_net::LinkError| error.to_string();
        let connection = self.endpoint.connect(self.address(number), Role::Server).await.map_err(text)?;
        let (mut sender, mut receiver) = connection.open(Purpose::Calls).await.map_err(text)?;
        sender.send_one(&Call::Begin(CallId(1), request)).await.map_err(text)?;
        let frame: Option<ReplyFrame> = receiver.receive().await.map_err(text)?;
        let ReplyFrame(mut answers) = frame.ok_or("the stream ended")?;
        Ok(answers.pop().ok_or("an empty frame")?.1)
    }

    pub(crate) async fn status(&self, number: usize) -> Option<Status> {
        match self.ask(number, Request::Status).await {
            Ok(Response::Status(status)) => Some(status),
            _ => None,
        }
    }

    /// Returns the number of the server that leads and serves.
    pub(crate) async fn leader(&self) -> usize {
        until("somebody leads", || async {
            for number in self.up() {
                let status = self.status(number).await;
                if status.is_some_and(|status| status.leader == Some(status.server)) {
                    return Some(number);
                }
            }
            None
        })
        .await
    }

    /// Waits until the leader's status of the quorum is as wanted.
    pub(crate) async fn until_status(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        until(what, || async {
            let status = self.status(self.leader().await).await?;
            is_so(&status).then_some(status)
        })
        .await
    }

    /// Waits until a server has applied everything that the leader had committed.
    pub(crate) async fn until_caught_up(&self, number: usize) -> Status {
        let wanted = self.until_status("there is a leader", |_| true).await.commit_index;
        until(&format!("s{number} has applied {wanted}"), || async {
            let status = self.status(number).await?;
            (status.applied_index >= wanted).then_some(status)
        })
        .await
    }

    /// Sends a request to the leader until it succeeds.
    pub(crate) async fn ask_leader(&self, request: Request) -> Response {
        until("the leader answers", || async {
            match self.ask(self.leader().await, request.clone()).await {
                Ok(Response::Unavailable(Unavailable::Denied(reason))) => {
                    panic!("{request:?} was denied: {reason}")
                }
                Ok(Response::Unavailable(_)) | Err(_) => None,
                Ok(response) => Some(response),
            }
        })
        .await
    }

    async fn agent_number(&self) -> (AgentNumber, Generation) {
        let register = async {
            let node = Node {
                name: self.agent.peer().node.clone(),
                id: "00000000-0000-4000-8000-0000000000a1".into(),
                address: "127.0.0.1".into(),
                datacenter: "dc1".into(),
                tagged_addresses: Default::default(),
                meta: Default::default(),
                create_index: LogIndex(0),
                modify_index: LogIndex(0),
            };
            let registration = AgentRegistration::of(node);
            match self.ask_leader(Request::Propose(None, Command::RegisterAgent(registration))).await {
                Response::Applied(Applied { reply: Reply::Agent { number, generation, .. }, .. }) => {
                    (number, generation)
                }
                other => panic!("not registered: {other:?}"),
            }
        };
        *self.agent_number.get_or_init(|| register).await
    }

    /// Writes a key, exactly once.
    pub(crate) async fn put(&self, key: &str, value: &str) -> Applied {
        let (agent, generation) = self.agent_number().await;
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let id = RequestId { agent, generation, sequence, lowest: sequence };
        let entry = NewEntry { key: key.into(), value: value.to_owned().into(), flags: 0 };
        match self.ask_leader(Request::Propose(Some(id), Command::Kv(KvCommand::Set(entry)))).await {
            Response::Applied(applied) => applied,
            other => panic!("not written: {other:?}"),
        }
    }

    /// Returns a server's value of a key.
    pub(crate) async fn value(&self, number: usize, key: &str, consistency: Consistency) -> Option<String> {
        let request = Request::Read { query: Query::Entry(Key::from(key)), consistency, blocking: None };
        match self.ask(number, request).await {
            Ok(Response::Answer(answer)) => match answer.rows {
                Rows::Entries(entries) => {
                    entries.first().map(|entry| String::from_utf8_lossy(&entry.value).into_owned())
                }
                other => panic!("not an entry: {other:?}"),
            },
            _ => None,
        }
    }

    /// Stops all servers.
    pub(crate) async fn end(mut self) {
        for number in self.up().collect::<Vec<_>>() {
            self.stop(number).await;
        }
    }
}

/// Returns the ids of a status's voters, and of its learners.
pub(crate) fn members(status: &Status) -> (Vec<ServerId>, Vec<ServerId>) {
    let (voters, learners): (Vec<_>, Vec<_>) = status.servers.iter().partition(|server| server.voter);
    let ids = |servers: Vec<&lockmesh_protocol::rpc::ServerStatus>| servers.iter().map(|s| s.id).collect();
    (ids(voters), ids(learners))
}
