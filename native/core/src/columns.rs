//! Stored records as Arrow columns. [ariane.spark.records.arrow_decoder]
//!
//! ```text
//! records → blocks of parts and looked-up properties → one column after the other → buffers
//! ```
//!
//! What is unusual is left to the caller: the decoder returns None for IPv6 hosts, inconsistent lengths and invalid UTF-8,
//! returns bodies as they are stored, and reports the rows whose bodies do not have their CRC.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::arrow::Column;
use crate::layout::{self, i32_at, i64_at, parts_at, Parts};
use crate::properties::{for_each_pair, KEYS, TAGS, UNIQ_KEY};

const BLOCK_ROWS: usize = 256; // their records stay in the cache while column after column is decoded
const MS_MAX: u64 = i64::MAX as u64 / 1000; // from here on µs cannot represent a time
const COMPRESSED: i32 = 1;
const HALF_TOPIC: &[u8] = b"RMQ_SYS_TRANS_HALF_TOPIC";
const STATES: [&[u8]; 4] = [b"none", b"prepared", b"commit", b"rollback"];
const PREPARED: usize = 1;
const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

const DELAY: &str = "DELAY";
const TRAN_MSG: &str = "TRAN_MSG";
// Properties with a delivery time, and ms per unit if relative to the store time. The first valid one wins.
const DELIVERY: [(&str, Option<i64>); 5] = [
    ("TIMER_OUT_MS", None),
    ("__STARTDELIVERTIME", None),
    ("TIMER_DELAY_SEC", Some(1000)),
    ("TIMER_DELAY_MS", Some(1)),
    ("TIMER_DELIVER_MS", None),
];
const TIME_DIGITS_MAX: usize = 15;
const INTEGER_DIGITS_MAX: usize = 10;

/// What a column contains. Properties are numbered as in `ColumnDecoder::names`.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Int32(usize), // place in the fixed fields
    Int64(usize),
    Time(usize),
    Host(usize),
    Topic,
    Body,
    Property(usize),
    IntegerProperty(usize),
    Properties,
    MessageId(usize),
    OffsetMessageId,
    DeliverAt([usize; 5]),
    TransactionState,
    TransactionId { marker: usize, unique_key: usize },
}

/// Why a body is not that of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Crc,
    Torn, // the properties end in zeros: the write was interrupted
}

/// What the caller has to know about decoded records.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub has_compressed: bool,
    pub faults: Vec<(usize, Fault)>, // by row, ascending
}

#[derive(Debug)]
pub struct ColumnDecoder {
    kinds: Vec<Kind>,
    columns: Vec<Column>,
    names: Vec<&'static str>, // properties that columns need
    lengths: u64,             // bit n: one of `names` has n bytes
    needs_topic: bool,
    needs_properties: bool,
}

impl ColumnDecoder {
    /// Return a decoder for the columns, or the name of the first that it cannot decode.
    pub fn new(columns: &[String]) -> Result<Self, &String> {
        let mut names = Vec::new();
        let mut kinds = Vec::new();
        for column in columns {
            kinds.push(kind(column, &mut names).ok_or(column)?);
        }
        Ok(Self {
            columns: kinds.iter().map(|_| Column::default()).collect(),
            lengths: names.iter().fold(0, |bits, name: &&str| bits | 1 << name.len().min(63)),
            needs_topic: kinds.iter().any(|kind| matches!(kind, Kind::Topic | Kind::TransactionState)),
            needs_properties: !names.is_empty() || kinds.iter().any(|kind| matches!(kind, Kind::Properties)),
            kinds,
            names,
        })
    }

    /// The columns of the records that were decoded last.
    pub fn columns(&self) -> impl Iterator<Item = (&Column, bool)> {
        self.columns.iter().zip(self.kinds.iter().map(|kind| matches!(kind, Kind::Properties)))
    }

