//! Connections: so many at once, each bounded in time, all answered to the end at shutdown.
//!
//! HTTP/1.1 over hyper itself, since `axum::serve` bounds neither the number of connections nor the time for a
//! request's head. TLS and HTTP/2 are the reverse proxy's. Below hyper is `stream`, which closes gently and says in
//! our words what hyper says of heads it cannot read; `patience` is how long heads are waited for.

mod patience;
mod stream;

use std::convert::Infallible;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

use crate::error::Problem;
use crate::limits::{
    CONNECTIONS_MAX, HEAD_BYTES_MAX, HEAD_TIMEOUT, IDLE_TIMEOUT, REQUESTS_PER_SEC, STALL_TIMEOUT,
};
use patience::{Arrivals, HeadTimer};
use stream::{LINGER, Stream, plain_answer};

/// Connections beyond the limit that are told so at once, each given time to hear it; those beyond that are told in passing.
const REFUSALS_MAX: usize = 1024;
/// Of what such a client has sent, so many pieces are read before it is told, never waiting for one.
const PIECES_MAX: usize = 16;
/// How long to wait when the machine gives out no more connections, so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// When to come back after all connections were taken.
const COME_BACK: Duration = Duration::from_secs(1);

/// Who is at the other end of the connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

#[derive(Debug, Clone)]
pub struct ServeSettings {
    pub connections_max: usize,
    /// Beyond those: so many at once are told to come back and may finish what they are sending.
    pub refusals_max: usize,
    pub head_timeout: Duration,
    /// How long a connection may be silent between two requests, as long as there is room for others.
    pub idle_timeout: Duration,
    /// How long a client may take nothing of its answer.
    pub stall_timeout: Duration,
    /// How long requests may take that are under way at shutdown.
    pub drain: Duration,
    /// Per company; what `RateLimit-*` says where a request was answered without being read.
    pub requests_per_sec: u32,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            refusals_max: REFUSALS_MAX,
            head_timeout: HEAD_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
            drain: Duration::from_secs(30),
            requests_per_sec: REQUESTS_PER_SEC,
        }
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
    let refusals = Arc::new(Semaphore::new(settings.refusals_max));
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
            let arrivals = Arrivals::default();
            let timer = HeadTimer::new(arrivals.clone(), Arc::clone(&places), &settings);
            let (router, settings, stopped) = (router.clone(), settings.clone(), stopped.clone());
            tokio::spawn(async move {
                converse((stream, peer), router, &settings, (timer, arrivals), stopped).await;
                drop(place);
            });
        } else if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
            let settings = settings.clone();
            tokio::spawn(async move {
                let _ = timeout(LINGER, refuse(stream, &settings)).await;
                drop(place);
            });
        } else {
            let _ = refuse_in_passing(stream, settings.requests_per_sec);
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
    (stream, peer): (TcpStream, SocketAddr),
    router: Router,
    settings: &ServeSettings,
    (timer, arrivals): (HeadTimer, Arrivals),
    mut stopped: watch::Receiver<bool>,
) {
    let early = Arc::new(AtomicBool::new(false));
    let io = TokioIo::new(Stream::new(stream, Arc::clone(&early), arrivals, settings));
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
        .timer(timer)
        .header_read_timeout(settings.head_timeout)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
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
async fn refuse(stream: TcpStream, settings: &ServeSettings) -> io::Result<()> {
    let answer = too_many(settings.requests_per_sec);
    let mut stream = Stream::new(stream, Arc::new(AtomicBool::new(true)), Arrivals::default(), settings);
    stream.write_all(&answer).await?;
    stream.shutdown().await
}

/// The same without waiting for anything: the answer fits into the empty buffer of a new connection. What has come of the
/// request is thrown away first, since to close over it would take the answer back. Whoever is gone already or has sent
/// more may not hear it.
fn refuse_in_passing(stream: TcpStream, requests_per_sec: u32) -> io::Result<()> {
    // Tokio's own try_write would first wait to be told that there is room. The socket stays one that never blocks.
    let mut stream = stream.into_std()?;
    let mut piece = [0_u8; 16 * 1024];
    for _ in 0..PIECES_MAX {
        if !stream.read(&mut piece).is_ok_and(|length| length == piece.len()) {
            break;
        }
    }
    stream.write_all(&too_many(requests_per_sec))
}

fn too_many(requests_per_sec: u32) -> Vec<u8> {
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "OVERLOADED", "too many connections at once");
    plain_answer(problem.later(COME_BACK), requests_per_sec)
}
