//! The output of a check: the last bytes of what the target sent, and errors in Go's words.

use std::collections::VecDeque;
use std::io;

/// The last bytes of a stream.
#[derive(Debug)]
pub(super) struct Tail {
    kept: VecDeque<u8>,
    limit: usize,
    total: u64,
}

impl Tail {
    pub(super) fn new(limit: usize) -> Self {
        Self { kept: VecDeque::new(), limit, total: 0 }
    }

    /// Returns this tail, and leaves an empty one.
    pub(super) fn take(&mut self) -> Self {
        let empty = Self::new(self.limit);
        std::mem::replace(self, empty)
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let last = &bytes[bytes.len().saturating_sub(self.limit)..];
        let excess = (self.kept.len() + last.len()).saturating_sub(self.limit);
        self.kept.drain(..excess);
        self.kept.extend(last);
    }

    /// Returns the number of bytes kept, and of all bytes.
    pub(super) fn sizes(&self) -> (usize, u64) {
        (self.kept.len(), self.total)
    }

    /// Returns the bytes kept. Each sequence that is not UTF-8 is U+FFFD.
    pub(super) fn text(&self) -> String {
        let (first, second) = self.kept.as_slices();
        String::from_utf8_lossy(&[first, second].concat()).into_owned()
    }
}

impl io::Write for Tail {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the text of an error of the operating system as Go prints it: without the number, and in
/// lower case.
pub(super) fn io_text(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "EOF".into();
    }
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        // An abbreviation in capitals stays as it is.
        Some(first) if !letters.as_str().starts_with(char::is_uppercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_agent_core::registry::floor_char_boundary;

    #[test]
    fn tail_keeps_last_bytes() {
        let stream: Vec<u8> = (b'a'..=b'z').collect();
        for piece in 1..=stream.len() {
            for limit in 0..=30 {
                let mut tail = Tail::new(limit);
                stream.chunks(piece).for_each(|bytes| tail.push(bytes));
                let last = &stream[stream.len().saturating_sub(limit)..];
                assert_eq!(tail.text().as_bytes(), last, "pieces of {piece}, limit {limit}");
                assert_eq!(tail.sizes(), (last.len(), 26));
            }
        }
    }

    #[test]
    fn invalid_utf8_replaced() {
        let mut tail = Tail::new(4);
        tail.push("aäöü".as_bytes());
        assert_eq!(tail.text(), "öü");
        tail.push(b"x");
        assert_eq!(tail.text(), "\u{fffd}üx");
        let mut text = String::from("aäö");
        text.truncate(floor_char_boundary(&text, 4));
        assert_eq!(text, "aä");
    }

    #[test]
    fn os_errors_match_go() {
        for (number, text) in [
            (rustix::io::Errno::CONNREFUSED, "connection refused"),
            (rustix::io::Errno::NOENT, "no such file or directory"),
            (rustix::io::Errno::HOSTUNREACH, "no route to host"),
            (rustix::io::Errno::NOEXEC, "exec format error"),
        ] {
            assert_eq!(io_text(&number.into()), text);
        }
        assert_eq!(io_text(&io::ErrorKind::UnexpectedEof.into()), "EOF");
    }
}
