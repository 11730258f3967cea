//! URLs of checks and of redirects, parsed by the rules of Go's `net/url`, with its error texts.

/// The text in place of user and password.
const MASK: &str = "***@";

/// An absolute URL with the scheme `http` or `https`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    /// Set for `https`.
    pub(super) is_https: bool,
    /// The user and the password, still encoded.
    pub(super) user: Option<String>,
    /// The host and the port, as written.
    pub(super) authority: String,
    /// The encoded path and query; empty if the URL ends with the host.
    target: String,
}

/// The reason why a URL cannot be requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UrlError {
    /// It is not a URL.
    Invalid(String),
    /// It is a URL of another kind.
    Unsupported(String),
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, UrlError> {
        let invalid = |why: &str| UrlError::Invalid(why.into());
        if text.contains(|c: char| c.is_ascii_control()) {
            return Err(invalid("net/url: invalid control character in URL"));
        }
        let text = text.split('#').next().unwrap_or_default();
        let (scheme, rest) = match scheme(text) {
            Some(parts) => parts,
            None if text.starts_with(':') => return Err(invalid("missing protocol scheme")),
            None if text.split('/').next().is_some_and(|segment| segment.contains(':')) => {
                return Err(invalid("first path segment in URL cannot contain colon"));
            }
            None => return Err(UrlError::Unsupported(r#"unsupported protocol scheme """#.into())),
        };
        let is_https = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            other => return Err(UrlError::Unsupported(format!("unsupported protocol scheme {other:?}"))),
        };
        let rest = rest.strip_prefix("//").unwrap_or_default();
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, authority) = match authority.rsplit_once('@') {
            Some((user, authority)) => (Some(user.to_owned()), authority),
            None => (None, authority),
        };
        check_authority(authority)?;
        Ok(Self { is_https, user, authority: authority.into(), target: encoded(target) })
    }

    /// Returns the URL to which a `Location` header refers, in a response from this URL.
    pub(super) fn join(&self, location: &str) -> Result<Self, UrlError> {
        let location = location.split('#').next().unwrap_or_default();
        if scheme(location).is_some() {
            return Self::parse(location);
        }
        if location.starts_with("//") {
            return Self::parse(&format!("{}:{location}", self.scheme()));
        }
        let path = self.target.split('?').next().unwrap_or_default();
        let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
        let target = match location.chars().next() {
            None => self.target.clone(),
            Some('/') => without_dots(location),
            Some('?') => format!("{path}{location}"),
            Some(_) => without_dots(&format!("{folder}{location}")),
        };
        if target.contains(|c: char| c.is_ascii_control()) {
            return Err(UrlError::Invalid("net/url: invalid control character in URL".into()));
        }
        Ok(Self { target: encoded(&target), ..self.clone() })
    }

    /// Returns the path and the query for a request line.
    pub(super) fn request_target(&self) -> String {
        let slash = if self.target.starts_with('/') { "" } else { "/" };
        format!("{slash}{}", self.target)
    }

    /// Returns the host, in brackets if it is an IPv6 address.
    pub(super) fn host(&self) -> &str {
        split_port(&self.authority).0
    }

    /// Returns `host:port`.
    pub(super) fn address(&self) -> String {
        let (host, port) = split_port(&self.authority);
        match port.trim_start_matches(':') {
            "" => format!("{host}:{}", if self.is_https { "443" } else { "80" }),
            port => format!("{host}:{port}"),
        }
    }

    /// Returns the URL for outputs, which every client may read: without user and password.
    pub(super) fn shown(&self) -> String {
        let user = if self.user.is_some() { MASK } else { "" };
        format!("{}://{user}{}{}", self.scheme(), self.authority, self.target)
    }

    fn scheme(&self) -> &'static str {
        if self.is_https { "https" } else { "http" }
    }
}

/// Returns the text of a URL for outputs: without user and password, even if it is invalid.
pub(super) fn masked(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("//") else { return text.into() };
    let end = match Url::parse(text) {
        Ok(_) => rest.find(['/', '?', '#']).unwrap_or(rest.len()),
        // A `/` may belong to the password.
        Err(_) => rest.len(),
    };
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}//{MASK}{}", &rest[at + 1..]),
        None => text.into(),
    }
}

/// Splits a text at the end of its scheme.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_valid = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_valid.then_some((scheme, rest))
}

fn check_authority(authority: &str) -> Result<(), UrlError> {
    let allowed = |c: &char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:[]%".contains(*c);
    if let Some(wrong) = authority.chars().find(|c| !allowed(c)) {
        return Err(UrlError::Invalid(format!("invalid character {:?} in host name", wrong.to_string())));
    }
    let (host, port) = split_port(authority);
    if host.starts_with('[') && !host.ends_with(']') {
        return Err(UrlError::Invalid("missing ']' in host".into()));
    }
    let is_port = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.chars().all(|c| c.is_ascii_digit()));
    if !is_port {
        return Err(UrlError::Invalid(format!("invalid port {port:?} after host")));
    }
    if host.is_empty() {
        return Err(UrlError::Unsupported("http: no Host in request URL".into()));
    }
    Ok(())
}

/// Splits an authority before the colon of its port.
fn split_port(authority: &str) -> (&str, &str) {
    let literal = if authority.starts_with('[') { authority.find(']') } else { None };
    let host = literal.unwrap_or(0);
    authority.split_at(authority[host..].find(':').map_or(authority.len(), |colon| host + colon))
}

