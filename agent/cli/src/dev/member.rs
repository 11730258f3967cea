//! The folders of servers with their own processes: `s1`, `s2`, …
//!
//! Existing files are kept: a server keeps its port, and its configuration is not overwritten.

use super::folder::{MOST_SERVERS, MemberFolder, absolute};
use super::ports::Ports;
use crate::config::{self, Sources};
use crate::error::RunError;
use lockmesh_net::config::{NodeConfig, TlsConfig};
use lockmesh_net::{Development, Role};
use lockmesh_server::bootstrap::cluster_of;
use lockmesh_server::config::{AclConfig, HttpConfig, QuorumConfig, RpcConfig, ServerConfig};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::time::Duration;
use tokio::time::sleep;

/// The interval between two looks for the cluster's id while servers found one.
const CLUSTER_INTERVAL: Duration = Duration::from_millis(20);

/// A server's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerFolder {
    /// Its folder.
    pub(super) home: MemberFolder,
    /// Its RPC address.
    pub(super) address: SocketAddr,
    /// Its address for metrics and health, if that is known before it starts.
    pub(super) http: Option<SocketAddr>,
}

impl ServerFolder {
    fn numbered(folder: &Path, number: u8) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self { home: MemberFolder::numbered(folder, Role::Server, number), address, http: None }
    }

    fn has_data(&self) -> bool {
        self.home.data_dir().exists()
    }

    fn read(&self) -> Result<ServerConfig, RunError> {
        let sources = Sources { file: Some(self.home.config_file()), ..Sources::default() };
        config::load(&sources).map_err(|error| RunError::Server(error.to_string()))
    }

    /// Reserves the addresses that its configuration names.
    fn keep_ports(&self, ports: &mut Ports) -> Result<(), RunError> {
        let http = self.http.map_or(Ok(()), |http| TcpListener::bind(http).map(drop));
        let is_free = UdpSocket::bind(self.address).and(http);
        ports.keep(self.address);
        self.http.into_iter().for_each(|http| ports.keep(http));
        is_free.map_err(|error| {
            RunError::Dev(format!(
                "{} cannot listen on the addresses in {}: {error}; stop the process that uses them, or change the file",
                self.home.name,
                self.home.config_file().display()
            ))
        })
    }
}

/// Refuses a folder in which several servers have their data.
pub(super) fn refuse_fleet(folder: &Path) -> Result<(), RunError> {
    match members_with_data(folder) {
        0 => Ok(()),
        count => Err(RunError::Server(format!(
            "{} holds the data of {count} servers: start it with --servers {count}",
            folder.display()
        ))),
    }
}

/// Waits until one of the servers knows its cluster, and returns the cluster's id.
pub(super) async fn cluster_id(servers: &[ServerFolder]) -> String {
    loop {
        // A record that cannot be read stops its server, whose log has the reason.
        let known = |server: &ServerFolder| cluster_of(&server.home.data_dir()).ok().flatten();
        if let Some(cluster_id) = servers.iter().find_map(known) {
            return cluster_id;
        }
        sleep(CLUSTER_INTERVAL).await;
    }
}

pub(super) fn members_with_data(folder: &Path) -> usize {
    (1..=MOST_SERVERS).filter(|number| ServerFolder::numbered(folder, *number).has_data()).count()
}

/// Makes of a folder what `count` servers need; those that were there before are as they were.
pub(super) fn prepare(
    folder: &Path,
    count: u8,
    cluster: (&str, &AclConfig),
    certificates: &Development,
    ports: &mut Ports,
) -> Result<Vec<ServerFolder>, RunError> {
    let folder = absolute(folder)?;
    // Its data would lie there unused, and the new servers begin with nothing.
    if folder.join("server").exists() {
        return Err(RunError::Server(format!(
            "{} holds the data of one server in one process: start it without --servers and --nodes, or name another folder",
            folder.display()
        )));
    }
    let with_data = members_with_data(&folder);
    // Those that start may be too few for a majority of those that have data.
    if with_data > usize::from(count) {
        refuse_fleet(&folder)?;
    }
    let mut members: Vec<ServerFolder> =
        (1..=count).map(|number| ServerFolder::numbered(&folder, number)).collect();
    assign_addresses(&mut members, with_data, ports)?;
    for member in &members {
        prepare_one(member, &members, (with_data, cluster), certificates)?;
    }
    Ok(members)
}

