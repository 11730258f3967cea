//! Lockmesh's keys for Consul's. What the converter does not take is listed.
//!
//! A value is set only if the configuration is still valid with it: otherwise it is listed with the
//! reason.

use super::read::{Leaf, Merged};
use super::{Conversion, ConversionError, Finding, Place};
use lockmesh_agent::config::{AgentConfig, FileMode, Scripts, definitions};
use lockmesh_agent::consul::{self, Remedy};
use lockmesh_net::config::{LogConfig, LogFormat, NodeConfig, Section};
use lockmesh_protocol::duration;
use lockmesh_protocol::host_port::{HostPort, join};
use lockmesh_server::config::ServerConfig;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Consul's ports of the servers, of gossip, and for clients.
const SERVER_PORT: u16 = 8300;
const GOSSIP_PORT: u16 = 8301;
const CLIENT_PORT: u16 = 8500;

/// What takes the place of Consul's certificates.
const CERTIFICATE: &str = "not converted: a certificate of Lockmesh names a role, which Consul's do not; create \
                           one with `lockmesh operator tls issue`, and name its files in `[tls]`";

/// The fields of a check that an agent cannot run; `args` while scripts are disabled.
const NO_CHECK: [(&str, &str); 4] = [
    ("docker_container_id", ": write one with `args` that calls `docker exec`"),
    ("os_service", ": write one with `args` that calls `systemctl is-active`"),
    (
        "script",
        ", because Consul removed `script` in 1.1: write one with `args = [\"sh\", \"-c\", \"COMMAND\"]`",
    ),
    ("args", ", because scripts are disabled: set `enable_local_script_checks = true`, and convert again"),
];

/// Converts merged files.
///
/// # Errors
/// A definition of a service or check is invalid. All of them are listed.
pub(super) fn convert(merged: Merged) -> Result<Conversion, ConversionError> {
    let mode = merged.leaves.get("server").filter(|leaf| leaf.value == true).map(|leaf| leaf.place.clone());
    let mut converter = Converter {
        agent: AgentConfig::default(),
        server: mode.is_some().then(ServerConfig::default),
        findings: merged.unknown.clone(),
        merged,
    };
    // Taken above, so that `rest` does not list it.
    converter.merged.leaves.remove("server");
    converter.identity();
    converter.files();
    converter.logs();
    converter.cluster(mode);
    converter.clients();
    converter.limits();
    // After the limits, which decide whether an agent runs scripts.
    converter.definitions()?;
    converter.certificates();
    // Last, because it lists all keys that no other step has taken.
    converter.rest();
    let Converter { agent, server, mut findings, .. } = converter;
    findings.sort();
    Ok(Conversion { agent, server, findings })
}

/// The first IP address and the first socket in Consul's list, and its other words.
fn client_addresses(text: &str) -> (Option<IpAddr>, Option<PathBuf>, Vec<&str>) {
    let (mut tcp, mut socket, mut others) = (None, None, Vec::new());
    // A template of addresses contains spaces.
    let words = if text.contains("{{") { vec![text] } else { text.split_whitespace().collect() };
    for word in words {
        let bare = word.trim_start_matches('[').trim_end_matches(']');
        match (word.strip_prefix("unix://"), bare.parse::<IpAddr>()) {
            (Some(path), _) if socket.is_none() => socket = Some(PathBuf::from(path)),
            (None, Ok(address)) if tcp.is_none() => tcp = Some(address),
            _ => others.push(word),
        }
    }
    (tcp, socket, others)
}

struct Converter {
    merged: Merged,
    agent: AgentConfig,
    server: Option<ServerConfig>,
    findings: Vec<Finding>,
}

impl Converter {
    fn note(&mut self, key: &str, place: &Place, advice: impl AsRef<str>) {
        let advice = format!("`{key}`: {}", advice.as_ref());
        self.findings.push(Finding { place: place.clone(), key: key.into(), advice });
    }

    fn take(&mut self, key: &str) -> Option<Leaf> {
        self.merged.leaves.remove(key)
    }

