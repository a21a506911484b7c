//! Frames as clients write them, and the encoder that the tests give them to.
#![allow(dead_code)] // each test program uses a part

use std::convert::Infallible;

use ariane_native::run::Run;
use ariane_native::turn::{LogEnd, SendEncoder, Settings};

pub const BORN_HOST: [u8; 8] = [10, 0, 0, 9, 0, 0, 0x12, 0x34];
pub const STORE_HOST: [u8; 8] = [127, 0, 0, 1, 0, 0, 0x2a, 0x9f];
pub const UNIQUE_KEY: &str = "7F00000100002A139A55000000000001";
pub const LOG_END: LogEnd = LogEnd { offset: 4096, room: 1 << 30, store_ms: 1_700_000_000_123 };
pub const LONG_NAMES: [&str; 13] = [
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
    "maxReconsumeTimes",
    "batch",
];

pub fn encoder() -> SendEncoder {
    SendEncoder::new(Settings {
        store_host: STORE_HOST,
        cluster: "C1".into(),
        region: "DefaultRegion".into(),
        trace_on: true,
        header_max: 64 * 1024,
        body_max: 4000,
        is_indexed: true,
        exceptional: vec!["DELAY".into(), "TRAN_MSG".into()],
    })
}

/// Return the run of `data`; every queue of topic T from 0 to 3 exists, and its next number is its id times 100.
pub fn encode<'a>(encoder: &'a mut SendEncoder, data: &[u8]) -> &'a Run {
    let next_offset = |topic: &str, queue_id: i32| {
        Ok::<_, Infallible>(if topic == "T" && queue_id < 4 { i64::from(queue_id) * 100 } else { -1 })
    };
    match encoder.encode(data, 0, BORN_HOST, LOG_END, next_offset) {
        Ok(run) => run,
        Err(never) => match never {},
    }
}

/// A send, of which tests change a part.
#[derive(Clone)]
pub struct Send {
    pub code: i32,
    pub flag: i32,
    pub opaque: i32,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Send {
    pub fn new(opaque: i32, queue_id: i32) -> Self {
        let properties = format!("UNIQ_KEY\u{1}{UNIQUE_KEY}\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA\u{2}KEYS\u{1}k1 k2");
        let values =
            ["P", "T", "TBW102", "4", &queue_id.to_string(), "0", "1700000000000", "0", &properties, "0", "false"];
        let fields = ('a'..='k').zip(values).map(|(name, value)| (name.to_string(), value.to_owned())).collect();
        Self { code: 310, flag: 0, opaque, fields, body: b"body".to_vec() }
    }

    /// Replace or add a field.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.retain(|(other, _)| other != name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(other, _)| other != name);
        self
    }

    pub fn body(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self
    }

    /// Return the same send as SEND_MESSAGE.
    pub fn v1(mut self) -> Self {
        self.code = 10;
        for (name, _) in &mut self.fields {
            *name = LONG_NAMES[usize::from(name.as_bytes()[0] - b'a')].to_owned();
        }
        self
    }

    pub fn json_header(&self) -> String {
        let fields: Vec<_> =
            self.fields.iter().map(|(name, value)| format!("{}:{}", quoted(name), quoted(value))).collect();
        format!(
            r#"{{"code":{},"extFields":{{{}}},"flag":{},"language":"JAVA","opaque":{},"serializeTypeCurrentRPC":"JSON","version":401}}"#,
            self.code,
            fields.join(","),
            self.flag,
            self.opaque
        )
    }

    pub fn json(&self) -> Vec<u8> {
        framed(0, self.json_header().as_bytes(), &self.body)
    }

    pub fn binary(&self) -> Vec<u8> {
        let mut fields = Vec::new();
        for (name, value) in &self.fields {
            fields.extend((name.len() as u16).to_be_bytes());
            fields.extend(name.as_bytes());
            fields.extend((value.len() as u32).to_be_bytes());
            fields.extend(value.as_bytes());
        }
        let mut header = (self.code as u16).to_be_bytes().to_vec();
        header.extend([0, 1, 0x91]);
        header.extend(self.opaque.to_be_bytes());
        header.extend(self.flag.to_be_bytes());
        header.extend([0; 4]);
        header.extend((fields.len() as u32).to_be_bytes());
        header.extend(fields);
        framed(1, &header, &self.body)
    }
}

pub fn framed(form: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
    frame.extend((u32::from(form) << 24 | header.len() as u32).to_be_bytes());
    frame.extend(header);
    frame.extend(body);
    frame
}

/// Return a message of a batch.
pub fn entry(flag: i32, body: &[u8], properties: &str) -> Vec<u8> {
    let mut entry = vec![0; 12];
    entry.extend(flag.to_be_bytes());
    entry.extend((body.len() as u32).to_be_bytes());
    entry.extend(body);
    entry.extend((properties.len() as u16).to_be_bytes());
    entry.extend(properties.as_bytes());
    entry
}

fn quoted(text: &str) -> String {
    let escaped =
        text.replace('\\', "\\\\").replace('"', "\\\"").replace('\u{1}', "\\u0001").replace('\u{2}', "\\u0002");
    format!("\"{escaped}\"")
}

/// Check that all parts of a run fit together, whatever was encoded. Return the number of its records.
pub fn check(run: &Run, data: &[u8]) -> usize {
    assert!(run.position <= data.len());
    let (mut offset, mut sizes) = (LOG_END.offset, Vec::new());
    let mut rest = &run.records[..];
    while !rest.is_empty() {
        let size = i32::from_be_bytes(*rest.first_chunk().unwrap()) as usize;
        assert_eq!(rest[28..36], offset.to_be_bytes());
        sizes.push((offset, size));
        offset += size as i64;
        rest = &rest[size..];
    }
    let mut entries: Vec<_> = run.queues.iter().flat_map(|queue| queue.entries.chunks(20)).collect();
    entries.sort_unstable();
    let entries: Vec<_> = entries
        .iter()
        .map(|entry| {
            (
                i64::from_be_bytes(entry[..8].try_into().unwrap()),
                i32::from_be_bytes(entry[8..12].try_into().unwrap()) as usize,
            )
        })
        .collect();
    assert_eq!(entries, sizes);
    assert_eq!(run.queues.iter().map(|queue| queue.size).sum::<usize>(), run.records.len());
    assert_eq!(run.queues.iter().map(|queue| queue.sends).sum::<usize>(), run.sends);
    assert!(run.sends <= sizes.len() && run.sends <= ariane_native::turn::FRAMES_MAX);
    assert_eq!(run.keys.len() % 12, 0);
    let (mut responses, mut count) = (&run.responses[..], 0);
    while !responses.is_empty() {
        responses = &responses[4 + u32::from_be_bytes(*responses.first_chunk().unwrap()) as usize..];
        count += 1;
    }
    assert!(count <= run.sends);
    sizes.len()
}
