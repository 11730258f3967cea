//! Stories of servers that meet, and storms in which they crash, restart and are emptied at any
//! moment.

use super::{Bootstrap, Decision};
use lockmesh_protocol::bootstrap::{BootstrapPlan, Introduction, Standing};
use lockmesh_protocol::format;
use lockmesh_protocol::id::ServerId;
use lockmesh_protocol::record::NewServer;
use lockmesh_protocol::time::Time;
use std::collections::{BTreeMap, BTreeSet};

const NOW: Time = Time(1_000_000);

fn server(name: &str) -> NewServer {
    let instance_id = format!("instance of {name}");
    NewServer {
        node: name.into(),
        node_id: format!("id-{name}"),
        address: format!("{name}:8300"),
        instance_id,
        format: format::NEWEST,
    }
}

fn free(name: &str, expect: u32) -> Bootstrap {
    Bootstrap::new(server(name), expect, Standing::Free)
}

fn introduction(name: &str, expect: u32, standing: Standing) -> Introduction {
    Introduction { server: server(name), expect, standing, knows: Vec::new() }
}

fn plan(names: &[&str]) -> BootstrapPlan {
    let ids = (1..).map(ServerId);
    let servers = ids.zip(names).map(|(id, name)| server(name).with_id(id)).collect();
    BootstrapPlan { cluster_id: format!("instance of {}", names[0]), servers }
}

fn introduce(bootstrap: &mut Bootstrap, name: &str, expect: u32, standing: Standing) {
    bootstrap.note_introduction(NOW, introduction(name, expect, standing));
}

fn trouble(bootstrap: &Bootstrap) -> String {
    match bootstrap.decide(NOW) {
        Decision::Trouble(what) => what,
        other => panic!("no trouble: {other:?}"),
    }
}

fn wait(bootstrap: &Bootstrap) -> String {
    match bootstrap.decide(NOW) {
        Decision::Wait(what) => what,
        other => panic!("it does not wait: {other:?}"),
    }
}

#[test]
fn lowest_id_proposes_others_follow() {
    let (mut a, mut b) = (free("a", 3), free("b", 3));
    introduce(&mut a, "b", 3, Standing::Free);
    assert_eq!(wait(&a), "waiting for 1 more of 3 servers; present: a at a:8300, b at b:8300");
    for (bootstrap, other) in [(&mut a, "b"), (&mut b, "a")] {
        introduce(bootstrap, other, 3, Standing::Free);
        introduce(bootstrap, "c", 3, Standing::Free);
    }
    assert!(wait(&b).ends_with("a at a:8300 proposes"));
    let wanted = plan(&["a", "b", "c"]);
    assert_eq!(a.decide(NOW), Decision::Promise(wanted.clone()));
    a.promised(wanted.clone());
    assert_eq!(wait(&a), "waiting for b at b:8300 and c at c:8300 to agree to found this cluster");
    introduce(&mut b, "a", 3, Standing::Promised(wanted.clone()));
    assert_eq!(b.decide(NOW), Decision::Promise(wanted.clone()));
    b.promised(wanted.clone());
    introduce(&mut b, "c", 3, Standing::Promised(wanted.clone()));
    assert_eq!(b.decide(NOW), Decision::Begin(wanted));
}

#[test]
fn single_server_founds_alone() {
    let mut a = free("a", 1);
    let wanted = plan(&["a"]);
    assert_eq!(a.decide(NOW), Decision::Promise(wanted.clone()));
    a.promised(wanted.clone());
    assert_eq!(a.decide(NOW), Decision::Begin(wanted));
}

#[test]
fn member_confirms_promised_plan() {
    let wanted = plan(&["a", "b", "c"]);
    let mut a = Bootstrap::new(server("a"), 3, Standing::Promised(wanted.clone()));
    introduce(
        &mut a,
        "x",
        0,
        Standing::Member { cluster_id: wanted.cluster_id.clone(), server: ServerId(9) },
    );
    assert_eq!(a.decide(NOW), Decision::Begin(wanted));
}

#[test]
fn existing_cluster_is_always_joined() {
    for expect in [0, 1, 3] {
        let mut a = free("a", expect);
        introduce(&mut a, "b", 3, Standing::Member { cluster_id: "c1".into(), server: ServerId(2) });
        assert_eq!(a.decide(NOW), Decision::Join("c1".into(), vec!["b:8300".into()]));
        introduce(&mut a, "c", 3, Standing::Member { cluster_id: "c2".into(), server: ServerId(2) });
        assert!(trouble(&a).starts_with("there are two clusters here"));
    }
    let mut joiner = free("a", 3);
    joiner.joins();
    introduce(&mut joiner, "b", 2, Standing::Promised(plan(&["a", "b"])));
    assert!(wait(&joiner).starts_with("waiting for a server that belongs"));
}

