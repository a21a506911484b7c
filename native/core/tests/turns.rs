//! What a run of sends contains, and which frames end it.

mod frames;

use ariane_native::index::{key_hash, topic_hash};
use ariane_native::turn::{LogEnd, FRAMES_MAX};
use frames::{check, encode, encoder, entry, framed, Send, BORN_HOST, LOG_END, UNIQUE_KEY};

const STORED: &str =
    "UNIQ_KEY\u{1}7F00000100002A139A55000000000001\u{2}TAGS\u{1}TagA\u{2}KEYS\u{1}k1 k2\u{2}CLUSTER\u{1}C1";

/// Return the number of sends that are encoded, with one usual send before and one after `frame`.
fn plain(frame: &[u8]) -> bool {
    let (before, after) = (Send::new(1, 0).json(), Send::new(2, 0).json());
    let data = [&before[..], frame, &after[..]].concat();
    let mut encoder = encoder();
    let run = encode(&mut encoder, &data);
    check(run, &data);
    match run.sends {
        1 => assert_eq!(run.position, before.len()),
        3 => assert_eq!(run.position, data.len()),
        other => panic!("{other} sends"),
    }
    run.sends == 3
}

#[test]
fn a_usual_send_becomes_a_record_an_entry_keys_and_a_response() {
    for frame in [Send::new(7, 3).json(), Send::new(7, 3).v1().json()] {
        let mut encoder = encoder();
        let run = encode(&mut encoder, &frame);
        assert_eq!((run.position, run.sends, check(run, &frame)), (frame.len(), 1, 1));
        let tail = [b"body\x01T\x00", &[STORED.len() as u8][..], STORED.as_bytes()].concat();
        assert_eq!(run.records.len(), 88 + tail.len());
        assert_eq!(run.records[88..], tail);
        assert_eq!(run.records[12..28], [0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 44]);
        assert_eq!(run.records[48..56], BORN_HOST);
        let [queue] = &run.queues[..] else { panic!() };
        assert_eq!((&run.topics[queue.topic].name[..], queue.queue_id, queue.sends), ("T", 3, 1));
        assert_eq!(queue.entries[12..], 2598919i64.to_be_bytes());
        let keys: Vec<u8> = [UNIQUE_KEY, "k1", "k2"]
            .iter()
            .flat_map(|key| [&key_hash(topic_hash("T"), key).to_be_bytes()[..], &LOG_END.offset.to_be_bytes()].concat())
            .collect();
        assert_eq!(run.keys, keys);
        let response = concat!(
            r#"{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","#,
            r#""msgId":"7F00000100002A9F0000000000001000","queueId":"3","queueOffset":"300"},"flag":1,"#,
            r#""language":"PYTHON","opaque":7,"serializeTypeCurrentRPC":"JSON","version":401}"#
        );
        assert_eq!(run.responses, framed(0, response.as_bytes(), b""));
    }
}

#[test]
fn a_binary_header_has_a_binary_response() {
    let frame = Send::new(-7, 1).binary();
    let mut encoder = encoder();
    let run = encode(&mut encoder, &frame);
    assert_eq!((run.sends, check(run, &frame)), (1, 1));
    let mut header = vec![0, 0, 3, 1, 0x91];
    header.extend((-7i32).to_be_bytes());
    header.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    let mut fields = Vec::new();
    for (name, value) in [
        ("MSG_REGION", "DefaultRegion"),
        ("TRACE_ON", "true"),
        ("msgId", "7F00000100002A9F0000000000001000"),
        ("queueId", "1"),
        ("queueOffset", "100"),
    ] {
        fields.extend([0, name.len() as u8]);
        fields.extend(name.as_bytes());
        fields.extend([0, 0, 0, value.len() as u8]);
        fields.extend(value.as_bytes());
    }
    header.extend((fields.len() as u32).to_be_bytes());
    header.extend(fields);
    assert_eq!(run.responses, framed(1, &header, b""));
}

#[test]
fn a_batch_becomes_records_with_one_response() {
    let body = [entry(5, b"one", "TAGS\u{1}a\u{2}x\u{1}1"), entry(6, b"two", "")].concat();
    let frame = Send::new(1, 0).with("m", "true").with("i", "x\u{1}2\u{2}WAIT\u{1}true").body(&body).json();
    let mut encoder = encoder();
    let run = encode(&mut encoder, &frame);
    assert_eq!((run.sends, check(run, &frame)), (1, 2));
    let text = String::from_utf8_lossy(&run.records);
    assert!(text.contains("TAGS\u{1}a\u{2}x\u{1}2\u{2}WAIT\u{1}true\u{2}CLUSTER\u{1}C1"));
    assert!(text.ends_with("x\u{1}2\u{2}WAIT\u{1}true\u{2}CLUSTER\u{1}C1"));
    let response = String::from_utf8_lossy(&run.responses);
    let second = LOG_END.offset + i64::from(i32::from_be_bytes(*run.records.first_chunk().unwrap()));
    assert!(
        response.contains(&format!("7F00000100002A9F0000000000001000,7F00000100002A9F{second:016X}")),
        "{response}"
    );
}

