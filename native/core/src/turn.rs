//! Plain sends of a turn: frames become records, queue entries, index keys and responses.
//!
//! ```text
//! frame → header → properties → number in the queue → record, entry, keys → response
//! ```
//!
//! `SendEncoder::encode` stops at the first frame that is unusual in any way; the handler of single sends serves that one.
//! Nothing is refused here.

use crate::batch;
use crate::header::{frame_at, Frame, SendHeader};
use crate::index;
use crate::json::{Span, Unescaped};
use crate::properties::{self, NameSet, Pair, CLUSTER, KEYS, NAME_END, PAIR_END, SIZE_MAX, TAGS, UNIQ_KEY, WAIT};
use crate::record::{index_key, queue_entry, Host, Record, TOPIC_MAX};
use crate::response::{Response, ResponseWriter};
use crate::run::{Run, Stop};

pub const FRAMES_MAX: usize = 512; // of a run: about a millisecond
const RECORDS_MAX: usize = 64 * 1024 * 1024; // bytes of a run; not more than `protocol.batch.STORED_MAX`
const BATCH_PROPERTIES_MAX: usize = 16; // of the request of a batch: each is compared with each of every message
const TRANSACTION_MASK: i32 = 0xC;

/// What records and responses contain besides the message, and what makes a send plain.
#[derive(Debug)]
pub struct Settings {
    pub store_host: Host,
    pub cluster: String,
    pub region: String,
    pub trace_on: bool,
    pub header_max: usize,
    pub body_max: usize,
    pub is_indexed: bool,
    pub exceptional: Vec<String>,
}

/// Where and when records are appended.
#[derive(Clone, Copy, Debug)]
pub struct LogEnd {
    pub offset: i64,
    pub room: i64,
    pub store_ms: i64,
}

/// Buffers whose memory is used again.
#[derive(Debug, Default)]
struct Scratch {
    unescaped: Unescaped,
    pairs: Vec<Pair>,
    entry_pairs: Vec<Pair>,
    stored: String, // properties of one record
    offsets: Vec<i64>,
}

/// The values that do not change within a run.
struct Context {
    born_host: Host,
    log_end: LogEnd,
}

/// Encodes runs of plain sends.
#[derive(Debug)]
pub struct SendEncoder {
    rules: Rules,
    responses: ResponseWriter,
    run: Run,
    scratch: Scratch,
}

/// The settings that records depend on.
#[derive(Debug)]
struct Rules {
    store_host: Host,
    cluster: String, // the last property of each record
    header_max: usize,
    body_max: usize,
    is_indexed: bool,
    exceptional: NameSet,
}

impl SendEncoder {
    pub fn new(settings: Settings) -> Self {
        Self {
            responses: ResponseWriter::new(settings.store_host, &settings.region, settings.trace_on),
            rules: Rules {
                store_host: settings.store_host,
                cluster: format!("{CLUSTER}{}{}", char::from(NAME_END), settings.cluster),
                header_max: settings.header_max,
                body_max: settings.body_max,
                is_indexed: settings.is_indexed,
                exceptional: NameSet::new(settings.exceptional),
            },
            run: Run::default(),
            scratch: Scratch::default(),
        }
    }

    /// Encode the plain sends in `data` from `position` on, up to the first frame that is not plain or complete.
    ///
    /// `next_offset` returns the number of the next record of a queue, negative if a send to it is not plain; it is called
    /// once per queue. Its error ends the run, and nothing of it counts.
    pub fn encode<E>(
        &mut self,
        data: &[u8],
        position: usize,
        born_host: Host,
        log_end: LogEnd,
        mut next_offset: impl FnMut(&str, i32) -> Result<i64, E>,
    ) -> Result<&Run, E> {
        self.run.clear(position);
        let context = Context { born_host, log_end };
        for _ in 0..FRAMES_MAX {
            match self.encode_next(data, &context, &mut next_offset) {
                Ok(end) => self.run.position = end,
                Err(Stop::NotPlain) => break,
                Err(Stop::Failed(error)) => return Err(error),
            }
            self.run.sends += 1;
        }
        self.run.queues.retain(|queue| queue.sends > 0);
        Ok(&self.run)
    }

