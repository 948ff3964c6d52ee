//! The stream below hyper. It gives up on a client that takes nothing of its answer. After an early answer it reads on for
//! a while before it closes, and where hyper answers by itself, to a head that it cannot read, it says in our words what
//! hyper says in none: such a request never reaches the router, and its answer is to be like every other all the same.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::edge;
use crate::error::Problem;
use crate::limits::HEAD_BYTES_MAX;
use crate::rate::RateStatus;
use crate::serve::ServeSettings;
use crate::serve::patience::Arrivals;

/// How long what a client still sends is read and thrown away after an early answer. Closing at once would
/// reset the connection and the client might never see the answer.
pub const LINGER: Duration = Duration::from_secs(2);
/// Hyper's own answers have a status line and two or three short headers.
const BARE_ANSWER_BYTES_MAX: usize = 256;

/// A whole answer, for whoever is answered without a router. The connection closes after it.
pub fn plain_answer(problem: Problem, requests_per_sec: u32) -> Vec<u8> {
    let problem = problem.closing();
    let id = edge::new_request_id();
    let body = problem.body(&id);
    let mut headers: HeaderMap = problem.headers.iter().cloned().collect();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    edge::put_problem_type(&mut headers);
    edge::put_common(&mut headers, &id, RateStatus::untouched(requests_per_sec));
    let mut answer = format!("HTTP/1.1 {}\r\n", problem.status).into_bytes();
    for (name, value) in &headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            answer.extend_from_slice(part);
        }
    }
    answer.extend_from_slice(b"\r\n");
    answer.extend_from_slice(body.as_bytes());
    answer
}

/// What is wrong with a head, if these bytes are hyper's own answer to it. Every answer of the router has a request id;
/// hyper's have none, and no body.
fn unread_head(bytes: &[u8]) -> Option<Problem> {
    if bytes.len() > BARE_ANSWER_BYTES_MAX || !bytes.starts_with(b"HTTP/1.") || !bytes.ends_with(b"\r\n\r\n")
    {
        return None;
    }
    let head = std::str::from_utf8(bytes).ok()?;
    if head.contains(edge::REQUEST_ID.as_str()) {
        return None;
    }
    match head.get(9..12)? {
        "400" => Some(Problem::bad_request("INVALID_REQUEST", "this is no HTTP request that can be read")),
        "414" => Some(Problem::new(
            StatusCode::URI_TOO_LONG,
            "ADDRESS_TOO_LONG",
            "the address of the request is too long",
        )),
        "431" => Some(Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "HEAD_TOO_LARGE",
            format!("the head of the request has more than 100 lines or {HEAD_BYTES_MAX} bytes"),
        )),
        _ => None,
    }
}

pub struct Stream {
    stream: TcpStream,
    /// An answer may have come before everything was read.
    lingers: Arc<AtomicBool>,
    arrivals: Arrivals,
    until: Option<Pin<Box<Sleep>>>,
    requests_per_sec: u32,
    stall_timeout: Duration,
    /// The client takes nothing; when it has been so for too long.
    stalled_until: Option<Pin<Box<Sleep>>>,
    /// An answer of ours in the place of hyper's, as far as it is not yet written.
    unwritten: Vec<u8>,
}

impl Stream {
    pub fn new(
        stream: TcpStream,
        lingers: Arc<AtomicBool>,
        arrivals: Arrivals,
        settings: &ServeSettings,
    ) -> Self {
        Self {
            stream,
            lingers,
            arrivals,
            until: None,
            requests_per_sec: settings.requests_per_sec,
            stall_timeout: settings.stall_timeout,
            stalled_until: None,
            unwritten: Vec::new(),
        }
    }

    /// What the socket says of a write, or that the client has taken nothing for too long.
    fn poll_taken(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled_until = None;
            return written;
        }
        let stall_timeout = self.stall_timeout;
        let until = self.stalled_until.get_or_insert_with(|| Box::pin(sleep(stall_timeout)));
        ready!(until.as_mut().poll(cx));
        // Nothing more will be said, so nobody has to be waited for.
        self.lingers.store(false, Ordering::Relaxed);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Takes hyper's own answer and keeps ours to be written; false for all other bytes.
    fn takes_over(&mut self, bytes: &[u8]) -> bool {
        let Some(problem) = unread_head(bytes) else { return false };
        self.unwritten = plain_answer(problem, self.requests_per_sec);
        // The client may still be sending its head.
        self.lingers.store(true, Ordering::Relaxed);
        true
    }

    fn poll_unwritten(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unwritten.is_empty() {
            let written = Pin::new(&mut self.stream).poll_write(cx, &self.unwritten);
            let written = ready!(self.poll_taken(cx, written))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unwritten.drain(..written);
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the client has nothing more to say or the time is up.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0_u8; 16 * 1024];
        loop {
            let is_over = self.until.as_mut().is_none_or(|until| until.as_mut().poll(cx).is_ready());
            if is_over {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.arrivals.add(buffer.filled().len() - before);
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_unwritten(cx))?;
        if self.takes_over(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.poll_taken(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unwritten(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.until.is_none() {
            ready!(self.poll_unwritten(cx))?;
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if !self.lingers.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            self.until = Some(Box::pin(sleep(LINGER)));
        }
        self.poll_drain(cx).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_unwritten(cx))?;
        if let [head] = slices
            && self.takes_over(head)
        {
            return Poll::Ready(Ok(head.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.poll_taken(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_answers_of_hyper_are_taken_over() {
        let bare = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let ours = String::from_utf8(plain_answer(Problem::internal(), 7)).expect("text");
        let ours_without_body =
            "HTTP/1.1 400 Bad Request\r\nx-request-id: req_1\r\ncontent-length: 0\r\n\r\n";
        let cases = [
            ("malformed", bare.to_owned(), Some("INVALID_REQUEST")),
            ("too large", bare.replace("400 Bad", "431 Too"), Some("HEAD_TOO_LARGE")),
            ("too long", bare.replace("400 Bad", "414 Too"), Some("ADDRESS_TOO_LONG")),
            ("fine", bare.replace("400 Bad", "200 Fine"), None),
            ("ours", ours.clone(), None),
            ("ours, to HEAD", ours_without_body.to_owned(), None),
            ("a part of a body", "400 \r\n\r\n".to_owned(), None),
            ("nothing", String::new(), None),
            ("cut short", "HTTP/1.\r\n\r\n".to_owned(), None),
        ];
        for (case, bytes, code) in cases {
            assert_eq!(unread_head(bytes.as_bytes()).map(|problem| problem.code), code, "{case}");
        }
        assert!(ours.starts_with("HTTP/1.1 500 Internal Server Error\r\n"), "{ours}");
        assert!(
            ours.contains("\r\nratelimit-remaining: 7\r\n") && ours.contains("connection: close"),
            "{ours}"
        );
    }
}