#[test]
fn a_one_way_send_has_no_response() {
    let mut send = Send::new(1, 0);
    send.flag = 2;
    let mut encoder = encoder();
    let run = encode(&mut encoder, &send.json());
    assert_eq!((run.sends, run.responses.len()), (1, 0));
}

#[test]
fn usual_variations_are_plain() {
    let send = || Send::new(5, 0);
    for (name, value) in [
        ("i", ""),
        ("i", "a\u{1}b\u{1}c\u{2}"),
        ("i", "no pair"),
        ("i", "q\u{1}\"\\<é😀"),
        ("j", "3"),
        ("l", "16"),
        ("m", "false"),
        ("n", "unknown"),
        ("h", "-2147483648"),
        ("g", "-1"),
        ("f", "49"),
        ("a", ""),
        ("z\u{e9}", "é"),
    ] {
        assert!(plain(&send().with(name, value).json()), "{name} {value:?}");
        assert!(plain(&send().with(name, value).binary()) || name == "a", "{name} {value:?}");
    }
    for name in ["i", "j", "k", "l", "m"] {
        assert!(plain(&send().without(name).json()));
        assert!(plain(&send().without(name).binary()));
    }
    assert!(plain(&send().v1().binary()));
    assert!(plain(&send().body(b"").json()));
    let header = send().json_header().replace(r#""language":"JAVA""#, r#""language":null,"remark":null"#);
    assert!(plain(&framed(0, header.as_bytes(), b"")));
}

#[test]
fn unusual_fields_end_the_run() {
    for (name, value) in [
        ("b", "unknown topic"),
        ("b", ""),
        ("e", "-1"),
        ("e", "4"),
        ("e", "2147483648"),
        ("d", "x"),
        ("d", "+4"),
        ("e", " 1"),
        ("e", "1.0"),
        ("g", "9223372036854775808"),
        ("f", "4"),
        ("f", "8"),
        ("f", "-1"),
        ("k", "1"),
        ("l", "null"),
        ("m", "TRUE"),
        ("i", "DELAY\u{1}3"),
        ("i", "TRAN_MSG\u{1}true"),
        ("i", "WAIT\u{1}false"),
        ("i", "CLUSTER\u{1}x"),
        ("i", "a\u{1}1\u{2}a\u{1}2"),
        ("m", "true"), // the body is not a batch
    ] {
        assert!(!plain(&Send::new(5, 0).with(name, value).json()), "{name} {value:?}");
        assert!(!plain(&Send::new(5, 0).with(name, value).binary()), "{name} {value:?}");
    }
    let long = "é".repeat(272);
    for name in ["a", "c"] {
        assert!(!plain(&Send::new(5, 0).with(name, &long).json()));
        assert!(plain(&Send::new(5, 0).with(name, &long[2..]).json()));
    }
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        assert!(!plain(&Send::new(5, 0).without(name).json()));
        assert!(!plain(&Send::new(5, 0).without(name).binary()));
    }
    let mixed = Send::new(5, 0).v1().with("a", "second name of the group");
    assert!(!plain(&mixed.json()) && !plain(&mixed.binary()));
}

