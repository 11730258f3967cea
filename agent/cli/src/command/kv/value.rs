//! Values on the command line: as they are, from a file or from stdin, perhaps as base64.

use super::super::error::CliError;
use lockmesh_client::shape::blob::{decode_base64, encode_base64};
use std::io::Read;

/// Encodes bytes as base64.
pub(super) fn encode(bytes: &[u8]) -> String {
    encode_base64(bytes)
}

/// Decodes base64.
pub(super) fn decode(text: &[u8]) -> Result<Vec<u8>, CliError> {
    let wrong = |error: &dyn std::fmt::Display| {
        CliError::in_consuls_words(format!("Error! Cannot base 64 decode data: {error}"))
    };
    // Files and `echo` end with a newline that belongs to no base64.
    let text = std::str::from_utf8(text.trim_ascii()).map_err(|error| wrong(&error))?;
    decode_base64(text).map(Vec::from).map_err(|error| wrong(&error))
}

/// The bytes of an argument: the content of `@file`, stdin for `-`, or the argument.
pub(in crate::command) fn bytes_of(argument: &str, stdin: &mut impl Read) -> Result<Vec<u8>, CliError> {
    let failed = |what: &str, error: &std::io::Error| {
        CliError::in_consuls_words(format!("Error! Failed to read {what}: {error}"))
    };
    if let Some(file) = argument.strip_prefix('@') {
        return std::fs::read(file).map_err(|error| failed(&format!("file {file}"), &error));
    }
    if argument == "-" {
        let mut bytes = Vec::new();
        stdin.read_to_end(&mut bytes).map_err(|error| failed("stdin", &error))?;
        return Ok(bytes);
    }
    Ok(argument.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(argument: &str) -> Result<Vec<u8>, String> {
        bytes_of(argument, &mut "from stdin".as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn value_from_argument_file_or_stdin() {
        assert_eq!(bytes("plain"), Ok(b"plain".to_vec()));
        assert_eq!(bytes("-"), Ok(b"from stdin".to_vec()));
        assert_eq!(bytes("-5"), Ok(b"-5".to_vec()));
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), [0, 255]).expect("it can be written");
        assert_eq!(bytes(&format!("@{}", file.path().display())), Ok(vec![0, 255]));
        let error = bytes("@/nowhere").expect_err("there is none");
        assert!(error.starts_with("Error! Failed to read file /nowhere: "), "{error}");
    }

    #[test]
    fn base64_newline_accepted_garbage_rejected() {
        assert_eq!(decode(b"aGk=\n").expect("it is good"), b"hi");
        let error = decode(b"!!").expect_err("it is wrong").to_string();
        assert!(error.starts_with("Error! Cannot base 64 decode data: "), "{error}");
    }
}
