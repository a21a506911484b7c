//! Trace records of plain sends, with the text that `ariane.protocol.trace_codec` gives those of other sends.

use super::plain_message::PlainMessage;

const FIELD_END: u8 = 1;
const RECORD_END: u8 = 2;
const TEXT_MAX: usize = 16 * 1024; // bytes of an entry, before another one is begun: all fit into a trace message
const KEYS_MAX: usize = 4 * 1024;

/// Region and address of the broker, when the sends were started, and how long they took, in milliseconds.
pub type TraceFields = (String, String, i64, i64);

/// The text of records, the keys by which they are found, and how many they are. [TraceEntry]
pub type TraceEntry = (Vec<u8>, String, u32);

/// The records of sends that were answered together.
pub struct SendTraces {
    fields: Option<TraceFields>, // None: sends are not traced
    pub entries: Vec<TraceEntry>,
}

impl SendTraces {
    pub fn new(fields: Option<TraceFields>) -> Self {
        Self { fields, entries: Vec::new() }
    }

    /// Add the record of a send. `offset_message_id` is empty if it was not stored as it should be.
    pub fn add(&mut self, message: &PlainMessage, offset_message_id: &str) {
        let Some((region, store_host, started_ms, cost_ms)) = &self.fields else { return };
        let has_room = |entry: &TraceEntry| entry.0.len() < TEXT_MAX && entry.1.len() < KEYS_MAX;
        if !self.entries.last().is_some_and(has_room) {
            self.entries.push(TraceEntry::default());
        }
        let Some((text, keys, records)) = self.entries.last_mut() else { return };
        let (started, cost, size) = (started_ms.to_string(), cost_ms.to_string(), message.body.len().to_string());
        let is_success = if offset_message_id.is_empty() { "false" } else { "true" };
        let fields = [
            "Pub",
            &started,
            region,
            &message.topic, // as in 5.x: the producer group is the topic
            &message.topic,
            &message.id,
            &message.tag,
            &message.keys,
            store_host,
            &size,
            &cost,
            "0", // an ordinary message
            offset_message_id,
            is_success,
        ];
        for (index, field) in fields.into_iter().enumerate() {
            if index > 0 {
                text.push(FIELD_END);
            }
            text.extend_from_slice(if field.is_empty() { b"null" } else { field.as_bytes() });
        }
        text.push(RECORD_END);
        for key in [&message.id, &message.keys] {
            keys.push_str(key);
            keys.push(' ');
        }
        *records += 1;
    }
}
