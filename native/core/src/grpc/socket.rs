//! A plain or encrypted socket, which notes since when its peer does not read.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

enum Stream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// Since when the peer has not read what was written; None while it reads.
pub type StalledSince = Rc<Cell<Option<Instant>>>;

pub struct Socket {
    stream: Stream,
    stalled_since: StalledSince,
}

impl Socket {
    pub fn plain(stream: TcpStream, stalled_since: StalledSince) -> Self {
        Self { stream: Stream::Plain(stream), stalled_since }
    }

    pub fn encrypted(stream: TlsStream<TcpStream>, stalled_since: StalledSince) -> Self {
        Self { stream: Stream::Encrypted(Box::new(stream)), stalled_since }
    }

    fn note<T>(&self, written: Poll<T>) -> Poll<T> {
        match &written {
            Poll::Ready(_) => self.stalled_since.set(None),
            Poll::Pending => self.stalled_since.set(self.stalled_since.get().or_else(|| Some(Instant::now()))),
        }
        written
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Encrypted(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        };
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
        };
        self.note(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
