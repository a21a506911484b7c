//! Hashes of tags and keys. [String.hashCode, IndexService.buildIndex, IndexFile.indexKeyHashMethod]
//!
//! ```text
//! properties → UNIQ_KEY, then each word of KEYS → |hash of "<topic>#<key>"|
//! ```

use std::collections::HashSet;

const PAIRWISE_MAX: usize = 16; // keys of a message that are compared each with each; more are hashed

/// Return the hash of `text` over its UTF-16 units, continued from the hash of what precedes it.
#[inline]
pub fn java_hash(start: u32, text: &str) -> u32 {
    if !text.is_ascii() {
        return text.encode_utf16().fold(start, |hash, unit| step(hash, unit.into()));
    }
    let (mut hash, chunks) = (start, text.as_bytes().chunks_exact(4));
    let tail = chunks.remainder();
    // Four units per step: the products do not wait for each other.
    for chunk in chunks {
        let [a, b, c, d] = [chunk[0], chunk[1], chunk[2], chunk[3]].map(u32::from);
        hash = hash.wrapping_mul(31 * 31 * 31 * 31).wrapping_add(a * (31 * 31 * 31) + b * (31 * 31) + c * 31 + d);
    }
    tail.iter().fold(hash, |hash, byte| step(hash, u32::from(*byte)))
}

#[inline]
fn step(hash: u32, unit: u32) -> u32 {
    hash.wrapping_mul(31).wrapping_add(unit)
}

/// Return the tags code of a queue entry.
pub fn tags_code(tags: &str) -> i64 {
    i64::from(java_hash(0, tags) as i32)
}

/// Return the hash that all keys of a topic begin with.
pub fn topic_hash(topic: &str) -> u32 {
    java_hash(java_hash(0, topic), "#")
}

/// Return the hash of a key in the index; 0 for the one number without a positive counterpart.
#[inline]
pub fn key_hash(topic_hash: u32, key: &str) -> u32 {
    let hash = java_hash(topic_hash, key) as i32;
    hash.checked_abs().unwrap_or(0) as u32
}

/// Call `visit` with each key of a message once: the unique id, then the words of KEYS.
pub fn for_each_key<'a>(unique_key: &'a str, keys: &'a str, mut visit: impl FnMut(&'a str)) {
    if !unique_key.is_empty() {
        visit(unique_key);
    }
    if keys.is_empty() {
        return;
    }
    let mut seen = Vec::new();
    let mut many = HashSet::new();
    for word in keys.split(' ').filter(|word| !word.is_empty() && *word != unique_key) {
        if seen.len() < PAIRWISE_MAX {
            if seen.contains(&word) {
                continue;
            }
            seen.push(word);
        } else if seen.contains(&word) || !many.insert(word) {
            continue;
        }
        visit(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_java() {
        // jshell> "TagA".hashCode(), "".hashCode(), "é€😀".hashCode(), "the quick brown fox".hashCode()
        assert_eq!(tags_code("TagA"), 2598919);
        assert_eq!(tags_code(""), 0);
        for text in ["a", "polygenelubricants", "é€😀", "the quick brown fox", "😀😀😀😀", "x\u{1}y"] {
            let slow = text.encode_utf16().fold(0u32, |hash, unit| hash.wrapping_mul(31).wrapping_add(unit.into()));
            assert_eq!(tags_code(text), i64::from(slow as i32));
        }
        assert_eq!(tags_code("polygenelubricants"), i64::from(i32::MIN));
    }

    #[test]
    fn key_hashes_are_positive() {
        // "polygenelubricants" hashes to the smallest number: its absolute value does not exist.
        assert_eq!(key_hash(0, "polygenelubricants"), 0);
        assert_eq!(key_hash(topic_hash("T"), "k"), ((b'T' as u32 * 31 + b'#' as u32) * 31) + b'k' as u32);
    }

    fn keys_of(unique_key: &str, keys: &str) -> Vec<String> {
        let mut found = Vec::new();
        for_each_key(unique_key, keys, |key| found.push(key.to_owned()));
        found
    }

    #[test]
    fn keys_are_without_duplicates() {
        assert_eq!(keys_of("", ""), [""; 0]);
        assert_eq!(keys_of("u", ""), ["u"]);
        assert_eq!(keys_of("u", " a b  a u\tv "), ["u", "a", "b", "u\tv"]);
        let many: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        assert_eq!(keys_of("", &[many.join(" "), many.join(" ")].join(" ")), many);
        assert_eq!(keys_of("5", &many.join(" ")).len(), 100);
    }
}
