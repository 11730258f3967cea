//! The two formats of Consul's configuration files and ACL rules: JSON, and version 1 of HCL.
//!
//! Version 2 of HCL is another language: it rejects quoted keys, commas between attributes and
//! repeated keys, all of which Consul's files have. Every value keeps its line, for errors and
//! findings.

use std::collections::BTreeMap;

/// The maximum depth of sections and lists.
const MAX_DEPTH: usize = 64;

/// The format of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON, such as a `.json` file.
    Json,
    /// HCL, such as a `.hcl` file; a text that begins with `{` is JSON.
    Hcl,
}

/// A value and its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Its line, from 1.
    pub line: usize,
}

/// The members of a section.
pub type Members = BTreeMap<String, Node>;

/// A value. With [`Format::Hcl`], a section is a list of sections, because its key may be repeated.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null` of JSON.
    Null,
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(String),
    /// The elements of a list.
    List(Vec<Node>),
    /// The members of a section.
    Section(Members),
}

/// The reason why a text cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct SyntaxError {
    line: usize,
    problem: String,
}

/// Parses a whole text.
///
/// # Errors
/// The first line that violates the format.
pub fn parse(text: &str, format: Format) -> Result<Members, SyntaxError> {
    let is_json = format == Format::Json || text.trim_start().starts_with('{');
    let mut reader = Reader { rest: text, line: 1, depth: 0, repeats: format == Format::Hcl, is_json };
    reader.space()?;
    let members = match is_json {
        true => {
            reader.expect('{')?;
            reader.json_members()?
        }
        false => reader.members(None)?,
    };
    reader.space()?;
    match reader.peek() {
        None => Ok(members),
        Some(found) => Err(reader.wrong(format!("expected the end of the text, found {found:?}"))),
    }
}

struct Reader<'t> {
    rest: &'t str,
    line: usize,
    depth: usize,
    /// Sections of the same key become a list.
    repeats: bool,
    is_json: bool,
}

impl<'t> Reader<'t> {
    fn wrong(&self, problem: impl Into<String>) -> SyntaxError {
        SyntaxError { line: self.line, problem: problem.into() }
    }

    fn unexpected(&self, wanted: &str) -> SyntaxError {
        match self.peek() {
            Some(found) => self.wrong(format!("expected {wanted}, found {found:?}")),
            None => self.wrong(format!("expected {wanted}, found the end of the text")),
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Takes this number of bytes, which end at a character.
    fn take(&mut self, bytes: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'t str {
        self.take(self.rest.find(|character| !is_part(character)).unwrap_or(self.rest.len()))
    }

    fn takes(&mut self, wanted: char) -> bool {
        let is_next = self.peek() == Some(wanted);
        if is_next {
            self.take(wanted.len_utf8());
        }
        is_next
    }

    fn expect(&mut self, wanted: char) -> Result<(), SyntaxError> {
        if self.takes(wanted) { Ok(()) } else { Err(self.unexpected(&format!("{wanted:?}"))) }
    }

    /// Skips space and, in HCL, comments.
    fn space(&mut self) -> Result<(), SyntaxError> {
        loop {
            self.take_while(|character| " \t\r\n".contains(character));
            if self.is_json {
                return Ok(());
            }
            if self.rest.starts_with('#') || self.rest.starts_with("//") {
                self.take_while(|character| character != '\n');
            } else if self.rest.starts_with("/*") {
                let end = self.rest.find("*/").ok_or_else(|| self.wrong("the comment has no end: add */"))?;
                self.take(end + "*/".len());
            } else {
                return Ok(());
            }
        }
    }

    fn enter(&mut self) -> Result<(), SyntaxError> {
        // The reader is recursive: deeper input would overflow the stack.
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.wrong(format!("more than {MAX_DEPTH} sections and lists inside each other")));
        }
        Ok(())
    }