#[test]
fn conflicting_expectations_are_reported() {
    let mut a = free("a", 3);
    introduce(&mut a, "b", 5, Standing::Free);
    assert_eq!(trouble(&a), "`quorum.bootstrap_expect` is 3 here, but 5 on b at b:8300: set the same value");
    let mut a = free("a", 2);
    for name in ["b", "c"] {
        introduce(&mut a, name, 2, Standing::Free);
    }
    assert!(trouble(&a).starts_with("3 servers want to found a cluster of 2: a at a:8300, b at b:8300, c"));
    introduce(&mut a, "b", 2, Standing::Promised(plan(&["b", "c"])));
    assert_eq!(wait(&a), "b at b:8300 founds a cluster without this server, which will join it");
    let mut a = free("a", 3);
    introduce(&mut a, "b", 2, Standing::Promised(plan(&["a", "b"])));
    assert!(trouble(&a).contains("founds a cluster of 2 servers, but `quorum.bootstrap_expect` is 3 here"));
}

#[test]
fn duplicate_identities_are_reported() {
    let mut a = free("a", 3);
    let mut twin = introduction("A", 3, Standing::Free);
    a.note_introduction(NOW, twin.clone());
    assert!(trouble(&a).contains("the same node name or node id"));
    twin.server.node = "b".into();
    twin.server.address = "a:8300".into();
    let mut a = free("a", 3);
    a.note_introduction(NOW, twin);
    assert!(trouble(&a).contains("advertise the same address, a:8300"));
}

#[test]
fn emptied_founder_voids_promise() {
    let wanted = plan(&["a", "b", "c"]);
    let mut b = Bootstrap::new(server("b"), 3, Standing::Promised(wanted.clone()));
    introduce(&mut b, "a", 3, Standing::Promised(wanted.clone()));
    introduce(&mut b, "c", 3, Standing::Free);
    let mut emptied = introduction("a", 3, Standing::Free);
    emptied.server.instance_id = "another".into();
    b.note_introduction(NOW, emptied.clone());
    assert!(trouble(&b).contains("was emptied before the cluster began"));
    let mut a = Bootstrap::new(emptied.server, 3, Standing::Free);
    introduce(&mut a, "b", 3, Standing::Promised(wanted));
    assert!(trouble(&a).contains("as it was before its data folder was emptied"));
}

#[test]
fn silent_server_counts_only_if_promised() {
    let later = Time(NOW.0 + 3_000_000);
    let mut a = free("a", 2);
    introduce(&mut a, "b", 2, Standing::Free);
    assert!(matches!(a.decide(NOW), Decision::Promise(_)));
    assert!(matches!(a.decide(later), Decision::Wait(_)));
    let wanted = plan(&["a", "b"]);
    a.promised(wanted.clone());
    introduce(&mut a, "b", 2, Standing::Promised(wanted.clone()));
    assert_eq!(a.decide(later), Decision::Begin(wanted));
}

#[test]
fn no_founding_without_configuration() {
    let mut a = free("a", 0);
    for key in ["`quorum.bootstrap_expect`", "1 for a single server", "`quorum.join`", "operator raft add"] {
        assert!(wait(&a).contains(key), "{}", wait(&a));
    }
    a.invited();
    assert_eq!(wait(&a), "waiting for a server that belongs to a cluster");
    let a = free("a", 0).configured(None, true);
    assert_eq!(wait(&a), "waiting for a server that belongs to a cluster");
    // Another waiting server does not make it a founder either.
    let mut a = free("a", 0);
    introduce(&mut a, "b", 0, Standing::Free);
    assert!(wait(&a).starts_with("no cluster is configured"));
}

#[test]
fn rebuild_requires_agreed_cluster_id() {
    let given = |name: &str, id: &str| free(name, 2).configured(Some(id.into()), true);
    let mut a = given("a", "old");
    introduce(&mut a, "b", 2, Standing::Free);
    let wanted = BootstrapPlan { cluster_id: "old".into(), ..plan(&["a", "b"]) };
    assert_eq!(a.decide(NOW), Decision::Promise(wanted.clone()));
    let follow = |mut b: Bootstrap, plan: &BootstrapPlan| {
        introduce(&mut b, "a", 2, Standing::Promised(plan.clone()));
        b
    };
    assert_eq!(follow(given("b", "old"), &wanted).decide(NOW), Decision::Promise(wanted.clone()));
    let other = trouble(&follow(given("b", "other"), &wanted));
    assert!(
        other.contains("under the id old") && other.contains("`quorum.cluster_id` is other here"),
        "{other}"
    );
    assert!(trouble(&follow(free("b", 2), &wanted)).contains("`quorum.cluster_id` is empty here"));
    let drawn = trouble(&follow(given("b", "old"), &plan(&["a", "b"])));
    assert!(drawn.contains("a generated id, but `quorum.cluster_id` is old here"), "{drawn}");
    // A build that does not know the key would begin with other indexes and fencing tokens.
    let mut old_build = introduction("b", 2, Standing::Free);
    old_build.server.format = 0;
    let mut a = given("a", "old");
    a.note_introduction(NOW, old_build);
    assert!(trouble(&a).contains("runs an older build"));
}