    /// Decode the records at `starts`; None if one of them is unusual.
    pub fn decode(&mut self, data: &[u8], starts: &[usize], checks_bodies: bool) -> Option<Findings> {
        i32::try_from(data.len()).ok()?;
        self.columns.iter_mut().for_each(Column::clear);
        let mut findings = Findings::default();
        let mut block = Vec::with_capacity(BLOCK_ROWS);
        let mut values = Vec::with_capacity(BLOCK_ROWS * self.names.len());
        for (number, starts) in starts.chunks(BLOCK_ROWS).enumerate() {
            block.clear();
            values.clear();
            for start in starts {
                let parts = parts_at(data, *start)?;
                self.look_up(&parts, &mut values)?;
                block.push(parts);
            }
            for (row, parts) in block.iter().enumerate() {
                findings.has_compressed |= i32_at(parts.head, layout::SYS_FLAG_AT) & COMPRESSED != 0;
                if checks_bodies {
                    findings.faults.extend(fault(parts).map(|fault| (number * BLOCK_ROWS + row, fault)));
                }
            }
            let properties = Values { values: &values, width: self.names.len() };
            for (kind, column) in self.kinds.iter().zip(&mut self.columns) {
                append(*kind, &block, properties, column);
            }
        }
        Some(findings)
    }

    /// Append the properties that columns need to `values`; None if the record is unusual.
    #[inline]
    fn look_up<'a>(&self, parts: &Parts<'a>, values: &mut Vec<&'a [u8]>) -> Option<()> {
        if i32_at(parts.head, layout::SYS_FLAG_AT) & layout::V6_HOSTS != 0 {
            return None;
        }
        if self.needs_topic {
            std::str::from_utf8(parts.topic).ok()?;
        }
        if !self.needs_properties {
            return Some(());
        }
        std::str::from_utf8(parts.properties).ok()?;
        if self.names.is_empty() {
            return Some(());
        }
        let first = values.len();
        values.resize(first + self.names.len(), &[]);
        let found = &mut values[first..];
        for_each_pair(parts.properties, |name, value| {
            if self.lengths >> name.len().min(63) & 1 != 0 {
                if let Some(index) = self.names.iter().position(|wanted| wanted.as_bytes() == name) {
                    found[index] = value; // the last of equal names wins
                }
            }
        });
        Some(())
    }
}

/// Properties of the records of a block: empty if absent, as no value is empty.
#[derive(Clone, Copy)]
struct Values<'b, 'a> {
    values: &'b [&'a [u8]],
    width: usize,
}

impl<'a> Values<'_, 'a> {
    #[inline]
    fn get(&self, row: usize, index: usize) -> Option<&'a [u8]> {
        let value = self.values[row * self.width + index];
        (!value.is_empty()).then_some(value)
    }

    /// Return whether no record of the block has the property.
    fn has_none(&self, index: usize) -> bool {
        self.values.chunks_exact(self.width).all(|row| row[index].is_empty())
    }
}

/// Return what a column contains, and add the properties that it needs to `names`.
fn kind(column: &str, names: &mut Vec<&'static str>) -> Option<Kind> {
    let mut number = |name: &'static str| {
        names.iter().position(|other| *other == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        })
    };
    Some(match column {
        "topic" => Kind::Topic,
        "queue_id" => Kind::Int32(layout::QUEUE_ID_AT),
        "queue_offset" => Kind::Int64(layout::QUEUE_OFFSET_AT),
        "commit_log_offset" => Kind::Int64(layout::OFFSET_AT),
        "message_id" => Kind::MessageId(number(UNIQ_KEY)),
        "offset_message_id" => Kind::OffsetMessageId,
        "keys" => Kind::Property(number(KEYS)),
        "tags" => Kind::Property(number(TAGS)),
        "properties" => Kind::Properties,
        "body" => Kind::Body,
        "born_timestamp" => Kind::Time(layout::BORN_MS_AT),
        "store_timestamp" => Kind::Time(layout::STORE_MS_AT),
        "born_host" => Kind::Host(layout::BORN_HOST_AT),
        "store_host" => Kind::Host(layout::STORE_HOST_AT),
        "reconsume_times" => Kind::Int32(layout::RECONSUME_TIMES_AT),
        "sys_flag" => Kind::Int32(layout::SYS_FLAG_AT),
        "flag" => Kind::Int32(layout::FLAG_AT),
        "unique_key" => Kind::Property(number(UNIQ_KEY)),
        "store_size" => Kind::Int32(layout::SIZE_AT),
        "delay_level" => Kind::IntegerProperty(number(DELAY)),
        "deliver_at" => Kind::DeliverAt(DELIVERY.map(|(name, _)| number(name))),
        "real_topic" => Kind::Property(number("REAL_TOPIC")),
        "real_queue_id" => Kind::IntegerProperty(number("REAL_QID")),
        "transaction_state" => Kind::TransactionState,
        "transaction_id" => Kind::TransactionId { marker: number(TRAN_MSG), unique_key: number(UNIQ_KEY) },
        "prepared_transaction_offset" => Kind::Int64(layout::PREPARED_OFFSET_AT),
        "check_times" => Kind::IntegerProperty(number("TRANSACTION_CHECK_TIMES")),
        "producer_group" => Kind::Property(number("PGROUP")),
        "retry_topic" => Kind::Property(number("RETRY_TOPIC")),
        "origin_message_id" => Kind::Property(number("ORIGIN_MESSAGE_ID")),
        _ => return None,
    })
}

