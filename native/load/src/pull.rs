//! Pull load: reads a backlog. Each queue has one pull in flight, which begins where the one before ended; the queues of a
//! connection are pulled at the same time.
//!
//! ```text
//! pull at offset ─→ 0 FOUND: count records, go on at nextBeginOffset     19 NOT_FOUND, or nextBeginOffset = maxOffset: end
//!                   20 RETRY: go on at nextBeginOffset                   21 OFFSET_MOVED: go on there, or end if it is the same
//!                   any other code: an error, the queue is not read any further
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::connection::Connection;
use crate::frame::{Form, Frame};
use crate::ready::{wait, LoadClock};
use crate::records::Expected;
use crate::signing::{self, Account};
use crate::slots::Slots;
use crate::tally::Tally;

const PULL_MESSAGE: i16 = 11;
const SUBSCRIPTION: &str = "4"; // sysFlag: the expression of the header, no member of the group; no long polling
const FOUND: i32 = 0;
const PULL_NOT_FOUND: i32 = 19;
const PULL_RETRY_IMMEDIATELY: i32 = 20;
const PULL_OFFSET_MOVED: i32 = 21;
/// Answers in a row that send a queue elsewhere or to the same offset before it is abandoned.
const STALLS_MAX: u32 = 5;
const POLL_MAX: Duration = Duration::from_millis(100);

/// What is pulled.
#[derive(Clone)]
pub struct PullShape {
    pub form: Form,
    pub group: String,
    pub topic: String,
    /// Most messages of an answer.
    pub batch: u32,
    /// Subscription expression: tags, or `*`.
    pub expression: String,
    pub check_bodies: bool,
    pub account: Option<Account>,
}

/// When pulls end; times in ns since the start.
#[derive(Clone)]
pub struct PullSchedule {
    pub clock: LoadClock,
    /// No pull is sent after it; None for the end of the queues.
    pub end_ns: Option<u64>,
    /// Begin again at the end of a queue.
    pub repeat: bool,
    pub timeout_ns: u64,
}

struct QueueReader {
    queue: u32,
    first: i64,
    offset: i64,
    /// Messages of this pass over the queue.
    pass: u64,
    stalls: u32,
}

/// One connection with its queues.
pub struct PullLane {
    number: usize,
    /// Distance between the queues of the connection.
    lanes: usize,
    connection: Connection,
    slots: Slots,
    queues: Vec<QueueReader>,
    /// Indexes of queues whose next pull is to be sent.
    due: Vec<usize>,
    progress_ns: u64,
    hint: usize,
}

/// The connections of one thread.
pub struct PullWorker<'a> {
    pub lanes: Vec<PullLane>,
    pub shape: PullShape,
    pub schedule: PullSchedule,
    /// Set when another thread failed.
    pub stop: &'a AtomicBool,
}

impl PullLane {
    /// Prepare connection `number` of `lanes`, which reads each `lanes`-th queue. `firsts` has the first offset of all queues.
    pub fn new(connection: Connection, number: usize, lanes: usize, firsts: &[i64]) -> PullLane {
        let own = firsts.iter().enumerate().skip(number).step_by(lanes);
        let reader = |(queue, first): (usize, &i64)| QueueReader {
            queue: queue as u32,
            first: *first,
            offset: *first,
            pass: 0,
            stalls: 0,
        };
        let queues: Vec<QueueReader> = own.map(reader).collect();
        let due = (0..queues.len()).collect();
        let slots = Slots::new(queues.len());
        PullLane { number, lanes, connection, slots, queues, due, progress_ns: 0, hint: 0 }
    }

    fn send_due(&mut self, shape: &PullShape, now_ns: u64) {
        if self.slots.in_flight() == 0 {
            self.progress_ns = now_ns;
        }
        for index in self.due.drain(..) {
            let reader = &self.queues[index];
            let opaque = self.slots.take(now_ns, reader.queue);
            let frame = pull_frame(shape, reader.queue, reader.offset, opaque as i32);
            self.connection.output.extend_from_slice(&frame);
        }
    }

    fn receive(&mut self, tally: &mut Tally, shape: &PullShape, schedule: &PullSchedule) -> Result<(), String> {
        self.connection.read()?;
        let now = schedule.clock.now_ns();
        while let Some(frame) = self.connection.input.next_frame()? {
            let head = frame.head(&mut self.hint)?;
            let Some(request) = self.slots.complete(head.opaque) else {
                tally.unexpected += 1;
                continue;
            };
            self.progress_ns = now;
            tally.last_ns = now;
            tally.latencies.record(now - request.since_ns);
            *tally.codes.entry(head.code).or_default() += 1;
            let index = (request.queue as usize - self.number) / self.lanes;
            let may_repeat = schedule.repeat && schedule.end_ns.is_none_or(|end| now < end);
            if self.queues[index].accept(head.code, &frame, shape, may_repeat, tally)? {
                self.due.push(index);
            }
        }
        Ok(())
    }

