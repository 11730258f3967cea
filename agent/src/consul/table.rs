//! The tables, in the order in which the runbook shows them.

use super::Remedy::{self, Absent, Here};
use super::Row;

const fn row(names: &'static [&'static str], feature: &'static str, remedy: Remedy) -> Row {
    Row { names, feature, remedy, disabled: None }
}

const KEEP_CONSUL: Remedy = Absent("keep Consul for it");
const NO_MESH: Remedy = Absent("keep Consul or another service mesh for it");
const NO_ENTERPRISE: Remedy = Absent("use one cluster per tenant");
const NO_ACLS: Remedy = Absent("restrict the agent's socket with `http.socket_group`");
const NO_DNS: Remedy = Absent("resolve names elsewhere");
const ONE_DATACENTER: Remedy = Absent("use one cluster per datacenter");

/// Routes that no endpoint serves.
pub static ROUTES: &[Row] = &[
    Row {
        // Its removed routes, such as `/v1/acl/list`, are unknown in Consul too.
        names: &[
            "/v1/acl/bootstrap",
            "/v1/acl/replication",
            "/v1/acl/login",
            "/v1/acl/logout",
            "/v1/acl/authorize",
            "/v1/acl/tokens",
            "/v1/acl/token",
            "/v1/acl/token/",
            "/v1/acl/policies",
            "/v1/acl/policy",
            "/v1/acl/policy/",
            "/v1/acl/roles",
            "/v1/acl/role",
            "/v1/acl/role/",
            "/v1/acl/auth-methods",
            "/v1/acl/auth-method",
            "/v1/acl/auth-method/",
            "/v1/acl/binding-rules",
            "/v1/acl/binding-rule",
            "/v1/acl/binding-rule/",
            "/v1/acl/templated-policies",
            "/v1/acl/templated-policy/",
            "/v1/agent/token/",
        ],
        feature: "ACLs",
        remedy: NO_ACLS,
        disabled: Some((401, "ACL support disabled")),
    },
    row(&["/v1/query", "/v1/query/"], "prepared queries", KEEP_CONSUL),
    // Before the other routes of the service mesh, because clients know Consul's answer.
    Row {
        names: &["/v1/agent/connect/ca/roots", "/v1/connect/ca/roots"],
        feature: "certificates of the service mesh",
        remedy: NO_MESH,
        disabled: Some((500, "Connect must be enabled in order to use this endpoint")),
    },
    row(
        &[
            "/v1/connect/",
            "/v1/agent/connect/",
            "/v1/discovery-chain/",
            "/v1/exported-services",
            "/v1/imported-services",
        ],
        "service mesh",
        NO_MESH,
    ),
    row(&["/v1/config", "/v1/config/"], "configuration entries", NO_MESH),
    row(&["/v1/peering", "/v1/peering/", "/v1/peerings"], "cluster peering", ONE_DATACENTER),
    row(
        &["/v1/coordinate/"],
        "network coordinates",
        Absent("measure round trips with `ping`, and sort by them in the application"),
    ),
    row(
        &["/v1/agent/monitor", "/v1/agent/metrics/stream"],
        "streamed logs and metrics",
        Here("the agent's log on stderr, and `GET /metrics`"),
    ),
    row(
        &["/v1/operator/keyring"],
        "gossip keyring",
        Here("`GET /v1/operator/gossip` and `PUT /v1/operator/gossip/rotate`"),
    ),
    row(&["/v1/operator/autopilot/state"], "autopilot state", Here("`GET /v1/operator/autopilot/health`")),
    row(&["/v1/operator/usage", "/v1/operator/utilization"], "usage counts", Here("`GET /metrics`")),
    row(
        &[
            "/v1/namespace",
            "/v1/namespace/",
            "/v1/namespaces",
            "/v1/partition",
            "/v1/partition/",
            "/v1/partitions",
            "/v1/operator/license",
            "/v1/operator/area",
            "/v1/operator/area/",
            "/v1/operator/segment",
        ],
        "Consul Enterprise",
        NO_ENTERPRISE,
    ),
    row(
        &["/ui", "/ui/"],
        "web page",
        Absent("use `lockmesh locks`, `lockmesh members` and `lockmesh session list`"),
    ),
];

