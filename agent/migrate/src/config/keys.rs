//! All keys of Consul's configuration with the kinds of their values, up to Consul 1.22.
//!
//! Names are matched without regard to case, as Consul does.

use Kind::{Any, Flag, Integer, Number, Section, Sections, SectionsByName, Text, TextMap, Texts, TextsMap};

/// The kind of a value.
#[derive(Debug)]
pub(super) enum Kind {
    Text,
    Flag,
    Integer,
    Number,
    Texts,
    TextMap,
    /// Texts by name.
    TextsMap,
    /// Anything.
    Any,
    Section(&'static Fields),
    Sections(&'static Fields),
    /// A map whose keys are free.
    SectionsByName(&'static Fields),
}

/// The keys of a section, grouped by the kind of their values.
pub(super) type Fields = &'static [(&'static str, Kind)];

/// Other names that Consul accepts.
const ALIASES: [(&str, &str); 6] = [
    ("serviceid", "service_id"),
    ("scriptargs", "args"),
    ("dockercontainerid", "docker_container_id"),
    ("tlsskipverify", "tls_skip_verify"),
    ("deregistercriticalserviceafter", "deregister_critical_service_after"),
    ("non_voting_server", "read_replica"),
];

/// The name and the kind of a key in a section.
pub(super) fn find(fields: Fields, key: &str) -> Option<(&'static str, &'static Kind)> {
    let alias = ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(key));
    let key = alias.map_or(key, |(_, name)| name);
    let mut names =
        fields.iter().flat_map(|(names, kind)| names.split_whitespace().map(move |name| (name, kind)));
    names.find(|(name, _)| name.eq_ignore_ascii_case(key))
}

pub(super) static ROOT: Fields = &[
    (
        "acl_agent_master_token acl_agent_token acl_datacenter acl_default_policy acl_disabled_ttl \
         acl_down_policy acl_master_token acl_replication_token acl_token acl_ttl advertise_addr \
         advertise_addr_ipv4 advertise_addr_ipv6 advertise_addr_wan advertise_addr_wan_ipv4 \
         advertise_addr_wan_ipv6 advertise_reconnect_timeout ae_interval alt_domain bind_addr build_date \
         ca_file ca_path cert_file check_deregister_interval_min check_reap_interval check_update_interval \
         client_addr data_dir datacenter default_intention_policy default_query_time discovery_max_stale \
         domain encrypt key_file license_path license_poll_base_time license_poll_max_time \
         license_update_base_time license_update_max_time log_file log_level log_rotate_duration \
         max_query_time node_id node_name partition pid_file primary_datacenter primary_gateways_interval \
         raft_snapshot_interval reconnect_timeout reconnect_timeout_wan retry_interval retry_interval_wan \
         revision segment serf_lan serf_wan server_name server_rejoin_age_max session_ttl_min \
         sync_coordinate_interval_min syslog_facility tls_cipher_suites tls_min_version ui_content_path \
         ui_dir version version_metadata version_prerelease",
        Text,
    ),
    (
        "acl_enable_key_list_policy auto_reload_config bootstrap disable_anonymous_signature \
         disable_coordinates disable_host_node_id disable_http_unprintable_char_filter \
         disable_keyring_file disable_remote_exec disable_update_check discard_check_output \
         enable_acl_replication enable_agent_tls_for_checks enable_central_service_config enable_debug \
         enable_local_script_checks enable_script_checks enable_syslog encrypt_verify_incoming \
         encrypt_verify_outgoing leave_on_terminate log_json raft_prevote_disabled read_replica \
         rejoin_after_leave server skip_leave_on_interrupt tls_prefer_server_cipher_suites \
         translate_wan_addrs ui use_streaming_backend verify_incoming verify_incoming_https \
         verify_incoming_rpc verify_outgoing verify_server_hostname",
        Flag,
    ),
    (
        "bootstrap_expect check_output_max_size log_rotate_bytes log_rotate_max_files protocol \
         raft_protocol raft_snapshot_threshold raft_trailing_logs retry_max retry_max_wan segment_limit \
         segment_name_limit",
        Integer,
    ),
    ("sync_coordinate_rate_target", Number),
    (
        "experiments primary_gateways recursors retry_join retry_join_wan serf_lan_allowed_cidrs \
         serf_wan_allowed_cidrs start_join start_join_wan",
        Texts,
    ),
    ("log_sublevels node_meta tagged_addresses", TextMap),
    // Lockmesh has none of these; the keys in them differ between versions.
    (
        "audit auto_config auto_encrypt cache cloud config_entries connect consul dns_config gossip_lan \
         gossip_wan locality peering raft_boltdb raft_logstore reporting segments snapshot_agent watches \
         xds",
        Any,
    ),
    ("acl", Section(&ACL)),
    ("rpc", Section(&RPC)),
    ("addresses", Section(&ADDRESSES)),
    ("autopilot", Section(&AUTOPILOT)),
    ("http_config", Section(&HTTP_CONFIG)),
    ("limits", Section(&LIMITS)),
    ("performance", Section(&PERFORMANCE)),
    ("ports", Section(&PORTS)),
    ("telemetry", Section(&TELEMETRY)),
    ("tls", Section(&TLS)),
    ("ui_config", Section(&UI_CONFIG)),
    ("unix_sockets", Section(&UNIX_SOCKETS)),
    ("service", Section(&SERVICE)),
    ("services", Sections(&SERVICE)),
    ("check", Section(&CHECK)),
    ("checks", Sections(&CHECK)),
];

