//! Tests of prepared queries.

use super::{Execution, check, filled};
use crate::definitions::service_mesh::MeshFields;
use crate::go::json::Object;
use crate::near::{Origin, tests::origin};
use lockmesh_protocol::prepared_query::{NAME_PREFIX_MATCH, QUERY_BYTES_MAX, QueryService, QuerySpec};
use lockmesh_protocol::query::{Instance, Query};
use lockmesh_protocol::record::{Check, CheckStatus, Node, Service};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

fn texts(texts: &[&str]) -> Option<Vec<String>> {
    Some(texts.iter().map(|text| (*text).to_owned()).collect())
}

fn query(service: &str) -> QuerySpec {
    let service = QueryService { service: service.into(), ..QueryService::default() };
    QuerySpec { name: "q".into(), service, ..QuerySpec::default() }
}

fn template(prefix: &str, regexp: &str, service: &str) -> QuerySpec {
    let mut spec = QuerySpec { name: prefix.into(), ..query(service) };
    spec.template.kind = NAME_PREFIX_MATCH.into();
    spec.template.regexp = regexp.into();
    spec
}

fn instance(node: &str, checks: &[(&str, CheckStatus)], tags: &[&str]) -> Instance {
    let checks = checks.iter().map(|(id, status)| Arc::new(Check::of(node.into(), (*id).into(), *status)));
    let mut record = Node::of(node.into(), String::new(), "10.0.0.1");
    record.meta.insert("rack".into(), format!("rack-of-{node}"));
    let mut service = Service::of(node.into(), "web".into(), "web");
    service.tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
    service.meta.insert("version".into(), "7".into());
    Instance { node: Arc::new(record), service: Arc::new(service), checks: checks.collect() }
}

/// The names of the nodes that a query returns, in its order.
fn executed(
    instances: &[Instance],
    service: &QueryService,
    origin: Option<&Origin>,
    seed: u64,
) -> Vec<String> {
    let found = Execution::new(service.clone(), false).run(instances, origin, seed, usize::MAX);
    found.iter().map(|instance| instance.node.name.to_string()).collect()
}

/// The same, sorted.
fn nodes(instances: &[Instance], service: &QueryService) -> Vec<String> {
    let mut names = executed(instances, service, None, 1);
    names.sort();
    names
}

/// Contract: 125.
#[test]
fn filters_by_health_tags_and_meta() {
    use CheckStatus::{Critical, Passing, Warning};
    let instances = [
        instance("bad", &[("serfHealth", Passing), ("c", Critical)], &["v1"]),
        instance("good", &[("serfHealth", Passing), ("c", Passing)], &["V1", "blue"]),
        instance("gone", &[("serfHealth", Critical)], &["v1"]),
        instance("warning", &[("serfHealth", Passing), ("c", Warning)], &["v2"]),
    ];
    let of = |change: fn(&mut QueryService)| {
        let mut service = query("web").service;
        change(&mut service);
        nodes(&instances, &service)
    };
    assert_eq!(of(|_| {}), ["good", "warning"]);
    assert_eq!(of(|query| query.only_passing = true), ["good"]);
    assert_eq!(of(|query| query.ignore_check_ids = texts(&["c"])), ["bad", "good", "warning"]);
    let ignoring = |query: &mut QueryService| {
        query.only_passing = true;
        query.ignore_check_ids = texts(&["c", "serfHealth"]);
    };
    assert_eq!(of(ignoring), ["bad", "gone", "good", "warning"]);
    assert_eq!(of(|query| query.tags = texts(&["v1"])), ["good"]);
    assert_eq!(of(|query| query.tags = texts(&["!v1"])), ["warning"]);
    assert_eq!(of(|query| query.tags = texts(&["v1", "!blue"])), Vec::<String>::new());
    assert_eq!(of(|query| query.tags = texts(&[])), ["good", "warning"]);
    let rack = |query: &mut QueryService| {
        query.node_meta = Some([("rack".into(), "rack-of-good".into())].into());
    };
    assert_eq!(of(rack), ["good"]);
    let version = |value: &str| Some([("version".to_owned(), value.to_owned())].into());
    let mut service = QueryService { service_meta: version("7"), ..query("web").service };
    assert_eq!(nodes(&instances, &service), ["good", "warning"]);
    service.service_meta = version("8");
    assert!(nodes(&instances, &service).is_empty());
}

/// Contract: 125.
#[test]
fn execution_shuffles_and_limits() {
    let names: Vec<String> = (0..20).map(|number| format!("n{number}")).collect();
    let instances: Vec<Instance> = names.iter().map(|name| instance(name, &[], &[])).collect();
    let web = query("web").service;
    let order = |seed: u64| executed(&instances, &web, None, seed);
    assert_eq!(order(7), order(7));
    assert_ne!(order(7), order(8));
    let first: BTreeSet<String> = (0..400).map(|seed| order(seed).swap_remove(0)).collect();
    assert_eq!(first.len(), names.len(), "each may be first");
    assert_eq!(Execution::new(web, false).run(&instances, None, 7, 3).len(), 3);
}

