//! Taking emails in: check, store, offer. Start reading at [`look_up`], then [`prepare_one`], then [`commit`].
//!
//! `look_up` reads templates and suppressions. `prepare` is pure and decides everything, down to the words of the answer, so that the idempotency record
//! holds the very answer that is given. `commit` stores and tells the queue. The worker takes it from there.

mod batch;
pub mod copy;
pub mod draft;
pub mod known;
pub mod rules;
pub mod text;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use model::{
    CLOCK_MIN, Company, CompanyId, Content, EmailId, NewEmail, Recipient, Secret, Status, Timestamp,
    TraceContext,
};
use serde_json::Value;
use store::{Acceptance, Accepted, IdempotencyKey, StoreError};

use crate::documents::DocumentKeys;
use crate::gates::route_text;
use crate::keys::Caller;
use crate::trace::{self, Span, SpanKind};
use crate::validate::html;
use crate::{Gateway, observe, route};
pub use batch::prepare_many;
pub use known::{Known, look_up};

use draft::{Draft, DraftDocument, DraftRecipient, Fault, FaultKind, Note, sum_up};

/// How long an idempotency key is remembered.
pub const KEY_KEPT: Duration = Duration::from_secs(24 * 3600);
/// 1 goes first, 10 last.
pub const PRIORITY_DEFAULT: u8 = 5;

/// Where emails are handed in.
#[derive(Clone)]
pub struct Desk {
    pub gateway: Gateway,
    /// Without them no email may carry a CPF or CNPJ.
    pub documents: Option<std::sync::Arc<DocumentKeys>>,
}

/// One request that hands in emails.
#[derive(Debug, Clone)]
pub struct Request {
    pub id: String,
    pub key: Option<RequestKey>,
    pub now: Timestamp,
    /// When it arrived, for the metrics.
    pub arrived: Instant,
}

/// The idempotency key of a request and the hash of what it asks for.
#[derive(Debug, Clone)]
pub struct RequestKey {
    pub key: String,
    pub body_hash: [u8; 32],
}

/// Emails found acceptable, and the answer to give once they are stored.
#[derive(Debug)]
pub struct Prepared {
    acceptance: Acceptance,
    answer: String,
    /// Of a batch: the results one by one.
    results: Option<batch::Results>,
    arrived: Instant,
    trace: Option<TraceContext>,
}

impl Prepared {
    /// Where the request stands in a trace, if it is traced.
    #[must_use]
    pub fn within(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }
}

/// What to tell the application, as JSON.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub body: String,
    /// It is the answer to an earlier request with the same idempotency key.
    pub replayed: bool,
}

/// Why acceptable emails were not taken. Nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    #[error("the idempotency key was used for another request")]
    KeyReused,
    #[error("the company's emails of the day are used up")]
    OverDailyLimit { retry_after: Duration },
    /// It would be dated by a time that is not, and expire as soon as the clock is set.
    #[error("the clock was never set")]
    ClockNeverSet,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Checks one email and prepares the answer to it.
pub fn prepare_one(
    desk: &Desk,
    caller: &Caller,
    request: Request,
    draft: Draft,
    known: &Known,
) -> Result<Prepared, Vec<Fault>> {
    let (email, notes) = check(desk, caller, &request, draft, known)?;
    let mut answer = String::with_capacity(320);
    answer.push('{');
    write_receipt(&mut answer, &email, &notes);
    answer.push('}');
    Ok(prepared(&caller.company, request, vec![email], answer))
}

