//! The folders of agents with their own processes: `n1`, `n2`, …
//!
//! An existing configuration is not overwritten. The command line has priority over it, for the
//! processes that it starts.

use super::folder::MemberFolder;
use super::options::DevOptions;
use super::ports::Ports;
use super::setup::loopback_agent;
use crate::config;
use crate::error::RunError;
use lockmesh_agent::config::{AgentConfig, HttpConfig, UpstreamConfig};
use lockmesh_net::config::{NodeConfig, TlsConfig};
use lockmesh_net::{Development, IdentityFiles, Role};
use lockmesh_protocol::duration;
use std::net::SocketAddr;
use std::path::Path;

/// An agent's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AgentFolder {
    /// Its folder.
    pub(super) home: MemberFolder,
    /// The TCP address of its HTTP API; `None` if it has its Unix socket only.
    pub(super) http: Option<SocketAddr>,
}

/// Makes of a folder what `count` agents need. The configurations of those that were there before
/// stay, where the servers kept their addresses.
pub(super) fn prepare(
    folder: &Path,
    count: u8,
    options: &DevOptions,
    (upstream, are_old): (&UpstreamConfig, bool),
    certificates: &Development,
    ports: &mut Ports,
) -> Result<Vec<AgentFolder>, RunError> {
    let http = match options.http.port() {
        // Picked here: this process is to say where it is, and has no other way to know.
        0 => ports.pick(options.http.ip())?,
        _ => options.http,
    };
    let mut agents = Vec::new();
    for number in 1..=count {
        let home = MemberFolder::numbered(folder, Role::Agent, number);
        // Only one process can listen on a TCP address; the others have their Unix sockets.
        let agent = AgentFolder { home, http: (number == 1).then_some(http) };
        let files = agent.home.prepare(certificates)?;
        if !are_old || !agent.home.config_file().exists() {
            let config = agent.config(options, upstream.clone(), files);
            agent.home.write_config(&config::text_of(&config))?;
        }
        agents.push(agent);
    }
    Ok(agents)
}

impl AgentFolder {
    fn config(&self, options: &DevOptions, upstream: UpstreamConfig, files: IdentityFiles) -> AgentConfig {
        let node = NodeConfig {
            name: self.home.name.clone(),
            datacenter: options.node.datacenter.clone(),
            ..NodeConfig::default()
        };
        let http = HttpConfig {
            tcp: self.http,
            allow_non_loopback: self.http.is_some() && options.allow_non_loopback,
            socket: self.home.socket(),
            session_ttl_min: options.session_ttl_min,
            ..HttpConfig::default()
        };
        AgentConfig {
            pid_file: self.home.pid_file(),
            tls: TlsConfig { ca: files.authorities, certificate: files.certificate, key: files.key },
            ..loopback_agent(self.home.data_dir(), node, http, upstream)
        }
    }

    /// The settings of the command line, which the configuration in its folder may not have.
    pub(super) fn settings(&self, options: &DevOptions, cluster_id: &str) -> Vec<String> {
        let mut settings = vec![format!("upstream.cluster_id={cluster_id}")];
        if let Some(http) = self.http {
            settings.push(format!("http.tcp={http}"));
            settings.push("http.operator_over_tcp=true".into());
            settings.extend(options.allow_non_loopback.then(|| "http.allow_non_loopback=true".into()));
        }
        if options.session_ttl_min != HttpConfig::default().session_ttl_min {
            let least = duration::format(options.session_ttl_min);
            settings.push(format!("http.session_ttl_min={least}"));
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::super::setup::upstream;
    use super::*;
    use crate::config::{Sources, load};
    use lockmesh_net::config::Section;
    use std::fs;
    use std::time::Duration;

    const CLUSTER: &str = "6f2d0b6e-3c60-4d3f-9d5c-2b1f7c0e9a55";

    fn prepared(folder: &Path, options: &DevOptions, are_old: bool) -> Vec<AgentFolder> {
        let certificates =
            Development::prepare(&folder.join("tls"), &"host".into()).expect("they can be made");
        let servers = upstream(vec!["127.0.0.1:8300".into()], CLUSTER);
        let ports = &mut Ports::default();
        prepare(folder, 3, options, (&servers, are_old), &certificates, ports).expect("they can be made")
    }

    fn config_of(agent: &AgentFolder, settings: Vec<String>) -> AgentConfig {
        let sources = Sources { file: Some(agent.home.config_file()), settings, ..Sources::default() };
        load(&sources).expect("it is good")
    }

    #[test]
    fn agents_are_distinct_first_has_port() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let agents = prepared(folder.path(), &DevOptions::default(), false);
        let configs: Vec<AgentConfig> = agents.iter().map(|agent| config_of(agent, Vec::new())).collect();
        let names: Vec<&str> = configs.iter().map(|config| config.node.name.as_str()).collect();
        assert_eq!(names, ["n1", "n2", "n3"]);
        let ports: Vec<Option<u16>> =
            configs.iter().map(|config| config.http.tcp.map(|address| address.port())).collect();
        assert_eq!(ports, [Some(8500), None, None]);
        assert_eq!(configs[1].http.socket, folder.path().join("n2/agent.sock"));
        assert_eq!(configs[1].pid_file, folder.path().join("n2/pid"));
        assert_eq!(configs[1].upstream.servers, ["127.0.0.1:8300"]);
        assert_eq!(configs[1].upstream.cluster_id, CLUSTER);
        assert!(configs.iter().all(|config| config.check().is_ok() && config.tls.key.exists()));
    }

    #[test]
    fn edited_config_kept_flags_override() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let first = prepared(folder.path(), &DevOptions::default(), false);
        let file = first[0].home.config_file();
        let text = fs::read_to_string(&file).expect("it is there");
        fs::write(&file, text.replace("[node]", "[registry]\nmax_checks = 7\n[node]"))
            .expect("it can be written");
        let options = DevOptions {
            http: ([127, 0, 0, 1], 8600).into(),
            session_ttl_min: Duration::from_secs(1),
            ..DevOptions::default()
        };
        let again = prepared(folder.path(), &options, true);
        let config = config_of(&again[0], again[0].settings(&options, CLUSTER));
        assert_eq!((config.registry.max_checks, config.http.tcp), (7, Some(options.http)));
        assert_eq!(config.http.session_ttl_min, options.session_ttl_min);
        let cluster = format!("upstream.cluster_id={CLUSTER}");
        assert_eq!(again[1].settings(&DevOptions::default(), CLUSTER), [cluster]);

        let anew = prepared(folder.path(), &options, false);
        let config = config_of(&anew[0], Vec::new());
        assert_eq!(config.registry, AgentConfig::default().registry, "the servers are others now");
        assert_eq!(
            (config.http.tcp, config.http.session_ttl_min),
            (Some(options.http), options.session_ttl_min)
        );
    }

    #[test]
    fn port_zero_picks_free_port() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let any = DevOptions { http: ([127, 0, 0, 1], 0).into(), ..DevOptions::default() };
        let agents = prepared(folder.path(), &any, false);
        assert!(agents[0].http.is_some_and(|address| address.port() != 0));
    }
}