/// Append the values of a block of records to their column.
fn append(kind: Kind, block: &[Parts], properties: Values, column: &mut Column) {
    let rows = block.iter().enumerate();
    match kind {
        Kind::Int32(at) => column.push_values(block, |parts| i32_at(parts.head, at).to_ne_bytes()),
        Kind::Int64(at) => column.push_values(block, |parts| i64_at(parts.head, at).to_ne_bytes()),
        Kind::Time(at) => {
            if column.nulls == 0 && block.iter().all(|parts| i64_at(parts.head, at).unsigned_abs() < MS_MAX) {
                column.push_values(block, |parts| (i64_at(parts.head, at) * 1000).to_ne_bytes());
            } else {
                block.iter().for_each(|parts| push_time(column, Some(i64_at(parts.head, at).into())));
            }
        }
        Kind::Host(at) => block.iter().for_each(|parts| push_host(column, &parts.head[at..at + 8])),
        Kind::Topic => block.iter().for_each(|parts| column.push_text(parts.topic)),
        Kind::Body => block.iter().for_each(|parts| column.push_text(parts.body)),
        Kind::Property(index) if properties.has_none(index) => column.push_null_texts(block.len()),
        Kind::Property(index) => rows.for_each(|(row, _)| push_optional(column, properties.get(row, index))),
        Kind::IntegerProperty(index) if properties.has_none(index) => column.push_null_values(block.len(), 4),
        Kind::IntegerProperty(index) => {
            for (row, _) in rows {
                match properties.get(row, index).and_then(parse_integer) {
                    Some(value) => {
                        column.texts.data.extend_from_slice(&value.to_ne_bytes());
                        column.end_value();
                    }
                    None => column.push_null_value(&[0; 4]),
                }
            }
        }
        Kind::Properties => {
            let mut pairs = Vec::new();
            block.iter().for_each(|parts| push_map(column, parts.properties, &mut pairs));
        }
        Kind::MessageId(index) => {
            for (row, parts) in rows {
                match properties.get(row, index) {
                    Some(unique_key) => column.push_text(unique_key),
                    None => push_offset_id(column, parts),
                }
            }
        }
        Kind::OffsetMessageId => block.iter().for_each(|parts| push_offset_id(column, parts)),
        Kind::DeliverAt(indexes) if indexes.iter().all(|index| properties.has_none(*index)) => {
            column.push_null_values(block.len(), 8);
        }
        Kind::DeliverAt(indexes) => {
            for (row, parts) in rows {
                let texts = indexes.map(|index| properties.get(row, index));
                push_time(column, delivery_ms(texts, i64_at(parts.head, layout::STORE_MS_AT)));
            }
        }
        Kind::TransactionState => {
            for parts in block {
                let state = (i32_at(parts.head, layout::SYS_FLAG_AT) >> 2 & 3) as usize;
                let is_prepared = state == 0 && parts.topic == HALF_TOPIC;
                column.push_text(STATES[if is_prepared { PREPARED } else { state }]);
            }
        }
        Kind::TransactionId { marker, .. } if properties.has_none(marker) => column.push_null_texts(block.len()),
        Kind::TransactionId { marker, unique_key } => {
            for (row, _) in rows {
                let is_transaction = properties.get(row, marker) == Some(b"true");
                push_optional(column, properties.get(row, unique_key).filter(|_| is_transaction));
            }
        }
    }
}

fn fault(parts: &Parts) -> Option<Fault> {
    if parts.properties.last() == Some(&0) {
        return Some(Fault::Torn);
    }
    let crc = i32_at(parts.head, layout::BODY_CRC_AT);
    let is_wrong = !parts.body.is_empty() && (crc32fast::hash(parts.body) & 0x7fff_ffff) as i32 != crc;
    is_wrong.then_some(Fault::Crc)
}

