//! Message properties as text: `name 0x01 value`, pairs joined by 0x02.
//!
//! Segments with an empty name or value are skipped. A value may contain further 0x01.

use std::collections::HashSet;

pub const NAME_END: u8 = 1;
pub const PAIR_END: u8 = 2;
pub const SIZE_MAX: usize = 32767; // the length field of a record is a signed short

pub const CLUSTER: &str = "CLUSTER";
pub const KEYS: &str = "KEYS";
pub const TAGS: &str = "TAGS";
pub const UNIQ_KEY: &str = "UNIQ_KEY";
pub const WAIT: &str = "WAIT";

const PAIRWISE_MAX: usize = 16; // names that are compared each with each; more are hashed

/// The place of one property in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    start: usize,
    name_end: usize,
    end: usize,
}

impl Pair {
    #[inline]
    pub fn name<'a>(&self, text: &'a str) -> &'a str {
        &text[self.start..self.name_end]
    }

    #[inline]
    pub fn value<'a>(&self, text: &'a str) -> &'a str {
        &text[self.name_end + 1..self.end]
    }

    /// Return name and value as they are stored.
    #[inline]
    pub fn segment<'a>(&self, text: &'a str) -> &'a str {
        &text[self.start..self.end]
    }
}

/// Replace `pairs` by the properties in `text`, in their order.
pub fn decode(text: &str, pairs: &mut Vec<Pair>) {
    pairs.clear();
    let bytes = text.as_bytes();
    let mut start = 0;
    while start < bytes.len() {
        let end = memchr::memchr(PAIR_END, &bytes[start..]).map_or(bytes.len(), |size| start + size);
        if let Some(size) = memchr::memchr(NAME_END, &bytes[start..end]) {
            let name_end = start + size;
            if size > 0 && name_end + 1 < end {
                pairs.push(Pair { start, name_end, end });
            }
        }
        start = end + 1;
    }
}

/// Call `visit` with name and value of each property. Segments with an empty name or value are none. The text need not be UTF-8.
#[inline]
pub fn for_each_pair<'a>(text: &'a [u8], mut visit: impl FnMut(&'a [u8], &'a [u8])) {
    let (mut start, mut name_end) = (0, None);
    let mut end_pair = |start: usize, name_end: Option<usize>, end: usize| {
        if let Some(name_end) = name_end.filter(|name_end| *name_end > start && name_end + 1 < end) {
            visit(&text[start..name_end], &text[name_end + 1..end]);
        }
    };
    for at in memchr::memchr2_iter(NAME_END, PAIR_END, text) {
        if text[at] == PAIR_END {
            end_pair(start, name_end, at);
            (start, name_end) = (at + 1, None);
        } else {
            name_end = name_end.or(Some(at));
        }
    }
    end_pair(start, name_end, text.len());
}

/// Return whether two properties have the same name.
pub fn has_duplicates(text: &str, pairs: &[Pair]) -> bool {
    if pairs.len() > PAIRWISE_MAX {
        let mut names = HashSet::with_capacity(pairs.len());
        return !pairs.iter().all(|pair| names.insert(pair.name(text)));
    }
    pairs.iter().enumerate().any(|(index, pair)| pairs[..index].iter().any(|other| other.name(text) == pair.name(text)))
}

/// Names that make a message unusual.
#[derive(Debug)]
pub struct NameSet {
    names: Vec<String>,
    lengths: u64, // bit n: a name has n bytes; names of other lengths need no comparison
}

impl NameSet {
    pub fn new(names: Vec<String>) -> Self {
        let lengths = names.iter().fold(0, |bits, name| bits | length_bit(name));
        Self { names, lengths }
    }

    #[inline]
    pub fn contains(&self, name: &str) -> bool {
        self.lengths & length_bit(name) != 0 && self.names.iter().any(|other| other == name)
    }
}

fn length_bit(name: &str) -> u64 {
    1 << name.len().min(63)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Vec<(&str, &str)> {
        let mut pairs = Vec::new();
        decode(text, &mut pairs);
        pairs.iter().map(|pair| (pair.name(text), pair.value(text))).collect()
    }

    #[test]
    fn pairs_are_found_in_order() {
        assert_eq!(decoded("a\u{1}1\u{2}b\u{1}2"), [("a", "1"), ("b", "2")]);
        assert_eq!(decoded("a\u{1}1\u{2}"), [("a", "1")]);
        assert_eq!(decoded("é\u{1}x\u{1}y"), [("é", "x\u{1}y")]);
        assert_eq!(decoded("a\u{1}\u{1}"), [("a", "\u{1}")]);
    }

    #[test]
    fn incomplete_segments_are_skipped() {
        for text in ["", "a", "a\u{1}", "\u{1}b", "\u{2}\u{2}", "\u{1}", "\u{2}a\u{2}\u{1}\u{2}"] {
            assert_eq!(decoded(text), [], "{text:?}");
        }
    }

    #[test]
    fn duplicates_are_found_among_few_and_many() {
        for count in [2, 5, 40] {
            let mut text: String = (0..count).map(|number| format!("n{number}\u{1}v\u{2}")).collect();
            let mut pairs = Vec::new();
            decode(&text, &mut pairs);
            assert!(!has_duplicates(&text, &pairs));
            text += "n0\u{1}w";
            decode(&text, &mut pairs);
            assert!(has_duplicates(&text, &pairs));
        }
    }

    #[test]
    fn names_are_compared_whole() {
        let names = NameSet::new(vec!["DELAY".into(), "x".repeat(100)]);
        assert!(names.contains("DELAY") && names.contains(&"x".repeat(100)));
        assert!(
            !names.contains("DELAX")
                && !names.contains("DELA")
                && !names.contains("")
                && !names.contains(&"x".repeat(99))
        );
    }
}