    /// Encode the next send. Return where its frame ends; if it is not plain, the run is as before.
    fn encode_next<E>(
        &mut self,
        data: &[u8],
        context: &Context,
        next_offset: &mut impl FnMut(&str, i32) -> Result<i64, E>,
    ) -> Result<usize, Stop<E>> {
        let Self { rules, responses, run, scratch } = self;
        let Scratch { unescaped, pairs, entry_pairs, stored, offsets } = scratch;
        unescaped.clear();
        let frame = frame_at(data, run.position).ok_or(Stop::NotPlain)?;
        let header = rules.header(&frame, unescaped).ok_or(Stop::NotPlain)?;
        let topic = text_of(&header.topic, &frame, &unescaped.bytes).ok_or(Stop::NotPlain)?;
        let text = text_of(&header.properties, &frame, &unescaped.bytes).ok_or(Stop::NotPlain)?;
        properties::decode(text, pairs);
        if topic.is_empty() || topic.len() > TOPIC_MAX || !rules.accept(text, pairs) {
            return Err(Stop::NotPlain);
        }
        let queue = run.queue(topic, header.queue_id, next_offset)?;
        let marks = run.marks(queue);
        let first = run.queues[queue].next_offset;
        offsets.clear();
        let mut writer = RecordWriter { rules, context, header: &header, run, queue, stored, offsets };
        let request = Properties { text, pairs };
        let written = if header.is_batch {
            writer.append_batch(frame.body, &request, entry_pairs)
        } else {
            writer.append_single(frame.body, &request)
        };
        let answered = written.and_then(|()| {
            let response =
                Response { form: frame.form, opaque: header.opaque, queue_id: header.queue_id, queue_offset: first };
            if header.is_one_way {
                Some(())
            } else {
                responses.append_to(&mut run.responses, &response, offsets)
            }
        });
        if answered.is_none() {
            run.restore(queue, &marks);
            return Err(Stop::NotPlain);
        }
        run.queues[queue].sends += 1;
        run.queues[queue].size += run.records.len() - marks.records;
        Ok(frame.end)
    }
}

/// Return a text of a header.
fn text_of<'a>(span: &Span, frame: &Frame<'a>, unescaped: &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(span.bytes(frame.header, unescaped)).ok()
}

impl Rules {
    /// Return the header of a frame if nothing in it is unusual.
    fn header(&self, frame: &Frame<'_>, unescaped: &mut Unescaped) -> Option<SendHeader> {
        if frame.header.len() > self.header_max || frame.body.len() > self.body_max {
            return None;
        }
        let header = SendHeader::decode(frame, unescaped)?;
        (header.queue_id >= 0 && header.sys_flag & TRANSACTION_MASK == 0).then_some(header)
    }

    /// Return whether these properties are those of a plain send.
    fn accept(&self, text: &str, pairs: &[Pair]) -> bool {
        let is_plain = |pair: &Pair| match pair.name(text) {
            CLUSTER => false,
            WAIT => pair.value(text) != "false",
            name => !self.exceptional.contains(name),
        };
        pairs.iter().all(is_plain) && !properties::has_duplicates(text, pairs)
    }
}

/// Properties with their text.
struct Properties<'a> {
    text: &'a str,
    pairs: &'a [Pair],
}

/// Values of the properties that entries and keys depend on; empty if there are none.
#[derive(Default)]
struct Lookup<'a> {
    unique_key: &'a str,
    keys: &'a str,
    tags: &'a str,
}

impl<'a> Lookup<'a> {
    #[inline]
    fn note(&mut self, name: &str, value: &'a str) {
        match name {
            UNIQ_KEY => self.unique_key = value,
            KEYS => self.keys = value,
            TAGS => self.tags = value,
            _ => {}
        }
    }
}

/// Appends the records of one send.
struct RecordWriter<'a> {
    rules: &'a Rules,
    context: &'a Context,
    header: &'a SendHeader,
    run: &'a mut Run,
    queue: usize,
    stored: &'a mut String,    // properties of one record
    offsets: &'a mut Vec<i64>, // of the records
}

