//! Runs a load: connections, one thread for several of them, CPU times at the edges of the measured time, the report.

use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::admin::AdminConnection;
use crate::connection::Connection;
use crate::cpu::{own_seconds, process_seconds};
use crate::frame::Form;
use crate::histogram::Histogram;
use crate::options::{CommonOptions, PullOptions, SendOptions};
use crate::pull::{PullLane, PullSchedule, PullShape, PullWorker};
use crate::ready::LoadClock;
use crate::report::{Report, Setting};
use crate::send::{Schedule, SendLane, SendWorker};
use crate::tally::Tally;

const READABLE_POLL: Duration = Duration::from_millis(5);

/// CPU times of this program and of the broker, in seconds.
#[derive(Clone, Copy)]
struct CpuTimes {
    own: f64,
    broker: Option<f64>,
}

impl CpuTimes {
    fn read(pid: Option<u32>) -> Result<CpuTimes, String> {
        Ok(CpuTimes { own: own_seconds(), broker: pid.map(process_seconds).transpose()? })
    }
}

/// Send as the options say.
pub fn send(options: &SendOptions) -> Result<Report, String> {
    let common = &options.common;
    if options.create_topic {
        AdminConnection::open(common)?.create_topic(&common.topic, common.queues)?;
    }
    CpuTimes::read(common.pid)?; // a wrong --pid fails before the load
    let ends = options.readable.map(|_| queue_ends(common)).transpose()?;
    let requests = options.messages.map(|messages| messages / options.shape.batch as u64);
    let mut lanes = Vec::new();
    let mut settings = common_settings(common);
    for number in 0..common.connections {
        let quota = requests.map(|requests| share(requests, number, common.connections));
        let connection = open(common, number, &mut settings)?;
        lanes.push(SendLane::new(connection, number, &options.shape, options.in_flight, quota));
    }
    let warm_ns = options.warm_up.as_nanos() as u64;
    let schedule = Schedule {
        clock: LoadClock::start(),
        warm_ns,
        end_ns: common.duration.map(|duration| warm_ns + duration.as_nanos() as u64),
        timeout_ns: common.timeout.as_nanos() as u64,
        rate: options.rate.map(|rate| rate / options.shape.batch as f64),
    };
    let stop = AtomicBool::new(false);
    let batch = options.shape.batch as u64;
    let workers = distribute(lanes, common.threads).into_iter().map(|lanes| SendWorker {
        lanes,
        schedule: schedule.clone(),
        batch,
        stop: &stop,
    });
    let jobs: Vec<_> = workers.map(|worker| move || worker.run()).collect();
    let mut measured = run(jobs, common, options.warm_up)?;
    if let Some((ends, timeout)) = ends.zip(options.readable).filter(|_| measured.tally.failures.is_empty()) {
        match wait_readable(common, &ends, &measured.tally.by_queue, timeout) {
            Ok(()) => measured.readable_seconds = Some(schedule.clock.now_ns().saturating_sub(warm_ns) as f64 / 1e9),
            Err(fault) => measured.tally.failures.push(fault),
        }
        measured.end = CpuTimes::read(common.pid)?;
    }
    let seconds = match common.duration {
        Some(duration) => duration.as_secs_f64(),
        None => measured.tally.last_ns.saturating_sub(warm_ns) as f64 / 1e9,
    };
    settings.extend([
        ("size", Setting::Number(options.shape.size as f64)),
        ("in_flight", Setting::Number(options.in_flight as f64)),
        ("code", Setting::Number(options.shape.code.into())),
        ("batch", Setting::Number(options.shape.batch as f64)),
        ("warm_up", Setting::Number(options.warm_up.as_secs_f64())),
    ]);
    settings.extend(options.rate.map(|rate| ("offered_rate", Setting::Number(rate))));
    finish(measured.report("send", settings, seconds), common)
}

