//! Whole loads against the responder and against scripted brokers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ariane_load::frame::{Form, Frame};
use ariane_load::load;
use ariane_load::options::{parse, Command};
use ariane_load::report::Report;
use ariane_load::responder;

/// Run a command line against a broker.
fn run(line: &str, broker: &str) -> Result<Report, String> {
    let arguments = format!("{line} --broker {broker}");
    match parse(arguments.split_ascii_whitespace().map(str::to_owned)).expect("a valid command line") {
        Command::Send(options) => load::send(&options),
        Command::Pull(options) => load::pull(&options),
        _ => unreachable!("send or pull"),
    }
}

fn start_responder() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    thread::spawn(move || responder::serve(&listener));
    addr
}

/// Start a broker that handles each request with `answer`: code, fields, remark, body; None closes the connection.
fn start_script(answer: fn(&Frame<'_>) -> Option<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap(), answer));
        }
    });
    addr
}

fn serve(mut stream: TcpStream, answer: fn(&Frame<'_>) -> Option<Vec<u8>>) -> Option<()> {
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        let mut bytes = length.to_vec();
        bytes.resize(4 + u32::from_be_bytes(length) as usize, 0);
        stream.read_exact(&mut bytes[4..]).ok()?;
        let bytes = answer(&Frame::parse(&bytes).unwrap())?;
        stream.write_all(&bytes).ok()?;
    }
}

/// Encode an answer with the opaque of its request.
fn answer(request: &Frame<'_>, code: i16, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let opaque = request.head(&mut 0).unwrap().opaque;
    request.form.encode(code, opaque, fields, body).bytes
}

fn record(queue: i64, offset: i64) -> Vec<u8> {
    let mut record = vec![0; 91 + 3];
    record[..4].copy_from_slice(&94_u32.to_be_bytes());
    record[4..8].copy_from_slice(&0xDAA3_20A7_u32.to_be_bytes());
    record[8..12].copy_from_slice(&(crc32fast::hash(b"abc") & 0x7fff_ffff).to_be_bytes());
    record[12..16].copy_from_slice(&(queue as u32).to_be_bytes());
    record[20..28].copy_from_slice(&offset.to_be_bytes());
    record[84..91].copy_from_slice(b"\0\0\0\x03abc");
    record
}

/// Answer pulls from queues of 100 messages, of which the first five are removed.
fn backlog(request: &Frame<'_>) -> Option<Vec<u8>> {
    let queue = request.number("queueId").unwrap();
    if request.head(&mut 0).unwrap().code == 31 {
        return Some(answer(request, 0, &[("offset", "5")], b""));
    }
    let offset = request.number("queueOffset").unwrap();
    let (code, next) = match offset {
        0..5 => (21, 5),
        5..100 => (0, (offset + request.number("maxMsgNums").unwrap()).min(100)),
        _ => (19, 100),
    };
    let body: Vec<u8> = if code == 0 { (offset..next).flat_map(|at| record(queue, at)).collect() } else { Vec::new() };
    let next = next.to_string();
    Some(answer(request, code, &[("nextBeginOffset", &next), ("maxOffset", "100"), ("minOffset", "5")], &body))
}

#[test]
fn sends_of_all_kinds_are_counted() {
    let addr = start_responder();
    for (line, messages) in [
        ("send --messages 5001 --in-flight 7 --connections 3 --threads 2 --queues 5", 5001),
        ("send --messages 500 --header binary --code 10 --keys --tag A --size 0", 500),
        ("send --messages 3200 --code 320 --batch 32 --size 1000 --connections 2", 3200),
        ("send --messages 200 --rate 4000 --connections 3 --threads 2 --header binary", 200),
        ("send --messages 1 --connections 4", 1),
    ] {
        let report = run(line, &addr).unwrap();
        assert_eq!((report.tally.messages, report.tally.total), (messages, messages), "{line}");
        assert!(!report.has_failed(), "{line}: {}", report.text());
        assert!(report.seconds > 0.0 && report.tally.latencies.max() > 0);
    }
}

#[test]
fn warm_up_and_end_bound_the_measured_messages() {
    let report = run("send --warm-up 0.1 --duration 0.4 --in-flight 4", &start_responder()).unwrap();
    assert!(!report.has_failed(), "{}", report.text());
    assert!(report.tally.messages > 0 && report.tally.messages < report.tally.total);
    assert_eq!(report.seconds, 0.4);
    assert_eq!(report.tally.latencies.count(), report.tally.messages);
}

