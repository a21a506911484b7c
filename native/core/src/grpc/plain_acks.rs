//! AckMessage calls whose receipt handles can be read here, as deliveries that a broker ends together.
//!
//! ```text
//! call ─ prost, handles ─▶ PlainAck ┐
//! call ─ prost, handles ─▶ PlainAck ┴▶ AckBatch ─ deliveries ─▶ broker ─▶ replies, or each call is served by itself
//! ```
//!
//! Nothing is refused here: calls that the broker does not serve together are served as other calls, and get their errors there.

use std::collections::BTreeMap;

use prost::Message as _;

use super::calls::framed_message;
use super::client_calls::{by_client, ok, ClientCall};
use super::messages as api;
use super::turns::{Answer, Call, ConnectionId, Outbox};

const SIZE_MAX: usize = 64 * 1024; // bytes that are decoded: those of empty entries take much more memory
const ENTRIES_MAX: usize = 1_000;
const NAME_MAX: usize = 255; // bytes
const ORDERED_QUEUE: i64 = 999; // in place of the revive queue, of messages that are taken in order

/// A delivery of messages of a queue: all that were taken for a group at once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delivery {
    pub group: String,
    pub topic: String,
    pub broker: String,
    pub queue_id: i32,
    pub taken_ms: i64,
    pub is_ordered: bool,
}

/// A call whose entries have handles of messages that are stored in their own topic.
#[derive(Debug, Default)]
pub struct PlainAck {
    call: Box<Call>,
    request: api::AckMessageRequest,
}

impl PlainAck {
    /// Return the acknowledgements of a call; the call itself if they are not plain.
    pub fn read(call: Call) -> Result<Self, Box<Call>> {
        let call = Box::new(call);
        match call.client_id().and_then(|_| plain_request(&call)) {
            Some(request) => Ok(Self { call, request }),
            None => Err(call),
        }
    }

    /// The delivery and the offset of each entry.
    fn deliveries(&self) -> impl Iterator<Item = (Delivery, i64)> + '_ {
        let name = |resource: &Option<api::Resource>| resource.as_ref().map_or("", |named| &named.name).to_owned();
        self.request.entries.iter().filter_map(move |entry| {
            let (broker, queue_id, offset, taken_ms, is_ordered) = parse(&entry.receipt_handle)?;
            let (group, topic) = (name(&self.request.group), name(&self.request.topic));
            Some((Delivery { group, topic, broker: broker.to_owned(), queue_id, taken_ms, is_ordered }, offset))
        })
    }
}

impl ClientCall for PlainAck {
    fn call(&self) -> &Call {
        &self.call
    }
}

fn plain_request(call: &Call) -> Option<api::AckMessageRequest> {
    if call.data.len() > SIZE_MAX {
        return None;
    }
    let request = api::AckMessageRequest::decode(call.data.clone()).ok()?;
    let is_short =
        |resource: &Option<api::Resource>| resource.as_ref().is_some_and(|named| named.name.len() <= NAME_MAX);
    let is_plain = is_short(&request.group)
        && is_short(&request.topic)
        && (1..=ENTRIES_MAX).contains(&request.entries.len())
        && request.entries.iter().all(|entry| parse(&entry.receipt_handle).is_some());
    is_plain.then_some(request)
}

/// Return broker, queue, offset, time of the delivery, and whether it is ordered. None for a handle that Python has to read.
/// [ariane.proxy.conversion.receipt_handles]
fn parse(handle: &str) -> Option<(&str, i32, i64, i64, bool)> {
    let mut parts = handle.split(' ');
    let _start = number(parts.next()?)?;
    let taken_ms = number(parts.next()?)?;
    let _invisible_ms = number(parts.next()?)?;
    let revive_queue = number(parts.next()?)?;
    if parts.next()? != "0" {
        return None; // stored in a retry topic
    }
    let broker = parts.next()?;
    let queue_id = i32::try_from(number(parts.next()?)?).ok()?;
    let offset = number(parts.next()?)?;
    let _log_offset = number(parts.next()?)?;
    parts.next().is_none().then_some((broker, queue_id, offset, taken_ms, revive_queue == ORDERED_QUEUE))
}

fn number(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The plain acknowledgements of a client in a turn.
#[derive(Debug)]
pub struct AckBatch {
    pub connection: ConnectionId,
    pub deliveries: BTreeMap<Delivery, Vec<i64>>, // offsets
    acks: Vec<PlainAck>,                          // those that are not answered
}

impl AckBatch {
    /// Return the acknowledgements of each client together.
    pub fn of_clients(acks: Vec<PlainAck>) -> Vec<Self> {
        by_client(acks).into_iter().map(Self::new).collect()
    }

    fn new(acks: Vec<PlainAck>) -> Self {
        let mut deliveries: BTreeMap<Delivery, Vec<i64>> = BTreeMap::new();
        for (delivery, offset) in acks.iter().flat_map(PlainAck::deliveries) {
            deliveries.entry(delivery).or_default().push(offset);
        }
        Self { connection: acks[0].call.connection, deliveries, acks }
    }

    pub fn len(&self) -> usize {
        self.acks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.acks.is_empty()
    }

    pub fn first(&self) -> Option<&Call> {
        self.acks.first().map(|ack| &*ack.call)
    }

    /// Answer all calls: their messages are acknowledged.
    pub fn answer(&mut self, outbox: &Outbox) {
        outbox.extend(self.acks.drain(..).map(|ack| {
            let entries = ack.request.entries.into_iter().map(|entry| api::AckMessageResultEntry {
                message_id: entry.message_id,
                receipt_handle: entry.receipt_handle,
                status: Some(ok()),
            });
            let reply = api::AckMessageResponse { status: Some(ok()), entries: entries.collect() };
            Answer::Reply { call: ack.call.id, framed: framed_message(&reply) }
        }));
    }

    /// Take the calls that are not answered.
    pub fn take_rest(&mut self) -> Vec<Box<Call>> {
        self.acks.drain(..).map(|ack| ack.call).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_other_forms_are_read_by_python() {
        assert_eq!(parse("1 2 3 0 0 b 4 5 6"), Some(("b", 4, 5, 2, false)));
        assert_eq!(parse("1 2 3 999 0  4 5 6"), Some(("", 4, 5, 2, true)));
        for text in [
            "",
            "x",
            "1 2 3 0 0 b 4 5",
            "1 2 3 0 0 b 4 5 6 7",
            "1 2 3 0 1 b 4 5 6",
            "1 -2 3 0 0 b 4 5 6",
            "1 2_0 3 0 0 b 4 5 6",
            "1  3 0 0 b 4 5 6",
            "1 2 3 0 0 b 2147483648 5 6",
            "1 2 3 0 0 b 4 9223372036854775808 6",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
