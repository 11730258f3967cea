//! Three Lockmesh servers and an agent, each with its certificate, in a fresh folder.

use super::{Cluster, TIMEOUT, Targets, Tools};
use crate::client::lockmesh::{Lockmesh as LockmeshClient, Site, Wire};
use crate::process::{Program, free_ports, wait_until};
use crate::wire::http1::request;
use serde::Deserialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

/// The number of servers.
pub(crate) const SERVERS: usize = 3;

/// The service.
#[derive(Debug)]
pub(crate) struct Lockmesh {
    programs: Vec<Program>,
    addresses: Vec<String>,
    socket: PathBuf,
    folder: PathBuf,
    version: String,
}

/// The response of `/v1/operator/raft/configuration`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Configuration {
    servers: Vec<Server>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Server {
    address: String,
    leader: bool,
    voter: bool,
    last_index: u64,
}

impl Configuration {
    /// Returns `true` if there is a leader and this many servers vote, all of which have the log up
    /// to an index. The earlier instance of an emptied server votes until it is removed: until then
    /// the cluster is not settled.
    fn is_settled(&self, servers: usize, index: u64) -> bool {
        let voters: Vec<&Server> = self.servers.iter().filter(|server| server.voter).collect();
        let all_have = voters.iter().all(|server| server.last_index >= index);
        voters.len() == servers && all_have && voters.iter().any(|server| server.leader)
    }
}

impl Lockmesh {
    /// Starts servers and an agent in a fresh folder.
    pub(crate) async fn start(
        tools: &Tools,
        folder: &Path,
        servers: usize,
        log_level: &str,
    ) -> io::Result<Self> {
        let program = &tools.lockmesh;
        if !program.exists() {
            let text = format!("{} is missing: cargo build --release, or give --lockmesh", program.display());
            return Err(io::Error::other(text));
        }
        fs::create_dir_all(folder)?;
        let ports = free_ports::<SERVERS>()?;
        let addresses: Vec<String> =
            ports[..servers].iter().map(|port| format!("127.0.0.1:{port}")).collect();
        certify(program, folder, &["init", "--out"], "ca")?;
        let socket = folder.join("agent.sock");
        let mut programs = Vec::new();
        for (number, address) in (1..).zip(&addresses) {
            let node = format!("s{number}");
            let config = server_config(folder, &node, address, &addresses, log_level);
            programs.push(role(program, folder, "server", &node, &config)?);
        }
        let config = agent_config(folder, "a1", &socket, &addresses);
        programs.push(role(program, folder, "agent", "a1", &config)?);
        for program in &mut programs {
            program.start()?;
        }
        let version = version(program)?;
        let mut cluster = Self { programs, addresses, socket, folder: folder.into(), version };
        cluster.settle().await?;
        Ok(cluster)
    }

    /// Starts one more agent, and returns its Unix socket.
    pub(crate) fn add_agent(&mut self, tools: &Tools, name: &str) -> io::Result<PathBuf> {
        let socket = self.folder.join(format!("{name}.sock"));
        let config = agent_config(&self.folder, name, &socket, &self.addresses);
        let mut agent = role(&tools.lockmesh, &self.folder, "agent", name, &config)?;
        agent.start()?;
        self.programs.push(agent);
        Ok(socket)
    }

    /// Returns the first agent's Unix socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the folder of a server's data.
    pub(crate) fn data(&self, server: usize) -> PathBuf {
        self.folder.join(format!("s{}", server + 1)).join("data")
    }

    async fn configuration(&self) -> io::Result<Configuration> {
        let mut wire = Wire::connect(&self.socket).await?;
        let head = wire.exchange(&request("GET", "/v1/operator/raft/configuration", b"")).await?;
        serde_json::from_slice(wire.body(head)).map_err(io::Error::other)
    }

    /// Returns the number of servers.
    pub(crate) fn servers(&self) -> usize {
        self.addresses.len()
    }

    /// Returns `true` if a server votes and is known to have the log up to an index.
    pub(crate) async fn has(&self, server: usize, index: u64) -> io::Result<bool> {
        let address = &self.addresses[server];
        // An emptied server is listed twice until its earlier instance is removed from the quorum.
        let is_there = |known: &Server| &known.address == address && known.voter && known.last_index >= index;
        Ok(self.configuration().await?.servers.iter().any(is_there))
    }

    /// Writes a key, and returns an index of the log that a server has only together with that
    /// write.
    pub(crate) async fn write_something(&self) -> io::Result<u64> {
        let mut wire = Wire::connect(&self.socket).await?;
        wire.succeed(&request("PUT", "/v1/kv/compare/something", b"x")).await?;
        Ok(self.configuration().await?.servers.iter().map(|server| server.last_index).max().unwrap_or(0))
    }

    /// Takes the processes, while they are needed together with this value.
    pub(crate) fn take_programs(&mut self) -> Vec<Program> {
        std::mem::take(&mut self.programs)
    }

    /// Returns the processes.
    pub(crate) fn give_programs(&mut self, programs: Vec<Program>) {
        self.programs = programs;
    }
}

impl Cluster for Lockmesh {
    type Client = LockmeshClient;

    fn version(&self) -> &str {
        &self.version
    }

    fn programs(&mut self) -> &mut [Program] {
        &mut self.programs
    }

    async fn leader(&self) -> io::Result<usize> {
        let leader = self.configuration().await?.servers.into_iter().find(|server| server.leader);
        let known =
            leader.and_then(|leader| self.addresses.iter().position(|known| *known == leader.address));
        known.ok_or_else(|| io::Error::other("Lockmesh has no leader that was started here"))
    }