/// Stores what was prepared and tells the queue. Runs to its end even when the caller goes away, since some
/// stores would otherwise be left in the middle of a transaction.
pub async fn commit(desk: &Desk, prepared: Prepared) -> Result<Answer, NotTaken> {
    let gateway = desk.gateway.clone();
    to_the_end(async move {
        let Prepared { mut acceptance, mut answer, results, arrived, trace } = prepared;
        if acceptance.emails.is_empty() {
            let asked = acceptance.key.as_ref().map(|key| (key.key.as_str(), &key.body_hash));
            let earlier = earlier_answer(&gateway, acceptance.company, asked, acceptance.now).await?;
            return Ok(earlier.unwrap_or(Answer { body: answer, replayed: false }));
        }
        if acceptance.now < CLOCK_MIN {
            return Err(NotTaken::ClockNeverSet);
        }
        let mut span = accepting(&gateway, &mut acceptance, trace);
        let now = acceptance.now;
        let (count, offers, lines) = loop {
            let taken = (acceptance.emails.len(), offers(&acceptance.emails), lines(&acceptance));
            // Only where a part of it may have to be handed in again.
            let whole = results.as_ref().filter(|_| acceptance.daily_limit.is_some());
            let whole = whole.map(|results| (results, acceptance.clone()));
            let accepted = gateway.store.accept(acceptance).await;
            match (accepted.inspect_err(|_| span.fails("STORE_ERROR"))?, whole) {
                (Accepted::Stored, _) => break taken,
                (Accepted::Replayed { answer }, _) => return Ok(Answer { body: answer, replayed: true }),
                (Accepted::KeyReused, _) => return Err(NotTaken::KeyReused),
                // Somebody else may take what is left meanwhile: it ends, as there are fewer each time.
                (Accepted::OverDailyLimit { left: left @ 1.. }, Some((results, whole)))
                    if whole.emails.len() > 1 =>
                {
                    (acceptance, answer) = results.fitting(whole, left);
                }
                (Accepted::OverDailyLimit { .. }, _) => {
                    return Err(NotTaken::OverDailyLimit { retry_after: until_tomorrow(now) });
                }
            }
        };
        offer(&gateway, &offers).await;
        observe::enqueued(arrived.elapsed());
        observe::taken_in(offers.len(), count - offers.len());
        if let Some(lines) = lines {
            lines.write(arrived.elapsed());
        }
        Ok(Answer { body: answer, replayed: false })
    })
    .await
}

/// What a request that is refused now was answered when it came before. What has changed since (a template, a
/// suppression, a sender) must not make a client believe that nothing was taken.
pub async fn answered_before(
    desk: &Desk,
    company: CompanyId,
    request: &Request,
) -> Result<Option<Answer>, NotTaken> {
    let asked = request.key.as_ref().map(|key| (key.key.as_str(), &key.body_hash));
    earlier_answer(&desk.gateway, company, asked, request.now).await
}

async fn earlier_answer(
    gateway: &Gateway,
    company: CompanyId,
    asked: Option<(&str, &[u8; 32])>,
    now: Timestamp,
) -> Result<Option<Answer>, NotTaken> {
    let Some((key, body_hash)) = asked else { return Ok(None) };
    let kept = gateway.store.kept_answer(company, key, now).await?;
    match kept.map(|kept| kept.to(body_hash)) {
        Some(Accepted::Replayed { answer }) => Ok(Some(Answer { body: answer, replayed: true })),
        Some(Accepted::KeyReused) => Err(NotTaken::KeyReused),
        Some(Accepted::Stored | Accepted::OverDailyLimit { .. }) | None => Ok(None),
    }
}

/// The span of an acceptance. The attempts of its emails follow it, wherever they are made.
fn accepting(gateway: &Gateway, acceptance: &mut Acceptance, trace: Option<TraceContext>) -> Span {
    let mut span = gateway.tracer.follow(trace::ACCEPT, SpanKind::Producer, trace);
    let Some(context) = span.context() else { return span };
    span.put("companyId", acceptance.company);
    match &acceptance.emails[..] {
        [email] => span.put("outboxId", email.id),
        emails => span.number("emails", u32::try_from(emails.len()).unwrap_or(u32::MAX)),
    }
    if let Some(first) = acceptance.emails.first() {
        span.put("requestId", &first.request_id);
    }
    for email in &mut acceptance.emails {
        email.trace = Some(context);
    }
    span
}

/// What the log says of emails that were taken in. A line for each would be most of the log of a busy gateway, so there
/// are none unless details are asked for.
struct Lines {
    company: CompanyId,
    request_id: String,
    emails: Vec<(EmailId, Status)>,
}

fn lines(acceptance: &Acceptance) -> Option<Lines> {
    let emails = &acceptance.emails;
    tracing::enabled!(tracing::Level::DEBUG).then(|| Lines {
        company: acceptance.company,
        request_id: emails.first().map(|email| email.request_id.clone()).unwrap_or_default(),
        emails: emails.iter().map(|email| (email.id, email.status)).collect(),
    })
}

