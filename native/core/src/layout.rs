//! Finds stored records in bytes, and the bounds of their parts. [ariane.spark.records.layout]
//!
//! The layout is that of `record`; an IPv6 host has 20 bytes instead of 8 and moves the fields after it.

#![forbid(unsafe_code)]

use crate::record::{BODY_AT, FIXED_SIZE, MAGIC};

pub const SIZE_AT: usize = 0;
const MAGIC_AT: usize = 4;
pub const BODY_CRC_AT: usize = 8;
pub const QUEUE_ID_AT: usize = 12;
pub const FLAG_AT: usize = 16;
pub const QUEUE_OFFSET_AT: usize = 20;
pub const OFFSET_AT: usize = 28;
pub const SYS_FLAG_AT: usize = 36;
pub const BORN_MS_AT: usize = 40;
pub const BORN_HOST_AT: usize = 48;
pub const STORE_MS_AT: usize = 56;
pub const STORE_HOST_AT: usize = 64;
pub const RECONSUME_TIMES_AT: usize = 72;
pub const PREPARED_OFFSET_AT: usize = 76;

pub const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
pub const V6_HOSTS: i32 = BORN_HOST_V6 | STORE_HOST_V6;
pub const V6_EXTRA: usize = 12; // bytes of an IPv6 host beyond those of an IPv4 host
const TAIL_SIZE: usize = 3; // lengths of topic and properties

// A record that a broker wrote in place of a corrupt range has this SYSFLAG (rolled back) and this FLAG ("HOLE").
const REPLACEMENT_SYS_FLAG: i32 = 12;
const REPLACEMENT_FLAG: i32 = i32::from_be_bytes(*b"HOLE");

/// The fixed fields of a record, as far as they have the same place in all records with IPv4 hosts.
pub type Head = [u8; BODY_AT];

/// A record and its parts. `properties` ends where the record ends.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    pub head: &'a Head,
    pub body: &'a [u8],
    pub topic: &'a [u8],
    pub properties: &'a [u8],
}

impl Parts<'_> {
    /// Return the size of the record.
    #[inline]
    pub fn size(&self) -> usize {
        i32_at(self.head, SIZE_AT) as usize // `head_at` has checked it
    }
}

/// The adjacent records at the start of some bytes of a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chain {
    pub starts: Vec<usize>,
    pub size: usize,                // bytes of the records
    pub may_have_replacement: bool, // of a corrupt range
}

#[inline]
pub fn i32_at(head: &Head, at: usize) -> i32 {
    i32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

#[inline]
pub fn i64_at(head: &Head, at: usize) -> i64 {
    i64::from(i32_at(head, at)) << 32 | i64::from(i32_at(head, at + 4) as u32)
}

/// Return the fixed fields and the size of the record at `start`; None if it has no magic or does not fit into `data`.
#[inline]
fn head_at(data: &[u8], start: usize) -> Option<(&Head, usize)> {
    let rest = data.get(start..)?;
    let head = rest.first_chunk::<BODY_AT>()?;
    let size = usize::try_from(i32_at(head, SIZE_AT)).ok()?;
    let is_record = i32_at(head, MAGIC_AT) as u32 == MAGIC && size >= FIXED_SIZE && size <= rest.len();
    is_record.then_some((head, size))
}

/// Return the parts of the record at `start`; None if its lengths are inconsistent.
#[inline]
pub fn parts_at(data: &[u8], start: usize) -> Option<Parts<'_>> {
    let (head, size) = head_at(data, start)?;
    let record = &data[start..start + size];
    let sys_flag = i32_at(head, SYS_FLAG_AT);
    let mut body_at = BODY_AT;
    if sys_flag & V6_HOSTS != 0 {
        body_at += V6_EXTRA * ((sys_flag & V6_HOSTS).count_ones() as usize);
        if body_at + TAIL_SIZE > size {
            return None;
        }
    }
    let (before, rest) = record.split_at(body_at);
    let body_size = usize::try_from(i32::from_be_bytes(*before.last_chunk::<4>()?)).ok()?;
    if body_size.checked_add(TAIL_SIZE)? > rest.len() {
        return None;
    }
    let (body, rest) = rest.split_at(body_size);
    let (topic_size, rest) = rest.split_first()?;
    let (topic, rest) = rest.split_at_checked(usize::from(*topic_size))?;
    let (properties_size, properties) = rest.split_first_chunk::<2>()?;
    let is_consistent = usize::try_from(i16::from_be_bytes(*properties_size)).ok()? == properties.len();
    is_consistent.then_some(Parts { head, body, topic, properties })
}

/// Find the adjacent records at the start of `data`, which is stored at `offset` of a log. None of them ends after `limit`.
pub fn find_chain(data: &[u8], offset: i64, limit: usize) -> Chain {
    let data = &data[..data.len().min(limit)];
    let mut chain = Chain { starts: Vec::with_capacity(data.len() / 200), ..Chain::default() };
    while let Some(parts) = parts_at(data, chain.size) {
        let is_in_place =
            i64::try_from(chain.size).is_ok_and(|at| offset.checked_add(at) == Some(i64_at(parts.head, OFFSET_AT)));
        let Ok(size) = usize::try_from(i32_at(parts.head, SIZE_AT)) else { break };
        if !is_in_place {
            break;
        }
        chain.may_have_replacement |=
            i32_at(parts.head, SYS_FLAG_AT) == REPLACEMENT_SYS_FLAG && i32_at(parts.head, FLAG_AT) == REPLACEMENT_FLAG;
        chain.starts.push(chain.size);
        chain.size += size;
    }
    chain
}

/// Find the records that `data` consists of; None if it contains anything else.
pub fn find_all(data: &[u8]) -> Option<Vec<usize>> {
    let mut starts = Vec::with_capacity(data.len() / 200);
    let mut start = 0;
    while start < data.len() {
        let (_, size) = head_at(data, start)?;
        starts.push(start);
        start += size;
    }
    Some(starts)
}
