//! Frames of the remoting protocol: requests are encoded once, answers are looked at where they stand.
//!
//! ```text
//! i32 length of the rest | u8 form of the header (0 JSON, 1 binary) | u24 header length | header | body
//! ```
//!
//! Of an answer the loops need code and opaque only. In JSON both are found by their keys: a key in quotes cannot occur within a
//! string, where the quotes would be escaped. [RemotingCommand, RocketMQSerializable]

use std::ops::Range;

/// Bytes before the header.
pub const PREFIX: usize = 8;
/// Largest length that a peer accepts.
const LENGTH_MAX: usize = 16_777_212;
const OPAQUE_KEY: &[u8] = b"\"opaque\":";
const CODE_KEY: &[u8] = b"\"code\":";
const VERSION: i16 = 401; // V4_9_4

/// Form of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    Binary,
}

/// An encoded request, with the positions of what is replaced later.
pub struct Encoded {
    pub bytes: Vec<u8>,
    /// Position of the opaque: its digits in JSON, four bytes in the binary form.
    pub opaque_at: usize,
    /// Position of each field's value, in the order of the fields.
    pub values: Vec<Range<usize>>,
}

impl Form {
    /// Encode a request as a Java client of 4.9.4 does.
    pub fn encode(self, code: i16, opaque: i32, fields: &[(&str, &str)], body: &[u8]) -> Encoded {
        let mut encoded = Encoded { bytes: vec![0; PREFIX], opaque_at: 0, values: Vec::with_capacity(fields.len()) };
        match self {
            Form::Json => encode_json(&mut encoded, code, opaque, fields),
            Form::Binary => encode_binary(&mut encoded, code, opaque, fields),
        }
        let header = encoded.bytes.len() - PREFIX;
        encoded.bytes[4..PREFIX].copy_from_slice(&(header as u32).to_be_bytes());
        encoded.bytes[4] = self as u8;
        encoded.bytes.extend_from_slice(body);
        set_length(&mut encoded.bytes, 0);
        encoded
    }
}

/// Write the length of a frame that begins with `bytes` and goes on with so many further bytes.
pub fn set_length(bytes: &mut [u8], further: usize) {
    let length = (bytes.len() - 4 + further) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
}

fn encode_json(encoded: &mut Encoded, code: i16, opaque: i32, fields: &[(&str, &str)]) {
    let out = &mut encoded.bytes;
    out.extend_from_slice(format!("{{\"code\":{code},").as_bytes());
    if !fields.is_empty() {
        out.extend_from_slice(b"\"extFields\":{");
        for (index, (name, value)) in fields.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            out.extend_from_slice(format!("{comma}\"{name}\":\"").as_bytes());
            let begin = out.len();
            escape(value, out);
            encoded.values.push(begin..out.len());
            out.push(b'"');
        }
        out.extend_from_slice(b"},");
    }
    out.extend_from_slice(b"\"flag\":0,\"language\":\"JAVA\",\"opaque\":");
    encoded.opaque_at = out.len();
    let rest = format!("{opaque},\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{VERSION}}}");
    out.extend_from_slice(rest.as_bytes());
}

fn encode_binary(encoded: &mut Encoded, code: i16, opaque: i32, fields: &[(&str, &str)]) {
    let out = &mut encoded.bytes;
    out.extend_from_slice(&code.to_be_bytes());
    out.push(0); // JAVA
    out.extend_from_slice(&VERSION.to_be_bytes());
    encoded.opaque_at = out.len();
    out.extend_from_slice(&opaque.to_be_bytes());
    out.extend_from_slice(&[0; 8]); // flag of a request, no remark
    let size: usize = fields.iter().map(|(name, value)| 6 + name.len() + value.len()).sum();
    out.extend_from_slice(&(size as u32).to_be_bytes());
    for (name, value) in fields {
        out.extend_from_slice(&(name.len() as u16).to_be_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        encoded.values.push(out.len()..out.len() + value.len());
        out.extend_from_slice(value.as_bytes());
    }
}

/// Append a text as the contents of a JSON string.
pub fn escape(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..=0x1f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
}

/// A whole frame in a buffer.
pub struct Frame<'a> {
    pub form: Form,
    pub header: &'a [u8],
    pub body: &'a [u8],
}

/// Code and opaque of a frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    pub code: i32,
    pub opaque: i32,
}

/// Return the size of the first frame of a buffer; None while its length is incomplete.
pub fn frame_size(buffer: &[u8]) -> Result<Option<usize>, String> {
    let Some(length) = buffer.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes) as usize) else {
        return Ok(None);
    };
    if !(4..=LENGTH_MAX).contains(&length) {
        return Err(format!("the broker sent a frame of length {length}: expected 4 to {LENGTH_MAX}"));
    }
    Ok(Some(4 + length))
}

