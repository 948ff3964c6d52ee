//! The load: keep-alive connections that post emails of a given size and note how long each answer took.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What to send, and how.
#[derive(Clone)]
pub struct Load {
    pub address: SocketAddr,
    pub key: String,
    pub connections: u32,
    pub count: u64,
    /// Requests per second, whatever the answers take (open loop); `None` is as fast as they come.
    pub rate: Option<f64>,
    pub html_bytes: usize,
    /// What the names of recipients and the keys begin with, if emails have any: no two loads may share it.
    pub detail: Option<String>,
}

/// What came of it.
pub struct Answers {
    pub accepted: u64,
    pub refused: u64,
    pub elapsed: Duration,
    latencies_us: Vec<u32>,
}

impl Answers {
    pub fn per_sec(&self) -> f64 {
        self.accepted as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency below which this share of the answers lies, in milliseconds.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let last = self.latencies_us.len().saturating_sub(1);
        let rank = (share * last as f64).round() as usize;
        self.latencies_us.get(rank).map_or(0.0, |&us| f64::from(us) / 1000.0)
    }
}

/// Posts the emails and waits for all answers.
pub async fn run(load: &Load) -> anyhow::Result<Answers> {
    let body = Arc::new(Body::new(load.html_bytes));
    let tickets = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let clients: Vec<_> = (0..load.connections)
        .map(|_| tokio::spawn(client(load.clone(), Arc::clone(&body), Arc::clone(&tickets), start)))
        .collect();
    let mut answers = Answers { accepted: 0, refused: 0, elapsed: Duration::ZERO, latencies_us: Vec::new() };
    for client in clients {
        let (accepted, refused, latencies) = client.await.context("a client of the load failed")??;
        answers.accepted += accepted;
        answers.refused += refused;
        answers.latencies_us.extend(latencies);
    }
    answers.elapsed = start.elapsed();
    answers.latencies_us.sort_unstable();
    Ok(answers)
}

async fn client(
    load: Load,
    body: Arc<Body>,
    tickets: Arc<AtomicU64>,
    start: Instant,
) -> anyhow::Result<(u64, u64, Vec<u32>)> {
    let mut stream = TcpStream::connect(load.address).await.context("the server takes no connection")?;
    stream.set_nodelay(true)?;
    let (mut accepted, mut refused, mut latencies) = (0, 0, Vec::new());
    let (mut request, mut answer) = (Vec::new(), Vec::with_capacity(4096));
    loop {
        let ticket = tickets.fetch_add(1, Ordering::Relaxed);
        if ticket >= load.count {
            return Ok((accepted, refused, latencies));
        }
        let begun = match load.rate {
            None => Instant::now(),
            Some(rate) => {
                let due = start + Duration::from_secs_f64(ticket as f64 / rate);
                tokio::time::sleep_until(due.into()).await;
                due
            }
        };
        body.write_request(&load, ticket, &mut request)?;
        stream.write_all(&request).await?;
        match read_status(&mut stream, &mut answer).await? {
            202 => accepted += 1,
            _ => refused += 1,
        }
        latencies.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
}

/// Reads one answer and returns its status; what it says is not looked at.
async fn read_status(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> anyhow::Result<u16> {
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            bail!("the server closed a connection in the middle of an answer");
        }
        let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&buffer[..end])
            .context("the answer's head is not text")?
            .to_ascii_lowercase();
        let status =
            head.split(' ').nth(1).and_then(|text| text.parse().ok()).context("the answer has no status")?;
        let length: usize = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .and_then(|text| text.trim().parse().ok())
            .context("the answer has no length")?;
        while buffer.len() < end + 4 + length {
            if stream.read_buf(buffer).await? == 0 {
                bail!("the server closed a connection in the middle of an answer");
            }
        }
        return Ok(status);
    }
}

/// The part of the request that all emails share.
struct Body {
    html: String,
}

impl Body {
    fn new(html_bytes: usize) -> Self {
        Self { html: serde_json::Value::String(receipt(html_bytes)).to_string() }
    }

    /// Into a buffer that is used again: what the load costs is taken from what is measured.
    fn write_request(&self, load: &Load, ticket: u64, request: &mut Vec<u8>) -> std::io::Result<()> {
        let (more, key) = match &load.detail {
            None => (String::new(), String::new()),
            Some(run) => (
                format!(
                    ",\"replyTo\":\"help@example.com\",\"tags\":[\"order\",\"receipt\"],\"externalId\":\"order-{run}-{ticket}\",\
                     \"recipient\":{{\"externalId\":\"{run}-{ticket}\",\"nome\":\"Ana Souza\"}}"
                ),
                format!("Idempotency-Key: {run}-{ticket}\r\n"),
            ),
        };
        let start = format!(
            "{{\"to\":\"customer{ticket}@example.com\",\"subject\":\"Your order {ticket}\",\"html\":"
        );
        let length = start.len() + self.html.len() + more.len() + 1;
        request.clear();
        write!(
            request,
            "POST /v1/email/send HTTP/1.1\r\nHost: {}\r\nX-API-Key: {}\r\nContent-Type: application/json\r\n{key}\
             Content-Length: {length}\r\n\r\n{start}",
            load.address, load.key
        )?;
        request.extend_from_slice(self.html.as_bytes());
        write!(request, "{more}}}")
    }
}

/// An order confirmation of about that size: markup that repeats and words and numbers that do not.
pub fn receipt(bytes: usize) -> String {
    const WORDS: [&str; 12] = [
        "copper", "lantern", "walnut", "shelf", "linen", "basket", "garden", "chair", "kettle", "violet",
        "harbour", "mirror",
    ];
    let mut html = String::from(
        "<!DOCTYPE html><html><head><style>td{padding:4px;font-family:Arial,sans-serif}</style></head>\
         <body><h1>Thank you for your order</h1><table width=\"600\" cellpadding=\"0\">",
    );
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    while html.len() + 32 < bytes {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let word = |shift: u32| WORDS[(seed >> shift) as usize % WORDS.len()];
        html.push_str(&format!(
            "<tr><td style=\"color:#333333\">{} {}</td><td align=\"right\">{}.{:02}</td></tr>",
            word(8),
            word(20),
            seed % 900,
            (seed >> 32) % 100
        ));
    }
    html.push_str("</table></body></html>");
    html
}
