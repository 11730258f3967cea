//! Three ZooKeeper servers, from Debian's packages, on Debian's Java.

use super::{Cluster, TIMEOUT, Targets, Tools};
use crate::client::zookeeper::{Site, ZooKeeper as ZooKeeperClient};
use crate::process::{Program, free_ports, wait_until};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The server's class path, in the order of its manifest; the web server is left out, since it is
/// off.
const JARS: [&str; 19] = [
    "zookeeper",
    "zookeeper-jute",
    "commons-cli",
    "commons-io",
    "findbugs-annotations",
    "jackson-annotations",
    "jackson-core",
    "jackson-databind",
    "metrics-core",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-native-epoll",
    "slf4j-api",
    "slf4j-simple",
    "snappy-java",
];

/// The heap size of ZooKeeper's own start script.
const HEAP: &str = "-Xmx1000m";

/// The service.
#[derive(Debug)]
pub(crate) struct ZooKeeper {
    programs: Vec<Program>,
    clients: Vec<SocketAddr>,
    version: String,
}

impl ZooKeeper {
    /// Starts three servers in a fresh folder.
    pub(crate) async fn start(tools: &Tools, folder: &Path) -> io::Result<Self> {
        let class_path = class_path(tools)?;
        fs::create_dir_all(folder)?;
        let ports = free_ports::<9>()?;
        let (clients, others) = ports.split_at(3);
        let (peers, votes) = others.split_at(3);
        let servers: Vec<String> = (1..)
            .zip(peers.iter().zip(votes))
            .map(|(number, (peer, vote))| format!("server.{number}=127.0.0.1:{peer}:{vote}\n"))
            .collect();
        let mut programs = Vec::new();
        for (number, client) in (1..).zip(clients) {
            let name = format!("z{number}");
            let data = folder.join(&name);
            fs::create_dir_all(&data)?;
            fs::write(data.join("myid"), format!("{number}\n"))?;
            let path = folder.join(format!("{name}.cfg"));
            fs::write(&path, config(&data, *client, &servers.concat()))?;
            let words = ["java", HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"];
            let command = words.map(OsString::from).into_iter().chain([
                class_path.clone(),
                "org.apache.zookeeper.server.quorum.QuorumPeerMain".into(),
                path.into_os_string(),
            ]);
            let log = folder.join(format!("{name}.log"));
            programs.push(Program::new(format!("zookeeper {name}"), command, log));
        }
        for program in &mut programs {
            program.start()?;
        }
        let clients = clients.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect();
        let version = format!("ZooKeeper {} (Debian), {}", tools.version("zookeeper")?, java_version()?);
        let mut cluster = Self { programs, clients, version };
        cluster.settle().await?;
        Ok(cluster)
    }
}

/// Returns ZooKeeper's sample configuration, without one of its limits. `forceSync` is on by
/// default.
fn config(data: &Path, client: u16, servers: &str) -> String {
    format!(
        "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={client}\nclientPortAddress=127.0.0.1\n\
         maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr,mntr\n{servers}",
        data.display()
    )
}

fn class_path(tools: &Tools) -> io::Result<OsString> {
    let mut path = OsString::new();
    for jar in JARS {
        path.push(tools.unpacked(&format!("usr/share/java/{jar}.jar"))?);
        path.push(":");
    }
    Ok(path)
}

fn java_version() -> io::Result<String> {
    let failed = |error| io::Error::other(format!("cannot run java, which ZooKeeper needs: {error}"));
    let told = Command::new("java").arg("-version").output().map_err(failed)?;
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    Ok(told.lines().next().unwrap_or_default().replace('"', ""))
}

/// Sends one of the four-letter commands.
async fn ask(server: SocketAddr, word: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(word.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Returns the role that a server reports: `leader`, `follower`, or empty while it does not serve.
fn mode(answer: &str) -> &str {
    answer.lines().find_map(|line| line.strip_prefix("Mode: ")).unwrap_or_default().trim()
}

/// Returns the number of followers that have caught up, as reported by the leader.
fn synced_followers(answer: &str) -> u32 {
    let line = answer.lines().find_map(|line| line.strip_prefix("zk_synced_followers"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

impl Cluster for ZooKeeper {
    type Client = ZooKeeperClient;

    fn version(&self) -> &str {
        &self.version
    }

    fn programs(&mut self) -> &mut [Program] {
        &mut self.programs
    }

    async fn leader(&self) -> io::Result<usize> {
        for (number, server) in self.clients.iter().enumerate() {
            if ask(*server, "srvr").await.is_ok_and(|answer| mode(&answer) == "leader") {
                return Ok(number);
            }
        }
        Err(io::Error::other("ZooKeeper has no leader"))
    }

    async fn settle(&mut self) -> io::Result<()> {
        let mut programs = std::mem::take(&mut self.programs);
        let settled = wait_until("ZooKeeper", TIMEOUT, &mut programs, async || {
            let ready = async {
                for server in &self.clients {
                    if mode(&ask(*server, "srvr").await?).is_empty() {
                        return Ok(false);
                    }
                }
                let leader = self.clients[self.leader().await?];
                io::Result::Ok(synced_followers(&ask(leader, "mntr").await?) == 2)
            };
            ready.await.unwrap_or(false)
        });
        let settled = settled.await;
        self.programs = programs;
        settled
    }

    fn site(&self, targets: Targets) -> Rc<Site> {
        Rc::new(Site { targets: targets.of(&self.clients) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_four_letter_words_are_read() {
        assert_eq!(mode("Zookeeper version: 3\nMode: follower\nNode count: 5\n"), "follower");
        assert_eq!(mode("This ZooKeeper instance is not currently serving requests\n"), "");
        assert_eq!(synced_followers("zk_version\t3\nzk_synced_followers\t2\n"), 2);
        assert_eq!(synced_followers("zk_server_state\tfollower\n"), 0);
    }
}
