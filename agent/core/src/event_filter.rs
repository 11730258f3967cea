//! Filters of user events: regular expressions on the host name, the ids of its services, and their
//! tags. The agent that fires an event checks the filters, and each receiver applies them itself.
//!
//! A pattern that becomes too large when compiled is rejected, so that an event costs its receivers
//! only a moment.

use crate::pattern::{Pattern, PatternError};
use lockmesh_protocol::gossip::event::EventFilters;
use lockmesh_protocol::record::Service;

/// The reason why filters are rejected, in Consul's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Tags belong to services, so a tag filter needs a service filter.
    #[error("Cannot provide tag filter without service filter")]
    TagAlone,
    /// One of the filters is not a valid regular expression.
    #[error("Invalid {which} filter: {reason}")]
    Invalid {
        /// `node`, `service` or `tag`.
        which: &'static str,
        /// The parse error.
        reason: PatternError,
    },
}

/// Compiled filters.
#[derive(Clone, Debug)]
pub struct EventFilter {
    node: Option<Pattern>,
    service: Option<Pattern>,
    tag: Option<Pattern>,
}

impl EventFilter {
    /// Compiles the filters.
    ///
    /// # Errors
    /// Returns an error if the filters are invalid.
    pub fn new(filters: &EventFilters) -> Result<Self, FilterError> {
        let EventFilters { node, service, tag } = filters;
        if service.is_empty() && !tag.is_empty() {
            return Err(FilterError::TagAlone);
        }
        let (node, service) = (pattern("node", node)?, pattern("service", service)?);
        Ok(Self { node, service, tag: pattern("tag", tag)? })
    }

    /// Returns `true` if the filters select the host with this name and these services.
    pub fn matches(&self, node: &str, services: &[Service]) -> bool {
        let fits = |pattern: &Option<Pattern>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
        };
        let is_chosen = |service: &Service| {
            let has_tag = || service.tags.iter().any(|tag| fits(&self.tag, tag));
            fits(&self.service, service.id.as_str()) && (self.tag.is_none() || has_tag())
        };
        fits(&self.node, node) && (self.service.is_none() || services.iter().any(is_chosen))
    }
}

/// Returns `None` for an empty text, which selects every host.
fn pattern(which: &'static str, text: &str) -> Result<Option<Pattern>, FilterError> {
    if text.is_empty() {
        return Ok(None);
    }
    Pattern::new(text).map(Some).map_err(|reason| FilterError::Invalid { which, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters(node: &str, service: &str, tag: &str) -> EventFilters {
        EventFilters { node: node.into(), service: service.into(), tag: tag.into() }
    }

    fn service(id: &str, tags: &[&str]) -> Service {
        Service {
            tags: tags.iter().map(|tag| (*tag).into()).collect(),
            ..Service::of("web-1".into(), id.into(), "any")
        }
    }

    fn matches(node: &str, id: &str, tag: &str) -> bool {
        let services = [service("cache-7", &["v1"]), service("web-7", &["v2", "blue"])];
        let filter = EventFilter::new(&filters(node, id, tag)).expect("they are valid");
        filter.matches("web-1", &services)
    }

    #[test]
    fn all_given_filters_must_match() {
        assert!(matches("", "", "") && matches("^web-[0-9]$", "", "") && matches("eb", "", ""));
        assert!(!matches("^eb", "", "") && !matches("web-2", "", ""));
        assert!(matches("", "web", "") && matches("", "^(cache|web)-", "v1") && matches("", "web", "^bl"));
        assert!(!matches("", "nosuch", "") && !matches("", "cache", "v2") && !matches("^db", "web", "v2"));
        assert!(matches(r"(?i)^WEB-\d+$", r"\w-7\b", r"v\S"), "as Go writes them");
        let alone = EventFilter::new(&filters("", "web", "")).expect("it is valid");
        assert!(!alone.matches("web-1", &[]), "there are no services");
    }

    #[test]
    fn invalid_filter_errors_match_consul() {
        let error =
            |node, service, tag| EventFilter::new(&filters(node, service, tag)).expect_err("no sense");
        assert_eq!(error("", "", "v1").to_string(), "Cannot provide tag filter without service filter");
        let said = error("web[", "", "").to_string();
        assert_eq!(said, "Invalid node filter: error parsing regexp: found unclosed character class");
        assert!(error("", "(", "").to_string().starts_with("Invalid service filter: error parsing regexp: "));
        assert!(error("", "x", "*").to_string().starts_with("Invalid tag filter: error parsing regexp: "));
    }

    #[test]
    fn no_pattern_becomes_large() {
        let built = |text: &str| EventFilter::new(&filters(text, "", ""));
        for good in [r"^web-\d{1,3}\.(eu|us)-(west|east)-[1-3]\.example\.com$", r"^[\w.-]{1,100}$", "ü|ö"] {
            assert!(built(good).is_ok(), "{good}");
        }
        for large in [r"\w{5000}", "((a{50}){50}){50}", &"(".repeat(100), r"(\w{90}){90}"] {
            let error = built(large).expect_err(large).to_string();
            assert!(!error.contains('\n') && error.len() < 150, "{error}");
        }
    }
}