/// Pull as the options say.
pub fn pull(options: &PullOptions) -> Result<Report, String> {
    let common = &options.common;
    CpuTimes::read(common.pid)?;
    let firsts = first_offsets(options)?;
    let mut lanes = Vec::new();
    let mut settings = common_settings(common);
    for number in 0..common.connections {
        lanes.push(PullLane::new(open(common, number, &mut settings)?, number, common.connections, &firsts));
    }
    let shape = PullShape {
        form: common.form,
        group: common.group.clone(),
        topic: common.topic.clone(),
        batch: options.batch,
        expression: options.expression.clone(),
        check_bodies: options.check_bodies,
        account: common.account.clone(),
    };
    let schedule = PullSchedule {
        clock: LoadClock::start(),
        end_ns: common.duration.map(|duration| duration.as_nanos() as u64),
        repeat: options.repeat,
        timeout_ns: common.timeout.as_nanos() as u64,
    };
    let stop = AtomicBool::new(false);
    let workers = distribute(lanes, common.threads).into_iter().map(|lanes| PullWorker {
        lanes,
        shape: shape.clone(),
        schedule: schedule.clone(),
        stop: &stop,
    });
    let jobs: Vec<_> = workers.map(|worker| move || worker.run()).collect();
    let mut measured = run(jobs, common, Duration::ZERO)?;
    if let Some(expected) = options.expect.filter(|expected| *expected != measured.tally.messages) {
        let fault = format!("{} messages were read, --expect is {expected}", measured.tally.messages);
        measured.tally.failures.push(fault);
    }
    let seconds = measured.tally.last_ns as f64 / 1e9;
    settings.extend([
        ("batch", Setting::Number(options.batch.into())),
        ("expression", Setting::Text(options.expression.clone())),
    ]);
    finish(measured.report("pull", settings, seconds), common)
}

/// Open a connection; the encryption of the first one is a setting of the report.
fn open(common: &CommonOptions, number: usize, settings: &mut Vec<(&str, Setting)>) -> Result<Connection, String> {
    let connection = Connection::open(&common.broker, common.tls)?;
    settings.extend(connection.encryption().filter(|_| number == 0).map(|text| ("tls", Setting::Text(text))));
    Ok(connection)
}

fn first_offsets(options: &PullOptions) -> Result<Vec<i64>, String> {
    let common = &options.common;
    if let Some(offset) = options.from {
        return Ok(vec![offset; common.queues as usize]);
    }
    let mut admin = AdminConnection::open(common)?;
    (0..common.queues).map(|queue| admin.min_offset(&common.topic, queue)).collect()
}

/// Return the end of each queue.
fn queue_ends(common: &CommonOptions) -> Result<Vec<i64>, String> {
    let mut admin = AdminConnection::open(common)?;
    (0..common.queues).map(|queue| admin.max_offset(&common.topic, queue)).collect()
}

/// Wait until each queue has as many messages more as were accepted. A queue that does not grow for the time-out is an error.
fn wait_readable(common: &CommonOptions, ends: &[i64], accepted: &[u64], timeout: Duration) -> Result<(), String> {
    let mut admin = AdminConnection::open(common)?;
    for (queue, (end, accepted)) in ends.iter().zip(accepted).enumerate() {
        let expected = end + *accepted as i64;
        let (mut last, mut since) = (-1, Instant::now());
        loop {
            let found = admin.max_offset(&common.topic, queue as u32)?;
            if found >= expected {
                break;
            }
            if found > last {
                (last, since) = (found, Instant::now());
            } else if since.elapsed() > timeout {
                let seconds = timeout.as_secs_f64();
                return Err(format!("queue {queue} ends at {found}, expected {expected}; not longer for {seconds} s"));
            }
            thread::sleep(READABLE_POLL);
        }
    }
    Ok(())
}

/// Return the part of a number that belongs to one of `count` connections.
fn share(number: u64, index: usize, count: usize) -> u64 {
    let (index, count) = (index as u64, count as u64);
    number / count + u64::from(index < number % count)
}

/// Distribute connections over threads.
fn distribute<T>(lanes: Vec<T>, threads: usize) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, lane) in lanes.into_iter().enumerate() {
        groups[number % threads].push(lane);
    }
    groups
}