    fn check_progress(&self, now_ns: u64, timeout_ns: u64) -> Result<(), String> {
        if self.slots.in_flight() > 0 && now_ns.saturating_sub(self.progress_ns) > timeout_ns {
            let seconds = timeout_ns as f64 / 1e9;
            return Err(format!("no answer for {seconds} s: {}", self.slots.describe(now_ns)));
        }
        Ok(())
    }
}

impl QueueReader {
    /// Count an answer; return whether the queue is to be pulled again.
    fn accept(
        &mut self,
        code: i32,
        frame: &Frame<'_>,
        shape: &PullShape,
        may_repeat: bool,
        tally: &mut Tally,
    ) -> Result<bool, String> {
        if !matches!(code, FOUND | PULL_NOT_FOUND | PULL_RETRY_IMMEDIATELY | PULL_OFFSET_MOVED) {
            tally.add_error(code, frame);
            return Ok(false);
        }
        let next = self.offset_field(frame, "nextBeginOffset")?;
        let end = self.offset_field(frame, "maxOffset")?;
        if code == FOUND {
            let expected = Expected { queue: self.queue, offset: self.offset, next, check_bodies: shape.check_bodies };
            let count = expected.count(frame.body)?;
            tally.messages += count;
            tally.total += count;
            tally.bytes += frame.body.len() as u64;
            self.pass += count;
        }
        let is_moved = code == PULL_OFFSET_MOVED && next != self.offset;
        tally.moved += u64::from(is_moved);
        self.stalls = if next > self.offset && !is_moved { 0 } else { self.stalls + 1 };
        let is_at_end = match code {
            PULL_NOT_FOUND => next <= self.offset,
            PULL_OFFSET_MOVED => !is_moved || next >= end,
            _ => next >= end,
        };
        if is_at_end {
            return Ok(self.end_pass(may_repeat, tally));
        }
        if self.stalls >= STALLS_MAX {
            let at = self.offset;
            return Err(format!(
                "queue {} does not advance: code {code} at offset {at}, next {next}, end {end}",
                self.queue
            ));
        }
        self.offset = next;
        Ok(true)
    }

    /// Begin again at the first offset, unless this pass found nothing; return whether it does.
    fn end_pass(&mut self, may_repeat: bool, tally: &mut Tally) -> bool {
        let repeats = may_repeat && self.pass > 0;
        (self.offset, self.pass, self.stalls) = (self.first, 0, 0);
        tally.queues_at_end += u64::from(!repeats);
        repeats
    }

    fn offset_field(&self, frame: &Frame<'_>, name: &str) -> Result<i64, String> {
        let fault = || format!("the answer to a pull of queue {} has no number {name}", self.queue);
        frame.number(name).ok_or_else(fault)
    }
}

impl PullWorker<'_> {
    /// Read until all queues are at their end. A failure is noted in the result.
    pub fn run(mut self) -> Tally {
        let mut tally = Tally::default();
        if let Err(failure) = self.drive(&mut tally) {
            self.stop.store(true, Ordering::Relaxed);
            tally.failures.push(failure);
        }
        tally
    }

    fn drive(&mut self, tally: &mut Tally) -> Result<(), String> {
        let mut ready = Vec::new();
        loop {
            let now = self.schedule.clock.now_ns();
            let is_over = self.stop.load(Ordering::Relaxed) || self.schedule.end_ns.is_some_and(|end| now >= end);
            for lane in &mut self.lanes {
                if !is_over {
                    lane.send_due(&self.shape, now);
                }
                lane.connection.flush().map_err(|fault| lane_fault(lane.number, &fault))?;
            }
            if self.lanes.iter().all(|lane| lane.slots.in_flight() == 0) {
                return Ok(());
            }
            wait(self.lanes.iter().map(|lane| &lane.connection), POLL_MAX, &mut ready)?;
            for (lane, is_ready) in self.lanes.iter_mut().zip(&ready) {
                let received = if *is_ready { lane.receive(tally, &self.shape, &self.schedule) } else { Ok(()) };
                let result = received.and_then(|()| lane.check_progress(now, self.schedule.timeout_ns));
                result.map_err(|fault| lane_fault(lane.number, &fault))?;
            }
        }
    }
}

