//! The load and the client's ledger. One email is one idempotency key: a request that gets no answer is repeated with
//! its key until it gets one, so that at the end every email has one answer and the ledger is exact.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::EmailId;
use rand::Rng as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::http::{Answer, Connection, Exchange};
use crate::plan::{CONNECTIONS, Plan, RUN_MAX};

/// A client waits this long after it was refused or found nobody.
const PAUSE: Duration = Duration::from_millis(20);
/// One in so many emails is asked for again as soon as it was accepted.
const ASKED_AGAIN: u32 = 20;

/// The answer to one email, and what it took to get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    pub id: EmailId,
    /// Requests that ended without any answer: what became of them is not known.
    pub cut_off: u32,
    /// Requests whose answer broke off.
    pub garbled: u32,
    /// Requests that were answered with 429 or 503.
    pub refused: u32,
    /// The 202 was the answer to an earlier request.
    pub replayed: bool,
}

/// What a 503 says of the email.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing was stored.
    IsCertain,
    /// Nobody knows: the connection to the database may have ended within the commit.
    IsUncertain,
}

pub struct Load {
    plan: Plan,
    addresses: Vec<SocketAddr>,
    refusal: Refusal,
    key: String,
    next: AtomicUsize,
    /// Emails up to this one may be handed in.
    allowed: AtomicUsize,
    accepted: AtomicUsize,
    receipts: Mutex<Vec<Option<Receipt>>>,
    complaints: Mutex<Vec<String>>,
    /// How often a request was refused, by the code it was given.
    refusals: Mutex<BTreeMap<String, usize>>,
    deadline: Instant,
}

impl Load {
    /// Starts the clients. They are done when every email has an answer, or none can be had.
    pub fn start(
        plan: Plan,
        addresses: &[SocketAddr],
        key: &str,
        refusal: Refusal,
    ) -> (Arc<Self>, JoinSet<()>) {
        let load = Arc::new(Self {
            plan,
            addresses: addresses.to_vec(),
            refusal,
            key: key.to_owned(),
            next: AtomicUsize::new(0),
            allowed: AtomicUsize::new(plan.backlog_max()),
            accepted: AtomicUsize::new(0),
            receipts: Mutex::new(vec![None; plan.emails]),
            complaints: Mutex::default(),
            refusals: Mutex::default(),
            deadline: Instant::now() + RUN_MAX,
        });
        let mut clients = JoinSet::new();
        for number in 0..CONNECTIONS {
            clients.spawn(Arc::clone(&load).client(number));
        }
        (load, clients)
    }

    /// How many emails reached the provider: acceptance runs ahead of that only so far.
    pub fn reached_provider(&self, count: usize) {
        self.allowed.store(count + self.plan.backlog_max(), Ordering::Relaxed);
    }

    /// Every client may hand one in, and another one.
    pub fn allow_more(&self) {
        self.allowed.fetch_max(self.accepted() + 2 * CONNECTIONS, Ordering::Relaxed);
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    pub fn receipts(&self) -> Vec<Option<Receipt>> {
        self.receipts.lock().expect("no client panics").clone()
    }

    /// How often requests were refused so far, by the code they were given.
    pub fn refusals(&self) -> BTreeMap<String, usize> {
        self.refusals.lock().expect("no client panics").clone()
    }

    /// What the server said that it must never say.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().expect("no client panics").clone()
    }

    /// Asks again for every email whose first request got lost: the same key must still mean the same email.
    pub async fn ask_again_for_doubtful(&self) {
        let doubtful = |(index, receipt): (usize, Option<Receipt>)| {
            receipt.filter(|receipt| self.is_doubtful(receipt)).map(|receipt| (index, receipt.id))
        };
        let mut connection = Connection::to(&self.addresses, 0);
        for (index, id) in self.receipts().into_iter().enumerate().filter_map(doubtful) {
            self.ask_again(&mut connection, index, id).await;
        }
    }

    /// Requests for it came to nothing that may have been stored all the same.
    fn is_doubtful(&self, receipt: &Receipt) -> bool {
        let refused = if self.refusal == Refusal::IsUncertain { receipt.refused } else { 0 };
        receipt.cut_off + receipt.garbled + refused > 0
    }

