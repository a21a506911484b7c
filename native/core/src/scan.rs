//! Adjacent records of the log, and what is derived from them. [ariane.kernels.record_runs]
//!
//! ```text
//! bytes → records, each checked → entries by queue, hashed keys, store times, deliveries, decided transactions
//! ```
//!
//! A run ends before the first bytes that are not a valid record of their offset; why they are not is left to the caller.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::HashMap;

use crate::index;
use crate::layout::{self, i32_at, i64_at, parts_at, Parts};
use crate::properties::{for_each_pair, KEYS, TAGS, UNIQ_KEY};
use crate::record::{index_key, queue_entry};

const FILLER_SIZE: i64 = 8; // a file ends with one
const TRANSACTION_MASK: i32 = 12; // of SYSFLAG
const COMMIT: i32 = 8;
const ROLLBACK: i32 = 12;
const AFTER_PREPARED: usize = 12; // bytes from the prepared offset to the body
const LOWEST_MS: i64 = i64::MIN;

/// Where the scanned bytes are stored.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub offset: i64,  // in the log
    pub room: i64,    // bytes left in the log file
    pub until: usize, // a record must begin before
}

/// The records of one queue that get an entry.
#[derive(Debug)]
pub struct Queue<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub first: i64,           // queue offset of the first record
    pub is_consecutive: bool, // each queue offset follows the one before it
    pub entries: Vec<u8>,
    next: Option<i64>, // queue offset of the next record if they are consecutive; None beyond the last number
    topic_hash: Option<u32>,
}

/// Store times of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub first: i64,
    pub last: i64,
    pub floor: i64, // highest time that two neighbours have both reached
    pub decreases: usize,
}

/// Adjacent records.
#[derive(Debug)]
pub struct Run<'a> {
    pub size: usize,
    pub count: usize,
    pub times: Times,
    pub queues: Vec<Queue<'a>>,
    pub keys: Vec<u8>,
    pub key_times: Vec<(usize, i64)>,
    pub deliveries: Vec<(i64, i64)>,
    pub commits: Vec<i64>,
    pub rollbacks: Vec<i64>,
}

/// Return the records at the start of `data`; None if there is none.
pub fn scan<'a>(data: &'a [u8], place: &Place, check_crc: bool, hash_keys: bool) -> Option<Run<'a>> {
    let mut builder = Builder { hash_keys, ..Builder::default() };
    let mut start = 0;
    while start < place.until {
        let Some(parts) = valid_record_at(data, start, place, check_crc) else { break };
        let store_ms = store_ms(&parts, data, start);
        builder.add(&parts, prepared_offset(&parts, data, start), store_ms);
        start += parts.size();
    }
    (start > 0).then(|| builder.finish(start))
}

/// Return the record at `start` if it is one of its offset, fits into its file and, on request, is complete.
#[inline]
fn valid_record_at<'a>(data: &'a [u8], start: usize, place: &Place, check_crc: bool) -> Option<Parts<'a>> {
    let parts = parts_at(data, start)?;
    let at = i64::try_from(start).ok()?;
    let size = i64::from(i32_at(parts.head, layout::SIZE_AT));
    let is_in_place = place.offset.checked_add(at) == Some(i64_at(parts.head, layout::OFFSET_AT));
    if !is_in_place || at.checked_add(size)?.checked_add(FILLER_SIZE)? > place.room {
        return None;
    }
    if check_crc && !is_complete(&parts) {
        return None;
    }
    Some(parts)
}

/// Return whether the body has its CRC, and the properties were written to their end.
fn is_complete(parts: &Parts) -> bool {
    let crc = i32_at(parts.head, layout::BODY_CRC_AT);
    let is_body = parts.body.is_empty() || (crc32fast::hash(parts.body) & 0x7fff_ffff) as i32 == crc;
    is_body && parts.properties.last() != Some(&0)
}

/// Return where the body of a record begins. [layout::parts_at]
fn body_at(parts: &Parts, start: usize) -> usize {
    start + parts.size() - parts.properties.len() - 2 - parts.topic.len() - 1 - parts.body.len()
}

#[inline]
fn prepared_offset(parts: &Parts, data: &[u8], start: usize) -> i64 {
    if i32_at(parts.head, layout::SYS_FLAG_AT) & layout::V6_HOSTS == 0 {
        return i64_at(parts.head, layout::PREPARED_OFFSET_AT);
    }
    number_at(data, body_at(parts, start) - AFTER_PREPARED)
}

#[inline]
fn store_ms(parts: &Parts, data: &[u8], start: usize) -> i64 {
    if i32_at(parts.head, layout::SYS_FLAG_AT) & layout::BORN_HOST_V6 == 0 {
        return i64_at(parts.head, layout::STORE_MS_AT);
    }
    number_at(data, start + layout::STORE_MS_AT + layout::V6_EXTRA)
}

fn number_at(data: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(*data[at..].first_chunk::<8>().unwrap_or(&[0; 8]))
}

/// The properties that entries and keys depend on; empty if absent.
#[derive(Default)]
struct Lookup<'a> {
    unique_key: &'a [u8],
    keys: &'a [u8],
    tags: &'a [u8],
}

