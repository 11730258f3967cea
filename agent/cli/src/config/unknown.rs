//! Remedies for a key that does not exist: its name in Lockmesh if it is one of Consul's, similar
//! keys, or the keys of its section.

use lockmesh_agent::consul;
use lockmesh_net::config::listed;
use std::collections::BTreeSet;
use strsim::osa_distance;

/// The maximum number of characters by which a suggested key may differ.
const MAX_DISTANCE: usize = 2;

/// The maximum number of suggestions for one key.
const MAX_SUGGESTED: usize = 3;

/// A key of a file.
#[derive(Debug)]
pub(super) struct Key {
    /// Its path, as `http.tcp`.
    pub(super) path: String,
    /// Its line, from 1.
    pub(super) line: usize,
}

/// The notation of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// `http.tcp`
    Dotted,
    /// `HTTP_TCP`, behind [`super::PREFIX`].
    Variable,
}

impl Spelling {
    fn of(self, path: &str) -> String {
        match self {
            Self::Dotted => path.into(),
            Self::Variable => format!("{}{}", super::PREFIX, path.replace('.', "_").to_uppercase()),
        }
    }

    /// A path in the form in which this spelling distinguishes it from others.
    fn plain(self, path: &str) -> String {
        match self {
            Self::Dotted => path.into(),
            Self::Variable => path.replace('.', "_").to_lowercase(),
        }
    }
}

/// The unknown keys of a file, a line each; none if all are known. A feature of Consul is listed
/// once, also if it has several keys.
pub(super) fn of_file(mut keys: Vec<Key>, known: &[String]) -> Option<String> {
    keys.sort_by_key(|key| key.line);
    let mut features = BTreeSet::new();
    let mut lines = Vec::new();
    for key in keys.iter().filter(|key| !is_known(key, known)) {
        if consul::key(&key.path).is_none_or(|(name, _)| features.insert(name)) {
            lines.push(format!("line {}: {}", key.line, explain(&key.path, known, Spelling::Dotted)));
        }
    }
    match lines.len() {
        0 => None,
        1 => lines.pop(),
        count => Some(format!("{count} unknown keys\n{}", listed(&lines))),
    }
}

/// `true` for a key that exists, and for one whose value is of the wrong kind, which the parser
/// reports.
fn is_known(key: &Key, known: &[String]) -> bool {
    let inside = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    known.iter().any(|path| inside(&key.path, path)) || known.iter().any(|path| inside(path, &key.path))
}

/// The reason to reject an unknown key, and a remedy.
pub(super) fn explain(name: &str, known: &[String], spelling: Spelling) -> String {
    let unknown = match spelling {
        Spelling::Dotted => format!("unknown key `{name}`"),
        // The error begins with the variable.
        Spelling::Variable => "unknown key".into(),
    };
    if let Some((found, row)) = consul_key(name, spelling) {
        return format!("unknown key {}", row.explain(found));
    }
    let below = |section: &str| -> Vec<&str> {
        let start = format!("{section}.");
        known.iter().map(String::as_str).filter(|path| path.starts_with(&start)).collect()
    };
    let keys = below(name);
    if !keys.is_empty() {
        return format!("`{name}` is a section: its keys are {}", quoted(&keys, "and", spelling));
    }
    let similar = similar(name, known, spelling);
    if !similar.is_empty() {
        return format!("{unknown}; did you mean {}?", quoted(&similar, "or", spelling));
    }
    let (section, keys) = match name.rsplit_once('.').map(|(section, _)| (section, below(section))) {
        Some((section, keys)) if !keys.is_empty() => (format!(" of `{section}`"), keys),
        _ => {
            let tops: BTreeSet<_> = known.iter().map(|path| path.split('.').next().unwrap_or(path)).collect();
            (String::new(), tops.into_iter().collect())
        }
    };
    match spelling {
        Spelling::Dotted => {
            format!("{unknown}; the keys and sections{section} are {}", quoted(&keys, "and", spelling))
        }
        Spelling::Variable => {
            format!("{unknown}; a key `tcp` of section `http` is `{}`", spelling.of("http.tcp"))
        }
    }
}

/// Keys as a list in a sentence.
fn quoted(paths: &[&str], last: &str, spelling: Spelling) -> String {
    let quoted: Vec<_> = paths.iter().map(|path| format!("`{}`", spelling.of(path))).collect();
    match quoted.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => quoted.join(""),
    }
}