#[test]
fn a_backlog_is_read_to_its_end() {
    let addr = start_script(backlog);
    for line in [
        "pull --queues 5 --connections 2 --threads 2 --batch 7 --crc --expect 475",
        "pull --queues 5 --header binary --expect 475",
        "pull --queues 5 --from 90 --expect 50",
        "pull --queues 1 --from 100 --expect 0",
    ] {
        let report = run(line, &addr).unwrap();
        assert!(!report.has_failed(), "{line}: {}", report.text());
        assert_eq!(report.tally.moved, 0);
    }
    let report = run("pull --queues 2 --from 0 --expect 191", &addr).unwrap();
    assert_eq!((report.tally.messages, report.tally.moved, report.tally.queues_at_end), (190, 2, 2));
    assert!(report.text().contains("190 messages were read, --expect is 191"));
    let report = run("pull --queues 1 --repeat --duration 0.1", &addr).unwrap();
    assert!(report.tally.messages > 95 && !report.has_failed(), "{}", report.text());
}

#[test]
fn errors_are_counted_by_code() {
    let addr = start_script(|request| Some(answer(request, 17, &[], b"")));
    let report = run("send --messages 10", &addr).unwrap();
    assert_eq!((report.tally.codes[&17], report.tally.errors, report.tally.messages), (10, 10, 0));
    assert!(report.has_failed());
    let report = run("pull --from 0 --queues 3", &addr).unwrap();
    assert_eq!((report.tally.codes[&17], report.tally.queues_at_end), (3, 0));
    let error = run("send --create-topic", &addr).err().unwrap();
    assert!(error.contains("cannot create topic ArianeLoad: code 17"), "{error}");
}

#[test]
fn readable_messages_are_waited_for() {
    // Sends are accepted; the queue has one message more at each look at its end.
    let addr = start_script(|request| {
        static END: AtomicU64 = AtomicU64::new(10);
        let end = match request.head(&mut 0).unwrap().code {
            30 => END.fetch_add(1, Ordering::Relaxed).to_string(),
            _ => "0".to_owned(),
        };
        Some(answer(request, 0, &[("offset", &end)], b""))
    });
    let report = run("send --messages 20 --queues 1 --readable", &addr).unwrap();
    assert!(!report.has_failed() && report.readable_seconds.unwrap() >= report.seconds, "{}", report.text());
    let addr = start_script(|request| Some(answer(request, 0, &[("offset", "7")], b"")));
    let report = run("send --messages 20 --queues 1 --readable --timeout 0.2", &addr).unwrap();
    assert!(report.tally.failures[0].contains("queue 0 ends at 7, expected 27"), "{}", report.text());
}

#[test]
fn a_closed_connection_ends_the_load() {
    let addr = start_script(|_| None);
    for line in ["send --messages 10", "pull --from 0"] {
        let report = run(line, &addr).unwrap();
        let failures = report.tally.failures.join("; ");
        // Which of the two the system reports depends on what was unread when the broker closed it.
        assert!(failures.contains("closed the connection") || failures.contains("cannot read from"), "{failures}");
        assert!(failures.starts_with("connection 0: "), "{failures}");
    }
}

#[test]
fn a_silent_broker_is_named_with_what_is_in_flight() {
    let addr = start_script(|_| Some(Form::Json.encode(40, 1, &[], b"").bytes)); // a request of the broker, no answer
    for (line, expected) in [
        ("send --messages 10 --timeout 0.2 --in-flight 3", "3 in flight"),
        ("pull --from 0 --timeout 0.2", "4 in flight"),
    ] {
        let report = run(line, &addr).unwrap();
        let failures = report.tally.failures.join("; ");
        assert!(failures.contains("no answer for 0.2 s") && failures.contains(expected), "{failures}");
        assert!(report.tally.unexpected > 0);
    }
}

#[test]
fn a_broker_that_does_not_listen() {
    let error = run("send --messages 1", "127.0.0.1:1").err().unwrap();
    assert!(error.starts_with("cannot connect to the broker 127.0.0.1:1: "), "{error}");
}
