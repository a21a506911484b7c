//! The form of a call: its method, headers, deadline, and the bytes of its messages.

use std::task::{ready, Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use http::request::Parts;
use http::{HeaderMap, Method};

use super::code;
use super::connection::OpenCall;

const SERVICE: &str = "/apache.rocketmq.v2.MessagingService/";
pub const MESSAGE_MAX: usize = 16 * 1024 * 1024; // bytes, as of a frame of remoting
pub const PREFIX_SIZE: usize = 5;

/// A call that ends with a status of gRPC and no message.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: u32,
    pub text: String,
}

impl Refusal {
    fn new(code: u32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// What the headers of a call say.
#[derive(Debug)]
pub struct Opening {
    pub method: String,
    pub deadline: Option<Instant>,
}

impl Opening {
    /// Return what the headers say; the inner error is the status of HTTP for a request that is not gRPC.
    pub fn read(parts: &Parts, now: Instant) -> Result<Result<Self, Refusal>, u16> {
        if parts.method != Method::POST {
            return Err(405);
        }
        let content_type = text_of(&parts.headers, "content-type");
        if !content_type.starts_with("application/grpc") {
            return Err(415);
        }
        let path = parts.uri.path();
        let Some(method) = path.strip_prefix(SERVICE) else {
            let text = format!("Method {} is unimplemented", path.trim_start_matches('/'));
            return Ok(Err(Refusal::new(code::UNIMPLEMENTED, text)));
        };
        let encoding = text_of(&parts.headers, "grpc-encoding");
        if !matches!(encoding, "" | "identity") {
            let text = format!("grpc-encoding {encoding} is not supported: send messages without compression");
            return Ok(Err(Refusal::new(code::UNIMPLEMENTED, text)));
        }
        let timeout = text_of(&parts.headers, "grpc-timeout");
        let deadline = match timeout {
            "" => None,
            text => match parse_timeout(text) {
                Some(timeout) => now.checked_add(timeout),
                None => return Ok(Err(Refusal::new(code::INTERNAL, format!("Invalid grpc-timeout {text:?}")))),
            },
        };
        Ok(Ok(Self { method: method.to_owned(), deadline }))
    }
}

/// Return the value of a header, empty without one or if it is not ASCII.
pub fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

/// Return the time of at most eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// The body of a call, as it arrives.
pub struct Body {
    stream: RecvStream,
    first: Bytes, // the only chunk of most bodies is not copied
    rest: BytesMut,
}

impl Body {
    pub fn new(stream: RecvStream) -> Self {
        Self { stream, first: Bytes::new(), rest: BytesMut::new() }
    }

    /// Bytes that have arrived.
    pub fn size(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    /// Return the message of a call that has one.
    pub fn poll_only(&mut self, cx: &mut Context<'_>, open: &OpenCall) -> Poll<Result<Bytes, Refusal>> {
        while !self.stream.is_end_stream() {
            if ready!(self.poll_more(cx, open))?.is_none() {
                break;
            }
        }
        let end = Refusal::new(code::INTERNAL, "expected one message");
        let message = self.next_message()?.ok_or(end)?;
        Poll::Ready(if self.size() == 0 {
            Ok(message)
        } else {
            Err(Refusal::new(code::INTERNAL, "expected one message"))
        })
    }

    /// Return the next message of a stream, None at its end.
    pub fn poll_message(&mut self, cx: &mut Context<'_>, open: &OpenCall) -> Poll<Result<Option<Bytes>, Refusal>> {
        loop {
            if let Some(message) = self.next_message()? {
                return Poll::Ready(Ok(Some(message)));
            }
            if ready!(self.poll_more(cx, open))?.is_none() {
                return Poll::Ready(Ok(None));
            }
        }
    }

    fn poll_more(&mut self, cx: &mut Context<'_>, open: &OpenCall) -> Poll<Result<Option<()>, Refusal>> {
        let Some(chunk) = ready!(self.stream.poll_data(cx)) else { return Poll::Ready(Ok(None)) };
        let chunk = chunk.map_err(|error| Refusal::new(code::CANCELLED, error.to_string()))?;
        if !open.hold(chunk.len()) {
            return Poll::Ready(Err(Refusal::new(
                code::RESOURCE_EXHAUSTED,
                "too many bytes of requests are not answered",
            )));
        }
        // A stream that was reset needs no capacity.
        let _ = self.stream.flow_control().release_capacity(chunk.len());
        if self.size() == 0 {
            self.first = chunk;
        } else {
            if self.rest.is_empty() {
                self.rest.extend_from_slice(&self.first);
                self.first = Bytes::new();
            }
            self.rest.extend_from_slice(&chunk);
        }
        // Checked with each chunk, so that no more than a message is collected.
        self.message_size()?;
        Poll::Ready(if self.size() > MESSAGE_MAX + PREFIX_SIZE + 65_536 {
            Err(too_large(self.size()))
        } else {
            Ok(Some(()))
        })
    }

    /// Return the size of the next message, None if its prefix is not complete.
    fn message_size(&self) -> Result<Option<usize>, Refusal> {
        let data = if self.rest.is_empty() { &self.first[..] } else { &self.rest[..] };
        let Some(prefix) = data.first_chunk::<PREFIX_SIZE>() else { return Ok(None) };
        if prefix[0] != 0 {
            return Err(Refusal::new(code::UNIMPLEMENTED, "compressed messages are not supported"));
        }
        let size = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if size > MESSAGE_MAX {
            Err(too_large(size))
        } else {
            Ok(Some(size))
        }
    }

    fn next_message(&mut self) -> Result<Option<Bytes>, Refusal> {
        let Some(size) = self.message_size()?.filter(|size| self.size() >= PREFIX_SIZE + size) else { return Ok(None) };
        if self.rest.is_empty() {
            self.first.advance(PREFIX_SIZE);
            return Ok(Some(self.first.split_to(size)));
        }
        self.rest.advance(PREFIX_SIZE);
        Ok(Some(self.rest.split_to(size).freeze()))
    }
}

fn too_large(size: usize) -> Refusal {
    let text = format!("Received message larger than max ({size} vs. {MESSAGE_MAX})");
    Refusal::new(code::RESOURCE_EXHAUSTED, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_digits_and_a_unit() {
        assert_eq!(parse_timeout("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_timeout("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse_timeout("20000m"), Some(Duration::from_secs(20)));
        assert_eq!(parse_timeout("99999999S"), Some(Duration::from_secs(99_999_999)));
        for text in ["", "1", "S", "123456789S", "-1S", "1s", "1 S", "é"] {
            assert_eq!(parse_timeout(text), None, "{text:?}");
        }
    }
}