#[test]
fn unusual_headers_end_the_run() {
    let send = Send::new(5, 0);
    for (old, new) in [
        (r#""flag":0"#, r#""flag":1"#),
        (r#""flag":0"#, r#""flag":0.0"#),
        (r#""flag":0"#, r#""flag":"0""#),
        (r#""flag":0"#, r#""flag":0,"flag":0"#),
        (r#""version":401"#, r#""version":401,"version":401"#),
        (r#""version":401"#, r#""version":401,"extra":1"#),
        (r#""version":401"#, r#""version":401,"code":310"#),
        (r#""version":401"#, r#""version":401,"remark":"x""#),
        (r#""version":401"#, r#""version":401,"extFields":{"a":"b"}"#),
        (r#""version":401}"#, r#""version":401"#),
        (r#""version":401}"#, r#""version":401} "#),
        (r#""version":401}"#, r#""version":401}}"#),
        (r#""version":401"#, r#""version":99999999999"#),
        (r#""code":310"#, r#""code":311"#),
        (r#""code":310"#, r#""code":0310"#),
        (r#"{"code""#, r#"{ "code""#),
        (r#""b":"T""#, r#""b":"T","b":"T""#),
        (r#""b":"T""#, r#""b":5"#),
        (r#""b":"T""#, r#""b":null"#),
        (r#""b":"T""#, r#""\u0062":"T""#),
        (r#""k":"false""#, r#""k":"false","x":"\ud83d\ude00""#),
        (r#""opaque":5,"#, ""),
    ] {
        let header = send.json_header();
        let changed = header.replace(old, new);
        assert_ne!(header, changed);
        assert!(!plain(&framed(0, changed.as_bytes(), b"")), "{new}");
    }
    assert!(!plain(&framed(0, b"", b"")));
    assert!(!plain(&framed(1, b"", b"")));
    assert!(!plain(&framed(2, send.json_header().as_bytes(), b"")));
    let mut invalid = send.json();
    let place = invalid.windows(4).position(|window| window == b"TagA").unwrap();
    invalid[place] = 0xff;
    assert!(!plain(&invalid));
    let mut invalid = send.binary();
    let place = invalid.windows(4).position(|window| window == b"TagA").unwrap();
    invalid[place] = 0xff;
    assert!(!plain(&invalid));
}

#[test]
fn sizes_are_bounded() {
    let send = || Send::new(5, 0);
    assert!(plain(&send().body(&[0; 4000]).json()));
    assert!(!plain(&send().body(&[0; 4001]).json()));
    let fits = "x\u{1}".to_owned() + &"v".repeat(32767 - 2 - "\u{2}CLUSTER\u{1}C1".len());
    assert!(plain(&send().with("i", &fits).json()));
    assert!(!plain(&send().with("i", &(fits + "v")).json()));
    assert!(!plain(&send().with("n", &"x".repeat(64 * 1024)).json()));
    for batch in [vec![], entry(0, b"", "DELAY\u{1}1"), [entry(0, b"", ""), vec![0]].concat()] {
        assert!(!plain(&send().with("m", "true").body(&batch).json()));
    }
}

#[test]
fn an_incomplete_frame_ends_the_run() {
    let frame = Send::new(5, 0).json();
    let mut encoder = encoder();
    for size in 0..frame.len() {
        let run = encode(&mut encoder, &frame[..size]);
        assert_eq!((run.position, run.sends), (0, 0));
    }
    for length in [0u32, 3, 0x7fff_ffff, 0xffff_ffff, 16 * 1024 * 1024 - 3] {
        let data = [&length.to_be_bytes()[..], &frame[4..]].concat();
        assert_eq!(encode(&mut encoder, &data).sends, 0);
    }
    let next_offset = |_: &str, _| Ok::<i64, ()>(0);
    assert_eq!(encoder.encode(&frame, frame.len() + 100, BORN_HOST, LOG_END, next_offset).unwrap().sends, 0);
    assert_eq!(encoder.encode(&frame, usize::MAX, BORN_HOST, LOG_END, next_offset).unwrap().sends, 0);
}

#[test]
fn a_run_ends_where_the_log_has_no_room() {
    let frame = Send::new(5, 0).json();
    let data = frame.repeat(3);
    let mut encoder = encoder();
    let size = encode(&mut encoder, &frame).records.len() as i64;
    let next_offset = |_: &str, _| Ok::<i64, ()>(0);
    for (room, sends) in [(-1, 0), (0, 0), (size - 1, 0), (size, 1), (3 * size - 1, 2), (3 * size, 3)] {
        let log_end = LogEnd { room, ..LOG_END };
        let run = encoder.encode(&data, 0, BORN_HOST, log_end, next_offset).unwrap();
        assert_eq!((run.sends, run.records.len() as i64), (sends, sends as i64 * size));
    }
    let log_end = LogEnd { offset: i64::MAX - 1, ..LOG_END };
    assert_eq!(encoder.encode(&data, 0, BORN_HOST, log_end, next_offset).unwrap().sends, 1);
}

#[test]
fn a_queue_is_asked_for_once() {
    let data: Vec<u8> = (0..FRAMES_MAX as i32 + 5).flat_map(|opaque| Send::new(opaque, opaque % 3).json()).collect();
    let (mut asked, mut encoder) = (Vec::new(), encoder());
    let run = encoder.encode(&data, 0, BORN_HOST, LOG_END, |topic, queue_id| {
        asked.push((topic.to_owned(), queue_id));
        Ok::<_, ()>(i64::MAX - 1_000)
    });
    assert_eq!(run.unwrap().sends, FRAMES_MAX);
    assert_eq!(asked, [0, 1, 2].map(|queue_id| ("T".to_owned(), queue_id)));
}

#[test]
fn an_error_of_the_caller_ends_everything() {
    let mut encoder = encoder();
    let result = encoder.encode(&Send::new(1, 0).json(), 0, BORN_HOST, LOG_END, |_, _| Err("closed"));
    assert_eq!(result.unwrap_err(), "closed");
    let run = encoder.encode(&Send::new(1, 0).json(), 0, BORN_HOST, LOG_END, |_, _| Ok::<_, ()>(i64::MAX));
    assert_eq!(run.unwrap().sends, 0);
}