    /// Adds a member. The last value of a key applies; sections of HCL become a list.
    fn add(&self, members: &mut Members, key: String, mut node: Node) {
        if self.repeats && matches!(node.value, Value::Section(_)) {
            let line = node.line;
            node = Node { value: Value::List(vec![node]), line };
        }
        if self.repeats
            && let Value::List(new) = &mut node.value
            && let Some(Node { value: Value::List(known), .. }) = members.get_mut(&key)
            && known.iter().chain(new.iter()).all(|node| matches!(node.value, Value::Section(_)))
        {
            known.append(new);
            return;
        }
        members.insert(key, node);
    }

    /// The members of a JSON object behind its brace.
    fn json_members(&mut self) -> Result<Members, SyntaxError> {
        self.enter()?;
        let mut members = Members::new();
        self.space()?;
        if !self.takes('}') {
            loop {
                self.space()?;
                let line = self.line;
                let key = self.json_string()?;
                self.space()?;
                self.expect(':')?;
                let node = Node { line, ..self.json_value()? };
                self.add(&mut members, key, node);
                self.space()?;
                if self.takes('}') {
                    break;
                }
                self.expect(',')?;
            }
        }
        self.depth -= 1;
        Ok(members)
    }

    fn json_value(&mut self) -> Result<Node, SyntaxError> {
        self.space()?;
        let line = self.line;
        let value = match self.peek() {
            Some('"') => Value::Text(self.json_string()?),
            Some('{') => {
                self.take(1);
                Value::Section(self.json_members()?)
            }
            Some('[') => Value::List(self.list(Self::json_value)?),
            Some(first) if first == '-' || first.is_ascii_digit() => self.number()?,
            Some(first) if first.is_alphabetic() => match self.take_while(char::is_alphanumeric) {
                "true" => Value::Flag(true),
                "false" => Value::Flag(false),
                "null" => Value::Null,
                word => return Err(self.wrong(format!("expected a value, found {word:?}"))),
            },
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Node { value, line })
    }

    fn json_string(&mut self) -> Result<String, SyntaxError> {
        if self.peek() != Some('"') {
            return Err(self.unexpected("a string in double quotes"));
        }
        let mut is_escaped = false;
        let end = self.rest.char_indices().skip(1).find(|(_, character)| {
            let is_end = *character == '"' && !is_escaped;
            is_escaped = *character == '\\' && !is_escaped;
            is_end
        });
        let (end, _) = end.ok_or_else(|| self.wrong("the string has no end"))?;
        let quoted = &self.rest[..=end];
        // The JSON library knows all escapes, such as surrogate pairs.
        let text = serde_json::from_str(quoted).map_err(|_| self.wrong("the string has a wrong escape"))?;
        self.take(quoted.len());
        Ok(text)
    }

    /// The elements of a list, with its brackets. HCL permits a comma behind the last one.
    fn list(
        &mut self,
        element: impl Fn(&mut Self) -> Result<Node, SyntaxError>,
    ) -> Result<Vec<Node>, SyntaxError> {
        self.expect('[')?;
        self.enter()?;
        let mut elements = Vec::new();
        self.space()?;
        if !self.takes(']') {
            loop {
                elements.push(element(self)?);
                self.space()?;
                if self.takes(']') {
                    break;
                }
                self.expect(',')?;
                self.space()?;
                if !self.is_json && self.takes(']') {
                    break;
                }
            }
        }
        self.depth -= 1;
        Ok(elements)
    }

