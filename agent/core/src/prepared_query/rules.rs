//! The rules for the description of a query, which the agent checks before it proposes it. The
//! state checks what depends on other queries and on sessions.

use crate::definitions::{MetaError, check_pairs};
use lockmesh_protocol::duration::{DurationError, parse_nanos};
use lockmesh_protocol::prepared_query::{QUERY_BYTES_MAX, QUERY_NAME_MAX, QuerySpec};

/// What Consul shows in place of a token that the reader may not see.
const HIDDEN_TOKEN: &str = "<hidden>";

/// The reason why a description is rejected, in Consul's words where Consul has them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The query could only be found by its id, and would never be deleted.
    #[error("Must be bound to a session")]
    Unbound,
    /// The token is the replacement of one that was not shown.
    #[error(
        "Bad Token '{HIDDEN_TOKEN}', it looks like a query definition with a redacted token was submitted"
    )]
    HiddenToken,
    /// It has no service.
    #[error("Must provide a Service name to query")]
    NoService,
    /// The number of datacenters is negative.
    #[error("Bad NearestN '{0}', must be >= 0")]
    Nearest(i64),
    /// `NodeMeta` has a pair that no node can have, or too many.
    #[error("{0}")]
    Meta(MetaError),
    /// The TTL is not a duration.
    #[error("Bad DNS TTL '{text}': {reason}")]
    Ttl {
        /// The text.
        text: String,
        /// The reason.
        reason: DurationError,
    },
    /// The TTL is negative.
    #[error("DNS TTL '{0}', must be >=0")]
    NegativeTtl(i64),
    /// The name is too long.
    #[error("the Name has {0} bytes, the maximum is {QUERY_NAME_MAX}: use a shorter one")]
    LongName(usize),
    /// The whole query is too large.
    #[error("the query has {0} bytes, the maximum is {QUERY_BYTES_MAX}: use fewer or shorter texts")]
    Large(usize),
}

/// Checks a description, except its template. `nearest_n` is the number as it was sent.
///
/// # Errors
/// The first rule that the description breaks.
pub fn check(spec: &QuerySpec, nearest_n: i64) -> Result<(), QueryError> {
    if spec.name.is_empty() && !spec.is_template() && spec.session.is_none() {
        return Err(QueryError::Unbound);
    }
    if spec.token == HIDDEN_TOKEN {
        return Err(QueryError::HiddenToken);
    }
    if spec.service.service.is_empty() {
        return Err(QueryError::NoService);
    }
    if nearest_n < 0 {
        return Err(QueryError::Nearest(nearest_n));
    }
    if let Some(meta) = &spec.service.node_meta {
        check_pairs(meta, None).map_err(QueryError::Meta)?;
    }
    check_ttl(&spec.dns_ttl)?;
    if spec.name.len() > QUERY_NAME_MAX {
        return Err(QueryError::LongName(spec.name.len()));
    }
    let bytes = spec.bytes();
    if bytes > QUERY_BYTES_MAX { Err(QueryError::Large(bytes)) } else { Ok(()) }
}

fn check_ttl(text: &str) -> Result<(), QueryError> {
    if text.is_empty() {
        return Ok(());
    }
    match parse_nanos(text) {
        Err(reason) => Err(QueryError::Ttl { text: text.into(), reason }),
        Ok(nanoseconds) if nanoseconds < 0 => Err(QueryError::NegativeTtl(nanoseconds)),
        Ok(_) => Ok(()),
    }
}
