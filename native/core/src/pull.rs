//! The messages of one pull: entries of its queue and the log in, the records of the response out.
//!
//! ```text
//! entries → tags codes, limits of one response → Selection ┬→ span of one file ─┬→ identity of each record → body
//!                                                           └→ far records ──────┘    └ otherwise None
//! ```
//! [DefaultMessageStore.getMessage, isTheBatchFull]

use std::ops::Range;

use crate::record::{FIXED_SIZE, MAGIC};

pub const ENTRY_SIZE: usize = 20;
const BLANK_SIZE: i32 = i32::MAX; // of an entry without a record
const LOST_CODE: i64 = 0x4C4F_5354 << 32; // "LOST": of the entry of a lost record
const EXT_ADDRESS_MAX: i64 = i32::MIN as i64 - 1; // codes up to here are addresses in a file of Java's: the tag is unknown

// The load of a map covers everything between the first record and the last. Further apart, single reads cost less; and the
// size in a damaged entry must not cause the load of a gigabyte.
pub const SPAN_MIN: usize = 256 * 1024;
const SPAN_PER_RECORD: usize = 32 * 1024;

const SIZE: Range<usize> = 0..4;
const MAGIC_CODE: Range<usize> = 4..8;
const OFFSET: Range<usize> = 28..36;
const IDENTITY_SIZE: usize = OFFSET.end; // bytes that show whether a record is the one that an entry names

/// What one response may contain. The first record is always allowed, whatever its size.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub log_start: i64,      // records below this log offset are removed
    pub recent_from: i64,    // records from this log offset on are assumed to be in memory
    pub count_max: i64,      // records
    pub bytes_max: i64,      // of all records
    pub disk_count_max: i64, // records before one below `recent_from`
    pub disk_bytes_max: i64, // of all records, with one below `recent_from`
}

/// Tags codes of the messages to return.
pub struct Codes(Vec<i64>);

impl Codes {
    pub fn new(mut codes: Vec<i64>) -> Self {
        codes.sort_unstable();
        Self(codes)
    }

    /// Return whether a message with the tags code `code` may be returned.
    fn accept(&self, code: i64) -> bool {
        code <= EXT_ADDRESS_MAX || self.contains(code) || self.contains(i64::from(code as i32))
    }

    fn contains(&self, code: i64) -> bool {
        match &self.0[..] {
            [only] => *only == code,
            codes => codes.binary_search(&code).is_ok(),
        }
    }
}

/// A record that a response contains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub offset: i64, // in the log
    pub size: i32,
}

/// The records of a response.
#[derive(Debug, Default, PartialEq)]
pub struct Selection {
    pub places: Vec<Place>,
    pub scanned: usize,   // entries that are done with
    pub last: i64,        // log offset of the last record that was examined; 0 if none was
    pub is_removed: bool, // the last entry examined names a record that is removed or lost
}

/// Return which of `entries` a response contains; None if they are no whole entries, or memory is exhausted.
pub fn select(entries: &[u8], codes: Option<&Codes>, limits: &Limits) -> Option<Selection> {
    let mut selection = Selection::default();
    let mut total = 0;
    let entries = entries.chunks_exact(ENTRY_SIZE);
    if !entries.remainder().is_empty() {
        return None;
    }
    let expected = usize::try_from(limits.count_max).unwrap_or(0).clamp(1, entries.len().max(1));
    selection.places.try_reserve(expected).ok()?;
    for entry in entries {
        let (offset, size, code) = (long(entry, 0..8)?, int(entry, 8..12)?, long(entry, 12..20)?);
        if offset < limits.log_start || size == BLANK_SIZE || code == LOST_CODE {
            selection.is_removed = true;
            selection.scanned += 1;
            continue;
        }
        let (count, with_it) = (selection.places.len() as i64, total + i64::from(size));
        if count > 0 {
            if count >= limits.count_max || with_it > limits.bytes_max {
                break;
            }
            if offset < limits.recent_from && (count >= limits.disk_count_max || with_it > limits.disk_bytes_max) {
                break;
            }
        }
        selection.last = offset;
        selection.scanned += 1;
        if codes.is_some_and(|codes| !codes.accept(code)) {
            selection.is_removed = false;
            continue;
        }
        selection.places.push(Place { offset, size });
        total = with_it;
    }
    Some(selection)
}

