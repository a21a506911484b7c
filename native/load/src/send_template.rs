//! Send frames that are prepared once; of each only opaque, born time and keys are replaced.
//!
//! Their bytes are those of a Java client: names, order and properties (UNIQ_KEY, WAIT, and KEYS and TAGS on request).

use std::time::{SystemTime, UNIX_EPOCH};

use crate::frame::{find, set_length, Form};
use crate::signing::{sorted_values, Account, ACCESS_KEY, SIGNATURE};

pub const SEND_MESSAGE: i16 = 10;
pub const SEND_MESSAGE_V2: i16 = 310;
pub const SEND_BATCH_MESSAGE: i16 = 320;
const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
/// Queues of an auto-created topic; brokers allow no more by default.
const AUTO_QUEUES_MAX: u32 = 8;

/// What the messages of a load are.
#[derive(Clone)]
pub struct MessageShape {
    pub form: Form,
    pub code: i16,
    pub group: String,
    pub topic: String,
    pub queues: u32,
    /// Bytes of a body.
    pub size: usize,
    /// Messages of a request with code 320.
    pub batch: usize,
    pub with_keys: bool,
    pub tag: Option<String>,
    pub account: Option<Account>,
}

/// Hexadecimal digits of a key: a fixed part for each connection and a number.
struct KeyPosition {
    at: usize,
    /// Added to the number of the frame's first message.
    index: u64,
}

struct Header {
    bytes: Vec<u8>,
    opaque_at: usize,
    born_at: usize,
    keys: Vec<KeyPosition>,
    signed: Option<SignedValues>,
}

/// What the signature of a header is computed of.
struct SignedValues {
    /// Values of all fields in the order of their names.
    bytes: Vec<u8>,
    born_at: usize,
    keys: Vec<KeyPosition>,
    signature_at: usize, // in the header
}

/// Frames of one connection.
pub struct SendTemplates {
    form: Form,
    account: Option<Account>,
    headers: Vec<Header>,
    body: Vec<u8>,
    body_keys: Vec<KeyPosition>,
    batch: u64,
}

/// Milliseconds since 1970 as text; 13 digits until the year 2286.
pub fn born_digits() -> [u8; 13] {
    let mut digits = [0; 13];
    write_decimal(&mut digits, unix_ms());
    digits
}

