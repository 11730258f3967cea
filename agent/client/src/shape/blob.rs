//! Bytes in JSON as padded standard base64; the only file that names the base64 crate for shapes.

use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use base64::{DecodeError, Engine, alphabet};
use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// Accepts what Go accepts: trailing bits are ignored.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Bytes, encoded as base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blob(pub Bytes);

impl Blob {
    /// Returns `None` for empty bytes: an empty value is encoded as `null`.
    pub fn unless_empty(bytes: Bytes) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self(bytes))
    }
}

/// The error of Go for a text that is not base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("illegal base64 data at input byte {offset}")]
pub struct Base64Error {
    /// The offset of the first invalid byte.
    pub offset: usize,
}

/// Decodes padded standard base64; line breaks are skipped.
///
/// # Errors
/// The text is not base64: Go's message, with the offset of the first invalid byte.
pub fn decode_base64(text: &str) -> Result<Bytes, Base64Error> {
    let unbroken: Cow<'_, str> = match text.contains(['\r', '\n']) {
        true => Cow::Owned(text.replace(['\r', '\n'], "")),
        false => Cow::Borrowed(text),
    };
    LENIENT.decode(unbroken.as_ref()).map(Bytes::from).map_err(|error| match error {
        DecodeError::InvalidByte(offset, _) | DecodeError::InvalidLastSymbol { offset, .. } => {
            Base64Error { offset }
        }
        _ => Base64Error { offset: unbroken.len() & !3 },
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_decodes_like_go() {
        assert_eq!(decode_base64("dGVz\r\ndA==").as_deref(), Ok(&b"test"[..]));
        assert_eq!(decode_base64("dGVzdB==").as_deref(), Ok(&b"test"[..]), "bits behind the end");
        assert_eq!(decode_base64("").as_deref(), Ok(&b""[..]));
        for (text, offset) in [("!", 0), ("dGVz!A==", 4), ("dGVzdA", 4)] {
            let error = decode_base64(text).expect_err(text).to_string();
            assert_eq!(error, format!("illegal base64 data at input byte {offset}"), "{text}");
        }
    }
}
