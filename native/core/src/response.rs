//! Responses to stored sends, from templates.
//!
//! ```text
//! {"code":0,"extFields":{"MSG_REGION":…,"TRACE_ON":…,"msgId":…,"queueId":…,"queueOffset":…},"flag":1,…,"opaque":…,…}
//! ```

use crate::header::{Form, FRAME_MAX, PREFIX_SIZE, RESPONSE, VERSION};
use crate::record::Host;

const HOST_DIGITS: usize = 16;
const ID_SIZE: usize = 32; // characters of a message id: host and offset in hexadecimal
const PYTHON: u8 = 3; // language of responses
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Writes the responses of one broker.
#[derive(Debug)]
pub struct ResponseWriter {
    json_start: Vec<u8>,
    json_end: Vec<u8>,
    binary_start: Vec<u8>,
    host_digits: [u8; HOST_DIGITS],
}

/// What one response says besides the message ids.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    pub form: Form,
    pub opaque: i32,
    pub queue_id: i32,
    pub queue_offset: i64, // of the first message
}

impl ResponseWriter {
    pub fn new(store_host: Host, region: &str, trace_on: bool) -> Self {
        let trace_on = if trace_on { "true" } else { "false" };
        let mut json_start = br#"{"code":0,"extFields":{"MSG_REGION":"#.to_vec();
        put_json_text(&mut json_start, region);
        json_start.extend_from_slice(format!(r#","TRACE_ON":"{trace_on}","msgId":""#).as_bytes());
        let json_end = format!(r#","serializeTypeCurrentRPC":"JSON","version":{VERSION}}}"#).into_bytes();
        let mut binary_start = Vec::new();
        put_field(&mut binary_start, "MSG_REGION", region.as_bytes());
        put_field(&mut binary_start, "TRACE_ON", trace_on.as_bytes());
        let mut host_digits = [0; HOST_DIGITS];
        for (digits, byte) in host_digits.chunks_exact_mut(2).zip(store_host) {
            digits.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        Self { json_start, json_end, binary_start, host_digits }
    }

    /// Append the response to a send whose records are stored at `offsets`; None if it exceeds what peers accept.
    pub fn append_to(&self, out: &mut Vec<u8>, response: &Response, offsets: &[i64]) -> Option<()> {
        let ids_size = offsets.len().checked_mul(ID_SIZE + 1)?.checked_sub(1)?; // joined by commas
        let room = self.json_start.len().max(self.binary_start.len()) + 300 + ids_size;
        if room > FRAME_MAX - 2 * PREFIX_SIZE {
            return None;
        }
        out.try_reserve(room).ok()?;
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX_SIZE]);
        match response.form {
            Form::Json => self.put_json(out, response, offsets),
            Form::Binary => self.put_binary(out, response, offsets, ids_size)?,
        }
        let header_size = u32::try_from(out.len() - start - PREFIX_SIZE).ok()?;
        out[start..start + 4].copy_from_slice(&(header_size + 4).to_be_bytes());
        let form_and_size = u32::from(response.form.number()) << 24 | header_size;
        out[start + 4..start + PREFIX_SIZE].copy_from_slice(&form_and_size.to_be_bytes());
        Some(())
    }

    fn put_json(&self, out: &mut Vec<u8>, response: &Response, offsets: &[i64]) {
        out.extend_from_slice(&self.json_start);
        self.put_ids(out, offsets);
        out.extend_from_slice(br#"","queueId":""#);
        put_number(out, response.queue_id.into());
        out.extend_from_slice(br#"","queueOffset":""#);
        put_number(out, response.queue_offset);
        out.extend_from_slice(br#""},"flag":1,"language":"PYTHON","opaque":"#);
        put_number(out, response.opaque.into());
        out.extend_from_slice(&self.json_end);
    }

    fn put_binary(&self, out: &mut Vec<u8>, response: &Response, offsets: &[i64], ids_size: usize) -> Option<()> {
        out.extend_from_slice(&[0, 0, PYTHON]);
        out.extend_from_slice(&i16::try_from(VERSION).ok()?.to_be_bytes());
        out.extend_from_slice(&response.opaque.to_be_bytes());
        out.extend_from_slice(&RESPONSE.to_be_bytes());
        out.extend_from_slice(&[0; 4]); // no remark
        let fields_at = out.len() + 4;
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.binary_start);
        put_name(out, "msgId", ids_size);
        self.put_ids(out, offsets);
        let mut digits = Vec::with_capacity(20);
        put_number(&mut digits, response.queue_id.into());
        put_field(out, "queueId", &digits);
        digits.clear();
        put_number(&mut digits, response.queue_offset);
        put_field(out, "queueOffset", &digits);
        let fields_size = u32::try_from(out.len() - fields_at).ok()?;
        out[fields_at - 4..fields_at].copy_from_slice(&fields_size.to_be_bytes());
        Some(())
    }

    fn put_ids(&self, out: &mut Vec<u8>, offsets: &[i64]) {
        for (index, offset) in offsets.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            let mut id = [0; ID_SIZE];
            id[..HOST_DIGITS].copy_from_slice(&self.host_digits);
            for (digits, byte) in id[HOST_DIGITS..].chunks_exact_mut(2).zip(offset.to_be_bytes()) {
                digits.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            out.extend_from_slice(&id);
        }
    }
}

/// Append a decimal number.
pub fn put_number(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0; 20];
    let (mut position, mut rest) = (digits.len(), value.unsigned_abs());
    loop {
        position -= 1;
        digits[position] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        position -= 1;
        digits[position] = b'-';
    }
    out.extend_from_slice(&digits[position..]);
}

/// Append a text with quotes, escaped as msgspec does.
fn put_json_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(br#"\""#),
            b'\\' => out.extend_from_slice(br"\\"),
            b'\n' => out.extend_from_slice(br"\n"),
            b'\r' => out.extend_from_slice(br"\r"),
            b'\t' => out.extend_from_slice(br"\t"),
            0x08 => out.extend_from_slice(br"\b"),
            0x0c => out.extend_from_slice(br"\f"),
            0..=0x1f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// Append a field of a ROCKETMQ header.
fn put_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    put_name(out, name, value.len());
    out.extend_from_slice(value);
}

fn put_name(out: &mut Vec<u8>, name: &str, value_size: usize) {
    out.extend_from_slice(&(name.len() as u16).to_be_bytes());
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(&(value_size as u32).to_be_bytes());
}