/// Return a number to begin keys with that no earlier run has reached.
pub fn first_sequence() -> u64 {
    unix_ms() << 20
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

impl SendTemplates {
    /// Prepare the frames of all queues for the connection with this number.
    pub fn new(shape: &MessageShape, connection: usize) -> SendTemplates {
        let own = properties(shape, connection);
        let filling: Vec<u8> = (0..shape.size).map(|index| b'a' + (index % 23) as u8).collect();
        let is_batch = shape.code == SEND_BATCH_MESSAGE;
        let body = if is_batch { batch_body(&filling, &own, shape.batch) } else { filling };
        let outer = if is_batch { "WAIT\u{1}true" } else { &own };
        let body_keys = if is_batch { batch_keys(&body) } else { Vec::new() };
        let headers = (0..shape.queues).map(|queue| header(shape, queue, outer, body.len())).collect();
        SendTemplates {
            form: shape.form,
            account: shape.account.clone(),
            headers,
            body,
            body_keys,
            batch: shape.batch as u64,
        }
    }

    /// Append the frame of a request to a queue. `number` counts the requests of the connection.
    pub fn append(&self, out: &mut Vec<u8>, queue: u32, opaque: u32, born: &[u8; 13], number: u64) {
        let header = &self.headers[queue as usize];
        let begin = out.len();
        out.extend_from_slice(&header.bytes);
        out.extend_from_slice(&self.body);
        let (head, body) = out[begin..].split_at_mut(header.bytes.len());
        match self.form {
            Form::Json => write_decimal(&mut head[header.opaque_at..][..10], opaque.into()),
            Form::Binary => head[header.opaque_at..][..4].copy_from_slice(&opaque.to_be_bytes()),
        }
        head[header.born_at..][..13].copy_from_slice(born);
        let first = number.wrapping_mul(self.batch);
        for key in &header.keys {
            write_hexadecimal(&mut head[key.at..][..16], first);
        }
        for key in &self.body_keys {
            write_hexadecimal(&mut body[key.at..][..16], first.wrapping_add(key.index));
        }
        if let Some((account, signed)) = self.account.as_ref().zip(header.signed.as_ref()) {
            let mut values = signed.bytes.clone();
            values[signed.born_at..][..13].copy_from_slice(born);
            for key in &signed.keys {
                write_hexadecimal(&mut values[key.at..][..16], first);
            }
            let signature = account.signature(&values, body);
            head[signed.signature_at..][..signature.len()].copy_from_slice(&signature);
        }
    }
}

/// Properties of a message; the last 16 digits of the keys are replaced later.
fn properties(shape: &MessageShape, connection: usize) -> String {
    let process = std::process::id() & 0xffff;
    let fixed = format!("7F000001{process:04X}{:04X}", connection & 0xffff);
    let number = "0".repeat(16);
    let keys = if shape.with_keys { format!("KEYS\u{1}{fixed}{number}\u{2}") } else { String::new() };
    let tags = shape.tag.as_ref().map_or(String::new(), |tag| format!("\u{2}TAGS\u{1}{tag}"));
    format!("{keys}UNIQ_KEY\u{1}{fixed}{number}\u{2}WAIT\u{1}true{tags}")
}

fn header(shape: &MessageShape, queue: u32, properties: &str, body: usize) -> Header {
    let (queue, queues) = (queue.to_string(), shape.queues.min(AUTO_QUEUES_MAX).to_string());
    let is_batch = if shape.code == SEND_BATCH_MESSAGE { "true" } else { "false" };
    let values = [
        ("a", "producerGroup", shape.group.as_str()),
        ("b", "topic", &shape.topic),
        ("c", "defaultTopic", "TBW102"),
        ("d", "defaultTopicQueueNums", &queues),
        ("e", "queueId", &queue),
        ("f", "sysFlag", "0"),
        ("g", "bornTimestamp", "0000000000000"),
        ("h", "flag", "0"),
        ("i", "properties", properties),
        ("j", "reconsumeTimes", "0"),
        ("k", "unitMode", "false"),
        ("m", "batch", is_batch),
    ];
    let is_long = shape.code == SEND_MESSAGE;
    let mut fields = values.map(|(letter, name, value)| (if is_long { name } else { letter }, value)).to_vec();
    let signature = "=".repeat(28);
    let mut signed = None;
    if let Some(account) = &shape.account {
        fields.push((ACCESS_KEY, &account.access_key));
        signed = Some(sorted_values(&fields));
        fields.push((SIGNATURE, &signature));
    }
    let mut encoded = shape.form.encode(shape.code, 1_000_000_000, &fields, b"");
    set_length(&mut encoded.bytes, body);
    let (born, own) = (encoded.values[6].start, encoded.values[8].clone());
    let separator: &[u8] = if shape.form == Form::Json { b"\\u0001" } else { b"\x01" };
    let keys = key_positions(&encoded.bytes[own.clone()], separator);
    let keys = keys.into_iter().map(|at| KeyPosition { at: own.start + at, index: 0 }).collect();
    let signed = signed.map(|(values, starts)| {
        let own = starts[8]..starts[8] + properties.len();
        let keys = key_positions(&values.as_bytes()[own.clone()], b"\x01").into_iter();
        SignedValues {
            keys: keys.map(|at| KeyPosition { at: own.start + at, index: 0 }).collect(),
            bytes: values.into_bytes(),
            born_at: starts[6],
            signature_at: encoded.values.last().map_or(0, |value| value.start),
        }
    });
    Header { bytes: encoded.bytes, opaque_at: encoded.opaque_at, born_at: born, keys, signed }
}

/// Return the positions of the numbers in KEYS and UNIQ_KEY.
fn key_positions(properties: &[u8], separator: &[u8]) -> Vec<usize> {
    let names = [&b"KEYS"[..], &b"UNIQ_KEY"[..]];
    let keys = names.map(|name| [name, separator].concat());
    keys.iter().filter_map(|key| find(properties, key).map(|at| at + key.len() + 16)).collect()
}

/// Encode the messages of a batch: size, magic, CRC, flag, body and properties of each.
fn batch_body(filling: &[u8], properties: &str, count: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..count {
        let size = 22 + filling.len() + properties.len();
        body.extend_from_slice(&(size as u32).to_be_bytes());
        body.extend_from_slice(&[0; 12]);
        body.extend_from_slice(&(filling.len() as u32).to_be_bytes());
        body.extend_from_slice(filling);
        body.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        body.extend_from_slice(properties.as_bytes());
    }
    body
}

fn batch_keys(body: &[u8]) -> Vec<KeyPosition> {
    let (mut keys, mut begin, mut index) = (Vec::new(), 0, 0);
    while let Some(size) = body[begin..].first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes) as usize) {
        let positions = key_positions(&body[begin..begin + size], b"\x01");
        keys.extend(positions.into_iter().map(|at| KeyPosition { at: begin + at, index }));
        begin += size;
        index += 1;
    }
    keys
}

