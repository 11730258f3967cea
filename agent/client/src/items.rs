//! A reply that is a JSON array, item by item: however long it is, only one item is in memory.

use crate::address::Address;
use crate::connection::{Download, unstalled};
use crate::error::Error;
use bytes::{Buf, BytesMut};
use serde::de::DeserializeOwned;

/// The maximum size of an item in bytes: that of the largest value, in base64, with room to spare.
const MAX_ITEM: usize = 64 << 20;

/// The items of an array that still arrives.
#[derive(Debug)]
pub(crate) struct Items {
    address: Address,
    download: Download,
    splitter: Splitter,
}

impl Items {
    pub(crate) fn new(address: Address, download: Download) -> Self {
        Self { address, download, splitter: Splitter::default() }
    }

    /// Returns the next item; `None` behind the last one.
    ///
    /// # Errors
    /// The reason why the array is incomplete or invalid.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        loop {
            match self.splitter.next().map_err(|error| self.garbled(error.to_string()))? {
                Split::Item(item) => {
                    let item = serde_json::from_slice(&item);
                    return item.map(Some).map_err(|error| self.garbled(error.to_string()));
                }
                Split::End => return Ok(None),
                Split::Incomplete => {}
            }
            match unstalled(&self.address, self.download.next()).await? {
                Some(Ok(piece)) => self.splitter.buffer.extend_from_slice(&piece),
                Some(Err(error)) => return Err(self.broken(format!("the list is incomplete: {error}"))),
                // The end of the body proves nothing: only the bracket shows that it is whole.
                None => return Err(self.broken("the list is incomplete".into())),
            }
        }
    }

    fn garbled(&self, reason: String) -> Error {
        Error::Garbled { address: self.address.clone(), reason }
    }

    fn broken(&self, reason: String) -> Error {
        Error::Unanswered { address: self.address.clone(), reason }
    }
}

/// The next token of an array.
#[derive(Debug, PartialEq, Eq)]
enum Split {
    Item(BytesMut),
    Incomplete,
    End,
}

/// The reason why a text is no array of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum ArrayError {
    #[error("the reply is no JSON array")]
    NoArray,
    #[error("the array ends with a brace")]
    Brace,
    #[error("an item is larger than {MAX_ITEM} bytes")]
    LargeItem,
}

/// Splits the text of an array at its commas.
#[derive(Debug, Default)]
struct Splitter {
    /// The text from the present item on.
    buffer: BytesMut,
    /// The scanned part of the buffer.
    scanned: usize,
    /// The number of open brackets, that of the array included.
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    is_over: bool,
    /// Set behind the first comma.
    has_items: bool,
}

impl Splitter {
    /// Splits off the next item.
    fn next(&mut self) -> Result<Split, ArrayError> {
        while let Some(byte) = self.buffer.get(self.scanned).copied() {
            self.scanned += 1;
            if self.is_over || (self.depth == 0 && byte != b'[') {
                match byte.is_ascii_whitespace() {
                    true => continue,
                    false => return Err(ArrayError::NoArray),
                }
            }
            if self.in_string {
                self.in_string = self.is_escaped || byte != b'"';
                self.is_escaped = !self.is_escaped && byte == b'\\';
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'[' | b'{' => {
                    self.depth += 1;
                    if self.depth == 1 {
                        self.skip();
                    }
                }
                b'}' if self.depth == 1 => return Err(ArrayError::Brace),
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        self.is_over = true;
                        let item = self.take();
                        // An empty array has no item; behind a comma, one is missing.
                        if self.has_items || !item.trim_ascii().is_empty() {
                            return Ok(Split::Item(item));
                        }
                    }
                }
                b',' if self.depth == 1 => {
                    self.has_items = true;
                    return Ok(Split::Item(self.take()));
                }
                _ => {}
            }
        }
        match () {
            () if self.is_over => Ok(Split::End),
            () if self.buffer.len() > MAX_ITEM => Err(ArrayError::LargeItem),
            () => Ok(Split::Incomplete),
        }
    }

    /// Takes the item before the separator that was just scanned.
    fn take(&mut self) -> BytesMut {
        let item = self.buffer.split_to(self.scanned - 1);
        self.scanned = 1;
        self.skip();
        item
    }

    fn skip(&mut self) {
        self.buffer.advance(self.scanned);
        self.scanned = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{Split, Splitter};
    use serde_json::{Value, json};

    /// The items of a text that arrives in pieces of this size.
    fn split(text: &str, size: usize) -> Result<Vec<Value>, String> {
        let (mut splitter, mut items) = (Splitter::default(), Vec::new());
        let mut pieces = text.as_bytes().chunks(size);
        loop {
            match splitter.next().map_err(|error| error.to_string())? {
                Split::Item(item) => {
                    items.push(serde_json::from_slice(&item).map_err(|error| error.to_string())?);
                }
                Split::End => return Ok(items),
                Split::Incomplete => {
                    splitter.buffer.extend_from_slice(pieces.next().ok_or("incomplete")?);
                }
            }
        }
    }

    #[test]
    fn only_complete_arrays_accepted() {
        for text in [
            "",
            "[",
            "[{\"a\":1}",
            "[{\"a\":1},",
            "[\"]",
            "[\"\\\"]",
            "[[]",
            "null",
            "[],",
            "{}",
            "[]]",
            "[1,]",
            "[}",
        ] {
            assert!(split(text, 3).is_err(), "{text}");
        }
        for text in ["[]", " [ ]\n", "[\n]"] {
            assert_eq!(split(text, 1), Ok(Vec::new()), "{text}");
        }
        assert!(split("[1,,2]", 9).is_err());
    }

    #[test]
    fn split_items_match_array() {
        let texts = ["", "[", "]}", "{,", "\"\\\"", "a,\"b", "ç\n\\"];
        let item = |text: &&str| json!({ *text: [text, 1, null, {}] });
        for count in 0..=texts.len() {
            let items: Vec<Value> = texts[..count].iter().map(item).collect();
            for text in [serde_json::to_string(&items), serde_json::to_string_pretty(&items)] {
                let text = text.unwrap();
                (1..9).for_each(|size| assert_eq!(split(&text, size).as_ref(), Ok(&items), "{text}"));
            }
        }
    }
}