    fn text(&mut self, key: &str) -> Option<(String, Place)> {
        let Leaf { value, place } = self.take(key)?;
        value.as_str().filter(|text| !text.is_empty()).map(|text| (text.into(), place))
    }

    fn flag(&mut self, key: &str) -> Option<bool> {
        self.take(key)?.value.as_bool()
    }

    fn number(&mut self, key: &str) -> Option<(i64, Place)> {
        let Leaf { value, place } = self.take(key)?;
        value.as_i64().map(|number| (number, place))
    }

    /// Changes the agent's configuration, unless that makes it invalid.
    fn agent(&mut self, key: &str, place: &Place, change: impl FnOnce(&mut AgentConfig)) {
        let mut next = self.agent.clone();
        change(&mut next);
        match next.check() {
            Ok(()) => self.agent = next,
            Err(error) => self.note(key, place, format!("not converted: {error}")),
        }
    }

    /// The same of the server's, if there is one.
    fn server(&mut self, key: &str, place: &Place, change: impl FnOnce(&mut ServerConfig)) {
        let Some(mut next) = self.server.clone() else { return };
        change(&mut next);
        match next.check() {
            Ok(()) => self.server = Some(next),
            Err(error) => self.note(key, place, format!("not converted: {error}")),
        }
    }

    fn node(&mut self, key: &str, change: impl Fn(&mut NodeConfig, String)) {
        if let Some((text, place)) = self.text(key) {
            self.agent(key, &place, |agent| change(&mut agent.node, text.clone()));
            self.server(key, &place, |server| change(&mut server.node, text));
        }
    }

    fn log(&mut self, key: &str, place: &Place, change: impl Fn(&mut LogConfig)) {
        self.agent(key, place, |agent| change(&mut agent.log));
        self.server(key, place, |server| change(&mut server.log));
    }

    fn identity(&mut self) {
        self.node("node_name", |node, name| node.name = name);
        self.node("node_id", |node, id| node.id = id);
        // Consul ignores the case of the name, and Lockmesh accepts lower case only.
        self.node("datacenter", |node, name| node.datacenter = name.to_lowercase());
        if let Some(Leaf { value: Value::Object(pairs), place }) = self.take("node_meta") {
            for (name, value) in pairs {
                let value = value.as_str().unwrap_or_default().to_owned();
                // One by one, so that an invalid pair does not keep the others out.
                self.agent("node_meta", &place, |agent| drop(agent.node_meta.insert(name, value)));
            }
        }
        if let Some(Leaf { value, place }) = self.take("leave_on_terminate") {
            self.agent("leave_on_terminate", &place, |agent| agent.leave_on_terminate = value == true);
        }
    }

    fn files(&mut self) {
        if let Some((folder, place)) = self.text("data_dir") {
            // Consul's own folder stays in use until the move is over.
            let folder = PathBuf::from(format!("{}-lockmesh", folder.trim_end_matches('/')));
            let advice = format!(
                "converted to {}, a folder beside Consul's: let the units of systemd write to it, or remove \
                 `data_dir` for the default",
                folder.display()
            );
            self.agent("data_dir", &place, |agent| agent.data_dir = folder.join("agent"));
            self.server("data_dir", &place, |server| server.data_dir = folder.join("server"));
            self.note("data_dir", &place, advice);
        }
        if let Some((file, place)) = self.text("pid_file") {
            if self.server.is_some() {
                self.note("pid_file", &place, "converted for the agent: a server needs a file of its own");
            }
            self.agent("pid_file", &place, |agent| agent.pid_file = file.into());
        }
    }

    fn logs(&mut self) {
        if let Some((level, place)) = self.text("log_level") {
            let level = level.to_lowercase();
            // Consul accepts both names.
            let level = if level == "err" { "error".into() } else { level };
            match ["trace", "debug", "info", "warn", "error", "off"].contains(&level.as_str()) {
                true => self.log("log_level", &place, |log| log.level.clone_from(&level)),
                false => self.note("log_level", &place, format!("not converted: {level:?} is not a level")),
            }
        }
        if let Some(Leaf { value: Value::Bool(true), place }) = self.take("log_json") {
            self.log("log_json", &place, |log| log.format = LogFormat::Json);
        }
    }

