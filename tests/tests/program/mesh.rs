//! The mesh of real agents: neighbors' probes of a dead host fail, a challenged agent answers, and
//! peers that send foreign datagrams or accuse all others change only metrics.

use lockmesh_agent::upstream::calls::Accuse;
use lockmesh_net::random;
use lockmesh_protocol::gossip::MAX_DATAGRAM_BYTES;
use lockmesh_protocol::gossip::member::MemberId;
use lockmesh_protocol::gossip::packet::{Header, Message};
use lockmesh_protocol::gossip::roster::RosterDigest;
use lockmesh_protocol::gossip::seal::{GossipKey, KeyRing, NONCE_BYTES};
use lockmesh_protocol::id::{AgentNumber, LogIndex};
use lockmesh_protocol::lease::LeaseId;
use lockmesh_tests::figures::Figures;
use lockmesh_tests::fleet::{Fleet, shell, wait_until};
use lockmesh_tests::http::Client;
use lockmesh_tests::stand_ins::{Issuer, StandIn};
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Three servers and three agents, each of which knows the two others.
fn start(folder: &Path) -> Fleet {
    let dev = Fleet::start_with(folder, "3", &["--nodes", "3"]);
    for node in NODES {
        let client = dev.client_of(node);
        wait_until(|| figures(&client).value("lockmesh_agent_mesh_members") == 2.0);
        wait_until(|| event(&client, "received") > 0.0);
    }
    dev
}

fn figures(client: &Client) -> Figures {
    Figures::parse(client.get("/metrics").expect(200).text())
}

/// Returns the value of an agent's mesh event counter.
fn event(client: &Client, event: &str) -> f64 {
    figures(client).value(&format!("lockmesh_agent_mesh_events_total{{event=\"{event}\"}}"))
}

/// Returns the number of accusations with an outcome, over all servers.
fn accusations(dev: &Fleet, outcome: &str) -> f64 {
    let of = |server| {
        let series = format!("lockmesh_server_accusations_total{{outcome=\"{outcome}\"}}");
        figures(&dev.monitor(server)).value(&series)
    };
    ["s1", "s2", "s3"].into_iter().map(of).sum()
}

fn verdicts(dev: &Fleet) -> f64 {
    let of = |server: &str| {
        let figures = figures(&dev.monitor(server));
        let series = |window: &str| format!("lockmesh_server_node_verdicts_total{{window=\"{window}\"}}");
        ["fast", "default", "safe"].map(|window| figures.value(&series(window))).iter().sum::<f64>()
    };
    ["s1", "s2", "s3"].into_iter().map(of).sum()
}

/// Returns the number of unsolicited updates from servers to agents.
fn pushes(dev: &Fleet) -> f64 {
    let of = |server| figures(&dev.monitor(server)).value("lockmesh_server_mesh_pushes_total");
    ["s1", "s2", "s3"].into_iter().map(of).sum()
}

/// Returns the UDP ports of a process, among them those of QUIC and of the mesh.
fn udp_ports(pid: &str) -> Vec<u16> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    let sockets: Vec<String> = links
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let tables = ["udp", "udp6"].map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")));
    let lines = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    let ports = lines.filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_own = sockets.iter().any(|socket| columns.get(9) == Some(&socket.as_str()));
        let (_, port) = columns.get(1)?.rsplit_once(':')?;
        is_own.then(|| u16::from_str_radix(port, 16).expect("a port"))
    });
    ports.collect()
}

#[test]
fn a_host_that_dies_is_probed_in_vain_by_its_neighbours_and_forgotten_by_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = start(folder.path());
    let (first, second) = (dev.client_of("n1"), dev.client_of("n2"));
    assert!(shell(&format!("kill -KILL {}", dev.pid("n3"))));
    wait_until(|| {
        let members = first.get("/v1/agent/members").expect(200).json();
        let dead = members.as_array().expect("a list").iter().find(|member| member["Name"] == "n3");
        dead.is_some_and(|member| member["State"] == "failed")
    });
    // A neighbor that ran late on a busy machine accuses no other agent.
    let in_vain = ["accusation", "excused_probe"].map(|kind| event(&first, kind) + event(&second, kind));
    assert!(in_vain.iter().sum::<f64>() >= 1.0);
    // By its verdict, and the resulting roster.
    for survivor in [first, second] {
        wait_until(|| figures(&survivor).value("lockmesh_agent_mesh_members") == 1.0);
    }
    assert!(pushes(&dev) >= 1.0, "the leader sends the verdict unsolicited");
}

