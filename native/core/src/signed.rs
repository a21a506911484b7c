//! Signed requests of a turn: the signatures of a run of frames are verified, and removed from them.
//!
//! ```text
//! frame → extFields → access key → HMAC-SHA1 of the sorted values and the body → permit → frame without signature
//! ```
//!
//! A run ends before the first frame that is unusual in any way, has another access key than the first, a wrong signature, or is
//! not permitted: the handler of single requests serves that one. Nothing is refused here. [ariane.kernels.signed_runs]

#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use crate::header::{frame_at, read_i16, read_i32, Form, Frame, PREFIX_SIZE};
use crate::json::{Cursor, Span};

const ACCESS_KEY: &[u8] = b"AccessKey";
const SIGNATURE: &[u8] = b"Signature";
const SECURITY_TOKEN: &[u8] = b"SecurityToken";
const UNIQUE_KEY_QUERY: &[u8] = b"_UNIQUE_KEY_QUERY"; // whether it is signed depends on the client
const NUMBER_MAX: i64 = 9_999_999_999; // of a member of a JSON header; the decoder of the request has its own limits

const BINARY_REMARK_AT: usize = 13; // in a ROCKETMQ header
const BINARY_FIELDS_AT: usize = 21;

const DIGEST_SIZE: usize = 20;
const SIGNATURE_SIZE: usize = 28;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Verifies runs of signed requests.
pub struct SignatureChecker {
    keys: HashMap<Vec<u8>, Hmac<Sha1>>, // keyed digests by access key
    fields: HashMap<i64, Vec<Vec<u8>>>, // names of the fields that `permit` takes, by request code
    scratch: Scratch,
    pub run: SignedRun,
}

/// Permitted requests. Both lists have an item for each, and one for the end of the last.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SignedRun {
    pub frames: Vec<u8>,       // without access keys, signatures and tokens
    pub positions: Vec<usize>, // of the frames in the data
    pub starts: Vec<usize>,    // of the same frames in `frames`
}

/// Buffers whose memory is used again.
#[derive(Default)]
struct Scratch {
    fields: Vec<Field>,  // of one header
    unescaped: Vec<u8>,  // texts of them with escapes
    order: Vec<usize>,   // of the fields by name; mostly that of the header before
    access_key: Vec<u8>, // of the run
    subject: Vec<u8>,    // code and values that the last request was permitted with
    next_subject: Vec<u8>,
    permitted: HashSet<Vec<u8>>, // all subjects of the run
}

/// A field of a header.
struct Field {
    name: Range<usize>,
    value: Span,
    whole: Range<usize>, // name and value with all that belongs to them
    kind: Kind,
}

/// What a field is for this module.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    AccessKey,
    Signature,
    SecurityToken,
    Other,
}

impl Kind {
    /// Return the kind of a field; None if frames with it are not plain.
    #[inline]
    fn of(name: &[u8]) -> Option<Self> {
        match name.len() {
            0 => None,
            9 if name == ACCESS_KEY => Some(Self::AccessKey),
            9 if name == SIGNATURE => Some(Self::Signature),
            13 if name == SECURITY_TOKEN => Some(Self::SecurityToken),
            18 if name == UNIQUE_KEY_QUERY => None,
            _ if name.is_ascii() => Some(Self::Other),
            _ => None,
        }
    }
}

/// A header whose fields were read.
struct Header {
    code: i64,
    fields: Range<usize>, // bytes of all fields
}

/// Code, access key and values of a request -> whether it is served.
pub trait Permit {
    type Error;

    fn permit(&mut self, access_key: &str, code: i64, values: &[Option<&str>]) -> Result<bool, Self::Error>;
}

impl<E, F: FnMut(&str, i64, &[Option<&str>]) -> Result<bool, E>> Permit for F {
    type Error = E;

    fn permit(&mut self, access_key: &str, code: i64, values: &[Option<&str>]) -> Result<bool, E> {
        self(access_key, code, values)
    }
}