fn lane_fault(number: usize, fault: &str) -> String {
    format!("connection {number}: {fault}")
}

fn pull_frame(shape: &PullShape, queue: u32, offset: i64, opaque: i32) -> Vec<u8> {
    let (queue, offset, batch) = (queue.to_string(), offset.to_string(), shape.batch.to_string());
    let fields = [
        ("consumerGroup", shape.group.as_str()),
        ("topic", &shape.topic),
        ("queueId", &queue),
        ("queueOffset", &offset),
        ("maxMsgNums", &batch),
        ("sysFlag", SUBSCRIPTION),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "0"),
        ("subscription", &shape.expression),
        ("subVersion", "0"),
        ("expressionType", "TAG"),
    ];
    signing::encode(shape.form, PULL_MESSAGE, opaque, &fields, shape.account.as_ref()).bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> PullShape {
        let (group, topic, expression) = ("G".to_owned(), "T".to_owned(), "*".to_owned());
        PullShape { form: Form::Json, group, topic, batch: 32, expression, check_bodies: true, account: None }
    }

    /// Return whether a queue at `offset` is pulled again after an answer, and its next offset.
    fn after(code: i32, offset: i64, next: i64, end: i64, repeat: bool) -> Result<(bool, i64), String> {
        let mut reader = QueueReader { queue: 0, first: 3, offset, pass: 1, stalls: 0 };
        let header = format!(r#"{{"nextBeginOffset":"{next}","maxOffset":"{end}","remark":"R"}}"#);
        let frame = Frame { form: Form::Json, header: header.as_bytes(), body: b"" };
        let again = reader.accept(code, &frame, &shape(), repeat, &mut Tally::default())?;
        Ok((again, reader.offset))
    }

    #[test]
    fn each_code_decides_where_reading_goes_on() {
        assert_eq!(after(FOUND, 5, 9, 20, false), Ok((true, 9)));
        assert_eq!(after(FOUND, 5, 20, 20, false), Ok((false, 3)));
        assert_eq!(after(FOUND, 5, 20, 20, true), Ok((true, 3)));
        assert_eq!(after(PULL_RETRY_IMMEDIATELY, 5, 9, 20, false), Ok((true, 9)));
        assert_eq!(after(PULL_RETRY_IMMEDIATELY, 5, 20, 20, false), Ok((false, 3)));
        assert_eq!(after(PULL_NOT_FOUND, 5, 5, 5, false), Ok((false, 3)));
        assert_eq!(after(PULL_NOT_FOUND, 5, 100, 200, false), Ok((true, 100))); // a removed file of the queue
        assert_eq!(after(PULL_OFFSET_MOVED, 5, 10, 20, false), Ok((true, 10)));
        assert_eq!(after(PULL_OFFSET_MOVED, 50, 20, 20, false), Ok((false, 3)));
        assert_eq!(after(PULL_OFFSET_MOVED, 5, 0, 0, false), Ok((false, 3)));
    }

    #[test]
    fn other_codes_end_the_queue_and_are_counted_with_their_remark() {
        let mut reader = QueueReader { queue: 0, first: 0, offset: 0, pass: 0, stalls: 0 };
        let frame = Frame { form: Form::Json, header: br#"{"code":17,"remark":"no topic"}"#, body: b"" };
        let mut tally = Tally::default();
        assert_eq!(reader.accept(17, &frame, &shape(), true, &mut tally), Ok(false));
        assert_eq!((tally.errors, tally.remarks[&17].as_str(), tally.queues_at_end), (1, "no topic", 0));
        assert!(reader.accept(0, &frame, &shape(), true, &mut tally).unwrap_err().contains("nextBeginOffset"));
    }

    #[test]
    fn a_queue_that_does_not_advance_ends_the_load() {
        let mut reader = QueueReader { queue: 7, first: 0, offset: 5, pass: 0, stalls: 0 };
        let header = br#"{"nextBeginOffset":"5","maxOffset":"9"}"#;
        let frame = Frame { form: Form::Json, header, body: b"" };
        let mut answers = (0..STALLS_MAX).map(|_| reader.accept(20, &frame, &shape(), true, &mut Tally::default()));
        assert!(answers.by_ref().take(STALLS_MAX as usize - 1).all(|again| again == Ok(true)));
        assert!(answers.next().unwrap().unwrap_err().contains("queue 7 does not advance"));
    }

    #[test]
    fn pulls_name_queue_and_offset() {
        let bytes = pull_frame(&shape(), 3, 12345678901, 1_000_000_001);
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.number("queueId"), frame.number("queueOffset")), (Some(3), Some(12345678901)));
    }
}
