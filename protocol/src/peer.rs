//! The peer of a connection, as named by its certificate, which is the only source of its identity.

use crate::id::NodeName;
use std::fmt;

/// The role of a certificate's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A member of the quorum: serves agents and takes part in Raft.
    Server,
    /// The agent of one host.
    Agent,
}

impl Role {
    /// Returns the name used in certificates and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Agent => "agent",
        }
    }

    /// Returns the DNS name in every certificate of this role, which a dialler verifies.
    pub fn dns_name(self) -> &'static str {
        match self {
            Self::Server => "server.lockmesh",
            Self::Agent => "agent.lockmesh",
        }
    }

    /// Parses the name.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Server, Self::Agent].into_iter().find(|role| role.as_str() == word)
    }
}

/// A verified peer: its certificate was signed by the cluster's authority and names this role and
/// node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its role.
    pub role: Role,
    /// Its node.
    pub node: NodeName,
}

/// The reason why a process cannot use its certificate: its peers would reject it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongCertificate {
    /// It names another node.
    #[error(
        "this is node {node}, but its certificate names {certified}: set `node.name` to that name, or issue a \
         certificate for this node"
    )]
    Node {
        /// The node's name in the configuration, or the host's name.
        node: NodeName,
        /// The node's name in the certificate.
        certified: NodeName,
    },
    /// It has the other role.
    #[error(
        "its certificate is for role {certified}, but this process is for role {role}: issue one with `lockmesh \
         operator tls issue --role {role}`"
    )]
    Role {
        /// The role of the process.
        role: &'static str,
        /// The role in the certificate.
        certified: &'static str,
    },
}

impl Peer {
    /// Checks that a process of this role and node may use the certificate of this peer. Names are
    /// compared without regard to case.
    ///
    /// # Errors
    /// The certificate is another node's, or of the other role.
    pub fn admits(&self, role: Role, node: &NodeName) -> Result<(), WrongCertificate> {
        // Otherwise a server with the certificate of an agent would found a cluster that no agent
        // can join.
        if self.role != role {
            return Err(WrongCertificate::Role { role: role.as_str(), certified: self.role.as_str() });
        }
        if self.node.folded() != node.folded() {
            return Err(WrongCertificate::Node { node: node.clone(), certified: self.node.clone() });
        }
        Ok(())
    }

    /// Returns the URI under which a certificate names its owner: `lockmesh://agent/web-1`.
    pub fn to_uri(&self) -> String {
        let mut uri = format!("lockmesh://{}/", self.role.as_str());
        // A name may contain any printable character, a URI only some.
        for byte in self.node.as_str().bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => uri.push(byte.into()),
                other => uri.push_str(&format!("%{other:02X}")),
            }
        }
        uri
    }

    /// Parses the output of [`Peer::to_uri`]; `None` for anything else, including an empty node.
    pub fn from_uri(uri: &str) -> Option<Self> {
        let (role, node) = uri.strip_prefix("lockmesh://")?.split_once('/')?;
        let node = String::from_utf8(percent_decoded(node)?).ok()?;
        let peer = Self { role: Role::parse(role)?, node: NodeName::from(node) };
        // The spelling is canonical, so that names can be compared directly.
        (!peer.node.as_str().is_empty() && peer.to_uri() == uri).then_some(peer)
    }
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let value = digit(bytes.next()?)? * 16 + digit(bytes.next()?)?;
        decoded.push(u8::try_from(value).ok()?);
    }
    Some(decoded)
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.role.as_str(), self.node)
    }
}

#[cfg(test)]
mod tests {
    use super::{Peer, Role};

    #[test]
    fn uri_round_trip() {
        for node in ["web-1", "Größe mit /Strich%", "a:b@c?d#e"] {
            for role in [Role::Server, Role::Agent] {
                let peer = Peer { role, node: node.into() };
                assert_eq!(Peer::from_uri(&peer.to_uri()), Some(peer));
            }
        }
    }

    #[test]
    fn certificate_limited_to_role_and_node() {
        let peer = Peer { role: Role::Agent, node: "web-1".into() };
        assert_eq!(peer.admits(Role::Agent, &"WEB-1".into()), Ok(()));
        let refused =
            |role, node: &str| peer.admits(role, &node.into()).expect_err("another one").to_string();
        let error = refused(Role::Agent, "web-3");
        assert!(error.starts_with("this is node web-3, but its certificate names web-1: "), "{error}");
        assert!(error.contains("`node.name`"), "{error}");
        let error = refused(Role::Server, "web-1");
        assert!(error.contains("role agent") && error.ends_with("--role server`"), "{error}");
    }

    #[test]
    fn foreign_uris_rejected() {
        let foreign = [
            "",
            "lockmesh://",
            "lockmesh://agent",
            "lockmesh://agent/",
            "lockmesh://king/web-1",
            "https://agent/web-1",
            "lockmesh://agent/a/b",
            "lockmesh://agent/%4",
            "lockmesh://agent/%zz",
            "lockmesh://agent/%FF",
            "lockmesh://agent/%61",
        ];
        for uri in foreign {
            assert_eq!(Peer::from_uri(uri), None, "{uri}");
        }
    }
}
