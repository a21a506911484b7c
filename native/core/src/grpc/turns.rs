//! What the thread and Python pass each other: events of a turn, and answers. Each side wakes the other once per turn.

use std::io::{ErrorKind, Read, Write};
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::Notify;
use tokio_rustls::rustls::ServerConfig;

use super::plain_acks::PlainAck;
use super::plain_sends::PlainSend;
use super::request::text_of;

pub type ConnectionId = u64;
pub type CallId = u64;

/// A call whose request is complete, or a Telemetry stream.
#[derive(Debug, Default)]
pub struct Call {
    pub connection: ConnectionId,
    pub id: CallId,
    pub method: String,
    pub headers: HeaderMap,
    pub data: Bytes,
    pub deadline: Option<Instant>,
}

const CLIENT_ID_MAX: usize = 255;

impl Call {
    /// Return the id of the client; None if it is not valid.
    pub fn client_id(&self) -> Option<&str> {
        let client_id = text_of(&self.headers, "x-mq-client-id");
        (!client_id.trim().is_empty() && client_id.len() <= CLIENT_ID_MAX).then_some(client_id)
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    Opened { connection: ConnectionId, peer: SocketAddr },
    Closed { connection: ConnectionId, reason: String },
    TlsNeeded, // a client encrypts, and there is no certificate yet
    Call(Box<Call>),
    Message { call: CallId, data: Bytes }, // of a Telemetry stream; the next one follows after `Answer::Read`
    Ended { call: CallId },                // the client has sent its last message
    Cancelled { call: CallId },            // of a streaming call; it is not answered any more
    Room { call: CallId },                 // the messages of a streaming call were written
}

/// What Python wants the thread to do.
pub enum Answer {
    Reply { call: CallId, framed: Bytes }, // the only one of a call, which ends with it
    Message { call: CallId, framed: Bytes, wants_room: bool },
    End { call: CallId, code: u32, text: String },
    Read { call: CallId },
    Abort { connection: ConnectionId },
    Tls(Arc<ServerConfig>),
    Stop,
}

/// The events since Python has taken the last ones.
#[derive(Debug, Default)]
pub struct Turn {
    pub events: Vec<Event>,
    pub sends: Vec<PlainSend>,
    pub acks: Vec<PlainAck>,
}

impl Turn {
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.sends.is_empty() && self.acks.is_empty()
    }
}

/// Collects events; a byte in the pipe says that there are some.
#[derive(Debug)]
pub struct Inbox {
    turn: Mutex<Turn>,
    wakes: UnixStream, // the thread writes here
    woken: UnixStream, // Python's loop watches this end
}

impl Inbox {
    pub fn new() -> std::io::Result<Self> {
        let (wakes, woken) = UnixStream::pair()?;
        wakes.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        Ok(Self { turn: Mutex::default(), wakes, woken })
    }

    /// The descriptor that is readable while there are events.
    pub fn descriptor(&self) -> RawFd {
        self.woken.as_raw_fd()
    }

    /// Add events, and leave `more` empty.
    pub fn add(&self, more: &mut Turn) {
        if more.is_empty() {
            return;
        }
        let mut turn = locked(&self.turn);
        let was_empty = turn.is_empty();
        turn.events.append(&mut more.events);
        turn.sends.append(&mut more.sends);
        turn.acks.append(&mut more.acks);
        if was_empty {
            // A full pipe is readable, which is all that matters.
            let _ = (&self.wakes).write(&[1]);
        }
    }

    pub fn add_event(&self, event: Event) {
        self.add(&mut Turn { events: vec![event], ..Turn::default() });
    }

    /// Take all events.
    pub fn take(&self) -> Turn {
        let mut turn = locked(&self.turn);
        let mut bytes = [0; 64];
        while let Ok(size) = (&self.woken).read(&mut bytes).or_else(|error| match error.kind() {
            ErrorKind::Interrupted => Ok(bytes.len()),
            _ => Err(error),
        }) {
            if size < bytes.len() {
                break;
            }
        }
        mem::take(&mut turn)
    }
}

/// Collects answers until `send`.
#[derive(Default)]
pub struct Outbox {
    pending: Mutex<Vec<Answer>>,
    sent: Mutex<Vec<Answer>>,
    ready: Notify,
}

impl Outbox {
    pub fn add(&self, answer: Answer) {
        locked(&self.pending).push(answer);
    }

    pub fn extend(&self, answers: impl Iterator<Item = Answer>) {
        locked(&self.pending).extend(answers);
    }

    /// Pass the answers on.
    pub fn send(&self) {
        let mut pending = locked(&self.pending);
        if !pending.is_empty() {
            locked(&self.sent).append(&mut pending);
            self.ready.notify_one();
        }
    }

    /// Wait for answers, and return them.
    pub async fn received(&self) -> Vec<Answer> {
        loop {
            self.ready.notified().await;
            let answers = mem::take(&mut *locked(&self.sent));
            if !answers.is_empty() {
                return answers;
            }
        }
    }
}

/// No code panics while it holds a lock, so the content is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