/// Commands, and subcommands of commands that Lockmesh has.
pub static COMMANDS: &[Row] = &[
    row(&["acl", "login", "logout"], "ACLs", NO_ACLS),
    row(
        &[
            "connect",
            "intention",
            "troubleshoot",
            "config read",
            "config write",
            "config list",
            "config delete",
        ],
        "service mesh",
        NO_MESH,
    ),
    row(
        &["peering", "services export", "services exported-services", "services imported-services"],
        "cluster peering",
        ONE_DATACENTER,
    ),
    row(&["namespace", "partition", "license"], "Consul Enterprise", NO_ENTERPRISE),
    row(&["monitor"], "log of an agent", Here("its stderr; with systemd, `journalctl -fu lockmesh-agent`")),
    row(&["info"], "state of an agent", Here("`GET /metrics` and `GET /v1/agent/self`")),
    row(
        &["debug"],
        "archive of logs and profiles",
        Absent("collect `/metrics` and the log of each agent and server"),
    ),
    row(
        &["keyring"],
        "gossip keyring",
        Here("`lockmesh operator gossip key` and `lockmesh operator gossip rotate`"),
    ),
    row(&["keygen"], "gossip key", Absent("configure none: the servers make and hand out the gossip key")),
    row(
        &["exec"],
        "remote execution",
        Absent("use `lockmesh event fire` and a handler of `lockmesh watch --type event`"),
    ),
    row(&["rtt"], "network coordinates", Absent("measure round trips with `ping`")),
    row(&["tls"], "certificates", Here("`lockmesh operator tls init` and `lockmesh operator tls issue`")),
    row(&["validate"], "check of a configuration file", Here("`lockmesh config validate FILE`")),
    row(
        &["snapshot agent"],
        "periodic backups",
        Here("`lockmesh operator snapshot save FILE`, started by a timer"),
    ),
];

/// Options: of `consul agent`, for which Lockmesh has `agent`, `server` and `dev`, and of every
/// command.
pub static OPTIONS: &[Row] = &[
    row(&["agent -dev"], "development mode", Here("`lockmesh dev`")),
    row(&["agent -server"], "server mode", Here("`lockmesh server`")),
    row(
        &["agent -config-file", "agent -config-dir", "agent -config-format"],
        "configuration files",
        Here("`--config FILE`, one TOML file"),
    ),
    row(&["agent -hcl"], "configuration on the command line", Here("`--set KEY=VALUE`")),
    row(&["agent -data-dir"], "data folder", Here("`--set data_dir=DIR`")),
    row(&["agent -pid-file"], "file with the process number", Here("`--set pid_file=FILE`")),
    row(&["agent -node"], "name of the node", Here("`--set node.name=NAME`")),
    row(&["agent -node-id"], "UUID of the node", Here("`--set node.id=UUID`")),
    row(&["agent -node-meta"], "metadata of the node", Here("`--set node_meta=KEY=VALUE,…` of an agent")),
    row(
        &["agent -bind", "agent -server-port"],
        "address for the cluster",
        Here("`--set rpc.listen=HOST:PORT` of a server, `--set listen=HOST:PORT` of an agent"),
    ),
    row(
        &["agent -advertise"],
        "advertised address",
        Here("`--set rpc.advertise=HOST:PORT` of a server, `--set advertise=HOST` of an agent"),
    ),
    row(
        &["agent -client", "agent -http-port"],
        "address for clients",
        Here("`--set http.tcp=HOST:PORT` of an agent"),
    ),
    row(
        &["agent -serf-lan-bind", "agent -serf-lan-port"],
        "gossip address",
        Here("`--set gossip.listen=HOST:PORT`"),
    ),
    row(
        &["agent -join", "agent -retry-join"],
        "addresses of servers to join",
        Here("`--join HOST:PORT` of a server, `--set upstream.servers=HOST:PORT` of an agent"),
    ),
    row(&["agent -bootstrap"], "cluster of one server", Here("`--bootstrap-expect 1` of a server")),
    row(
        &["agent -bootstrap-expect"],
        "number of founding servers",
        Here("`--bootstrap-expect N` of a server"),
    ),
    row(
        &["agent -encrypt"],
        "gossip key",
        Absent("configure none: the servers make and hand out the gossip key"),
    ),
    row(&["agent -log-level"], "log level", Here("`--set log.level=LEVEL`")),
    row(&["agent -log-json"], "JSON logs", Here("`--set log.format=json`")),
    row(
        &["agent -log-file", "agent -log-rotate-bytes", "agent -log-rotate-duration", "agent -syslog"],
        "log files",
        Absent("redirect stderr, or let systemd keep it"),
    ),
    row(&["agent -ui", "agent -ui-dir"], "web page", Absent("use `lockmesh locks` and `lockmesh members`")),
    row(&["agent -dns-port", "agent -domain", "agent -recursor"], "DNS", NO_DNS),
    row(
        &["agent -enable-script-checks", "agent -enable-local-script-checks"],
        "script checks",
        Here("`--set registry.scripts=config` of an agent"),
    ),
    row(
        &["-datacenter", "-wan", "-serf-wan-port", "-retry-join-wan", "-advertise-wan"],
        "several datacenters",
        Absent("use one cluster per datacenter; the name is `node.datacenter`"),
    ),
    row(&["-namespace", "-partition"], "Consul Enterprise", NO_ENTERPRISE),
    row(
        &["-ca-file", "-ca-path", "-client-cert", "-client-key", "-tls-server-name"],
        "TLS between clients and agent",
        Absent("use the agent's Unix socket"),
    ),
];

