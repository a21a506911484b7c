//! The body of a batch: a sequence of messages.
//!
//! ```text
//! size i32 | magic i32 | crc i32 | flag i32 | body i32+n | properties i16+n        the first three are ignored
//! ```

use crate::header::{read_i16, read_i32};

const BODY_SIZE_AT: usize = 16;
const START: usize = 20;
pub const OVERHEAD: usize = START + 2; // bytes of a message without body and properties

/// A message of a batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a str,
    pub end: usize,
}

/// Return the message at `position`; None if it exceeds the data or its properties are not UTF-8.
pub fn entry_at(data: &[u8], position: usize) -> Option<Entry<'_>> {
    let body_size = usize::try_from(read_i32(data, position + BODY_SIZE_AT)?).ok()?;
    let body_end = position + START + body_size;
    let properties_size = usize::try_from(read_i16(data, body_end)?).ok()?;
    let end = body_end + 2 + properties_size;
    Some(Entry {
        flag: read_i32(data, position + 12)?,
        body: data.get(position + START..body_end)?,
        properties: std::str::from_utf8(data.get(body_end + 2..end)?).ok()?,
        end,
    })
}

/// Return how many messages there are; None if one of them is invalid.
pub fn count(data: &[u8]) -> Option<usize> {
    let (mut position, mut messages) = (0, 0);
    while position < data.len() {
        position = entry_at(data, position)?.end;
        messages += 1;
    }
    Some(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(body_size: i32, body: &[u8], properties_size: i16, properties: &[u8]) -> Vec<u8> {
        let mut data = vec![9; 12];
        data.extend(7i32.to_be_bytes());
        data.extend(body_size.to_be_bytes());
        data.extend(body);
        data.extend(properties_size.to_be_bytes());
        data.extend(properties);
        data
    }

    #[test]
    fn a_whole_message_is_read() {
        let data = encoded(2, b"ab", 3, b"a\x01b");
        let entry = Entry { flag: 7, body: b"ab", properties: "a\u{1}b", end: data.len() };
        assert_eq!(entry_at(&data, 0), Some(entry));
        for size in 0..data.len() {
            assert_eq!(entry_at(&data[..size], 0), None);
        }
    }

    #[test]
    fn messages_are_counted() {
        let one = encoded(2, b"ab", 3, b"a\x01b");
        assert_eq!(count(&[]), Some(0));
        assert_eq!(count(&one.repeat(3)), Some(3));
        assert_eq!(count(&one.repeat(3)[1..]), None);
    }

    #[test]
    fn invalid_lengths_and_texts_are_refused() {
        for data in [
            encoded(-1, b"ab", 0, b""),
            encoded(i32::MAX, b"ab", 0, b""),
            encoded(2, b"ab", -1, b""),
            encoded(2, b"ab", 4, b"abc"),
            encoded(2, b"ab", 2, b"\xc3\x28"),
        ] {
            assert_eq!(entry_at(&data, 0), None);
        }
    }
}
