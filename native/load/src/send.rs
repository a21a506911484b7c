//! Send load: each connection keeps its number of requests in flight, or requests are sent when a fixed rate makes them due.
//!
//! ```text
//! fill: templates ─→ output of each connection ─→ socket      wait      answers ─→ slots ─→ latency, code
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::connection::Connection;
use crate::ready::{wait, LoadClock};
use crate::send_template::{born_digits, first_sequence, MessageShape, SendTemplates};
use crate::slots::Slots;
use crate::tally::{Tally, SEND_ACCEPTED};

/// A fixed rate wakes a thread at most every 50 µs: more often, the load would use the CPU time that it measures.
const POLL_MIN_NS: u64 = 50_000;
const POLL_MAX_NS: u64 = 100_000_000;

/// When requests are sent and measured; all times in ns since the start.
#[derive(Clone)]
pub struct Schedule {
    pub clock: LoadClock,
    /// Until then nothing is measured.
    pub warm_ns: u64,
    /// End of sending; None if a number of requests decides.
    pub end_ns: Option<u64>,
    /// A connection without an answer for this time ends the load.
    pub timeout_ns: u64,
    /// Requests per second of one thread; None for as many as the broker takes.
    pub rate: Option<f64>,
}

/// One connection of the load.
pub struct SendLane {
    number: usize,
    connection: Connection,
    slots: Slots,
    templates: SendTemplates,
    sequence: u64,
    queue: u32,
    queues: u32,
    /// Requests that are still to be sent after the warm-up; None without a limit.
    quota: Option<u64>,
    /// Last time that an answer came or the first request was sent.
    progress_ns: u64,
    hint: usize,
}

/// The connections of one thread.
pub struct SendWorker<'a> {
    pub lanes: Vec<SendLane>,
    pub schedule: Schedule,
    /// Messages of a request.
    pub batch: u64,
    /// Set when another thread failed.
    pub stop: &'a AtomicBool,
}

impl SendLane {
    /// Prepare the connection with this number. Connections begin at different queues.
    pub fn new(
        connection: Connection,
        number: usize,
        shape: &MessageShape,
        in_flight: usize,
        quota: Option<u64>,
    ) -> Self {
        SendLane {
            number,
            connection,
            slots: Slots::new(in_flight),
            templates: SendTemplates::new(shape, number),
            sequence: first_sequence(),
            queue: number as u32 % shape.queues,
            queues: shape.queues,
            quota,
            progress_ns: 0,
            hint: 0,
        }
    }

    fn may_send(&self, since_ns: u64, schedule: &Schedule) -> bool {
        let is_within = schedule.end_ns.is_none_or(|end| since_ns < end);
        is_within && self.slots.has_room() && (self.quota != Some(0) || since_ns < schedule.warm_ns)
    }

    fn send(&mut self, since_ns: u64, now_ns: u64, schedule: &Schedule, born: &[u8; 13]) {
        if self.slots.in_flight() == 0 {
            self.progress_ns = now_ns;
        }
        let opaque = self.slots.take(since_ns, self.queue);
        self.templates.append(&mut self.connection.output, self.queue, opaque, born, self.sequence);
        self.sequence += 1;
        self.queue = if self.queue + 1 == self.queues { 0 } else { self.queue + 1 };
        if let Some(quota) = self.quota.as_mut().filter(|_| since_ns >= schedule.warm_ns) {
            *quota -= 1;
        }
    }

    /// Count the answers that have arrived.
    fn receive(&mut self, tally: &mut Tally, schedule: &Schedule, batch: u64) -> Result<(), String> {
        self.connection.read()?;
        let now = schedule.clock.now_ns();
        while let Some(frame) = self.connection.input.next_frame()? {
            let head = frame.head(&mut self.hint)?;
            let Some(request) = self.slots.complete(head.opaque) else {
                tally.unexpected += 1;
                continue;
            };
            self.progress_ns = now;
            *tally.codes.entry(head.code).or_default() += 1;
            if !SEND_ACCEPTED.contains(&head.code) {
                tally.add_error(head.code, &frame);
                continue;
            }
            tally.total += batch;
            tally.by_queue[request.queue as usize] += batch;
            let is_measured = match schedule.end_ns {
                Some(end) => now >= schedule.warm_ns && now < end,
                None => request.since_ns >= schedule.warm_ns,
            };
            if is_measured {
                tally.messages += batch;
                tally.latencies.record(now - request.since_ns);
                tally.last_ns = now;
            }
        }
        Ok(())
    }

