//! Runs of records: what is derived from them, where they end, and that no bytes make them fail.

use ariane_native::record::Record;
use ariane_native::scan::{scan, Place, Times};

const HOST: [u8; 8] = [10, 0, 0, 255, 0, 0, 0x2a, 0x9f];
const ANYWHERE: Place = Place { offset: 0, room: 1 << 30, until: usize::MAX };

fn append(log: &mut Vec<u8>, topic: &str, queue_offset: i64, sys_flag: i32, store_ms: i64, properties: &str) {
    let record = Record {
        topic,
        body: b"body",
        properties,
        queue_id: 1,
        queue_offset,
        offset: log.len() as i64,
        flag: 0,
        sys_flag,
        born_ms: 5,
        born_host: HOST,
        store_ms,
        store_host: HOST,
        reconsume_times: 0,
    };
    record.append_to(log).unwrap();
}

fn log() -> Vec<u8> {
    let mut log = Vec::new();
    append(&mut log, "T", 7, 0, 20, "UNIQ_KEY\u{1}u\u{2}KEYS\u{1}a b\u{2}TAGS\u{1}TagA");
    append(&mut log, "U", 1, 4, 30, "KEYS\u{1}c"); // a half message: keys, but no entry
    append(&mut log, "T", 8, 8, 30, "");
    append(&mut log, "T", 9, 12, 25, "KEYS\u{1}d"); // rolled back: neither
    log
}

#[test]
fn entries_keys_and_times_are_those_of_the_records() {
    let log = log();
    let run = scan(&log, &ANYWHERE, true, true).unwrap();
    assert_eq!((run.size, run.count), (log.len(), 4));
    assert_eq!(run.times, Times { first: 20, last: 25, floor: 30, decreases: 1 });
    let queue = &run.queues[0];
    assert_eq!((run.queues.len(), queue.topic, queue.queue_id, queue.first), (1, &b"T"[..], 1, 7));
    assert!(queue.is_consecutive);
    assert_eq!(queue.entries.len(), 40);
    assert_eq!(queue.entries[12..20], 2598919i64.to_be_bytes());
    assert_eq!(run.keys.len(), 4 * 12);
    assert_eq!(run.key_times, [(3, 20), (1, 30)]);
    assert_eq!((run.commits.len(), run.rollbacks.len(), run.deliveries.len()), (1, 1, 0));
    assert!(scan(&log, &ANYWHERE, true, false).unwrap().keys.is_empty());
}

#[test]
fn a_run_ends_where_no_valid_record_begins() {
    let log = log();
    let first = i32::from_be_bytes(log[..4].try_into().unwrap()) as usize;
    let size = |log: &[u8], place: Place, check_crc| scan(log, &place, check_crc, true).map(|run| run.size);
    assert_eq!(size(&log, Place { until: 1, ..ANYWHERE }, true), Some(first));
    assert_eq!(size(&log, Place { room: first as i64 + 8, ..ANYWHERE }, true), Some(first));
    assert_eq!(size(&log, Place { room: first as i64 + 7, ..ANYWHERE }, true), None);
    assert_eq!(size(&log, Place { offset: 1, ..ANYWHERE }, true), None);
    assert_eq!(size(&log[..log.len() - 1], ANYWHERE, true), Some(log.len() - 102));
    let mut damaged = log.clone();
    damaged[first + 88] ^= 1;
    assert_eq!(size(&damaged, ANYWHERE, true), Some(first));
    assert_eq!(size(&damaged, ANYWHERE, false), Some(log.len()));
}

#[test]
fn no_damage_makes_a_scan_fail() {
    let log = log();
    for position in 0..log.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = log.clone();
            damaged[position] = value;
            for place in [ANYWHERE, Place { offset: i64::MAX - 100, room: i64::MAX, until: 500 }] {
                for check_crc in [false, true] {
                    let size = scan(&damaged, &place, check_crc, true).map_or(0, |run| run.size);
                    assert!(size <= damaged.len());
                }
            }
        }
    }
}
