//! Certificates for a single-process cluster, created at the first start: an authority, a server
//! and an agent.
//!
//! The next start completes a start that was interrupted at any moment. An existing authority is
//! never replaced, because others may trust it. A server's or an agent's certificate is replaced
//! when it is no longer usable.

use crate::certificate::{Authority, CertificateError};
use crate::expiry::WARNING_WINDOW;
use crate::peer::{Peer, Role};
use crate::private::{self, FolderEntry};
use crate::tls::{Identity, IdentityFiles};
use lockmesh_protocol::id::NodeName;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const AUTHORITY_LIFETIME: Duration = Duration::from_secs(3650 * 86_400);
const MEMBER_LIFETIME: Duration = Duration::from_secs(365 * 86_400);

/// The files of a development cluster.
#[derive(Clone, Debug)]
pub struct Development {
    folder: PathBuf,
}

impl Development {
    /// Creates the missing files in `folder`: `ca.pem`, `server.pem`, `agent.pem`, each with its
    /// `-key.pem`.
    ///
    /// # Errors
    /// A file or folder cannot be read or created. Files created before that stay, and the next
    /// call continues from there. An existing authority is unchanged.
    pub fn prepare(folder: &Path, node: &NodeName) -> Result<Self, CertificateError> {
        make_folder(folder)?;
        let this = Self { folder: folder.into() };
        // The key is written first, so this file exists only if the authority is complete.
        if !this.authority().exists() {
            let authority = Authority::create("Lockmesh development authority", AUTHORITY_LIFETIME)?;
            authority.save(&this.authority(), &this.path("ca-key.pem"))?;
        }
        for role in [Role::Server, Role::Agent] {
            this.prepare_files(&Peer { role, node: node.clone() }, &this.files(role))?;
        }
        Ok(this)
    }

    /// Returns the paths of the server's or the agent's files.
    pub fn files(&self, role: Role) -> IdentityFiles {
        member_files(&self.folder, role)
    }

    /// Creates a certificate for a further member in another folder, unless there is a usable one.
    ///
    /// # Errors
    /// A file or folder cannot be read or created. Files created before that stay, and the next
    /// call continues from there. An existing authority is unchanged.
    pub fn prepare_in(&self, folder: &Path, member: &Peer) -> Result<IdentityFiles, CertificateError> {
        make_folder(folder)?;
        let files = IdentityFiles { authorities: self.authority(), ..member_files(folder, member.role) };
        self.prepare_files(member, &files)?;
        Ok(files)
    }

    /// Returns the identity of the server or the agent.
    ///
    /// # Errors
    /// As [`Identity::load`].
    pub fn identity(&self, role: Role) -> Result<Identity, CertificateError> {
        Identity::load(&self.files(role))
    }

    fn prepare_files(&self, member: &Peer, files: &IdentityFiles) -> Result<(), CertificateError> {
        // Replaced before the warnings about its expiry begin.
        let soon = SystemTime::now() + WARNING_WINDOW;
        let of_use = |identity: Identity| {
            identity.peer() == member && identity.lives().iter().all(|life| life.seconds_left(soon) > 0)
        };
        if Identity::load(files).is_ok_and(of_use) {
            return Ok(());
        }
        let authority = Authority::load(&self.authority(), &self.path("ca-key.pem"))?;
        let addresses = ["localhost", "127.0.0.1", "::1"].map(String::from);
        authority.issue(member, &addresses, MEMBER_LIFETIME)?.save(&files.certificate, &files.key)
    }

    fn authority(&self) -> PathBuf {
        self.path("ca.pem")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Creates the folder, or makes an older one private: a key in it is sufficient to act as the
/// server or the agent.
fn make_folder(folder: &Path) -> Result<(), CertificateError> {
    private::make_folder(folder)?;
    let kind = |name: &str| match name {
        _ if name.ends_with("-key.pem") => FolderEntry::Secret,
        // The temporary file of an interrupted write has its final mode from the start.
        _ if name.ends_with(".pem") || name.ends_with(".tmp") => FolderEntry::Public,
        _ => FolderEntry::Foreign,
    };
    Ok(private::close(folder, false, kind)?)
}

/// Returns the paths of a member's files in a folder.
fn member_files(folder: &Path, role: Role) -> IdentityFiles {
    IdentityFiles {
        authorities: folder.join("ca.pem"),
        certificate: folder.join(format!("{}.pem", role.as_str())),
        key: folder.join(format!("{}-key.pem", role.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::Development;
    use crate::peer::{Peer, Role};
    use crate::tls::Identity;
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let named = |entry: &std::fs::DirEntry| entry.file_name().into_string().unwrap();
        entries.map(|entry| (named(&entry), std::fs::read(entry.path()).unwrap())).collect()
    }

    #[test]
    fn a_second_start_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        Development::prepare(folder.path(), &"web-1".into()).unwrap();
        let first = contents(folder.path());
        let names = ["agent-key.pem", "agent.pem", "ca-key.pem", "ca.pem", "server-key.pem", "server.pem"];
        assert!(first.keys().eq(names), "{:?}", first.keys());
        for name in names.iter().filter(|name| name.ends_with("-key.pem")) {
            let mode = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        Development::prepare(folder.path(), &"web-1".into()).unwrap();
        assert_eq!(contents(folder.path()), first);
    }

    #[test]
    fn interrupted_start_is_repaired() {
        let whole = tempfile::tempdir().unwrap();
        Development::prepare(whole.path(), &"web-1".into()).unwrap();
        for missing in ["ca.pem", "server.pem", "server-key.pem", "agent.pem", "agent-key.pem"] {
            std::fs::remove_file(whole.path().join(missing)).unwrap();
            let again = Development::prepare(whole.path(), &"web-1".into()).unwrap();
            for role in [Role::Server, Role::Agent] {
                assert_eq!(again.identity(role).unwrap().peer().role, role, "without {missing}");
            }
        }
    }

    #[test]
    fn new_node_name_keeps_authority() {
        let folder = tempfile::tempdir().unwrap();
        Development::prepare(folder.path(), &"web-1".into()).unwrap();
        let authority = contents(folder.path())["ca.pem"].clone();
        let renamed = Development::prepare(folder.path(), &"web-2".into()).unwrap();
        assert_eq!(renamed.identity(Role::Agent).unwrap().peer().node.as_str(), "web-2");
        assert_eq!(contents(folder.path())["ca.pem"], authority);
    }

    #[test]
    fn further_member_folder_shares_authority() {
        let folder = tempfile::tempdir().unwrap();
        let certificates = Development::prepare(folder.path(), &"web-1".into()).unwrap();
        let member = Peer { role: Role::Server, node: "s2".into() };
        let files = certificates.prepare_in(&folder.path().join("s2/tls"), &member).unwrap();
        assert_eq!(Identity::load(&files).unwrap().peer(), &member);
        let first = std::fs::read(&files.certificate).unwrap();
        certificates.prepare_in(&folder.path().join("s2/tls"), &member).unwrap();
        assert_eq!(std::fs::read(&files.certificate).unwrap(), first);
    }

    #[test]
    fn foreign_file_named_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), "mine").unwrap();
        let error = Development::prepare(folder.path(), &"web-1".into()).unwrap_err().to_string();
        assert!(error.contains("ca-key.pem") || error.contains("ca.pem"), "{error}");
        assert_eq!(contents(folder.path())["ca.pem"], b"mine");
    }
}
