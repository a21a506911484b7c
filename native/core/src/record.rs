//! The stored record of a message, the entry of its queue, and the keys of its index.
//!
//! ```text
//! TOTALSIZE i32 | MAGIC i32 | BODYCRC i32 | QUEUEID i32 | FLAG i32 | QUEUEOFFSET i64 | PHYSICALOFFSET i64 | SYSFLAG i32
//! BORNTIMESTAMP i64 | BORNHOST 8 | STORETIMESTAMP i64 | STOREHOST 8 | RECONSUMETIMES i32 | PREPAREDOFFSET i64
//! BODY i32+n | TOPIC u8+n | PROPERTIES i16+n                                                  both hosts are IPv4
//!
//! queue entry: offset i64 | size i32 | tags code i64              key: hash u32 | offset i64
//! ```

pub const MAGIC: u32 = 0xDAA3_20A7;
pub const BODY_AT: usize = 88;
pub const FIXED_SIZE: usize = 91; // everything except body, topic and properties
pub const TOPIC_MAX: usize = 127; // bytes
pub const HOST_BITS: i32 = 0x30; // of SYSFLAG: IPv6 hosts
pub type Host = [u8; 8];

/// A record to append.
#[derive(Debug)]
pub struct Record<'a> {
    pub topic: &'a str, // at most TOPIC_MAX bytes
    pub body: &'a [u8],
    pub properties: &'a str, // at most 32,767 bytes
    pub queue_id: i32,
    pub queue_offset: i64,
    pub offset: i64, // in the commit log
    pub flag: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub born_host: Host,
    pub store_ms: i64,
    pub store_host: Host,
    pub reconsume_times: i32,
}

impl Record<'_> {
    pub fn size(&self) -> usize {
        FIXED_SIZE + self.body.len() + self.topic.len() + self.properties.len()
    }

    /// Append the record to `records`; None if a length does not fit or there is no memory.
    pub fn append_to(&self, records: &mut Vec<u8>) -> Option<()> {
        let size = self.size();
        records.try_reserve(size).ok()?;
        let mut head = [0; BODY_AT];
        let mut rest = &mut head[..];
        put(&mut rest, i32::try_from(size).ok()?.to_be_bytes());
        put(&mut rest, MAGIC.to_be_bytes());
        put(&mut rest, (crc32fast::hash(self.body) & 0x7fff_ffff).to_be_bytes());
        put(&mut rest, self.queue_id.to_be_bytes());
        put(&mut rest, self.flag.to_be_bytes());
        put(&mut rest, self.queue_offset.to_be_bytes());
        put(&mut rest, self.offset.to_be_bytes());
        put(&mut rest, (self.sys_flag & !HOST_BITS).to_be_bytes());
        put(&mut rest, self.born_ms.to_be_bytes());
        put(&mut rest, self.born_host);
        put(&mut rest, self.store_ms.to_be_bytes());
        put(&mut rest, self.store_host);
        put(&mut rest, self.reconsume_times.to_be_bytes());
        put(&mut rest, 0i64.to_be_bytes()); // PREPAREDOFFSET
        put(&mut rest, i32::try_from(self.body.len()).ok()?.to_be_bytes());
        let topic_size = u8::try_from(self.topic.len()).ok()?;
        let properties_size = i16::try_from(self.properties.len()).ok()?;
        records.extend_from_slice(&head);
        records.extend_from_slice(self.body);
        records.push(topic_size);
        records.extend_from_slice(self.topic.as_bytes());
        records.extend_from_slice(&properties_size.to_be_bytes());
        records.extend_from_slice(self.properties.as_bytes());
        Some(())
    }
}

/// Write `bytes` at the start of `rest`, which then begins behind them.
#[inline]
fn put<const N: usize>(rest: &mut &mut [u8], bytes: [u8; N]) {
    let (head, tail) = std::mem::take(rest).split_at_mut(N);
    head.copy_from_slice(&bytes);
    *rest = tail;
}

/// Return the queue entry of a record.
pub fn queue_entry(offset: i64, size: i32, tags_code: i64) -> [u8; 20] {
    let mut entry = [0; 20];
    let mut rest = &mut entry[..];
    put(&mut rest, offset.to_be_bytes());
    put(&mut rest, size.to_be_bytes());
    put(&mut rest, tags_code.to_be_bytes());
    entry
}

/// Return a key with the offset of its record.
pub fn index_key(hash: u32, offset: i64) -> [u8; 12] {
    let mut key = [0; 12];
    let mut rest = &mut key[..];
    put(&mut rest, hash.to_be_bytes());
    put(&mut rest, offset.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_their_places() {
        let record = Record {
            topic: "T",
            body: b"body",
            properties: "a\u{1}b",
            queue_id: 1,
            queue_offset: 2,
            offset: 3,
            flag: 4,
            sys_flag: 0x31,
            born_ms: 5,
            born_host: [1; 8],
            store_ms: 6,
            store_host: [2; 8],
            reconsume_times: 7,
        };
        let mut bytes = vec![0xff];
        record.append_to(&mut bytes).unwrap();
        let bytes = &bytes[1..];
        assert_eq!(bytes.len(), record.size());
        assert_eq!(bytes[..8], [0, 0, 0, 99, 0xda, 0xa3, 0x20, 0xa7]);
        assert_eq!(bytes[8..12], (crc32fast::hash(b"body") & 0x7fff_ffff).to_be_bytes());
        assert_eq!(bytes[12..20], [0, 0, 0, 1, 0, 0, 0, 4]);
        assert_eq!(bytes[27], 2);
        assert_eq!(bytes[35], 3);
        assert_eq!(bytes[36..40], [0, 0, 0, 1]);
        assert_eq!(bytes[47..56], [5, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(bytes[63..72], [6, 2, 2, 2, 2, 2, 2, 2, 2]);
        assert_eq!(bytes[75..88], [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]);
        assert_eq!(&bytes[88..], b"body\x01T\x00\x03a\x01b");
    }

    #[test]
    fn a_length_that_does_not_fit_is_refused() {
        let long = "x".repeat(40_000);
        let record = Record {
            topic: "T",
            body: b"",
            properties: &long,
            queue_id: 0,
            queue_offset: 0,
            offset: 0,
            flag: 0,
            sys_flag: 0,
            born_ms: 0,
            born_host: [0; 8],
            store_ms: 0,
            store_host: [0; 8],
            reconsume_times: 0,
        };
        let mut bytes = Vec::new();
        assert_eq!(record.append_to(&mut bytes), None);
        assert!(bytes.is_empty());
    }
}