impl Lines {
    fn write(&self, took: Duration) {
        for (id, state) in &self.emails {
            tracing::debug!(
                outboxId = %id, requestId = self.request_id, companyId = %self.company, %state,
                durationMs = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                "accepted"
            );
        }
    }
}

/// Runs a future to its end even if whoever waits for it goes away. A panic in it is passed on.
pub async fn to_the_end<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that is being torn down cancels tasks; then nobody waits for this any more.
            Err(_) => std::future::pending().await,
        },
    }
}

/// The emails are safe in the store already: a queue that cannot be told now finds them later.
pub async fn offer(gateway: &Gateway, offers: &[(EmailId, Timestamp)]) {
    if offers.is_empty() {
        return;
    }
    if let Err(error) = gateway.queue.offer(offers).await {
        tracing::warn!(%error, "emails could not be offered to the queue; they are found later");
    }
}

/// What waits for the intake is not for the queue yet.
fn offers(emails: &[NewEmail]) -> Vec<(EmailId, Timestamp)> {
    emails.iter().filter(|email| email.status.is_waiting()).map(|email| (email.id, email.due_at)).collect()
}

fn prepared(company: &Company, request: Request, emails: Vec<NewEmail>, answer: String) -> Prepared {
    let (now, arrived) = (request.now, request.arrived);
    let key = request.key.map(|RequestKey { key, body_hash }| IdempotencyKey {
        key,
        body_hash,
        answer: answer.clone(),
        keep_until: now.plus(KEY_KEPT),
    });
    let daily_limit = company.settings.daily_limit;
    Prepared {
        acceptance: Acceptance { company: company.id, emails, key, daily_limit, now },
        answer,
        results: None,
        arrived,
        trace: None,
    }
}

