//! What makes a message plain, and its properties as they are stored.
//!
//! A send is plain if it has one message without a group, a delivery time or a transaction, and nothing in it is unusual. All
//! others are served as other calls are, with the same result: nothing is refused here.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message as _;

use super::messages as api;
use crate::properties::{KEYS, NAME_END, PAIR_END, TAGS, UNIQ_KEY};
use crate::record::TOPIC_MAX;

const TRANSACTION: i32 = 4; // MessageType
const GZIP: i32 = 2; // Encoding
const PROPERTIES_MAX: usize = 128;
const PROPERTIES_BYTES_MAX: usize = 16_384;
const MESSAGES_TAG: u8 = 1 << 3 | 2; // of SendMessageRequest; a field with a length
const BODY_TAG: u8 = 4 << 3 | 2; // of Message
const AROUND_BODY_MAX: usize = 64 * 1024; // bytes that are decoded: those of empty fields take much more memory
const TIMESTAMP_S_MAX: i64 = 253_402_300_799; // the end of the year 9999

/// Names of properties that only clients and brokers set.
#[derive(Debug)]
pub struct ReservedNames {
    pub names: BTreeSet<String>,
    pub prefixes: Vec<String>,
}

impl ReservedNames {
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains(name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// The only message of a send, which needs no decision.
#[derive(Debug)]
pub struct PlainMessage {
    pub topic: String,
    pub id: String,
    pub tag: String,        // empty without one
    pub keys: String,       // joined by spaces
    pub properties: String, // all, as they are stored
    pub born_ms: i64,
    pub body: Bytes,
}

impl PlainMessage {
    /// Return the message of a SendMessageRequest; None if it is not plain, or not the only one.
    pub fn read(data: &Bytes, reserved: &ReservedNames) -> Option<Self> {
        around_body(data).filter(|size| *size <= AROUND_BODY_MAX)?;
        let request = api::SendMessageRequest::decode(data.clone()).ok()?;
        let [message] = <[api::Message; 1]>::try_from(request.messages).ok()?;
        Self::of(message, reserved)
    }

    fn of(message: api::Message, reserved: &ReservedNames) -> Option<Self> {
        let (topic, system) = (message.topic?.name, message.system_properties?);
        let born = system.born_timestamp?;
        let is_unusual = topic.is_empty()
            || topic.len() > TOPIC_MAX
            || system.message_group.is_some()
            || system.delivery_timestamp.is_some()
            || system.lite_topic.is_some()
            || system.priority.is_some()
            || system.message_type == TRANSACTION
            || system.body_encoding == GZIP
            || message.body.is_empty()
            || !(0..=TIMESTAMP_S_MAX).contains(&born.seconds)
            || !(0..1_000_000_000).contains(&born.nanos);
        let tag = system.tag.unwrap_or_default();
        if is_unusual || message.user_properties.len() > PROPERTIES_MAX || tag.contains('|') {
            return None;
        }
        let is_blank = |text: &String| text.trim().is_empty();
        if is_blank(&system.message_id) || system.keys.iter().any(is_blank) || (!tag.is_empty() && is_blank(&tag)) {
            return None;
        }
        let pairs_size: usize = message.user_properties.iter().map(|(name, value)| name.len() + value.len()).sum();
        let keys_size: usize = system.keys.iter().map(String::len).sum();
        if pairs_size + keys_size + tag.len() > PROPERTIES_BYTES_MAX {
            return None;
        }
        let born_ms = born.seconds * 1000 + i64::from(born.nanos) / 1_000_000;
        let mut properties = Properties::default();
        for (name, value) in &message.user_properties {
            if name.is_empty() || reserved.contains(name) || has_control(name) {
                return None;
            }
            properties.add(name, value);
        }
        properties.add(UNIQ_KEY, &system.message_id);
        properties.add(TAGS, &tag);
        let keys = system.keys.join(" ");
        properties.add(KEYS, &keys);
        properties.add("TRACE_CONTEXT", &system.trace_context.unwrap_or_default());
        properties.add("BORN_TIMESTAMP", &born_ms.to_string());
        properties.add("__BORNHOST", &system.born_host);
        let Properties { text, is_plain } = properties;
        let body = message.body;
        is_plain.then_some(Self { topic, id: system.message_id, tag, keys, properties: text, born_ms, body })
    }
}

/// Return the bytes of a request with one message that are not of its body; None for any other request.
fn around_body(data: &[u8]) -> Option<usize> {
    let (MESSAGES_TAG, message, []) = length_field(data)? else { return None };
    let (mut rest, mut around) = (message, message.len());
    while !rest.is_empty() {
        let (tag, value, following) = length_field(rest)?;
        if tag == BODY_TAG {
            around -= value.len();
        }
        rest = following;
    }
    Some(around)
}

/// Return tag, value and what follows of a field with a length.
fn length_field(data: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, mut rest) = data.split_first()?;
    let (mut size, mut shift) = (0usize, 0);
    loop {
        let (byte, following) = rest.split_first()?;
        size |= usize::from(byte & 0x7f) << shift;
        rest = following;
        if *byte < 0x80 {
            break;
        }
        shift += 7;
        if shift > 21 {
            return None; // longer than any request
        }
    }
    let (value, following) = rest.split_at_checked(size)?;
    Some((*tag, value, following))
}

/// Properties as they are stored, without empty ones.
struct Properties {
    text: String,
    is_plain: bool, // whether no value contains control characters
}

impl Default for Properties {
    fn default() -> Self {
        Self { text: String::with_capacity(256), is_plain: true }
    }
}

impl Properties {
    fn add(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.is_plain &= !has_control(value);
            self.text.push_str(name);
            self.text.push(char::from(NAME_END));
            self.text.push_str(value);
            self.text.push(char::from(PAIR_END));
        }
    }
}

fn has_control(text: &str) -> bool {
    text.chars().any(|character| character < ' ' || ('\u{7f}'..='\u{9f}').contains(&character))
}
