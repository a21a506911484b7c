//! Strict JSON without white space, as clients write it: a cursor over one header.
//!
//! `None` means "not plain": another reader decides about this header.

use std::ops::Range;

/// Bytes of a text: a part of the source, or of the scratch buffer if it contained escapes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: usize,
    end: usize,
    is_unescaped: bool,
}

impl Span {
    /// Return a part of the source.
    pub fn of_source(start: usize, end: usize) -> Self {
        Self { start, end, is_unescaped: false }
    }

    /// Return where this text is in the source; None if it had escapes.
    pub fn source(&self) -> Option<Range<usize>> {
        (!self.is_unescaped).then_some(self.start..self.end)
    }

    /// Return the bytes of this text.
    pub fn bytes<'a>(&self, source: &'a [u8], scratch: &'a [u8]) -> &'a [u8] {
        let buffer = if self.is_unescaped { scratch } else { source };
        buffer.get(self.start..self.end).unwrap_or_default()
    }
}

/// Texts of a header that have escapes, decoded.
#[derive(Debug, Default)]
pub struct Unescaped {
    pub bytes: Vec<u8>,
    copies: Vec<Part>,
}

/// Bytes between the escapes of a text.
#[derive(Debug)]
struct Part {
    source: Range<usize>,
    start: usize, // in the decoded bytes
}

impl Unescaped {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.copies.clear();
    }

    fn copy(&mut self, header: &[u8], source: Range<usize>) {
        if !source.is_empty() {
            self.copies.push(Part { source: source.clone(), start: self.bytes.len() });
            self.bytes.extend_from_slice(&header[source]);
        }
    }

    /// Return the bytes of the header that are the same decoded.
    pub fn copied(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.copies.iter().map(|copy| copy.source.clone())
    }

    /// Decode the texts of another header, which has the same escapes in the same places.
    pub fn decode_again(&mut self, header: &[u8]) {
        for Part { source, start } in &self.copies {
            self.bytes[*start..*start + source.len()].copy_from_slice(&header[source.clone()]);
        }
    }
}

/// A position in a JSON text.
pub struct Cursor<'a> {
    data: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(data: &'a [u8], position: usize) -> Self {
        Self { data, position }
    }

    /// Return how many bytes were read.
    pub fn position(&self) -> usize {
        self.position
    }

    pub fn is_at_end(&self) -> bool {
        self.position == self.data.len()
    }

    /// Return the next byte and move behind it.
    #[inline]
    pub fn take(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.position)?;
        self.position += 1;
        Some(byte)
    }

    /// Move behind `byte`, which must be next.
    #[inline]
    pub fn expect(&mut self, byte: u8) -> Option<()> {
        (self.take()? == byte).then_some(())
    }

    /// Move behind `text`, which must be next.
    pub fn expect_text(&mut self, text: &[u8]) -> Option<()> {
        let rest = self.data.get(self.position..)?;
        rest.starts_with(text).then(|| self.position += text.len())
    }

    /// Return whether the value `null` is next; if so, move behind it.
    pub fn take_null(&mut self) -> bool {
        self.expect_text(b"null").is_some()
    }

    /// Return an integer without fraction and exponent.
    pub fn int32(&mut self) -> Option<i32> {
        i32::try_from(self.int64()?).ok()
    }

    /// Return an integer without fraction and exponent.
    pub fn int64(&mut self) -> Option<i64> {
        let rest = self.data.get(self.position..)?;
        let size = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'-').count();
        self.position += size;
        parse_int(&rest[..size])
    }

    /// Return a text without escapes.
    pub fn plain_text(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let start = self.position;
        self.position = special_at(self.data, start)?;
        let text = &self.data[start..self.position];
        self.expect(b'"')?;
        Some(text)
    }

    /// Return a text; if it has escapes, its decoded form is appended to `scratch`.
    #[inline]
    pub fn text(&mut self, scratch: &mut Unescaped) -> Option<Span> {
        self.expect(b'"')?;
        let start = self.position;
        self.position = special_at(self.data, start)?;
        if self.data[self.position] == b'"' {
            self.position += 1;
            return Some(Span::of_source(start, self.position - 1));
        }
        self.escaped_text(start, scratch)
    }

    /// Continue with a text whose first special byte is not its end.
    fn escaped_text(&mut self, start: usize, scratch: &mut Unescaped) -> Option<Span> {
        let unescaped_start = scratch.bytes.len();
        let mut plain = start;
        loop {
            scratch.copy(self.data, plain..self.position);
            match self.take()? {
                b'"' => break,
                b'\\' => self.escape(&mut scratch.bytes)?,
                _ => return None, // a control character
            }
            plain = self.position;
            self.position = special_at(self.data, plain)?;
        }
        Some(Span { start: unescaped_start, end: scratch.bytes.len(), is_unescaped: true })
    }

    /// Append the character of an escape; the cursor is behind the backslash.
    fn escape(&mut self, scratch: &mut Vec<u8>) -> Option<()> {
        let byte = match self.take()? {
            byte @ (b'"' | b'\\' | b'/') => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.unicode_escape(scratch),
            _ => return None,
        };
        scratch.push(byte);
        Some(())
    }

    fn unicode_escape(&mut self, scratch: &mut Vec<u8>) -> Option<()> {
        let digits = self.data.get(self.position..self.position + 4)?;
        self.position += 4;
        let mut unit = 0;
        for digit in digits {
            unit = unit << 4 | char::from(*digit).to_digit(16)?;
        }
        let character = char::from_u32(unit)?; // None for a surrogate
        scratch.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Some(())
    }
}

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Return the first position from `start` on that has a quote, a backslash or a control character.
#[inline]
fn special_at(data: &[u8], start: usize) -> Option<usize> {
    let rest = data.get(start..)?;
    let mut position = start;
    // Eight bytes at once. The subtractions borrow into higher bytes only, so the lowest mark is always right.
    let words = rest.chunks_exact(8);
    let tail = words.remainder();
    for bytes in words {
        let word = u64::from_le_bytes(bytes.try_into().ok()?);
        let quote = word ^ (LOW_BITS * b'"' as u64);
        let backslash = word ^ (LOW_BITS * b'\\' as u64);
        let marks = (quote.wrapping_sub(LOW_BITS) & !quote
            | backslash.wrapping_sub(LOW_BITS) & !backslash
            | word.wrapping_sub(LOW_BITS * 0x20) & !word)
            & HIGH_BITS;
        if marks != 0 {
            return Some(position + marks.trailing_zeros() as usize / 8);
        }
        position += 8;
    }
    tail.iter().position(|byte| *byte < 0x20 || *byte == b'"' || *byte == b'\\').map(|at| position + at)
}

