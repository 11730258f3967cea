//! Configuration files in Consul's formats, JSON and HCL: not read, but searched for keys, so that
//! the error has a remedy for each one.
//!
//! The search knows strings, comments, braces and brackets, and nothing else of the two formats.

use lockmesh_agent::consul;
use lockmesh_net::config::listed;
use std::collections::BTreeSet;
use std::path::Path;

/// The reason to reject a file that is not TOML, with the keys of Consul in it; none if it is not
/// in one of Consul's formats.
pub(super) fn rejection(file: &Path, text: &str) -> Option<String> {
    let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let format = match extension.to_ascii_lowercase().as_str() {
        "hcl" => "HCL",
        "json" => "JSON",
        _ if text.trim_start().starts_with('{') => "JSON",
        _ => return None,
    };
    let mut features = BTreeSet::new();
    let mut lines = Vec::new();
    for (path, line) in keys(text) {
        if let Some((name, row)) = consul::key(&path)
            && features.insert(name)
        {
            lines.push(format!("line {line}: unknown key {}", row.explain(name)));
        }
    }
    let problem = format!(
        "this is {format}, but Lockmesh reads TOML: convert it with `lockmesh config from-consul {}`",
        file.display()
    );
    if lines.is_empty() { Some(problem) } else { Some(format!("{problem}\n{}", listed(&lines))) }
}

/// The dotted paths of keys with plain values or lists, with their lines.
fn keys(text: &str) -> Vec<(String, usize)> {
    let mut search = Search::default();
    let mut rest = text;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '#' => to(rest, "\n"),
            '/' if rest.starts_with("//") => to(rest, "\n"),
            '/' if rest.starts_with("/*") => to(rest, "*/") + "*/".len(),
            '"' => string(rest),
            _ if is_word(first) => rest.find(|other| !is_word(other)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
        search.take(token, line);
        line += token.matches('\n').count();
        rest = after;
    }
    search.found
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || "_-.".contains(character)
}

fn to(text: &str, end: &str) -> usize {
    text.find(end).unwrap_or(text.len())
}

/// The length of a string with its quotes.
fn string(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, character)| {
        let is_end = *character == '"' && !is_escaped;
        is_escaped = *character == '\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

#[derive(Default)]
struct Search {
    /// The keys of the sections and lists around the current token.
    around: Vec<String>,
    /// The first word since the last separator: a key, if one follows.
    word: Option<String>,
    /// A key whose value comes next, and its line.
    key: Option<(String, usize)>,
    found: Vec<(String, usize)>,
}

impl Search {
    fn take(&mut self, token: &str, line: usize) {
        match token {
            "=" | ":" => self.key = self.word.take().map(|word| (word, line)),
            "{" => self.open(),
            "[" => {
                let key = self.key.clone();
                self.value();
                self.key = key;
                self.open();
            }
            "}" | "]" => {
                self.around.pop();
                (self.word, self.key) = (None, None);
            }
            "," => (self.word, self.key) = (None, None),
            "\n" => self.word = None,
            _ if token.starts_with('"') || token.starts_with(is_word) => {
                if self.key.is_some() {
                    self.value();
                } else if self.word.is_none() {
                    self.word = Some(token.trim_matches('"').into());
                }
            }
            // Space and comments.
            _ => {}
        }
    }

    /// A section begins, of a key or of a block's first word.
    fn open(&mut self) {
        let key = self.key.take().map(|(key, _)| key);
        let word = self.word.take();
        self.around.push(key.or(word).unwrap_or_default());
    }

    /// The key has a value of its own.
    fn value(&mut self) {
        if let Some((key, line)) = self.key.take() {
            let around = self.around.iter().map(String::as_str).filter(|key| !key.is_empty());
            let path = around.chain([key.as_str()]).collect::<Vec<_>>().join(".");
            self.found.push((path, line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> String {
        keys(text).iter().map(|(path, line)| format!("{line} {path}")).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn json_keys_found_with_lines() {
        let text = "{\n  \"server\": true, \"ports\": {\"dns\": 8600,\n \"http\": -1},\n  \"retry_join\": [\"a:b\", \"c\"],\n  \
                    \"services\": [\n {\"name\": \"a \\\" = {b\"}, {\"id\": 2}],\n  \"bind_addr\": \"::\"\n}\n";
        let expected = "2 server\n2 ports.dns\n3 ports.http\n4 retry_join\n5 services\n6 services.name\n\
                        6 services.id\n7 bind_addr";
        assert_eq!(found(text), expected);
    }

    #[test]
    fn hcl_keys_found_with_lines() {
        let text = "# a = 1\nserver = true // b = 1\n/* c = 1\nd = 1 */ ports {\n  http = 8500\n}\naddresses = {\n  \
                    https = \"0.0.0.0\"\n}\nservice \"web\" {\n  port = 80\n}\nretry_join = [\"a\"]\nlog_level = \"x\"\n";
        let expected =
            "2 server\n5 ports.http\n8 addresses.https\n11 service.port\n13 retry_join\n14 log_level";
        assert_eq!(found(text), expected);
    }

    #[test]
    fn malformed_text_does_not_panic() {
        for text in ["", "{", "}}]]", "\"", "/*", "= = {", "a = \"ä", "ä = ß"] {
            let _ = keys(text);
        }
        assert_eq!(rejection(Path::new("agent.toml"), "server = "), None);
    }
}
