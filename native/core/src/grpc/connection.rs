//! A connection: HTTP/2 in, calls out. It accepts no more calls while too many are not answered.

use std::cell::Cell;
use std::future::{poll_fn, Future};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request};
use tokio::sync::{mpsc, Notify};
use tokio::task::spawn_local;
use tokio::time::{sleep_until, timeout};

use super::ack_pause::AckPause;
use super::calls::{refuse, reject, StreamAnswer, StreamingCall};
use super::plain_acks::PlainAck;
use super::plain_sends::PlainSend;
use super::request::{Body, Opening, Refusal};
use super::server::Server;
use super::socket::{Socket, StalledSince};
use super::turns::{Call, ConnectionId, Event, Inbox, Turn};

const STREAMS_MAX: u32 = 4096; // calls of a connection: a process has one connection for all its clients
const HEADERS_MAX: u32 = 16 * 1024; // bytes
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
const RESETS_PENDING_MAX: usize = 20; // streams that the client has reset before they were accepted
const RESETS_BY_ERROR_MAX: usize = 1024; // streams that were reset because of errors of the client
const SEND_BUFFER_MAX: usize = 256 * 1024; // bytes of a stream that HTTP/2 holds
const CONNECTION_HELD_MAX: usize = 64 * 1024 * 1024; // bytes of requests that are not answered
pub const HELD_MAX: usize = 512 * 1024 * 1024; // the same of all connections
const ACCEPTED_MAX: usize = 64; // calls of a turn: Python serves them while the next ones are read
const HANDSHAKE_S: u64 = 10;
const REQUEST_S: u64 = 60; // for the body of a call

/// What the thread knows about a connection.
pub struct ConnectionState {
    pub id: ConnectionId,
    pub open_calls: Cell<usize>,
    open_acks: Cell<usize>,       // those of them that acknowledge messages
    held: Cell<usize>,            // bytes of their requests
    held_by_all: Rc<Cell<usize>>, // the same of all connections
    pub last_active: Cell<Instant>,
    pub stalled_since: StalledSince,
    pub is_leaving: Cell<bool>, // has been sent GOAWAY, or is about to be
    pub changed: Notify,        // a call was answered, or the connection has to leave
}

impl ConnectionState {
    pub fn new(id: ConnectionId, held_by_all: Rc<Cell<usize>>) -> Self {
        Self {
            id,
            open_calls: Cell::new(0),
            open_acks: Cell::new(0),
            held: Cell::new(0),
            held_by_all,
            last_active: Cell::new(Instant::now()),
            stalled_since: StalledSince::default(),
            is_leaving: Cell::new(false),
            changed: Notify::new(),
        }
    }
}

/// Counts a call and the bytes of its request until it is dropped.
pub struct OpenCall {
    state: Rc<ConnectionState>,
    is_ack: bool,
    held: Cell<usize>,
}

impl OpenCall {
    fn new(state: &Rc<ConnectionState>, is_ack: bool) -> Self {
        state.open_calls.set(state.open_calls.get() + 1);
        state.open_acks.set(state.open_acks.get() + usize::from(is_ack));
        Self { state: Rc::clone(state), is_ack, held: Cell::new(0) }
    }

    /// Count bytes that have arrived. Return False if they are too many.
    pub fn hold(&self, size: usize) -> bool {
        self.add(size as isize);
        self.state.held.get() <= CONNECTION_HELD_MAX && self.state.held_by_all.get() <= HELD_MAX
    }

    /// Count the bytes of a message that Python has.
    pub fn release(&self) {
        self.add(-(self.held.get() as isize));
    }

    fn add(&self, size: isize) {
        for held in [&self.held, &self.state.held, &*self.state.held_by_all] {
            held.set(held.get().saturating_add_signed(size));
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.release();
        let state = &self.state;
        state.open_acks.set(state.open_acks.get() - usize::from(self.is_ack));
        if state.open_calls.replace(state.open_calls.get() - 1) >= STREAMS_MAX as usize {
            state.changed.notify_one();
        }
        state.last_active.set(Instant::now());
    }
}

/// Serve a connection until it ends.
pub async fn serve(socket: Socket, state: Rc<ConnectionState>, server: Rc<Server>) -> Result<(), String> {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADERS_MAX)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        .max_local_error_reset_streams(Some(RESETS_BY_ERROR_MAX))
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER_MAX);
    let handshake = timeout(Duration::from_secs(HANDSHAKE_S), builder.handshake::<_, Bytes>(socket));
    let mut http = match handshake.await {
        Err(_) => return Err(format!("it did not begin HTTP/2 within {HANDSHAKE_S} s")),
        Ok(opened) => opened.map_err(|error| text_of(&error))?,
    };
    let receiver = Receiver { state: &state, server: &server };
    let mut arrived = Arrived { turn: Turn::default(), inbox: &server.inbox };
    let (mut pause, mut pause_end) = (AckPause::default(), pin!(sleep_until(Instant::now().into())));
    loop {
        let mut changed = pin!(state.changed.notified());
        let mut accepted = 0;
        let ended = poll_fn(|cx| {
            let is_changed = changed.as_mut().poll(cx).is_ready();
            loop {
                if state.open_calls.get() >= STREAMS_MAX as usize || server.is_full() {
                    let closed = http.poll_closed(cx);
                    arrived.hand_over();
                    return match closed {
                        Poll::Ready(closed) => Poll::Ready(Some(closed)),
                        Poll::Pending if is_changed => Poll::Ready(None),
                        Poll::Pending => Poll::Pending,
                    };
                }
                match http.poll_accept(cx) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        receiver.accept(request, respond, cx, &mut arrived.turn);
                        accepted += 1;
                        if accepted >= ACCEPTED_MAX {
                            accepted = 0;
                            arrived.hand_over();
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                    }
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    Poll::Ready(None) => return Poll::Ready(Some(Ok(()))),
                    Poll::Pending => {
                        let waits =
                            pause.until(&arrived.turn, state.open_acks.get(), Instant::now()).is_some_and(|until| {
                                pause_end.as_mut().reset(until.into());
                                pause_end.as_mut().poll(cx).is_pending()
                            });
                        if !waits {
                            accepted = 0;
                            arrived.hand_over();
                        }
                        return if is_changed { Poll::Ready(None) } else { Poll::Pending };
                    }
                }
            }
        })
        .await;
        match ended {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => return Err(text_of(&error)),
            None if state.is_leaving.get() => http.graceful_shutdown(),
            None => {}
        }
    }
}

