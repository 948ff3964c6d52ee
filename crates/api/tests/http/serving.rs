//! Over real sockets: slow clients, too many of them, early answers, and shutting down.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::{ServeSettings, serve};
use serde_json::json;
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

/// What every answer has, also one that no router gave.
fn check_plain(case: &str, answer: &str, status: u16, code: &str) {
    let shown = format!("{case}: {answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {shown}"));
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{shown}");
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    for (name, value) in [
        ("content-type", "application/problem+json"),
        ("connection", "close"),
        ("ratelimit-limit", "20000"),
        ("ratelimit-remaining", "20000"),
        ("ratelimit-reset", "1"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(header(name), Some(value), "{name}: {shown}");
    }
    assert_eq!(header("content-length"), Some(body.len().to_string().as_str()), "{shown}");
    let problem: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{shown}"));
    assert_eq!((&problem["status"], &problem["code"]), (&json!(status), &json!(code)), "{shown}");
    assert!(problem["requestId"].as_str().is_some_and(|id| header("x-request-id") == Some(id)), "{shown}");
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
        // Sooner than without the setting.
        assert!(started.elapsed() < Duration::from_secs(8), "{beginning:?} took {:?}", started.elapsed());
    }
}

/// A client that asks and asks and never reads is cut, and its place is free for another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_take_no_answer_are_cut() {
    let world = world().await;
    let settings = ServeSettings {
        connections_max: 1,
        stall_timeout: Duration::from_millis(200),
        ..ServeSettings::default()
    };
    let served = served(&world, settings).await;
    let mut deaf = connect(served.address).await;
    let questions = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    // Fails in the end: the server closes over what it has not read.
    while deaf.write_all(questions.as_bytes()).await.is_ok() {}

    there_is_a_place_again(served.address).await;
}

/// Also where more come than can be listened to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_far_beyond_the_limit_are_told_in_passing() {
    let world = world().await;
    let settings = ServeSettings { connections_max: 0, refusals_max: 0, ..ServeSettings::default() };
    let served = served(&world, settings).await;
    for request in ["", "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let mut stream = connect(served.address).await;
        // Too late when the answer was quicker.
        let _ = stream.write_all(request.as_bytes()).await;
        let answer = rest(&mut stream).await;
        assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
        check_plain("one too many", &answer, 503, "OVERLOADED");
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
    assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
    check_plain("one too many", &answer, 503, "OVERLOADED");
    drop(held);
    there_is_a_place_again(served.address).await;
}