/// Encodes what may not be sent in a request line.
fn encoded(target: &str) -> String {
    let mut encoded = String::with_capacity(target.len());
    for byte in target.bytes() {
        match byte {
            b'!'..=b'~' if !br#""<>\^`{|}"#.contains(&byte) => encoded.push(char::from(byte)),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

/// Resolves `.` and `..` in a path.
fn without_dots(target: &str) -> String {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            other => kept.push(other),
        }
    }
    let is_folder = kept.last() != Some(&"") && (path.ends_with("/.") || path.ends_with("/.."));
    if is_folder {
        kept.push("");
    }
    format!("/{}{query}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("it is a URL")
    }

    #[test]
    fn urls_are_split_and_encoded() {
        let parts = |text| {
            let url = url(text);
            (url.address(), url.request_target(), url.authority)
        };
        let expect = |address: &str, authority: &str, target: &str| {
            (address.to_owned(), target.to_owned(), authority.to_owned())
        };
        assert_eq!(parts("http://web"), expect("web:80", "web", "/"));
        assert_eq!(parts("HTTPS://web/a?b#c"), expect("web:443", "web", "/a?b"));
        assert_eq!(parts("http://web:8080?q=1"), expect("web:8080", "web:8080", "/?q=1"));
        assert_eq!(parts("http://web:/x y"), expect("web:80", "web:", "/x%20y"));
        assert_eq!(parts("http://[::1]"), expect("[::1]:80", "[::1]", "/"));
        assert_eq!(parts("http://[::1]:9/ü%2F"), expect("[::1]:9", "[::1]:9", "/%C3%BC%2F"));
        let with_user = url("http://me:secret@web/");
        assert_eq!(with_user.user.as_deref(), Some("me:secret"));
        assert_eq!(with_user.shown(), "http://***@web/");
        assert_eq!(url("https://token@web").shown(), "https://***@web");
        assert_eq!(url("http://web?q").shown(), "http://web?q");
    }

    #[test]
    fn user_and_password_are_masked() {
        for (text, shown) in [
            ("http://me:secret@web/a@b?c=d@e", "http://***@web/a@b?c=d@e"),
            ("https://token@web", "https://***@web"),
            ("http://me:p@ss@web/", "http://***@web/"),
            ("//me:secret@web", "//***@web"),
            ("http://me:se/cret@web/", "http://***@web/"),
            ("ftp://me:secret@web/", "ftp://***@web/"),
            ("http://web/a@b", "http://web/a@b"),
            ("/a@b", "/a@b"),
        ] {
            assert_eq!(masked(text), shown);
        }
    }

    #[test]
    fn errors_match_go() {
        for (text, why) in [
            (":foo", "missing protocol scheme"),
            ("127.0.0.1:80/x", "first path segment in URL cannot contain colon"),
            ("http://a\nb", "net/url: invalid control character in URL"),
            ("http://a b/", r#"invalid character " " in host name"#),
            ("http://a:x/", r#"invalid port ":x" after host"#),
            ("http://[::1/", "missing ']' in host"),
        ] {
            assert_eq!(Url::parse(text), Err(UrlError::Invalid(why.into())), "{text}");
        }
        for (text, why) in [
            ("", r#"unsupported protocol scheme """#),
            ("/x", r#"unsupported protocol scheme """#),
            ("ftp://a", r#"unsupported protocol scheme "ftp""#),
            ("localhost:80/x", r#"unsupported protocol scheme "localhost""#),
            ("http://", "http: no Host in request URL"),
            ("http:a", "http: no Host in request URL"),
        ] {
            assert_eq!(Url::parse(text), Err(UrlError::Unsupported(why.into())), "{text}");
        }
    }

    #[test]
    fn redirects_resolve_against_url() {
        let joined = |location| url("http://me@web:1/a/b?q").join(location).map(|url| url.shown());
        for (location, wanted) in [
            ("https://other/x", "https://other/x"),
            ("//other/x", "http://other/x"),
            ("/x/../y/./z?r", "http://***@web:1/y/z?r"),
            ("x", "http://***@web:1/a/x"),
            ("../x", "http://***@web:1/x"),
            ("../../../x", "http://***@web:1/x"),
            ("?r", "http://***@web:1/a/b?r"),
            ("#r", "http://***@web:1/a/b?q"),
            ("..", "http://***@web:1/"),
            (".", "http://***@web:1/a/"),
        ] {
            assert_eq!(joined(location), Ok(wanted.into()), "{location}");
        }
        assert!(joined("ftp://other").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_parsed_or_rejected(text in "([a-z]{0,5}:)?/{0,2}\\PC{0,20}", location in ".{0,20}") {
            let base = Url::parse(&text).unwrap_or_else(|_| url("http://[::1]:8/a/b?c"));
            for url in [base.join(&location), base.join(&text), Ok(base)].into_iter().flatten() {
                let target = url.request_target();
                prop_assert!(target.starts_with('/') && target.parse::<hyper::Uri>().is_ok(), "{target}");
                prop_assert_eq!(Url::parse(&url.shown()).map(|shown| shown.address()), Ok(url.address()));
            }
        }
    }
}
