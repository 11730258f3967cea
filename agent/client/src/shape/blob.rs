//! Bytes that travel through JSON as padded standard base64; the one file that names the base64 crate for shapes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// Bytes, written as base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blob(pub Bytes);

impl Blob {
    /// `None` for no bytes: an empty value is written as `null`.
    pub fn unless_empty(bytes: Bytes) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self(bytes))
    }
}

/// Decodes padded standard base64. The error says what is wrong with it.
pub fn decode_base64(text: &str) -> Result<Bytes, String> {
    STANDARD.decode(text).map(Bytes::from).map_err(|error| error.to_string())
}

/// Encodes as padded standard base64.
pub fn encode_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode_base64(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        decode_base64(&text).map(Self).map_err(D::Error::custom)
    }
}
