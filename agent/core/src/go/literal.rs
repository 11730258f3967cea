//! String literals, as Go's `strconv` writes and reads them.

/// Returns a string literal of this text.
pub fn quoted(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for char in text.chars() {
        match (char, letter_of(char)) {
            (_, Some(letter)) => literal.extend(['\\', letter]),
            // The standard library's debug escapes know the printable characters.
            _ if char.escape_debug().next() != Some('\\') || char == '\'' => literal.push(char),
            _ => literal.push_str(&match char as u32 {
                code @ ..0x80 => format!("\\x{code:02x}"),
                code @ ..0x1_0000 => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    literal.push('"');
    literal
}

/// The escapes of one letter.
const LETTERS: [(char, char); 9] = [
    ('\x07', 'a'),
    ('\x08', 'b'),
    ('\x0c', 'f'),
    ('\n', 'n'),
    ('\r', 'r'),
    ('\t', 't'),
    ('\x0b', 'v'),
    ('\\', '\\'),
    ('"', '"'),
];

fn letter_of(char: char) -> Option<char> {
    LETTERS.iter().find(|(known, _)| *known == char).map(|(_, letter)| *letter)
}

/// Returns the text between backquotes, from which Go drops carriage returns.
pub fn unquoted_raw(inner: &str) -> String {
    inner.replace('\r', "")
}

/// Returns the text of a string literal between double quotes; `None` if an escape is invalid or a
/// line break is not escaped. Bytes that are not UTF-8 become replacement characters.
pub fn unquoted(inner: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(char) = rest.chars().next() {
        rest = &rest[char.len_utf8()..];
        match char {
            '\n' => return None,
            '\\' => rest = escape(rest, &mut bytes)?,
            _ => bytes.extend(char.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads what follows a backslash, and returns the text after it.
fn escape<'t>(rest: &'t str, bytes: &mut Vec<u8>) -> Option<&'t str> {
    let letter = rest.chars().next()?;
    if let Some((char, _)) = LETTERS.iter().find(|(_, known)| *known == letter) {
        bytes.push(u8::try_from(*char).ok()?);
        return Some(&rest[1..]);
    }
    let (first, length, radix) = match letter {
        'x' => (1, 2, 16),
        'u' => (1, 4, 16),
        'U' => (1, 8, 16),
        '0'..='7' => (0, 3, 8),
        _ => return None,
    };
    let digits = rest.get(first..first + length)?;
    let is_digits = digits.chars().all(|digit| digit.is_digit(radix));
    let code = is_digits.then(|| u32::from_str_radix(digits, radix).ok())??;
    match letter {
        'u' | 'U' if code <= char::MAX as u32 => {
            let char = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
            bytes.extend(char.encode_utf8(&mut [0; 4]).bytes());
        }
        'u' | 'U' => return None,
        _ => bytes.push(u8::try_from(code).ok()?),
    }
    Some(&rest[first + length..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quotes_like_go() {
        for (text, literal) in [
            ("plain ü 世", r#""plain ü 世""#),
            ("\"a\\'b\"", r#""\"a\\'b\"""#),
            ("\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
            ("\0\x7f\u{85}\u{e0001}", r#""\x00\x7f\u0085\U000e0001""#),
        ] {
            assert_eq!(quoted(text), literal);
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for bad in
            [r"\q", r"\'", r"\", r"\x1", r"\x1g", r"\400", r"\08", r"\u12", r"\U00110000", "\n", r"\x+1"]
        {
            assert_eq!(unquoted(bad), None, "{bad}");
        }
        assert_eq!(unquoted(r"\101\x42\u0043\U00000044\ud800").as_deref(), Some("ABCD\u{fffd}"));
        assert_eq!(unquoted_raw("a\r\n\\"), "a\n\\");
    }

    proptest! {
        #[test]
        fn reads_what_it_wrote(text in any::<String>()) {
            let literal = quoted(&text);
            prop_assert_eq!(unquoted(&literal[1..literal.len() - 1]), Some(text));
        }
    }
}
