//! Connections: so many at once, each bounded in time, all answered to the end at shutdown.
//!
//! HTTP/1.1 over hyper itself, since `axum::serve` bounds neither the number of connections nor the time for a
//! request's head. TLS and HTTP/2 are the reverse proxy's.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};
use tower::ServiceExt as _;

use crate::error::Problem;
use crate::limits::{CONNECTIONS_MAX, HEAD_TIMEOUT};

/// The head of a request and what of its body is buffered; longer heads are refused.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Connections beyond the limit that are told so at once; those beyond that are dropped.
const REFUSALS_MAX: usize = 256;
/// How long to wait when the machine gives out no more connections, so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// How long what a client still sends is read and thrown away after an early answer. Closing at once would
/// reset the connection and the client might never see the answer.
const LINGER: Duration = Duration::from_secs(2);

/// Who is at the other end of the connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

#[derive(Debug, Clone)]
pub struct ServeSettings {
    pub connections_max: usize,
    pub head_timeout: Duration,
    /// How long requests may take that are under way at shutdown.
    pub drain: Duration,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self { connections_max: CONNECTIONS_MAX, head_timeout: HEAD_TIMEOUT, drain: Duration::from_secs(30) }
    }
}

/// Serves until `shutdown` ends, then answers what was begun.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    settings: ServeSettings,
    shutdown: impl Future<Output = ()> + Send,
) {
    let places = Arc::new(Semaphore::new(settings.connections_max));
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    let (stop, stopped) = watch::channel(false);
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        // Answers are written whole; waiting for more to send would only delay them.
        let _ = stream.set_nodelay(true);
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let (router, head_timeout, stopped) = (router.clone(), settings.head_timeout, stopped.clone());
            tokio::spawn(async move {
                converse(stream, peer, router, head_timeout, stopped).await;
                drop(place);
            });
        } else if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
            tokio::spawn(async move {
                let _ = timeout(LINGER, refuse(stream)).await;
                drop(place);
            });
        }
    }
    drop(listener);
    let _ = stop.send(true);
    let everyone = u32::try_from(settings.connections_max).unwrap_or(u32::MAX);
    if timeout(settings.drain, places.acquire_many(everyone)).await.is_err() {
        tracing::warn!("some connections were still open when the time for the shutdown was up");
    }
}

/// A client that vanished is nothing; a machine out of file descriptors needs a moment.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted) {
        return;
    }
    tracing::warn!(%error, "no connection could be taken");
    sleep(ACCEPT_PAUSE).await;
}

async fn converse(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    head_timeout: Duration,
    mut stopped: watch::Receiver<bool>,
) {
    let early = Arc::new(AtomicBool::new(false));
    let io = TokioIo::new(Lingering::new(stream, Arc::clone(&early)));
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, early) = (router.clone(), Arc::clone(&early));
        async move {
            let response = answer(router, peer, request).await;
            // An error may have come before the body was read.
            early.store(response.status().as_u16() >= 400, Ordering::Relaxed);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told_to_stop(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// A sender that is gone means the same.
async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn answer(router: Router, peer: SocketAddr, request: Request<Incoming>) -> Response<Body> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Peer(peer));
    match router.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Told without reading a request, since whoever comes in numbers will not be read.
async fn refuse(stream: TcpStream) -> io::Result<()> {
    let detail = "too many connections at once";
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "OVERLOADED", detail);
    let id = format!("req_{}", uuid::Uuid::new_v4());
    let body = problem.body(&id);
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\n{}: 1\r\n{}: close\r\n{}: application/problem+json\r\n{}: {}\r\nx-request-id: {id}\r\n\r\n",
        header::RETRY_AFTER,
        header::CONNECTION,
        header::CONTENT_TYPE,
        header::CONTENT_LENGTH,
        body.len(),
    );
    let mut stream = Lingering::new(stream, Arc::new(AtomicBool::new(true)));
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// A stream that, after an early answer, reads on for a while before it closes.
struct Lingering {
    stream: TcpStream,
    wanted: Arc<AtomicBool>,
    until: Option<Pin<Box<Sleep>>>,
}

impl Lingering {
    fn new(stream: TcpStream, wanted: Arc<AtomicBool>) -> Self {
        Self { stream, wanted, until: None }
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

impl AsyncRead for Lingering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.until.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if !self.wanted.load(Ordering::Relaxed) {
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
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