static ACL: Fields = &[
    (
        "enabled enable_key_list_policy enable_token_persistence enable_token_replication \
         msp_disable_bootstrap",
        Flag,
    ),
    ("default_policy down_policy policy_ttl role_ttl token_ttl", Text),
    ("tokens", Section(&TOKENS)),
];
static RPC: Fields = &[("enable_streaming", Flag)];
static TOKENS: Fields = &[
    (
        "agent agent_master agent_recovery config_file_service_registration default dns initial_management \
         master replication",
        Text,
    ),
    ("managed_service_provider", Any),
];
static ADDRESSES: Fields = &[("dns grpc grpc_tls http https", Text)];
static AUTOPILOT: Fields = &[
    ("cleanup_dead_servers disable_upgrade_migration", Flag),
    ("last_contact_threshold redundancy_zone_tag server_stabilization_time upgrade_version_tag", Text),
    ("max_trailing_logs min_quorum", Integer),
];
static HTTP_CONFIG: Fields = &[
    ("allow_write_http_from block_endpoints", Texts),
    ("response_headers", TextMap),
    ("use_cache", Flag),
    ("max_header_bytes", Integer),
];
static LIMITS: Fields = &[
    (
        "http_max_conns_per_client kv_max_value_size rpc_max_burst rpc_max_conns_per_client \
         txn_max_req_len",
        Integer,
    ),
    ("https_handshake_timeout rpc_client_timeout rpc_handshake_timeout", Text),
    ("rpc_rate", Number),
    ("request_limits", Any),
];
static PERFORMANCE: Fields = &[
    ("grpc_keepalive_interval grpc_keepalive_timeout leave_drain_time rpc_hold_timeout", Text),
    ("raft_multiplier", Integer),
    ("enable_xds_load_balancing", Flag),
];
static PORTS: Fields = &[(
    "dns expose_max_port expose_min_port grpc grpc_tls http https proxy_max_port proxy_min_port serf_lan \
     serf_wan server sidecar_max_port sidecar_min_port",
    Integer,
)];
static TELEMETRY: Fields = &[
    (
        "circonus_api_app circonus_api_token circonus_api_url circonus_broker_id \
         circonus_broker_select_tag circonus_check_display_name circonus_check_force_metric_activation \
         circonus_check_id circonus_check_instance_id circonus_check_search_tag circonus_check_tags \
         circonus_submission_interval circonus_submission_url dogstatsd_addr metrics_prefix \
         prometheus_retention_time statsd_address statsite_address",
        Text,
    ),
    (
        "disable_compat_1.9 disable_hostname disable_per_tenancy_usage_metrics enable_host_metrics \
         filter_default retry_failed_connection",
        Flag,
    ),
    ("dogstatsd_tags prefix_filter", Texts),
];
static TLS: Fields = &[("defaults grpc https internal_rpc", Section(&TLS_OF))];
static TLS_OF: Fields = &[
    ("ca_file ca_path cert_file key_file tls_cipher_suites tls_min_version", Text),
    ("use_auto_cert verify_incoming verify_outgoing verify_server_hostname", Flag),
];
static UI_CONFIG: Fields = &[
    ("enabled", Flag),
    ("content_path dir metrics_provider metrics_provider_options_json", Text),
    ("metrics_provider_files", Texts),
    ("dashboard_url_templates", TextMap),
    ("metrics_proxy", Any),
];
static UNIX_SOCKETS: Fields = &[("group mode user", Text)];

