//! The subset of Protocol Buffers that etcd's messages need: varints, bytes, and nested messages.

use super::malformed;
use std::io;

/// A message that is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Adds a number; 0 is the default and not written.
    pub(crate) fn number(mut self, field: u32, value: u64) -> Self {
        if value != 0 {
            self.varint(u64::from(field) << 3);
            self.varint(value);
        }
        self
    }

    /// Adds bytes, text, or an encoded message; written even if empty, as a nested message must be.
    pub(crate) fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Adds a nested message.
    pub(crate) fn message(self, field: u32, value: &Message) -> Self {
        self.bytes(field, &value.0)
    }

    /// Returns the encoded message.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A number.
    Number(u64),
    /// Bytes, text, or a message.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the number, 0 for anything else.
    pub(crate) fn number(self) -> u64 {
        if let Self::Number(number) = self { number } else { 0 }
    }

    /// Returns the bytes, empty for anything else.
    pub(crate) fn bytes(self) -> &'a [u8] {
        if let Self::Bytes(bytes) = self { bytes } else { &[] }
    }
}

/// Calls `each` with the number and the value of every field of a message.
pub(crate) fn read<'a>(message: &'a [u8], mut each: impl FnMut(u32, Value<'a>)) -> io::Result<()> {
    let mut rest = message;
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let field =
            u32::try_from(key >> 3).map_err(|_| malformed("a field with a number that is too large"))?;
        match key & 7 {
            0 => each(field, Value::Number(varint(&mut rest)?)),
            1 => drop(take(&mut rest, 8)?),
            2 => {
                let length = usize::try_from(varint(&mut rest)?).unwrap_or(usize::MAX);
                each(field, Value::Bytes(take(&mut rest, length)?));
            }
            5 => drop(take(&mut rest, 4)?),
            kind => return Err(malformed(format!("a protobuf field of the unknown kind {kind}"))),
        }
    }
    Ok(())
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> io::Result<&'a [u8]> {
    let (taken, left) =
        rest.split_at_checked(length).ok_or_else(|| malformed("a protobuf message that ends too early"))?;
    *rest = left;
    Ok(taken)
}

fn varint(rest: &mut &[u8]) -> io::Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(malformed("a protobuf number without an end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_the_bytes_of_the_specification() {
        // The examples of the encoding guide: `a = 150` in field 1, "testing" in field 2, a message
        // in field 3.
        assert_eq!(Message::default().number(1, 150).finish(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::default().bytes(2, b"testing").finish(), b"\x12\x07testing");
        let inner = Message::default().number(1, 150);
        assert_eq!(Message::default().message(3, &inner).finish(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert!(Message::default().number(1, 0).finish().is_empty());
        let largest = Message::default().number(1, u64::MAX).finish();
        assert_eq!(largest, [0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = Message::default().number(1, 300).bytes(16, b"x").number(2, u64::MAX).finish();
        let mut fields = Vec::new();
        read(&bytes, |field, value| fields.push((field, value))).expect("good");
        let expected = [(1, Value::Number(300)), (16, Value::Bytes(b"x")), (2, Value::Number(u64::MAX))];
        assert_eq!(fields, expected);
    }

    #[test]
    fn fixed_fields_are_passed_over_and_cut_ones_refused() {
        let mut seen = 0;
        read(&[0x0d, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x10, 1], |_, _| seen += 1).expect("good");
        assert_eq!(seen, 1);
        for cut in [&[0x08][..], &[0x12, 5, 1], &[0x0d, 1], &[0x0b], &[0xff; 11]] {
            assert!(read(cut, |_, _| ()).is_err(), "{cut:?}");
        }
    }
}
