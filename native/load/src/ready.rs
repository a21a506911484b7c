//! Waiting until one of several connections has something to do.

use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::connection::Connection;

/// Nanoseconds since the start of the load, the same for all threads.
#[derive(Clone, Copy)]
pub struct LoadClock(Instant);

impl LoadClock {
    pub fn start() -> LoadClock {
        LoadClock(Instant::now())
    }

    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// Wait until a connection is readable, or writable while its output is blocked; at most until the time-out.
/// Sets for each connection whether it is ready.
pub fn wait<'a>(
    connections: impl Iterator<Item = &'a Connection>,
    timeout: Duration,
    ready: &mut Vec<bool>,
) -> Result<(), String> {
    let mut fds: Vec<PollFd<'_>> = connections
        .map(|connection| {
            let write = if connection.is_blocked() { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::from_borrowed_fd(connection.fd(), PollFlags::IN | write)
        })
        .collect();
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(format!("cannot wait for the broker: {error}")),
    }
    ready.clear();
    ready.extend(fds.iter().map(|fd| !fd.revents().is_empty()));
    Ok(())
}
