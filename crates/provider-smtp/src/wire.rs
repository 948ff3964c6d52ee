//! The byte stream under the SMTP client: TCP, plain or in TLS. What the server says passes through a sieve that
//! gives the client one clean line at a time, since the client is strict where servers are not and has no bound of
//! its own on a line that never ends.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use lettre::transport::smtp::client::AsyncTokioStream;
use lettre::transport::smtp::response::Response;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// More of one line than this is not read; RFC 5321 allows 512.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// More of one line than this is not passed on; the client takes 1000.
const LINE_BYTES_KEPT: usize = 900;
/// A reply of more lines than this is not read.
const REPLY_LINES_MAX: usize = 100;

pub struct Wire {
    stream: Stream,
    /// What came and is not a whole line yet, or comes after one.
    raw: Vec<u8>,
    /// The clean line that is being read, and how far.
    line: Vec<u8>,
    given: usize,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    pub fn plain(tcp: TcpStream) -> Self {
        Self { stream: Stream::Plain(tcp), raw: Vec::new(), line: Vec::new(), given: 0 }
    }

    /// The same connection in TLS. Whatever the server had said already came unprotected, perhaps from somebody
    /// else, and would pass for an answer given in TLS; so there may be nothing.
    pub async fn into_tls(self, connector: &TlsConnector, name: ServerName<'static>) -> io::Result<Self> {
        let is_clean = self.raw.is_empty() && self.given == self.line.len();
        match self.stream {
            Stream::Plain(tcp) if is_clean => {
                let stream = Stream::Tls(Box::new(connector.connect(name, tcp).await?));
                Ok(Self { stream, raw: Vec::new(), line: Vec::new(), given: 0 })
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the server spoke before TLS began")),
        }
    }

    /// Makes the next read give this line, as if the server had said it again.
    pub fn say_again(&mut self, greeting: &Response) {
        let first = greeting.first_line().unwrap_or_default();
        self.line = clean(format!("{} {first}", greeting.code()).as_bytes());
        self.given = 0;
    }

    pub async fn read_reply(&mut self) -> io::Result<Response> {
        let mut reply = String::new();
        let mut line = [0; LINE_BYTES_KEPT + 8];
        for _ in 0..REPLY_LINES_MAX {
            // A read gives a whole line, because the buffer has room for one.
            let length = self.read(&mut line).await?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            reply.push_str(&String::from_utf8_lossy(&line[..length]));
            if line[..length].get(3) != Some(&b'-') {
                break;
            }
        }
        reply
            .parse()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the server's reply is not SMTP"))
    }

    /// Where this side of the connection is.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().local_addr()
    }

    fn tcp(&self) -> &TcpStream {
        match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => tls.get_ref().0,
        }
    }

    fn writer(&mut self) -> Pin<&mut (dyn AsyncWrite + Send + Sync + Unpin)> {
        match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp),
            Stream::Tls(tls) => Pin::new(tls.as_mut()),
        }
    }

    /// Reads until `line` holds a whole line; false at the end of the stream.
    fn poll_line(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            if let Some(end) = self.raw.iter().position(|byte| *byte == b'\n') {
                self.line = clean(&self.raw[..end]);
                self.given = 0;
                self.raw.drain(..=end);
                return Poll::Ready(Ok(true));
            }
            if self.raw.len() > LINE_BYTES_MAX {
                let error = io::Error::new(io::ErrorKind::InvalidData, "the server's reply has no end");
                return Poll::Ready(Err(error));
            }
            let mut space = [0; 4096];
            let mut buffer = ReadBuf::new(&mut space);
            ready!(match &mut self.stream {
                Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, &mut buffer),
                Stream::Tls(tls) => Pin::new(tls.as_mut()).poll_read(cx, &mut buffer),
            })?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(false));
            }
            self.raw.extend_from_slice(buffer.filled());
        }
    }
}

/// A line of a reply as the client wants it: UTF-8, of bounded length, ended by CRLF, with a blank after a code that
/// stands alone, no text of blanks only, and a code it knows. (A second digit over 5 is used by some servers and
/// defined nowhere; such a reply becomes x50 with its own code first in the text.)
fn clean(raw: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(raw);
    let text = text.trim_end();
    let text = &text[..text.floor_char_boundary(LINE_BYTES_KEPT)];
    let mut line = match text.as_bytes() {
        [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9'] => format!("{text} "),
        [first @ b'2'..=b'5', b'6'..=b'9', b'0'..=b'9', between @ (b' ' | b'-'), ..] => {
            format!("{}50{}{text}", char::from(*first), char::from(*between))
        }
        _ => text.to_owned(),
    }
    .into_bytes();
    line.extend_from_slice(b"\r\n");
    line
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.given == self.line.len() && !ready!(self.poll_line(cx))? {
            return Poll::Ready(Ok(()));
        }
        let rest = &self.line[self.given..];
        let fitting = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..fitting]);
        self.given += fitting;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writer().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_shutdown(cx)
    }
}

impl AsyncTokioStream for Wire {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().peer_addr()
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.stream {
            Stream::Plain(_) => "Wire(plain)",
            Stream::Tls(_) => "Wire(TLS)",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_made_clean() {
        let long = format!("250 {}", "x".repeat(5000));
        let cases: [(&[u8], String); 10] = [
            (b"250 2.0.0 Ok: queued as A\r", "250 2.0.0 Ok: queued as A\r\n".into()),
            (b"250-SIZE 100", "250-SIZE 100\r\n".into()),
            (b"250\r", "250 \r\n".into()),
            (b"250   \r", "250 \r\n".into()),
            (b"250-   \r", "250-\r\n".into()),
            ("550 usuário\r".as_bytes(), "550 usuário\r\n".into()),
            (b"550 usu\xe1rio\r", "550 usu\u{fffd}rio\r\n".into()),
            (b"571 blocked\r", "550 571 blocked\r\n".into()),
            (b"471-slow\r", "450-471-slow\r\n".into()),
            (long.as_bytes(), format!("{}\r\n", &long[..LINE_BYTES_KEPT])),
        ];
        for (raw, expected) in cases {
            assert_eq!(String::from_utf8_lossy(&clean(raw)), expected);
        }
    }

    proptest! {
        /// Whatever a server says: one line of UTF-8 that is bounded, and that lettre can be given.
        #[test]
        fn any_reply_is_one_bounded_line(raw in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..1500),
            "[2-5][0-9]{2}[ -]?\\PC{0,200}".prop_map(String::into_bytes),
            "[0-9]{3}[ -]?[ \t\r]{0,5}é{0,600}".prop_map(String::into_bytes),
        ]) {
            let raw: Vec<u8> = raw.into_iter().filter(|byte| *byte != b'\n').collect();
            let line = String::from_utf8(clean(&raw)).expect("UTF-8");
            let text = line.strip_suffix("\r\n").expect("an end");
            prop_assert!(!text.contains('\n') && text.len() <= LINE_BYTES_KEPT + 4, "{text:?}");
        }
    }
}