impl<'a> Lookup<'a> {
    /// Look up the properties; the last of equal names wins.
    #[inline]
    fn of(properties: &'a [u8]) -> Self {
        let mut lookup = Self::default();
        for_each_pair(properties, |name, value| match name.len() {
            4 if name == KEYS.as_bytes() => lookup.keys = value,
            4 if name == TAGS.as_bytes() => lookup.tags = value,
            8 if name == UNIQ_KEY.as_bytes() => lookup.unique_key = value,
            _ => {}
        });
        lookup
    }
}

/// Return the text of a value, with U+FFFD for invalid UTF-8. Separators are ASCII, so each value is decoded for itself.
#[inline]
fn text(value: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(value)
}

/// Collects what a run returns, record by record.
#[derive(Default)]
struct Builder<'a> {
    hash_keys: bool,
    count: usize,
    times: Option<Times>,
    queues: Vec<Queue<'a>>,
    indexes: HashMap<(&'a [u8], i32), usize>, // of `queues`
    topics: HashMap<&'a [u8], u32>, // hashes of topics without queues: those of rolled-back messages are not needed
    last: usize,                    // index of the queue of the last record
    keys: Vec<u8>,
    key_times: Vec<(usize, i64)>,
    deliveries: Vec<(i64, i64)>,
    commits: Vec<i64>,
    rollbacks: Vec<i64>,
}

impl<'a> Builder<'a> {
    /// Add the next record.
    fn add(&mut self, parts: &Parts<'a>, prepared_offset: i64, store_ms: i64) {
        let offset = i64_at(parts.head, layout::OFFSET_AT);
        let state = i32_at(parts.head, layout::SYS_FLAG_AT) & TRANSACTION_MASK;
        self.add_time(store_ms);
        self.count += 1;
        if state == ROLLBACK {
            self.rollbacks.push(offset);
            return;
        }
        if prepared_offset < 0 {
            self.deliveries.push((offset, prepared_offset));
        }
        if state == COMMIT {
            self.commits.push(offset);
        }
        let lookup = Lookup::of(parts.properties);
        if state == 0 || state == COMMIT {
            self.add_entry(parts, offset, &lookup);
        }
        if self.hash_keys {
            self.add_keys(parts.topic, offset, store_ms, &lookup);
        }
    }

    #[inline]
    fn add_time(&mut self, store_ms: i64) {
        self.times = Some(match self.times {
            None => Times { first: store_ms, last: store_ms, floor: LOWEST_MS, decreases: 0 },
            Some(times) => Times {
                last: store_ms,
                floor: times.floor.max(times.last.min(store_ms)),
                decreases: times.decreases + usize::from(store_ms < times.last),
                ..times
            },
        });
    }

    #[inline]
    fn add_entry(&mut self, parts: &Parts<'a>, offset: i64, lookup: &Lookup) {
        let queue_id = i32_at(parts.head, layout::QUEUE_ID_AT);
        let queue_offset = i64_at(parts.head, layout::QUEUE_OFFSET_AT);
        let is_last = |queue: &Queue| queue.queue_id == queue_id && queue.topic == parts.topic;
        if !self.queues.get(self.last).is_some_and(is_last) {
            self.last = *self.indexes.entry((parts.topic, queue_id)).or_insert(self.queues.len());
        }
        if self.last == self.queues.len() {
            self.queues.push(Queue {
                topic: parts.topic,
                queue_id,
                first: queue_offset,
                is_consecutive: true,
                entries: Vec::new(),
                next: Some(queue_offset),
                topic_hash: None,
            });
        }
        let queue = &mut self.queues[self.last];
        queue.is_consecutive &= queue.next == Some(queue_offset);
        queue.next = queue_offset.checked_add(1);
        let tags_code = index::tags_code(&text(lookup.tags));
        queue.entries.extend_from_slice(&queue_entry(offset, i32_at(parts.head, layout::SIZE_AT), tags_code));
    }

    #[inline]
    fn add_keys(&mut self, topic: &'a [u8], offset: i64, store_ms: i64, lookup: &Lookup) {
        if lookup.unique_key.is_empty() && lookup.keys.is_empty() {
            return;
        }
        let topic_hash = self.topic_hash(topic);
        let (unique_key, words) = (text(lookup.unique_key), text(lookup.keys));
        let mut count = 0;
        index::for_each_key(&unique_key, &words, |key| {
            self.keys.extend_from_slice(&index_key(index::key_hash(topic_hash, key), offset));
            count += 1;
        });
        match self.key_times.last_mut() {
            Some((keys, time)) if *time == store_ms => *keys += count,
            _ if count > 0 => self.key_times.push((count, store_ms)),
            _ => {}
        }
    }

    /// Return the hash that the keys of a topic begin with.
    #[inline]
    fn topic_hash(&mut self, topic: &'a [u8]) -> u32 {
        if let Some(queue) = self.queues.get_mut(self.last).filter(|queue| queue.topic == topic) {
            return *queue.topic_hash.get_or_insert_with(|| index::topic_hash(&text(topic)));
        }
        *self.topics.entry(topic).or_insert_with(|| index::topic_hash(&text(topic)))
    }

    fn finish(self, size: usize) -> Run<'a> {
        Run {
            size,
            count: self.count,
            times: self.times.unwrap_or(Times { first: 0, last: 0, floor: LOWEST_MS, decreases: 0 }),
            queues: self.queues,
            keys: self.keys,
            key_times: self.key_times,
            deliveries: self.deliveries,
            commits: self.commits,
            rollbacks: self.rollbacks,
        }
    }
}
