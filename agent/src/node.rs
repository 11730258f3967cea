//! The identity of this machine: its node's name, and its permanent UUID.

use crate::own_address::OwnAddress;
use lockmesh_agent_core::quorum_client::tagged_addresses;
use lockmesh_net::config::NodeConfig;
use lockmesh_net::files::FileError;
use lockmesh_net::{owner, private, random};
use lockmesh_protocol::id::NodeName;
use lockmesh_protocol::record::Node;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The file in the data directory that keeps the UUID.
pub const FILE: &str = "node-id";

/// A machine's name and UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The node's name.
    pub name: NodeName,
    /// Its UUID in lower-case hyphenated hex.
    pub id: String,
}

/// The reason why the identity of this machine is unknown.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The file does not hold a UUID.
    #[error("{path} does not hold a UUID: put the node's UUID there, or remove the file to draw a new one")]
    NotAnId {
        /// The file.
        path: PathBuf,
    },
    /// The file can be neither read nor written.
    #[error("cannot keep the node's UUID in {path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The system has no random numbers.
    #[error("cannot draw a UUID: {0}")]
    Random(io::Error),
}

/// The identity of this agent.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its node's name.
    pub node: NodeName,
    /// Its node's UUID, in lower case.
    pub node_id: String,
    /// Its datacenter.
    pub datacenter: String,
    /// The version that it reports.
    pub version: String,
    /// The address under which others reach this machine.
    pub advertise: OwnAddress,
    /// The configured metadata of its node.
    pub meta: NodeMeta,
    /// The address of the server in this process, if there is one.
    pub server_rpc: Option<SocketAddr>,
}

/// The configured metadata of the node, shared by all parts of the agent. A reload replaces it.
#[derive(Clone, Debug, Default)]
pub struct NodeMeta(Arc<Mutex<BTreeMap<String, String>>>);

impl NodeMeta {
    /// Replaces the metadata.
    pub fn replace(&self, configured: &BTreeMap<String, String>) {
        self.pairs().clone_from(configured);
    }

    fn pairs(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<BTreeMap<String, String>> for NodeMeta {
    fn from(configured: BTreeMap<String, String>) -> Self {
        Self(Arc::new(Mutex::new(configured)))
    }
}

impl Identity {
    /// Returns the metadata of the node: the configured pairs, and those that Consul's agents
    /// report about themselves.
    pub fn node_meta(&self) -> BTreeMap<String, String> {
        let mut meta = self.meta.pairs().clone();
        meta.insert("consul-network-segment".into(), String::new());
        meta.insert("consul-version".into(), self.version.clone());
        meta
    }

    /// Returns the node for the catalog.
    pub fn record(&self) -> Node {
        let address = self.advertise.ip();
        Node {
            datacenter: self.datacenter.clone(),
            tagged_addresses: tagged_addresses(address),
            meta: self.node_meta(),
            ..Node::of(self.node.clone(), self.node_id.clone(), &address.to_string())
        }
    }
}

impl NodeIdentity {
    /// Returns the configured identity. Defaults are the host's name, and the UUID that `data_dir`
    /// keeps.
    ///
    /// # Errors
    /// The process cannot start. A file with other contents than a UUID stays unchanged, because
    /// the node may be known by its former contents.
    pub fn resolve(config: &NodeConfig, data_dir: &Path) -> Result<Self, NodeError> {
        let name = if config.name.is_empty() { host_name() } else { config.name.clone() };
        // The catalog has a UUID in one spelling, independent of the configuration's.
        let id = if config.id.is_empty() { kept_id(data_dir)? } else { config.id.to_lowercase() };
        Ok(Self { name: name.into(), id })
    }
}

/// Returns the host's name from the kernel.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns a random UUID.
///
/// # Errors
/// The system has no random bytes. No caller may continue with a UUID that another node could have.
pub fn random_uuid() -> Result<String, NodeError> {
    let id = uuid::Builder::from_random_bytes(random::bytes().map_err(NodeError::Random)?).into_uuid();
    Ok(id.hyphenated().to_string())
}

fn kept_id(data_dir: &Path) -> Result<String, NodeError> {
    let path = data_dir.join(FILE);
    let file_error = |error| NodeError::File { path: path.clone(), error };
    match owner::read(&path) {
        Ok(text) => match uuid::Uuid::try_parse(text.trim()) {
            Ok(id) => Ok(id.hyphenated().to_string()),
            // Not replaced: the node may be known by the former contents.
            Err(_) => Err(NodeError::NotAnId { path }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = random_uuid()?;
            write_durably(&path, &id).map_err(file_error)?;
            Ok(id)
        }
        Err(error) => Err(file_error(error)),
    }
}

/// Writes a file atomically.
pub(crate) fn write_durably(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    private::make_folder(folder).map_err(FileError::into_source)?;
    // Such a file is private to its owner from the start.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    io::Write::write_all(&mut file, format!("{text}\n").as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The name must survive a power loss too, or the next start draws another UUID.
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_id_persists() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = NodeIdentity::resolve(&NodeConfig::default(), folder.path()).expect("an id");
        let second = NodeIdentity::resolve(&NodeConfig::default(), folder.path()).expect("an id");
        assert_eq!(first, second);
        assert!(!first.name.as_str().is_empty());
    }

    #[test]
    fn damaged_id_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(FILE), "mine").expect("a file");
        let error = NodeIdentity::resolve(&NodeConfig::default(), folder.path()).expect_err("no id");
        assert!(error.to_string().contains("does not hold a UUID"), "{error}");
        assert_eq!(fs::read_to_string(folder.path().join(FILE)).expect("a file"), "mine");
    }
}
