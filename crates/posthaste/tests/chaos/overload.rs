//! Overload sheds and never breaks: more clients than there are places, all of them in a hurry, among them some that dawdle
//! to hold their places. Who is refused is told so and when to come back, who dawdles is cut, who was answered 202 is in the
//! store, and the process does not grow beyond its bound.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::EmailId;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::http::{Answer, Connection, Exchange};
use crate::plan::{CLIENTS, setting};
use crate::processes::Server;
use crate::rig::{COMPANY, Rig};
use crate::{stored, watch};

/// Emails each client hands in, one after the other.
const EMAILS_EACH: usize = 10;
/// Of 5,000 clients 4,096 find a place, which is what is configured by default.
const PLACES: (usize, usize) = (4_096, 5_000);
/// One in so many clients more does not send its request to the end.
const DAWDLERS: usize = 5;
const MEMORY_MAX_MB: usize = 512;
/// Between two bytes of a client that dawdles, and two emails of one that has time.
const PACE: Duration = Duration::from_millis(100);
/// Far longer than the server's own limits; reaching it means that it has none.
const CUT_MAX: Duration = Duration::from_secs(120);
/// One email in so many is large.
const LARGE: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_overload_sheds_and_loses_nothing() {
    let clients = setting(CLIENTS).unwrap_or(500);
    let rig = Rig::set_up(0).await;
    rig.set_connections_max(clients * PLACES.0 / PLACES.1);
    let mut server = rig.start_server();
    let address = rig.api_addresses[0];
    let mut patient = Connection::to(&rig.api_addresses, 0);
    await_answers(&mut server, &mut patient).await;

    let crowd = Arc::new(Crowd { address, key: rig.key.clone(), ..Crowd::default() });
    let mut dawdling = JoinSet::new();
    for number in 0..clients / DAWDLERS {
        dawdling.spawn(Arc::clone(&crowd).dawdle(number));
    }
    while crowd.dawdling.load(Ordering::Relaxed) < clients / DAWDLERS {
        tokio::time::sleep(PACE).await;
    }
    let mut hurrying = JoinSet::new();
    for number in 0..clients {
        hurrying.spawn(Arc::clone(&crowd).hurry(number));
    }
    let beside = crowd.hand_in_beside(&mut patient, &mut dawdling).await;
    while let Some(ended) = hurrying.join_next().await {
        ended.expect("no client panics");
    }
    let memory_mb = watch::memory_peak_mb(server.id());
    let exit = server.terminate().await;

    let found: BTreeSet<EmailId> = stored::read(&rig.database, COMPANY).await.into_keys().collect();
    let mut told = crowd.told.lock().expect("no client panics").clone();
    told.sort_unstable_by_key(|(_, took)| *took);
    let lost = told.iter().filter(|(id, _)| !found.contains(id)).count();
    let refusals = crowd.refusals.lock().expect("no client panics").clone();
    let complaints = crowd.complaints.lock().expect("no client panics").clone();
    let share = |percent: usize| told[(told.len() - 1) * percent / 100].1;
    println!(
        "clients={clients} accepted={} lost={lost} refused={refusals:?} cut={} beside={beside} memory_mb={memory_mb} \
         p50={:?} p99={:?} exit: {exit}",
        told.len(),
        clients / DAWDLERS,
        share(50),
        share(99)
    );
    let accepted = clients * EMAILS_EACH + beside;
    let is_right = told.len() == accepted && found.len() == accepted && lost == 0 && exit.code() == Some(0);
    let fails = !is_right || refusals.is_empty() || !complaints.is_empty() || memory_mb > MEMORY_MAX_MB;
    rig.tear_down(fails).await;
    assert!(!fails, "of {accepted} emails {} are stored; {complaints:#?}", found.len());
}

/// Until the server listens.
pub async fn await_answers(server: &mut Server, connection: &mut Connection) {
    while !matches!(connection.exchange(ARE_YOU_THERE).await, Exchange::Answered(_)) {
        server.assert_runs();
        tokio::time::sleep(PACE).await;
    }
}

pub const ARE_YOU_THERE: &[u8] = b"GET /livez HTTP/1.1\r\nHost: chaos.test\r\n\r\n";

/// All clients, and what they were told.
struct Crowd {
    address: SocketAddr,
    key: String,
    /// How many have begun to dawdle.
    dawdling: AtomicUsize,
    told: Mutex<Vec<(EmailId, Duration)>>,
    refusals: Mutex<BTreeMap<(u16, String), usize>>,
    complaints: Mutex<Vec<String>>,
}

impl Default for Crowd {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            key: String::new(),
            dawdling: AtomicUsize::default(),
            told: Mutex::default(),
            refusals: Mutex::default(),
            complaints: Mutex::default(),
        }
    }
}

