//! Three members of etcd, from Debian's build.

use super::{Cluster, TIMEOUT, Targets, Tools};
use crate::client::etcd::{Etcd as EtcdClient, Site};
use crate::client::grpc::Grpc;
use crate::process::{Program, free_ports, wait_until};
use crate::wire::etcd::{self, Method, Status};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;

/// The largest lag of a member that counts as caught up.
const LAG: u64 = 100;

/// The largest database. The default of 2 GiB is for clusters whose history is compacted at
/// runtime.
const QUOTA_BYTES: &str = "8589934592";

/// The service.
#[derive(Debug)]
pub(crate) struct Etcd {
    programs: Vec<Program>,
    clients: Vec<SocketAddr>,
    sharing: usize,
    version: String,
}

impl Etcd {
    /// Starts three members in a fresh folder; `sharing` clients will share a connection.
    pub(crate) async fn start(tools: &Tools, folder: &Path, sharing: usize) -> io::Result<Self> {
        let program = tools.unpacked("usr/bin/etcd")?;
        fs::create_dir_all(folder)?;
        let ports = free_ports::<6>()?;
        let (clients, peers) = ports.split_at(3);
        let members: Vec<String> =
            (1..).zip(peers).map(|(number, port)| format!("m{number}=http://127.0.0.1:{port}")).collect();
        let mut programs = Vec::new();
        for (number, (client, peer)) in (1..).zip(clients.iter().zip(peers)) {
            let name = format!("m{number}");
            let [client, peer] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
            let data = folder.join(&name).display().to_string();
            let members = members.join(",");
            let flags = [
                ("name", name.as_str()),
                ("data-dir", &data),
                ("listen-peer-urls", &peer),
                ("initial-advertise-peer-urls", &peer),
                ("listen-client-urls", &client),
                ("advertise-client-urls", &client),
                ("initial-cluster", &members),
                ("initial-cluster-state", "new"),
                ("quota-backend-bytes", QUOTA_BYTES),
                ("logger", "zap"),
                ("log-level", "warn"),
                ("log-outputs", "stderr"),
            ];
            let flags = flags.map(|(flag, value)| format!("--{flag}={value}").into());
            let command = [program.clone().into_os_string()].into_iter().chain(flags);
            programs.push(Program::new(format!("etcd {name}"), command, folder.join(format!("{name}.log"))));
        }
        for program in &mut programs {
            program.start()?;
        }
        let clients = clients.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect();
        let version = format!("etcd {} (Debian)", tools.version("etcd-server")?);
        let mut cluster = Self { programs, clients, sharing, version };
        cluster.settle().await?;
        Ok(cluster)
    }

    async fn statuses(&self) -> io::Result<Vec<Status>> {
        let mut statuses = Vec::new();
        for member in &self.clients {
            let connection = Grpc::connect(*member).await?;
            statuses.push(etcd::status(&connection.call(Method::Status, b"").await?)?);
        }
        Ok(statuses)
    }
}

/// Returns `true` if all know the same leader and none lags.
fn are_settled(statuses: &[Status]) -> bool {
    let newest = statuses.iter().map(|status| status.applied).max().unwrap_or(0);
    let leader = statuses.first().map_or(0, |status| status.leader);
    leader != 0 && statuses.iter().all(|status| status.leader == leader && status.applied + LAG >= newest)
}

impl Cluster for Etcd {
    type Client = EtcdClient;

    fn version(&self) -> &str {
        &self.version
    }

    fn programs(&mut self) -> &mut [Program] {
        &mut self.programs
    }

    async fn leader(&self) -> io::Result<usize> {
        let leads = |status: &Status| status.member == status.leader;
        let leader = self.statuses().await?.iter().position(leads);
        leader.ok_or_else(|| io::Error::other("etcd has no leader"))
    }

    async fn settle(&mut self) -> io::Result<()> {
        let mut programs = std::mem::take(&mut self.programs);
        let settled = wait_until("etcd", TIMEOUT, &mut programs, async || {
            self.statuses().await.is_ok_and(|statuses| are_settled(&statuses))
        });
        let settled = settled.await;
        self.programs = programs;
        settled
    }

    fn site(&self, targets: Targets) -> Rc<Site> {
        // Clients that write despite a dead leader must not all depend on one connection.
        let sharing = if matches!(targets, Targets::Without(_)) { 1 } else { self.sharing };
        Rc::new(Site { targets: targets.of(&self.clients), sharing, connections: Default::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_settled_when_they_agree() {
        let status = |leader, applied| Status { member: 1, leader, applied };
        assert!(are_settled(&[status(7, 900), status(7, 1000), status(7, 950)]));
        assert!(!are_settled(&[status(7, 900), status(8, 900)]));
        assert!(!are_settled(&[status(0, 900), status(0, 900)]));
        assert!(!are_settled(&[status(7, 10), status(7, 900)]));
        assert!(!are_settled(&[]));
    }
}
