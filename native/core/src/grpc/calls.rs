//! The calls that are not answered yet, and their answers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{poll_fn, Future};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{sleep_until, timeout};

use super::code;
use super::connection::OpenCall;
use super::request::{Body, Refusal, PREFIX_SIZE};
use super::turns::{Answer, CallId, Event, Inbox};

const UNREAD_MAX: Duration = Duration::from_secs(60); // for which a client may leave a message unread

/// A part of the answer to a streaming call.
pub enum StreamAnswer {
    Message { framed: Bytes, wants_room: bool },
    End { code: u32, text: String },
    Read,
}

enum Pending {
    Unary { respond: SendResponse<Bytes>, deadline: Option<Instant>, _open: OpenCall },
    Stream(UnboundedSender<StreamAnswer>),
}

/// Calls by number.
#[derive(Default)]
pub struct Calls {
    pending: RefCell<HashMap<CallId, Pending>>,
}

impl Calls {
    pub fn add_unary(&self, id: CallId, respond: SendResponse<Bytes>, deadline: Option<Instant>, open: OpenCall) {
        self.pending.borrow_mut().insert(id, Pending::Unary { respond, deadline, _open: open });
    }

    pub fn add_stream(&self, id: CallId, answers: UnboundedSender<StreamAnswer>) {
        self.pending.borrow_mut().insert(id, Pending::Stream(answers));
    }

    pub fn count(&self) -> usize {
        self.pending.borrow().len()
    }

    /// Pass an answer on. Calls that have ended need none.
    pub fn answer(&self, answer: Answer) {
        let mut pending = self.pending.borrow_mut();
        match answer {
            Answer::Reply { call, framed } => match pending.remove(&call) {
                Some(Pending::Unary { respond, deadline: Some(deadline), .. }) if deadline < Instant::now() => {
                    refuse(respond, code::DEADLINE_EXCEEDED, "Deadline Exceeded");
                }
                Some(Pending::Unary { respond, .. }) => reply(respond, framed),
                Some(Pending::Stream(answers)) => {
                    let _ = answers.send(StreamAnswer::Message { framed, wants_room: false });
                    let _ = answers.send(StreamAnswer::End { code: code::OK, text: String::new() });
                }
                None => {}
            },
            Answer::End { call, code, text } => match pending.remove(&call) {
                Some(Pending::Unary { respond, .. }) => refuse(respond, code, &text),
                Some(Pending::Stream(answers)) => {
                    let _ = answers.send(StreamAnswer::End { code, text });
                }
                None => {}
            },
            Answer::Message { call, framed, wants_room } => {
                if let Some(Pending::Stream(answers)) = pending.get(&call) {
                    let _ = answers.send(StreamAnswer::Message { framed, wants_room });
                }
            }
            Answer::Read { call } => {
                if let Some(Pending::Stream(answers)) = pending.get(&call) {
                    let _ = answers.send(StreamAnswer::Read);
                }
            }
            Answer::Abort { .. } | Answer::Tls(_) | Answer::Stop => {}
        }
    }

    fn forget(&self, id: CallId) {
        self.pending.borrow_mut().remove(&id);
    }
}

// --- responses; a client that has reset its call needs none ---

fn response() -> Response<()> {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    response
}

fn trailers(code: u32, text: &str) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert("grpc-status", HeaderValue::from(code));
    if !text.is_empty() {
        trailers.insert("grpc-message", HeaderValue::try_from(percent_encoded(text)).expect("is ASCII"));
    }
    trailers
}

/// Encode a text for `grpc-message`: printable ASCII except `%` remains.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn reply(mut respond: SendResponse<Bytes>, framed: Bytes) {
    let Ok(mut stream) = respond.send_response(response(), false) else { return };
    if stream.send_data(framed, false).is_ok() {
        let _ = stream.send_trailers(trailers(code::OK, ""));
    }
}

/// End a call without a message.
pub fn refuse(mut respond: SendResponse<Bytes>, code: u32, text: &str) {
    let mut response = response();
    response.headers_mut().extend(trailers(code, text));
    let _ = respond.send_response(response, true);
}

/// Answer a request that is not gRPC.
pub fn reject(mut respond: SendResponse<Bytes>, status: u16) {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).expect("is a status");
    let _ = respond.send_response(response, true);
}

/// Prefix a message with its size.
pub fn framed(message: &[u8]) -> Bytes {
    let mut framed = Vec::with_capacity(PREFIX_SIZE + message.len());
    put_prefix(&mut framed, message.len());
    framed.extend_from_slice(message);
    framed.into()
}

/// Encode a message after its prefix.
pub fn framed_message(message: &impl prost::Message) -> Bytes {
    let mut framed = Vec::new();
    put_message(&mut framed, message);
    framed.into()
}

/// Append a message with its prefix.
pub fn put_message(framed: &mut Vec<u8>, message: &impl prost::Message) {
    let size = message.encoded_len();
    framed.reserve(PREFIX_SIZE + size);
    put_prefix(framed, size);
    message.encode_raw(framed);
}