impl<'a> Frame<'a> {
    /// Parse a buffer that holds exactly one frame.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, String> {
        let prefix: [u8; 4] = bytes[4..PREFIX].try_into().expect("four bytes");
        let header = (u32::from_be_bytes(prefix) & 0xff_ffff) as usize;
        let form = match prefix[0] {
            0 => Form::Json,
            1 => Form::Binary,
            other => return Err(format!("the broker sent a header of form {other}: expected 0 (JSON) or 1 (binary)")),
        };
        let Some(rest) = bytes.get(PREFIX..).filter(|rest| rest.len() >= header) else {
            return Err(format!("the broker sent a header of {header} bytes in a frame of {}", bytes.len()));
        };
        let (header, body) = rest.split_at(header);
        Ok(Frame { form, header, body })
    }

    /// Return code and opaque. `hint` is the position of the opaque in the previous header, where it mostly is again.
    pub fn head(&self, hint: &mut usize) -> Result<Head, String> {
        if self.form == Form::Binary {
            let header: &[u8; 9] = self.header.first_chunk().ok_or_else(|| self.fault("is too short"))?;
            let opaque = i32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            return Ok(Head { code: i16::from_be_bytes([header[0], header[1]]).into(), opaque });
        }
        let code = match self.header.strip_prefix(b"{\"code\":") {
            Some(rest) => leading_number(rest),
            None => self.json_number(CODE_KEY),
        };
        let opaque = match self.header.get(*hint..).and_then(|rest| rest.strip_prefix(OPAQUE_KEY)) {
            Some(rest) => leading_number(rest),
            None => {
                *hint = find(self.header, OPAQUE_KEY).unwrap_or(0);
                self.json_number(OPAQUE_KEY)
            }
        };
        let opaque = opaque.and_then(|number| number.try_into().ok()).ok_or_else(|| self.fault("has no opaque"))?;
        Ok(Head { code: code.and_then(|number| number.try_into().ok()).unwrap_or(0), opaque })
    }

    /// Return the number in a field of the header; None without it.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }

    /// Return the text of a field of the header; None without it.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.form {
            Form::Json => self.json_text(name),
            Form::Binary => {
                self.binary_fields()?.find(|(key, _)| *key == name.as_bytes()).map(|(_, value)| lossy(value))
            }
        }
    }

    /// Return the remark; None without it.
    pub fn remark(&self) -> Option<String> {
        match self.form {
            Form::Json => self.json_text("remark"),
            Form::Binary => {
                binary_text(self.header.get(13..)?).map(|(text, _)| lossy(text)).filter(|text| !text.is_empty())
            }
        }
    }

    fn json_number(&self, key: &[u8]) -> Option<i64> {
        let at = find(self.header, key)? + key.len();
        leading_number(self.header[at..].trim_ascii_start())
    }

    fn json_text(&self, name: &str) -> Option<String> {
        let key = format!("\"{name}\":");
        let rest = self.header[find(self.header, key.as_bytes())? + key.len()..].trim_ascii_start();
        let rest = rest.strip_prefix(b"\"")?;
        let mut text = Vec::new();
        let mut bytes = rest.iter().copied();
        loop {
            match bytes.next()? {
                b'"' => return Some(lossy(&text)),
                b'\\' => match bytes.next()? {
                    b'n' | b'r' | b't' => text.push(b' '),
                    b'u' => {
                        let digits: Vec<u8> = bytes.by_ref().take(4).collect();
                        let number = u32::from_str_radix(&lossy(&digits), 16).ok()?;
                        let character = char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER);
                        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                    other => text.push(other),
                },
                other => text.push(other),
            }
        }
    }

    fn binary_fields(&self) -> Option<impl Iterator<Item = (&'a [u8], &'a [u8])>> {
        let (_, rest) = binary_text(self.header.get(13..)?)?;
        let (mut fields, _) = binary_text(rest)?;
        Some(std::iter::from_fn(move || {
            let size = u16::from_be_bytes(*fields.first_chunk()?) as usize;
            let (key, rest) = fields[2..].split_at_checked(size)?;
            let (value, rest) = binary_text(rest)?;
            fields = rest;
            Some((key, value))
        }))
    }

    fn fault(&self, what: &str) -> String {
        format!("the header of an answer {what}: {}", lossy(&self.header[..self.header.len().min(200)]))
    }
}

/// Split bytes that begin with their 32-bit length into the text and the rest.
fn binary_text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let size = u32::from_be_bytes(*bytes.first_chunk()?) as usize;
    bytes[4..].split_at_checked(size)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Return the position of the first occurrence of a key.
pub fn find(bytes: &[u8], key: &[u8]) -> Option<usize> {
    bytes.windows(key.len()).position(|window| window == key)
}

