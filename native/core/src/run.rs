//! What a run of plain sends appends, queue by queue; its last send can be taken back.

use std::collections::HashMap;

use crate::index;

const SPARE_MAX: usize = 4 * 1024 * 1024; // bytes of memory that stay reserved per buffer

/// What a run appends to one queue.
#[derive(Debug)]
pub struct QueueEntries {
    pub topic: usize, // index in `Run::topics`
    pub queue_id: i32,
    pub entries: Vec<u8>,
    pub sends: usize,
    pub size: usize, // bytes of the records
    pub next_offset: i64,
}

/// A topic of a run.
#[derive(Debug)]
pub struct Topic {
    pub name: String,
    pub key_hash: u32, // that all its keys begin with
}

/// A run of plain sends.
#[derive(Debug, Default)]
pub struct Run {
    pub position: usize, // of the next frame
    pub sends: usize,
    pub records: Vec<u8>,
    pub topics: Vec<Topic>,
    pub queues: Vec<QueueEntries>, // in the order of their first records
    pub keys: Vec<u8>,
    pub responses: Vec<u8>,
    topic_numbers: HashMap<String, usize>,
    queue_numbers: HashMap<(usize, i32), usize>,
    last_topic: usize,
}

/// Why a run ends.
pub enum Stop<E> {
    NotPlain,
    Failed(E), // `next_offset` did
}

/// Sizes of a run before a send, to which it returns if that is not plain after all.
pub struct Marks {
    pub records: usize,
    keys: usize,
    responses: usize,
    entries: usize,
}

impl Run {
    pub fn clear(&mut self, position: usize) {
        for buffer in [&mut self.records, &mut self.keys, &mut self.responses] {
            buffer.clear();
            buffer.shrink_to(SPARE_MAX);
        }
        self.topics.clear();
        self.queues.clear();
        self.topic_numbers.clear();
        self.queue_numbers.clear();
        (self.position, self.sends, self.last_topic) = (position, 0, 0);
    }

    /// Return the index of a queue. The first send to it asks for its next number.
    pub fn queue<E>(
        &mut self,
        topic: &str,
        queue_id: i32,
        next_offset: &mut impl FnMut(&str, i32) -> Result<i64, E>,
    ) -> Result<usize, Stop<E>> {
        let topic_number = self.topic(topic);
        if let Some(number) = self.queue_numbers.get(&(topic_number, queue_id)) {
            return Ok(*number);
        }
        let next_offset = next_offset(topic, queue_id).map_err(Stop::Failed)?;
        if next_offset < 0 {
            return Err(Stop::NotPlain);
        }
        let number = self.queues.len();
        self.queues.push(QueueEntries {
            topic: topic_number,
            queue_id,
            entries: Vec::new(),
            sends: 0,
            size: 0,
            next_offset,
        });
        self.queue_numbers.insert((topic_number, queue_id), number);
        Ok(number)
    }

    /// Return the index of a topic.
    pub fn topic(&mut self, name: &str) -> usize {
        // A connection usually sends to one topic.
        if self.topics.get(self.last_topic).is_some_and(|topic| topic.name == name) {
            return self.last_topic;
        }
        let next = self.topics.len();
        self.last_topic = *self.topic_numbers.entry(name.to_owned()).or_insert(next);
        if self.last_topic == next {
            self.topics.push(Topic { name: name.to_owned(), key_hash: index::topic_hash(name) });
        }
        self.last_topic
    }

    pub fn marks(&self, queue: usize) -> Marks {
        Marks {
            records: self.records.len(),
            keys: self.keys.len(),
            responses: self.responses.len(),
            entries: self.queues[queue].entries.len(),
        }
    }

    pub fn restore(&mut self, queue: usize, marks: &Marks) {
        self.records.truncate(marks.records);
        self.keys.truncate(marks.keys);
        self.responses.truncate(marks.responses);
        self.queues[queue].entries.truncate(marks.entries);
    }
}