struct Measured {
    tally: Tally,
    begin: CpuTimes,
    end: CpuTimes,
    readable_seconds: Option<f64>,
}

impl Measured {
    fn report(self, mode: &'static str, settings: Vec<(&'static str, Setting)>, seconds: f64) -> Report {
        let cpu_seconds = self.end.own - self.begin.own;
        let broker_cpu_seconds = self.end.broker.zip(self.begin.broker).map(|(end, begin)| end - begin);
        let readable_seconds = self.readable_seconds;
        Report { mode, settings, tally: self.tally, seconds, readable_seconds, cpu_seconds, broker_cpu_seconds }
    }
}

/// Run one job in each thread; read CPU times after the warm-up and after the duration, or when all jobs have ended.
fn run<F: FnOnce() -> Tally + Send>(
    jobs: Vec<F>,
    common: &CommonOptions,
    warm_up: Duration,
) -> Result<Measured, String> {
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        let count = jobs.len();
        for job in jobs {
            let sender = sender.clone();
            // The receiver outlives all threads, so that sending cannot fail.
            scope.spawn(move || drop(sender.send(job())));
        }
        drop(sender);
        let mut tallies = Vec::new();
        collect(&receiver, &mut tallies, count, Some(warm_up));
        let begin = CpuTimes::read(common.pid);
        collect(&receiver, &mut tallies, count, common.duration);
        let end = CpuTimes::read(common.pid);
        collect(&receiver, &mut tallies, count, None);
        let mut tally = Tally::default();
        tallies.into_iter().for_each(|other| tally.merge(other));
        if tally.failures.is_empty() && count > 0 {
            return Ok(Measured { tally, begin: begin?, end: end?, readable_seconds: None });
        }
        // A broker that has ended has no CPU time any more; the failure says more.
        let own = CpuTimes { own: own_seconds(), broker: None };
        Ok(Measured { tally, begin: begin.unwrap_or(own), end: end.unwrap_or(own), readable_seconds: None })
    })
}

/// Receive results until all are there or the time has passed; None waits for all.
fn collect(receiver: &Receiver<Tally>, tallies: &mut Vec<Tally>, count: usize, time: Option<Duration>) {
    let clock = Instant::now();
    while tallies.len() < count {
        let received = match time {
            Some(time) => receiver.recv_timeout(time.saturating_sub(clock.elapsed())),
            None => receiver.recv().map_err(RecvTimeoutError::from),
        };
        match received {
            Ok(tally) => tallies.push(tally),
            Err(_) => return,
        }
    }
}

fn common_settings(common: &CommonOptions) -> Vec<(&'static str, Setting)> {
    let header = if common.form == Form::Json { "json" } else { "binary" };
    vec![
        ("broker", Setting::Text(common.broker.clone())),
        ("topic", Setting::Text(common.topic.clone())),
        ("queues", Setting::Number(common.queues.into())),
        ("connections", Setting::Number(common.connections as f64)),
        ("threads", Setting::Number(common.threads as f64)),
        ("header", Setting::Text(header.to_owned())),
    ]
}

fn finish(report: Report, common: &CommonOptions) -> Result<Report, String> {
    if let Some(path) = &common.latency_file {
        let fault = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        std::fs::write(path, latency_lines(&report.tally.latencies)).map_err(fault)?;
    }
    Ok(report)
}

fn latency_lines(latencies: &Histogram) -> Vec<u8> {
    let mut text = b"us\tcount\n".to_vec();
    for (ns, count) in latencies.buckets() {
        writeln!(text, "{:.3}\t{count}", ns as f64 / 1e3).expect("a Vec");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        assert_eq!((0..3).map(|index| share(11, index, 3)).collect::<Vec<_>>(), [4, 4, 3]);
        assert_eq!((0..3).map(|index| share(1, index, 3)).sum::<u64>(), 1);
    }

    #[test]
    fn connections_are_distributed_evenly() {
        assert_eq!(distribute(vec![0, 1, 2, 3, 4], 2), [vec![0, 2, 4], vec![1, 3]]);
    }
}
