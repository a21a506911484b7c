//! SendMessage calls that need no decision, as frames of the remoting protocol, which the turns of a broker store.
//!
//! ```text
//! call ─ prost ─▶ PlainSend ┐
//! call ─ prost ─▶ PlainSend ┴▶ SendBatch ─ frames ─▶ SendTurns of the broker ─ responses ─▶ replies
//! ```

use std::collections::HashMap;

use bytes::Bytes;

use super::calls::framed_message;
use super::client_calls::{by_client, ok, ClientCall};
use super::messages as api;
use super::plain_message::{PlainMessage, ReservedNames};
use super::send_traces::SendTraces;
use super::turns::{Answer, Call, CallId, ConnectionId, Outbox};
use crate::header::{read_i16, read_i32, PREFIX_SIZE, VERSION};

const SEND_MESSAGE_V2: i16 = 310;
const BINARY_FORM: u32 = 1 << 24;
const DEFAULT_TOPIC: &str = "TBW102"; // a header needs one; the topic exists

/// A plain send, with the call that it came in.
#[derive(Debug)]
pub struct PlainSend {
    pub call: Box<Call>,
    pub message: PlainMessage,
}

impl PlainSend {
    /// Return the send of a call; the call itself if it is not plain.
    pub fn read(call: Call, reserved: &ReservedNames) -> Result<Self, Box<Call>> {
        let call = Box::new(call);
        match call.client_id().and_then(|_| PlainMessage::read(&call.data, reserved)) {
            Some(message) => Ok(Self { call, message }),
            None => Err(call),
        }
    }
}

impl ClientCall for PlainSend {
    fn call(&self) -> &Call {
        &self.call
    }
}

/// The plain sends of a client in a turn.
#[derive(Debug, Default)]
pub struct SendBatch {
    pub connection: ConnectionId,
    pub topics: Vec<String>, // each once
    topic_numbers: HashMap<String, usize>,
    topics_of_sends: Vec<usize>,
    sends: Vec<Option<PlainSend>>, // None: answered, or served alone
    starts: Vec<(usize, usize)>,   // of frames: position, index of the send
}

/// The queues that sends to a topic take in turn: the first one, and their number.
pub type Queues = (u32, u32);

/// A send that was not stored as it should be: its call, code and remark.
pub type FailedSend = (CallId, i32, String);

impl SendBatch {
    /// Return the sends of each client together, in their order.
    pub fn of_clients(sends: Vec<PlainSend>) -> Vec<Self> {
        let batch = |sends: Vec<PlainSend>| {
            let mut batch = Self { connection: sends[0].call.connection, ..Self::default() };
            sends.into_iter().for_each(|send| batch.push(send));
            batch
        };
        by_client(sends).into_iter().map(batch).collect()
    }

    fn push(&mut self, send: PlainSend) {
        let topic = &send.message.topic;
        let number = match self.topics.last() {
            Some(last) if last == topic => self.topics.len() - 1,
            _ => *self.topic_numbers.entry(topic.clone()).or_insert(self.topics.len()),
        };
        if number == self.topics.len() {
            self.topics.push(topic.clone());
        }
        self.topics_of_sends.push(number);
        self.sends.push(Some(send));
    }