fn put_prefix(framed: &mut Vec<u8>, size: usize) {
    framed.push(0); // not compressed
    framed.extend_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes());
}

// --- streaming calls ---

/// A streaming call until it ends.
pub struct StreamingCall {
    pub id: CallId,
    pub respond: SendResponse<Bytes>,
    pub answers: UnboundedReceiver<StreamAnswer>,
    pub body: Option<Body>, // of a Telemetry stream; None once the request is complete
    pub deadline: Option<Instant>,
    pub inbox: std::sync::Arc<Inbox>,
    pub calls: Rc<Calls>,
    pub open: OpenCall,
}

enum Next {
    Answer(StreamAnswer),
    Message(Result<Option<Bytes>, Refusal>),
    Reset,
    Expired,
}

impl StreamingCall {
    /// Pass messages on in both directions, until the call is answered, cancelled or expired.
    pub async fn serve(mut self) {
        if !self.pass_on().await {
            self.inbox.add_event(Event::Cancelled { call: self.id });
        }
        self.calls.forget(self.id);
    }

    /// Return whether the call was answered to its end.
    async fn pass_on(&mut self) -> bool {
        let mut stream: Option<SendStream<Bytes>> = None; // None before the first message
        let mut reads = self.body.is_some(); // whether Python wants the next message
        let deadline = self.deadline.map(Into::into);
        let mut expired = pin!(async move {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        });
        loop {
            let next = poll_fn(|cx| {
                if expired.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Next::Expired);
                }
                if let Poll::Ready(answer) = self.answers.poll_recv(cx) {
                    return Poll::Ready(answer.map_or(Next::Reset, Next::Answer));
                }
                if reads {
                    if let Some(Poll::Ready(message)) = self.body.as_mut().map(|body| body.poll_message(cx, &self.open))
                    {
                        return Poll::Ready(Next::Message(message));
                    }
                }
                self.poll_reset(stream.as_mut(), cx).map(|()| Next::Reset)
            })
            .await;
            match next {
                Next::Answer(StreamAnswer::Message { framed, wants_room }) => {
                    if stream.is_none() {
                        match self.respond.send_response(response(), false) {
                            Ok(opened) => stream = Some(opened),
                            Err(_) => return false,
                        }
                    }
                    let Some(stream) = stream.as_mut() else { return false };
                    if !matches!(timeout(UNREAD_MAX, write(stream, framed)).await, Ok(true)) {
                        stream.send_reset(Reason::CANCEL);
                        return false;
                    }
                    if wants_room {
                        self.inbox.add_event(Event::Room { call: self.id });
                    }
                }
                Next::Answer(StreamAnswer::End { code, text }) => {
                    self.end(stream.as_mut(), code, &text);
                    return true;
                }
                Next::Answer(StreamAnswer::Read) => reads = self.body.is_some(),
                Next::Message(Ok(Some(data))) => {
                    reads = false;
                    self.open.release();
                    self.inbox.add_event(Event::Message { call: self.id, data });
                }
                Next::Message(Ok(None)) => {
                    (reads, self.body) = (false, None);
                    self.inbox.add_event(Event::Ended { call: self.id });
                }
                Next::Message(Err(refusal)) => {
                    self.end(stream.as_mut(), refusal.code, &refusal.text);
                    return false;
                }
                Next::Expired => {
                    self.end(stream.as_mut(), code::DEADLINE_EXCEEDED, "Deadline Exceeded");
                    return false;
                }
                Next::Reset => return false,
            }
        }
    }

    fn poll_reset(&mut self, stream: Option<&mut SendStream<Bytes>>, cx: &mut Context<'_>) -> Poll<()> {
        match stream {
            Some(stream) => stream.poll_reset(cx).map(|_| ()),
            None => self.respond.poll_reset(cx).map(|_| ()),
        }
    }

    fn end(&mut self, stream: Option<&mut SendStream<Bytes>>, code: u32, text: &str) {
        match stream {
            Some(stream) => {
                let _ = stream.send_trailers(trailers(code, text));
            }
            None => {
                let mut response = response();
                response.headers_mut().extend(trailers(code, text));
                let _ = self.respond.send_response(response, true);
            }
        }
    }
}

/// Write a message as fast as the client reads it. Return False if the call was reset.
async fn write(stream: &mut SendStream<Bytes>, mut framed: Bytes) -> bool {
    while !framed.is_empty() {
        stream.reserve_capacity(framed.len());
        let capacity = match stream.capacity() {
            0 => match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(capacity)) => capacity,
                _ => return false,
            },
            capacity => capacity,
        };
        let part = framed.split_to(capacity.min(framed.len()));
        if stream.send_data(part, false).is_err() {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_statuses_are_ascii() {
        assert_eq!(percent_encoded("a b%c\n\u{e9}"), "a b%25c%0A%C3%A9");
    }
}