    fn number(&mut self) -> Result<Value, SyntaxError> {
        let text =
            self.take_while(|character| character.is_ascii_alphanumeric() || "+-.".contains(character));
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
        let radix = |digits: &str, radix| i64::from_str_radix(digits, radix).ok().map(|number| sign * number);
        // A leading zero means octal in HCL, but not in `0.5`.
        let octal = |digits: &&str| !self.is_json && digits.bytes().all(|digit| digit.is_ascii_digit());
        let whole = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(digits) if !self.is_json => radix(digits, 16),
            _ => match digits.strip_prefix('0').filter(|digits| !digits.is_empty()).filter(octal) {
                Some(digits) => radix(digits, 8),
                None => text.parse().ok(),
            },
        };
        // Rust parses `1e999` as infinite, which no configuration can contain.
        let float = || text.parse().ok().filter(|number: &f64| number.is_finite());
        // JSON writes a whole number as `80.0` or `8e1`, too.
        let value = whole.map(Value::Integer).or_else(|| float().map(Value::Float));
        value.ok_or_else(|| self.wrong(format!("{text:?} is not a number")))
    }

    /// The members of an HCL section, up to its brace or the end of the text.
    fn members(&mut self, end: Option<char>) -> Result<Members, SyntaxError> {
        self.enter()?;
        let mut members = Members::new();
        loop {
            self.space()?;
            match self.peek() {
                found if found == end => break,
                None => return Err(self.unexpected("\"}\"")),
                Some(_) => self.member(&mut members)?,
            }
            self.space()?;
            self.takes(',');
        }
        if end.is_some() {
            self.take(1);
        }
        self.depth -= 1;
        Ok(members)
    }

    /// `key = value`, `key { … }` or `key "label" { … }`, where the label is a section in that of
    /// the key.
    fn member(&mut self, members: &mut Members) -> Result<(), SyntaxError> {
        let line = self.line;
        let key = self.key()?;
        self.space()?;
        let value = match self.peek() {
            Some('=') => {
                self.take(1);
                self.value()?.value
            }
            Some('{') => self.section()?,
            Some(first) if first == '"' || is_first(first) => {
                // Each label is a section, so that a long line of labels has the same limit.
                self.enter()?;
                let mut inner = Members::new();
                self.member(&mut inner)?;
                self.depth -= 1;
                // Behind a label, only a section may follow.
                if !inner.values().all(|node| matches!(node.value, Value::List(_))) {
                    return Err(self.wrong(format!("expected `=` or `{{` behind the key {key:?}")));
                }
                Value::Section(inner)
            }
            _ => return Err(self.unexpected(&format!("`=` or `{{` behind the key {key:?}"))),
        };
        self.add(members, key, Node { value, line });
        Ok(())
    }

    fn key(&mut self) -> Result<String, SyntaxError> {
        match self.peek() {
            Some('"') => self.string(),
            Some(first) if is_first(first) => Ok(self.take_while(is_word).into()),
            _ => Err(self.unexpected("a key")),
        }
    }

    fn section(&mut self) -> Result<Value, SyntaxError> {
        self.expect('{')?;
        self.members(Some('}')).map(Value::Section)
    }

    fn value(&mut self) -> Result<Node, SyntaxError> {
        self.space()?;
        let line = self.line;
        let value = match self.peek() {
            Some('"') => Value::Text(self.string()?),
            Some('<') => Value::Text(self.heredoc()?),
            Some('{') => self.section()?,
            Some('[') => Value::List(self.list(Self::value)?),
            Some(first) if first == '-' || first.is_ascii_digit() => self.number()?,
            Some(first) if is_first(first) => match self.take_while(is_word) {
                "true" => Value::Flag(true),
                "false" => Value::Flag(false),
                word => {
                    return Err(self.wrong(format!("expected a value, found {word:?}: put text in quotes")));
                }
            },
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Node { value, line })
    }

    /// A string in quotes. Inside `${…}`, which Consul keeps as it is, quotes do not end it.
    fn string(&mut self) -> Result<String, SyntaxError> {
        // Made here, because the error names the line at which the string begins.
        let unfinished = self.wrong("the string has no end");
        self.expect('"')?;
        let mut text = String::new();
        let mut braces = 0usize;
        loop {
            let first = self.peek().ok_or_else(|| unfinished.clone())?;
            match first {
                '"' if braces == 0 => break,
                '\n' if braces == 0 => return Err(unfinished),
                '\\' if braces == 0 => {
                    self.take(1);
                    text.push(self.escape()?);
                    continue;
                }
                '$' if self.rest.starts_with("${") => {
                    braces += 1;
                    text.push_str(self.take("${".len()));
                    continue;
                }
                '{' if braces > 0 => braces += 1,
                '}' if braces > 0 => braces -= 1,
                _ => {}
            }
            text.push_str(self.take(first.len_utf8()));
        }
        self.take(1);
        Ok(text)
    }

    /// The character of an escape behind its backslash.
    fn escape(&mut self) -> Result<char, SyntaxError> {
        let wrong = self.wrong("the string has a wrong escape: write a backslash as \\\\");
        let first = self.peek().ok_or_else(|| wrong.clone())?;
        let (radix, digits) = match first {
            'x' => (16, 2),
            'u' => (16, 4),
            'U' => (16, 8),
            '0'..='7' => (8, 3),
            _ => (0, 0),
        };
        if digits > 0 {
            // The first digit of an octal escape is part of its number.
            if radix == 16 {
                self.take(1);
            }
            // `get`, because the text may end or have a longer character within the digits.
            let code = self.rest.get(..digits).and_then(|code| u32::from_str_radix(code, radix).ok());
            let character = code.and_then(char::from_u32).ok_or(wrong)?;
            self.take(digits);
            return Ok(character);
        }
        let character = match first {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '\\' | '"' => first,
            _ => return Err(wrong),
        };
        self.take(1);
        Ok(character)
    }

    /// `<<END`, the lines of the text, and a line with `END`. With `<<-`, the indentation of the
    /// last line is removed from the others, if all have it.
    fn heredoc(&mut self) -> Result<String, SyntaxError> {
        // Made here, because the error names the line at which the text begins.
        let unfinished = self.wrong("the text behind `<<` has no end: end it with a line of its own");
        if !self.rest.starts_with("<<") {
            return Err(self.unexpected("a value"));
        }
        self.take("<<".len());
        let is_indented = self.takes('-');
        let marker = self.take_while(|character| character.is_alphanumeric() || character == '_');
        // Files of Windows end their lines with both.
        self.takes('\r');
        if marker.is_empty() || !self.takes('\n') {
            return Err(self.wrong("expected `<<END` and a new line"));
        }
        let mut lines = Vec::new();
        loop {
            let line = self.take_while(|character| character != '\n');
            if line.trim() == marker {
                let indentation = &line[..line.len() - line.trim_start().len()];
                if is_indented && lines.iter().all(|line: &&str| line.starts_with(indentation)) {
                    lines.iter_mut().for_each(|line| *line = &line[indentation.len()..]);
                }
                return Ok(lines.iter().flat_map(|line| [*line, "\n"]).collect());
            }
            if !self.takes('\n') {
                return Err(unfinished);
            }
            lines.push(line);
        }
    }
}

