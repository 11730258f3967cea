//! Blanks everything except code. Every line keeps its number, so that a fault can name its line.

/// Returns the text with comments and the contents of string and character literals replaced by
/// spaces.
pub fn code_only(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < characters.len() {
        let rest = &characters[at..];
        let length = match rest {
            ['/', '/', ..] => line_comment(rest),
            ['/', '*', ..] => block_comment(rest),
            ['"', ..] => string(rest),
            ['\'', ..] => character(rest),
            ['r', '"' | '#', ..] if !follows_word(&characters, at) => raw_string(rest),
            _ => 0,
        };
        if length == 0 {
            code.push(rest[0]);
            at += 1;
        } else {
            code.extend(rest[..length].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at += length;
        }
    }
    code
}

/// Returns masked code without the items marked by `#[cfg(test)]`.
pub fn without_tests(code: &str) -> String {
    let mut real = String::with_capacity(code.len());
    let mut rest = code;
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        real.push_str(before);
        let (item, behind) = after.split_at(item_length(after));
        real.extend(item.chars().filter(|c| *c == '\n'));
        rest = behind;
    }
    real.push_str(rest);
    real
}

/// Returns the length in bytes of the item at the beginning of the text: to its `;`, or to the end
/// of its block.
pub fn item_length(code: &str) -> usize {
    let mut depth = 0_usize;
    let mut brackets = 0_usize;
    for (at, character) in code.char_indices() {
        match character {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            ';' if depth == 0 && brackets == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Returns `true` if the `r` at this position is the end of a name. `br"` and `cr"` begin a literal
/// too.
fn follows_word(characters: &[char], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map(|index| characters[index]);
    match before(1) {
        Some('b' | 'c') => before(2).is_some_and(super::is_word),
        Some(other) => super::is_word(other),
        None => false,
    }
}

fn line_comment(rest: &[char]) -> usize {
    rest.iter().position(|c| *c == '\n').unwrap_or(rest.len())
}

fn block_comment(rest: &[char]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(rest.len())
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Returns a raw string's length; 0 for a raw name such as `r#type`.
fn raw_string(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let body = 2 + hashes;
    let end = |at: &usize| {
        rest[*at] == '"' && rest[at + 1..].iter().take_while(|c| **c == '#').take(hashes).count() == hashes
    };
    (body..rest.len()).find(end).map_or(rest.len(), |at| at + 1 + hashes)
}

/// Returns a character literal's length; 0 for a lifetime.
fn character(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', ..] => {
            let close = rest.iter().skip(3).position(|c| *c == '\'');
            close.map_or(rest.len(), |at| at + 4)
        }
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let text =
            "a(\"x // y\"); // b\n/* c /* d */\n e */ f('{', '\\'', r#\"g\"h\"#, br\"i\\\");\n'k: loop {}";
        let code = code_only(text);
        assert_eq!(code.lines().count(), 4);
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a(", ");", "f(", ",", ",", ",", "b", ");", "'k:", "loop", "{}"]);
    }

    #[test]
    fn raw_names_are_code() {
        assert_eq!(code_only("r#type for\"x\""), "r#type for   ");
    }

    #[test]
    fn only_test_items_are_removed() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { [0; 1]; }\n}\nfn c() {}\n#[cfg(test)]\nmod d;\nfn e() {}";
        let real = without_tests(code);
        assert_eq!(real.lines().count(), code.lines().count());
        assert!(real.contains("fn a") && real.contains("fn c") && real.contains("fn e"));
        assert!(!real.contains("fn b") && !real.contains("mod d"));
    }
}