/// Servers that were there before keep their addresses; the others pick free ones.
fn assign_addresses(
    members: &mut [ServerFolder],
    with_data: usize,
    ports: &mut Ports,
) -> Result<(), RunError> {
    // If no server has run yet, an interrupted first start is repeated.
    let is_old =
        |member: &ServerFolder| member.has_data() || (with_data > 0 && member.home.config_file().exists());
    for member in members.iter_mut().filter(|member| is_old(member)) {
        let config = member.read()?;
        member.address = config.rpc.listen;
        // Port 0 stands for any free port, which is known only when the server runs.
        member.http = config.http.listen.filter(|address| address.port() != 0);
    }
    // All that are there keep theirs before the others pick.
    members.iter().filter(|member| is_old(member)).try_for_each(|member| member.keep_ports(ports))?;
    for member in members.iter_mut().filter(|member| !is_old(member)) {
        member.address = ports.pick(Ipv4Addr::LOCALHOST.into())?;
        // The one over UDP, the other over TCP.
        member.http = Some(member.address);
    }
    Ok(())
}

fn prepare_one(
    member: &ServerFolder,
    all: &[ServerFolder],
    (with_data, (datacenter, acl)): (usize, (&str, &AclConfig)),
    certificates: &Development,
) -> Result<(), RunError> {
    let files = member.home.prepare(certificates)?;
    let keep = member.home.config_file().exists() && (with_data > 0 || member.has_data());
    if keep {
        return Ok(());
    }
    let others = all.iter().filter(|other| other.home.name != member.home.name);
    let config = ServerConfig {
        data_dir: member.home.data_dir(),
        pid_file: member.home.pid_file(),
        node: NodeConfig {
            name: member.home.name.clone(),
            datacenter: datacenter.into(),
            ..NodeConfig::default()
        },
        rpc: RpcConfig { listen: member.address, advertise: String::new() },
        http: HttpConfig { listen: member.http, ..HttpConfig::default() },
        tls: TlsConfig { ca: files.authorities, certificate: files.certificate, key: files.key },
        quorum: QuorumConfig {
            // An additional server joins the existing quorum.
            bootstrap_expect: if with_data > 0 { 0 } else { all.len() as u32 },
            join: others.map(|other| other.address.to_string()).collect(),
            ..QuorumConfig::default()
        },
        acl: acl.clone(),
        ..ServerConfig::default()
    };
    member.home.write_config(&config::text_of(&config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_net::config::Section;
    use std::fs;

    fn prepared(folder: &Path, count: u8) -> Result<Vec<ServerFolder>, String> {
        let certificates =
            Development::prepare(&folder.join("tls"), &"host".into()).expect("they can be made");
        prepare(folder, count, ("dc1", &AclConfig::default()), &certificates, &mut Ports::default())
            .map_err(|error| error.to_string())
    }

    fn give_data(members: &[ServerFolder]) {
        members.iter().for_each(|member| fs::create_dir_all(member.home.data_dir()).expect("it can be made"));
    }

    #[test]
    fn server_config_lists_other_servers() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let members = prepared(folder.path(), 3).expect("it is empty");
        let config = members[1].read().expect("it is good");
        assert_eq!((config.node.name.as_str(), config.rpc.listen), ("s2", members[1].address));
        assert_eq!(config.quorum.bootstrap_expect, 3);
        let others = [members[0].address.to_string(), members[2].address.to_string()];
        assert_eq!(config.quorum.join, others);
        assert!(config.tls.key.exists() && config.check().is_ok());
        assert_ne!(members[0].address, members[1].address);
        assert!(config.http.listen == members[1].http && members[1].http == Some(members[1].address));
    }

    #[test]
    fn later_start_keeps_and_adds_servers() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let first = prepared(folder.path(), 3).expect("it is empty");
        give_data(&first);
        let text = fs::read_to_string(first[0].home.config_file()).expect("it is there");
        assert_eq!(prepared(folder.path(), 3).expect("it is good"), first);
        assert_eq!(fs::read_to_string(first[0].home.config_file()).expect("it is there"), text);
        let five = prepared(folder.path(), 5).expect("it is good");
        assert_eq!(five[..3], first[..]);
        let config = five[4].read().expect("it is good");
        assert_eq!((config.quorum.bootstrap_expect, config.quorum.join.len()), (0, 4));
    }

    #[test]
    fn busy_port_error_names_config() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let members = prepared(folder.path(), 3).expect("it is empty");
        give_data(&members);
        let other = UdpSocket::bind(members[1].address).expect("it is free");
        let refused = prepared(folder.path(), 3).expect_err("another process has it");
        assert!(refused.starts_with("s2 cannot listen") && refused.contains("s2/server.toml"), "{refused}");
        drop(other);
        assert!(prepared(folder.path(), 3).is_ok());
    }

    #[test]
    fn folder_of_other_layout_rejected() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let members = prepared(folder.path(), 3).expect("it is empty");
        assert!(refuse_fleet(folder.path()).is_ok(), "nothing has run yet");
        give_data(&members);
        let refused = prepared(folder.path(), 1).expect_err("there are three");
        assert!(refused.ends_with("holds the data of 3 servers: start it with --servers 3"), "{refused}");
        let other = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(other.path().join("server")).expect("it can be made");
        assert!(prepared(other.path(), 3).expect_err("there is one").contains("without --servers"));
    }
}
