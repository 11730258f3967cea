//! The services, each of three nodes: started in fresh folders on free ports, queried for their
//! leader, killed, restarted.
//!
//! Every node makes its writes durable before it acknowledges them, which is the default of all,
//! and all keep their data on the same disk. Settings are defaults, except limits that the work
//! would reach, and Consul's `raft_multiplier`, which its documents recommend for production.

use crate::Result;
use crate::client::Site;
use crate::client::http::Wire;
use crate::options::Options;
use crate::process::{Program, Usage, free_ports};
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The longest time until all nodes agree; generous, for loaded machines.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The largest lag of a member of etcd that counts as caught up, in entries.
const LAG: u64 = 100;

/// The class path of ZooKeeper's server, without its web server.
const JARS: &str = "zookeeper zookeeper-jute commons-cli commons-io findbugs-annotations \
    jackson-annotations jackson-core jackson-databind metrics-core netty-buffer netty-codec netty-common \
    netty-handler netty-resolver netty-transport netty-transport-native-epoll slf4j-api slf4j-simple snappy-java";

/// A service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Service {
    Lockmesh,
    Etcd,
    #[value(name = "zookeeper")]
    ZooKeeper,
    Consul,
}

/// A running service.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) service: Service,
    pub(crate) version: String,
    /// The three nodes, then Lockmesh's agent.
    pub(crate) nodes: Vec<Program>,
    /// The addresses of the nodes for each other.
    peers: Vec<String>,
    /// The addresses of the nodes for clients; of Lockmesh, three times the agent's socket.
    clients: Vec<String>,
}

impl Cluster {
    /// Starts three nodes in a fresh folder, and waits until they agree.
    pub(crate) async fn start(service: Service, options: &Options, folder: &Path) -> Result<Self> {
        let folder = &folder.join(format!("{service:?}"));
        fs::create_dir_all(folder)?;
        let addresses: Vec<String> = free_ports(9)?.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let program = match service {
            Service::Lockmesh => options.lockmesh()?,
            Service::Etcd => options.unpacked("etcd/usr/bin/etcd")?,
            Service::ZooKeeper => options.unpacked("zookeeper/usr/share/java")?,
            Service::Consul => options.unpacked("consul/usr/bin/consul")?,
        };
        let (mut peers, mut clients) = (addresses[..3].to_vec(), addresses[3..6].to_vec());
        let mut nodes = Vec::new();
        if service == Service::Lockmesh {
            run(&program, &["operator", "tls", "init", "--out"], &folder.join("ca"))?;
        }
        for number in 0..3 {
            let command = node(service, &program, folder, number, &addresses)?;
            nodes.push(Program::start(command, folder.join(format!("{number}.log")))?);
        }
        if service == Service::Lockmesh {
            let socket = folder.join("agent.sock").display().to_string();
            let role =
                format!("[http]\ntcp = \"\"\nsocket = \"{socket}\"\n[upstream]\nservers = {peers:?}\n");
            let command = lockmesh_role(&program, folder, "agent", "a1", &role)?;
            nodes.push(Program::start(command, folder.join("agent.log"))?);
            clients = vec![socket; 3];
        }
        if service == Service::Etcd {
            peers = clients.clone();
        }
        let version = version(service, &program, options)?;
        let cluster = Self { service, version, nodes, peers, clients };
        cluster.settle().await?;
        Ok(cluster)
    }

    /// Returns the usage of all its processes.
    pub(crate) fn usage(&self) -> Usage {
        self.nodes.iter().map(Program::usage).sum()
    }

    /// Returns the addresses for clients of some nodes.
    pub(crate) fn site(&self, nodes: Vec<usize>) -> Rc<Site> {
        let targets = nodes.into_iter().map(|node| self.clients[node].clone()).collect();
        Rc::new(Site { service: self.service, targets, shared: Default::default() })
    }

