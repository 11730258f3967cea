//! Builds that read different formats, and the upgrade of a cluster to a newer format.

use crate::members::{Cluster, Server};
use crate::solo::Disk;
use lockmesh_core::raft::log::SnapshotMeta;
use lockmesh_core::{Input, ServerRequest, State};
use lockmesh_protocol::command::Command;
use lockmesh_protocol::format::{self, FormatError};
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::record::{NewServer, Server as Row};
use lockmesh_protocol::reply::{Refusal, Reply};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// The format of this build, and of a later one.
const NOW: u8 = format::NEWEST;
const LATER: u8 = NOW + 1;

impl Cluster {
    /// Restarts a server with a build that reads formats up to this, and announces it.
    fn install(&mut self, id: u64, format: u8) -> Reply {
        let id = ServerId(id);
        self.restart_reading(id, format);
        self.run(3 * SECOND);
        let row = self.state().server(id).expect("it is in the roster").clone();
        self.command(Command::UpdateServer(Row { format, ..Row::clone(&row) }))
    }

    fn restart_reading(&mut self, id: ServerId, format: u8) {
        let disk = self.servers.remove(&id).expect("it is there").disk;
        self.servers.insert(id, Server::open_reading(id, disk, format));
    }

    fn state(&self) -> &State {
        self.servers[&self.leader()].core.replica().state()
    }

    /// The cluster's format on each server.
    fn formats(&self) -> Vec<u8> {
        self.servers.values().map(|server| server.core.replica().state().format()).collect()
    }
}

fn refusal(reply: &Reply) -> &str {
    match reply {
        Reply::Refused(Refusal::Roster(why)) => why,
        other => panic!("it was not refused: {other:?}"),
    }
}

#[test]
fn format_rises_after_last_upgrade() {
    let mut cluster = Cluster::start(3);
    for (id, formats) in [(1, [NOW; 3]), (2, [NOW; 3]), (3, [LATER; 3])] {
        assert_eq!(cluster.install(id, LATER), Reply::Done);
        cluster.run(3 * SECOND);
        cluster.put("in between");
        assert_eq!(cluster.formats(), formats, "once server {id} reads it");
    }
}

#[test]
fn older_build_is_not_admitted() {
    let mut cluster = Cluster::start(3);
    (1..=3).for_each(|id| assert_eq!(cluster.install(id, LATER), Reply::Done));
    cluster.run(3 * SECOND);
    let (node_id, address) = (String::new(), "d:8300".into());
    let new = NewServer { node: "d".into(), node_id, address, instance_id: "d-1".into(), format: NOW };
    let reply = cluster.command(Command::AdmitServer(new));
    let expected = format!(
        "server d reads formats up to {NOW}, but the cluster is at {LATER}: install a newer lockmesh there"
    );
    assert_eq!(refusal(&reply), expected);
    let row = cluster.state().server(ServerId(2)).expect("it is in the roster").clone();
    let put_back = Row { format: NOW, ..Row::clone(&row) };
    let reply = cluster.command(Command::UpdateServer(put_back));
    assert!(
        refusal(&reply).contains(&format!("reads formats up to {NOW}, but the cluster is at {LATER}")),
        "{reply:?}"
    );
    assert_eq!(cluster.state().server(ServerId(2)), Some(&row));
}

/// A cluster at the later format; one follower was down during the upgrade.
fn raised_without(absent: ServerId) -> Cluster {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.install(absent.0, LATER), Reply::Done);
    cluster.run(SECOND);
    cluster.down.insert(absent);
    cluster.run(3 * SECOND);
    for id in (1..=3).filter(|id| *id != absent.0) {
        assert_eq!(cluster.install(id, LATER), Reply::Done);
    }
    cluster.run(3 * SECOND);
    assert_eq!(cluster.state().format(), LATER);
    cluster.down.remove(&absent);
    cluster
}

fn stopped_in_words(cluster: &Cluster, id: ServerId) {
    let core = &cluster.servers[&id].core;
    let why = core.unreadable().expect("its build cannot read the entry");
    assert_eq!(*why, FormatError::Unknown { found: LATER, known: NOW });
    assert!(
        why.to_string().contains(&format!("reads formats up to {NOW}: install a newer lockmesh")),
        "{why}"
    );
    assert!(!core.replica().is_serving());
}

#[test]
fn older_build_stops_at_format_change() {
    let absent = ServerId(3);
    let mut cluster = raised_without(absent);
    cluster.restart_reading(absent, NOW);
    cluster.run(3 * SECOND);
    stopped_in_words(&cluster, absent);
    let stopped_at = cluster.servers[&absent].core.replica().snapshot_meta().index;
    cluster.put("without it");
    cluster.run(SECOND);
    assert_eq!(
        cluster.servers[&absent].core.replica().snapshot_meta().index,
        stopped_at,
        "no later entry is applied"
    );

    cluster.restart_reading(absent, LATER);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.servers[&absent].core.unreadable(), None);
    assert_eq!(cluster.servers[&absent].core.replica().state(), cluster.state());
}

#[test]
fn older_build_stops_at_newer_snapshot() {
    let mut cluster = raised_without(ServerId(3));
    // It announced the newer format, and is started with an older build.
    let (node_id, address) = (String::new(), "d:8300".into());
    let new = NewServer { node: "d".into(), node_id, address, instance_id: "d-1".into(), format: LATER };
    let Reply::Server(id) = cluster.command(Command::AdmitServer(new)) else { panic!("it is admitted") };
    cluster.servers.insert(id, Server::open_reading(id, Disk::new(SnapshotMeta::default()), NOW));
    let leader = cluster.leader();
    cluster.ask(leader, |token| Input::Servers(ServerRequest::AddServer(token, id)));
    cluster.run(SECOND);
    stopped_in_words(&cluster, id);

    cluster.restart_reading(id, NOW);
    stopped_in_words(&cluster, id);
    cluster.run(SECOND);
    cluster.restart_reading(id, LATER);
    cluster.run(3 * SECOND);
    assert_eq!(cluster.servers[&id].core.replica().state(), cluster.state());
}
