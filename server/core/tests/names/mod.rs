//! Sessions by short words: the id of `s1` is made of its letters, so that ids are in the order of
//! the words.

use lockmesh_protocol::id::SessionId;

/// The id of the session that tests call by this word, of at most 16 letters.
pub(crate) fn session(word: &str) -> SessionId {
    let mut bytes = [0; 16];
    bytes[..word.len()].copy_from_slice(word.as_bytes());
    SessionId::from_random(bytes)
}
