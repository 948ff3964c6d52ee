//! Over real sockets: slow clients, too many of them, early answers, and shutting down.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::{ServeSettings, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::world::{World, good, world};

struct Served {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn served(world: &World, settings: ServeSettings) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = oneshot::channel::<()>();
    let router = world.router.clone();
    let task = tokio::spawn(async move {
        serve(listener, router, settings, async {
            let _ = stopped.await;
        })
        .await;
    });
    Served { address, stop, task }
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("a connection")
}

/// Everything until the other side closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ =
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut bytes)).await.expect("an end");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn head(world: &World, length: usize) -> String {
    format!(
        "POST /v1/email/send HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n",
        world.live
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_answered_over_the_wire() {
    let world = world().await;
    let served = served(&world, ServeSettings::default()).await;
    let mut stream = connect(served.address).await;
    let body = good().to_string();
    let request = format!("{}Connection: close\r\n\r\n{body}", head(&world, body.len()));
    stream.write_all(request.as_bytes()).await.expect("written");
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 202 Accepted\r\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_are_cut() {
    let world = world().await;
    let settings = ServeSettings { head_timeout: Duration::from_millis(200), ..ServeSettings::default() };
    let served = served(&world, settings).await;
    for beginning in ["", "POST /v1/email/send HTTP/1.1\r\nHost: loc"] {
        let mut stream = connect(served.address).await;
        stream.write_all(beginning.as_bytes()).await.expect("written");
        let started = Instant::now();
        rest(&mut stream).await;
        assert!(started.elapsed() < Duration::from_secs(3), "{beginning:?} took {:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_told() {
    let world = world().await;
    let settings = ServeSettings { connections_max: 2, ..ServeSettings::default() };
    let served = served(&world, settings).await;
    let get = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = connect(served.address).await;
        stream.write_all(get.as_bytes()).await.expect("written");
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.expect("an answer");
        assert_eq!(&first, b"HTTP/1.1 200");
        held.push(stream);
    }
    let mut third = connect(served.address).await;
    third.write_all(get.as_bytes()).await.expect("written");
    third.shutdown().await.expect("half closed");
    let answer = rest(&mut third).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("retry-after: 1\r\n") && answer.contains("OVERLOADED"), "{answer}");
    drop(held);
    // The place comes free when the server notices that its client is gone.
    for _ in 0..10_000 {
        let mut stream = connect(served.address).await;
        stream.write_all(get.as_bytes()).await.expect("written");
        stream.shutdown().await.expect("half closed");
        if rest(&mut stream).await.starts_with("HTTP/1.1 200") {
            return;
        }
    }
    panic!("a free place was never given out again");
}

/// The answer comes before the body is read, and is seen although the client goes on sending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_large_is_refused_at_once() {
    let world = world().await;
    let served = served(&world, ServeSettings::default()).await;
    let length = 100 * 1024 * 1024;
    let chunked = head(&world, 0).replace("Content-Length: 0", "Transfer-Encoding: chunked");
    for (case, head) in [("declared", head(&world, length)), ("chunked", chunked)] {
        let (mut reader, mut writer) = connect(served.address).await.into_split();
        let is_chunked = case == "chunked";
        let sending = tokio::spawn(async move {
            writer.write_all(format!("{head}\r\n").as_bytes()).await?;
            let block = vec![b' '; 1024 * 1024];
            for _ in 0..100 {
                if is_chunked {
                    writer.write_all(b"100000\r\n").await?;
                    writer.write_all(&block).await?;
                    writer.write_all(b"\r\n").await?;
                } else {
                    writer.write_all(&block).await?;
                }
            }
            Ok::<_, std::io::Error>(())
        });
        let mut answer = vec![0; 2048];
        let read = reader.read(&mut answer).await.expect("an answer before a reset");
        let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
        assert!(
            answer.starts_with("HTTP/1.1 413 ") && answer.contains("connection: close"),
            "{case}: {answer}"
        );
        sending.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutting_down_answers_what_was_begun() {
    let world = world().await;
    let served = served(&world, ServeSettings::default()).await;
    let mut idle = connect(served.address).await;
    let mut begun = connect(served.address).await;
    let body = good().to_string();
    begun
        .write_all(format!("{}\r\n{}", head(&world, body.len()), &body[..10]).as_bytes())
        .await
        .expect("written");
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("written");
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.expect("an answer");
    served.stop.send(()).expect("it runs");
    rest(&mut idle).await;
    begun.write_all(&body.as_bytes()[10..]).await.expect("written");
    let answer = rest(&mut begun).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    tokio::time::timeout(Duration::from_secs(5), served.task).await.expect("it ends").expect("no panic");
    assert!(TcpStream::connect(served.address).await.is_err(), "nobody listens any more");
}