/// Return the number that `text` is in its only form: `-?(0|[1-9][0-9]*)`, not `-0`, in 64 bits.
#[inline]
pub fn parse_int(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [] | [b'0', _, ..] => return None,
        [b'0'] => return (!is_negative).then_some(0),
        _ if digits.len() > 19 => return None,
        _ => {}
    }
    let mut value: u64 = 0; // 19 digits fit
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + u64::from(digit - b'0');
    }
    if is_negative {
        0i64.checked_sub_unsigned(value)
    } else {
        i64::try_from(value).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(source: &[u8]) -> Option<Vec<u8>> {
        let mut scratch = Unescaped::default();
        let span = Cursor::new(source, 0).text(&mut scratch)?;
        Some(span.bytes(source, &scratch.bytes).to_vec())
    }

    #[test]
    fn texts_end_at_their_quote() {
        assert_eq!(text(br#""""#), Some(vec![]));
        for size in 0..40 {
            let value = "x".repeat(size);
            assert_eq!(text(format!("\"{value}\" and more").as_bytes()), Some(value.into_bytes()));
        }
    }

    #[test]
    fn all_escapes_are_decoded() {
        let source = br#""a\u0001b\u0002\"\\\/\b\f\n\r\t\u00e9\u20ACz""#;
        assert_eq!(text(source), Some("a\u{1}b\u{2}\"\\/\u{8}\u{c}\n\r\t\u{e9}\u{20ac}z".as_bytes().to_vec()));
    }

    #[test]
    fn other_texts_with_the_same_escapes_are_decoded_again() {
        let (first, second) = (br#""\u0001a\u0002bc\n""#, br#""\u0001x\u0002yz\n""#);
        let mut unescaped = Unescaped::default();
        let span = Cursor::new(first, 0).text(&mut unescaped).unwrap();
        assert_eq!(unescaped.copied().collect::<Vec<_>>(), [7..8, 14..16]);
        unescaped.decode_again(second);
        assert_eq!(span.bytes(second, &unescaped.bytes), b"\x01x\x02yz\n");
    }

    #[test]
    fn invalid_texts_are_not_plain() {
        for source in [
            &b"\"open"[..],
            b"\"\\",
            b"\"\\x\"",
            b"\"\\u12\"",
            b"\"\\u12g4\"",
            b"\"\\ud800\"",
            b"\"\\udc00\\ud800\"",
            b"\"a\x01b\"",
            b"\"0123456789\x1f\"",
            b"no quote",
            b"",
            b"\"\\u+123\"",
            b"\"escape\\n\x01\"",
        ] {
            assert_eq!(text(source), None, "{source:?}");
        }
    }

    #[test]
    fn bytes_above_ascii_are_not_special() {
        let value: Vec<u8> = (0x80..=0xffu8).cycle().take(700).collect();
        let source = [b"\"", &value[..], b"\""].concat();
        assert_eq!(text(&source), Some(value));
    }

    #[test]
    fn numbers_have_one_form() {
        for (source, value) in
            [("0", 0), ("7", 7), ("-1", -1), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(parse_int(source.as_bytes()), Some(value));
        }
        for source in [
            "",
            "-",
            "-0",
            "00",
            "01",
            "+1",
            " 1",
            "1 ",
            "1.0",
            "1e3",
            "0x1",
            "--1",
            "1-",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "99999999999999999999999",
            "١",
        ] {
            assert_eq!(parse_int(source.as_bytes()), None, "{source}");
        }
    }
}
