//! Frames and the headers of sends, in both header forms.
//!
//! ```text
//! length i32 = 4 + header + body | form u8 (0 JSON, 1 ROCKETMQ) | header length u24 | header | body
//!
//! JSON      {"code":310,"extFields":{"a":"group",…},"flag":0,"language":"JAVA","opaque":7,…}
//! ROCKETMQ  code i16 | language u8 | version i16 | opaque i32 | flag i32 | remark i32+n | extFields i32+n
//!           extFields: (key i16+n, value i32+n)*
//! ```
//!
//! `None` means "not plain": the frame is incomplete or unusual, and the handler of single sends decides about it.

use crate::json::{parse_int, Cursor, Span, Unescaped};

pub const FRAME_MAX: usize = 16 * 1024 * 1024;
pub const PREFIX_SIZE: usize = 8;
pub const VERSION: i32 = 401; // of RocketMQ 4.9.4, in responses
pub const RESPONSE: i32 = 1; // flag bit 0
const ONE_WAY: i32 = 2; // flag bit 1
const NAME_MAX: usize = 271; // characters of a producer group and a default topic

const SEND_MESSAGE: i32 = 10;
const SEND_MESSAGE_V2: i32 = 310;
const SEND_BATCH_MESSAGE: i32 = 320;

const BINARY_START: usize = 17; // bytes of a ROCKETMQ header up to its remark

/// Form of a header; a response has that of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    Binary,
}

impl Form {
    pub fn number(self) -> u8 {
        match self {
            Form::Json => 0,
            Form::Binary => 1,
        }
    }
}

/// One frame of a stream with its header still encoded.
#[derive(Debug)]
pub struct Frame<'a> {
    pub form: Form,
    pub header: &'a [u8],
    pub body: &'a [u8],
    pub end: usize,
}

/// Return the frame at `position`; None if it is incomplete or invalid.
pub fn frame_at(data: &[u8], position: usize) -> Option<Frame<'_>> {
    let length = usize::try_from(read_i32(data, position)?).ok()?;
    if !(4..=FRAME_MAX - 4).contains(&length) {
        return None;
    }
    let end = position + 4 + length;
    let content = data.get(position + 4..end)?;
    let form = match content[0] {
        0 => Form::Json,
        1 => Form::Binary,
        _ => return None,
    };
    let header_size = u32::from_be_bytes([0, content[1], content[2], content[3]]) as usize;
    let (header, body) = content[4..].split_at_checked(header_size)?;
    Some(Frame { form, header, body, end })
}

/// What a plain send says. Texts are parts of the header or of the scratch buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendHeader {
    pub opaque: i32,      // number of the request, which the response repeats
    pub is_one_way: bool, // no response is expected
    pub topic: Span,
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub flag: i32,        // the application's
    pub properties: Span, // empty if there are none
    pub reconsume_times: i32,
    pub is_batch: bool,
}

impl SendHeader {
    /// Return the header of a frame if it is that of a plain send; None otherwise.
    pub fn decode(frame: &Frame<'_>, scratch: &mut Unescaped) -> Option<Self> {
        match frame.form {
            Form::Json => decode_json(frame.header, scratch),
            Form::Binary => decode_binary(frame.header),
        }
    }
}

/// extFields by their letters: `a` producerGroup to `m` batch.
type Fields = [Option<Span>; 13];

/// How the extFields of a request are named.
#[derive(Clone, Copy)]
enum Names {
    Short, // of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE
    Long,  // of SEND_MESSAGE
}

impl Names {
    fn of_code(code: i32) -> Option<Self> {
        match code {
            SEND_MESSAGE => Some(Names::Long),
            SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE => Some(Names::Short),
            _ => None,
        }
    }

    /// Return the index of a field: the outer None if it makes a send unusual, the inner one if it is not of a send.
    #[inline]
    fn index(self, name: &[u8]) -> Option<Option<usize>> {
        let letter = match name {
            [letter @ b'a'..=b'm'] => Some(usize::from(letter - b'a')),
            _ => None,
        };
        match self {
            Names::Short => Some(letter),
            Names::Long if letter.is_some() => None, // means the same as the long name
            Names::Long => Some(long_index(name)),
        }
    }
}

fn long_index(name: &[u8]) -> Option<usize> {
    Some(match name {
        b"producerGroup" => 0,
        b"topic" => 1,
        b"defaultTopic" => 2,
        b"defaultTopicQueueNums" => 3,
        b"queueId" => 4,
        b"sysFlag" => 5,
        b"bornTimestamp" => 6,
        b"flag" => 7,
        b"properties" => 8,
        b"reconsumeTimes" => 9,
        b"unitMode" => 10,
        b"maxReconsumeTimes" => 11,
        b"batch" => 12,
        _ => return None,
    })
}

