//! The patterns of `http.allowed_hosts`: names, suffixes, and `*` for every name.

/// The maximum length of a host name, and of one label of it (RFC 1035).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A pattern that the name in a `Host` header is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// Every name: `*`.
    Any,
    /// This name.
    Name(String),
    /// Every name under a suffix such as `.svc.cluster.local`, but not the suffix itself.
    Under(String),
}

/// The reason to reject a configured value: it can match no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has {text:?}, which no request can match: {advice}")]
pub struct HostPatternError {
    text: String,
    advice: String,
}

impl HostPattern {
    /// Parses a configured value.
    ///
    /// # Errors
    /// The value can match no request; the text has a usable value.
    pub fn parse(text: &str) -> Result<Self, HostPatternError> {
        Self::read(text)
            .map_err(|defect| HostPatternError { text: text.into(), advice: advice(text, defect) })
    }

    /// Parses a value, or returns its defect.
    fn read(text: &str) -> Result<Self, &'static str> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let name = text.strip_prefix('.').unwrap_or(text);
        match defect(name) {
            None if name.len() < text.len() => Ok(Self::Under(text.into())),
            None => Ok(Self::Name(text.into())),
            Some(defect) => Err(defect),
        }
    }

    /// Returns `true` if it matches a name without port and trailing dot. Letter case is ignored.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(known) => known.eq_ignore_ascii_case(name),
            Self::Under(suffix) => {
                let start = name.len().checked_sub(suffix.len()).filter(|start| *start > 0);
                start.and_then(|start| name.get(start..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
            }
        }
    }
}

/// Returns the reason why a text is not a host name.
fn defect(name: &str) -> Option<&'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if name.is_empty() {
        Some("it is empty")
    } else if !name.is_ascii() {
        Some("browsers send such a name in its ASCII form, which begins with \"xn--\"")
    } else if !name.bytes().all(is_plain) {
        Some("a host name has only letters, digits, \"-\", \"_\" and \".\"")
    } else if name.split('.').any(str::is_empty) {
        Some("a part between two dots is empty")
    } else if name.len() > MAX_NAME || name.split('.').any(|label| label.len() > MAX_LABEL) {
        Some("a host name has at most 253 characters, and at most 63 between two dots")
    } else {
        None
    }
}

/// Returns what to write instead of an unusable value.
fn advice(text: &str, defect: &str) -> String {
    let bare = bare_name(text);
    let address = bare.trim_matches(['[', ']']);
    if address.parse::<std::net::IpAddr>().is_ok() {
        return "remove it, because IP addresses are always accepted".into();
    }
    match HostPattern::read(bare) {
        Ok(_) if bare != text => format!("write {bare:?}"),
        _ => format!(
            "{defect}; write a name such as \"consul\", a suffix such as \".svc.cluster.local\", or \"*\" for all names"
        ),
    }
}

/// Returns a value without the parts that are no part of a host name: spaces, scheme, user, path,
/// port, a leading wildcard and a trailing dot.
fn bare_name(text: &str) -> &str {
    let text = text.trim();
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let text = text.split(['/', '?', '#']).next().unwrap_or_default();
    let text = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let text = match text.rsplit_once(':') {
        // More than one colon is an IPv6 address, unless that is in brackets.
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => host,
        _ => text,
    };
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.starts_with("*.") { &text[1..] } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        HostPattern::parse(pattern).expect("it is a pattern").matches(name)
    }

    #[test]
    fn suffix_matches_names_below() {
        for (pattern, name, expected) in [
            ("consul", "consul", true),
            ("consul", "CONSUL", true),
            ("consul", "consul.example", false),
            ("consul", "my-consul", false),
            (".svc.cluster.local", "consul.default.svc.cluster.local", true),
            (".svc.cluster.local", "A.SVC.CLUSTER.LOCAL", true),
            (".svc.cluster.local", "svc.cluster.local", false),
            (".svc.cluster.local", ".svc.cluster.local", false),
            (".svc.cluster.local", "evilsvc.cluster.local", false),
            (".svc.cluster.local", "svc.cluster.local.evil.example", false),
            (".svc.cluster.local", "é.svc.cluster.local", true),
            (".b", "é", false),
            ("*", "anything.at.all", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn unmatchable_pattern_suggests_correction() {
        let refused = |text: &str| HostPattern::parse(text).expect_err("it can match nothing").to_string();
        for (text, better) in [
            ("http://consul:8500/ui", "consul"),
            ("consul:8500", "consul"),
            ("consul/v1", "consul"),
            ("consul.", "consul"),
            (" consul ", "consul"),
            ("user@consul", "consul"),
            ("*.svc.cluster.local", ".svc.cluster.local"),
            ("*:8500", "*"),
            ("*.", "*"),
        ] {
            let expected = format!("has {text:?}, which no request can match: write {better:?}");
            assert_eq!(refused(text), expected);
        }
        for (text, defect) in [
            ("", "it is empty"),
            (".", "it is empty"),
            ("a b", "has only letters"),
            ("web-*", "has only letters"),
            ("a..b", "between two dots is empty"),
            ("..a", "between two dots is empty"),
            ("bücher.example", "\"xn--\""),
            (&"a".repeat(64), "at most 63"),
            (&("a.".repeat(127) + "a"), "at most 253"),
        ] {
            let text = refused(text);
            assert!(text.contains(defect) && text.contains("\"*\" for all names"), "{text}");
        }
        for address in ["10.0.0.1:8500", "[::1]:8500", "[::1]", "::1"] {
            assert!(refused(address).ends_with("IP addresses are always accepted"), "{address}");
        }
    }
}
