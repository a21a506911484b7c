//! The pattern of a header that was parsed: a header that matches it has the same values in the same places, with other characters.
//!
//! ```text
//! {"code":310,"extFields":{"e":"3","i":"KEYS\u0001some key"},"flag":0,"opaque":1207}
//!                               *       ****      ********                      ***        bytes that may be others
//! ```
//!
//! The requests of a connection mostly differ in a few of these bytes. To compare all takes a tenth of the time of parsing them.

#![forbid(unsafe_code)]

use std::ops::Range;

pub const PATTERNS: usize = 8; // that are remembered, by the sizes of their headers

/// Least and greatest value of each byte. They are equal where no other byte is allowed.
#[derive(Debug, Default)]
pub struct Pattern {
    least: Vec<u8>, // empty: nothing matches
    greatest: Vec<u8>,
}

impl Pattern {
    /// Match nothing.
    pub fn clear(&mut self) {
        self.least.clear();
        self.greatest.clear();
    }

    /// Match this header only.
    pub fn set(&mut self, header: &[u8]) {
        for bytes in [&mut self.least, &mut self.greatest] {
            bytes.clear();
            bytes.extend_from_slice(header);
        }
    }

    /// Allow other characters of ASCII in the place of those of a text. A text in JSON has no escapes.
    pub fn allow_text(&mut self, text: Range<usize>, is_json: bool) {
        let least = if is_json { b' ' } else { 0 }; // JSON escapes control characters
        self.allow(text, least, 0x7f, |byte| byte < 0x80);
    }

    /// Allow another number with as many digits and the same first one: it has no leading zero either.
    pub fn allow_number(&mut self, number: Range<usize>) {
        let is_negative = self.least[number.start] == b'-';
        self.allow(number.start + 1 + usize::from(is_negative)..number.end, b'0', b'9', |_| true);
    }

    /// Allow any bytes.
    pub fn allow_bytes(&mut self, bytes: Range<usize>) {
        self.allow(bytes, 0, 0xff, |_| true);
    }

    fn allow(&mut self, range: Range<usize>, least: u8, greatest: u8, is_allowed: impl Fn(u8) -> bool) {
        for (low, high) in self.least[range.clone()].iter_mut().zip(&mut self.greatest[range]) {
            if is_allowed(*low) {
                (*low, *high) = (least, greatest);
            }
        }
    }

    /// Return whether a header has the pattern.
    pub fn matches(&self, header: &[u8]) -> bool {
        if header.is_empty() || header.len() != self.least.len() {
            return false;
        }
        let bounds = self.least.iter().zip(&self.greatest);
        let is_other = header.iter().zip(bounds).fold(0, |is_other, (byte, (least, greatest))| {
            // No other byte becomes a quote or a backslash, which end texts.
            let is_mark = (*byte == b'"') | (*byte == b'\\');
            is_other | u8::from((byte < least) | (byte > greatest) | (is_mark & (least != greatest)))
        });
        is_other == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8] = "{\"a\":\"some é\",\"opaque\":-120}".as_bytes();

    #[test]
    fn a_header_matches_with_any_allowed_byte_and_with_no_other() {
        let mut pattern = Pattern::default();
        pattern.set(HEADER);
        pattern.allow_text(6..13, true);
        pattern.allow_number(24..28);
        for at in 0..HEADER.len() {
            for byte in 0..=255 {
                let mut header = HEADER.to_vec();
                header[at] = byte;
                let is_allowed = match at {
                    6..11 => (b' '..0x80).contains(&byte) && byte != b'"' && byte != b'\\',
                    26..28 => byte.is_ascii_digit(),
                    _ => false,
                };
                assert_eq!(pattern.matches(&header), is_allowed || byte == HEADER[at], "{byte:#x} at {at}");
            }
            assert!(!pattern.matches(&HEADER[..at]));
        }
        assert!(!pattern.matches(&[HEADER, b" "].concat()));
    }

    #[test]
    fn a_pattern_without_header_matches_nothing() {
        let mut pattern = Pattern::default();
        assert!(!pattern.matches(b""));
        pattern.set(HEADER);
        pattern.clear();
        assert!(!pattern.matches(b"") && !pattern.matches(HEADER));
    }
}