/// Configuration keys. A key that Lockmesh has under the same name is not looked up.
pub static KEYS: &[Row] = &[
    row(&["node_name"], "name of the node", Here("`node.name`")),
    row(&["node_id"], "UUID of the node", Here("`node.id`")),
    row(&["datacenter"], "name of the datacenter", Here("`node.datacenter`")),
    row(&["server"], "server mode", Here("the command `lockmesh server`")),
    row(&["bootstrap"], "cluster of one server", Here("`quorum.bootstrap_expect = 1` of a server")),
    row(&["bootstrap_expect"], "number of founding servers", Here("`quorum.bootstrap_expect` of a server")),
    row(
        &["retry_join", "start_join"],
        "addresses of servers to join",
        Here("`quorum.join` of a server, `upstream.servers` of an agent"),
    ),
    row(
        &["bind_addr", "ports.server"],
        "address for the cluster",
        Here("`rpc.listen` of a server, `listen` of an agent"),
    ),
    row(
        &["advertise_addr", "advertise_addr_ipv4", "advertise_addr_ipv6"],
        "advertised address",
        Here("`rpc.advertise` of a server, `advertise` of an agent"),
    ),
    row(&["client_addr", "ports.http"], "address for clients", Here("`http.tcp` of an agent")),
    row(
        &["addresses", "unix_sockets"],
        "addresses and sockets for clients",
        Here("`http.tcp`, `http.socket`, `http.socket_mode` and `http.socket_group` of an agent"),
    ),
    row(&["serf_lan", "ports.serf_lan"], "gossip address", Here("`gossip.listen` of an agent")),
    row(
        &["encrypt", "encrypt_verify_incoming", "encrypt_verify_outgoing"],
        "gossip key",
        Absent("configure none: the servers make and hand out the gossip key"),
    ),
    row(
        &["ca_file", "tls.defaults.ca_file", "tls.internal_rpc.ca_file"],
        "certificate authority",
        Here("`tls.ca`"),
    ),
    row(
        &["cert_file", "tls.defaults.cert_file", "tls.internal_rpc.cert_file"],
        "certificate",
        Here("`tls.certificate`"),
    ),
    row(
        &["key_file", "tls.defaults.key_file", "tls.internal_rpc.key_file"],
        "private key",
        Here("`tls.key`"),
    ),
    row(
        &[
            "verify_incoming",
            "verify_outgoing",
            "verify_server_hostname",
            "auto_encrypt",
            "tls.defaults",
            "tls.internal_rpc",
        ],
        "mutual TLS",
        Absent("remove it: mutual TLS is always on"),
    ),
    row(
        &["ports.https", "ports.grpc", "ports.grpc_tls", "tls.https", "tls.grpc"],
        "HTTPS and gRPC",
        Absent("use the agent's Unix socket or `http.tcp`"),
    ),
    row(
        &["leave_on_terminate", "skip_leave_on_interrupt"],
        "leaving at shutdown",
        Here("`leave_on_terminate` of an agent; remove a server with `lockmesh operator raft remove`"),
    ),
    row(&["session_ttl_min"], "shortest TTL of a session", Here("`http.session_ttl_min` of an agent")),
    row(
        &["limits.kv_max_value_size", "limits.txn_max_req_len"],
        "size of a value and of a transaction",
        Here("`http.max_value_bytes` and `http.max_transaction_bytes` of an agent"),
    ),
    row(
        &["default_query_time", "max_query_time"],
        "waiting time of blocking queries",
        Here("`http.default_query_time` and `http.max_query_time` of an agent"),
    ),
    row(
        &["limits.http_max_conns_per_client"],
        "connections of one client",
        Here("`http.max_connections_per_address` of an agent"),
    ),
    row(&["limits"], "other limits", Absent("remove it")),
    row(&["performance"], "Raft timing", Here("`quorum.election_timeout` of a server")),
    row(&["log_level"], "log level", Here("`log.level`")),
    row(&["log_json"], "JSON logs", Here("`log.format = \"json\"`")),
    row(
        &["log_file", "log_rotate_bytes", "log_rotate_duration", "log_rotate_max_files", "enable_syslog"],
        "log files",
        Absent("redirect stderr, or let systemd keep it"),
    ),
    row(
        &["check_update_interval"],
        "delay of a check's output",
        Here("`registry.update_interval` of an agent"),
    ),
    row(
        &["check_output_max_size"],
        "size of a check's output",
        Here("`registry.max_output_bytes` of an agent"),
    ),
    row(&["check"], "checks in the configuration", Here("`[[checks]]` of an agent")),
    row(
        &["enable_script_checks", "enable_local_script_checks"],
        "script checks",
        Here("`registry.scripts` of an agent"),
    ),
    row(&["service"], "services in the configuration", Here("`[[services]]` of an agent")),
    row(&["telemetry"], "metrics", Here("`GET /metrics` of an agent, and of a server at its `http.listen`")),
    row(&["autopilot"], "autopilot", Here("`lockmesh operator autopilot set-config`")),
    row(&["watches"], "watches", Here("`lockmesh watch`, as a service of its own")),
    row(&["reconnect_timeout"], "removal of failed nodes", Here("`members.reap_failed_after` of a server")),
    row(
        &["raft_protocol", "protocol", "gossip_lan", "raft_snapshot_threshold"],
        "protocol tuning",
        Absent("remove it"),
    ),
    row(&["acl", "acl_datacenter", "primary_datacenter"], "ACLs", NO_ACLS),
    row(&["connect", "config_entries", "peering", "xds"], "service mesh", NO_MESH),
    row(&["ui", "ui_config"], "web page", Absent("use `lockmesh locks` and `lockmesh members`")),
    row(&["dns_config", "domain", "alt_domain", "recursors", "ports.dns"], "DNS", NO_DNS),
    row(
        &["retry_join_wan", "advertise_addr_wan", "serf_wan", "ports.serf_wan", "gossip_wan"],
        "several datacenters",
        ONE_DATACENTER,
    ),
    row(&["segments", "segment", "license_path", "partition"], "Consul Enterprise", NO_ENTERPRISE),
    row(&["node_meta"], "metadata of the node", Here("`node_meta` of an agent")),
    row(
        &[
            "http_config",
            "ports",
            "cache",
            "enable_debug",
            "disable_update_check",
            "disable_remote_exec",
            "disable_host_node_id",
            "disable_keyring_file",
            "rejoin_after_leave",
            "syslog_facility",
        ],
        "other settings of Consul",
        Absent("remove it"),
    ),
];
