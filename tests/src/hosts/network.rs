//! The network between the hosts: one namespace per host, with a link to a common bridge.
//!
//! A link can be taken down, and packets can be dropped in one direction only.

use crate::dialect::number;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

/// The name of the bridge.
const BRIDGE: &str = "cables";

/// The address of the sandbox itself, beyond those of the hosts.
const SANDBOX: &str = "10.88.0.254/24";

/// The traffic in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    /// The number of Ethernet frames, each with at most one datagram.
    pub packets: u64,
    /// The bytes of all frames.
    pub bytes: u64,
}

/// The hosts' network. It is removed with the sandbox that contains it.
#[derive(Debug)]
pub struct Network {
    hosts: Vec<&'static str>,
}

impl Network {
    /// Connects hosts with these names.
    pub fn new(hosts: &[&'static str]) -> Self {
        let network = Self { hosts: hosts.to_vec() };
        ip(&["link", "add", BRIDGE, "type", "bridge"]);
        ip(&["link", "set", BRIDGE, "up"]);
        for host in hosts {
            let (cable, address) = (cable(host), format!("{}/24", network.address(host)));
            ip(&["netns", "add", host]);
            ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", host]);
            ip(&["link", "set", &cable, "master", BRIDGE, "up"]);
            ip(&["-n", host, "link", "set", "lo", "up"]);
            ip(&["-n", host, "address", "add", &address, "dev", "eth0"]);
            ip(&["-n", host, "link", "set", "eth0", "up"]);
        }
        network
    }

    /// Returns a host's address.
    pub fn address(&self, host: &str) -> Ipv4Addr {
        let position = self.hosts.iter().position(|known| *known == host).expect("it is one of the hosts");
        Ipv4Addr::new(10, 88, 0, u8::try_from(position + 1).expect("the hosts are few"))
    }

    /// Returns the command prefix that runs a command on a host.
    pub fn on<'w>(&self, host: &'w str) -> [&'w str; 3] {
        ["netns", "exec", host]
    }

    /// Gives the sandbox itself an address in the network, once, so that its processes reach the
    /// hosts.
    pub fn join(&self) {
        ip(&["address", "replace", SANDBOX, "dev", BRIDGE]);
    }

    /// Takes the host's link down.
    pub fn unplug(&self, host: &str) {
        ip(&["link", "set", &cable(host), "down"]);
    }

    /// Brings the host's link up again.
    pub fn plug(&self, host: &str) {
        ip(&["link", "set", &cable(host), "up"]);
    }

    /// Drops all packets from one host to another. The other direction stays open.
    pub fn cut(&self, from: &str, to: &str) {
        ip(&["-n", from, "route", "add", "blackhole", &self.address(to).to_string()]);
    }

    /// Undoes [`Self::cut`].
    pub fn mend(&self, from: &str, to: &str) {
        ip(&["-n", from, "route", "delete", "blackhole", &self.address(to).to_string()]);
    }

    /// Drops every datagram that a host sends or receives on this UDP port, its own or a peer's, as
    /// a firewall on the host does.
    pub fn close_port(&self, host: &str, port: u16) {
        // The local table comes first by default, so a rule would never drop incoming packets.
        ip(&["-n", host, "rule", "add", "priority", "100", "lookup", "local"]);
        ip(&["-n", host, "rule", "delete", "priority", "0"]);
        ["dport", "sport"].iter().for_each(|end| blackhole("add", host, end, port));
    }

    /// Undoes [`Self::close_port`].
    pub fn open_port(&self, host: &str, port: u16) {
        ["dport", "sport"].iter().for_each(|end| blackhole("delete", host, end, port));
        ip(&["-n", host, "rule", "add", "priority", "0", "lookup", "local"]);
        ip(&["-n", host, "rule", "delete", "priority", "100"]);
    }

    /// Drops every datagram that a host sends from this local UDP port, but no incoming ones.
    pub fn mute_port(&self, host: &str, port: u16) {
        blackhole("add", host, "sport", port);
    }

    /// Undoes [`Self::mute_port`].
    pub fn unmute_port(&self, host: &str, port: u16) {
        blackhole("delete", host, "sport", port);
    }

    /// Returns the traffic of a host's link: to the host, and from it.
    pub fn carried(&self, host: &str) -> (Carried, Carried) {
        carried(&["-n", host], "eth0")
    }

    /// Returns every process on a host.
    pub fn processes(&self, host: &str) -> Vec<String> {
        ip(&["netns", "pids", host]).split_whitespace().map(str::to_owned).collect()
    }
}

/// Brings the sandbox's own loopback interface up.
pub fn raise_loopback() {
    ip(&["link", "set", "lo", "up"]);
}

/// Returns the loopback traffic; each packet is counted once.
pub fn loopback() -> Carried {
    carried(&[], "lo").1
}

/// Adds or deletes the rule that drops datagrams with this port at the host's end or the peer's.
fn blackhole(action: &str, host: &str, end: &str, port: u16) {
    let port = port.to_string();
    ip(&["-n", host, "rule", action, "priority", "50", "ipproto", "udp", end, &port, "blackhole"]);
}

/// Returns the received and sent traffic of a device.
fn carried(namespace: &[&str], device: &str) -> (Carried, Carried) {
    let shown = ip(&[namespace, &["-s", "-j", "link", "show", "dev", device]].concat());
    let links: Value = serde_json::from_str(&shown).expect("ip answers in JSON");
    let counters = &links[0]["stats64"];
    let way = |name: &str| Carried {
        packets: number(&counters[name], "packets"),
        bytes: number(&counters[name], "bytes"),
    };
    (way("rx"), way("tx"))
}

/// Returns the name of the bridge's end of a host's link.
fn cable(host: &str) -> String {
    format!("to-{host}")
}

/// Runs `ip` and returns its output.
#[track_caller]
fn ip(arguments: &[&str]) -> String {
    let done = Command::new("ip").args(arguments).stdin(Stdio::null()).output().expect("ip can be started");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {}: {}", arguments.join(" "), said.trim());
    String::from_utf8_lossy(&done.stdout).into_owned()
}