impl RecordWriter<'_> {
    /// Append a single message; None if it does not fit.
    fn append_single(&mut self, body: &[u8], request: &Properties<'_>) -> Option<()> {
        let mut lookup = Lookup::default();
        self.stored.clear();
        for pair in request.pairs {
            let name = pair.name(request.text);
            if name != WAIT {
                lookup.note(name, pair.value(request.text));
                self.store(pair.segment(request.text));
            }
        }
        self.append(body, self.header.flag, self.header.reconsume_times, &lookup)
    }

    /// Append the messages of a batch; None if one is not plain, or all together do not fit.
    fn append_batch(&mut self, body: &[u8], request: &Properties<'_>, pairs: &mut Vec<Pair>) -> Option<()> {
        if body.is_empty() || request.pairs.len() > BATCH_PROPERTIES_MAX {
            return None;
        }
        let repeated_max = RECORDS_MAX / request.text.len().max(1); // times that records may repeat the properties of the request
        if body.len() / batch::OVERHEAD > repeated_max && batch::count(body)? > repeated_max {
            return None; // known before the first record is written
        }
        let mut position = 0;
        while position < body.len() {
            let entry = batch::entry_at(body, position)?;
            properties::decode(entry.properties, pairs);
            if !self.rules.accept(entry.properties, pairs) {
                return None;
            }
            let message = Properties { text: entry.properties, pairs };
            let lookup = self.merge(&message, request);
            self.append(entry.body, entry.flag, 0, &lookup)?;
            position = entry.end;
        }
        Some(())
    }

    /// Store the properties of a message of a batch: those of the request win, in the place of the message's. The request's
    /// UNIQ_KEY is the id of the batch as a whole and is not stored.
    fn merge<'a>(&mut self, message: &Properties<'a>, request: &Properties<'a>) -> Lookup<'a> {
        let find = |properties: &Properties<'a>, name: &str| {
            properties.pairs.iter().copied().find(|pair| pair.name(properties.text) == name)
        };
        let mut lookup = Lookup::default();
        self.stored.clear();
        for pair in message.pairs {
            let name = pair.name(message.text);
            let (pair, text) = match find(request, name) {
                Some(winner) if name != UNIQ_KEY => (winner, request.text),
                _ => (*pair, message.text),
            };
            lookup.note(name, pair.value(text));
            self.store(pair.segment(text));
        }
        for pair in request.pairs {
            let name = pair.name(request.text);
            if name != UNIQ_KEY && find(message, name).is_none() {
                lookup.note(name, pair.value(request.text));
                self.store(pair.segment(request.text));
            }
        }
        lookup
    }

    /// Add a property to those that are stored next.
    #[inline]
    fn store(&mut self, segment: &str) {
        self.stored.push_str(segment);
        self.stored.push(char::from(PAIR_END));
    }

    /// Append a record with the stored properties, its queue entry and its keys; None if it does not fit.
    fn append(&mut self, body: &[u8], flag: i32, reconsume_times: i32, lookup: &Lookup<'_>) -> Option<()> {
        let Self { rules, context, header, run, .. } = self;
        self.stored.push_str(&rules.cluster);
        let (queue, log_end) = (&mut run.queues[self.queue], &context.log_end);
        let topic = &run.topics[queue.topic];
        let offset = log_end.offset.checked_add(i64::try_from(run.records.len()).ok()?)?;
        let record = Record {
            topic: &topic.name,
            body,
            properties: self.stored,
            queue_id: header.queue_id,
            queue_offset: queue.next_offset,
            offset,
            flag,
            sys_flag: header.sys_flag,
            born_ms: header.born_ms,
            born_host: context.born_host,
            store_ms: log_end.store_ms,
            store_host: rules.store_host,
            reconsume_times,
        };
        let size = record.size();
        let end = run.records.len() + size;
        if self.stored.len() > SIZE_MAX || end > RECORDS_MAX || i64::try_from(end).ok()? > log_end.room {
            return None;
        }
        queue.next_offset = queue.next_offset.checked_add(1)?;
        record.append_to(&mut run.records)?;
        let tags_code = index::tags_code(lookup.tags);
        queue.entries.extend_from_slice(&queue_entry(offset, i32::try_from(size).ok()?, tags_code));
        self.offsets.push(offset);
        if rules.is_indexed {
            index::for_each_key(lookup.unique_key, lookup.keys, |key| {
                run.keys.extend_from_slice(&index_key(index::key_hash(topic.key_hash, key), offset));
            });
        }
        Some(())
    }
}
