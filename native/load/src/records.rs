//! Records in the body of a pull answer: back to back, each begins with its size and the magic code.
//!
//! ```text
//! 0 size  4 magic  8 body CRC  12 queue  16 flag  20 queue offset (i64)  28 log offset (i64)  36 sysFlag  40 born time (i64)
//! 48 born host (8 or 20)  store time (i64)  store host (8 or 20)  reconsume times (i32)  prepared offset (i64)
//! body (i32 length)  topic (i8 length)  properties (i16 length)
//! ```
//! [MessageDecoder]

const MAGIC: u32 = 0xDAA3_20A7;
/// Bytes of a record with IPv4 addresses whose body, topic and properties are empty.
const FIXED: usize = 91;
/// Position of the body's length with IPv4 addresses.
const BODY_AT: usize = 84;
const BORN_HOST_V6: u32 = 1 << 4;
const STORE_HOST_V6: u32 = 1 << 5;
const V6_EXTRA: usize = 12;

/// What one pull asked for, and what its records are checked against.
pub struct Expected {
    pub queue: u32,
    /// Offset of the pull; records are at it or after it.
    pub offset: i64,
    /// nextBeginOffset of the answer; records are before it.
    pub next: i64,
    /// Whether the lengths within a record and the CRC of its body are checked, too.
    pub check_bodies: bool,
}

impl Expected {
    /// Return the number of records in a body, or what is wrong with the first bad one.
    pub fn count(&self, body: &[u8]) -> Result<u64, String> {
        let (mut at, mut count, mut least) = (0, 0, self.offset);
        while at < body.len() {
            let rest = &body[at..];
            let fault =
                |what: String| format!("record {count} at byte {at} of a pull answer of queue {}: {what}", self.queue);
            let size = if rest.len() < FIXED { rest.len() } else { number(rest, 0) as usize };
            if size < FIXED || size > rest.len() {
                return Err(fault(format!("size {size}, expected {FIXED} to {}", rest.len())));
            }
            let record = &rest[..size];
            if number(record, 4) != MAGIC {
                return Err(fault(format!("magic code {:#010x}, expected {MAGIC:#010x}", number(record, 4))));
            }
            if number(record, 12) != self.queue {
                return Err(fault(format!("queue {}", number(record, 12) as i32)));
            }
            let offset = i64::from_be_bytes(record[20..28].try_into().expect("eight bytes"));
            if offset < least || offset >= self.next {
                return Err(fault(format!("queue offset {offset}, expected {least} to {}", self.next - 1)));
            }
            if self.check_bodies {
                check_body(record).map_err(fault)?;
            }
            least = offset + 1;
            count += 1;
            at += size;
        }
        Ok(count)
    }
}

fn check_body(record: &[u8]) -> Result<(), String> {
    let flag = number(record, 36);
    let extra = [BORN_HOST_V6, STORE_HOST_V6].iter().filter(|bit| flag & **bit != 0).count() * V6_EXTRA;
    let parts = (|| {
        let (length, rest) = record.get(BODY_AT + extra..)?.split_at_checked(4)?;
        let (body, rest) = rest.split_at_checked(number(length, 0) as usize)?;
        let (length, rest) = rest.split_at_checked(1)?;
        let (_topic, rest) = rest.split_at_checked(length[0] as usize)?;
        let (length, properties) = rest.split_at_checked(2)?;
        (properties.len() == u16::from_be_bytes([length[0], length[1]]) as usize).then_some(body)
    })();
    let body = parts.ok_or_else(|| "lengths of body, topic and properties differ from its size".to_owned())?;
    let crc = crc32fast::hash(body) & 0x7fff_ffff;
    match number(record, 8) {
        stored if stored == crc => Ok(()),
        stored => Err(format!("body CRC {stored:#010x} is stored, {crc:#010x} is that of the body")),
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;

    /// Return the body of a pull answer of the Java broker: its queue, first and next offset.
    fn recorded() -> (Vec<u8>, Expected) {
        let path = format!("{}/../../tests/data/frames/011-answer-0-json.bin", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let frame = Frame::parse(&bytes).unwrap();
        let queue = number(frame.body, 12);
        let next = frame.number("nextBeginOffset").unwrap();
        (frame.body.to_vec(), Expected { queue, offset: 0, next, check_bodies: true })
    }

    #[test]
    fn records_of_the_java_broker_are_counted() {
        let (body, expected) = recorded();
        assert_eq!(expected.count(&body).map(|count| count as i64), Ok(expected.next));
        assert_eq!(expected.count(b""), Ok(0));
    }

    #[test]
    fn each_fault_is_named() {
        let (body, expected) = recorded();
        let message = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut changed = body.clone();
            change(&mut changed);
            expected.count(&changed).unwrap_err()
        };
        assert!(message(&|body| body[4] = 0).contains("magic code 0x00a320a7"));
        assert!(message(&|body| body[..4].copy_from_slice(&90_u32.to_be_bytes())).contains("size 90"));
        assert!(message(&|body| body[..4].copy_from_slice(&u32::MAX.to_be_bytes())).contains("size 4294967295"));
        assert!(message(&|body| body.truncate(50)).contains("size 50"));
        assert!(message(&|body| body[12] = 1).contains("queue "));
        assert!(message(&|body| body[20] = 0xff).contains("queue offset -"));
        assert!(message(&|body| body[88] ^= 1).contains("body CRC"));
        assert!(message(&|body| body[87] ^= 1).contains("lengths of body"));
        assert!(message(&|body| body[84] = 0xff).contains("lengths of body"));
    }

    #[test]
    fn records_with_ipv6_addresses() {
        let (body, expected) = recorded();
        let size = number(&body, 0) as usize;
        let mut record = body[..size].to_vec();
        record.splice(52..52, [0; V6_EXTRA]);
        record[39] |= BORN_HOST_V6 as u8;
        record[..4].copy_from_slice(&((size + V6_EXTRA) as u32).to_be_bytes());
        assert_eq!(expected.count(&record), Ok(1));
        record[39] &= !(BORN_HOST_V6 as u8);
        assert!(expected.count(&record).is_err());
    }
}
