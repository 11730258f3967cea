//! What follows a service: aliases of its checks, and its sidecar.

use super::*;

/// Contract: 101, 102.
#[test]
fn alias_follows_service_and_node() {
    let mut stand = Stand::new();
    let alias = |id: &str, node: Option<&str>, service: &str| {
        let kind = CheckKind::Alias { node: node.map(Into::into), service: Some(service.into()) };
        NewCheck::of(id.into(), CheckStatus::Critical, kind)
    };
    stand.register_check(alias("local", None, "web")).expect("there is room");
    stand.register_check(alias("second", None, "db")).expect("there is room");
    stand.register_check(alias("remote", Some("node-two"), "db")).expect("there is room");
    let missing = "Service web could not be found on node node-one";
    assert_eq!(stand.known("local"), Some((CheckStatus::Critical, missing)));
    stand.register_service(web(), vec![]);
    assert_eq!(stand.status("local"), Some(CheckStatus::Critical), "another alias of the node is critical");
    assert!(stand.deregister("second"));
    assert!(stand.deregister("remote"));
    assert_eq!(stand.known("local"), Some((CheckStatus::Passing, "No checks found.")));
    stand.register_service(web(), vec![new("app", SECOND * 10)]);
    let shown = stand.registry.checks().into_iter().find(|check| check.id.as_str() == "local");
    assert_eq!(shown.expect("it is registered").output, "All checks passing.");
    stand.report("app", CheckStatus::Warning, "slow").expect("it is registered");
    assert_eq!(stand.known("local"), Some((CheckStatus::Warning, "Aliased check \"app\" failing: slow")));
    stand.pass(SECOND * 10);
    assert_eq!(stand.status("local"), Some(CheckStatus::Critical));

    stand.register_check(alias("remote", Some("node-two"), "db")).expect("there is room");
    assert_eq!(stand.registry.aliased_nodes(), ["node-two".into()].into());
    assert_eq!(stand.known("remote"), Some((CheckStatus::Critical, "")), "its node was not read yet");
    let found = |status| AliasedNode {
        exists: true,
        services: ["db".into()].into(),
        checks: vec![Arc::new(Check::of("node-two".into(), SERF_HEALTH.into(), status))],
    };
    stand.input(Input::Aliased("node-two".into(), Ok(found(CheckStatus::Passing))));
    assert_eq!(stand.status("remote"), Some(CheckStatus::Passing));
    stand.input(Input::Aliased("node-two".into(), Err(Unavailable::Unknown("no leader".into()))));
    assert_eq!(stand.status("remote"), Some(CheckStatus::Passing), "nothing is known to have changed");
    stand.input(Input::Aliased("node-two".into(), Ok(found(CheckStatus::Critical))));
    assert_eq!(stand.status("remote"), Some(CheckStatus::Critical));
    stand.input(Input::Aliased("node-two".into(), Ok(AliasedNode::default())));
    let shown = stand.registry.checks().into_iter().find(|check| check.id.as_str() == "remote");
    assert_eq!(shown.expect("it is registered").output, "Node node-two could not be found");
}

#[test]
fn mutual_aliases_ignore_each_other() {
    let mut stand = Stand::new();
    let alias = |id: &str| {
        let kind = CheckKind::Alias { node: None, service: Some("web".into()) };
        NewCheck::of(id.into(), CheckStatus::Critical, kind)
    };
    stand.register_service(web(), vec![]);
    for id in ["one", "other"] {
        stand.register_check(alias(id)).expect("there is room");
    }
    assert_eq!(
        (stand.status("one"), stand.status("other")),
        (Some(CheckStatus::Passing), Some(CheckStatus::Passing))
    );
    stand.register("app", SECOND * 10).expect("there is room");
    stand.pass(SECOND * 60);
    let expected = "Aliased check \"app\" failing: TTL expired";
    assert_eq!(stand.known("one"), Some((CheckStatus::Critical, expected)));
    stand.report("app", CheckStatus::Passing, "").expect("it is registered");
    assert_eq!(
        (stand.status("one"), stand.status("other")),
        (Some(CheckStatus::Passing), Some(CheckStatus::Passing))
    );
}

#[test]
fn alias_of_alias_propagates_changes() {
    let mut stand = Stand::new();
    for (id, followed) in [("a", "b"), ("b", "c"), ("c", "")] {
        let kind = CheckKind::Alias { node: None, service: Some(followed.into()) };
        let alias = NewCheck::of(format!("of-{id}").as_str().into(), CheckStatus::Passing, kind);
        let checks = if id == "c" { vec![new("app", SECOND * 10)] } else { vec![alias] };
        stand.register_service(Service { id: id.into(), ..web() }, checks);
    }
    let statuses = |stand: &Stand| ["of-a", "of-b"].map(|id| stand.status(id).expect("it is written"));
    for status in [CheckStatus::Warning, CheckStatus::Passing, CheckStatus::Critical] {
        stand.report("app", status, "").expect("it is registered");
        assert_eq!(statuses(&stand), [status; 2]);
    }
    assert!(stand.deregister("app"));
    assert_eq!(statuses(&stand), [CheckStatus::Passing; 2]);
    let moved = NewCheck { service: Some("c".into()), ..new("of-b", SECOND * 10) };
    stand.register_check(moved).expect("there is room");
    let shown = stand.registry.checks().into_iter().find(|check| check.id.as_str() == "of-a");
    assert_eq!(shown.expect("it is registered").output, "No checks found.", "the check left the service");
}

