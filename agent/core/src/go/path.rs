//! Paths: percent-decoding, cleaning as Go's router does it, and the check for printable
//! characters.

use std::borrow::Cow;

/// Decodes `%` escapes. Returns `None` if one is invalid.
pub fn percent_decode(text: &str) -> Option<Cow<'_, [u8]>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text.as_bytes()));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte == b'%' {
            let (high, low) = (hex(*rest.first()?)?, hex(*rest.get(1)?)?);
            decoded.push(high << 4 | low);
            rest = &rest[2..];
        } else {
            decoded.push(*byte);
        }
    }
    Some(Cow::Owned(decoded))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// A path without its escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// The path; each byte that is not UTF-8 is U+FFFD.
    pub text: Cow<'a, str>,
    /// Set if the bytes are not UTF-8. Go's strings can hold such bytes, the state's keys cannot.
    pub is_lossy: bool,
}

/// Decodes a whole path. Returns `None` if an escape is invalid.
pub fn decode(raw: &str) -> Option<Decoded<'_>> {
    let (text, is_lossy) = match percent_decode(raw)? {
        Cow::Borrowed(_) => (Cow::Borrowed(raw), false),
        Cow::Owned(bytes) => match String::from_utf8(bytes) {
            Ok(text) => (Cow::Owned(text), false),
            Err(error) => (Cow::Owned(String::from_utf8_lossy(error.as_bytes()).into_owned()), true),
        },
    };
    Some(Decoded { text, is_lossy })
}

/// Returns the first character that is not printable: a control, a separator except the plain
/// space, or an unassigned one.
pub fn unprintable(text: &str) -> Option<char> {
    // Nearly every path is plain ASCII, which needs no decoding.
    match text.bytes().all(|byte| (b' '..0x7f).contains(&byte)) {
        true => None,
        false => text.chars().find(|character| !is_printable(*character)),
    }
}

fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    // The standard library's debug escapes know the printable characters. After another character
    // they keep combining marks, which are printable too.
    let mut buffer = [b'a'; 5];
    let length = character.encode_utf8(&mut buffer[1..]).len();
    let text = std::str::from_utf8(&buffer[..=length]).expect("a letter and one more character are UTF-8");
    text.escape_debug().nth(1) != Some('\\')
}

/// Returns the path without `//`, `/./` and `/../`; `None` if it has none of them.
pub fn cleaned(path: &str) -> Option<String> {
    if !needs_cleaning(path) {
        return None;
    }
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            other => kept.push(other),
        }
    }
    let mut clean = format!("/{}", kept.join("/"));
    // With a trailing `/` it is another key than without.
    if path.ends_with('/') && clean != "/" {
        clean.push('/');
    }
    (clean != path).then_some(clean)
}

fn needs_cleaning(path: &str) -> bool {
    !path.starts_with('/') || path.contains("//") || path.contains("/./") || path.contains("/../") || {
        path.ends_with("/.") || path.ends_with("/..")
    }
}

/// Encodes a path for a `Location` header.
pub fn encode(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => encoded.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'~' | b'/' | b'$' | b'&' | b'+' | b',' | b':' | b';' | b'=' | b'@' => {
                encoded.push(char::from(byte));
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decodes_escapes_but_keeps_plus() {
        let text = |raw| decode(raw).map(|path| (path.text.into_owned(), path.is_lossy));
        assert_eq!(text("/v1/kv/a%2Fb+c%20%C3%A9"), Some(("/v1/kv/a/b+c é".into(), false)));
        assert_eq!(text("/v1/kv/%EF%BF%BD"), Some(("/v1/kv/\u{fffd}".into(), false)));
        assert_eq!(text("/v1/kv/a%ffb%C3"), Some(("/v1/kv/a\u{fffd}b\u{fffd}".into(), true)));
        assert_eq!(text("/v1/kv/%zz"), None);
        assert_eq!(text("/v1/kv/%f"), None);
    }

    #[test]
    fn unclean_paths_are_cleaned() {
        for (path, clean) in [
            ("/v1//kv/a", Some("/v1/kv/a")),
            ("/v1/kv/a/./b", Some("/v1/kv/a/b")),
            ("/v1/kv/a/../b/", Some("/v1/kv/b/")),
            ("/v1/kv/a//", Some("/v1/kv/a/")),
            ("/..", Some("/")),
            ("", Some("/")),
            ("/v1/kv/a/b/", None),
            ("/v1/kv/.a/b..", None),
            ("/", None),
        ] {
            assert_eq!(cleaned(path).as_deref(), clean, "{path}");
        }
    }

    #[test]
    fn unprintable_characters_detected() {
        for good in ["abc ~", "é", "日本", "e\u{301}", "🦀", "\u{fffd}"] {
            assert_eq!(unprintable(good), None, "{good:?}");
        }
        for bad in
            ["a\nb", "\u{0}", "\u{7f}", "\u{85}", "\u{a0}", "\u{200b}", "\u{2028}", "\u{e000}", "\u{ad}"]
        {
            assert!(unprintable(bad).is_some(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn encode_decode_round_trip(path in "/.{0,24}") {
            let encoded = encode(&path);
            let decoded = decode(&encoded).filter(|path| !path.is_lossy).map(|path| path.text.into_owned());
            prop_assert_eq!(decoded, Some(path));
        }

        #[test]
        fn a_clean_path_stays(path in "(/[a./]{0,3}){0,6}") {
            if let Some(clean) = cleaned(&path) {
                prop_assert_eq!(cleaned(&clean), None);
            }
        }
    }
}