/// It comes free when the server notices that its client is gone.
async fn there_is_a_place_again(address: SocketAddr) {
    for _ in 0..10_000 {
        let mut stream = connect(address).await;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("written");
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
    let head = format!("{}Expect: 100-continue\r\n\r\n", head(&world, body.len()));
    begun.write_all(head.as_bytes()).await.expect("written");
    let mut expected = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    begun.read_exact(&mut expected).await.expect("its body is asked for");
    assert_eq!(&expected, b"HTTP/1.1 100 Continue\r\n\r\n");
    begun.write_all(&body.as_bytes()[..10]).await.expect("written");
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("written");
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.expect("an answer");
    served.stop.send(()).expect("it runs");
    rest(&mut idle).await;
    begun.write_all(&body.as_bytes()[10..]).await.expect("written");
    let answer = rest(&mut begun).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    // Well before the time is over that requests under way would have.
    tokio::time::timeout(Duration::from_secs(20), served.task).await.expect("it ends").expect("no panic");
    assert!(TcpStream::connect(served.address).await.is_err(), "nobody listens any more");
}

/// Heads that no router gets to see: refused in words, and the connection closed. Never a hang, never our mistake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_cannot_be_read_are_refused_in_words() {
    let world = world().await;
    let served = served(&world, ServeSettings::default()).await;
    let lines = |count: usize| (0..count).map(|n| format!("X-{n}: 1\r\n")).collect::<String>();
    let get =
        |more: &str| format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n");
    let fine = "";
    let (malformed, large) = ("INVALID_REQUEST", "HEAD_TOO_LARGE");
    let cases = [
        ("100 lines", get(&lines(98)), 200, fine),
        ("101 lines", get(&lines(99)), 431, large),
        ("10,000 lines", get(&lines(5_000)), 431, large),
        ("60 kB", get(&format!("X-A: {}\r\n", "a".repeat(60_000))), 200, fine),
        ("200 kB", get(&format!("X-A: {}\r\n", "a".repeat(200_000))), 431, large),
        (
            "a line of 1 MB without an end",
            format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(1 << 20)),
            431,
            large,
        ),
        ("an address of 200 kB", format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(200_000)), 431, large),
        ("no request line", "hello\r\n\r\n".to_owned(), 400, malformed),
        ("no version", "GET /livez\r\n\r\n".to_owned(), 400, malformed),
        ("another version", "GET /livez HTTP/3.7\r\nHost: a\r\n\r\n".to_owned(), 400, malformed),
        ("no address", "GET  HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400, malformed),
        ("blank in the address", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400, malformed),
        ("blank in a name", get("X A: 1\r\n"), 400, malformed),
        ("no colon", get("nothing\r\n"), 400, malformed),
        ("NUL in a value", get("X-A: a\0b\r\n"), 400, malformed),
        ("negative length", get("Content-Length: -1\r\n"), 400, malformed),
        ("two lengths", get("Content-Length: 1\r\nContent-Length: 2\r\n"), 400, malformed),
        ("TLS", "\u{16}\u{3}\u{1}\u{2}\0\u{1}\r\n\r\n".to_owned(), 400, malformed),
    ];
    for (case, request, status, code) in cases {
        let (mut reader, mut writer) = connect(served.address).await.into_split();
        // It may be refused before everything is written.
        let writing = tokio::spawn(async move {
            let _ = writer.write_all(request.as_bytes()).await;
            writer
        });
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(10), reader.read_to_end(&mut bytes)).await;
        read.unwrap_or_else(|_| panic!("{case}: it hangs")).unwrap_or_else(|error| panic!("{case}: {error}"));
        let answer = String::from_utf8_lossy(&bytes).into_owned();
        match code {
            "" => assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{case}: {answer}"),
            code => check_plain(case, &answer, status, code),
        }
        drop(writing);
    }
    let mut after = connect(served.address).await;
    after.write_all(get("").as_bytes()).await.expect("written");
    assert!(rest(&mut after).await.starts_with("HTTP/1.1 200 "), "others are served");
}

/// What is said of the limit is true: a head of just so many bytes is read, one byte more is too much, in whatever pieces
/// it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_are_bounded_to_the_byte() {
    let world = world().await;
    let served = served(&world, ServeSettings::default()).await;
    let limit = 64 * 1024;
    for (length, is_fine) in [
        (limit - 1, true),
        (limit, true),
        (limit + 1, false),
        (limit + 5_000, false),
        (100_000, false),
        (130_000, false),
    ] {
        for pieces in [1, 2, 7] {
            let case = format!("{length} bytes in {pieces}");
            let beginning = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-A: ";
            let head = format!("{beginning}{}\r\n\r\n", "a".repeat(length - beginning.len() - 4));
            let (mut reader, mut writer) = connect(served.address).await.into_split();
            let writing = tokio::spawn(async move {
                for piece in head.as_bytes().chunks(length.div_ceil(pieces)) {
                    // It may be refused before everything is written.
                    let _ = writer.write_all(piece).await;
                    tokio::task::yield_now().await;
                }
                writer
            });
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).await.unwrap_or_else(|error| panic!("{case}: {error}"));
            let answer = String::from_utf8_lossy(&bytes).into_owned();
            if is_fine {
                assert!(answer.starts_with("HTTP/1.1 200 "), "{case}: {answer}");
            } else {
                check_plain(&case, &answer, 431, "HEAD_TOO_LARGE");
                assert!(
                    answer.contains(&format!("more than 100 lines or {limit} bytes")),
                    "{case}: {answer}"
                );
            }
            drop(writing);
        }
    }
}

