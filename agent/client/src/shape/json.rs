//! The JSON encoding of shapes, in the manner of Go's encoder: `<`, `>`, `&`, U+2028 and U+2029 are
//! escaped inside strings. A reply is therefore safe inside HTML and textually equal to Consul's.

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer as _};
use serde_json::ser::Formatter;
use std::io::{self, Write};

/// The layout of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Set for one field per line, indented by four spaces.
    pub indented: bool,
    /// Set for a trailing newline.
    pub newline: bool,
}

impl Layout {
    /// Everything on one line, without a newline.
    pub const COMPACT: Self = Self { indented: false, newline: false };
    /// The human-readable layout.
    pub const PRETTY: Self = Self { indented: true, newline: true };
}

/// Renders a value.
pub fn render<T: Serialize + ?Sized>(value: &T, layout: Layout) -> Vec<u8> {
    let mut json = Vec::with_capacity(256);
    // Writing to memory cannot fail, and all maps have string keys.
    value.serialize(&mut serializer(&mut json, layout)).expect("a shape is representable in JSON");
    finished(json, layout)
}

/// Renders an array item by item, so that only one of them is in memory besides the text.
///
/// # Errors
/// That of the first item that has one.
pub fn render_array<T: Serialize, E>(
    items: impl Iterator<Item = Result<T, E>>,
    layout: Layout,
) -> Result<Vec<u8>, E> {
    let mut json = Vec::with_capacity(256);
    let mut serializer = serializer(&mut json, layout);
    let mut array = serializer.serialize_seq(None).expect("memory can be written");
    for item in items {
        array.serialize_element(&item?).expect("a shape is representable in JSON");
    }
    array.end().expect("memory can be written");
    Ok(finished(json, layout))
}

fn serializer(json: &mut Vec<u8>, layout: Layout) -> serde_json::Serializer<&mut Vec<u8>, GoFormatter> {
    let formatter = GoFormatter { indented: layout.indented, depth: 0, has_value: false };
    serde_json::Serializer::with_formatter(json, formatter)
}

fn finished(mut json: Vec<u8>, layout: Layout) -> Vec<u8> {
    if layout.newline {
        json.push(b'\n');
    }
    json
}

struct GoFormatter {
    indented: bool,
    depth: usize,
    has_value: bool,
}

impl GoFormatter {
    fn open<W: Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        writer.write_all(bracket)
    }

    fn close<W: Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        // As in Go, an empty list or object stays on one line.
        if self.has_value {
            self.line(writer)?;
        }
        writer.write_all(bracket)
    }

    fn separate<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        self.line(writer)
    }

    fn line<W: Write + ?Sized>(&self, writer: &mut W) -> io::Result<()> {
        if !self.indented {
            return Ok(());
        }
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(b"    "))
    }
}

impl Formatter for GoFormatter {
    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(if self.indented { b": " } else { b":" })
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, escape, length)) = first_escape(rest) {
            writer.write_all(&rest.as_bytes()[..at])?;
            writer.write_all(escape)?;
            rest = &rest[at + length..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// Returns the first character that Go escapes and plain JSON does not: its position, its escape,
/// its length in bytes.
fn first_escape(text: &str) -> Option<(usize, &'static [u8], usize)> {
    let bytes = text.as_bytes();
    bytes.iter().enumerate().find_map(|(at, byte)| match byte {
        b'<' => Some((at, &b"\\u003c"[..], 1)),
        b'>' => Some((at, &b"\\u003e"[..], 1)),
        b'&' => Some((at, &b"\\u0026"[..], 1)),
        0xE2 if bytes[at..].starts_with("\u{2028}".as_bytes()) => Some((at, &b"\\u2028"[..], 3)),
        0xE2 if bytes[at..].starts_with("\u{2029}".as_bytes()) => Some((at, &b"\\u2029"[..], 3)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn compact(value: &serde_json::Value) -> String {
        String::from_utf8(render(value, Layout::COMPACT)).unwrap()
    }

    #[test]
    fn escapes_as_go_does() {
        assert_eq!(compact(&json!("<a href=\"x&y\">")), r#""\u003ca href=\"x\u0026y\"\u003e""#);
        assert_eq!(compact(&json!("a\u{2028}b\u{2029}c\u{2027}")), "\"a\\u2028b\\u2029c\u{2027}\"");
        assert_eq!(compact(&json!({"<": "\u{1}\n\t\u{7f}é"})), "{\"\\u003c\":\"\\u0001\\n\\t\u{7f}é\"}");
    }

    #[test]
    fn compact_has_no_whitespace() {
        assert_eq!(compact(&json!({"a": [1, 2, {}], "b": null})), r#"{"a":[1,2,{}],"b":null}"#);
    }

    #[test]
    fn streamed_array_equals_whole() {
        let items = [json!({"a": [1, {}]}), json!("<"), json!([])];
        for (layout, count) in
            [(Layout::COMPACT, 3), (Layout::PRETTY, 3), (Layout::COMPACT, 0), (Layout::PRETTY, 0)]
        {
            let items = &items[..count];
            let each = render_array(items.iter().map(Ok::<_, ()>), layout);
            assert_eq!(each, Ok(render(items, layout)), "{layout:?}");
        }
        assert_eq!(render_array([Ok(1), Err("two"), Ok(3)].into_iter(), Layout::COMPACT), Err("two"));
    }

    #[test]
    fn pretty_indents_by_four_spaces() {
        let text =
            String::from_utf8(render(&json!([{"A": [], "B": {}, "C": [1, 2]}]), Layout::PRETTY)).unwrap();
        let expected = "[\n    {\n        \"A\": [],\n        \"B\": {},\n        \"C\": [\n            1,\n            2\n        ]\n    }\n]\n";
        assert_eq!(text, expected);
    }
}