#[test]
fn only_configured_cluster_is_joined() {
    let mut a = free("a", 0).configured(Some("old".into()), true);
    introduce(&mut a, "b", 3, Standing::Member { cluster_id: "other".into(), server: ServerId(2) });
    assert!(
        trouble(&a).starts_with("b at b:8300 belongs to the cluster other, but `quorum.cluster_id` is old")
    );
}

/// A server with its disk.
struct Node {
    disk: (NewServer, Standing),
    bootstrap: Bootstrap,
    has_begun: bool,
}

impl Node {
    fn new(name: usize, life: u64, expect: u32) -> Self {
        let mut me = server(&format!("s{name}"));
        me.instance_id = format!("{name}/{life}");
        Self {
            bootstrap: Bootstrap::new(me.clone(), expect, Standing::Free),
            disk: (me, Standing::Free),
            has_begun: false,
        }
    }

    fn restart(&mut self, expect: u32) {
        let (me, standing) = self.disk.clone();
        self.bootstrap = Bootstrap::new(me, expect, standing);
    }

    fn introduction(&self, now: Time) -> Introduction {
        let mut introduction = self.bootstrap.introduction(now);
        if let (true, Standing::Promised(plan)) = (self.has_begun, &self.disk.1) {
            let cluster_id = plan.cluster_id.clone();
            introduction.standing = Standing::Member { cluster_id, server: ServerId(1) };
        }
        introduction
    }
}

struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Lets `count` servers meet, of which `expect` found a cluster. Returns the founders of each
/// cluster that began.
fn storm(seed: u64, count: usize, expect: u32, emptying: bool) -> BTreeMap<String, BTreeSet<String>> {
    let mut draws = Draws(seed);
    let mut nodes: Vec<_> = (0..count).map(|name| Node::new(name, 0, expect)).collect();
    let mut promises: BTreeMap<String, BootstrapPlan> = BTreeMap::new();
    let mut begun: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for step in 0..600 {
        let now = Time(step * 50_000);
        let (one, other) = (draws.below(count), draws.below(count));
        match draws.below(20) {
            0 => nodes[one].restart(expect),
            1 if emptying && step < 300 => nodes[one] = Node::new(one, step + 1, expect),
            _ => {
                let introduction = nodes[other].introduction(now);
                nodes[one].bootstrap.note_introduction(now, introduction);
            }
        }
        let node = &mut nodes[one];
        let instance_id = node.disk.0.instance_id.clone();
        match node.bootstrap.decide(now) {
            Decision::Promise(plan) => {
                let known = promises.entry(instance_id).or_insert_with(|| plan.clone());
                assert_eq!(*known, plan, "a server promises once");
                node.disk.1 = Standing::Promised(plan.clone());
                match draws.below(3) {
                    0 => node.restart(expect),
                    _ => node.bootstrap.promised(plan),
                }
            }
            Decision::Begin(plan) => {
                for voter in &plan.servers {
                    assert_eq!(promises.get(&voter.instance_id), Some(&plan), "all have promised");
                }
                node.has_begun = true;
                begun.entry(plan.cluster_id).or_default().insert(instance_id);
            }
            Decision::Join(..) => node.bootstrap.joins(),
            Decision::Wait(_) | Decision::Trouble(_) => {}
        }
    }
    begun
}

#[test]
fn crashes_still_found_one_cluster() {
    for seed in 0..300 {
        let begun = storm(seed, 3, 3, false);
        assert_eq!(begun.len(), 1, "seed {seed}: one cluster begins");
        assert_eq!(begun.values().map(BTreeSet::len).sum::<usize>(), 3, "seed {seed}: all three begin it");
    }
}

#[test]
fn clusters_share_no_server_after_emptying() {
    let mut finished = 0;
    for seed in 0..300 {
        let begun = storm(seed, 4, 3, true);
        let servers: Vec<_> = begun.values().flatten().collect();
        let once: BTreeSet<_> = servers.iter().collect();
        assert_eq!(once.len(), servers.len(), "seed {seed}: {begun:?}");
        finished += usize::from(!begun.is_empty());
    }
    assert!(finished > 0, "some storm ends with a cluster");
}
