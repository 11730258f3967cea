//! Thousands of agents in one process. Each has its own socket, certificate, connections and quorum
//! client, and the listener where servers check that the agent is alive. They have no HTTP API, and
//! share a runtime.

use lockmesh_agent::listener::Listener;
use lockmesh_agent::mesh_questions::MeshQuestions;
use lockmesh_agent::upstream::{Upstream, UpstreamOptions};
use lockmesh_net::{Authority, Endpoint, Identity, IdentityFiles, Peer, QuicOptions, Role};
use lockmesh_protocol::command::{AgentRegistration, Command};
use lockmesh_protocol::id::{NodeName, SessionId};
use lockmesh_protocol::lease::HealthWindow;
use lockmesh_protocol::record::{Incarnation, Node, SessionSpec};
use lockmesh_protocol::reply::{Applied, Reply};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// The lifetime of stand-ins' certificates.
const LIFE: Duration = Duration::from_secs(24 * 3600);

/// An issuer of certificates: the authority with its files in a folder.
pub struct Issuer {
    authority: Authority,
    files: IdentityFiles,
    /// The folder with a certificate until it is read.
    folder: TempDir,
}

impl Issuer {
    /// Loads the authority from `ca.pem` and `ca-key.pem` in this folder.
    pub fn of(authority: &Path) -> Self {
        let (certificate, key) = (authority.join("ca.pem"), authority.join("ca-key.pem"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = IdentityFiles {
            authorities: certificate.clone(),
            certificate: folder.path().join("agent.pem"),
            key: folder.path().join("agent-key.pem"),
        };
        Self { authority: Authority::load(&certificate, &key).expect("an authority"), files, folder }
    }

    fn identity(&self, node: NodeName) -> Identity {
        issue(&self.authority, node, self.folder.path());
        Identity::load(&self.files).expect("it was just made")
    }
}

/// Writes `agent.pem` and `agent-key.pem` for an agent's node into a folder. The operator's command
/// does the same, but needs a process per certificate.
pub fn issue(authority: &Authority, node: NodeName, folder: &Path) {
    let issued = authority.issue(&Peer { role: Role::Agent, node }, &[], LIFE);
    let saved =
        issued.and_then(|issued| issued.save(&folder.join("agent.pem"), &folder.join("agent-key.pem")));
    saved.unwrap_or_else(|error| panic!("no certificate in {}: {error}", folder.display()));
}

/// An agent without applications.
#[derive(Debug)]
pub struct StandIn {
    /// Its connection to the servers.
    pub upstream: Upstream,
    node: NodeName,
    number: usize,
}

impl StandIn {
    /// Starts connecting and registering; must be called within a runtime.
    pub fn start(issuer: &Issuer, number: usize, servers: &[String]) -> Self {
        Self::start_in_mesh(issuer, number, servers, None)
    }

    /// Like [`Self::start`], as a member of the mesh that other members reach at this address.
    pub fn start_in_mesh(
        issuer: &Issuer,
        number: usize,
        servers: &[String],
        gossip: Option<SocketAddr>,
    ) -> Self {
        let node = NodeName::from(format!("stand-in-{number}").as_str());
        let identity = issuer.identity(node.clone());
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let endpoint = Endpoint::listen(any, &identity, &QuicOptions::default()).expect("a free port");
        let id = format!("00000000-0000-4000-9000-{number:012}");
        let registration = AgentRegistration {
            incarnation: Incarnation { process: (number as u128).to_be_bytes(), ..Incarnation::default() },
            port: endpoint.local_address().expect("it is bound").port(),
            gossip,
            ..AgentRegistration::of(Node::of(node.clone(), id, "127.0.0.1"))
        };
        let endpoint = Arc::new(endpoint);
        let options = UpstreamOptions::new(servers.to_vec(), identity, registration);
        let upstream = Upstream::start_on(Arc::clone(&endpoint), options);
        tokio::spawn(Listener::new(endpoint, upstream.clone(), MeshQuestions::default()).run());
        Self { upstream, node, number }
    }

    /// Waits until the leader has acknowledged a renewal of the node's lease.
    pub async fn is_acknowledged(&self) {
        let mut lease = self.upstream.lease();
        lease.wait_for(|lease| lease.renewed.is_some()).await.expect("the agent runs");
    }

    /// Closes the connections of all these agents concurrently, because each close waits for its
    /// peers.
    pub async fn close_all(agents: Vec<Self>) {
        let close = |agent: Self| tokio::spawn(async move { agent.upstream.close().await });
        for closed in agents.into_iter().map(close).collect::<Vec<_>>() {
            closed.await.expect("it closes");
        }
    }

    /// Creates a session that ends after the node has been silent for this health window.
    ///
    /// # Errors
    /// The servers did not create the session, with their reason; or the outcome is unknown.
    pub async fn begin_session(&self, window: HealthWindow) -> Result<(), String> {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(self.number as u64 + 1).to_be_bytes());
        let spec = SessionSpec {
            health_window: window,
            ..SessionSpec::of(SessionId::from_random(id), self.node.clone())
        };
        match self.upstream.call(Command::CreateSession(spec)).await {
            Ok(Applied { reply: Reply::Session(_), .. }) => Ok(()),
            Ok(other) => Err(format!("the session of {} was not made: {:?}", self.node, other.reply)),
            Err(error) => Err(error.to_string()),
        }
    }
}