#[test]
fn what_is_not_of_this_cluster_is_counted_and_changes_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = start(folder.path());
    let victim = dev.client_of("n1");
    let outsider = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).expect("after the epoch").as_secs() as u32;
    let member = MemberId::of_agent(LeaseId { agent: AgentNumber(1), began: LogIndex(1) });
    let sealed = |number: u32| {
        let key = GossipKey { number, bytes: [7; 32] };
        KeyRing::of(key).seal(member, seconds, [1; NONCE_BYTES], b"anything")
    };
    let send = |datagram: &[u8]| {
        for port in udp_ports(&dev.pid("n1")) {
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            outsider.send_to(datagram, to).expect("it is sent");
        }
    };
    for length in [1, 40, 100, 1_100, 1_400] {
        send(&vec![0xa5; length]);
    }
    // Of another cluster, by a key with the number of ours or of another key.
    (0..100).for_each(|number| send(&sealed(number)));
    for kind in ["malformed_datagram", "unknown_key", "broken_seal"] {
        wait_until(|| event(&victim, kind) > 0.0);
    }
    for node in NODES {
        assert_eq!(figures(&dev.client_of(node)).value("lockmesh_agent_mesh_members"), 2.0);
    }
    assert_eq!(verdicts(&dev), 0.0);
}

#[test]
fn a_member_that_accuses_everybody_is_listened_to_less_and_nobody_is_failed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = start(folder.path());
    let servers = dev.server_addresses();
    let issuer = Issuer::of(&folder.path().join("tls"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let liar = StandIn::start(&issuer, 1, &servers);
        liar.is_acknowledged().await;
        let news = liar.upstream.sync_mesh(RosterDigest(Vec::new())).await.expect("it is a member");
        let members = news.roster.0.iter().flat_map(|(_, members)| members);
        let leases: Vec<LeaseId> = members.filter_map(|member| member.id.lease()).collect();
        assert_eq!(leases.len(), 3);
        while accusations(&dev, "ignored_accuser") == 0.0 {
            liar.upstream.call(Accuse(leases.clone())).await.expect("a server takes it");
        }
        StandIn::close_all(vec![liar]).await;
    });
    assert!(accusations(&dev, "opened") >= 1.0);
    assert_eq!(verdicts(&dev), 0.0);
}

#[test]
fn a_member_that_asks_by_a_datagram_is_answered_with_a_renewal() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = start(folder.path());
    let servers = dev.server_addresses();
    let issuer = Issuer::of(&folder.path().join("tls"));
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (juror, news) = runtime.block_on(async {
        let juror = StandIn::start_in_mesh(&issuer, 1, &servers, socket.local_addr().ok());
        juror.is_acknowledged().await;
        let news = juror.upstream.sync_mesh(RosterDigest(Vec::new())).await.expect("it is a member");
        (juror, news)
    });
    let began = Instant::now();
    let seconds = || news.seconds + began.elapsed().as_secs() as u32;
    let asked =
        news.roster.0.iter().flat_map(|(_, members)| members).find(|member| member.node.as_str() == "n1");
    let asked = asked.expect("it is in the roster");
    let me = MemberId::of_agent(juror.upstream.registered_lease().expect("it is registered"));
    let mut packet = Vec::new();
    Header { incarnation: 0, to: asked.id, message: Message::Challenge(99) }.write(&mut packet);
    socket.set_nonblocking(true).expect("a socket");
    let ask = || {
        let datagram = news.ring.seal(me, seconds(), random::bytes().expect("a nonce"), &packet);
        socket.send_to(&datagram, asked.address).expect("it is sent");
    };
    let received = || {
        let mut buffer = [0; MAX_DATAGRAM_BYTES];
        let (length, _) = socket.recv_from(&mut buffer).ok()?;
        let (from, packet) = news.ring.open(&buffer[..length], seconds()).expect("it is of the mesh");
        Some((from, Header::read(&mut &packet[..]).expect("a packet").message))
    };
    let is_answer = |(from, message)| match message {
        Message::Renewal(answer) => {
            assert_eq!((from, answer.nonce), (asked.id, 99));
            true
        }
        // Other agents probe this member as well: it is in the roster, but does not take part.
        _ => false,
    };
    // An agent that receives a stranger's question looks it up in the roster, and answers once it
    // is there.
    wait_until(|| {
        ask();
        std::iter::from_fn(received).any(is_answer)
    });
    assert_eq!(figures(&dev.client_of("n1")).value("lockmesh_agent_mesh_members"), 3.0);
    runtime.block_on(StandIn::close_all(vec![juror]));
}
