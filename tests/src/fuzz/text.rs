//! Text from users and HTTP clients, and names in certificates.

use super::{as_text, bytes_of};
use lockmesh_net::Peer;
use lockmesh_protocol::duration;

/// A duration in Go's notation.
pub fn text_duration(data: &[u8]) {
    let Some(text) = as_text(data) else { return };
    // The signed parser accepts everything that the unsigned one accepts.
    let Ok(length) = duration::parse(text) else { return drop(duration::parse_nanos(text)) };
    let written = duration::format(length);
    assert_eq!(duration::parse(&written), Ok(length), "{text:?} was written as {written:?}");
}

/// Returns seeds of [`text_duration`].
pub fn duration_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "0",
        "10s",
        "1m30s",
        "0.5h",
        "250ms",
        "-1s",
        "+5us",
        "1h0m0.000000001s",
        "2562047h47m16.854775807s",
        "1µs",
        "1μs",
        ".5s",
        "1.s",
        "10",
        "abc",
        "",
        "9223372036854775808ns",
        "1h1h1h",
        "0.3333333333333333333h",
    ];
    bytes_of(&texts)
}

/// The URI of a certificate's owner.
pub fn text_peer_uri(data: &[u8]) {
    let Some(text) = as_text(data) else { return };
    let Some(peer) = Peer::from_uri(text) else { return };
    assert_eq!(peer.to_uri(), text, "one owner has one spelling");
}

/// Returns seeds of [`text_peer_uri`].
pub fn peer_uri_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "lockmesh://agent/web-1",
        "lockmesh://server/node%20one",
        "lockmesh://server/",
        "lockmesh://agent/%C3%A4",
        "lockmesh://agent/a%2Fb",
        "lockmesh://agent/a%2",
        "spiffe://x/y",
    ];
    bytes_of(&texts)
}