/// Return a range of a file that contains all of `places`; None if one is elsewhere, no record, or far from the others.
///
/// `base` is the log offset of the first byte of the file, which has `size` bytes. As in Python, the range ends as if the last
/// record were the largest, unless the file ends before that.
pub fn span(places: &[Place], base: i64, size: usize) -> Option<Range<usize>> {
    let (mut first, mut last, mut largest, mut stop) = (usize::MAX, 0, 0, 0);
    for place in places {
        let start = usize::try_from(place.offset.checked_sub(base)?).ok()?;
        let length = usize::try_from(place.size).ok().filter(|length| *length >= FIXED_SIZE)?;
        (first, last, largest) = (first.min(start), last.max(start), largest.max(length));
        stop = stop.max(start.checked_add(length)?);
    }
    let stop = last.checked_add(largest).filter(|end| *end <= size).unwrap_or(stop);
    let span_max = SPAN_MIN + SPAN_PER_RECORD * places.len();
    (first < stop && stop <= size && stop - first <= span_max).then_some(first..stop)
}

/// Return the records at `places` if they are far from each other in a file, and none of them is large.
///
/// `load` brings a range of the file into memory and copies it to the end of a buffer; false if it cannot be read.
pub fn gather_far(
    places: &[Place],
    base: i64,
    size: usize,
    mut load: impl FnMut(Range<usize>, &mut Vec<u8>) -> bool,
) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    for place in places {
        let range = span(std::slice::from_ref(place), base, size)?;
        let start = body.len();
        body.try_reserve(range.len()).ok()?;
        if !load(range, &mut body) || !is_record(place, body.get(start..)?)? {
            return None;
        }
    }
    Some(body)
}

/// Return whether the record that begins with `head` is the one at `place`.
pub fn is_record(place: &Place, head: &[u8]) -> Option<bool> {
    let (size, magic, offset) = (int(head, SIZE)?, int(head, MAGIC_CODE)?, long(head, OFFSET)?);
    Some((size, magic, offset) == (place.size, MAGIC as i32, place.offset))
}

/// Bytes of a file that are in memory.
pub trait LoadedBytes {
    /// Copy the bytes at `start` of the file to `to`; false if they are not among those in memory.
    fn copy(&self, start: usize, to: &mut [u8]) -> bool;
}

/// Return the number of bytes of all records; None if one of them is not the record that its entry names.
pub fn verified_size(places: &[Place], base: i64, bytes: &impl LoadedBytes) -> Option<usize> {
    let mut total = 0usize;
    let mut head = [0; IDENTITY_SIZE];
    for place in places {
        if !bytes.copy(position(place, base)?, &mut head) {
            return None;
        }
        if !is_record(place, &head)? {
            return None;
        }
        total = total.checked_add(place.size as usize)?;
    }
    Some(total)
}

/// Copy the records to `body`, one after another; None unless they fill it.
pub fn gather(places: &[Place], base: i64, bytes: &impl LoadedBytes, mut body: &mut [u8]) -> Option<()> {
    for place in places {
        let (record, rest) = body.split_at_mut_checked(place.size as usize)?;
        if !bytes.copy(position(place, base)?, record) {
            return None;
        }
        body = rest;
    }
    body.is_empty().then_some(())
}

fn position(place: &Place, base: i64) -> Option<usize> {
    usize::try_from(place.offset.checked_sub(base)?).ok()
}

#[inline]
fn int(data: &[u8], at: Range<usize>) -> Option<i32> {
    Some(i32::from_be_bytes(data.get(at)?.try_into().ok()?))
}