fn decode_json(header: &[u8], scratch: &mut Unescaped) -> Option<SendHeader> {
    std::str::from_utf8(header).ok()?;
    let mut cursor = Cursor::new(header, 0);
    cursor.expect_text(br#"{"code":"#)?;
    let names = Names::of_code(cursor.int32()?)?;
    let (mut fields, mut flag, mut opaque) = (None, None, None);
    let mut seen = 0u8; // members without a meaning for a send, which must not be repeated either
    loop {
        match cursor.take()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
        let member = cursor.plain_text()?;
        cursor.expect(b':')?;
        let bit = match member {
            b"extFields" if fields.is_none() => {
                fields = Some(decode_json_fields(&mut cursor, names, scratch)?);
                continue;
            }
            b"flag" if flag.is_none() => {
                flag = Some(cursor.int32()?);
                continue;
            }
            b"opaque" if opaque.is_none() => {
                opaque = Some(cursor.int32()?);
                continue;
            }
            b"version" => {
                cursor.int32()?;
                1
            }
            b"language" | b"serializeTypeCurrentRPC" => {
                if !cursor.take_null() {
                    cursor.plain_text()?;
                }
                if member[0] == b'l' {
                    2
                } else {
                    4
                }
            }
            b"remark" => {
                cursor.expect_text(b"null")?;
                8
            }
            _ => return None,
        };
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
    }
    if !cursor.is_at_end() {
        return None;
    }
    send_header(&fields?, flag?, opaque?, header, &scratch.bytes)
}

fn decode_json_fields(cursor: &mut Cursor<'_>, names: Names, scratch: &mut Unescaped) -> Option<Fields> {
    let mut fields = Fields::default();
    cursor.expect(b'{')?;
    loop {
        let name = cursor.plain_text()?;
        cursor.expect(b':')?;
        let index = names.index(name)?;
        let value = cursor.text(scratch)?;
        if let Some(index) = index {
            if fields[index].replace(value).is_some() {
                return None;
            }
        }
        match cursor.take()? {
            b',' => {}
            b'}' => return Some(fields),
            _ => return None,
        }
    }
}

fn decode_binary(header: &[u8]) -> Option<SendHeader> {
    let code = i32::from(read_i16(header, 0)?);
    let names = Names::of_code(code)?;
    let (opaque, flag, remark_size) = (read_i32(header, 5)?, read_i32(header, 9)?, read_i32(header, 13)?);
    let fields_size = usize::try_from(read_i32(header, BINARY_START)?).ok()?;
    let mut position = BINARY_START + 4;
    if remark_size != 0 || position + fields_size != header.len() {
        return None;
    }
    let mut fields = Fields::default();
    while position < header.len() {
        let name_size = usize::try_from(read_i16(header, position)?).ok()?;
        let value_size_at = position + 2 + name_size;
        let value_size = usize::try_from(read_i32(header, value_size_at)?).ok()?;
        let end = value_size_at + 4 + value_size;
        let (name, value) = (header.get(position + 2..value_size_at)?, header.get(value_size_at + 4..end)?);
        std::str::from_utf8(name).ok()?;
        std::str::from_utf8(value).ok()?;
        let index = names.index(name)?;
        // A field of length zero is absent.
        if let (Some(index), false) = (index, value.is_empty()) {
            if fields[index].replace(Span::of_source(value_size_at + 4, end)).is_some() {
                return None;
            }
        }
        position = end;
    }
    send_header(&fields, flag, opaque, header, &[])
}

/// Return the header of a send with these fields; None if one is missing or not in its usual form.
fn send_header(fields: &Fields, flag: i32, opaque: i32, header: &[u8], scratch: &[u8]) -> Option<SendHeader> {
    if flag & RESPONSE != 0 {
        return None;
    }
    let text = |index: usize| Some(fields[index]?.bytes(header, scratch));
    let int32 = |index: usize| i32::try_from(parse_int(text(index)?)?).ok();
    let optional_int32 = |index: usize| if fields[index].is_some() { int32(index) } else { Some(0) };
    let boolean = |index: usize| match text(index) {
        None | Some(b"false") => Some(false),
        Some(b"true") => Some(true),
        Some(_) => None,
    };
    for name in [text(0)?, text(2)?] {
        if name.len() > NAME_MAX && characters(name) > NAME_MAX {
            return None;
        }
    }
    int32(3)?;
    boolean(10)?;
    optional_int32(11)?;
    Some(SendHeader {
        opaque,
        is_one_way: flag & ONE_WAY != 0,
        topic: fields[1]?,
        queue_id: int32(4)?,
        sys_flag: int32(5)?,
        born_ms: parse_int(text(6)?)?,
        flag: int32(7)?,
        properties: fields[8].unwrap_or_default(),
        reconsume_times: optional_int32(9)?,
        is_batch: boolean(12)?,
    })
}

/// Return the number of characters of a UTF-8 text.
fn characters(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

pub fn read_i16(data: &[u8], position: usize) -> Option<i16> {
    Some(i16::from_be_bytes(*data.get(position..)?.first_chunk()?))
}

pub fn read_i32(data: &[u8], position: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*data.get(position..)?.first_chunk()?))
}
