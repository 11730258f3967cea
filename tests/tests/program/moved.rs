//! Servers whose addresses change while they are down, such as containers.

use super::reload::Fleet;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::http::{Address, Client};
use lockmesh_tests::process::Process;
use std::net::{Ipv4Addr, UdpSocket};

const SERVERS: [&str; 3] = ["s1", "s2", "s3"];

/// Returns ports that were free a moment ago, all different, and none of the ports before.
fn free_ports(before: [u16; 3]) -> [u16; 3] {
    loop {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let sockets = SERVERS.map(|_| bind());
        let ports = sockets.map(|socket| socket.local_addr().expect("it is bound").port());
        if ports.iter().all(|port| !before.contains(port)) {
            return ports;
        }
    }
}

/// Starts the three servers at these ports; each is configured with the present addresses.
fn start(fleet: &Fleet, ports: [u16; 3]) -> Vec<Process> {
    // By address and by name.
    let join = [format!("127.0.0.1:{}", ports[0]), format!("localhost:{}", ports[1]), at(ports[2])];
    let start = |(name, port): (&&str, u16)| {
        let rest = format!(
            "[rpc]\nlisten = \"{}\"\nadvertise = \"localhost:{port}\"\n[quorum]\nbootstrap_expect = 3\n\
             join = {join:?}",
            at(port)
        );
        let config = fleet.config("server", name, "info", &rest);
        Process::lockmesh(&["server", "--config", &config])
    };
    SERVERS.iter().zip(ports).map(start).collect()
}

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Starts an agent of servers at these ports.
fn agent(fleet: &Fleet, ports: [u16; 3]) -> (Process, Client) {
    let servers = ports.map(at);
    let socket = fleet.at("sock");
    let rest = format!(
        "listen = \"127.0.0.1:0\"\n[gossip]\nenabled = false\n[http]\ntcp = \"\"\nsocket = \"{socket}\"\n\
         [upstream]\nservers = {servers:?}"
    );
    let process = Process::lockmesh(&["agent", "--config", &fleet.config("agent", "web-1", "info", &rest)]);
    process.says(" ready");
    (process, Client { address: Address::Unix(fleet.path("sock")) })
}

fn addresses(client: &Client) -> Vec<String> {
    let configuration = client.get("/v1/operator/raft/configuration").expect(200).json();
    let servers = configuration["Servers"].as_array().expect("it lists the servers");
    servers.iter().map(|server| server["Address"].as_str().expect("an address").to_owned()).collect()
}

fn end(processes: Vec<Process>) {
    processes.iter().for_each(|process| process.signal("TERM"));
    processes.iter().for_each(|process| assert_eq!(process.ends(), 0));
}

#[test]
fn servers_that_all_moved_serve_again() {
    let fleet = Fleet::new();
    SERVERS.iter().for_each(|name| fleet.issue(name, "server", name));
    fleet.issue("web-1", "agent", "web-1");
    let before = free_ports([0; 3]);
    let servers = start(&fleet, before);
    let (process, client) = agent(&fleet, before);
    client.set("before", "the move");
    end(vec![process]);
    end(servers);

    let after = free_ports(before);
    let servers = start(&fleet, after);
    let (process, client) = agent(&fleet, after);
    client.set("after", "the move");
    assert_eq!(client.get("/v1/kv/before?raw").expect(200).text(), "the move");
    for server in &servers {
        server.says("the quorum has recorded the address of this server");
    }
    let mut moved = after.map(|port| format!("localhost:{port}"));
    moved.sort();
    wait_until(|| {
        let mut addresses = addresses(&client);
        addresses.sort();
        addresses == moved
    });
    let count = |text: &str| -> usize {
        servers.iter().map(|server| server.said().lines().filter(|line| line.contains(text)).count()).sum()
    };
    assert!(count("found a member at a new address") >= 1, "the search found them");
    for text in
        ["also calling the servers of `quorum.join`", "no longer calling the servers of `quorum.join`"]
    {
        assert!(count(text) <= servers.len(), "{text}: one line each");
    }
    end(vec![process]);
    end(servers);
}