impl SignatureChecker {
    /// Return a checker for these secret keys by access key, and the fields that `permit` takes by request code.
    pub fn new(secrets: &[(String, String)], fields: Vec<(i64, Vec<String>)>) -> Self {
        let keyed = |secret: &str| Hmac::new_from_slice(secret.as_bytes()).ok();
        let keys = secrets.iter().filter_map(|(key, secret)| Some((key.clone().into_bytes(), keyed(secret)?)));
        let names = |names: Vec<String>| names.into_iter().map(String::into_bytes).collect();
        Self {
            keys: keys.collect(),
            fields: fields.into_iter().map(|(code, fields)| (code, names(fields))).collect(),
            scratch: Scratch::default(),
            run: SignedRun::default(),
        }
    }

    /// Set `run` to the permitted requests in `data` from `position` on. `permit` is called once for equal values.
    pub fn check<P: Permit>(
        &mut self,
        data: &[u8],
        position: usize,
        header_max: usize,
        frames_max: usize,
        permit: &mut P,
    ) -> Result<(), P::Error> {
        let SignedRun { frames, positions, starts } = &mut self.run;
        frames.clear();
        positions.clear();
        positions.push(position);
        starts.clear();
        starts.push(0);
        self.scratch.permitted.clear();
        self.scratch.subject.clear();
        let mut position = position;
        for number in 0..frames_max {
            let frame = frame_at(data, position).filter(|frame| frame.header.len() <= header_max);
            let Some(frame) = frame else { break };
            let Some(header) = self.scratch.read(&frame) else { break };
            if !self.check_frame(&frame, &header, number == 0, permit)? {
                break;
            }
            self.scratch.append(&frame, &header, &mut self.run.frames);
            position = frame.end;
            self.run.positions.push(position);
            self.run.starts.push(self.run.frames.len());
        }
        Ok(())
    }

    /// Return whether a request continues the run: it has the access key of the run, the right signature, and is permitted.
    fn check_frame<P: Permit>(
        &mut self,
        frame: &Frame<'_>,
        header: &Header,
        is_first: bool,
        permit: &mut P,
    ) -> Result<bool, P::Error> {
        let Self { keys, fields, scratch, .. } = self;
        let Some(names) = fields.get(&header.code) else { return Ok(false) };
        let access_key = scratch.value_of_kind(frame, Kind::AccessKey);
        if !is_first && access_key.unwrap_or_default() != scratch.access_key {
            return Ok(false);
        }
        if let Some(access_key) = access_key {
            let key = keys.get(access_key).filter(|_| !access_key.is_empty());
            let (Some(key), Some(signature)) = (key, scratch.value_of_kind(frame, Kind::Signature)) else {
                return Ok(false);
            };
            if !scratch.is_signed(frame, key, signature) {
                return Ok(false);
            }
        }
        let mut subject = std::mem::take(&mut scratch.next_subject);
        scratch.put_subject(frame, header.code, names, &mut subject);
        if is_first || subject != scratch.subject {
            if !scratch.permitted.contains(&subject) {
                let Some(is_permitted) = scratch.ask(frame, header.code, names, permit) else { return Ok(false) };
                if !is_permitted? {
                    return Ok(false);
                }
                scratch.permitted.insert(subject.clone());
            }
            std::mem::swap(&mut subject, &mut scratch.subject);
        }
        scratch.next_subject = subject;
        if is_first {
            let mut run_key = std::mem::take(&mut scratch.access_key);
            run_key.clear();
            run_key.extend_from_slice(scratch.value_of_kind(frame, Kind::AccessKey).unwrap_or_default());
            scratch.access_key = run_key;
        }
        Ok(true)
    }
}

impl Scratch {
    /// Read the fields of a header; None if it is not plain.
    fn read(&mut self, frame: &Frame<'_>) -> Option<Header> {
        self.fields.clear();
        self.unescaped.clear();
        let header = match frame.form {
            Form::Json => self.read_json(frame.header)?,
            Form::Binary => self.read_binary(frame.header)?,
        };
        self.sort(frame.header).then_some(header)
    }

