//! Stored records as the messages of a receive call, with their receipt handles. [ariane.proxy.conversion.grpc_messages]
//!
//! ```text
//! records of a POP response ─▶ Message each ─▶ Part: framed replies up to PART_BYTES ─▶ written together
//! ```
//!
//! If a record is unusual, Python encodes all: one that is compressed, has the handle of another broker, or is not to be delivered.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;

use bytes::Bytes;
use md5::{Digest as _, Md5};
use prost_types::Timestamp;

use super::calls::put_message;
use super::messages as api;
use super::plain_message::ReservedNames;
use crate::layout::{self, Parts};
use crate::properties::{for_each_pair, CLUSTER, KEYS, TAGS, UNIQ_KEY};

const COMPRESSED: i32 = 1; // bit of SYSFLAG
const PART_BYTES: usize = 64 * 1024; // after which a part ends
const MS_DIGITS: usize = 15; // of a time in a property

const BORN_HOST: &str = "__BORNHOST";
const BORN_TIMESTAMP: &str = "BORN_TIMESTAMP";
const DLQ_MESSAGE_ID: &str = "DLQ_ORIGIN_MESSAGE_ID";
const DLQ_TOPIC: &str = "DLQ_ORIGIN_TOPIC";
const POP_CHECK_POINT: &str = "POP_CK";
const SHARDING_KEY: &str = "__SHARDINGKEY";
const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
const TRACE_CONTEXT: &str = "TRACE_CONTEXT";
const TRACE_ON: &str = "TRACE_ON";
const TRAN_MSG: &str = "TRAN_MSG";
const DELAYS: [&str; 5] = ["DELAY", TIMER_DELIVER_MS, "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "__STARTDELIVERTIME"];

/// What the messages of a receive call share.
pub struct Reception {
    pub topic: api::Resource, // as the client named it
    pub broker: String,
    pub taken_ms: i64,
    pub invisible_ms: i64,
    pub revive_queue: i32,
    pub starts: HashMap<i32, i64>,      // first offset of the delivery, by queue
    pub attempts_max: Option<i32>,      // None: in order, any number
    pub tags: Option<BTreeSet<String>>, // of the subscription; None: all
}

/// A message that is delivered, as traces and renewals need it.
#[derive(Debug)]
pub struct Received {
    pub start: i64, // first offset of the delivery
    pub queue_id: i32,
    pub offset: i64,
    pub log_offset: i64,
    pub message_id: String,
    pub keys: String,
    pub reconsume_times: i32,
    pub is_traced: bool, // unless its producer has turned traces off
}

/// Replies that are written together.
#[derive(Default)]
pub struct Part {
    pub framed: Vec<u8>,
    pub messages: Vec<Received>,
}

/// Return the replies with the messages of some records; None if Python has to encode them.
pub fn encode(records: &[u8], reception: &Reception, reserved: &ReservedNames) -> Option<Vec<Part>> {
    let (mut position, mut parts) = (0, Vec::<Part>::new());
    while position < records.len() {
        let record = layout::parts_at(records, position)?;
        position += record.size();
        let (message, received) = encode_record(&record, reception, reserved)?;
        if parts.last().is_none_or(|part| part.framed.len() >= PART_BYTES) {
            parts.push(Part::default());
        }
        let part = parts.last_mut()?;
        let content = Some(api::receive_message_response::Content::Message(message));
        put_message(&mut part.framed, &api::ReceiveMessageResponse { content });
        part.messages.push(received);
    }
    Some(parts)
}

fn encode_record(
    record: &Parts<'_>,
    reception: &Reception,
    reserved: &ReservedNames,
) -> Option<(api::Message, Received)> {
    let number = |at| layout::i32_at(record.head, at);
    let long = |at| layout::i64_at(record.head, at);
    let reconsume_times = number(layout::RECONSUME_TIMES_AT);
    let is_dead_letter = reception.attempts_max.is_some_and(|attempts| reconsume_times >= attempts);
    let has_other_form = number(layout::SYS_FLAG_AT) & (COMPRESSED | layout::V6_HOSTS) != 0;
    if is_dead_letter || has_other_form || record.topic != reception.topic.name.as_bytes() {
        return None;
    }
    let properties = Properties::read(std::str::from_utf8(record.properties).ok()?);
    let property = |name| properties.get(name).unwrap_or("");
    let (tag, keys) = (property(TAGS), property(KEYS));
    let has_tag = reception.tags.as_ref().is_none_or(|tags| tags.contains(tag));
    let has_space = |byte: &u8| !byte.is_ascii() || byte.is_ascii_control(); // keys may be separated by it
    if !has_tag || properties.get(POP_CHECK_POINT).is_some() || keys.as_bytes().iter().any(has_space) {
        return None;
    }
    let (queue_id, offset) = (number(layout::QUEUE_ID_AT), long(layout::QUEUE_OFFSET_AT));
    let log_offset = long(layout::OFFSET_AT);
    let start = *reception.starts.get(&queue_id).unwrap_or(&offset);
    let Reception { broker, taken_ms, invisible_ms, revive_queue, .. } = reception;
    let handle =
        format!("{start} {taken_ms} {invisible_ms} {revive_queue} 0 {broker} {queue_id} {offset} {log_offset}");
    let store_host = &record.head[layout::STORE_HOST_AT..layout::STORE_HOST_AT + 8];
    let message_id = match properties.get(UNIQ_KEY) {
        Some(id) => id.to_owned(),
        None => format!("{}{log_offset:016X}", hex(store_host)),
    };
    let born_ms = parse_ms(property(BORN_TIMESTAMP)).unwrap_or(long(layout::BORN_MS_AT));
    let born_host = match properties.get(BORN_HOST) {
        Some(host) => host.to_owned(),
        None => host_text(&record.head[layout::BORN_HOST_AT..layout::BORN_HOST_AT + 8]),
    };
    let text = |name| properties.get(name).map(str::to_owned);
    let system = api::SystemProperties {
        tag: text(TAGS),
        keys: keys.split_ascii_whitespace().map(str::to_owned).collect(),
        message_id: message_id.clone(),
        body_digest: Some(api::Digest {
            r#type: api::DigestType::Md5 as i32,
            checksum: hex(Md5::digest(record.body).as_slice()),
        }),
        body_encoding: api::Encoding::Identity as i32,
        message_type: properties.message_type() as i32,
        born_timestamp: Some(timestamp(born_ms)),
        born_host,
        store_timestamp: Some(timestamp(long(layout::STORE_MS_AT))),
        store_host: host_text(store_host),
        delivery_timestamp: parse_ms(property(TIMER_DELIVER_MS)).map(timestamp),
        receipt_handle: Some(handle),
        queue_id,
        queue_offset: Some(offset),
        delivery_attempt: Some(reconsume_times.checked_add(1)?),
        message_group: text(SHARDING_KEY),
        trace_context: text(TRACE_CONTEXT),
        dead_letter_queue: text(DLQ_TOPIC)
            .map(|topic| api::DeadLetterQueue { topic, message_id: property(DLQ_MESSAGE_ID).to_owned() }),
        ..Default::default()
    };
    let message = api::Message {
        topic: Some(reception.topic.clone()),
        user_properties: properties.of_users(reserved),
        system_properties: Some(system),
        body: Bytes::copy_from_slice(record.body),
    };
    let is_traced = property(TRACE_ON) != "false";
    let keys = keys.to_owned();
    let received = Received { start, queue_id, offset, log_offset, message_id, keys, reconsume_times, is_traced };
    Some((message, received))
}

/// The properties of a message; the last of those with one name counts.
struct Properties<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Properties<'a> {
    fn read(text: &'a str) -> Self {
        let mut pairs = Vec::with_capacity(8);
        for_each_pair(text.as_bytes(), |name, value| {
            // Both are parts of a text, between separators of one byte.
            if let (Ok(name), Ok(value)) = (std::str::from_utf8(name), std::str::from_utf8(value)) {
                pairs.push((name, value));
            }
        });
        Self(pairs)
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|pair| pair.0 == name).map(|pair| pair.1)
    }

    fn message_type(&self) -> api::MessageType {
        if self.get(TRAN_MSG) == Some("true") {
            api::MessageType::Transaction
        } else if DELAYS.iter().any(|name| self.get(name).is_some()) {
            api::MessageType::Delay
        } else if self.get(SHARDING_KEY).is_some() {
            api::MessageType::Fifo
        } else {
            api::MessageType::Normal
        }
    }

    /// Return the properties that clients show to applications.
    fn of_users(&self, reserved: &ReservedNames) -> BTreeMap<String, String> {
        let is_users = |name| !reserved.contains(name) && ![SHARDING_KEY, TRACE_CONTEXT, CLUSTER].contains(&name);
        let pairs = self.0.iter().filter(|pair| is_users(pair.0));
        pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }
}

/// Return the time of a property; None for another text, and for 0.
fn parse_ms(text: &str) -> Option<i64> {
    let is_number = text.len() <= MS_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?.filter(|ms| *ms != 0)
}

fn timestamp(ms: i64) -> Timestamp {
    Timestamp { seconds: ms.div_euclid(1000), nanos: ms.rem_euclid(1000) as i32 * 1_000_000 }
}

/// Return an address of IPv4 as `ip:port`.
fn host_text(packed: &[u8]) -> String {
    match <[u8; 8]>::try_from(packed) {
        Ok([a, b, c, d, port @ ..]) => format!("{}:{}", Ipv4Addr::new(a, b, c, d), u32::from_be_bytes(port)),
        Err(_) => String::new(),
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789ABCDEF"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
