//! A server that speaks HTTP/1.1 and answers as told, in the clear, on the loopback: for what speaks to the APIs of
//! others. It keeps every request, counts connections, and can break off where real servers do.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longer than any request takes; only a fault waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the server does with a request it has read to its end.
#[derive(Debug, Clone)]
pub enum Answer {
    Reply(Reply),
    /// Hangs up as if its process had died.
    Reset,
    /// Never says anything.
    Silence,
    /// Thinks for a while first.
    Late(Duration, Reply),
    /// Says so much of a reply and hangs up.
    Cut(String),
}

#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A reply with a JSON body.
pub fn json(status: u16, body: &str) -> Reply {
    Reply { status, headers: vec![], body: body.as_bytes().to_vec() }.with("content-type", "application/json")
}

impl Reply {
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// With the query, if there is one.
    pub path: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// The value of a header that comes once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} comes more than once");
        value
    }
}

/// The server. It ends when it is dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    answer: Box<dyn Fn(&Request) -> Answer + Send + Sync>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
}

impl Server {
    /// A server whose answer follows from the request.
    pub async fn start<A: Into<Answer>>(answer: impl Fn(&Request) -> A + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            answer: Box::new(move |request| answer(request).into()),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
        });
        let task = tokio::spawn(accept(listener, shared.clone()));
        Self { address, shared, task }
    }

    /// Such as `http://127.0.0.1:40000`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was read so far, in order.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a request was read.
    pub async fn until_asked(&self) {
        let asked = async {
            while self.requests().is_empty() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.expect("a request comes");
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The address of a port on which nobody listens.
pub fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    format!("http://{}", listener.local_addr().expect("an address"))
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::SeqCst);
        connections.spawn(converse(stream, shared.clone()));
    }
}

async fn converse(mut stream: TcpStream, shared: Arc<Shared>) {
    let mut unread = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut unread).await {
        let answer = (shared.answer)(&request);
        shared.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        match answer {
            Answer::Reply(reply) => {
                if stream.write_all(&wire(&reply)).await.is_err() {
                    return;
                }
            }
            Answer::Reset => {
                stream.set_zero_linger().expect("the socket takes options");
                return;
            }
            Answer::Silence => std::future::pending().await,
            Answer::Late(thinking, reply) => {
                tokio::time::sleep(thinking).await;
                if stream.write_all(&wire(&reply)).await.is_err() {
                    return;
                }
            }
            Answer::Cut(text) => {
                let _ = stream.write_all(text.as_bytes()).await;
                return;
            }
        }
    }
}

fn wire(reply: &Reply) -> Vec<u8> {
    let headers: String = reply.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head =
        format!("HTTP/1.1 {} Said\r\ncontent-length: {}\r\n{headers}\r\n", reply.status, reply.body.len());
    [head.as_bytes(), &reply.body].concat()
}

/// The next request, or nothing when the client has hung up.
async fn read_request(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<Request> {
    let head_end = loop {
        if let Some(at) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        read_more(stream, unread).await?;
    };
    let head = String::from_utf8(unread.drain(..head_end).collect()).expect("a head in ASCII");
    let mut lines = head.trim_end().split("\r\n");
    let mut first = lines.next().expect("a request line").split(' ');
    let (method, path) =
        (first.next().expect("a method").to_owned(), first.next().expect("a path").to_owned());
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect();
    let mut request = Request { method, path, headers, body: vec![] };
    assert_eq!(request.header("transfer-encoding"), None, "the server reads bodies of known length only");
    let length = request.header("content-length").map_or(0, |length| length.parse().expect("a length"));
    while unread.len() < length {
        read_more(stream, unread).await?;
    }
    request.body = unread.drain(..length).collect();
    Some(request)
}

async fn read_more(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<()> {
    let mut chunk = [0; 16 * 1024];
    match stream.read(&mut chunk).await {
        Ok(0) | Err(_) => None,
        Ok(length) => {
            unread.extend_from_slice(&chunk[..length]);
            Some(())
        }
    }
}
