//! A keep-alive HTTP connection that knows, when it breaks, whether an answer had begun. An ordinary client hides
//! that and repeats requests by itself; here both are under test.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A request that takes longer is given up and counted as cut off.
const PATIENCE: Duration = Duration::from_secs(40);
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// One answer, read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// The server says that it answers an earlier request with the same key.
    pub replayed: bool,
    /// The server wants no further request on this connection.
    pub closes: bool,
    /// When to come back, if the server says so.
    pub retry_after_secs: Option<u64>,
    pub body: String,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    Answered(Answer),
    /// No connection: the request was never sent.
    NotConnected,
    /// The connection ended before the first byte of an answer.
    CutOff,
    /// The connection ended within the answer, or what came was no answer.
    Garbled(String),
    /// Nothing came for very long.
    Silence,
}

/// To one of several processes that serve the same; moves on to the next when one fails, as a load balancer would.
pub struct Connection {
    addresses: Vec<SocketAddr>,
    current: usize,
    stream: Option<TcpStream>,
}

impl Connection {
    /// Begins with the process of that number, counted around.
    pub fn to(addresses: &[SocketAddr], number: usize) -> Self {
        Self { addresses: addresses.to_vec(), current: number % addresses.len(), stream: None }
    }

    /// The next request goes to another process, if there is one.
    pub fn move_on(&mut self) {
        if self.addresses.len() > 1 {
            self.current = (self.current + 1) % self.addresses.len();
            self.stream = None;
        }
    }

    /// Sends a whole request and reads its answer. Connects first when there is no connection.
    pub async fn exchange(&mut self, request: &[u8]) -> Exchange {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => match TcpStream::connect(self.addresses[self.current]).await {
                Ok(stream) => stream,
                Err(_) => {
                    self.move_on();
                    return Exchange::NotConnected;
                }
            },
        };
        // Without it the test measures the kernel's patience, not the server's.
        let _ = stream.set_nodelay(true);
        let exchange = tokio::time::timeout(PATIENCE, talk(&mut stream, request)).await;
        let exchange = exchange.unwrap_or(Exchange::Silence);
        match &exchange {
            Exchange::Answered(answer) if answer.status < 500 => {
                self.stream = Some(stream).filter(|_| !answer.closes);
            }
            Exchange::Answered(answer) => {
                self.stream = Some(stream).filter(|_| !answer.closes);
                self.move_on();
            }
            _ => self.move_on(),
        }
        exchange
    }
}

async fn talk(stream: &mut TcpStream, request: &[u8]) -> Exchange {
    // A server that refuses may answer and close before it has read everything, so a failed write is no reason not
    // to read.
    let _ = stream.write_all(request).await;
    let mut received = Vec::with_capacity(1024);
    loop {
        match stream.read_buf(&mut received).await {
            Ok(0) | Err(_) if received.is_empty() => return Exchange::CutOff,
            Ok(0) | Err(_) => return Exchange::Garbled(String::from_utf8_lossy(&received).into_owned()),
            Ok(_) => {}
        }
        match parse(&received) {
            Ok(Some(answer)) => return Exchange::Answered(answer),
            Ok(None) if received.len() <= ANSWER_BYTES_MAX => {}
            Ok(None) => return Exchange::Garbled("an answer without end".to_owned()),
            Err(what) => return Exchange::Garbled(what),
        }
    }
}

/// The answer, or `None` while part of it is still missing.
fn parse(received: &[u8]) -> Result<Option<Answer>, String> {
    let Some(head_end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&received[..head_end]).to_ascii_lowercase();
    let header = |name: &str| {
        head.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value.trim())
    };
    let status =
        head.split(' ').nth(1).and_then(|text| text.parse().ok()).ok_or("no status in the answer")?;
    let length: usize =
        header("content-length").and_then(|text| text.parse().ok()).ok_or("no length in the answer")?;
    let body = &received[head_end + 4..];
    if body.len() < length {
        return Ok(None);
    }
    if body.len() > length {
        return Err("more than one answer to a request".to_owned());
    }
    Ok(Some(Answer {
        status,
        replayed: header("idempotent-replayed") == Some("true"),
        closes: header("connection") == Some("close"),
        retry_after_secs: header("retry-after").and_then(|text| text.parse().ok()),
        body: String::from_utf8_lossy(body).into_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_its_end() {
        let whole = "HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\nRetry-After: 3\r\n\
                     Idempotent-Replayed: true\r\n\r\n{}";
        let answer = Answer {
            status: 202,
            replayed: true,
            closes: false,
            retry_after_secs: Some(3),
            body: "{}".to_owned(),
        };
        assert_eq!(parse(whole.as_bytes()), Ok(Some(answer)));
        for end in 0..whole.len() {
            assert_eq!(parse(&whole.as_bytes()[..end]), Ok(None), "cut after {end}");
        }
        assert!(parse(format!("{whole}HTTP").as_bytes()).is_err());
    }
}