/// A server of one page on a clock that goes on whenever everybody waits: hours of silence take no time.
async fn served_by_the_clock(settings: ServeSettings) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = axum::Router::new().route("/", axum::routing::get(async || "here"));
    tokio::spawn(serve(listener, router, settings, std::future::pending()));
    address
}

async fn ask(stream: &mut TcpStream) {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("written");
    let mut answer = Vec::new();
    while !answer.ends_with(b"here") {
        assert_ne!(stream.read_buf(&mut answer).await.expect("an answer"), 0, "the connection is closed");
    }
}

/// For how many seconds the server leaves a connection open.
async fn open_secs(stream: &mut TcpStream) -> u64 {
    let since = tokio::time::Instant::now();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    since.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn silence_between_requests_is_longer_than_that_of_load_balancers() {
    let address = served_by_the_clock(ServeSettings::default()).await;
    let mut stream = connect(address).await;
    for _ in 0..3 {
        ask(&mut stream).await;
        tokio::time::sleep(Duration::from_secs(70)).await;
    }
    ask(&mut stream).await;
    assert_eq!(open_secs(&mut stream).await, 75);
}

/// However long the connection was silent before, and however slowly the rest comes.
#[tokio::test(start_paused = true)]
async fn a_head_that_has_begun_is_not_waited_for_like_silence() {
    let address = served_by_the_clock(ServeSettings::default()).await;
    for silence in [0, 3, 45, 70] {
        let mut stream = connect(address).await;
        ask(&mut stream).await;
        tokio::time::sleep(Duration::from_secs(silence)).await;
        stream.write_all(b"G").await.expect("written");
        let (mut reader, mut writer) = stream.into_split();
        let dripping = tokio::spawn(async move {
            while writer.write_all(b"E").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        });
        let since = tokio::time::Instant::now();
        let _ = reader.read_to_end(&mut Vec::new()).await;
        assert_eq!(since.elapsed().as_secs(), 10, "after {silence} s");
        dripping.abort();
    }
    let mut mute = connect(address).await;
    assert_eq!(open_secs(&mut mute).await, 10, "one that never asked has no more time than a head");
}

/// Where few places are left, those that are silent give theirs up.
#[tokio::test(start_paused = true)]
async fn silence_makes_room_when_places_get_few() {
    let address = served_by_the_clock(ServeSettings { connections_max: 8, ..ServeSettings::default() }).await;
    let mut silent = Vec::new();
    for _ in 0..6 {
        let mut stream = connect(address).await;
        ask(&mut stream).await;
        silent.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    for stream in &mut silent {
        ask(stream).await;
    }
    let mut seventh = connect(address).await;
    ask(&mut seventh).await;
    for stream in &mut silent[..1] {
        assert_eq!(open_secs(stream).await, 10);
    }
}

/// A second request on the same connection that cannot be read does not spoil the answer to the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_stays_whole_before_a_head_that_cannot_be_read() {
    let world = world().await;
    let served = served(&world, ServeSettings::default()).await;
    let mut stream = connect(served.address).await;
    let request = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\nnonsense\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("written");
    let answers = rest(&mut stream).await;
    assert!(answers.starts_with("HTTP/1.1 200 "), "{answers:.200}");
    let (_, rest) = answers.split_once("\r\n\r\n").expect("a head");
    let (document, refusal) = rest.split_at(api::openapi_document().to_string().len());
    assert_eq!(serde_json::from_str::<serde_json::Value>(document).expect("JSON"), api::openapi_document());
    check_plain("the second", refusal, 400, "INVALID_REQUEST");
}