    async fn settle(&mut self) -> io::Result<()> {
        let servers = self.addresses.len();
        // The known state of a stopped server stays unchanged: only a new write shows that it is
        // back.
        let mut news = None;
        let mut programs = std::mem::take(&mut self.programs);
        let settled = wait_until("Lockmesh", TIMEOUT, &mut programs, async || {
            let ready = async {
                let index = match news {
                    Some(index) => index,
                    None => *news.insert(self.write_something().await?),
                };
                io::Result::Ok(self.configuration().await?.is_settled(servers, index))
            };
            ready.await.unwrap_or(false)
        });
        let settled = settled.await;
        self.programs = programs;
        settled
    }

    fn site(&self, _: Targets) -> Rc<Site> {
        // The agent finds a server itself.
        Rc::new(Site { socket: self.socket.clone() })
    }
}

/// Returns a role's program, with its certificate and its configuration.
fn role(program: &Path, folder: &Path, role: &str, node: &str, config: &str) -> io::Result<Program> {
    let authority = folder.join("ca");
    let authority = authority.to_str().ok_or_else(|| io::Error::other("a folder whose name is not text"))?;
    certify(program, folder, &["issue", "--role", role, "--node", node, "--ca", authority, "--out"], node)?;
    let path = folder.join(format!("{node}.toml"));
    fs::write(&path, config)?;
    let command = [program.as_os_str(), role.as_ref(), "--config".as_ref(), path.as_os_str()];
    Ok(Program::new(format!("lockmesh {role} {node}"), command, folder.join(format!("{node}.log"))))
}

/// Runs `lockmesh operator tls`; `words` end with the flag that names the output folder.
fn certify(program: &Path, folder: &Path, words: &[&str], out: &str) -> io::Result<()> {
    let made = Command::new(program).args(["operator", "tls"]).args(words).arg(folder.join(out)).output()?;
    match made.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned())),
    }
}

/// Paths and names contain no quotes: they are those of a temporary folder.
fn common_config(folder: &Path, role: &str, node: &str) -> String {
    let folder = folder.display();
    format!(
        "data_dir = \"{folder}/{node}/data\"\n[node]\nname = \"{node}\"\n[tls]\nca = \"{folder}/ca/ca.pem\"\n\
         certificate = \"{folder}/{node}/{role}.pem\"\nkey = \"{folder}/{node}/{role}-key.pem\"\n"
    )
}

fn server_config(folder: &Path, node: &str, address: &str, all: &[String], log_level: &str) -> String {
    let mut config = common_config(folder, "server", node);
    config += &format!("[rpc]\nlisten = \"{address}\"\n[log]\nlevel = \"{log_level}\"\n");
    if all.len() > 1 {
        let others = all.iter().filter(|other| *other != address).collect::<Vec<_>>();
        config += &format!("[quorum]\nbootstrap_expect = {}\njoin = {others:?}\n", all.len());
    } else {
        config += "[quorum]\nbootstrap_expect = 1\n";
    }
    config
}

fn agent_config(folder: &Path, node: &str, socket: &Path, servers: &[String]) -> String {
    // Before everything else: it belongs to no section.
    let mut config = format!("listen = \"127.0.0.1:0\"\n{}", common_config(folder, "agent", node));
    config += &format!(
        "[http]\ntcp = \"\"\nsocket = \"{}\"\n[upstream]\nservers = {servers:?}\n",
        socket.display()
    );
    config
}

/// Returns the version, and the commit if the binary was built from these sources.
fn version(program: &Path) -> io::Result<String> {
    let told = Command::new(program).arg("version").output()?;
    let told = String::from_utf8_lossy(&told.stdout);
    let mut version = told.lines().next().unwrap_or_default().trim().to_owned();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize();
    let is_from_here =
        top.is_ok_and(|top| program.canonicalize().is_ok_and(|program| program.starts_with(top)));
    let git = ["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"];
    if is_from_here
        && let Ok(commit) = Command::new("git").args(git).output()
        && commit.status.success()
    {
        version += &format!(" ({})", String::from_utf8_lossy(&commit.stdout).trim());
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_is_settled_when_all_vote_and_have_the_news() {
        let is_settled = |third: &str, servers| {
            let one = r#"{"Address":"a","Leader":true,"Voter":true,"LastIndex":1000,"Node":"x"}"#;
            let two = r#"{"Address":"b","Leader":false,"Voter":true,"LastIndex":950}"#;
            let text = format!(r#"{{"Servers":[{one},{two}{third}],"Index":3}}"#);
            let configuration: Configuration = serde_json::from_str(&text).expect("it is good JSON");
            configuration.is_settled(servers, 950)
        };
        assert!(is_settled(r#",{"Address":"c","Leader":false,"Voter":true,"LastIndex":1000}"#, 3));
        assert!(!is_settled(r#",{"Address":"c","Leader":false,"Voter":false,"LastIndex":1000}"#, 3));
        assert!(!is_settled(r#",{"Address":"c","Leader":false,"Voter":true,"LastIndex":10}"#, 3));
        assert!(
            !is_settled(r#",{"Address":"c","Leader":false,"Voter":true,"LastIndex":10}"#, 2),
            "a former life"
        );
        assert!(!is_settled("", 3));
        assert!(is_settled("", 2));
    }

    #[test]
    fn a_lone_server_is_told_of_no_quorum() {
        let all = ["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
        let config = server_config(Path::new("/f"), "s1", &all[0], &all, "info");
        assert!(config.contains("bootstrap_expect = 2\njoin = [\"127.0.0.1:2\"]\n"), "{config}");
        let alone = server_config(Path::new("/f"), "s1", &all[0], &all[..1], "info");
        assert!(alone.contains("bootstrap_expect = 1") && !alone.contains("join"), "{alone}");
    }
}
