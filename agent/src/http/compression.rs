//! Responses compressed with gzip, for clients that accept it.
//!
//! Short responses are sent as they are: they fit one packet, and the answers of locks are among
//! them. So are streams of events and log lines, which must not wait for more of the same, and
//! backups, which are compressed files. A client that does not send `Accept-Encoding` costs no more
//! than the look for that header. A body is compressed in pieces, between which other requests are
//! served, and never held as a whole.

use super::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use hyper::body::{Body as _, Frame};
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The maximum number of bytes compressed at a time: well below a millisecond of work.
const PIECE: usize = 32 << 10;

const GZIP: HeaderValue = HeaderValue::from_static("gzip");
const VARY: HeaderValue = HeaderValue::from_static("Accept-Encoding");

/// Compresses a response to a request with these headers, if the client accepts it and the body is
/// at least `min` bytes or of unknown length. `min` 0 compresses nothing.
pub(super) fn respond(requested: &HeaderMap, min: usize, mut response: Response<Body>) -> Response<Body> {
    let has_body = !matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if min == 0 || !has_body || !response.body().is_compressible(min as u64) {
        return response;
    }
    let headers = response.headers_mut();
    // Also without compression: a cache must not serve this form to other clients.
    headers.append(header::VARY, VARY);
    if !accepts_gzip(requested) {
        return response;
    }
    headers.insert(header::CONTENT_ENCODING, GZIP);
    response.map(|body| Body::compressed(Gzip::new(body)))
}

/// Returns `true` if `Accept-Encoding` names gzip, with a quality other than 0.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let named = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = named.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, parameter) = coding.split_once(';').unwrap_or((coding, ""));
        let quality = parameter.trim().strip_prefix("q=").and_then(|q| q.trim().parse().ok()).unwrap_or(1.0);
        name.trim().eq_ignore_ascii_case("gzip") && quality > 0.0_f32
    })
}

/// A body that is compressed while it is sent.
#[derive(Debug)]
pub(super) struct Gzip {
    plain: Body,
    /// The part of the plain body that comes next.
    next: Bytes,
    /// `None` when the end was written.
    encoder: Option<GzEncoder<Vec<u8>>>,
    /// Set after a piece, until other tasks have had their turn.
    yields: bool,
}

impl Gzip {
    fn new(plain: Body) -> Self {
        let encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
        Self { plain, next: Bytes::new(), encoder, yields: false }
    }

    /// Returns the next compressed bytes; an error of the plain body breaks the response off.
    pub(super) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        while let Some(encoder) = &mut self.encoder {
            if std::mem::take(&mut self.yields) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.next.is_empty() {
                match ready!(Pin::new(&mut self.plain).poll_frame(context)) {
                    Some(Ok(frame)) => self.next = frame.into_data().unwrap_or_default(),
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => {
                        let end = self.encoder.take().map(GzEncoder::finish).transpose()?;
                        return Poll::Ready(end.map(|end| Ok(Frame::data(end.into()))));
                    }
                }
            }
            let piece = self.next.split_to(PIECE.min(self.next.len()));
            encoder.write_all(&piece)?;
            // A shorter piece is too little work for a pause.
            self.yields = piece.len() == PIECE;
            let compressed = std::mem::take(encoder.get_mut());
            // The encoder keeps bytes back until it has a block.
            if !compressed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(compressed.into()))));
            }
        }
        Poll::Ready(None)
    }

    /// Returns `true` after the last byte.
    pub(super) fn is_over(&self) -> bool {
        self.encoder.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use http_body_util::BodyExt;
    use std::io::Read;
    use tokio::sync::mpsc;

    fn accepting(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))])
    }

    fn decompressed(bytes: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        GzDecoder::new(bytes).read_to_end(&mut plain).expect("complete");
        plain
    }

    #[test]
    fn gzip_requires_explicit_accept_encoding() {
        for accepted in ["gzip", "GZIP", "deflate, gzip;q=0.5", "br ,gzip ; q=1"] {
            assert!(accepts_gzip(&accepting(accepted)), "{accepted}");
        }
        for other in ["", "identity", "*", "x-gzip", "gzip;q=0", "gzip; q=0.000, *;q=1", "deflate"] {
            assert!(!accepts_gzip(&accepting(other)), "{other}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn long_body_compression_yields_between_pieces() {
        let plain: Vec<u8> = (0..10 * PIECE).map(|byte| (byte / 7) as u8).collect();
        let response = Response::new(Body::from(plain.clone()));
        let response = respond(&accepting("gzip"), 1024, response);
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
        assert_eq!(response.headers()[header::VARY], "Accept-Encoding");
        let (mut body, mut compressed, mut pauses) = (response.into_body(), Vec::new(), 0);
        assert_eq!(body.size_hint().exact(), None);
        let mut context = Context::from_waker(std::task::Waker::noop());
        loop {
            match Pin::new(&mut body).poll_frame(&mut context) {
                Poll::Pending => pauses += 1,
                Poll::Ready(Some(frame)) => compressed.extend(frame.unwrap().into_data().unwrap()),
                Poll::Ready(None) => break,
            }
        }
        assert!(body.is_end_stream() && pauses == 10, "{pauses}");
        assert!(compressed.len() < plain.len() / 10);
        assert_eq!(decompressed(&compressed), plain);
    }

    #[tokio::test]
    async fn compressed_list_aborts_if_incomplete() {
        for is_complete in [true, false] {
            let (sender, parts) = mpsc::channel(4);
            for part in ["[1,", "2]"] {
                sender.send(Ok(part.into())).await.unwrap();
            }
            if is_complete {
                sender.send(Ok(Bytes::new())).await.unwrap();
            }
            drop(sender);
            let response = respond(&accepting("gzip"), 1024, Response::new(Body::parts(parts)));
            let collected = response.into_body().collect().await;
            assert_eq!(collected.is_ok(), is_complete);
            if let Ok(collected) = collected {
                assert_eq!(decompressed(&collected.to_bytes()), b"[1,2]");
            }
        }
    }

    #[test]
    fn short_bodies_and_streams_uncompressed() {
        let stays = |status: StatusCode, body: Body, min| {
            let mut response = Response::new(body);
            *response.status_mut() = status;
            let response = respond(&accepting("gzip"), min, response);
            !response.headers().contains_key(header::CONTENT_ENCODING)
        };
        let (_sender, pieces) = mpsc::channel(1);
        assert!(stays(StatusCode::OK, Body::pieces(pieces), 1));
        assert!(stays(StatusCode::OK, Body::from("true"), 5));
        assert!(stays(StatusCode::OK, Body::from("true"), 0), "disabled");
        assert!(stays(StatusCode::NOT_MODIFIED, Body::from("true"), 1));
        assert!(!stays(StatusCode::OK, Body::from("true"), 4));
        let plain = respond(&HeaderMap::new(), 1, Response::new(Body::from("true")));
        assert_eq!(plain.headers()[header::VARY], "Accept-Encoding", "caches must know");
        assert_eq!(plain.body().size_hint().exact(), Some(4));
    }
}
