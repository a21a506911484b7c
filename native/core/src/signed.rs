//! Signed requests of a turn: the signatures of a run of frames are verified, and removed from them.
//!
//! ```text
//! frame → extFields → access key → HMAC-SHA1 of the sorted values and the body → permit → frame without signature
//! ```
//!
//! A run ends before the first frame that is unusual in any way, has another access key than the first, a wrong signature, or is
//! not permitted: the handler of single requests serves that one. Nothing is refused here. [ariane.kernels.signed_runs]

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use crate::header::{frame_at, Frame, PREFIX_SIZE};
use crate::signed_header::{SignedHeader, SignedHeaders};

const DIGEST_SIZE: usize = 20;
const SIGNATURE_SIZE: usize = 28;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Verifies runs of signed requests.
pub struct SignatureChecker {
    keys: HashMap<Vec<u8>, Hmac<Sha1>>, // keyed digests by access key
    headers: SignedHeaders,
    sender: Sender,
    subjects: Subjects,
    content: Vec<u8>, // that is signed
    pub run: SignedRun,
}

/// Permitted requests. Both lists have an item for each, and one for the end of the last.
#[derive(Debug, Default)]
pub struct SignedRun {
    pub positions: Vec<usize>, // of the frames in the data
    pub starts: Vec<usize>,    // of the same frames without access keys, signatures and tokens
    heads: Vec<Head>,
    kept: Vec<Range<usize>>, // parts of the data, for all frames
}

/// The start of a frame without signature.
#[derive(Debug)]
struct Head {
    prefix: [u8; PREFIX_SIZE],
    kept: usize,                           // end of its parts in `SignedRun::kept`
    fields_size: Option<(usize, [u8; 4])>, // of a ROCKETMQ header, and where it is in the frame
}

/// Who sends the requests of a run.
#[derive(Default)]
struct Sender {
    access_key: Vec<u8>, // empty: their requests have none
    key: Option<Hmac<Sha1>>,
}

/// What the requests of a run are about: code and values that they were permitted with.
#[derive(Default)]
struct Subjects {
    last: Vec<u8>,
    next: Vec<u8>,
    permitted: HashSet<Vec<u8>>,
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
        let fields = fields.into_iter().map(|(code, fields)| (code, names(fields)));
        Self {
            keys: keys.collect(),
            headers: SignedHeaders::new(fields.collect()),
            sender: Sender::default(),
            subjects: Subjects::default(),
            content: Vec::new(),
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
        let Self { keys, headers, sender, subjects, content, run } = self;
        run.clear(position);
        subjects.clear();
        for number in 0..frames_max {
            let position = run.position();
            let frame = frame_at(data, position).filter(|frame| frame.header.len() <= header_max);
            let Some(frame) = frame else { break };
            let Some(header) = headers.of(&frame) else { break };
            let access_key = header.access_key(&frame);
            if number == 0 {
                sender.set(access_key.unwrap_or_default(), keys);
            }
            if !sender.has_signed(&frame, header, access_key, content) {
                break;
            }
            match subjects.permit(&frame, header, access_key, permit) {
                Some(Ok(true)) => run.push(&frame, position + PREFIX_SIZE, header),
                Some(Err(error)) => return Err(error),
                Some(Ok(false)) | None => break,
            }
        }
        Ok(())
    }
}

impl Sender {
    fn set(&mut self, access_key: &[u8], keys: &HashMap<Vec<u8>, Hmac<Sha1>>) {
        self.access_key.clear();
        self.access_key.extend_from_slice(access_key);
        self.key = keys.get(access_key).filter(|_| !access_key.is_empty()).cloned();
    }

    /// Return whether a request is of this sender: it has the access key and the right signature, or neither has an access key.
    fn has_signed(
        &self,
        frame: &Frame<'_>,
        header: &SignedHeader,
        access_key: Option<&[u8]>,
        content: &mut Vec<u8>,
    ) -> bool {
        let Some(access_key) = access_key else { return self.access_key.is_empty() };
        let (Some(key), Some(signature)) = (&self.key, header.signature(frame)) else { return false };
        if access_key != self.access_key {
            return false;
        }
        content.clear();
        header.put_signed(frame, content);
        let digest = key.clone().chain_update(content).chain_update(frame.body).finalize();
        is_equal(&base64(&digest.into_bytes().into()), signature)
    }
}

