//! The pulls of a turn: their headers are compared with known ones, and their records are gathered into one piece of responses.
//!
//! ```text
//! frame  → key: the header with a zero byte in place of each number that pulls have of their own → what a pull with this key is
//! pulls  → entries, limits → records of each ─ one load for neighbours → headers and records, one after another
//! ```

use std::collections::HashMap;
use std::ops::Range;

use memchr::memmem::Finder;

use crate::header::{FRAME_MAX, PREFIX_SIZE};
use crate::pull::{self, Codes, Limits, LoadedBytes, Place, Selection};
use crate::response::put_number;

const JSON: u8 = 0; // form of a header
const NUMBERS: usize = 4; // queue id, offset, commit offset, opaque
/// What stands in front of the numbers that each pull has of its own.
const MARKERS: [&[u8]; NUMBERS] = [b"\"queueId\":\"", b"\"queueOffset\":\"", b"\"commitOffset\":\"", b"\"opaque\":"];
const COMMIT_OFFSET: usize = 2; // the only one of them that may be absent
const DIGITS_MAX: usize = 18; // fewer than the largest i64 has
const INT32: [bool; NUMBERS] = [true, false, false, true];

const SYS_FLAG: Range<usize> = 36..40;
const BORN_HOST_V6: i32 = 0x10;
const STORE_MS_AT: usize = 56; // with an IPv4 host before it
const V6_EXTRA: usize = 12;

/// What a pull has of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pull {
    pub queue_id: i64,
    pub queue_offset: i64,
    pub commit_offset: i64,
    pub opaque: i64,
    pub end: usize, // of the frame, in the data
}

/// Known headers, each with a value for all pulls that differ from it only in their numbers.
pub struct Headers<T> {
    by_key: HashMap<Vec<u8>, T>,
    key: Vec<u8>, // of the frame that is looked up
    finders: [Finder<'static>; NUMBERS],
}

impl<T> Default for Headers<T> {
    fn default() -> Self {
        Self { by_key: HashMap::new(), key: Vec::new(), finders: MARKERS.map(Finder::new) }
    }
}

impl<T> Headers<T> {
    /// Remember a key. The caller has checked that a parser finds the numbers of each pull with this key where its zeros are.
    pub fn learn(&mut self, key: &[u8], value: T) {
        self.by_key.insert(key.to_vec(), value);
    }

    pub fn clear(&mut self) {
        self.by_key.clear();
    }

    /// Return the pull at `position` of `data`, whose JSON header is known; None for all others, and for an incomplete frame.
    pub fn find(&mut self, data: &[u8], position: usize, header_max: usize) -> Option<(&T, Pull)> {
        let frame = data.get(position..)?;
        let length = u32::from_be_bytes(frame.get(..4)?.try_into().ok()?) as usize;
        let form_and_size: [u8; 4] = frame.get(4..PREFIX_SIZE)?.try_into().ok()?;
        let size = u32::from_be_bytes(form_and_size) as usize & 0xff_ffff;
        if !(4..=FRAME_MAX - 4).contains(&length) || form_and_size[0] != JSON || size > header_max.min(length - 4) {
            return None;
        }
        let end = position.checked_add(4 + length).filter(|end| *end <= data.len())?;
        let numbers = self.cut(frame.get(PREFIX_SIZE..PREFIX_SIZE + size)?)?;
        let value = self.by_key.get(&self.key)?;
        let [queue_id, queue_offset, commit_offset, opaque] = numbers;
        Some((value, Pull { queue_id, queue_offset, commit_offset, opaque, end }))
    }