    async fn client(self: Arc<Self>, number: usize) {
        let mut connection = Connection::to(&self.addresses, number);
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.plan.emails {
                return;
            }
            while index >= self.allowed.load(Ordering::Relaxed) && Instant::now() < self.deadline {
                tokio::time::sleep(PAUSE).await;
            }
            let Some(receipt) = self.hand_in(&mut connection, index).await else { continue };
            self.receipts.lock().expect("no client panics")[index] = Some(receipt);
            self.accepted.fetch_add(1, Ordering::Relaxed);
            if self.plan.dice(index as u64).random_ratio(1, ASKED_AGAIN) {
                connection.move_on();
                self.ask_again(&mut connection, index, receipt.id).await;
            }
        }
    }

    /// Hands one email in until it is accepted. `None`, with a complaint, when that cannot be.
    async fn hand_in(&self, connection: &mut Connection, index: usize) -> Option<Receipt> {
        let request = self.request(index);
        let (mut cut_off, mut garbled, mut refused) = (0, 0, 0);
        while Instant::now() < self.deadline {
            match connection.exchange(&request).await {
                Exchange::Answered(answer) if answer.status == 202 => {
                    let id = self.id_in(index, &answer)?;
                    let receipt = Receipt { id, cut_off, garbled, refused, replayed: answer.replayed };
                    if receipt.replayed && !self.is_doubtful(&receipt) {
                        self.complain(index, "an email was stored although every request for it was refused");
                    }
                    return Some(receipt);
                }
                Exchange::Answered(answer) if matches!(answer.status, 429 | 503) => {
                    refused += 1;
                    self.count_refusal(&answer);
                    self.is_told_when_to_come_back(index, &answer);
                    tokio::time::sleep(PAUSE).await;
                }
                Exchange::NotConnected => tokio::time::sleep(PAUSE).await,
                Exchange::Answered(answer) => {
                    self.complain(index, &format!("answered {}: {}", answer.status, answer.body));
                    return None;
                }
                Exchange::CutOff => cut_off += 1,
                Exchange::Garbled(_) => garbled += 1,
                Exchange::Silence => {
                    cut_off += 1;
                    self.complain(index, "a request was never answered, and its connection stayed open");
                }
            }
        }
        self.complain(index, "was not accepted before the run's time was up");
        None
    }

    /// The same key and body again: the answer must be the first one.
    async fn ask_again(&self, connection: &mut Connection, index: usize, id: EmailId) {
        let request = self.request(index);
        while Instant::now() < self.deadline {
            match connection.exchange(&request).await {
                Exchange::Answered(answer) if answer.status == 202 => {
                    if self.id_in(index, &answer).is_some_and(|again| again != id) {
                        self.complain(index, "one key has given two ids");
                    }
                    if !answer.replayed {
                        self.complain(index, "a repeated request was not told that it is one");
                    }
                    return;
                }
                Exchange::Answered(Answer { status: 429 | 503, .. }) | Exchange::NotConnected => {
                    tokio::time::sleep(PAUSE).await;
                }
                Exchange::Answered(answer) => {
                    return self.complain(index, &format!("asked again, answered {}", answer.status));
                }
                Exchange::CutOff | Exchange::Garbled(_) | Exchange::Silence => {}
            }
        }
    }

    fn count_refusal(&self, answer: &Answer) {
        let json: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        let code = json["code"].as_str().unwrap_or_default().to_owned();
        *self.refusals.lock().expect("no client panics").entry(code).or_default() += 1;
    }

    fn is_told_when_to_come_back(&self, index: usize, answer: &Answer) {
        if answer.retry_after_secs.is_none() {
            self.complain(index, &format!("refused with {} and no Retry-After", answer.status));
        }
    }

    fn id_in(&self, index: usize, answer: &Answer) -> Option<EmailId> {
        let json: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        let id = json["outboxId"].as_str().and_then(|text| text.parse().ok());
        if id.is_none() {
            self.complain(index, &format!("a 202 without an id: {}", answer.body));
        }
        id
    }

    fn complain(&self, index: usize, what: &str) {
        self.complaints.lock().expect("no client panics").push(format!("email {index}: {what}"));
    }

    /// The request for an email: always the same bytes, mostly small, now and then large.
    fn request(&self, index: usize) -> Vec<u8> {
        let mut dice = self.plan.dice(index as u64);
        let _asked_again: bool = dice.random();
        let words = if dice.random_ratio(1, 20) { 8_000 } else { dice.random_range(10..200) };
        let text: Vec<String> = (0..words).map(|_| format!("{:08x}", dice.random::<u32>())).collect();
        let body = json!({
            "to": format!("reader{}@{}", index % 1000, self.plan.domain),
            "subject": format!("Chaos {index}"),
            "html": format!("<p>{}</p>", text.join(" ")),
        })
        .to_string();
        let head = format!(
            "POST /v1/email/send HTTP/1.1\r\nHost: chaos.test\r\nX-API-Key: {}\r\nIdempotency-Key: {}-{index}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.key,
            self.plan.seed,
            body.len()
        );
        [head, body].concat().into_bytes()
    }
}
