//! The network between the hosts: a namespace each, with a cable to one bridge.
//!
//! A cable can be pulled, and packets can be dropped in one direction alone.

use crate::dialect::number;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

/// The bridge.
const BRIDGE: &str = "cables";

/// How much went one way.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    /// Frames of Ethernet, each with one datagram or less.
    pub packets: u64,
    /// All their bytes.
    pub bytes: u64,
}

/// The hosts' network. The sandbox that it was made in takes it away.
#[derive(Debug)]
pub struct Network {
    hosts: Vec<&'static str>,
}

impl Network {
    /// Connects hosts of these names.
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

    /// A host's address.
    pub fn address(&self, host: &str) -> Ipv4Addr {
        let position = self.hosts.iter().position(|known| *known == host).expect("it is one of the hosts");
        Ipv4Addr::new(10, 88, 0, u8::try_from(position + 1).expect("the hosts are few"))
    }

    /// The words before a command that runs on a host.
    pub fn on<'w>(&self, host: &'w str) -> [&'w str; 3] {
        ["netns", "exec", host]
    }

    /// Pulls the host's cable out of the bridge.
    pub fn unplug(&self, host: &str) {
        ip(&["link", "set", &cable(host), "down"]);
    }

    /// Puts it back.
    pub fn plug(&self, host: &str) {
        ip(&["link", "set", &cable(host), "up"]);
    }

    /// Drops whatever one host sends to another. The way back stays open.
    pub fn cut(&self, from: &str, to: &str) {
        ip(&["-n", from, "route", "add", "blackhole", &self.address(to).to_string()]);
    }

    /// Undoes that.
    pub fn mend(&self, from: &str, to: &str) {
        ip(&["-n", from, "route", "delete", "blackhole", &self.address(to).to_string()]);
    }

    /// Drops every datagram that a host sends or receives on this UDP port, its own or a peer's, as
    /// a firewall on the host does.
    pub fn close_port(&self, host: &str, port: u16) {
        // The local table comes first by default, and then nothing that arrives is ever dropped.
        ip(&["-n", host, "rule", "add", "priority", "100", "lookup", "local"]);
        ip(&["-n", host, "rule", "delete", "priority", "0"]);
        ["dport", "sport"].iter().for_each(|end| blackhole("add", host, end, port));
    }

    /// Undoes that.
    pub fn open_port(&self, host: &str, port: u16) {
        ["dport", "sport"].iter().for_each(|end| blackhole("delete", host, end, port));
        ip(&["-n", host, "rule", "add", "priority", "0", "lookup", "local"]);
        ip(&["-n", host, "rule", "delete", "priority", "100"]);
    }

    /// Drops every datagram that a host sends from this UDP port of its own, and none that arrives
    /// there.
    pub fn mute_port(&self, host: &str, port: u16) {
        blackhole("add", host, "sport", port);
    }

    /// Undoes that.
    pub fn unmute_port(&self, host: &str, port: u16) {
        blackhole("delete", host, "sport", port);
    }

    /// What a host's cable has carried: to the host, and from it.
    pub fn carried(&self, host: &str) -> (Carried, Carried) {
        carried(&["-n", host], "eth0")
    }

    /// Every process on a host.
    pub fn processes(&self, host: &str) -> Vec<String> {
        ip(&["netns", "pids", host]).split_whitespace().map(str::to_owned).collect()
    }
}

/// Lets processes of the sandbox itself talk to each other.
pub fn raise_loopback() {
    ip(&["link", "set", "lo", "up"]);
}

/// What they have said to each other: each packet is counted once.
pub fn loopback() -> Carried {
    carried(&[], "lo").1
}

/// Adds or deletes the rule that drops datagrams with a port at this end of theirs.
fn blackhole(action: &str, host: &str, end: &str, port: u16) {
    let port = port.to_string();
    ip(&["-n", host, "rule", action, "priority", "50", "ipproto", "udp", end, &port, "blackhole"]);
}

/// What a device has received and sent.
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

/// The bridge's end of a host's cable.
fn cable(host: &str) -> String {
    format!("to-{host}")
}

/// Runs `ip`, and answers what it prints.
#[track_caller]
fn ip(arguments: &[&str]) -> String {
    let done = Command::new("ip").args(arguments).stdin(Stdio::null()).output().expect("ip can be started");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {}: {}", arguments.join(" "), said.trim());
    String::from_utf8_lossy(&done.stdout).into_owned()
}
