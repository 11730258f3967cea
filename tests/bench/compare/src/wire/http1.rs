//! The subset of HTTP/1.1 that a Lockmesh agent uses: a status line, headers with a
//! `Content-Length`, a body.
//!
//! Chunked responses are rejected with an error instead of being misread.

use super::malformed;
use std::io;

/// The largest accepted response.
const MAX_ANSWER: usize = 64 << 20;

/// The head of a response, and the range of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The status.
    pub(crate) status: u16,
    /// The start of the body.
    pub(crate) body: usize,
    /// The end of the body and of the response.
    pub(crate) end: usize,
}

/// Returns one request, ready to be sent repeatedly.
pub(crate) fn request(method: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Parses the head of a response; `None` if it is incomplete.
pub(crate) fn head(bytes: &[u8]) -> io::Result<Option<Head>> {
    let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let mut lines = bytes[..at].split(|byte| *byte == b'\n');
    let status = lines.next().and_then(|line| number(line.get(9..12)?));
    let status = status.and_then(|status| u16::try_from(status).ok());
    let status = status.ok_or_else(|| malformed("the agent's answer has no status"))?;
    let mut length = None;
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            length = number(value).and_then(|length| usize::try_from(length).ok());
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err(malformed(
                "the agent's answer is chunked, which this measuring client does not read",
            ));
        }
    }
    let length = length.filter(|length| *length <= MAX_ANSWER);
    let length = length.ok_or_else(|| malformed("the agent's answer has no usable Content-Length"))?;
    Ok(Some(Head { status, body: at + 4, end: at + 4 + length }))
}

/// Returns the session that holds a key, from the body of a read of that key.
pub(crate) fn holder(body: &[u8]) -> Option<&[u8]> {
    quoted(body, br#""Session":""#)
}

/// Returns the id in the response to the creation of a session.
pub(crate) fn session_id(body: &[u8]) -> Option<&[u8]> {
    quoted(body, br#""ID":""#)
}

/// Returns the text between a mark and the next quotation mark. Ids need no unescaping.
fn quoted<'a>(body: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let at = body.windows(mark.len()).position(|window| window == mark)? + mark.len();
    let length = body[at..].iter().position(|byte| *byte == b'"')?;
    Some(&body[at..at + length])
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nX-Consul-Index: 42\r\nDate: Sat, 21 Nov 2026\r\n\r\ntrue";

    #[test]
    fn a_request_is_bytes() {
        let bytes = request("PUT", "/v1/kv/a", b"xy");
        assert_eq!(bytes, b"PUT /v1/kv/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nxy");
    }

    #[test]
    fn an_answer_is_read_once_its_head_is_there() {
        let whole = head(ANSWER).expect("good").expect("whole");
        assert_eq!((whole.status, whole.end), (200, ANSWER.len()));
        assert_eq!(&ANSWER[whole.body..whole.end], b"true");
        for cut in 0..whole.body {
            assert_eq!(head(&ANSWER[..cut]).expect("nothing wrong yet"), None, "{cut}");
        }
    }

    #[test]
    fn what_would_be_misread_is_refused() {
        for answer in [
            &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            b"hello\r\n\r\n",
        ] {
            assert!(head(answer).is_err(), "{}", String::from_utf8_lossy(answer));
        }
    }

    #[test]
    fn ids_are_found_in_bodies() {
        assert_eq!(holder(br#"[{"LockIndex":1,"Session":"ab-1","Key":"k"}]"#), Some(&b"ab-1"[..]));
        assert_eq!(holder(br#"[{"LockIndex":1,"Key":"k"}]"#), None);
        assert_eq!(session_id(br#"{"ID":"cd-2"}"#), Some(&b"cd-2"[..]));
    }
}