fn is_first(character: char) -> bool {
    character.is_alphabetic() || character == '_'
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || "_-.".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values with their lines, one form for both formats.
    fn shown(members: &Members) -> String {
        let show = |(key, node): (&String, &Node)| format!("{key}@{}={}", node.line, value(&node.value));
        members.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    fn value(of: &Value) -> String {
        match of {
            Value::Null => "null".into(),
            Value::Flag(flag) => flag.to_string(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => format!("{number:?}"),
            Value::Text(text) => format!("{text:?}"),
            Value::List(list) => {
                format!("[{}]", list.iter().map(|node| value(&node.value)).collect::<Vec<_>>().join(","))
            }
            Value::Section(members) => format!("{{{}}}", shown(members)),
        }
    }

    fn hcl(text: &str) -> String {
        parse(text, Format::Hcl).map_or_else(|error| error.to_string(), |members| shown(&members))
    }

    fn json(text: &str) -> String {
        parse(text, Format::Json).map_or_else(|error| error.to_string(), |members| shown(&members))
    }

    #[test]
    fn hcl_parsed_like_consul() {
        for (text, expected) in [
            ("a = 1\nb = true // c\n# d = 1\n/* e\n */ f = -2", "a@1=1 b@2=true f@5=-2"),
            ("a=1,\nb={c=1,d=2},\n", "a@1=1 b@2=[{c@2=1 d@2=2}]"),
            ("m { \"x.y\" = \"1\" z = \"2\" }", "m@1=[{x.y@1=\"1\" z@1=\"2\"}]"),
            ("s { a = 1 }\ns { a = 2 }", "s@1=[{a@1=1},{a@2=2}]"),
            ("s = [{ a = 1 }, { a = 2 },]", "s@1=[{a@1=1},{a@1=2}]"),
            ("a = 1\na = 2", "a@2=2"),
            ("a = [\"x\"]\na = [\"y\"]", "a@2=[\"y\"]"),
            ("s \"web\" { a = 1 }", "s@1=[{web@1=[{a@1=1}]}]"),
            ("a = 0x10 b = 010 c = 1.5 d = 1e3", "a@1=16 b@1=8 c@1=1.5 d@1=1000.0"),
            ("a.b = 1 c-d = 2 _e = 3", "_e@1=3 a.b@1=1 c-d@1=2"),
            (r#"a = "x \"y\" \\ \t \u00e4 \x41 \101""#, "a@1=\"x \\\"y\\\" \\\\ \\t ä A A\""),
            (r#"a = "{{ GetInterfaceIP \"eth0\" }}""#, "a@1=\"{{ GetInterfaceIP \\\"eth0\\\" }}\""),
            (r#"a = "${f("x")}""#, "a@1=\"${f(\\\"x\\\")}\""),
            ("a = <<E\n x\ny\nE\nb = 1", "a@1=\" x\\ny\\n\" b@5=1"),
            ("a = <<-E\n   x\n  y\n  E\nb = 1", "a@1=\" x\\ny\\n\" b@5=1"),
            ("{\"a\": {\"b\": 1}}", "a@1=[{b@1=1}]"),
            ("", ""),
        ] {
            assert_eq!(hcl(text), expected, "{text}");
        }
    }

    #[test]
    fn json_is_parsed_strictly() {
        for (text, expected) in [
            ("{\"a\": {\"b\": [1, 2.5, null]},\n \"c\": \"\\u00e4\"}", "a@1={b@1=[1,2.5,null]} c@2=\"ä\""),
            ("{\"a\": 1, \"a\": 2}", "a@1=2"),
            ("{}", ""),
            ("{\"a\": 1,}", "line 1: expected a string in double quotes, found '}'"),
            ("{\"a\": [1,]}", "line 1: expected a value, found ']'"),
            ("{\"a\": 1}\n// b", "line 2: expected the end of the text, found '/'"),
            ("{\"a\" 1}", "line 1: expected ':', found '1'"),
            ("a = 1", "line 1: expected '{', found 'a'"),
            ("{\"a\": yes}", "line 1: expected a value, found \"yes\""),
            ("{\"a\": \"b", "line 1: the string has no end"),
        ] {
            assert_eq!(json(text), expected, "{text}");
        }
    }

    #[test]
    fn syntax_error_includes_line() {
        for (text, expected) in [
            ("a = 1\nb = \n", "line 3: expected a value, found the end of the text"),
            ("a = x", "line 1: expected a value, found \"x\": put text in quotes"),
            ("a b = 1", "line 1: expected `=` or `{` behind the key \"a\""),
            ("a = \"x\ny\"", "line 1: the string has no end"),
            ("\n/* a", "line 2: the comment has no end: add */"),
            ("s {\na = 1\n", "line 3: expected \"}\", found the end of the text"),
            ("a = <<E\nx\n", "line 1: the text behind `<<` has no end: end it with a line of its own"),
            ("a = \"\\q\"", "line 1: the string has a wrong escape: write a backslash as \\\\"),
            ("a = 1.2.3", "line 1: \"1.2.3\" is not a number"),
            ("}", "line 1: expected a key, found '}'"),
        ] {
            assert_eq!(hcl(text), expected, "{text}");
        }
    }

    #[test]
    fn hostile_input_is_bounded() {
        for opening in ["a {", "a = [", "a = {", "a \"b\" "] {
            let text = opening.repeat(100_000);
            assert!(hcl(&text).contains("inside each other") || hcl(&text).contains("expected"), "{opening}");
        }
        assert!(hcl(&format!("a = {}", "[".repeat(100_000))).contains("more than 64"));
        assert!(json(&"{\"a\":".repeat(100_000)).contains("more than 64"));
        for text in
            ["\"", "{", "= =", "a = \"ä", "ä = ß", "a = <<", "a = <<-E", "\u{0}", "a = \"\\u12\"", "- = -"]
        {
            let _ = (hcl(text), json(text));
        }
    }
}