#[test]
fn near_node_first_then_by_distance() {
    let instances: Vec<Instance> = (0..20).map(|number| instance(&format!("n{number}"), &[], &[])).collect();
    let web = query("web").service;
    let order = |origin: &Origin| executed(&instances, &web, Some(origin), 7);
    let known = [("N1", 0.0), ("n2", 0.1)];
    assert_eq!(order(&origin("n1", &known))[..2], ["n1", "n2"], "its own one first");
    let shuffled = executed(&instances, &web, None, 7);
    // Without a coordinate of the node, only its own instance moves, from near the front.
    assert_eq!(order(&origin("other", &known)), shuffled);
    let mut swapped = shuffled.clone();
    swapped.swap(0, 9);
    assert_eq!(order(&origin(&shuffled[9].to_uppercase(), &[known[0]])), swapped);
    assert_eq!(order(&origin(&shuffled[10], &[known[0]])), shuffled, "it is too far behind");
}

#[test]
fn service_mesh_query_returns_proxies() {
    let with = |node: &str, fields: Value| {
        let mut found = instance(node, &[], &[]);
        let service = Arc::make_mut(&mut found.service);
        service.node = node.into();
        let mesh = MeshFields::parse(&Object::new("NodeService", &fields).expect("it is an object"));
        mesh.expect("it is valid").store(&mut service.meta).expect("the key is free");
        found
    };
    let proxy = |node: &str, kind: &str, destination: &str| {
        with(node, json!({"Kind": kind, "Proxy": {"DestinationServiceName": destination}}))
    };
    let found = proxy("p1", "connect-proxy", "WEB");
    let instances = [
        instance("own", &[], &[]),
        found.clone(),
        proxy("p2", "connect-proxy", "db"),
        proxy("p3", "", "web"),
        with("native", json!({"Connect": {"Native": true}})),
        found,
    ];
    let mesh = QueryService { connect: true, ..query("web").service };
    assert_eq!(nodes(&instances, &mesh), ["native", "p1"], "each once");
    assert_eq!(nodes(&instances[..1], &query("web").service), ["own"]);
    let queries = |service: QueryService, connect| Execution::new(service, connect).queries();
    assert_eq!(queries(query("web").service, true), queries(mesh.clone(), false));
    assert_eq!(queries(mesh, false).len(), 3);
    assert_eq!(queries(query("web").service, false), [Query::ServiceInstances("web".into())]);
    let of_peer = QueryService { peer: "other".into(), ..query("web").service };
    assert_eq!(queries(of_peer, true), [], "no cluster has peers");
}

/// Contract: 126.
#[test]
fn template_filled_from_name() {
    let mut spec = template("geo-", "^geo-(.*?)-(.*)$", "${match(1)}");
    spec.template.remove_empty_tags = true;
    spec.service.tags = texts(&["${match(2)}", "${match(3)}", "!${name.suffix}", "p:${ name.prefix }"]);
    spec.service.near = "${match( 1 )}${agent.segment}".into();
    spec.service.ignore_check_ids = texts(&["${match(0)}"]);
    spec.service.datacenters = texts(&["$${name.full}$"]);
    spec.service.node_meta = Some([("a".into(), "b${match(1)}".into())].into());
    let of = |name: &str| filled(&spec, name).expect("it is valid").service;
    let service = of("geo-web-eu");
    assert_eq!(service.service, "web");
    assert_eq!(service.near, "web");
    assert_eq!(service.tags, texts(&["eu", "!web-eu", "p:geo-"]));
    assert_eq!(service.ignore_check_ids, texts(&["geo-web-eu"]));
    assert_eq!(service.datacenters, texts(&["${name.full}$"]));
    assert_eq!(service.node_meta.unwrap()["a"], "bweb");
    let service = of("GEO-web-eu");
    assert_eq!((service.service.as_str(), service.tags), ("", texts(&["!GEO-web-eu", "p:geo-"])));
    // Only a template's texts have a meaning.
    assert_eq!(filled(&query("${name.full}"), "q").unwrap().service.service, "${name.full}");
}

