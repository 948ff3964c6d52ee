//! What a store holds before it is measured: emails of another company that wait, and emails that were sent. Written
//! through the store's own verbs, so that every table, index and count is as it would be.

use std::time::Duration;

use anyhow::ensure;
use futures_util::future::try_join_all;
use model::{
    Address, Claim, Clock as _, CompanyId, Content, EmailId, Envelope, Event, EventKind, KeyMode, NewEmail,
    Secret, Status, SystemClock, Verdict, WorkerId,
};
use store::{Acceptance, Accepted, AttemptStart, Begun, ClaimRequest, Routes, SettledBy, Settlement, Store};

/// Emails in one request; several requests are under way at once and share commits.
const REQUEST: u64 = 250;
const REQUESTS_AT_ONCE: u64 = 8;
const TTL: Duration = Duration::from_secs(24 * 3600);
const LEASE: Duration = Duration::from_secs(60);
const CLAIM: u32 = 256;

/// Finished ones first: they are claimed and sent here, which is only right while nothing else waits.
pub async fn fill(store: &dyn Store, waiting: u64, finished: u64, html_bytes: usize) -> anyhow::Result<()> {
    if waiting + finished == 0 {
        return Ok(());
    }
    let company = super::add_company(store, "history-").await?;
    let html = super::load::receipt(html_bytes);
    accept(store, company, finished, &html).await?;
    finish(store, finished).await?;
    accept(store, company, waiting, &html).await
}

async fn accept(store: &dyn Store, company: CompanyId, count: u64, html: &str) -> anyhow::Result<()> {
    let mut left = count;
    while left > 0 {
        let mut requests = Vec::new();
        for _ in 0..REQUESTS_AT_ONCE {
            let size = left.min(REQUEST);
            left -= size;
            let emails: Vec<NewEmail> = (0..size).map(|_| an_email(company, html)).collect();
            if !emails.is_empty() {
                let now = SystemClock.now();
                requests.push(store.accept(Acceptance {
                    company,
                    emails,
                    key: None,
                    daily_limit: None,
                    now,
                }));
            }
        }
        let accepted = try_join_all(requests).await?;
        ensure!(accepted.iter().all(|accepted| *accepted == Accepted::Stored), "the store refused emails");
    }
    Ok(())
}

fn an_email(company: CompanyId, html: &str) -> NewEmail {
    let now = SystemClock.now();
    let id = EmailId::new(now);
    NewEmail {
        id,
        company,
        request_id: id.to_string(),
        mode: KeyMode::Live,
        status: Status::Enqueued,
        envelope: Envelope {
            from: None,
            to: Address::trusted(format!("person-{id}@example.com")),
            cc: vec![],
            bcc: vec![],
            reply_to: None,
            subject: Secret::new("An email of the past".to_owned()),
            headers: vec![],
            tags: vec![],
        },
        recipient: None,
        external_id: None,
        entity: None,
        priority: 5,
        route: "bench".to_owned(),
        created_at: now,
        due_at: now,
        scheduled_at: None,
        expires_at: now.plus(TTL),
        wishes: Default::default(),
        content: Content::Composed { html: html.to_owned(), text: None, attachments: vec![] },
        trace: None,
    }
}

async fn finish(store: &dyn Store, count: u64) -> anyhow::Result<()> {
    let owner = WorkerId::new(SystemClock.now());
    let mut done = 0;
    while done < count {
        let now = SystemClock.now();
        let request = ClaimRequest {
            owner,
            now,
            lease_until: now.plus(LEASE),
            limit: CLAIM,
            size_bytes_max: 1 << 30,
            routes: Routes::All,
        };
        let claims = store.claim(request).await?;
        ensure!(!claims.is_empty(), "only {done} of {count} emails could be claimed");
        done += claims.len() as u64;
        try_join_all(claims.into_iter().map(|claim| send(store, claim))).await?;
    }
    Ok(())
}

async fn send(store: &dyn Store, claim: Claim) -> anyhow::Result<()> {
    let now = SystemClock.now();
    let events = vec![Event::new(EventKind::Validated, now), Event::new(EventKind::SentAttempt, now)];
    let start = AttemptStart { guard: claim.guard, provider: "bench".to_owned(), events, now };
    let Begun::Yes(guard) = store.begin(start).await? else {
        anyhow::bail!("somebody else works on this database");
    };
    let verdict = Verdict::Sent {
        provider: "bench".to_owned(),
        provider_kind: "smtp",
        message_id: Some(claim.id().to_string()),
        duration_ms: 0,
        refused: Vec::new(),
    };
    let events = vec![Event::new(EventKind::Sent, now)];
    store.settle(Settlement { guard, by: SettledBy::Worker, verdict, events, now }).await?;
    Ok(())
}