/// The row of a key of Consul.
fn consul_key(name: &str, spelling: Spelling) -> Option<(&'static str, &'static consul::Row)> {
    match spelling {
        Spelling::Dotted => consul::key(name),
        Spelling::Variable => {
            let names = consul::KEYS.iter().flat_map(|row| row.names);
            let plain = name.to_lowercase();
            names.filter(|known| spelling.plain(known) == plain).find_map(|known| consul::key(known))
        }
    }
}

/// The keys, or sections, that a misspelt name may mean: the nearest ones by the whole path, or by
/// the last word in any section.
pub(crate) fn similar<'k>(name: &str, known: &'k [String], spelling: Spelling) -> Vec<&'k str> {
    let name = spelling.plain(name);
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let sections = known.iter().filter_map(|path| path.split_once('.')).map(|(section, _)| section);
    let all: BTreeSet<&str> = known.iter().map(String::as_str).chain(sections).collect();
    let scored = all.into_iter().filter_map(|path| {
        let whole = osa_distance(&name, &spelling.plain(path));
        // A key of another section ranks below an equally similar path.
        let word = osa_distance(&last(&name), &last(path)) + 1;
        let distance = whole.min(word);
        // Of a short name, two wrong characters leave nothing.
        let most = MAX_DISTANCE.min(name.len().div_ceil(3));
        (distance <= most).then_some((distance, path))
    });
    let mut scored: Vec<_> = scored.collect();
    scored.sort_unstable();
    let nearest = scored.first().map(|(distance, _)| *distance);
    let nearest = scored.into_iter().filter(|(distance, _)| Some(*distance) == nearest);
    nearest.map(|(_, path)| path).take(MAX_SUGGESTED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_net::config::MAX_LISTED;

    fn known() -> Vec<String> {
        ["data_dir", "http.listen", "http.socket", "http.tcp", "rpc.advertise", "rpc.listen"]
            .map(String::from)
            .into()
    }

    #[test]
    fn misspelt_key_suggests_nearest() {
        let known = known();
        for (name, suggested) in [
            ("rpc.lisen", vec!["rpc.listen"]),
            ("rcp.listen", vec!["rpc.listen", "http.listen"]),
            ("listen", vec!["http.listen", "rpc.listen"]),
            ("rpc.tcp", vec!["http.tcp"]),
            ("datadir", vec!["data_dir"]),
            ("htp", vec!["http"]),
            ("colour", vec![]),
            ("http.colour", vec![]),
        ] {
            let found = similar(name, &known, Spelling::Dotted);
            assert!(suggested.iter().all(|path| found.contains(path)), "{name}: {found:?}");
            assert_eq!(found.is_empty(), suggested.is_empty(), "{name}: {found:?}");
        }
        assert_eq!(similar("RPC_LISEN", &known, Spelling::Variable), ["rpc.listen"]);
    }

    #[test]
    fn dissimilar_key_lists_known_keys() {
        let explained = |name| explain(name, &known(), Spelling::Dotted);
        assert_eq!(
            explained("colour"),
            "unknown key `colour`; the keys and sections are `data_dir`, `http` and `rpc`"
        );
        assert_eq!(
            explained("rpc.colour"),
            "unknown key `rpc.colour`; the keys and sections of `rpc` are `rpc.advertise` and `rpc.listen`"
        );
        assert_eq!(
            explain("COLOUR", &known(), Spelling::Variable),
            "unknown key; a key `tcp` of section `http` is `LOCKMESH_CONFIG_HTTP_TCP`"
        );
    }

    #[test]
    fn type_mismatch_left_to_parser() {
        let key = |path: &str| Key { path: path.into(), line: 1 };
        for good in ["http.tcp", "http", "http.tcp.port"] {
            assert_eq!(of_file(vec![key(good)], &known()), None);
        }
        let other = of_file(vec![key("nodes")], &known());
        assert!(other.expect("it is unknown").starts_with("line 1: unknown key `nodes`"));
    }

    #[test]
    fn a_long_list_is_cut() {
        let keys = (1..=100).map(|line| Key { path: format!("colour_{line}"), line });
        let problem = of_file(keys.collect(), &known()).expect("none is known");
        assert_eq!(problem.lines().count(), MAX_LISTED + 2);
        assert!(problem.starts_with("100 unknown keys\n") && problem.ends_with("\nand 60 more"), "{problem}");
    }
}