/// The keys of a service.
pub(super) static SERVICE: Fields = &[
    ("address id kind name namespace partition socket_path token", Text),
    ("tags", Texts),
    ("meta", TextMap),
    ("port", Integer),
    ("enable_tag_override", Flag),
    ("tagged_addresses", SectionsByName(&SERVICE_ADDRESS)),
    ("weights", Section(&WEIGHTS)),
    ("locality", Section(&LOCALITY)),
    ("check", Section(&CHECK)),
    ("checks", Sections(&CHECK)),
    ("proxy", Section(&PROXY)),
    ("connect", Section(&CONNECT)),
];
static SERVICE_ADDRESS: Fields = &[("address", Text), ("port", Integer)];
static WEIGHTS: Fields = &[("passing warning", Integer)];
static LOCALITY: Fields = &[("region zone", Text)];
static CONNECT: Fields = &[("native", Flag), ("sidecar_service", Section(&SERVICE))];
static PROXY: Fields = &[
    (
        "destination_service_id destination_service_name local_service_address local_service_socket_path \
         mode",
        Text,
    ),
    ("local_service_port", Integer),
    ("access_logs", Section(&ACCESS_LOGS)),
    ("envoy_extensions", Sections(&ENVOY_EXTENSION)),
    ("expose", Section(&EXPOSE)),
    ("mesh_gateway", Section(&MESH_GATEWAY)),
    ("transparent_proxy", Section(&TRANSPARENT_PROXY)),
    ("upstreams", Sections(&UPSTREAM)),
    ("config", Any),
];
static ACCESS_LOGS: Fields =
    &[("disable_listener_logs enabled", Flag), ("json_format path text_format type", Text)];
static ENVOY_EXTENSION: Fields =
    &[("consul_version envoy_version name", Text), ("required", Flag), ("arguments", Any)];
static EXPOSE: Fields = &[("checks", Flag), ("paths", Sections(&EXPOSED_PATH))];
static EXPOSED_PATH: Fields = &[("path protocol", Text), ("listener_port local_path_port", Integer)];
static MESH_GATEWAY: Fields = &[("mode", Text)];
static TRANSPARENT_PROXY: Fields = &[("dialed_directly", Flag), ("outbound_listener_port", Integer)];
static UPSTREAM: Fields = &[
    (
        "datacenter destination_name destination_namespace destination_partition destination_peer \
         destination_type local_bind_address local_bind_socket_mode local_bind_socket_path",
        Text,
    ),
    ("local_bind_port", Integer),
    ("mesh_gateway", Section(&MESH_GATEWAY)),
    ("config", Any),
];

/// The keys of a check.
pub(super) static CHECK: Fields = &[
    (
        "alias_node alias_service body deregister_critical_service_after docker_container_id grpc h2ping \
         http id interval method name namespace notes os_service partition script service_id shell status \
         tcp timeout tls_server_name token ttl udp",
        Text,
    ),
    ("args", Texts),
    ("header", TextsMap),
    ("disable_redirects grpc_use_tls h2ping_use_tls tcp_use_tls tls_skip_verify", Flag),
    ("failures_before_critical failures_before_warning output_max_size success_before_passing", Integer),
];
