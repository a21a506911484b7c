//! A connection that never blocks: output waits in a buffer until the socket takes it, input until a frame is whole.
//!
//! A loop that wrote without reading would stop together with a broker that stops reading until its answers are taken.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::frame::{frame_size, Frame};
use crate::tls::TlsSession;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const INPUT_SIZE: usize = 512 * 1024;

/// Bytes that were received and not yet handled.
pub struct Input {
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
}

pub struct Connection {
    stream: TcpStream,
    tls: Option<TlsSession>,
    pub input: Input,
    /// Frames to send, appended by the owner.
    pub output: Vec<u8>,
    /// Bytes of `output` that the socket has taken.
    written: usize,
}

/// Open a socket without delay of small packets.
fn connect(broker: &str) -> Result<TcpStream, String> {
    let fault = |error: std::io::Error| format!("cannot connect to the broker {broker}: {error}");
    let mut last = None;
    for addr in broker.to_socket_addrs().map_err(fault)? {
        match TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT) {
            Ok(stream) => return stream.set_nodelay(true).map(|()| stream).map_err(fault),
            Err(error) => last = Some(error),
        }
    }
    Err(fault(last.unwrap_or_else(|| std::io::Error::other("the name has no address"))))
}

impl Connection {
    /// Open a connection that never blocks, encrypted if `with_tls`.
    pub fn open(broker: &str, with_tls: bool) -> Result<Connection, String> {
        let connection = Connection::open_blocking(broker, with_tls, None)?;
        connection.stream.set_nonblocking(true).map_err(|error| error.to_string())?;
        Ok(connection)
    }

    /// Open a connection whose reads wait, at most for this time.
    pub fn open_blocking(broker: &str, with_tls: bool, timeout: Option<Duration>) -> Result<Connection, String> {
        let mut stream = connect(broker)?;
        stream.set_read_timeout(timeout.or(Some(CONNECT_TIMEOUT))).map_err(|error| error.to_string())?;
        let tls = if with_tls { Some(TlsSession::open(&mut stream, broker)?) } else { None };
        Ok(Connection { stream, tls, input: Input::default(), output: Vec::with_capacity(INPUT_SIZE), written: 0 })
    }

    /// Return protocol and cipher of an encrypted connection.
    pub fn encryption(&self) -> Option<String> {
        self.tls.as_ref().map(TlsSession::description)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Return whether output waits until the socket is writable.
    pub fn is_blocked(&self) -> bool {
        !self.output.is_empty() || self.is_tls_blocked()
    }

    fn is_tls_blocked(&self) -> bool {
        self.tls.as_ref().is_some_and(TlsSession::is_blocked)
    }

    /// Write as much of the output as the socket takes.
    pub fn flush(&mut self) -> Result<(), String> {
        while self.written < self.output.len() || self.is_tls_blocked() {
            let pending = &self.output[self.written..];
            let taken = match &mut self.tls {
                Some(tls) => tls.write(&mut self.stream, pending),
                None => self.stream.write(pending),
            };
            match taken {
                Ok(size) => self.written += size,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("cannot write to the broker: {error}")),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    /// Read once.
    pub fn read(&mut self) -> Result<(), String> {
        let size = match &mut self.tls {
            Some(tls) => tls.read(&mut self.stream, &mut self.input),
            None => self.input.read_from(&mut self.stream),
        };
        match size {
            Ok(0) => Err("the broker closed the connection".to_owned()),
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(format!("cannot read from the broker: {error}")),
        }
    }
}

impl Default for Input {
    fn default() -> Self {
        Input { buffer: vec![0; INPUT_SIZE], begin: 0, end: 0 }
    }
}

impl Input {
    /// Return free space at the end; the rest of an incomplete frame moves to the front, and a large one gets a larger buffer.
    fn room(&mut self) -> &mut [u8] {
        if self.begin > 0 {
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(2 * self.buffer.len(), 0);
        }
        &mut self.buffer[self.end..]
    }

    /// Read once; return the number of bytes, 0 at the end.
    pub fn read_from(&mut self, source: &mut impl Read) -> std::io::Result<usize> {
        let size = source.read(self.room())?;
        self.end += size;
        Ok(size)
    }

    /// Return the next whole frame; None until more is read.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, String> {
        let pending = &self.buffer[self.begin..self.end];
        match frame_size(pending)? {
            Some(size) if size <= pending.len() => {
                let begin = self.begin;
                self.begin += size;
                Frame::parse(&self.buffer[begin..begin + size]).map(Some)
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Form;

    fn receive(input: &mut Input, bytes: &[u8]) {
        let room = input.room();
        room[..bytes.len()].copy_from_slice(bytes);
        input.end += bytes.len();
    }

    #[test]
    fn frames_are_returned_when_they_are_whole() {
        let bytes = Form::Binary.encode(10, 1, &[], b"body").bytes;
        let mut input = Input::default();
        for part in [&bytes[..3], &bytes[3..10], &bytes[10..bytes.len() - 1]] {
            receive(&mut input, part);
            assert!(input.next_frame().unwrap().is_none());
        }
        receive(&mut input, &[bytes[bytes.len() - 1..].to_vec(), bytes.clone(), bytes[..5].to_vec()].concat());
        assert_eq!(input.next_frame().unwrap().unwrap().body, b"body");
        assert_eq!(input.next_frame().unwrap().unwrap().body, b"body");
        assert!(input.next_frame().unwrap().is_none());
    }

    #[test]
    fn frames_larger_than_the_buffer() {
        let body = vec![7; 3 * INPUT_SIZE];
        let bytes = Form::Json.encode(10, 1, &[], &body).bytes;
        let mut input = Input::default();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            assert!(input.next_frame().unwrap().is_none());
            let size = input.room().len().min(rest.len());
            receive(&mut input, &rest[..size]);
            rest = &rest[size..];
        }
        assert_eq!(input.next_frame().unwrap().unwrap().body.len(), body.len());
    }
}