    pub fn len(&self) -> usize {
        self.sends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Bytes of the requests.
    pub fn size(&self) -> usize {
        self.sends.iter().flatten().map(|send| send.call.data.len()).sum()
    }

    pub fn first(&self) -> Option<&Call> {
        self.sends.iter().flatten().next().map(|send| &*send.call)
    }

    /// Return the frames of the sends to topics that have queues; `queues` are those of `topics`.
    pub fn frames(&mut self, queues: &[Option<Queues>]) -> Vec<u8> {
        let mut turns: Vec<u32> = vec![0; self.topics.len()];
        let mut frames = Vec::with_capacity(self.size() + 256 * self.len());
        self.starts.clear();
        for (index, (send, topic)) in self.sends.iter().zip(&self.topics_of_sends).enumerate() {
            let Some(send) = send else { continue };
            let Some(Some((first, count))) = queues.get(*topic) else { continue };
            let Some(queue_id) = first.wrapping_add(turns[*topic]).checked_rem(*count) else { continue };
            turns[*topic] = turns[*topic].wrapping_add(1);
            self.starts.push((frames.len(), index));
            put_frame(&mut frames, send, index, queue_id);
        }
        frames
    }

    /// Take the call whose frame begins at `position`; return it with the position of the next frame.
    pub fn take_at(&mut self, position: usize, end: usize) -> Option<(usize, Box<Call>)> {
        let number = self.starts.binary_search_by_key(&position, |start| start.0).ok()?;
        let next = self.starts.get(number + 1).map_or(end, |start| start.0);
        Some((next, self.sends[self.starts[number].1].take()?.call))
    }

    /// Take the calls whose sends have no frame.
    pub fn take_rest(&mut self) -> Vec<Box<Call>> {
        let mut starts = self.starts.iter().map(|start| start.1).peekable();
        let mut rest = Vec::new();
        for (index, send) in self.sends.iter_mut().enumerate() {
            if starts.next_if_eq(&index).is_none() {
                rest.extend(send.take().map(|send| send.call));
            }
        }
        rest
    }

    /// Take the sends whose frames are between two positions, and return their calls.
    pub fn take_between(&mut self, position: usize, end: usize) -> Vec<CallId> {
        let numbers = self.starts.iter().filter(|start| (position..end).contains(&start.0));
        numbers.filter_map(|start| self.sends[start.1].take()).map(|send| send.call.id).collect()
    }

    /// Answer the sends that were stored, and return the others. None if `responses` are not those of a broker.
    pub fn answer(&mut self, responses: &[u8], outbox: &Outbox, traces: &mut SendTraces) -> Option<Vec<FailedSend>> {
        let (mut position, mut failed) = (0, Vec::new());
        while position < responses.len() {
            let size = usize::try_from(read_i32(responses, position)?).ok()?;
            let end = position.checked_add(4)?.checked_add(size)?;
            let header = responses.get(position + PREFIX_SIZE..end)?;
            position = end;
            let code = read_i16(header, 0)?;
            let send = self.sends.get_mut(usize::try_from(read_i32(header, 5)?).ok()?)?.take()?;
            let remark_end = 17 + usize::try_from(read_i32(header, 13)?).ok()?;
            if code == 0 {
                traces.add(&send.message, field(header, remark_end, b"msgId")?);
                let offset = field(header, remark_end, b"queueOffset")?.parse().ok()?;
                let framed = reply(send.message.id, offset);
                outbox.add(Answer::Reply { call: send.call.id, framed });
            } else {
                traces.add(&send.message, "");
                let remark = String::from_utf8_lossy(header.get(17..remark_end)?).into_owned();
                failed.push((send.call.id, i32::from(code), remark));
            }
        }
        Some(failed)
    }
}

/// Return a field of a ROCKETMQ header.
fn field<'a>(header: &'a [u8], position: usize, name: &[u8]) -> Option<&'a str> {
    let mut position = position + 4;
    while position < header.len() {
        let name_end = position + 2 + usize::try_from(read_i16(header, position)?).ok()?;
        let end = name_end + 4 + usize::try_from(read_i32(header, name_end)?).ok()?;
        if header.get(position + 2..name_end)? == name {
            return std::str::from_utf8(header.get(name_end + 4..end)?).ok();
        }
        position = end;
    }
    None
}

fn reply(message_id: String, offset: i64) -> Bytes {
    let status = Some(ok());
    let entry = api::SendResultEntry {
        status: status.clone(),
        transaction_id: message_id.clone(),
        message_id,
        offset,
        ..Default::default()
    };
    framed_message(&api::SendMessageResponse { status, entries: vec![entry] })
}

fn put_frame(frames: &mut Vec<u8>, send: &PlainSend, opaque: usize, queue_id: u32) {
    let start = frames.len();
    frames.extend_from_slice(&[0; PREFIX_SIZE]);
    frames.extend_from_slice(&SEND_MESSAGE_V2.to_be_bytes());
    frames.push(0); // language
    frames.extend_from_slice(&(VERSION as i16).to_be_bytes());
    frames.extend_from_slice(&(opaque as i32).to_be_bytes());
    frames.extend_from_slice(&[0; 8]); // flag, no remark
    let fields_at = frames.len() + 4;
    frames.extend_from_slice(&[0; 4]);
    put_field(frames, b'a', send.message.topic.as_bytes()); // as in 5.x: the producer group is the topic
    put_field(frames, b'b', send.message.topic.as_bytes());
    put_field(frames, b'c', DEFAULT_TOPIC.as_bytes());
    put_field(frames, b'd', b"0");
    put_number_field(frames, b'e', queue_id.into());
    put_field(frames, b'f', b"0");
    put_number_field(frames, b'g', send.message.born_ms);
    put_field(frames, b'h', b"0");
    put_field(frames, b'i', send.message.properties.as_bytes());
    let fields_size = (frames.len() - fields_at) as u32;
    frames[fields_at - 4..fields_at].copy_from_slice(&fields_size.to_be_bytes());
    let header_size = (frames.len() - start - PREFIX_SIZE) as u32;
    frames.extend_from_slice(&send.message.body);
    let size = (frames.len() - start - 4) as u32;
    frames[start..start + 4].copy_from_slice(&size.to_be_bytes());
    frames[start + 4..start + PREFIX_SIZE].copy_from_slice(&(BINARY_FORM | header_size).to_be_bytes());
}

fn put_field(frames: &mut Vec<u8>, letter: u8, value: &[u8]) {
    frames.extend_from_slice(&[0, 1, letter]);
    frames.extend_from_slice(&(value.len() as u32).to_be_bytes());
    frames.extend_from_slice(value);
}

fn put_number_field(frames: &mut Vec<u8>, letter: u8, value: i64) {
    put_field(frames, letter, value.to_string().as_bytes());
}