impl Subjects {
    fn clear(&mut self) {
        self.last.clear();
        self.permitted.clear();
    }

    /// Return whether a request is permitted; None if a text is not UTF-8, which headers that were read exclude.
    fn permit<P: Permit>(
        &mut self,
        frame: &Frame<'_>,
        header: &SignedHeader,
        access_key: Option<&[u8]>,
        permit: &mut P,
    ) -> Option<Result<bool, P::Error>> {
        let Self { last, next, permitted } = self;
        next.clear();
        next.extend_from_slice(&header.code.to_be_bytes());
        for value in header.subject(frame) {
            next.extend_from_slice(&value.map_or(-1, |value| value.len() as i64).to_be_bytes());
            next.extend_from_slice(value.unwrap_or_default());
        }
        // No subject is empty: each has a code.
        if next != last {
            if !permitted.contains(next) {
                let values = header.subject(frame).map(|value| value.map(std::str::from_utf8).transpose().ok());
                let values: Vec<_> = values.collect::<Option<_>>()?;
                let access_key = std::str::from_utf8(access_key.unwrap_or_default()).ok()?;
                let is_permitted = permit.permit(access_key, header.code, &values);
                if !matches!(is_permitted, Ok(true)) {
                    return Some(is_permitted);
                }
                permitted.insert(next.clone());
            }
            std::mem::swap(next, last);
        }
        Some(Ok(true))
    }
}

impl SignedRun {
    fn clear(&mut self, position: usize) {
        self.positions.clear();
        self.positions.push(position);
        self.starts.clear();
        self.starts.push(0);
        self.heads.clear();
        self.kept.clear();
    }

    /// Return where the run ends in the data.
    fn position(&self) -> usize {
        self.positions.last().copied().unwrap_or_default()
    }

    /// Return the bytes of all frames without signatures.
    pub fn size(&self) -> usize {
        self.starts.last().copied().unwrap_or_default()
    }

    /// Add a frame, whose header is at this position of the data.
    fn push(&mut self, frame: &Frame<'_>, header_at: usize, header: &SignedHeader) {
        let in_data = |part: &Range<usize>| header_at + part.start..header_at + part.end;
        self.kept.extend(header.kept.iter().map(in_data));
        let header_size: usize = header.kept.iter().map(Range::len).sum();
        if let Some(last) = self.kept.last_mut() {
            last.end = frame.end; // the body follows the header
        }
        let mut prefix = [0; PREFIX_SIZE];
        prefix[..4].copy_from_slice(&((4 + header_size + frame.body.len()) as u32).to_be_bytes());
        prefix[4..].copy_from_slice(&(header_size as u32).to_be_bytes());
        prefix[4] = frame.form.number();
        let fields_size = header.size_at.map(|at| {
            let size = header_size - (at + 4);
            (PREFIX_SIZE + at, (size as u32).to_be_bytes())
        });
        self.heads.push(Head { prefix, kept: self.kept.len(), fields_size });
        self.positions.push(frame.end);
        self.starts.push(self.size() + PREFIX_SIZE + header_size + frame.body.len());
    }

    /// Write the frames without signatures to `out`, which has their size.
    pub fn write(&self, data: &[u8], out: &mut [u8]) {
        let mut first = 0;
        for (head, start) in self.heads.iter().zip(&self.starts) {
            let mut position = start + PREFIX_SIZE;
            out[*start..position].copy_from_slice(&head.prefix);
            for part in &self.kept[first..head.kept] {
                out[position..position + part.len()].copy_from_slice(&data[part.clone()]);
                position += part.len();
            }
            first = head.kept;
            if let Some((at, size)) = head.fields_size {
                out[start + at..start + at + 4].copy_from_slice(&size);
            }
        }
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