    fn read_json(&mut self, header: &[u8]) -> Option<Header> {
        std::str::from_utf8(header).ok()?;
        let mut cursor = Cursor::new(header, 0);
        cursor.expect_text(br#"{"code":"#)?;
        let code = cursor.int64()?;
        let mut fields = None;
        loop {
            match cursor.take()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
            let member = cursor.plain_text()?;
            cursor.expect(b':')?;
            match member {
                b"extFields" if fields.is_none() => fields = Some(self.read_json_fields(&mut cursor)?),
                b"flag" | b"opaque" | b"version" => {
                    let number = cursor.int64()?;
                    if !(-NUMBER_MAX..=NUMBER_MAX).contains(&number) {
                        return None;
                    }
                }
                b"language" | b"serializeTypeCurrentRPC" => {
                    if !cursor.take_null() && !cursor.plain_text()?.is_ascii() {
                        return None;
                    }
                }
                b"remark" => cursor.expect_text(b"null")?,
                _ => return None,
            }
        }
        if !cursor.is_at_end() {
            return None;
        }
        Some(Header { code, fields: fields? })
    }

    /// Read the fields of a JSON header, and return where they are.
    fn read_json_fields(&mut self, cursor: &mut Cursor<'_>) -> Option<Range<usize>> {
        cursor.expect(b'{')?;
        let first = cursor.position();
        loop {
            let start = cursor.position();
            let name = cursor.plain_text()?;
            let name_at = start + 1..start + 1 + name.len();
            let kind = Kind::of(name)?;
            cursor.expect(b':')?;
            let value = cursor.text(&mut self.unescaped)?;
            let end = cursor.position();
            self.fields.push(Field { name: name_at, value, whole: start..end, kind });
            match cursor.take()? {
                b',' => {}
                b'}' => return Some(first..end),
                _ => return None,
            }
        }
    }

    fn read_binary(&mut self, header: &[u8]) -> Option<Header> {
        let code = i64::from(read_i16(header, 0)?);
        let fields_size = usize::try_from(read_i32(header, BINARY_FIELDS_AT - 4)?).ok()?;
        if read_i32(header, BINARY_REMARK_AT)? != 0 || BINARY_FIELDS_AT + fields_size != header.len() {
            return None;
        }
        let mut position = BINARY_FIELDS_AT;
        while position < header.len() {
            let name_at = position + 2;
            let name_size = usize::try_from(read_i16(header, position)?).ok()?;
            let value_at = name_at + name_size + 4;
            let value_size = usize::try_from(read_i32(header, value_at - 4)?).ok()?;
            let end = value_at.checked_add(value_size)?;
            let (name, value) = (header.get(name_at..value_at - 4)?, header.get(value_at..end)?);
            let kind = Kind::of(name)?;
            std::str::from_utf8(value).ok()?;
            let (name, value) = (name_at..value_at - 4, Span::of_source(value_at, end));
            self.fields.push(Field { name, value, whole: position..end, kind });
            position = end;
        }
        Some(Header { code, fields: BINARY_FIELDS_AT..header.len() })
    }

    /// Sort `order` by the names of the fields; return whether they differ. The order of the last header is mostly right.
    fn sort(&mut self, header: &[u8]) -> bool {
        let Self { fields, order, .. } = self;
        if order.len() != fields.len() {
            order.clear();
            order.extend(0..fields.len());
        }
        let name = |index: usize| &header[fields[index].name.clone()];
        // Most names differ in their first bytes, of which there is one.
        let is_less = |first: usize, second: usize| match name(first)[0].cmp(&name(second)[0]) {
            Ordering::Equal => name(first) < name(second),
            order => order == Ordering::Less,
        };
        if order.is_sorted_by(|first, second| is_less(*first, *second)) {
            return true;
        }
        order.sort_by(|first, second| name(*first).cmp(name(*second)));
        order.is_sorted_by(|first, second| is_less(*first, *second))
    }

    /// Return the value of a field; None if it is absent, as an empty one in a ROCKETMQ header is.
    fn value<'a>(&'a self, frame: &Frame<'a>, name: &[u8]) -> Option<&'a [u8]> {
        let name_of = |field: &Field| &frame.header[field.name.clone()];
        let is_named = |field: &&Field| name_of(field)[0] == name[0] && name_of(field) == name;
        self.value_of(frame, self.fields.iter().find(is_named)?)
    }

    /// Return the value of the field of a kind.
    fn value_of_kind<'a>(&'a self, frame: &Frame<'a>, kind: Kind) -> Option<&'a [u8]> {
        self.value_of(frame, self.fields.iter().find(|field| field.kind == kind)?)
    }

    fn value_of<'a>(&'a self, frame: &Frame<'a>, field: &Field) -> Option<&'a [u8]> {
        let value = field.value.bytes(frame.header, &self.unescaped);
        (frame.form == Form::Json || !value.is_empty()).then_some(value)
    }

    /// Return whether `signature` is that of a request.
    fn is_signed(&self, frame: &Frame<'_>, key: &Hmac<Sha1>, signature: &[u8]) -> bool {
        let mut digest = key.clone();
        for field in self.order.iter().map(|index| &self.fields[*index]) {
            if field.kind != Kind::Signature {
                digest.update(field.value.bytes(frame.header, &self.unescaped));
            }
        }
        digest.update(frame.body);
        let digest: [u8; DIGEST_SIZE] = digest.finalize().into_bytes().into();
        is_equal(&base64(&digest), signature)
    }

    /// Set `subject` to bytes that are equal for requests that `permit` cannot distinguish.
    fn put_subject(&self, frame: &Frame<'_>, code: i64, names: &[Vec<u8>], subject: &mut Vec<u8>) {
        subject.clear();
        subject.extend_from_slice(&code.to_be_bytes());
        for name in names {
            let value = self.value(frame, name);
            subject.extend_from_slice(&value.map_or(-1, |value| value.len() as i64).to_be_bytes());
            subject.extend_from_slice(value.unwrap_or_default());
        }
    }

    /// Return whether a request is permitted; None if a text is not UTF-8, which headers that were read exclude.
    fn ask<'a, P: Permit>(
        &'a self,
        frame: &Frame<'a>,
        code: i64,
        names: &[Vec<u8>],
        permit: &mut P,
    ) -> Option<Result<bool, P::Error>> {
        let text = |value: Option<&'a [u8]>| value.map(std::str::from_utf8).transpose().ok();
        let values: Vec<_> = names.iter().map(|name| text(self.value(frame, name))).collect::<Option<_>>()?;
        let access_key = text(self.value_of_kind(frame, Kind::AccessKey))?;
        Some(permit.permit(access_key.unwrap_or_default(), code, &values))
    }

