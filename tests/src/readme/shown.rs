//! Compares actual output with documented output. Ports, ids and times may differ, and with them
//! the width of a table's columns.

use super::terminal::HOME;

/// The placeholder for any number of lines.
const ANY_LINES: &str = "…";

/// The home folder that the documents show.
const SHOWN_HOME: &str = "/home/ada";

/// Returns `true` if the lines match the documented ones.
pub fn fits(shown: &[String], said: &[String]) -> bool {
    match shown.split_first() {
        None => said.is_empty(),
        Some((line, rest)) if line == ANY_LINES => (0..=said.len()).any(|passed| fits(rest, &said[passed..])),
        Some((line, rest)) => {
            said.split_first().is_some_and(|(first, others)| is_like(line, first) && fits(rest, others))
        }
    }
}

/// Returns `true` if all documented lines are among the actual ones, in the same order.
pub fn are_among(shown: &[String], said: &[String]) -> bool {
    let mut said = said.iter();
    shown.iter().all(|line| said.any(|other| is_like(line, other)))
}

fn is_like(shown: &str, said: &str) -> bool {
    masked(shown) == masked(said)
}

/// Returns a line with its variable parts masked.
fn masked(line: &str) -> String {
    let line = match line.split_once("confirmed by ") {
        // Any majority of the servers, in any order.
        Some((before, after)) => {
            let end = after.find(')').unwrap_or(after.len());
            format!("{before}confirmed by SERVERS{}", &after[end..])
        }
        None => line.to_owned(),
    };
    let line = line.replace(HOME, SHOWN_HOME);
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let before = words.last().map_or("", String::as_str);
        let is_number = word.trim_end_matches([',', ')']).chars().all(|c| c.is_ascii_digit());
        let is_counted = ["pid", "index"].iter().any(|word| before.ends_with(word))
            || (before.contains("Index") && !before.contains("LockIndex"));
        let is_size = word.starts_with("bytes") && !before.is_empty();
        if is_size && before.chars().all(|c| c.is_ascii_digit()) {
            *words.last_mut().expect("there is one before it") = "NUMBER".into();
        }
        // The remaining delay depends on the time of the request.
        let is_rest = words.ends_with(&["lock-delay".into(), "for".into()]);
        words.push(match word {
            _ if is_rest => "REST".into(),
            _ if is_number && is_counted => "NUMBER".into(),
            _ => masked_word(word),
        });
    }
    words.join(" ")
}

fn masked_word(word: &str) -> String {
    // Characters around an id or a time stay, such as brackets and commas.
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
    let mut masked = String::new();
    let mut rest = word;
    while let Some(begin) = rest.find(is_part) {
        let end = rest[begin..].find(|c| !is_part(c)).map_or(rest.len(), |length| begin + length);
        masked.push_str(&rest[..begin]);
        masked.push_str(&masked_part(&rest[begin..end]));
        rest = &rest[end..];
    }
    masked + rest
}

fn masked_part(part: &str) -> String {
    let shape: String = part.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let is_id = part.len() == 36 && part.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    let (whole, unit) = part.split_at(part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len()));
    let is_fraction = !whole.is_empty() && {
        let fraction = unit.strip_prefix('.').unwrap_or_default();
        let digits = fraction.trim_end_matches("ms").trim_end_matches('s');
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
    };
    if is_id {
        "ID".into()
    } else if shape == "0000-00-00" {
        "DATE".into()
    } else if shape == "00:00:00Z" {
        "TIME".into()
    } else if is_fraction {
        "SECONDS".into()
    } else if let Some(folder) = part.strip_prefix("lockmesh-dev-") {
        format!("lockmesh-dev-{}", "X".repeat(folder.len().min(1)))
    } else if let Some((host, port)) = part.rsplit_once(':')
        && host.contains('.')
        && port != "8500"
    {
        format!("{host}:PORT")
    } else {
        part.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn masks_only_ports_ids_times() {
        for (shown, said) in [
            (
                "n4  127.0.0.1:44120  failed  2026-11-22 10:00:00Z",
                "n4 127.0.0.1:5 failed 2027-01-02 23:59:59Z",
            ),
            ("(silent for 1.66s; confirmed by s1, s2)", "(silent for 1.501234s; confirmed by s3, s1, s2)"),
            ("  0.09 s  n4 (pid 48) is killed", " 12.10 s  n4 (pid 12345) is killed"),
            ("\"CreateIndex\": 16,", "\"CreateIndex\": 9,"),
            ("closed by its lock-delay for 1s, 1 waiting", "closed by its lock-delay for 980ms, 1 waiting"),
            ("b.snap: 960 bytes, index 5", "b.snap: 1024 bytes, index 17"),
            ("id=6f2d1a52-7f3b-4a44-9c55-0c8b3b8f1e11,", "id=d14a83f3-4c69-2327-974f-dcbad0658dff,"),
            ("socket=/home/ada/fleet/n1/agent.sock", "socket=/tmp/home/fleet/n1/agent.sock"),
            ("socket=/tmp/lockmesh-dev-0o0H7l/agent.sock", "socket=/tmp/lockmesh-dev-Ab12Cd/agent.sock"),
        ] {
            assert!(is_like(shown, said), "{} and {}", masked(shown), masked(said));
        }
        for (shown, said) in [
            ("mine, fence 1", "mine, fence 2"),
            ("n4 alive", "n4 failed"),
            ("ready http=127.0.0.1:8500", "ready http=127.0.0.1:8501"),
            ("\"LockIndex\": 1,", "\"LockIndex\": 2,"),
            ("0.1.0", "0.2.0"),
            ("1s", "2s"),
        ] {
            assert!(!is_like(shown, said), "{} and {}", masked(shown), masked(said));
        }
    }

    #[test]
    fn an_ellipsis_is_any_lines() {
        assert!(fits(&lines(&["…", "b", "…"]), &lines(&["a", "b"])));
        assert!(!fits(&lines(&["…", "b"]), &lines(&["b", "c"])));
        assert!(!fits(&lines(&["b"]), &lines(&[])));
        assert!(are_among(&lines(&["a", "c"]), &lines(&["a", "b", "c"])));
        assert!(!are_among(&lines(&["c", "a"]), &lines(&["a", "b", "c"])));
    }
}