    /// Returns the leading node.
    pub(crate) async fn leader(&self) -> Result<usize> {
        for (node, client) in self.clients.iter().enumerate() {
            let leads = match self.service {
                Service::Lockmesh | Service::Consul => {
                    Wire::connect(client).await?.ask("/v1/status/leader").await? == *self.peers[node]
                }
                Service::Etcd => {
                    let status = etcd_status(client).await?;
                    status.header().is_some_and(|header| header.member_id() == status.leader())
                }
                Service::ZooKeeper => ask_zookeeper(client, "srvr").await?.contains("Mode: leader"),
            };
            if leads {
                return Ok(node);
            }
        }
        Err(format!("{:?} has no leader", self.service).into())
    }

    /// Waits until every node serves, has caught up, and knows the leader.
    pub(crate) async fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        // A check may hang on a server that is partly started.
        let check = Duration::from_secs(2);
        while !matches!(tokio::time::timeout(check, self.agrees()).await, Ok(Ok(true))) {
            if Instant::now() >= deadline {
                let logs: String = self.nodes.iter().map(Program::last_words).collect();
                return Err(
                    format!("{:?} not ready within {TIMEOUT:?}; its logs:\n{logs}", self.service).into()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Returns `true` if all nodes have the same leader, and its writes.
    async fn agrees(&self) -> Result<bool> {
        match self.service {
            Service::Lockmesh | Service::Consul => {
                let mut wire = Wire::connect(&self.clients[0]).await?;
                let health = wire.ask("/v1/operator/autopilot/health").await?;
                Ok(health["Healthy"] == true
                    && health["FailureTolerance"] == 1
                    && self.leader().await.is_ok())
            }
            Service::Etcd => {
                let mut statuses = Vec::new();
                for client in &self.clients {
                    let status = etcd_status(client).await?;
                    statuses.push((status.leader(), status.raft_applied_index()));
                }
                let newest = statuses.iter().map(|(_, applied)| *applied).max().unwrap_or(0);
                let known = statuses[0].0;
                Ok(known != 0
                    && statuses.iter().all(|(leader, applied)| *leader == known && applied + LAG >= newest))
            }
            Service::ZooKeeper => {
                for client in &self.clients {
                    if !ask_zookeeper(client, "srvr").await?.contains("Mode: ") {
                        return Ok(false);
                    }
                }
                let told = ask_zookeeper(&self.clients[self.leader().await?], "mntr").await?;
                Ok(told.contains("zk_synced_followers\t2"))
            }
        }
    }
}

/// Writes the configuration of a node, and returns its command. Of the nine addresses, three are
/// for the nodes among themselves, three for clients, and three for further needs of a service.
fn node(service: Service, program: &Path, folder: &Path, n: usize, all: &[String]) -> Result<Vec<OsString>> {
    let data = folder.join(n.to_string());
    fs::create_dir_all(&data)?;
    let (data, java, program) = (data.display(), program, program.display());
    let (config, peer, client) = (format!("{data}/config.json"), &all[n], &all[3 + n]);
    let port = |address: usize| all[address].rsplit_once(':').map_or("", |(_, port)| port);
    let (text, command) = match service {
        Service::Lockmesh => {
            let join: Vec<&String> = all[..3].iter().filter(|other| *other != peer).collect();
            let role =
                format!("[rpc]\nlisten = \"{peer}\"\n[quorum]\nbootstrap_expect = 3\njoin = {join:?}\n");
            return lockmesh_role(java, folder, "server", &format!("s{n}"), &role);
        }
        Service::Etcd => {
            let members = format!("0=http://{},1=http://{},2=http://{}", all[0], all[1], all[2]);
            // The default quota of 2 GiB is for clusters whose history is compacted at runtime.
            let command = format!(
                "{program}\n--name={n}\n--data-dir={data}/data\n--listen-peer-urls=http://{peer}\n\
                 --initial-advertise-peer-urls=http://{peer}\n--listen-client-urls=http://{client}\n\
                 --advertise-client-urls=http://{client}\n--initial-cluster={members}\n\
                 --quota-backend-bytes=8589934592\n--log-level=warn"
            );
            (String::new(), command)
        }
        Service::ZooKeeper => {
            fs::write(format!("{data}/myid"), format!("{}\n", n + 1))?;
            let server = |n: usize| format!("server.{}={}:{}\n", n + 1, all[n], port(6 + n));
            // The sample configuration, without one of its limits; `forceSync` is on by default.
            let text = format!(
                "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={data}\nclientPort={}\n\
                 clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n\
                 4lw.commands.whitelist=srvr,mntr\n{}{}{}",
                port(3 + n),
                server(0),
                server(1),
                server(2),
            );
            let jars: String = JARS.split(' ').map(|jar| format!("{program}/{jar}.jar:")).collect();
            let log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn";
            let main = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
            // The heap size of ZooKeeper's own start script.
            (text, format!("java\n-Xmx1000m\n{log}\n-cp\n{jars}\n{main}\n{config}"))
        }
        Service::Consul => {
            let text = format!(
                r#"{{"server": true, "bootstrap_expect": 3, "node_name": "{n}", "data_dir": "{data}/data",
                "bind_addr": "127.0.0.1", "retry_join": {:?}, "retry_interval": "1s", "log_level": "WARN",
                "disable_update_check": true, "performance": {{"raft_multiplier": 1}},
                "limits": {{"http_max_conns_per_client": 4096}}, "ports": {{"server": {}, "http": {},
                "serf_lan": {}, "serf_wan": -1, "dns": -1, "grpc": -1}}}}"#,
                &all[6..],
                port(n),
                port(3 + n),
                port(6 + n),
            );
            (text, format!("{program}\nagent\n-config-file\n{config}"))
        }
    };
    fs::write(config, text)?;
    Ok(command.split('\n').map(OsString::from).collect())
}

/// Writes the certificate and the configuration of a role, and returns its command.
fn lockmesh_role(program: &Path, folder: &Path, role: &str, node: &str, more: &str) -> Result<Vec<OsString>> {
    let ca = folder.join("ca").display().to_string();
    let own = folder.join(node);
    run(program, &["operator", "tls", "issue", "--role", role, "--node", node, "--ca", &ca, "--out"], &own)?;
    // Before everything else: it belongs to no section.
    let listen = if role == "agent" { "listen = \"127.0.0.1:0\"\n" } else { "" };
    let own = own.display();
    let config = format!(
        "{listen}data_dir = \"{own}/data\"\n[node]\nname = \"{node}\"\n[tls]\nca = \"{ca}/ca.pem\"\n\
         certificate = \"{own}/{role}.pem\"\nkey = \"{own}/{role}-key.pem\"\n{more}"
    );
    let path = folder.join(format!("{node}.toml"));
    fs::write(&path, config)?;
    Ok(vec![program.into(), role.into(), "--config".into(), path.into()])
}

/// Runs a command whose last word is a path.
fn run(program: &Path, words: &[&str], path: &Path) -> Result<()> {
    let done = Command::new(program).args(words).arg(path).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into()),
    }
}

fn version(service: Service, program: &PathBuf, options: &Options) -> Result<String> {
    if service == Service::Lockmesh {
        let told = Command::new(program).arg("version").output()?.stdout;
        return Ok(String::from_utf8_lossy(&told).lines().next().unwrap_or_default().to_owned());
    }
    let package =
        if service == Service::Etcd { "etcd-server" } else { &format!("{service:?}").to_lowercase() };
    let versions = fs::read_to_string(
        options.unpacked(&format!("{}/packages", format!("{service:?}").to_lowercase()))?,
    )?;
    let line = versions.lines().find(|line| line.split(' ').next() == Some(package));
    Ok(format!("{} (Debian)", line.unwrap_or(package)))
}

async fn etcd_status(member: &str) -> Result<etcd_client::StatusResponse> {
    Ok(etcd_client::Client::connect([member], None).await?.status().await?)
}

/// Sends one of the four-letter commands.
async fn ask_zookeeper(server: &str, word: &str) -> Result<String> {
    let mut stream = tokio::net::TcpStream::connect(server).await?;
    stream.write_all(word.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