    /// Cut the numbers out of a header: set `key`, and return them. None if one is missing or unusual.
    ///
    /// A header without other zero bytes is its key with the numbers in place of the zeros: equal keys mean equal headers.
    fn cut(&mut self, header: &[u8]) -> Option<[i64; NUMBERS]> {
        if memchr::memchr(0, header).is_some() {
            return None;
        }
        let (mut numbers, mut cuts) = ([0; NUMBERS], [0..0, 0..0, 0..0, 0..0]);
        for (index, finder) in self.finders.iter().enumerate() {
            let Some(marker) = finder.find(header) else {
                if index == COMMIT_OFFSET {
                    continue;
                }
                return None;
            };
            let start = marker + MARKERS[index].len();
            let (number, count) = number(header.get(start..)?)?;
            if INT32[index] && number > i64::from(i32::MAX) {
                return None;
            }
            numbers[index] = number;
            cuts[index] = start..start + count;
        }
        cuts.sort_unstable_by_key(|cut| cut.start);
        self.key.clear();
        self.key.try_reserve(header.len()).ok()?;
        let mut position = 0;
        for cut in cuts.iter().filter(|cut| !cut.is_empty()) {
            self.key.extend_from_slice(header.get(position..cut.start)?);
            self.key.push(0);
            position = cut.end;
        }
        self.key.extend_from_slice(header.get(position..)?);
        Some(numbers)
    }
}

/// Return the number that `text` begins with, and how many digits it has; None if it is not written as usual.
fn number(text: &[u8]) -> Option<(i64, usize)> {
    let mut number = 0i64;
    let mut count = 0;
    for byte in text.iter().take_while(|byte| byte.is_ascii_digit()) {
        count += 1;
        if count > DIGITS_MAX {
            return None;
        }
        number = number * 10 + i64::from(byte - b'0');
    }
    (count == 1 || (count > 1 && text[0] != b'0')).then_some((number, count))
}

/// The file that the pulls of a turn read, and what limits their responses.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub base: i64,         // log offset of the first byte of the file
    pub size: usize,       // of the file
    pub limits: Limits,    // of each response; `count_max` is that of the pull
    pub turn_bytes: usize, // of all responses; the one that reaches it is the last
}

/// What a pull reads.
pub struct Query<'a> {
    pub entries: &'a [u8],
    pub count_max: i64,
    pub codes: Option<Codes>,
    pub first: i64,          // number of the first entry
    pub bounds: (i64, i64),  // of the queue
    pub brokers: (i64, i64), // suggested while the group keeps up, and while it does not
    pub opaque: i64,
}

/// What a response contains.
#[derive(Debug, PartialEq)]
pub struct Answer {
    pub places: Vec<Place>,
    pub last: i64,              // log offset of the last record that was examined
    pub store_ms: i64,          // of the last record in the response
    pub size: usize,            // of all records
    span: Option<Range<usize>>, // of the file; None if the records are far from each other
    head: Range<usize>,         // prefix and header, in `Answers::heads`
}

/// Prepared responses.
#[derive(Debug, Default)]
pub struct Answers {
    pub answers: Vec<Answer>,
    heads: Vec<u8>,
    pub size: usize, // of all responses
}

