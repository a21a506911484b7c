//! Random damage to frames: whatever arrives, nothing panics and the parts of a run fit together.
//!
//! Runs for ARIANE_FUZZ_S seconds, one without it; ARIANE_FUZZ_SEED repeats a run. The comparison with the Python
//! implementation and with the handler of single sends is in tests/property/test_send_turn_twins.py.

mod frames;

use std::time::{Duration, Instant};

use frames::{check, encode, encoder, entry, framed, Send, BORN_HOST, LOG_END};

/// SplitMix64: enough for choosing places.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Return a number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

const TOKENS: [&[u8]; 34] = [
    b"\"",
    b"\\",
    b"\\u0001",
    b"\\u0002",
    b"\\u00",
    b"\\ud83d\\ude00",
    b"\\ud800",
    b"\xed\xa0\x80",
    b"\xff",
    b"\xc3",
    b"{",
    b"}",
    b",",
    b":",
    b"null",
    b"true",
    b"0",
    b"-0",
    b"2147483648",
    b"-9223372036854775809",
    b"1e5",
    b"\"b\":\"T\",",
    b"\"flag\":2,",
    b"\"remark\":null,",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x00",
    b"\x01",
    b"\x02",
    b"CLUSTER",
    b"WAIT\\u0001false",
    b"KEYS\\u0001a a b",
    b"DELAY\\u00011",
];

fn random_send(rng: &mut Rng) -> Vec<u8> {
    let mut send = Send::new(rng.next() as i32, rng.below(5) as i32);
    let body: Vec<u8> = (0..rng.below(200)).map(|_| rng.next() as u8).collect();
    send = send.body(&body);
    if rng.below(3) == 0 {
        let texts = ["", "TAGS\u{1}a", "KEYS\u{1}x y x\u{2}TAGS\u{1}é", "WAIT\u{1}true", "a\u{1}1\u{2}a\u{1}2"];
        let entries = (0..rng.below(5)).flat_map(|_| entry(rng.next() as i32, &body, rng.choose::<&str>(&texts)));
        let entries: Vec<u8> = entries.collect();
        send = send.with("m", "true").body(&entries);
    }
    if rng.below(4) == 0 {
        send = send.with("i", &"k\u{1}v\u{2}".repeat(rng.below(40)));
    }
    send.flag = rng.choose(&[0, 0, 0, 2, 1]);
    match rng.below(4) {
        0 => send.binary(),
        1 => send.v1().json(),
        2 => send.v1().binary(),
        _ => send.json(),
    }
}

/// Change some bytes of a frame. Half of the time its lengths are right again afterwards, so that the header is decoded.
fn damage(rng: &mut Rng, frame: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(frame.len());
        match rng.below(7) {
            0 if !frame.is_empty() => frame[at] ^= 1 << rng.below(8),
            1 if !frame.is_empty() => frame[at] = rng.next() as u8,
            2 => frame.truncate(at),
            3 => drop(frame.splice(at..at, rng.choose(&TOKENS).iter().copied())),
            4 => {
                let end = (at + 1 + rng.below(30)).min(frame.len());
                let part = frame[at.min(end)..end].to_vec();
                let to = rng.below(frame.len());
                frame.splice(to..to, part);
            }
            5 => {
                let end = (at + 1 + rng.below(10)).min(frame.len());
                frame.drain(at.min(end)..end);
            }
            _ => {
                let token = rng.choose(&TOKENS);
                let end = (at + token.len()).min(frame.len());
                frame.splice(at.min(end)..end, token.iter().copied());
            }
        }
    }
    if rng.below(2) == 0 && frame.len() > 8 {
        let content = &frame[8..];
        let header_size =
            match (frame[4], frame[5..8].try_into().map(|[a, b, c]: [u8; 3]| u32::from_be_bytes([0, a, b, c]))) {
                (0, _) => content.iter().rposition(|byte| *byte == b'}').map_or(0, |at| at + 1),
                (_, Ok(size)) => (size as usize).min(content.len()),
                (_, Err(_)) => 0,
            };
        *frame = framed(frame[4] & 1, &content[..header_size], &content[header_size..]);
    }
}

#[test]
fn damaged_frames_break_nothing() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("expected a number"));
    let seed = number("ARIANE_FUZZ_SEED").unwrap_or_else(|| std::process::id().into());
    let deadline = Instant::now() + Duration::from_secs(number("ARIANE_FUZZ_S").unwrap_or(1));
    let mut rng = Rng(seed);
    let (mut encoder, mut frames, mut plain) = (encoder(), 0u64, 0u64);
    println!("ARIANE_FUZZ_SEED={seed}");
    while Instant::now() < deadline {
        for _ in 0..100 {
            let (mut data, mut starts) = (Vec::new(), Vec::new());
            for _ in 0..rng.below(6) {
                let mut frame = random_send(&mut rng);
                if rng.below(3) > 0 {
                    damage(&mut rng, &mut frame);
                }
                starts.push(data.len());
                data.extend(frame);
            }
            frames += starts.len() as u64;
            for start in starts {
                let run = encode(&mut encoder, &data[start..]);
                check(run, &data[start..]);
                plain += u64::from(run.sends > 0);
                // The same frames without what follows them are the same run.
                let expected = (run.records.clone(), run.keys.clone(), run.responses.clone(), run.sends);
                let end = start + run.position;
                let again = encode(&mut encoder, &data[start..end]);
                assert_eq!((&again.records, &again.keys), (&expected.0, &expected.1));
                assert_eq!((&again.responses, again.sends), (&expected.2, expected.3));
            }
            let start = rng.below(data.len() + 9);
            let _ = encoder.encode(&data, start, BORN_HOST, LOG_END, |_, _| Ok::<i64, ()>(0));
        }
    }
    println!("{frames} frames, {plain} of them plain");
    assert!(plain > 0);
}