fn leading_number(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, bytes),
    };
    let mut number: i64 = 0;
    let mut count = 0;
    for digit in digits.iter().take_while(|byte| byte.is_ascii_digit()) {
        number = number.checked_mul(10)?.checked_add((digit - b'0').into())?;
        count += 1;
    }
    (count > 0).then_some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return a frame that a Java peer of 4.9.4 sent (tests/data/frames).
    fn recorded(name: &str) -> Vec<u8> {
        let path = format!("{}/../../tests/data/frames/{name}.bin", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn send_fields<'a>(queue: &'a str, born: &'a str, properties: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            ("a", "P"),
            ("b", "T"),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", queue),
            ("f", "0"),
            ("g", born),
            ("h", "0"),
            ("i", properties),
            ("j", "0"),
            ("k", "false"),
            ("m", "false"),
        ]
    }

    #[test]
    fn sends_are_the_bytes_of_the_java_client() {
        let json = "KEYS\u{1}K-0\u{2}UNIQ_KEY\u{1}FD00000000000000000000000000000273C55FFD2B27683DF0CE0000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA";
        let frame = Form::Json.encode(310, 6, &send_fields("1", "1795240089807", json), b"message 0");
        assert_eq!(String::from_utf8_lossy(&frame.bytes), String::from_utf8_lossy(&recorded("310-request-json")));
        let binary = "KEYS\u{1}K-0\u{2}UNIQ_KEY\u{1}FD000000000000000000000000000002784A5FFD2B27683F14E60000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA";
        let frame = Form::Binary.encode(310, 5, &send_fields("2", "1795240164582", binary), b"message 0");
        assert_eq!(frame.bytes, recorded("310-request-binary"));
    }

    #[test]
    fn positions_are_those_of_opaque_and_values() {
        for (form, opaque) in [(Form::Json, &b"1000000007"[..]), (Form::Binary, &1_000_000_007_i32.to_be_bytes()[..])] {
            let frame = form.encode(30, 1_000_000_007, &[("topic", "a\u{1}b"), ("queueId", "12")], b"");
            assert!(frame.bytes[frame.opaque_at..].starts_with(opaque));
            assert_eq!(&frame.bytes[frame.values[1].clone()], b"12");
            assert_eq!(frame_size(&frame.bytes), Ok(Some(frame.bytes.len())));
        }
    }

    #[test]
    fn answers_of_the_java_broker() {
        for (name, code, opaque) in [
            ("310-answer-0-json", 0, 6),
            ("310-answer-0-binary", 0, 5),
            ("320-answer-0-json", 0, 4),
            ("011-answer-20-json", 20, 20),
        ] {
            let bytes = recorded(name);
            assert_eq!(frame_size(&bytes), Ok(Some(bytes.len())));
            let frame = Frame::parse(&bytes).unwrap();
            let mut hint = 0;
            assert_eq!(frame.head(&mut hint), Ok(Head { code, opaque }), "{name}");
            assert_eq!(frame.head(&mut hint), Ok(Head { code, opaque }), "{name} at the hint");
        }
    }

    #[test]
    fn fields_and_remarks_of_both_forms() {
        for (name, next) in [("011-answer-20-json", 4), ("011-answer-20-binary", 3)] {
            let bytes = recorded(name);
            let frame = Frame::parse(&bytes).unwrap();
            assert_eq!(frame.number("nextBeginOffset"), Some(next), "{name}");
            assert_eq!(frame.number("maxOffset"), Some(next), "{name}");
            assert_eq!(frame.number("absent"), None);
            assert_eq!(frame.remark().as_deref(), Some("NO_MATCHED_MESSAGE"));
        }
        let bytes = recorded("310-answer-0-binary");
        assert_eq!(Frame::parse(&bytes).unwrap().remark(), None);
    }

    #[test]
    fn keys_within_a_remark_are_not_the_headers() {
        let header = br#"{"remark":"\"opaque\":5 \"code\":7 \u00e9","code":-1,"opaque": 9}"#;
        let frame = Frame { form: Form::Json, header, body: b"" };
        assert_eq!(frame.head(&mut 0), Ok(Head { code: -1, opaque: 9 }));
        assert_eq!(frame.remark().as_deref(), Some("\"opaque\":5 \"code\":7 é"));
    }

    #[test]
    fn bad_frames_are_refused() {
        assert_eq!(frame_size(&[0, 0, 0]), Ok(None));
        assert!(frame_size(&[0, 0, 0, 3]).unwrap_err().contains("length 3"));
        assert!(frame_size(&[255, 255, 255, 255]).unwrap_err().contains("length 4294967295"));
        assert!(Frame::parse(&[0, 0, 0, 4, 2, 0, 0, 0]).is_err_and(|error| error.contains("form 2")));
        assert!(Frame::parse(&[0, 0, 0, 4, 0, 0, 0, 1]).is_err_and(|error| error.contains("header of 1 bytes")));
        let short = Frame { form: Form::Binary, header: &[0; 8], body: b"" };
        assert!(short.head(&mut 0).is_err());
        assert_eq!((short.remark(), short.number("a")), (None, None));
        let none = Frame { form: Form::Json, header: b"{}", body: b"" };
        assert!(none.head(&mut 0).unwrap_err().contains("no opaque"));
    }
}