/// Return the responses of the first queries, without their records. It ends before a pull without messages, or with a record that
/// cannot be one of this file.
///
/// `texts` surround the numbers in the header of a response: end and start of the queue, next offset, broker, opaque.
pub fn prepare(queries: &[Query<'_>], source: &Source, texts: &[Vec<u8>]) -> Option<Answers> {
    let mut prepared = Answers::default();
    prepared.answers.try_reserve(queries.len()).ok()?;
    let mut total = 0usize;
    for query in queries {
        let limits = Limits { count_max: query.count_max.min(source.limits.count_max), ..source.limits };
        let Some(selection) = pull::select(query.entries, query.codes.as_ref(), &limits) else { break };
        let Some(size) = records_size(&selection, source) else { break };
        let is_old = selection.last < source.limits.recent_from;
        let next = query.first + selection.scanned as i64;
        let broker = if is_old { query.brokers.1 } else { query.brokers.0 };
        let start = prepared.heads.len();
        let numbers = [query.bounds.1, query.bounds.0, next, broker, query.opaque];
        if put_head(&mut prepared.heads, texts, &numbers, size).is_none() {
            prepared.heads.truncate(start);
            break;
        }
        let head = start..prepared.heads.len();
        prepared.size += head.len() + size;
        total += size;
        let Selection { places, last, .. } = selection;
        let span = pull::span(&places, source.base, source.size);
        prepared.answers.push(Answer { places, last, store_ms: 0, size, span, head });
        if total >= source.turn_bytes {
            break;
        }
    }
    Some(prepared)
}

/// Return the bytes of all selected records; None if there is none, or one cannot be in the file.
fn records_size(selection: &Selection, source: &Source) -> Option<usize> {
    let mut size = 0usize;
    for place in &selection.places {
        size += pull::span(std::slice::from_ref(place), source.base, source.size)?.len();
    }
    (size > 0).then_some(size)
}

fn put_head(heads: &mut Vec<u8>, texts: &[Vec<u8>], numbers: &[i64], size: usize) -> Option<()> {
    let (first, texts) = texts.split_first()?;
    heads.try_reserve(PREFIX_SIZE + 400).ok()?;
    let start = heads.len();
    heads.extend_from_slice(&[0; PREFIX_SIZE]);
    heads.extend_from_slice(first);
    for (number, text) in numbers.iter().zip(texts) {
        put_number(heads, *number);
        heads.extend_from_slice(text);
    }
    let header_size = heads.len() - start - PREFIX_SIZE;
    let length = 4 + header_size + size;
    if length > FRAME_MAX - 4 {
        return None;
    }
    heads[start..start + 4].copy_from_slice(&(length as u32).to_be_bytes());
    heads[start + 4..start + PREFIX_SIZE].copy_from_slice(&(header_size as u32).to_be_bytes()); // the form is 0
    Some(())
}

/// A file whose bytes have to be loaded before they are copied.
pub trait LoadableBytes: LoadedBytes {
    type Error;

    /// Return whether loads cost so little that records far from each other are loaded one by one.
    fn loads_far(&self) -> bool;

    /// Return whether the bytes of `range` are in memory: until the next call they can be copied.
    fn load(&mut self, range: Range<usize>) -> Result<bool, Self::Error>;
}

impl Answers {
    /// Write the responses to `out`, which has `size` bytes. Keep those before the first record that cannot
    /// be read or is not the one that its entry names; return the size of these.
    pub fn write<B: LoadableBytes>(
        &mut self,
        source: &Source,
        bytes: &mut B,
        out: &mut [u8],
    ) -> Result<usize, B::Error> {
        let (mut position, mut written, mut loaded) = (0, 0, 0);
        while written < self.answers.len() {
            if written == loaded {
                let (range, count) = self.neighbours(loaded);
                loaded += count;
                let is_loaded = match range {
                    Some(range) => bytes.load(range)? || (count > 1 && self.load_alone(written, &mut loaded, bytes)?),
                    None => bytes.loads_far(), // one by one, when they are copied
                };
                if !is_loaded {
                    break;
                }
            }
            let answer = &mut self.answers[written];
            let end = position + answer.head.len() + answer.size;
            let Some(response) = out.get_mut(position..end) else { break };
            let (head, records) = response.split_at_mut(answer.head.len());
            head.copy_from_slice(&self.heads[answer.head.clone()]);
            let Some(store_ms) = gather(answer, source, bytes, records)? else { break };
            answer.store_ms = store_ms;
            (position, written) = (end, written + 1);
        }
        self.answers.truncate(written);
        Ok(position)
    }

    /// Return a range with the records of the answer `first` and of those after it that are near, and how many they are; None if
    /// the records of the first are far from each other. A load of the range takes hardly more bytes than one for each answer.
    fn neighbours(&self, first: usize) -> (Option<Range<usize>>, usize) {
        let Some(mut range) = self.answers[first].span.clone() else { return (None, 1) };
        let mut count = 1;
        for answer in &self.answers[first + 1..] {
            let Some(span) = &answer.span else { break };
            let both = range.start.min(span.start)..range.end.max(span.end);
            if both.len() > pull::SPAN_MIN.max(range.len() + span.len()) {
                break;
            }
            (range, count) = (both, count + 1);
        }
        (Some(range), count)
    }

    /// Load only the records of the answer `first`, because those of the others after it cannot be loaded with them.
    fn load_alone<B: LoadableBytes>(&self, first: usize, loaded: &mut usize, bytes: &mut B) -> Result<bool, B::Error> {
        *loaded = first + 1;
        match &self.answers[first].span {
            Some(span) => bytes.load(span.clone()),
            None => Ok(false),
        }
    }
}

/// Copy the records of a response to `out`; return when the last one was stored, None if one is not what its entry names.
fn gather<B: LoadableBytes>(
    answer: &Answer,
    source: &Source,
    bytes: &mut B,
    mut out: &mut [u8],
) -> Result<Option<i64>, B::Error> {
    let mut last = None;
    for place in &answer.places {
        let Some(range) = pull::span(std::slice::from_ref(place), source.base, source.size) else { return Ok(None) };
        let Some((record, rest)) = out.split_at_mut_checked(range.len()) else { return Ok(None) };
        if answer.span.is_none() && !bytes.load(range.clone())? {
            return Ok(None);
        }
        if !bytes.copy(range.start, record) || pull::is_record(place, record) != Some(true) {
            return Ok(None);
        }
        last = Some(record);
        out = rest;
    }
    Ok(last.and_then(|record| stored_ms(record)))
}

/// Return the store time of a record in ms.
fn stored_ms(record: &[u8]) -> Option<i64> {
    let sys_flag = i32::from_be_bytes(record.get(SYS_FLAG)?.try_into().ok()?);
    let at = STORE_MS_AT + if sys_flag & BORN_HOST_V6 == 0 { 0 } else { V6_EXTRA };
    Some(i64::from_be_bytes(record.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        r#"{"code":11,"extFields":{"queueId":"7","queueOffset":"120","commitOffset":"0","topic":"T"},"opaque":5}"#;

    fn frame(header: &str) -> Vec<u8> {
        let size = header.len() as u32;
        [&(size + 4).to_be_bytes()[..], &size.to_be_bytes(), header.as_bytes()].concat()
    }

    fn known(header: &str) -> Headers<u8> {
        let mut headers = Headers::default();
        headers.cut(header.as_bytes()).unwrap();
        let key = headers.key.clone();
        headers.learn(&key, 9);
        headers
    }

    fn find(headers: &mut Headers<u8>, header: &str) -> Option<(i64, i64, i64, i64)> {
        let (value, pull) = headers.find(&frame(header), 0, 1000)?;
        assert_eq!((*value, pull.end), (9, header.len() + 8));
        Some((pull.queue_id, pull.queue_offset, pull.commit_offset, pull.opaque))
    }

    #[test]
    fn a_known_header_may_have_other_numbers() {
        let mut headers = known(HEADER);
        assert_eq!(find(&mut headers, HEADER), Some((7, 120, 0, 5)));
        let other =
            HEADER.replace("120", "999999999999999999").replace(":5}", ":2147483647}").replace("\"7\"", "\"0\"");
        assert_eq!(find(&mut headers, &other), Some((0, 999_999_999_999_999_999, 0, i64::from(i32::MAX))));
        let mut without = known(&HEADER.replace(r#""commitOffset":"0","#, ""));
        assert_eq!(find(&mut without, &HEADER.replace(r#""commitOffset":"0","#, "")), Some((7, 120, 0, 5)));
        assert_eq!(find(&mut without, HEADER), None);
    }

    #[test]
    fn other_headers_are_not_known() {
        let mut headers = known(HEADER);
        for (text, other) in [
            ("\"T\"", "\"U\""),
            ("\"7\"", "\"07\""),
            ("\"7\"", "\"-7\""),
            ("\"7\"", "\"\""),
            ("\"7\"", "\"2147483648\""),
            ("\"7\"", "\"\0\""),
            ("120", "1000000000000000000"),
            (":5}", ":2147483648}"),
            (":5}", ":5.0}"),
            ("\"topic\":\"T\"", "\"topic\":\"T\0\""),
            ("\"queueId\":\"7\",", ""),
            ("code", "cod\\u0065"),
        ] {
            assert_eq!(find(&mut headers, &HEADER.replacen(text, other, 1)), None, "{other}");
        }
        let whole = frame(HEADER);
        for end in 0..whole.len() {
            assert!(headers.find(&whole[..end], 0, 1000).is_none());
        }
        assert!(headers.find(&whole, 0, HEADER.len() - 1).is_none());
        assert!(headers.find(&whole, usize::MAX, 1000).is_none());
        for length in [0, 3, u32::MAX, FRAME_MAX as u32] {
            let damaged = [&length.to_be_bytes()[..], &whole[4..]].concat();
            assert!(headers.find(&damaged, 0, 1000).is_none());
        }
        headers.clear();
        assert_eq!(find(&mut headers, HEADER), None);
    }

    const LIMITS: Limits = Limits {
        log_start: 0,
        recent_from: 0,
        count_max: 32,
        bytes_max: 1 << 20,
        disk_count_max: 8,
        disk_bytes_max: 1 << 16,
    };
    const RECORD: usize = 100;

    /// A file of records of `RECORD` bytes. `end` is that of the part that can be loaded.
    struct File {
        data: Vec<u8>,
        end: usize,
        loaded: Range<usize>,
        loads: Vec<Range<usize>>,
    }

    impl File {
        fn new(records: usize) -> Self {
            let mut data = vec![0; records * RECORD];
            for (number, record) in data.chunks_mut(RECORD).enumerate() {
                record[..4].copy_from_slice(&(RECORD as i32).to_be_bytes());
                record[4..8].copy_from_slice(&crate::record::MAGIC.to_be_bytes());
                record[28..36].copy_from_slice(&((number * RECORD) as i64).to_be_bytes());
                record[56..64].copy_from_slice(&(1000 + number as i64).to_be_bytes());
            }
            Self { end: data.len(), data, loaded: 0..0, loads: Vec::new() }
        }
    }

    impl LoadedBytes for File {
        fn copy(&self, start: usize, to: &mut [u8]) -> bool {
            let is_loaded = self.loaded.start <= start && start + to.len() <= self.loaded.end;
            if is_loaded {
                to.copy_from_slice(&self.data[start..start + to.len()]);
            }
            is_loaded
        }
    }

    impl LoadableBytes for File {
        type Error = ();

        fn loads_far(&self) -> bool {
            true
        }

        fn load(&mut self, range: Range<usize>) -> Result<bool, ()> {
            self.loads.push(range.clone());
            let is_loaded = range.end <= self.end;
            self.loaded = if is_loaded { range } else { 0..0 };
            Ok(is_loaded)
        }
    }

    /// Answer pulls of these records; return how many were answered, and the responses.
    fn answer(file: &mut File, pulls: &[&[usize]], turn_bytes: usize) -> (Vec<Answer>, Vec<u8>) {
        let entry = |number: &usize| crate::record::queue_entry((number * RECORD) as i64, RECORD as i32, 0);
        let entries: Vec<Vec<u8>> = pulls.iter().map(|numbers| numbers.iter().flat_map(entry).collect()).collect();
        let query = |entries| Query {
            entries,
            count_max: 32,
            codes: None,
            first: 3,
            bounds: (2, 50),
            brokers: (0, 1),
            opaque: 77,
        };
        let queries: Vec<_> = entries.iter().map(|entries| query(&entries[..])).collect();
        let source = Source { base: 0, size: file.data.len(), limits: LIMITS, turn_bytes };
        let texts: Vec<Vec<u8>> = ["max ", ", min ", ", next ", ", broker ", ", opaque ", "."].map(Vec::from).to_vec();
        let mut answers = prepare(&queries, &source, &texts).unwrap();
        let mut out = vec![0; answers.size];
        let size = answers.write(&source, file, &mut out).unwrap();
        out.truncate(size);
        (answers.answers, out)
    }

    #[test]
    fn neighbours_are_loaded_together() {
        let mut file = File::new(100);
        let (answers, responses) = answer(&mut file, &[&[0, 2, 4], &[1, 3, 5], &[90]], 1 << 20);
        assert_eq!((file.loads.len(), file.loads[0].clone()), (1, 0..9100));
        assert_eq!(
            answers.iter().map(|answer| (answer.size, answer.store_ms)).collect::<Vec<_>>(),
            [(300, 1004), (300, 1005), (100, 1090)]
        );
        let header = b"max 50, min 2, next 6, broker 0, opaque 77.";
        let length = (4 + header.len() + 300) as u32;
        let records = [&file.data[..100], &file.data[200..300], &file.data[400..500]].concat();
        let expected =
            [&length.to_be_bytes()[..], &(header.len() as u32).to_be_bytes(), &header[..], &records[..]].concat();
        assert_eq!(responses[..expected.len()], expected);
        assert_eq!(answer(&mut file, &[&[0, 2, 4], &[1, 3, 5], &[90]], 301).0.len(), 2);
    }

    #[test]
    fn far_records_are_loaded_apart() {
        let mut file = File::new(20_000);
        let (answers, _) = answer(&mut file, &[&[0], &[19_000], &[5, 19_999], &[6]], 1 << 20);
        assert_eq!(answers.len(), 4);
        assert_eq!(file.loads, [0..100, 1_900_000..1_900_100, 500..600, 1_999_900..2_000_000, 600..700]);
    }

    #[test]
    fn a_response_that_cannot_be_read_ends_the_turn() {
        let mut file = File::new(100);
        file.end = 300;
        let (answers, responses) = answer(&mut file, &[&[0], &[1], &[50], &[2]], 1 << 20);
        assert_eq!((answers.len(), file.loads.len()), (2, 6));
        assert_eq!(responses.len(), 2 * (8 + 43 + 100));
        file.end = 10_000;
        file.data[128] ^= 1;
        assert_eq!(answer(&mut file, &[&[0], &[1], &[2]], 1 << 20).0.len(), 1);
        assert_eq!(answer(&mut file, &[&[0], &[100], &[2]], 1 << 20).0.len(), 1);
        assert_eq!(answer(&mut file, &[&[]], 1 << 20), (vec![], vec![]));
    }
}