#[test]
fn sidecar_follows_its_service() {
    let mut stand = Stand::with(Limits { max_services: 4, ..Limits::default() }, BTreeMap::new());
    let registration = |name: &str, checks: Vec<NewCheck>| {
        let service = Service { id: name.into(), name: name.into(), ..web() };
        let id = sidecar_of(name);
        let proxy = Service { address: "::1".into(), ..Service::of("".into(), id.as_str().into(), &id) };
        let sidecar = Sidecar { service: proxy, checks, host: "::1".into() };
        ServiceRegistration { service, checks: vec![], replaces_checks: false, sidecar: Some(sidecar) }
    };
    let register = |stand: &mut Stand, registration: ServiceRegistration| {
        stand
            .change(|registry, now, outbox| registry.register_service(now, registration, Source::Api, outbox))
    };
    for (name, port) in [("web", 21_000), ("db", 21_001), ("web", 21_000)] {
        register(&mut stand, registration(name, vec![])).expect("there is room");
        let proxy = &stand.services[&ServiceId::from(sidecar_of(name))];
        assert_eq!((proxy.port, proxy.tagged_addresses["lan_ipv6"].port), (port, port), "{name}");
    }
    let full = register(&mut stand, registration("third", vec![]));
    assert_eq!((full, stand.services.len()), (Err(RegistryError::TooManyServices(4)), 4));
    let listening = stand.registry.tables.checks().get("service:web-sidecar-proxy:1").expect("it is there");
    let CheckKind::Probe(Probe { target: Target::Tcp { address, .. }, interval, .. }) =
        &listening.definition.kind
    else {
        panic!("it connects")
    };
    assert_eq!((address.as_str(), *interval), ("[::1]:21000", SECOND * 10));
    let alias = &stand.catalog[&CheckId::from("service:web-sidecar-proxy:2")];
    assert_eq!((alias.name.as_str(), alias.status), ("Connect Sidecar Aliasing web", CheckStatus::Passing));

    stand.restart();
    assert!(stand.change(|registry, _, outbox| registry.deregister_service(&"WEB".into(), outbox)));
    let left = |stand: &Stand| stand.services.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(left(&stand), ["db", "db-sidecar-proxy"]);
    // A service that has such an id by chance stays.
    stand.register_service(web(), vec![]);
    stand.register_service(Service { id: "web-sidecar-proxy".into(), port: 9, ..web() }, vec![]);
    assert!(stand.change(|registry, _, outbox| registry.deregister_service(&"web".into(), outbox)));
    assert_eq!(left(&stand), ["db", "db-sidecar-proxy", "web-sidecar-proxy"]);

    // A reload keeps what the file still has.
    let configure = |stand: &mut Stand, services: Vec<ServiceRegistration>| {
        let configured = Configured { services, checks: vec![] };
        stand
            .change(|registry, now, outbox| registry.configure(now, configured, outbox))
            .expect("there is room");
    };
    configure(&mut stand, vec![registration("db", vec![])]);
    stand.ended.clear();
    configure(&mut stand, vec![registration("db", vec![new("own", SECOND * 100)])]);
    assert_eq!(left(&stand).len(), 3);
    assert_eq!(stand.ended.len(), 2, "its own check replaces the usual ones");
    configure(&mut stand, vec![]);
    assert_eq!(left(&stand), ["web-sidecar-proxy"]);
}

#[test]
fn sidecar_needs_free_port() {
    let mut stand = Stand::new();
    for port in SIDECAR_PORTS {
        stand.register_service(Service { id: format!("s{port}").into(), port, ..web() }, vec![]);
    }
    let mut register = |port: u16| {
        let service = Service { port, ..Service::of("".into(), "web-sidecar-proxy".into(), "proxy") };
        let sidecar = Some(Sidecar { service, checks: vec![], host: "127.0.0.1".into() });
        let registration =
            ServiceRegistration { service: web(), checks: vec![], replaces_checks: false, sidecar };
        stand
            .change(|registry, now, outbox| registry.register_service(now, registration, Source::Api, outbox))
    };
    assert_eq!(register(0), Err(RegistryError::NoSidecarPort));
    register(21_000).expect("a port of its own is not checked");
    assert_eq!(stand.services.len(), SIDECAR_PORTS.len() + 2);
}