/// All rules over one email. What is wrong is told all at once.
fn check(
    desk: &Desk,
    caller: &Caller,
    request: &Request,
    mut draft: Draft,
    known: &Known,
) -> Result<(NewEmail, Vec<Note>), Vec<Fault>> {
    let from_template = draft.template.is_some();
    known.render(&mut draft)?;
    let settings = &desk.gateway.settings;
    let Caller { key, company } = caller;
    let schedule = rules::schedule(draft.when, request.now);
    let captured = rules::route_is_capture(settings, &company.settings, &draft.wishes, &draft.envelope.to);
    let suppression = known.suppression(&draft);
    let recipient = recipient(desk.documents.as_deref(), draft.recipient);
    let (unknown_provider, unknown_policy) =
        rules::unknown_names(settings, &desk.gateway.providers, &draft.wishes);
    let faults: Vec<Fault> = [
        schedule.as_ref().err().cloned(),
        rules::sender(&company.settings, key.mode, draft.envelope.from.as_ref(), captured),
        rules::sender_beside_from(&company.settings, key.mode, &draft.content),
        unknown_provider,
        unknown_policy,
        unsafe_html(&draft.content, from_template),
        suppression.as_ref().err().cloned(),
        recipient.as_ref().err().cloned(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let (Ok(schedule), Ok(recipient), Ok(suppression), true) =
        (schedule, recipient, suppression, faults.is_empty())
    else {
        return Err(faults);
    };
    let mut envelope = rules::with_sender(draft.envelope, &company.settings);
    let mut notes = draft.notes;
    notes.extend(schedule.note);
    notes.extend(suppression);
    let status = match draft.content {
        Content::Raw(_) => Status::Accepted,
        Content::Composed { .. } => {
            notes.extend(rules::without_duplicates(&mut envelope));
            Status::Enqueued
        }
    };
    let ways =
        route::ways(settings, &desk.gateway.providers, &company.settings, key.mode, &draft.wishes, &envelope);
    let route = route_text(&ways);
    let email = NewEmail {
        id: EmailId::new(request.now),
        company: company.id,
        request_id: request.id.clone(),
        mode: key.mode,
        status,
        envelope,
        recipient,
        external_id: draft.external_id,
        entity: draft.entity,
        priority: draft.priority.unwrap_or(PRIORITY_DEFAULT),
        route,
        created_at: request.now,
        due_at: schedule.due_at,
        scheduled_at: schedule.scheduled_at,
        expires_at: schedule.due_at.plus(draft.ttl.unwrap_or(settings.ttl)),
        wishes: draft.wishes,
        content: draft.content,
        trace: None,
    };
    Ok((email, notes))
}

fn unsafe_html(content: &Content, from_template: bool) -> Option<Fault> {
    let Content::Composed { html, .. } = content else {
        return None;
    };
    let found = html::check(html).err()?;
    let field = if from_template { "template" } else { "html" };
    Some(Fault::unacceptable(field, "UNSAFE_HTML", format!("is refused: {found}")))
}

/// The recipient as it may be stored: a document only hashed under our key, or sealed.
fn recipient(keys: Option<&DocumentKeys>, draft: Option<DraftRecipient>) -> Result<Option<Recipient>, Fault> {
    let Some(draft) = draft else {
        return Ok(None);
    };
    let (document_hmac, document_sealed) = match draft.document {
        None => (None, None),
        Some(document) => {
            let keys = keys.ok_or_else(|| {
                Fault::unacceptable(
                    "recipient",
                    "DOCUMENT_KEYS_MISSING",
                    "names a CPF or CNPJ, but this server has no keys to protect it with; the operator can set them",
                )
            })?;
            protect(keys, &document)
        }
    };
    Ok(Some(Recipient {
        id: draft.id,
        external_id: draft.external_id,
        document_hmac,
        document_sealed,
        legal_name: draft.legal_name,
        name: draft.name,
    }))
}

fn protect(keys: &DocumentKeys, document: &DraftDocument) -> (Option<String>, Option<Secret<Vec<u8>>>) {
    match document {
        DraftDocument::Number(number) => (Some(keys.hmac_of(&number.sha256_hex())), Some(keys.seal(number))),
        DraftDocument::Hash(hash) => (Some(keys.hmac_of(hash.expose())), None),
    }
}

/// The members of the answer to one accepted email, in the order people read them.
fn write_receipt(json: &mut String, email: &NewEmail, notes: &[Note]) {
    let NewEmail { id, status, created_at, .. } = email;
    let request_id = text(&email.request_id);
    let _ = write!(
        json,
        "\"outboxId\":\"{id}\",\"jobId\":\"{id}\",\"requestId\":{request_id},\"status\":\"{status}\",\
         \"receivedAt\":\"{created_at}\",\"recipient\":{{"
    );
    if let Some(external_id) = email.recipient.as_ref().and_then(|recipient| recipient.external_id.as_ref()) {
        let _ = write!(json, "\"externalId\":{}", text(external_id));
    }
    json.push('}');
    if !notes.is_empty() {
        let notes = notes.iter().map(|note| (note.field.as_str(), note.code, note.message.as_str()));
        json.push_str(",\"warnings\":");
        write_list(json, notes);
    }
}

fn write_refusal(json: &mut String, faults: &[Fault]) {
    let verdict = sum_up(faults);
    let status = http_status(verdict.kind);
    let _ = write!(
        json,
        "\"error\":{{\"status\":{status},\"code\":\"{}\",\"detail\":{},\"errors\":",
        verdict.code,
        text(&verdict.detail)
    );
    write_list(json, faults.iter().map(|fault| (fault.field.as_str(), fault.code, fault.message.as_str())));
    json.push('}');
}

fn write_list<'a>(json: &mut String, lines: impl Iterator<Item = (&'a str, &'static str, &'a str)>) {
    json.push('[');
    for (index, (field, code, message)) in lines.enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(
            json,
            "{comma}{{\"field\":{},\"code\":\"{code}\",\"message\":{}}}",
            text(field),
            text(message)
        );
    }
    json.push(']');
}

/// The status with which the API answers a refusal of this kind.
pub fn http_status(kind: FaultKind) -> u16 {
    match kind {
        FaultKind::Wrong => 400,
        FaultKind::TooLarge => 413,
        FaultKind::Unacceptable => 422,
    }
}

/// A text as JSON.
fn text(text: &str) -> Value {
    Value::from(text)
}

fn until_tomorrow(now: Timestamp) -> Duration {
    const DAY_MS: i64 = 24 * 3600 * 1000;
    let left = DAY_MS - now.millis().rem_euclid(DAY_MS);
    Duration::from_millis(u64::try_from(left).unwrap_or(0))
}