impl Crowd {
    /// Hands in one email after the other, each until it is accepted. Comes back when it was told to.
    async fn hurry(self: Arc<Self>, number: usize) {
        let mut connection = Connection::to(&[self.address], 0);
        for index in (0..EMAILS_EACH).map(|index| number * EMAILS_EACH + index) {
            let request = an_email(&self.key, &format!("hurry-{index}"), index.is_multiple_of(LARGE));
            let deadline = Instant::now() + CUT_MAX;
            while Instant::now() < deadline {
                let began = Instant::now();
                match connection.exchange(&request).await {
                    Exchange::Answered(answer) if answer.status == 202 => {
                        self.hear(&answer, began.elapsed());
                        break;
                    }
                    Exchange::Answered(answer) => self.be_refused(&answer).await,
                    other => self.complain(format!("hurry-{index}: {other:?}")),
                }
            }
        }
    }

    /// A 429 or 503 that says when to come back, and why in a problem's words.
    async fn be_refused(&self, answer: &Answer) {
        let problem: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        let code = problem["code"].as_str().unwrap_or_default().to_owned();
        let is_right =
            matches!(answer.status, 429 | 503) && problem["status"] == answer.status && !code.is_empty();
        match answer.retry_after_secs {
            Some(secs) if is_right => {
                let count = |refusals: &mut BTreeMap<_, usize>| {
                    *refusals.entry((answer.status, code)).or_default() += 1;
                };
                count(&mut self.refusals.lock().expect("no client panics"));
                tokio::time::sleep(Duration::from_secs(secs)).await;
            }
            _ => self.complain(format!("refused with {answer:?}")),
        }
    }

    /// Every other one stops within the head of its request, the rest send its body byte by byte.
    async fn dawdle(self: Arc<Self>, number: usize) {
        let stream = TcpStream::connect(self.address).await.expect("the server listens");
        let (mut reader, mut writer) = stream.into_split();
        let request = an_email(&self.key, &format!("dawdle-{number}"), true);
        let is_head = number.is_multiple_of(2);
        let head_end = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
        let beginning = if is_head { head_end / 2 } else { head_end };
        writer.write_all(&request[..beginning]).await.expect("the server reads");
        self.dawdling.fetch_add(1, Ordering::Relaxed);
        let dawdling = async {
            for byte in &request[beginning..] {
                tokio::time::sleep(PACE).await;
                if is_head || writer.write_all(&[*byte]).await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        let mut answer = Vec::new();
        let cut = tokio::select! {
            cut = tokio::time::timeout(CUT_MAX, reader.read_to_end(&mut answer)) => cut,
            () = dawdling => return self.complain(format!("dawdle-{number} was let finish")),
        };
        let answer = String::from_utf8_lossy(&answer);
        let is_told = if is_head { answer.is_empty() } else { answer.starts_with("HTTP/1.1 408 ") };
        if cut.is_err() || !is_told {
            self.complain(format!("dawdle-{number}: {cut:?}, told {answer}"));
        }
    }

    /// A client that has its place and keeps it is served as if nothing were, until the last of those that dawdle is cut.
    /// Returns how many emails it handed in.
    async fn hand_in_beside(&self, patient: &mut Connection, dawdling: &mut JoinSet<()>) -> usize {
        for number in 0.. {
            let request = an_email(&self.key, &format!("patient-{number}"), false);
            let began = Instant::now();
            match patient.exchange(&request).await {
                Exchange::Answered(answer) if answer.status == 202 => self.hear(&answer, began.elapsed()),
                other => self.complain(format!("patient-{number}: {other:?}")),
            }
            tokio::time::sleep(PACE).await;
            while let Some(ended) = dawdling.try_join_next() {
                ended.expect("no client panics");
            }
            if dawdling.is_empty() {
                return number + 1;
            }
        }
        unreachable!("numbers do not end")
    }

    fn hear(&self, answer: &Answer, took: Duration) {
        match id_in(answer) {
            Some(id) => self.told.lock().expect("no client panics").push((id, took)),
            None => self.complain(format!("a 202 without an id: {}", answer.body)),
        }
    }

    fn complain(&self, what: String) {
        self.complaints.lock().expect("no client panics").push(what);
    }
}

pub fn id_in(answer: &Answer) -> Option<EmailId> {
    let json: Value = serde_json::from_str(&answer.body).ok()?;
    json["outboxId"].as_str()?.parse().ok()
}

/// A whole request.
pub fn an_email(key: &str, name: &str, is_large: bool) -> Vec<u8> {
    let text = "word ".repeat(if is_large { 15_000 } else { 100 });
    let body = json!({ "to": "reader@inbox.test", "subject": name, "html": format!("<p>{text}</p>") });
    let body = body.to_string();
    let head = format!(
        "POST /v1/email/send HTTP/1.1\r\nHost: chaos.test\r\nX-API-Key: {key}\r\nIdempotency-Key: {name}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}
