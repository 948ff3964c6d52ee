//! What the tests of the pipeline share: a gateway on the real SQLite store in memory, a clock they turn, a provider
//! that does what it is told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::email::Outgoing;
use model::{
    Category, Claim, Clock, Company, CompanyId, EmailId, ErrorCode, EventKind, Guard, NewEmail, RetryPolicy,
    Timestamp, WorkerId,
};
use provider::{Provider, Receipt, SendError, Taken};
use queue_store::StoreQueue;
use store::{Acceptance, Accepted, ClaimRequest, Retention, Routes, Store};
use store_sqlite::SqliteStore;
use testkit::{ManualClock, START, a_company, an_email};

use crate::{CAPTURE, EnvironmentGuard, Gateway, Settings};

pub type Answer = Result<Receipt, SendError>;
type Behaviour = dyn Fn(Outgoing) -> BoxFuture<'static, Answer> + Send + Sync;

/// A provider that does what a test tells it, and remembers what it was handed.
pub struct FakeProvider {
    behaviour: Box<Behaviour>,
    handed: Mutex<Vec<EmailId>>,
}

impl FakeProvider {
    pub fn new(behaviour: impl Fn(Outgoing) -> BoxFuture<'static, Answer> + Send + Sync + 'static) -> Self {
        Self { behaviour: Box::new(behaviour), handed: Mutex::default() }
    }

    pub fn answers(answer: impl Fn() -> Answer + Send + Sync + 'static) -> Self {
        Self::new(move |_| std::future::ready(answer()).boxed())
    }

    pub fn takes_everything() -> Self {
        Self::answers(taken)
    }

    pub fn handed(&self) -> Vec<EmailId> {
        self.handed.lock().expect("no test panics with it").clone()
    }
}

#[async_trait]
impl Provider for FakeProvider {
    fn kind(&self) -> &'static str {
        "fake"
    }

    async fn send(&self, email: &Outgoing) -> Answer {
        self.handed.lock().expect("no test panics with it").push(email.id);
        (self.behaviour)(email.clone()).await
    }
}

pub fn taken() -> Answer {
    Ok(Receipt::for_all(Some("m-1".into())))
}

pub fn refused(category: Category, taken: Taken) -> Answer {
    Err(SendError {
        code: ErrorCode::new("FAKE_SAYS_NO"),
        category,
        original_code: None,
        retry_after: None,
        detail: "not now".into(),
        taken,
        trouble: None,
        refused: None,
    })
}

pub fn settings() -> Settings {
    let policies = [RetryPolicy::fast(), RetryPolicy::patient()];
    Settings {
        retry_policies: policies.map(|policy| (policy.name.clone(), policy)).into(),
        default_retry_policy: "fast".into(),
        default_route: vec![CAPTURE.into()],
        ttl: testkit::TTL,
        provider_rates: Default::default(),
        alerts: Default::default(),
        reputation: None,
        worker_concurrency: 8,
        lease: Duration::from_secs(45),
        retention: Retention {
            content: Duration::from_secs(3600 * 24 * 30),
            emails: Duration::from_secs(3600 * 24 * 90),
            dead_letters: Duration::from_secs(3600 * 24 * 7),
        },
        guard: EnvironmentGuard::Open,
    }
}

/// The first claim of `an_email`.
pub fn a_claim(company: CompanyId) -> Claim {
    let email = an_email(company);
    Claim {
        guard: Guard { id: email.id, fence: 1, version: 2 },
        company,
        request_id: email.request_id,
        mode: email.mode,
        attempt: 1,
        attempt_in_series: 1,
        series: 0,
        unfinished_starts: 0,
        outcome_unknown: false,
        last_provider: None,
        route: "relay".into(),
        created_at: START,
        claimed_at: START,
        lease_until: START.plus(Duration::from_secs(45)),
        expires_at: email.expires_at,
        envelope: email.envelope,
        recipient: None,
        external_id: None,
        entity: None,
        wishes: email.wishes,
        content: Some(email.content),
        trace: None,
    }
}

/// A gateway, a company, and what it sends through.
pub struct Stage {
    pub gateway: Gateway,
    pub clock: Arc<ManualClock>,
    pub provider: Arc<FakeProvider>,
    pub company: Company,
}

impl Stage {
    pub async fn with(provider: FakeProvider) -> Self {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().await.expect("a store in memory"));
        let clock = Arc::new(ManualClock::default());
        let provider = Arc::new(provider);
        let company = a_company("acme");
        store.add_company(company.clone()).await.expect("a company");
        let providers = BTreeMap::from([(CAPTURE.to_owned(), provider.clone() as Arc<dyn Provider>)]);
        let gateway = Gateway {
            queue: Arc::new(StoreQueue::new(store.clone())),
            store,
            providers: Arc::new(providers),
            clock: clock.clone(),
            suppressions: Arc::default(),
            templates: Arc::default(),
            tracer: Default::default(),
            dice: Arc::new(|| 0.0),
            settings: Arc::new(settings()),
        };
        Self { gateway, clock, provider, company }
    }

    pub async fn accept(&self, email: NewEmail) -> EmailId {
        let id = email.id;
        let now = self.gateway.clock.now();
        let acceptance =
            Acceptance { company: self.company.id, emails: vec![email], key: None, daily_limit: None, now };
        assert_eq!(self.gateway.store.accept(acceptance).await, Ok(Accepted::Stored));
        id
    }

    pub async fn accept_one(&self) -> EmailId {
        self.accept(testkit::an_email_at(self.company.id, self.gateway.clock.now())).await
    }

    /// Claims one email as a worker that will never come back.
    pub async fn claim_and_vanish(&self) -> Claim {
        self.claim(1).await.pop().expect("something to claim")
    }

    /// Claims of a worker that does nothing with them.
    pub async fn claim(&self, limit: u32) -> Vec<Claim> {
        let now = self.gateway.clock.now();
        let request = ClaimRequest {
            owner: WorkerId::new(now),
            now,
            lease_until: now.plus(self.gateway.settings.lease),
            limit,
            size_bytes_max: u64::MAX,
            routes: Routes::All,
        };
        self.gateway.queue.claim(request).await.expect("a claim")
    }

    pub fn clock_now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn pass(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    pub async fn email(&self, id: EmailId) -> model::Email {
        self.gateway.store.email(self.company.id, id).await.expect("the store works").expect("it is there")
    }

    pub async fn status(&self, id: EmailId) -> model::Status {
        self.email(id).await.status
    }

    pub async fn events(&self, id: EmailId) -> Vec<model::Event> {
        self.gateway.store.events(self.company.id, id).await.expect("the store works").expect("it is there")
    }

    pub async fn kinds(&self, id: EmailId) -> Vec<EventKind> {
        self.events(id).await.iter().map(|event| event.kind).collect()
    }

    /// When each event of that kind happened, in seconds from the start.
    pub async fn seconds_of(&self, id: EmailId, kind: EventKind) -> Vec<u64> {
        let since_start = |at: Timestamp| at.since(START).as_secs();
        self.events(id)
            .await
            .iter()
            .filter(|event| event.kind == kind)
            .map(|event| since_start(event.at))
            .collect()
    }
}