#[inline]
fn long(data: &[u8], at: Range<usize>) -> Option<i64> {
    Some(i64::from_be_bytes(data.get(at)?.try_into().ok()?))
}

/// Bytes that were copied from a file, from `start` of it on.
pub struct Copied<'a> {
    pub start: usize,
    pub data: &'a [u8],
}

impl LoadedBytes for Copied<'_> {
    fn copy(&self, start: usize, to: &mut [u8]) -> bool {
        let from = start.checked_sub(self.start).and_then(|start| self.data.get(start..)?.get(..to.len()));
        from.map(|from| to.copy_from_slice(from)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Limits = Limits {
        log_start: 0,
        recent_from: 0,
        count_max: 1000,
        bytes_max: 1 << 40,
        disk_count_max: 1000,
        disk_bytes_max: 1 << 40,
    };

    fn entries(entries: &[(i64, i32, i64)]) -> Vec<u8> {
        entries.iter().flat_map(|entry| crate::record::queue_entry(entry.0, entry.1, entry.2)).collect()
    }

    fn chosen(given: &[(i64, i32, i64)], codes: Option<&[i64]>, limits: &Limits) -> (Vec<i64>, usize, i64, bool) {
        let codes = codes.map(|codes| Codes::new(codes.to_vec()));
        let selection = select(&entries(given), codes.as_ref(), limits).unwrap();
        let offsets = selection.places.iter().map(|place| place.offset).collect();
        (offsets, selection.scanned, selection.last, selection.is_removed)
    }

    #[test]
    fn limits_end_a_response_but_never_before_its_first_record() {
        let given = [(100, 100, 1), (200, 200, 2), (400, 300, 1)];
        assert_eq!(chosen(&given, None, &ALL), (vec![100, 200, 400], 3, 400, false));
        assert_eq!(chosen(&given, None, &Limits { count_max: 2, ..ALL }), (vec![100, 200], 2, 200, false));
        assert_eq!(chosen(&given, None, &Limits { count_max: -1, bytes_max: -1, ..ALL }), (vec![100], 1, 100, false));
        assert_eq!(chosen(&given, None, &Limits { bytes_max: 599, ..ALL }), (vec![100, 200], 2, 200, false));
        let old = Limits { recent_from: 300, disk_count_max: 1, ..ALL };
        assert_eq!(chosen(&given, None, &old), (vec![100], 1, 100, false));
        assert_eq!(chosen(&given, None, &Limits { disk_bytes_max: 299, ..old }), (vec![100], 1, 100, false));
    }

    #[test]
    fn entries_without_a_record_are_skipped() {
        let given = [(0, 100, 1), (100, BLANK_SIZE, 1), (100, 100, LOST_CODE), (100, 100, 2)];
        let later = Limits { log_start: 1, ..ALL };
        assert_eq!(chosen(&given, None, &later), (vec![100], 4, 100, true));
        assert_eq!(chosen(&given, Some(&[3]), &later), (vec![], 4, 100, false));
        assert_eq!(chosen(&given[..3], None, &later), (vec![], 3, 0, true));
        assert_eq!(select(&[0; 21], None, &ALL), None);
    }

    #[test]
    fn tags_are_compared_by_the_low_half_of_their_codes() {
        let codes = [1 << 40 | 7, 7, -7, 8, EXT_ADDRESS_MAX, EXT_ADDRESS_MAX + 1];
        let given: Vec<_> = (0..).zip(codes).map(|(number, code)| (100 * number, 100, code)).collect();
        assert_eq!(chosen(&given, Some(&[7]), &ALL).0, [0, 100, 400]);
        assert_eq!(chosen(&given, Some(&[-7, 8, 9]), &ALL).0, [200, 300, 400]);
        assert_eq!(chosen(&given, Some(&[]), &ALL).0, [400]);
        assert_eq!(chosen(&given, Some(&[i64::from(i32::MIN)]), &ALL).0, [400, 500]);
    }

    #[test]
    fn records_are_read_from_one_span_of_one_file() {
        let place = |offset, size| Place { offset, size };
        assert_eq!(span(&[place(5300, 100), place(5100, 91)], 5000, 400), Some(100..400));
        assert_eq!(span(&[place(5200, 91), place(5100, 99)], 5000, 400), Some(100..299));
        assert_eq!(span(&[place(5300, 101)], 5000, 400), None);
        assert_eq!(span(&[place(4999, 100)], 5000, 400), None);
        assert_eq!(span(&[place(5000, 90)], 5000, 400), None);
        assert_eq!(span(&[place(5000, -100)], 5000, 400), None);
        assert_eq!(span(&[place(i64::MIN, 100)], 5000, 400), None);
        assert_eq!(span(&[place(i64::MAX, 100)], -1, 400), None);
        assert_eq!(span(&[], 5000, 400), None);
        let far = SPAN_MIN + 2 * SPAN_PER_RECORD;
        assert_eq!(span(&[place(0, 100), place(far as i64 - 100, 100)], 0, far), Some(0..far));
        assert_eq!(span(&[place(0, 100), place(far as i64 - 99, 100)], 0, far + 1), None);
    }

    #[test]
    fn far_records_are_read_one_by_one() {
        let record = |offset: i64| {
            let mut record = [7; 100];
            record[..8].copy_from_slice(&[0, 0, 0, 100, 0xda, 0xa3, 0x20, 0xa7]);
            record[OFFSET].copy_from_slice(&offset.to_be_bytes());
            record
        };
        let load = |range: Range<usize>, body: &mut Vec<u8>| {
            body.extend_from_slice(&record(range.start as i64 + 5000)[..range.len()]);
            range.start != 300
        };
        let place = |offset, size| Place { offset, size };
        let both = gather_far(&[place(9_000_000, 100), place(5000, 100)], 5000, 1 << 30, load);
        assert_eq!(both.unwrap(), [record(9_000_000), record(5000)].concat());
        for wrong in [place(5300, 100), place(5000, 99), place(5000, 90), place(4999, 100), place(i64::MAX, 100)] {
            assert_eq!(gather_far(&[place(5000, 100), wrong], 5000, 1 << 30, load), None);
        }
        assert_eq!(gather_far(&[place(5000, 1 << 20)], 5000, 1 << 30, |_, _| panic!("too large")), None);
    }

    #[test]
    fn only_the_records_that_the_entries_name_are_gathered() {
        let mut data = vec![0; 300];
        for (start, size) in [(10, 100), (110, 150)] {
            data[start..start + 4].copy_from_slice(&(size as i32).to_be_bytes());
            data[start + 4..start + 8].copy_from_slice(&MAGIC.to_be_bytes());
            data[start + 28..start + 36].copy_from_slice(&(5000 + start as i64).to_be_bytes());
            data[start + 40..start + size].fill(size as u8);
        }
        let bytes = Copied { start: 10, data: &data[10..] };
        let both = [Place { offset: 5110, size: 150 }, Place { offset: 5010, size: 100 }];
        assert_eq!(verified_size(&both, 5000, &bytes), Some(250));
        let mut body = vec![0; 250];
        assert_eq!(gather(&both, 5000, &bytes, &mut body), Some(()));
        assert_eq!(body, [&data[110..260], &data[10..110]].concat());
        assert_eq!(gather(&both, 5000, &bytes, &mut [0; 249]), None);
        assert_eq!(gather(&both, 5000, &bytes, &mut [0; 251]), None);
        for wrong in
            [Place { offset: 5110, size: 149 }, Place { offset: 5111, size: 150 }, Place { offset: 5000, size: 100 }]
        {
            assert_eq!(verified_size(&[wrong], 5000, &bytes), None);
        }
        assert_eq!(verified_size(&both, 5000, &Copied { start: 10, data: &data[10..130] }), None);
    }
}
