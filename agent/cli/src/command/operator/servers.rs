//! The server that an argument means, and its name in messages.

use super::super::error::CliError;
use lockmesh_client::shape::lockmesh::{Quorum, Server};

/// The one server that is meant by its node's name, its address, its Raft id or its node's UUID.
pub(super) fn find<'q>(quorum: &'q Quorum, name: &str) -> Result<&'q Server, CliError> {
    let is_meant = |server: &&Server| {
        server.raft_id.to_string() == name
            || server.address == name
            || server.id.eq_ignore_ascii_case(name)
            || server.node.to_lowercase() == name.to_lowercase()
    };
    let meant: Vec<&Server> = quorum.servers.iter().filter(is_meant).collect();
    let list =
        |servers: &[&Server]| servers.iter().map(|server| named(server)).collect::<Vec<_>>().join(", ");
    match meant.as_slice() {
        [server] => Ok(server),
        [] => {
            let all: Vec<&Server> = quorum.servers.iter().collect();
            Err(CliError::failed(format!("no server is called {name:?}; there are {}", list(&all))))
        }
        several => {
            Err(CliError::failed(format!("{name:?} may be {}: say which by its Raft id", list(several))))
        }
    }
}

/// The name of a server in messages.
pub(super) fn named(server: &Server) -> String {
    format!("server {} ({}, {})", server.raft_id, server.node, server.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quorum() -> Quorum {
        let server = |raft_id: u64, node: &str, healthy| Server {
            raft_id,
            id: format!("u{raft_id}"),
            node: node.into(),
            address: format!("10.0.0.{raft_id}:8300"),
            leader: raft_id == 1,
            voter: true,
            last_index: 42 - raft_id,
            last_contact: "3s".into(),
            healthy,
            version: String::new(),
        };
        let servers = vec![server(1, "n1", Some(true)), server(2, "n2", Some(false)), server(4, "n2", None)];
        Quorum { leader: 1, commit_index: 42, servers, ..Quorum::default() }
    }

    #[test]
    fn server_found_by_unique_identifier() {
        let quorum = quorum();
        for name in ["1", "N1", "U1", "10.0.0.1:8300"] {
            assert_eq!(find(&quorum, name).expect("it is there").raft_id, 1, "{name}");
        }
        let twice = find(&quorum, "n2").expect_err("there are two").to_string();
        assert!(
            twice.contains("server 2") && twice.contains("server 4") && twice.contains("Raft id"),
            "{twice}"
        );
        let missing = find(&quorum, "n3").expect_err("there is none").to_string();
        assert!(
            missing.contains("no server is called \"n3\"; there are server 1 (n1, 10.0.0.1:8300)"),
            "{missing}"
        );
    }
}
