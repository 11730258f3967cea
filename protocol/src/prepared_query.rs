//! Prepared queries: stored descriptions of services to look up, by id, by name, or by a template
//! for many names.
//!
//! Stored since format 6, so it only changes with the version of its [`format`](crate::format).

use crate::id::{LogIndex, QueryId, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The maximum number of prepared queries of a cluster.
pub const QUERIES_MAX: usize = 4_096;

/// The maximum size of a prepared query, counted by [`QuerySpec::bytes`].
pub const QUERY_BYTES_MAX: usize = 32 << 10;

/// The maximum length of a prepared query's name, and of a name to look up, in bytes.
pub const QUERY_NAME_MAX: usize = 1_024;

/// The maximum number of characters of the reason why a template is rejected: it may quote the
/// whole query, and is kept with the reply.
pub const TEMPLATE_ERROR_MAX: usize = 1024;

/// The only kind of templates.
pub const NAME_PREFIX_MATCH: &str = "name_prefix_match";

/// A prepared query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedQuery {
    /// Its id.
    pub id: QueryId,
    /// Its description by a client.
    pub spec: QuerySpec,
    /// The log index of its creation.
    pub create_index: LogIndex,
    /// The log index of its last change.
    pub modify_index: LogIndex,
}

/// A prepared query as a client describes it. An absent list or map differs from an empty one only
/// for readers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuerySpec {
    /// Its name, of a template the prefix of names; may be empty. Unique without regard to case.
    pub name: String,
    /// The session whose end deletes it. A text that is not an id is [`SessionId::NIL`].
    pub session: Option<SessionId>,
    /// Stored for clients; unused.
    pub token: String,
    /// Its template.
    pub template: QueryTemplate,
    /// The service to look up.
    pub service: QueryService,
    /// The TTL for DNS, as sent; unused.
    pub dns_ttl: String,
}

/// The template of a prepared query: it answers for all names that begin with the query's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryTemplate {
    /// [`NAME_PREFIX_MATCH`], or empty for a query that is no template.
    pub kind: String,
    /// A regular expression for the looked-up name, whose groups the service's texts may contain.
    pub regexp: String,
    /// Set to drop tags that became empty.
    pub remove_empty_tags: bool,
}

/// The service that a prepared query looks up, and the selection of its instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryService {
    /// The service's name.
    pub service: String,
    /// The number of datacenters to try by distance; stored for clients.
    pub nearest_n: u64,
    /// The datacenters to try then; stored for clients.
    pub datacenters: Option<Vec<String>>,
    /// The peers and datacenters to try then; stored for clients.
    pub targets: Option<Vec<QueryTarget>>,
    /// Set to select only instances whose checks all pass.
    pub only_passing: bool,
    /// The checks whose status does not count.
    pub ignore_check_ids: Option<Vec<String>>,
    /// The node to sort by distance from; empty for none.
    pub near: String,
    /// Tags that an instance must have, or must not have after a `!`.
    pub tags: Option<Vec<String>>,
    /// Metadata that the node must have.
    pub node_meta: Option<BTreeMap<String, String>>,
    /// Metadata that the service must have.
    pub service_meta: Option<BTreeMap<String, String>>,
    /// Set to select the service's proxies instead.
    pub connect: bool,
    /// The peer cluster to look in; empty for this one.
    pub peer: String,
}

/// A place to try when no instance is left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryTarget {
    /// A peer cluster.
    pub peer: String,
    /// A datacenter.
    pub datacenter: String,
}

impl QuerySpec {
    /// Returns `true` for a template, which answers for many names.
    pub fn is_template(&self) -> bool {
        !self.template.kind.is_empty()
    }

    /// Returns the size of all its texts in bytes, with 16 bytes for each element of a list or map.
    pub fn bytes(&self) -> usize {
        let texts = [&self.name, &self.token, &self.template.kind, &self.template.regexp, &self.dns_ttl];
        let service = &self.service;
        let of_service = [&service.service, &service.near, &service.peer];
        let lists = [&service.datacenters, &service.ignore_check_ids, &service.tags];
        let maps = [&service.node_meta, &service.service_meta];
        let elements = lists.into_iter().flatten().flatten().map(String::len);
        let pairs = maps.into_iter().flatten().flatten().map(|(key, value)| key.len() + value.len());
        let targets = service.targets.iter().flatten();
        let targets = targets.map(|target| target.peer.len() + target.datacenter.len());
        // Empty elements must count too, or a query could have any number of them.
        let elements = elements.chain(pairs).chain(targets).map(|length| length + 16);
        texts.into_iter().chain(of_service).map(String::len).chain(elements).sum()
    }

    /// Returns a name in the form used for look-ups.
    pub fn folded(name: &str) -> String {
        name.to_lowercase()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_counts_texts_and_elements() {
        let mut spec = QuerySpec { name: "abc".into(), dns_ttl: "10s".into(), ..QuerySpec::default() };
        assert_eq!(spec.bytes(), 6);
        spec.service.tags = Some(vec![String::new(), "v1".into()]);
        spec.service.node_meta = Some([("a".into(), "b".into())].into());
        spec.service.targets = Some(vec![QueryTarget { peer: "p".into(), datacenter: "dc2".into() }]);
        assert_eq!(spec.bytes(), 6 + 16 + 18 + 18 + 20);
    }
}