/// What has arrived and is not handed over. The end of the connection does not lose it: each call has to be answered.
struct Arrived<'a> {
    turn: Turn,
    inbox: &'a Inbox,
}

impl Arrived<'_> {
    fn hand_over(&mut self) {
        self.inbox.add(&mut self.turn);
    }
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        self.hand_over();
    }
}

/// Return why a connection ended; empty if its peer has closed it.
fn text_of(error: &h2::Error) -> String {
    let is_closed = error.get_io().is_some_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
        )
    });
    if is_closed || (error.is_remote() && error.reason() == Some(Reason::NO_ERROR)) {
        String::new()
    } else {
        error.to_string()
    }
}

struct Receiver<'a> {
    state: &'a Rc<ConnectionState>,
    server: &'a Rc<Server>,
}

impl Receiver<'_> {
    /// Add a call to the turn, or start a task that waits for the rest of its request.
    fn accept(
        &self,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        cx: &mut std::task::Context<'_>,
        turn: &mut Turn,
    ) {
        let now = Instant::now();
        let (parts, stream) = request.into_parts();
        let Opening { method, deadline } = match Opening::read(&parts, now) {
            Ok(Ok(opening)) => opening,
            Ok(Err(refusal)) => return refuse(respond, refusal.code, &refusal.text),
            Err(status) => return reject(respond, status),
        };
        if !self.server.settings.methods.contains(&method) {
            let text = format!("Method apache.rocketmq.v2.MessagingService/{method} is unimplemented");
            return refuse(respond, super::code::UNIMPLEMENTED, &text);
        }
        self.state.last_active.set(now);
        let open = OpenCall::new(self.state, method == "AckMessage");
        let mut arriving = Arriving {
            id: self.server.next_call(),
            method,
            headers: parts.headers,
            deadline,
            body: Body::new(stream),
            respond,
            open,
        };
        if arriving.method == "Telemetry" {
            arriving.add(None, self.state.id, self.server, turn);
            return;
        }
        match arriving.body.poll_only(cx, &arriving.open) {
            Poll::Ready(Ok(data)) => arriving.add(Some(data), self.state.id, self.server, turn),
            Poll::Ready(Err(refusal)) => refuse(arriving.respond, refusal.code, &refusal.text),
            Poll::Pending => {
                spawn_local(arriving.finish(self.state.id, Rc::clone(self.server)));
            }
        }
    }
}

/// A call whose request may be incomplete.
struct Arriving {
    id: u64,
    method: String,
    headers: HeaderMap,
    deadline: Option<Instant>,
    body: Body,
    respond: SendResponse<Bytes>,
    open: OpenCall,
}

impl Arriving {
    /// Wait for the rest of the request.
    async fn finish(mut self, connection: ConnectionId, server: Rc<Server>) {
        let received = timeout(Duration::from_secs(REQUEST_S), poll_fn(|cx| self.body.poll_only(cx, &self.open))).await;
        let expired = || {
            let text = format!("the request did not arrive within {REQUEST_S} s");
            Err(Refusal { code: super::code::DEADLINE_EXCEEDED, text })
        };
        match received.unwrap_or_else(|_| expired()) {
            Ok(data) => {
                let mut turn = Turn::default();
                self.add(Some(data), connection, &server, &mut turn);
                server.inbox.add(&mut turn);
            }
            Err(refusal) => refuse(self.respond, refusal.code, &refusal.text),
        }
    }

    /// Add the call to a turn. `data` is None for a Telemetry stream.
    fn add(self, data: Option<Bytes>, connection: ConnectionId, server: &Rc<Server>, turn: &mut Turn) {
        let Self { id, method, headers, deadline, body, respond, open } = self;
        let is_stream = data.is_none() || method == "ReceiveMessage";
        let body = data.is_none().then_some(body);
        if is_stream {
            let (sender, answers) = mpsc::unbounded_channel::<StreamAnswer>();
            server.calls.add_stream(id, sender);
            let (inbox, calls) = (server.inbox.clone(), Rc::clone(&server.calls));
            spawn_local(StreamingCall { id, respond, answers, body, deadline, inbox, calls, open }.serve());
        } else {
            server.calls.add_unary(id, respond, deadline, open);
        }
        let call = Call { connection, id, method, headers, data: data.unwrap_or_default(), deadline };
        let other = match call.method.as_str() {
            "SendMessage" if server.settings.takes_plain_calls => {
                PlainSend::read(call, &server.settings.reserved).map(|send| turn.sends.push(send))
            }
            "AckMessage" if server.settings.takes_plain_calls => PlainAck::read(call).map(|ack| turn.acks.push(ack)),
            _ => Err(Box::new(call)),
        };
        if let Err(call) = other {
            turn.events.push(Event::Call(call));
        }
    }
}
