//! Sessions by short names: the id of `s1` consists of its letters, so ids sort like the names.

use lockmesh_protocol::id::SessionId;

/// The id of the session with this name, of at most 16 letters.
pub(crate) fn session(word: &str) -> SessionId {
    let mut bytes = [0; 16];
    bytes[..word.len()].copy_from_slice(word.as_bytes());
    SessionId::from_random(bytes)
}