#[inline]
fn push_optional(column: &mut Column, text: Option<&[u8]>) {
    match text {
        Some(text) => column.push_text(text),
        None => column.push_null_text(),
    }
}

/// Append a time in ms as µs, or null if it is absent or too far away.
#[inline]
fn push_time(column: &mut Column, ms: Option<i128>) {
    match ms.and_then(|ms| i64::try_from(ms).ok()).filter(|ms| ms.unsigned_abs() < MS_MAX) {
        Some(ms) => {
            column.texts.data.extend_from_slice(&(ms * 1000).to_ne_bytes());
            column.end_value();
        }
        None => column.push_null_value(&[0; 8]),
    }
}

/// Append a packed IPv4 address as `ip:port`.
#[inline]
fn push_host(column: &mut Column, packed: &[u8]) {
    let text = &mut column.texts.data;
    for (index, octet) in packed[..4].iter().enumerate() {
        if index > 0 {
            text.push(b'.');
        }
        push_decimal(text, u32::from(*octet));
    }
    text.push(b':');
    push_decimal(text, packed[4..].iter().fold(0, |port, octet| port << 8 | u32::from(*octet)));
    column.end_text();
}

#[inline]
fn push_decimal(text: &mut Vec<u8>, mut value: u32) {
    let mut digits = [0; 10];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[first..]);
}

/// Append the hexadecimal digits of store host and log offset.
#[inline]
fn push_offset_id(column: &mut Column, parts: &Parts) {
    let host = &parts.head[layout::STORE_HOST_AT..layout::STORE_HOST_AT + 8];
    let offset = &parts.head[layout::OFFSET_AT..layout::OFFSET_AT + 8];
    let mut digits = [0; 32];
    for (pair, octet) in digits.chunks_exact_mut(2).zip(host.iter().chain(offset)) {
        pair[0] = DIGITS[usize::from(octet >> 4)];
        pair[1] = DIGITS[usize::from(octet & 15)];
    }
    column.push_text(&digits);
}

/// Append all properties of a record. A name that repeats has its first place and its last value.
fn push_map<'a>(column: &mut Column, properties: &'a [u8], pairs: &mut Vec<(&'a [u8], &'a [u8])>) {
    const SEARCHED_MAX: usize = 32; // pairs that are compared one by one: the work has to stay linear
    pairs.clear();
    for_each_pair(properties, |name, value| pairs.push((name, value)));
    if pairs.len() > SEARCHED_MAX {
        let mut indexes = HashMap::new();
        let mut distinct = Vec::new();
        for (name, value) in pairs.iter() {
            let index = *indexes.entry(*name).or_insert(distinct.len());
            match distinct.get_mut(index) {
                Some((_, last)) => *last = *value,
                None => distinct.push((*name, *value)),
            }
        }
        *pairs = distinct;
    } else {
        let mut index = 1;
        while index < pairs.len() {
            let (name, value) = pairs[index];
            match pairs[..index].iter().position(|(other, _)| *other == name) {
                Some(first) => {
                    pairs[first].1 = value;
                    pairs.remove(index);
                }
                None => index += 1,
            }
        }
    }
    for (name, value) in pairs.iter() {
        column.names.push(name);
        column.values.push(value);
    }
    column.end_map();
}

/// Return a decimal number of at most `digits_max` ASCII digits.
fn parse_digits(text: &[u8], digits_max: usize) -> Option<i64> {
    let is_number = text.len() <= digits_max && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| text.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
}

fn parse_integer(text: &[u8]) -> Option<i32> {
    i32::try_from(parse_digits(text, INTEGER_DIGITS_MAX)?).ok()
}

/// Return the delivery time in ms since the epoch according to the properties of `DELIVERY`.
fn delivery_ms(texts: [Option<&[u8]>; 5], store_ms: i64) -> Option<i128> {
    texts.iter().zip(DELIVERY).find_map(|(text, (_, unit))| {
        let value = i128::from(parse_digits((*text)?, TIME_DIGITS_MAX)?);
        Some(unit.map_or(value, |unit| i128::from(store_ms) + value * i128::from(unit)))
    })
}
