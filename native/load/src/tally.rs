//! What a load counts, for each thread and merged.

use std::collections::BTreeMap;

use crate::frame::Frame;
use crate::histogram::Histogram;

/// Success, and stored with a warning: FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT.
pub const SEND_ACCEPTED: [i32; 4] = [0, 10, 11, 12];

#[derive(Default)]
pub struct Tally {
    /// Messages of the measured time.
    pub messages: u64,
    /// Messages of the whole run: warm-up and what came after the measured time included.
    pub total: u64,
    /// Accepted messages of the whole run by queue; sends only.
    pub by_queue: Vec<u64>,
    /// Bytes of bodies of pull answers.
    pub bytes: u64,
    /// Durations of the requests of the measured time.
    pub latencies: Histogram,
    /// Answers of the whole run by response code.
    pub codes: BTreeMap<i32, u64>,
    /// Remark of the first answer with each code that is an error.
    pub remarks: BTreeMap<i32, String>,
    /// Answers with a code that is an error.
    pub errors: u64,
    /// Frames that answer no request in flight.
    pub unexpected: u64,
    /// Messages that were due with a fixed rate and were not sent because too many were in flight.
    pub unsent: u64,
    /// Queues that were read to their end.
    pub queues_at_end: u64,
    /// Answers PULL_OFFSET_MOVED after which reading went on at another offset.
    pub moved: u64,
    /// When the last measured answer came; ns since the start.
    pub last_ns: u64,
    /// Why the run ended early.
    pub failures: Vec<String>,
}

impl Tally {
    /// Count an answer that is an error.
    pub fn add_error(&mut self, code: i32, frame: &Frame<'_>) {
        self.errors += 1;
        self.remarks.entry(code).or_insert_with(|| frame.remark().unwrap_or_default());
    }

    pub fn merge(&mut self, other: Tally) {
        self.messages += other.messages;
        self.total += other.total;
        self.by_queue.resize(self.by_queue.len().max(other.by_queue.len()), 0);
        self.by_queue.iter_mut().zip(&other.by_queue).for_each(|(mine, theirs)| *mine += theirs);
        self.bytes += other.bytes;
        self.latencies.merge(&other.latencies);
        for (code, count) in other.codes {
            *self.codes.entry(code).or_default() += count;
        }
        for (code, remark) in other.remarks {
            self.remarks.entry(code).or_insert(remark);
        }
        self.errors += other.errors;
        self.unexpected += other.unexpected;
        self.unsent += other.unsent;
        self.queues_at_end += other.queues_at_end;
        self.moved += other.moved;
        self.last_ns = self.last_ns.max(other.last_ns);
        self.failures.extend(other.failures);
    }
}