/// Contract: 126.
#[test]
fn invalid_template_errors_match_consul() {
    let error = |regexp: &str, service: &str| {
        filled(&template("t-", regexp, service), "t-x").expect_err(service).to_string()
    };
    for (text, expected) in [
        ("${bogus}", "1:3: unknown variable accessed: bogus"),
        ("x-${ bogus.y }", "1:6: unknown variable accessed: bogus.y"),
        ("é${bogus}", "1:4: unknown variable accessed: bogus"),
        ("${match(x)}", "1:9: unknown variable accessed: x"),
        ("${match()}", "1:3: match: expected 1 arguments, got 0"),
        ("${match(1, 2)}", "1:3: match: expected 1 arguments, got 2"),
        ("${nope(1)}", "1:3: unknown function called: nope"),
        ("${name.full.x}", "1:3: unknown variable accessed: name.full.x"),
    ] {
        assert_eq!(error("", text), format!("Bad evaluation for '{text}' in Service.Service: {expected}"));
    }
    for text in
        ["${", "${}", "${match(1)", "a${name.full", "${1 + 2}", "${match(name.full)}", "${match(1.5)}"]
    {
        let start = format!("Bad format '{text}' in Service.Service: parse error: syntax error");
        assert!(error("", text).starts_with(&start), "{text}");
    }
    for text in ["$", "$x", "$${", "${match(-1)}", "${match(99)}", "}"] {
        assert!(filled(&template("", "", text), "any").is_ok(), "{text}");
    }
    assert!(error("[", "x").starts_with("Bad Regexp: error parsing regexp: "));
    assert!(error(r"(\w{90}){90}", "x").starts_with("Bad Regexp: "), "it would be large");
    let mut spec = template("", "", "x");
    spec.template.kind = "x".into();
    assert_eq!(filled(&spec, "").expect_err("no such kind").to_string(), "Bad Template.Type 'x'");
    let mut spec = template("", "", "x");
    spec.service.tags = texts(&["a", "${b}"]);
    let error = filled(&spec, "").expect_err("no such variable").to_string();
    assert_eq!(error, "Bad evaluation for '${b}' in Service.Tags[1]: 1:3: unknown variable accessed: b");
}

#[test]
fn filled_texts_are_limited_together() {
    let mut spec = template("", "^(.*)$", &"${match(1)}".repeat(2_000));
    let error =
        |spec: &QuerySpec, length| filled(spec, &"n".repeat(length)).err().map(|error| error.to_string());
    assert_eq!(error(&spec, QUERY_BYTES_MAX / 2_000), None);
    let large = error(&spec, 1_000).expect("it would have 2 MB");
    assert!(
        large.starts_with("the filled texts have more than 32768 bytes up to Service.Service: "),
        "{large}"
    );
    assert!(large.contains("look up a shorter name"), "{large}");
    spec.service.service = "web".into();
    spec.service.tags = Some(vec!["${name.full}".into(); 40]);
    assert_eq!(error(&spec, 800), None);
    let large = error(&spec, 1_000).expect("the tags together are too large");
    assert!(large.contains("Service.Tags[32]"), "{large}");
}

/// Contract: 123.
#[test]
fn rejects_invalid_query_fields() {
    let said = |change: fn(&mut QuerySpec), nearest_n: i64| {
        let mut spec = query("web");
        change(&mut spec);
        check(&spec, nearest_n).map_err(|error| error.to_string())
    };
    let refused = |change: fn(&mut QuerySpec)| said(change, 0).expect_err("it breaks a rule");
    assert_eq!(said(|_| {}, 0), Ok(()));
    assert_eq!(refused(|spec| spec.name.clear()), "Must be bound to a session");
    assert_eq!(refused(|spec| spec.service.service.clear()), "Must provide a Service name to query");
    assert_eq!(said(|_| {}, -1).expect_err("negative"), "Bad NearestN '-1', must be >= 0");
    let ttl = refused(|spec| spec.dns_ttl = "abc".into());
    assert_eq!(ttl, "Bad DNS TTL 'abc': time: invalid duration \"abc\"");
    assert_eq!(refused(|spec| spec.dns_ttl = "-1s".into()), "DNS TTL '-1000000000', must be >=0");
    assert!(refused(|spec| spec.token = "<hidden>".into()).starts_with("Bad Token '<hidden>', it looks"));
    let blank = refused(|spec| spec.service.node_meta = Some([(String::new(), "x".into())].into()));
    assert_eq!(blank, "Couldn't load metadata pair ('', 'x'): Key cannot be blank");
    let wrong = refused(|spec| spec.service.node_meta = Some([("a b".into(), "x".into())].into()));
    assert_eq!(wrong, "Couldn't load metadata pair ('a b', 'x'): Key contains invalid characters");
    // A template without a name answers for all names, and metadata of services has no rules.
    assert_eq!(said(|spec| *spec = template("", "", "web"), 0), Ok(()));
    assert_eq!(said(|spec| spec.service.service_meta = Some([("".into(), "".into())].into()), 0), Ok(()));
}

#[test]
fn a_query_has_limits() {
    let mut spec = query("web");
    spec.name = "n".repeat(1_025);
    let error = check(&spec, 0).expect_err("it is long").to_string();
    assert_eq!(error, "the Name has 1025 bytes, the maximum is 1024: use a shorter one");
    let mut spec = query("web");
    spec.service.tags = Some(vec![String::new(); QUERY_BYTES_MAX / 16]);
    let error = check(&spec, 0).expect_err("it is large").to_string();
    assert_eq!(error, "the query has 32772 bytes, the maximum is 32768: use fewer or shorter texts");
    let tags = spec.service.tags.as_mut().unwrap();
    tags.pop();
    assert_eq!(check(&spec, 0), Ok(()));
}