fn write_decimal(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn write_hexadecimal(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(number & 15) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, Head};

    fn shape(form: Form, code: i16) -> MessageShape {
        let (group, topic) = ("G".to_owned(), "UNIQ_KEY".to_owned());
        let batch = if code == SEND_BATCH_MESSAGE { 3 } else { 1 };
        MessageShape {
            form,
            code,
            group,
            topic,
            queues: 12,
            size: 5,
            batch,
            with_keys: true,
            tag: Some("A".into()),
            account: None,
        }
    }

    fn frame(form: Form, code: i16) -> Vec<u8> {
        let mut out = b"before".to_vec();
        SendTemplates::new(&shape(form, code), 9).append(&mut out, 11, 1_000_000_023, b"1795240089807", 0x2a);
        out.split_off(6)
    }

    #[test]
    fn single_messages_have_their_numbers_in_both_forms() {
        for form in [Form::Json, Form::Binary] {
            for (code, names) in
                [(310, ["e", "g", "i", "b"]), (10, ["queueId", "bornTimestamp", "properties", "topic"])]
            {
                let bytes = frame(form, code);
                assert_eq!(crate::frame::frame_size(&bytes), Ok(Some(bytes.len())));
                let frame = Frame::parse(&bytes).unwrap();
                assert_eq!(frame.head(&mut 0), Ok(Head { code: code.into(), opaque: 1_000_000_023 }));
                let [queue, born, properties, topic] = names.map(|name| frame.text(name).unwrap());
                assert_eq!((queue.as_str(), born.as_str(), topic.as_str()), ("11", "1795240089807", "UNIQ_KEY"));
                let key = format!("7F000001{:04X}0009{:016X}", std::process::id() & 0xffff, 0x2a);
                let expected = format!("KEYS\u{1}{key}\u{2}UNIQ_KEY\u{1}{key}\u{2}WAIT\u{1}true\u{2}TAGS\u{1}A");
                assert_eq!(properties, expected);
                assert_eq!(frame.body, b"abcde");
            }
        }
    }

    #[test]
    fn each_message_of_a_batch_has_a_key_of_its_own() {
        let bytes = frame(Form::Json, 320);
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.text("m").as_deref(), frame.text("i").as_deref()), (Some("true"), Some("WAIT\u{1}true")));
        let mut numbers = Vec::new();
        let mut rest = frame.body;
        while let Some(size) = rest.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes) as usize) {
            let text = String::from_utf8_lossy(&rest[27..size]).into_owned();
            let key = text.split("UNIQ_KEY\u{1}").nth(1).unwrap()[16..32].to_owned();
            numbers.push(u64::from_str_radix(&key, 16).unwrap());
            assert!(text.starts_with("KEYS\u{1}") && text[..37].ends_with(&key), "{text}");
            rest = &rest[size..];
        }
        assert_eq!(numbers, [0x2a * 3, 0x2a * 3 + 1, 0x2a * 3 + 2]);
    }

    #[test]
    fn signed_messages_have_the_signature_of_their_own_values() {
        for (form, code) in [(Form::Json, 310), (Form::Binary, 10), (Form::Json, 320)] {
            let account = Account::parse("some-account:some-secret").unwrap();
            let shape = MessageShape { account: Some(account.clone()), ..shape(form, code) };
            let mut bytes = Vec::new();
            SendTemplates::new(&shape, 9).append(&mut bytes, 11, 7, b"1795240089807", 0x2a);
            let frame = Frame::parse(&bytes).unwrap();
            let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "m"];
            let names = if code == 10 {
                [
                    "producerGroup",
                    "topic",
                    "defaultTopic",
                    "defaultTopicQueueNums",
                    "queueId",
                    "sysFlag",
                    "bornTimestamp",
                    "flag",
                    "properties",
                    "reconsumeTimes",
                    "unitMode",
                    "batch",
                ]
            } else {
                names
            };
            let texts: Vec<String> = names.iter().map(|name| frame.text(name).unwrap()).collect();
            let mut fields: Vec<(&str, &str)> = names.into_iter().zip(texts.iter().map(String::as_str)).collect();
            fields.push((ACCESS_KEY, "some-account"));
            let signature = account.signature(sorted_values(&fields).0.as_bytes(), frame.body);
            assert_eq!(frame.text(SIGNATURE).unwrap().as_bytes(), signature);
        }
    }

    #[test]
    fn born_times_are_now() {
        let digits: u64 = String::from_utf8(born_digits().to_vec()).unwrap().parse().unwrap();
        assert!(unix_ms() - digits < 60_000);
    }
}