    fn check_progress(&self, now_ns: u64, schedule: &Schedule) -> Result<(), String> {
        if self.slots.in_flight() > 0 && now_ns.saturating_sub(self.progress_ns) > schedule.timeout_ns {
            let seconds = schedule.timeout_ns as f64 / 1e9;
            return Err(format!("no answer for {seconds} s: {}", self.slots.describe(now_ns)));
        }
        Ok(())
    }
}

impl SendWorker<'_> {
    /// Send until the schedule ends and all answers are there. A failure is noted in the result.
    pub fn run(mut self) -> Tally {
        let queues = self.lanes.iter().map(|lane| lane.queues as usize).max().unwrap_or(0);
        let mut tally = Tally { by_queue: vec![0; queues], ..Tally::default() };
        if let Err(failure) = self.drive(&mut tally) {
            self.stop.store(true, Ordering::Relaxed);
            tally.failures.push(failure);
        }
        tally
    }

    fn drive(&mut self, tally: &mut Tally) -> Result<(), String> {
        let mut ready = Vec::new();
        let mut requests: u64 = 0; // sent by a fixed rate
        let mut has_ended = false;
        loop {
            let now = self.schedule.clock.now_ns();
            if !has_ended {
                requests = self.fill(now, requests); // the first time after the end, too: for what became due before it
            }
            has_ended = self.stop.load(Ordering::Relaxed) || self.schedule.end_ns.is_some_and(|end| now >= end);
            for lane in &mut self.lanes {
                lane.connection.flush().map_err(|fault| lane_fault(lane.number, &fault))?;
            }
            if self.is_done(now, has_ended) {
                tally.unsent = self.due(now).saturating_sub(requests).saturating_mul(self.batch);
                return Ok(());
            }
            let timeout = Duration::from_nanos(self.until_due(now, requests));
            wait(self.lanes.iter().map(|lane| &lane.connection), timeout, &mut ready)?;
            for (lane, is_ready) in self.lanes.iter_mut().zip(&ready) {
                let received = if *is_ready { lane.receive(tally, &self.schedule, self.batch) } else { Ok(()) };
                let result = received.and_then(|()| lane.check_progress(now, &self.schedule));
                result.map_err(|fault| lane_fault(lane.number, &fault))?;
            }
        }
    }

    /// Append the requests that may be sent now; return the number of requests that a fixed rate has sent so far.
    fn fill(&mut self, now: u64, requests: u64) -> u64 {
        let born = born_digits();
        let schedule = &self.schedule;
        let Some(rate) = schedule.rate else {
            for lane in &mut self.lanes {
                while lane.may_send(now, schedule) {
                    lane.send(now, now, schedule, &born);
                }
            }
            return 0;
        };
        let due = self.due(now).max(requests);
        let count = self.lanes.len() as u64;
        for number in requests..due {
            let since = (number as f64 / rate * 1e9) as u64;
            let lanes = (0..count).map(|turn| ((number + turn) % count) as usize);
            let Some(index) = lanes.into_iter().find(|index| self.lanes[*index].may_send(since, schedule)) else {
                return number;
            };
            self.lanes[index].send(since, now, schedule, &born);
        }
        due
    }

    /// Return how many requests a fixed rate has made due.
    fn due(&self, now: u64) -> u64 {
        let until = self.schedule.end_ns.map_or(now, |end| now.min(end));
        match self.schedule.rate {
            // A number of messages ends the load: beyond its quotas nothing is due.
            Some(_) if self.lanes.iter().all(|lane| lane.quota == Some(0)) => 0,
            Some(rate) => (until as f64 / 1e9 * rate).ceil() as u64,
            None => 0,
        }
    }

    fn until_due(&self, now: u64, requests: u64) -> u64 {
        let has_room = self.lanes.iter().any(|lane| lane.slots.has_room());
        match self.schedule.rate.filter(|_| has_room && self.schedule.end_ns.is_none_or(|end| now < end)) {
            Some(rate) => ((requests as f64 / rate * 1e9) as u64).saturating_sub(now).clamp(POLL_MIN_NS, POLL_MAX_NS),
            None => POLL_MAX_NS,
        }
    }

    fn is_done(&self, now: u64, has_ended: bool) -> bool {
        let mut lanes = self.lanes.iter();
        lanes.all(|lane| {
            let is_sent = has_ended || (lane.quota == Some(0) && now >= self.schedule.warm_ns);
            is_sent && lane.slots.in_flight() == 0
        })
    }
}

fn lane_fault(number: usize, fault: &str) -> String {
    format!("connection {number}: {fault}")
}
