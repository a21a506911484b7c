//! Records as columns: what is found, what is left to the caller, and that no bytes make it fail.

use ariane_native::arrow::Texts;
use ariane_native::columns::{ColumnDecoder, Fault, Findings};
use ariane_native::layout::{find_all, find_chain, parts_at};
use ariane_native::record::Record;

const HOST: [u8; 8] = [10, 0, 0, 255, 0, 0, 0x2a, 0x9f];
const ALL: [&str; 30] = [
    "topic",
    "queue_id",
    "queue_offset",
    "commit_log_offset",
    "message_id",
    "offset_message_id",
    "keys",
    "tags",
    "properties",
    "body",
    "born_timestamp",
    "store_timestamp",
    "born_host",
    "store_host",
    "reconsume_times",
    "sys_flag",
    "flag",
    "unique_key",
    "store_size",
    "delay_level",
    "deliver_at",
    "real_topic",
    "real_queue_id",
    "transaction_state",
    "transaction_id",
    "prepared_transaction_offset",
    "check_times",
    "producer_group",
    "retry_topic",
    "origin_message_id",
];

fn record(offset: i64, body: &[u8], properties: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let record = Record {
        topic: "T",
        body,
        properties,
        queue_id: 1,
        queue_offset: 2,
        offset,
        flag: 0,
        sys_flag: 0,
        born_ms: 5,
        born_host: HOST,
        store_ms: 6,
        store_host: HOST,
        reconsume_times: 0,
    };
    record.append_to(&mut bytes).unwrap();
    bytes
}

fn log() -> Vec<u8> {
    let mut data = record(0, b"first", "KEYS\u{1}a b\u{2}DELAY\u{1}3");
    data.extend(record(data.len() as i64, b"", "TAGS\u{1}x\u{2}TAGS\u{1}y"));
    data.extend(record(data.len() as i64, b"third", "UNIQ_KEY\u{1}U\u{2}TIMER_DELAY_SEC\u{1}2"));
    data
}

fn decoder(columns: &[&str]) -> ColumnDecoder {
    let columns: Vec<String> = columns.iter().map(|name| name.to_string()).collect();
    ColumnDecoder::new(&columns).unwrap()
}

fn texts(texts: &Texts) -> Vec<&str> {
    let ends: Vec<_> = texts.offsets.chunks_exact(4).map(|end| i32::from_ne_bytes(end.try_into().unwrap())).collect();
    ends.windows(2).map(|ends| std::str::from_utf8(&texts.data[ends[0] as usize..ends[1] as usize]).unwrap()).collect()
}

/// Decode one column of all records of `data`.
fn column(name: &str, data: &[u8]) -> (usize, Vec<String>) {
    let mut decoder = decoder(&[name]);
    decoder.decode(data, &find_all(data).unwrap(), true).unwrap();
    let (column, _) = decoder.columns().next().unwrap();
    (column.nulls, texts(&column.texts).into_iter().map(String::from).collect())
}

#[test]
fn texts_come_from_their_parts() {
    let data = log();
    assert_eq!(column("body", &data), (0, ["first", "", "third"].map(String::from).to_vec()));
    assert_eq!(column("keys", &data), (2, ["a b", "", ""].map(String::from).to_vec()));
    assert_eq!(column("tags", &data), (2, ["", "y", ""].map(String::from).to_vec()));
    assert_eq!(column("born_host", &data).1[0], "10.0.0.255:10911");
    assert_eq!(column("message_id", &data).1[0], "0A0000FF00002A9F0000000000000000");
    assert_eq!(column("message_id", &data).1[2], "U");
    assert_eq!(column("transaction_state", &data).1, ["none"; 3]);
}

#[test]
fn a_repeated_name_has_its_last_value() {
    let many: String = (0..50).map(|number| format!("n{}\u{1}v{number}\u{2}", number % 40)).collect();
    let data = [record(0, b"", "a\u{1}1\u{2}b\u{1}2\u{2}a\u{1}3"), record(0, b"", &many)].concat();
    let mut decoder = decoder(&["properties"]);
    decoder.decode(&data, &find_all(&data).unwrap(), false).unwrap();
    let (column, is_map) = decoder.columns().next().unwrap();
    assert!(is_map);
    assert_eq!(texts(&column.names)[..3], ["a", "b", "n0"]);
    assert_eq!(texts(&column.values)[..3], ["3", "2", "v40"]);
    assert_eq!(texts(&column.values).len(), 42);
}

#[test]
fn damaged_bodies_are_reported() {
    let mut data = [log(), record(0, b"body", "a\u{1}b\0")].concat();
    data[88] ^= 1;
    let starts = find_all(&data).unwrap();
    let findings = decoder(&["queue_id"]).decode(&data, &starts, true).unwrap();
    assert_eq!(findings, Findings { has_compressed: false, faults: vec![(0, Fault::Crc), (3, Fault::Torn)] });
    assert_eq!(decoder(&["body"]).decode(&data, &starts, false).unwrap(), Findings::default());
}

#[test]
fn unusual_records_are_left_to_the_caller() {
    let data = log();
    let starts = find_all(&data).unwrap();
    let mut ipv6 = data.clone();
    ipv6[39] = 0x10;
    assert_eq!(decoder(&["queue_id"]).decode(&ipv6, &starts, false), None);
    let mut text = data.clone();
    text[starts[1] - 1] = 0xff;
    assert_eq!(decoder(&["keys"]).decode(&text, &starts, false), None);
    assert!(decoder(&["topic"]).decode(&text, &starts, false).is_some());
    assert_eq!(decoder(&["topic"]).decode(&data, &[1], false), None);
    assert_eq!(decoder(&["topic"]).decode(&data, &[usize::MAX], false), None);
    assert_eq!(ColumnDecoder::new(&["topic".into(), "broker".into()]).unwrap_err(), "broker");
}

#[test]
fn a_chain_ends_at_what_is_not_in_its_place() {
    let data = log();
    let starts = find_all(&data).unwrap();
    assert_eq!(find_chain(&data, 0, data.len()).starts, starts);
    assert_eq!(find_chain(&data, 0, data.len() - 1).starts, starts[..2]);
    assert_eq!(find_chain(&data, 1, data.len()).size, 0);
    assert_eq!(find_chain(&data[..50], 0, 50).size, 0);
    let moved = [record(0, b"", ""), record(0, b"", "")].concat();
    assert_eq!(find_chain(&moved, 0, moved.len()).starts, [0]);
    assert_eq!(find_all(&data[..data.len() - 1]), None);
    assert!(!find_chain(&data, 0, data.len()).may_have_replacement);
    let mut replaced = data.clone();
    replaced[16..20].copy_from_slice(b"HOLE");
    replaced[39] = 12;
    assert!(find_chain(&replaced, 0, data.len()).may_have_replacement);
}

#[test]
fn damaged_bytes_are_decoded_or_left_to_the_caller() {
    let data = log();
    let starts = find_all(&data).unwrap();
    let mut decoder = decoder(&ALL);
    for at in 0..data.len() {
        for value in [0, 1, 2, 0x10, 0x20, 0x7f, 0x80, 0xff] {
            let mut damaged = data.clone();
            damaged[at] = value;
            let chain = find_chain(&damaged, 0, damaged.len());
            assert!(chain.starts.iter().all(|start| parts_at(&damaged, *start).is_some()));
            if decoder.decode(&damaged, &starts, true).is_some() {
                assert!(decoder.columns().all(|(column, _)| column.nulls <= starts.len()));
            }
        }
    }
}