    /// An IP address; a template or a name is listed.
    fn address(&mut self, key: &str) -> Option<(IpAddr, Place)> {
        let (text, place) = self.text(key)?;
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&text);
        if let Ok(address) = bare.parse() {
            return Some((address, place));
        }
        let remedy = consul::key(key).map(|(_, row)| row.remedy.to_string()).unwrap_or_default();
        self.note(key, &place, format!("not converted: {text:?} is not an IP address; write one: {remedy}"));
        None
    }

    fn port(&mut self, key: &str, default: u16) -> u16 {
        let Some((number, place)) = self.number(key) else { return default };
        match u16::try_from(number) {
            Ok(port) if port > 0 => port,
            _ => {
                self.note(key, &place, format!("not converted: {number} is not a port; {default} is used"));
                default
            }
        }
    }

    /// Addresses. `mode` is the place of `server = true`.
    fn cluster(&mut self, mode: Option<Place>) {
        let bind = self.address("bind_addr");
        let advertised = self.address("advertise_addr");
        let server_port = self.port("ports.server", SERVER_PORT);
        if let Some((address, place)) = &bind {
            self.agent("bind_addr", place, |agent| agent.listen.set_ip(*address));
        }
        if let Some((address, place)) = &advertised {
            let text = address.to_string();
            self.agent("advertise_addr", place, |agent| agent.advertise = text.parse().ok());
        }
        let (mut servers, join_place) = self.joined(server_port);
        if let Some(mode) = &mode {
            let own = self.reached(mode, &bind, &advertised, server_port);
            // Before the own address is added: a server does not join through itself.
            let others = servers.clone();
            self.server("retry_join", join_place.as_ref().unwrap_or(mode), |server| {
                server.quorum.join = others;
            });
            servers.insert(0, join(&own.to_string(), server_port));
            servers.dedup();
        }
        if let Some(place) = join_place.or(mode).filter(|_| !servers.is_empty()) {
            self.agent("retry_join", &place, |agent| agent.upstream.servers = servers);
        }
        self.founders();
        self.gossip(bind.map(|(address, _)| address));
    }

    /// Sets the addresses of the server. Returns the one at which others reach it.
    fn reached(
        &mut self,
        mode: &Place,
        bind: &Option<(IpAddr, Place)>,
        advertised: &Option<(IpAddr, Place)>,
        port: u16,
    ) -> IpAddr {
        let listen = bind.as_ref().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |(address, _)| *address);
        let announced = advertised.as_ref().map(|(address, _)| *address);
        let reached = announced.or_else(|| (!listen.is_unspecified()).then_some(listen));
        let place = [bind, advertised].into_iter().flatten().map(|(_, place)| place).next();
        let place = place.unwrap_or(mode).clone();
        match reached {
            Some(reached) => self.server("bind_addr", &place, |server| {
                server.rpc.listen = SocketAddr::new(listen, port);
                if announced.is_some() {
                    server.rpc.advertise = SocketAddr::new(reached, port).to_string();
                }
            }),
            None => self.note(
                "bind_addr",
                &place,
                "Consul uses a private address of the host; set `rpc.listen` or `rpc.advertise` of the server, and \
                 `upstream.servers` of the agent, to an address that the others reach",
            ),
        }
        // At least the agent on the same host reaches the server there.
        reached.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// The servers in `retry_join` and `start_join`, and the place of the last one. Consul's
    /// addresses have the port of gossip.
    fn joined(&mut self, server_port: u16) -> (Vec<String>, Option<Place>) {
        let (mut servers, mut last) = (Vec::new(), None);
        for key in ["retry_join", "start_join"] {
            let Some(Leaf { value: Value::Array(list), place }) = self.take(key) else { continue };
            for text in list.iter().filter_map(Value::as_str) {
                let is_provider = text.contains("provider=");
                match HostPort::with_default_port(text, GOSSIP_PORT) {
                    Ok(address) if !is_provider => {
                        if address.port() != GOSSIP_PORT {
                            let advice = format!(
                                "{text:?} has the port of gossip: converted to port {server_port}, that of the server"
                            );
                            self.note(key, &place, advice);
                        }
                        servers.push(join(address.host(), server_port));
                    }
                    _ if is_provider => {
                        // The other words may be secrets.
                        let mut words = text.split_whitespace();
                        let provider =
                            words.find(|word| word.starts_with("provider=")).unwrap_or("provider=");
                        let advice = format!(
                            "not converted: {provider:?} looks servers up at a cloud provider; name them, or a DNS name \
                             that resolves to all of them, in `upstream.servers` of an agent and `quorum.join` of a server"
                        );
                        self.note(key, &place, advice);
                    }
                    _ => self.note(
                        key,
                        &place,
                        format!("not converted: {text:?} is not an address; write one"),
                    ),
                }
            }
            last = Some(place);
        }
        (servers, last)
    }

    fn founders(&mut self) {
        let expect = self.number("bootstrap_expect");
        let single = self.take("bootstrap").filter(|leaf| leaf.value == true).map(|leaf| (1, leaf.place));
        if let Some((number, place)) = single.or(expect) {
            if self.server.is_none() {
                self.note("bootstrap_expect", &place, "not converted: only a server has it, see `server`");
            }
            self.server("bootstrap_expect", &place, |server| {
                // A number out of range becomes one that the check of the configuration lists.
                server.quorum.bootstrap_expect = u32::try_from(number).unwrap_or(u32::MAX);
            });
        }
        if let Some((time, place)) = self.duration("reconnect_timeout") {
            if self.server.is_none() {
                self.note(
                    "reconnect_timeout",
                    &place,
                    "not converted: set `members.reap_failed_after` of the servers",
                );
            }
            self.server("reconnect_timeout", &place, |server| server.members.reap_failed_after = time);
        }
    }

    /// Lockmesh's agent has a port for servers, 8301, and one above it for gossip.
    fn gossip(&mut self, bind: Option<IpAddr>) {
        let own = self.address("serf_lan");
        // Consul's default is no reason to replace Lockmesh's.
        let port = self.number("ports.serf_lan").filter(|(port, _)| *port != i64::from(GOSSIP_PORT));
        let address = own.as_ref().map(|(address, _)| *address).or(bind);
        let address = address.unwrap_or_else(|| self.agent.listen.ip());
        let place = own.map(|(_, place)| place).or_else(|| port.as_ref().map(|(_, place)| place.clone()));
        let Some(place) = place else { return };
        let port = port.map_or(GOSSIP_PORT + 1, |(port, _)| u16::try_from(port).unwrap_or_default());
        self.agent("serf_lan", &place, |agent| agent.gossip.listen = Some(SocketAddr::new(address, port)));
    }

    fn clients(&mut self) {
        let port = self.number("ports.http");
        let own = self.text("addresses.http").map(|(text, place)| ("addresses.http", text, place));
        let common = self.text("client_addr").map(|(text, place)| ("client_addr", text, place));
        let (key, text, place) = match (own.or(common), &port) {
            (Some(found), _) => found,
            (None, Some((_, place))) => ("ports.http", "127.0.0.1".into(), place.clone()),
            (None, None) => return self.socket(),
        };
        let number = port.map_or(i64::from(CLIENT_PORT), |(number, _)| number);
        let port = u16::try_from(number).ok().filter(|port| *port > 0);
        let (tcp, socket, others) = client_addresses(&text);
        for word in others {
            let advice = format!(
                "{word:?} is not converted: an agent has one IP address, `http.tcp`, and one socket, `http.socket`"
            );
            self.note(key, &place, advice);
        }
        let has_only_socket = socket.is_some() && tcp.is_none();
        if let Some(path) = socket {
            self.agent(key, &place, |agent| agent.http.socket = path);
        }
        let address = tcp.zip(port).map(|(address, port)| SocketAddr::new(address, port));
        let is_off = has_only_socket || port.is_none();
        if is_off || address.is_some() {
            let is_open = address.is_some_and(|address| !address.ip().to_canonical().is_loopback());
            self.agent(key, &place, |agent| {
                agent.http.tcp = address.filter(|_| !is_off);
                agent.http.allow_non_loopback = is_open;
            });
            if is_open {
                self.note(
                    key,
                    &place,
                    "converted with `http.allow_non_loopback = true`: other hosts reach the agent without access control",
                );
            }
        }
        self.socket();
    }

    /// Permissions of the socket.
    fn socket(&mut self) {
        if let Some((mode, place)) = self.text("unix_sockets.mode") {
            match u32::from_str_radix(&mode, 8).ok().filter(|mode| *mode <= 0o777) {
                Some(mode) => {
                    self.agent("unix_sockets.mode", &place, |agent| agent.http.socket_mode = FileMode(mode));
                }
                None => {
                    self.note("unix_sockets.mode", &place, format!("not converted: {mode:?} is not a mode"));
                }
            }
        }
        if let Some((group, place)) = self.text("unix_sockets.group") {
            self.agent("unix_sockets.group", &place, |agent| agent.http.socket_group = group);
        }
    }

    fn duration(&mut self, key: &str) -> Option<(Duration, Place)> {
        let (text, place) = self.text(key)?;
        match duration::parse(&text) {
            Ok(time) => Some((time, place)),
            Err(error) => {
                self.note(key, &place, format!("not converted: {error}"));
                None
            }
        }
    }

    fn time(&mut self, key: &str, set: impl FnOnce(&mut AgentConfig, Duration)) {
        if let Some((time, place)) = self.duration(key) {
            self.agent(key, &place, |agent| set(agent, time));
        }
    }

    fn size(&mut self, key: &str, set: impl FnOnce(&mut AgentConfig, usize)) {
        if let Some((number, place)) = self.number(key) {
            // 0 is Consul's default.
            if number != 0 {
                // A negative number becomes one that the check of the configuration lists.
                self.agent(key, &place, |agent| set(agent, usize::try_from(number).unwrap_or(usize::MAX)));
            }
        }
    }

    fn limits(&mut self) {
        self.time("session_ttl_min", |agent, time| agent.http.session_ttl_min = time);
        self.time("max_query_time", |agent, time| {
            agent.http.max_query_time = time;
            // A default above the maximum would make the whole configuration invalid.
            agent.http.default_query_time = agent.http.default_query_time.min(time);
        });
        self.time("default_query_time", |agent, time| agent.http.default_query_time = time);
        self.time("check_update_interval", |agent, time| agent.registry.update_interval = time);
        self.time("performance.rpc_hold_timeout", |agent, time| agent.upstream.hold_timeout = time);
        self.size("check_output_max_size", |agent, bytes| agent.registry.max_output_bytes = bytes);
        self.size("limits.kv_max_value_size", |agent, bytes| agent.http.max_value_bytes = bytes);
        self.size("limits.txn_max_req_len", |agent, bytes| agent.http.max_transaction_bytes = bytes);
        self.size("limits.http_max_conns_per_client", |agent, count| {
            agent.http.max_connections_per_address = count;
        });
        let everywhere = self.take("enable_script_checks").filter(|leaf| leaf.value == true);
        let is_local = self.flag("enable_local_script_checks") == Some(true);
        if let Some(leaf) = everywhere {
            self.agent.registry.scripts = Scripts::UnixSocket;
            let advice =
                "converted to `registry.scripts = \"unix_socket\"`: clients on TCP cannot register scripts";
            self.note("enable_script_checks", &leaf.place, advice);
        } else if is_local {
            self.agent.registry.scripts = Scripts::Config;
        }
    }

    fn definitions(&mut self) -> Result<(), ConversionError> {
        let mut errors = Vec::new();
        for (number, mut leaf) in std::mem::take(&mut self.merged.services).into_iter().enumerate() {
            self.reduce_service(&mut leaf.value, &leaf.place, "service");
            match definitions::configured_service(number, &leaf.value) {
                Ok(_) => self.agent.services.push(leaf.value),
                Err(error) => errors.push(format!("{}: {error}", leaf.place)),
            }
        }
        for (number, mut leaf) in std::mem::take(&mut self.merged.checks).into_iter().enumerate() {
            if !self.reduce_check(&mut leaf.value, &leaf.place, "check") {
                continue;
            }
            match definitions::configured_check(number, &leaf.value) {
                Ok(_) => self.agent.checks.push(leaf.value),
                Err(error) => errors.push(format!("{}: {error}", leaf.place)),
            }
        }
        match (errors.is_empty(), self.agent.check()) {
            (true, Ok(())) => Ok(()),
            (true, Err(error)) => Err(ConversionError::Invalid(error)),
            (false, _) => Err(ConversionError::Wrong(errors)),
        }
    }

    /// Removes from a service what Lockmesh does not have.
    fn reduce_service(&mut self, value: &mut Value, place: &Place, path: &str) {
        let Some(service) = value.as_object_mut() else { return };
        self.reduce(service, place, path);
        let check_path = format!("{path}.check");
        if let Some(check) = service.get_mut("check")
            && !self.reduce_check(check, place, &check_path)
        {
            service.remove("check");
        }
        if let Some(Value::Array(checks)) = service.get_mut("checks") {
            checks.retain_mut(|check| self.reduce_check(check, place, &check_path));
        }
        if let Some(sidecar) =
            service.get_mut("connect").and_then(|connect| connect.get_mut("sidecar_service"))
        {
            self.reduce_service(sidecar, place, &format!("{path}.connect.sidecar_service"));
        }
    }

    fn reduce(&mut self, definition: &mut serde_json::Map<String, Value>, place: &Place, path: &str) {
        for (key, advice) in [
            ("token", "not converted: there are no ACLs, and every client may change the service"),
            ("namespace", "not converted: use one cluster per tenant"),
            ("partition", "not converted: use one cluster per tenant"),
        ] {
            if definition.remove(key).is_some() {
                self.note(&format!("{path}.{key}"), place, advice);
            }
        }
    }

    /// The same of a check; `false` if an agent cannot run it.
    fn reduce_check(&mut self, value: &mut Value, place: &Place, path: &str) -> bool {
        let Some(check) = value.as_object_mut() else { return true };
        self.reduce(check, place, path);
        let may_run = self.agent.registry.scripts != Scripts::Disabled;
        let has = |key: &str| {
            let value = check.get(key).filter(|_| key != "args" || !may_run);
            value.is_some_and(|value| value != "" && value != &Value::Array(Vec::new()))
        };
        let Some((key, advice)) = NO_CHECK.iter().find(|(key, _)| has(key)) else { return true };
        self.note(&format!("{path}.{key}"), place, format!("the check is not converted{advice}"));
        false
    }

    fn certificates(&mut self) {
        for section in ["", "tls.defaults.", "tls.internal_rpc."] {
            for file in ["ca_file", "ca_path", "cert_file", "key_file"] {
                let key = format!("{section}{file}");
                if let Some(leaf) = self.take(&key) {
                    self.note(&key, &leaf.place, CERTIFICATE);
                }
            }
        }
    }

    /// Lists everything that was not taken.
    fn rest(&mut self) {
        for (key, leaf) in std::mem::take(&mut self.merged.leaves) {
            let row = consul::key(&key).map(|(_, row)| row);
            // A key that disables in Consul what Lockmesh does not have needs no remedy.
            let is_off = [Value::from(false), Value::from(-1), Value::from("")].contains(&leaf.value);
            let advice = match row {
                Some(row) if is_off && matches!(row.remedy, Remedy::Absent(_)) => {
                    format!("`{key}` of Consul ({}): off there, and not in Lockmesh; remove it", row.feature)
                }
                Some(_) if key == "acl.enabled" => {
                    "`acl.enabled`: there are no ACLs, and every client that reaches the agent may read and write \
                     everything: restrict its socket with `http.socket_group`"
                        .into()
                }
                Some(row) => row.explain(&key),
                None => format!("`{key}`: not in Lockmesh; remove it"),
            };
            self.findings.push(Finding { place: leaf.place, key, advice });
        }
    }
}