    /// Append a frame without the fields of its signature.
    fn append(&self, frame: &Frame<'_>, header: &Header, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX_SIZE]);
        let fields_start = out.len() + header.fields.start;
        out.extend_from_slice(&frame.header[..header.fields.start]);
        // Fields next to each other are copied together, with the commas of JSON between them.
        for kept in self.fields.split(|field| field.kind != Kind::Other) {
            if let (Some(first), Some(last)) = (kept.first(), kept.last()) {
                if frame.form == Form::Json && out.len() > fields_start {
                    out.push(b',');
                }
                out.extend_from_slice(&frame.header[first.whole.start..last.whole.end]);
            }
        }
        if frame.form == Form::Binary {
            let size = out.len() - fields_start;
            out[fields_start - 4..fields_start].copy_from_slice(&(size as u32).to_be_bytes());
        }
        out.extend_from_slice(&frame.header[header.fields.end..]);
        let header_size = (out.len() - start - PREFIX_SIZE) as u32;
        out.extend_from_slice(frame.body);
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        out[start + 4..start + PREFIX_SIZE].copy_from_slice(&header_size.to_be_bytes());
        out[start + 4] = frame.form.number();
    }
}

fn base64(digest: &[u8; DIGEST_SIZE]) -> [u8; SIGNATURE_SIZE] {
    let mut text = [b'='; SIGNATURE_SIZE];
    for (bytes, characters) in digest.chunks(3).zip(text.chunks_exact_mut(4)) {
        let byte = |index: usize| u32::from(bytes.get(index).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (index, character) in characters.iter_mut().take(bytes.len() + 1).enumerate() {
            *character = BASE64[(bits >> (18 - 6 * index) & 63) as usize];
        }
    }
    text
}

/// Compare in a time that does not depend on where the texts differ.
fn is_equal(expected: &[u8; SIGNATURE_SIZE], received: &[u8]) -> bool {
    let Ok(received) = <&[u8; SIGNATURE_SIZE]>::try_from(received) else { return false };
    let difference = expected.iter().zip(received).fold(0, |difference, (a, b)| difference | (a ^ b));
    std::hint::black_box(difference) == 0
}
