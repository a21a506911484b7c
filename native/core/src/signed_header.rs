//! Headers of signed requests: where their values are, and which bytes of them belong to the signature.
//!
//! `SignedHeaders` remembers headers by pattern, so most are compared instead of parsed. None means "not plain".

#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;

use crate::header::{read_i16, read_i32, Form, Frame};
use crate::json::{Cursor, Span, Unescaped};
use crate::pattern::{Pattern, PATTERNS};

const ACCESS_KEY: &[u8] = b"AccessKey";
const SIGNATURE: &[u8] = b"Signature";
const SECURITY_TOKEN: &[u8] = b"SecurityToken";
const UNIQUE_KEY_QUERY: &[u8] = b"_UNIQUE_KEY_QUERY"; // whether it is signed depends on the client
const NUMBER_MAX: i64 = 9_999_999_999; // of a member of a JSON header; the decoder of the request has its own limits

const BINARY_OPAQUE: Range<usize> = 5..9; // in a ROCKETMQ header
const BINARY_REMARK_AT: usize = 13;
const BINARY_FIELDS_AT: usize = 21;

/// Names of the fields that `permit` takes, by request code.
type Names = HashMap<i64, Vec<Vec<u8>>>;

/// What a field is for the signature.
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

/// A field of a header.
struct Field {
    name: Range<usize>,
    value: Span,
    whole: Range<usize>, // name and value with all that belongs to them
    kind: Kind,
}

/// Where the values of a header are. The same is true for all headers with its pattern.
#[derive(Default)]
pub struct SignedHeader {
    pattern: Pattern,
    form: Option<Form>,
    pub code: i64,
    fields: Vec<Field>,
    unescaped: Unescaped,
    order: Vec<usize>, // of the fields by name
    access_key: Option<usize>,
    signature: Option<usize>,
    subject: Vec<Option<usize>>, // fields that `permit` takes
    pub kept: Vec<Range<usize>>, // what remains without the signature
    pub size_at: Option<usize>,  // of the field with the bytes of all fields, in a ROCKETMQ header
}

/// The headers of a connection, by pattern.
pub struct SignedHeaders {
    names: Names,
    headers: [SignedHeader; PATTERNS],
}

impl SignedHeaders {
    pub fn new(names: Names) -> Self {
        Self { names, headers: Default::default() }
    }

    /// Return where the values of a header are; None if it is not plain.
    pub fn of(&mut self, frame: &Frame<'_>) -> Option<&SignedHeader> {
        let header = &mut self.headers[frame.header.len() % PATTERNS];
        if header.form == Some(frame.form) && header.pattern.matches(frame.header) {
            header.unescaped.decode_again(frame.header);
        } else {
            header.pattern.clear();
            header.read(frame, &self.names)?;
        }
        Some(header)
    }
}

impl SignedHeader {
    /// Read a header; None if it is not plain.
    fn read(&mut self, frame: &Frame<'_>, names: &Names) -> Option<()> {
        self.form = Some(frame.form);
        self.fields.clear();
        self.unescaped.clear();
        let header = frame.header;
        let (opaque, fields) = match frame.form {
            Form::Json => self.read_json(header)?,
            Form::Binary => (None, self.read_binary(header)?),
        };
        let names = names.get(&self.code)?;
        if !self.sort(header) {
            return None;
        }
        let find = |name: &[u8]| self.fields.iter().position(|field| header[field.name.clone()] == *name);
        (self.access_key, self.signature) = (find(ACCESS_KEY), find(SIGNATURE));
        self.subject = names.iter().map(|name| find(name)).collect();
        self.keep(header.len(), fields);
        self.pattern.set(header);
        match opaque {
            Some(number) => self.pattern.allow_number(number),
            None if frame.form == Form::Binary => self.pattern.allow_bytes(BINARY_OPAQUE),
            None => {}
        }
        let texts = self.fields.iter().filter_map(|field| field.value.source()).chain(self.unescaped.copied());
        for text in texts {
            self.pattern.allow_text(text, frame.form == Form::Json);
        }
        Some(())
    }

    /// Read the fields; return where the opaque and all fields are.
    fn read_json(&mut self, header: &[u8]) -> Option<(Option<Range<usize>>, Range<usize>)> {
        std::str::from_utf8(header).ok()?;
        let mut cursor = Cursor::new(header, 0);
        cursor.expect_text(br#"{"code":"#)?;
        self.code = cursor.int64()?;
        let (mut opaque, mut fields) = (None, None);
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
                    let start = cursor.position();
                    let number = cursor.int64()?;
                    if !(-NUMBER_MAX..=NUMBER_MAX).contains(&number) {
                        return None;
                    }
                    if member == b"opaque" {
                        opaque = Some(start..cursor.position());
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
        self.size_at = None;
        Some((opaque, fields?))
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

    fn read_binary(&mut self, header: &[u8]) -> Option<Range<usize>> {
        self.code = i64::from(read_i16(header, 0)?);
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
        self.size_at = Some(BINARY_FIELDS_AT - 4);
        Some(BINARY_FIELDS_AT..header.len())
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

    /// Set `kept` to what remains without the fields of the signature.
    fn keep(&mut self, size: usize, fields: Range<usize>) {
        let Self { kept, .. } = self;
        kept.clear();
        kept.push(0..fields.start);
        let is_json = self.form == Some(Form::Json);
        for group in self.fields.split(|field| field.kind != Kind::Other) {
            if let (Some(first), Some(last)) = (group.first(), group.last()) {
                let has_comma = is_json && kept.len() > 1; // before its first field
                kept.push(first.whole.start - usize::from(has_comma)..last.whole.end);
            }
        }
        kept.push(fields.end..size);
    }

    /// Return the access key of a request.
    pub fn access_key<'a>(&'a self, frame: &Frame<'a>) -> Option<&'a [u8]> {
        self.value(frame, self.access_key?)
    }

    /// Return the signature of a request.
    pub fn signature<'a>(&'a self, frame: &Frame<'a>) -> Option<&'a [u8]> {
        self.value(frame, self.signature?)
    }

    /// Return the values that `permit` takes.
    pub fn subject<'a>(&'a self, frame: &'a Frame<'a>) -> impl Iterator<Item = Option<&'a [u8]>> {
        self.subject.iter().map(|index| self.value(frame, (*index)?))
    }

    /// Return the value of a field; None if it is absent, as an empty one in a ROCKETMQ header is.
    fn value<'a>(&'a self, frame: &Frame<'a>, index: usize) -> Option<&'a [u8]> {
        let value = self.bytes(frame, index);
        (frame.form == Form::Json || !value.is_empty()).then_some(value)
    }

    fn bytes<'a>(&'a self, frame: &Frame<'a>, index: usize) -> &'a [u8] {
        self.fields[index].value.bytes(frame.header, &self.unescaped.bytes)
    }

    /// Append the values that are signed to `content`, in the order of their names.
    pub fn put_signed(&self, frame: &Frame<'_>, content: &mut Vec<u8>) {
        for index in self.order.iter().filter(|index| Some(**index) != self.signature) {
            content.extend_from_slice(self.bytes(frame, *index));
        }
    }
}
