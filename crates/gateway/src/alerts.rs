//! Alerts become emails of their company, through the same pipeline as every other. The store has written what is to be
//! told, once; here it is put into words. Several processes may do this at once: an alert is one email, since its id is
//! the email's idempotency key.

use std::sync::Arc;

use model::alert::FAILURES_WITHIN;
use model::email::Wishes;
use model::{
    Address, Alert, AlertKind, AlertOutcome, Company, Content, Email, EmailId, Envelope, KeyMode, NewEmail,
    Secret, Status, Timestamp,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use store::{Acceptance, Accepted, EmailFilter, IdempotencyKey, StoreError};
use template::alerts::{Language, source};
use template::{Rendered, Template};

use crate::accept::{KEY_KEPT, PRIORITY_DEFAULT, offer};
use crate::company_cache::CompanyCache;
use crate::gates::route_text;
use crate::templates::TemplateName;
use crate::{CAPTURE, Gateway, observe, route};

/// How many are seen to in one go.
pub const BATCH: u32 = 20;
/// The failed attempts an alert lists.
const LISTED_MAX: usize = 10;
/// Tells our alerts among a company's emails.
pub const TAG: &str = "posthaste-alert";

/// Who hears of alerts where the company names nobody, and in which language.
#[derive(Debug, Clone, Default)]
pub struct AlertSettings {
    pub admin_email: Option<Address>,
    pub language: Language,
}

/// Sees to alerts that nobody has seen to; returns how many there were.
pub async fn see_to(gateway: &Gateway, companies: &CompanyCache) -> Result<u32, StoreError> {
    let pending = gateway.store.pending_alerts(BATCH).await?;
    let count = u32::try_from(pending.len()).unwrap_or(u32::MAX);
    for alert in pending {
        let outcome = match companies.get(&*gateway.store, alert.company).await? {
            Some(company) => tell(gateway, &company, &alert).await?,
            None => AlertOutcome::Shown("its company is gone".to_owned()),
        };
        if let AlertOutcome::Shown(why) = &outcome {
            let email = gateway.store.email(alert.company, alert.email).await?;
            tracing::warn!(
                outboxId = %alert.email, requestId = email.map(|email| email.request_id),
                companyId = %alert.company, alert = alert.kind.as_str(), reason = alert.reason,
                "an alert is shown here only: {why}"
            );
        }
        gateway.store.end_alert(alert.id, outcome).await?;
    }
    Ok(count)
}

/// Hands the alert in as an email, or says why that cannot be done.
async fn tell(gateway: &Gateway, company: &Arc<Company>, alert: &Alert) -> Result<AlertOutcome, StoreError> {
    let settings = &gateway.settings;
    let admin = company.settings.admin_email.as_ref().or(settings.alerts.admin_email.as_ref());
    let Some(admin) = admin else {
        return Ok(AlertOutcome::Shown(
            "no admin address is set for the company, nor alerts.admin_email".into(),
        ));
    };
    let wishes = Wishes { is_alert: true, ..Wishes::default() };
    let rendered = match words(gateway, company, alert).await? {
        Ok(rendered) => rendered,
        Err(why) => return Ok(AlertOutcome::Shown(why)),
    };
    let envelope = Envelope {
        from: company.settings.from.clone(),
        to: admin.clone(),
        cc: Vec::new(),
        bcc: Vec::new(),
        reply_to: None,
        subject: Secret::new(rendered.subject),
        headers: Vec::new(),
        tags: vec![TAG.to_owned()],
    };
    let ways = route::ways(settings, &gateway.providers, &company.settings, alert.mode, &wishes, &envelope);
    let is_captured = ways.first().is_some_and(|first| *first == CAPTURE);
    if company.settings.from.is_none() && !is_captured && alert.mode == KeyMode::Live {
        return Ok(AlertOutcome::Shown("the company has no sender of its own (from)".into()));
    }
    let now = gateway.clock.now();
    let email = NewEmail {
        id: EmailId::new(now),
        company: company.id,
        request_id: format!("alert-{}", alert.id),
        mode: alert.mode,
        status: Status::Enqueued,
        route: route_text(&ways),
        envelope,
        recipient: None,
        external_id: None,
        entity: None,
        priority: PRIORITY_DEFAULT,
        created_at: now,
        due_at: now,
        scheduled_at: None,
        expires_at: now.plus(settings.ttl),
        wishes,
        content: Content::Composed {
            html: rendered.html,
            text: Some(rendered.text),
            attachments: Vec::new(),
        },
        trace: None,
    };
    hand_in(gateway, alert, email, now).await
}

async fn hand_in(
    gateway: &Gateway,
    alert: &Alert,
    email: NewEmail,
    now: Timestamp,
) -> Result<AlertOutcome, StoreError> {
    let id = email.id;
    // No key of a company has a control character, so this is nobody's but ours.
    let name = format!("\u{1}alert:{}", alert.id);
    let key = IdempotencyKey {
        body_hash: Sha256::digest(name.as_bytes()).into(),
        key: name,
        answer: id.to_string(),
        keep_until: now.plus(KEY_KEPT),
    };
    let acceptance =
        Acceptance { company: email.company, emails: vec![email], key: Some(key), daily_limit: None, now };
    match gateway.store.accept(acceptance).await? {
        Accepted::Stored => {
            observe::taken_in(1, 0);
            offer(gateway, &[(id, now)]).await;
            Ok(AlertOutcome::Sent(id))
        }
        // Another process was a moment earlier.
        Accepted::Replayed { answer } => Ok(AlertOutcome::Sent(answer.parse().unwrap_or(id))),
        Accepted::KeyReused | Accepted::OverDailyLimit { .. } => {
            Err(StoreError::Broken("an alert was refused as an email".into()))
        }
    }
}

/// The alert in words: by the company's own template of that name, or the one that ships.
async fn words(
    gateway: &Gateway,
    company: &Company,
    alert: &Alert,
) -> Result<Result<Rendered, String>, StoreError> {
    let variables = variables(gateway, company, alert).await?;
    let name = TemplateName { name: alert.kind.as_str().to_owned(), version: None };
    if let Some(own) = gateway.templates.get(&*gateway.store, company.id, &name).await? {
        match own.render(&variables) {
            Ok(rendered) => return Ok(Ok(rendered)),
            Err(error) => tracing::warn!(
                companyId = %company.id, template = name.name, %error,
                "the company's own alert template fails; the one that ships is used"
            ),
        }
    }
    let shipped = source(kind(alert.kind), gateway.settings.alerts.language);
    let rendered = Template::compile(&shipped)
        .map_err(|_| "its template does not compile".to_owned())
        .and_then(|template| template.render(&variables).map_err(|error| error.to_string()));
    Ok(rendered)
}

fn kind(kind: AlertKind) -> template::alerts::Alert {
    match kind {
        AlertKind::Bounce => template::alerts::Alert::Bounce,
        AlertKind::Complaint => template::alerts::Alert::Complaint,
        AlertKind::RepeatedFailures => template::alerts::Alert::RepeatedFailures,
    }
}

/// The addressee is named in full: the admin has to know whom it is about.
async fn variables(gateway: &Gateway, company: &Company, alert: &Alert) -> Result<Value, StoreError> {
    let email = gateway.store.email(company.id, alert.email).await?;
    let entity = email.as_ref().and_then(|email| email.entity.as_ref());
    let suppressed = gateway.store.suppressed(company.id, std::slice::from_ref(&alert.address)).await?;
    let attempts = match alert.kind {
        AlertKind::RepeatedFailures => failures(gateway, company, alert).await?,
        AlertKind::Bounce | AlertKind::Complaint => Vec::new(),
    };
    Ok(json!({
        "entity": entity.map(|entity| entity.name.as_ref().unwrap_or(&entity.id)),
        "to": alert.address.expose(),
        "company": company.name,
        "at": alert.created_at.to_string(),
        "emailId": alert.email.to_string(),
        "subject": email.as_ref().map(|email| email.envelope.subject.expose()),
        "reason": alert.reason,
        "provider": email.as_ref().and_then(|email| email.provider.as_ref()),
        "suppressed": !suppressed.is_empty(),
        "attempts": attempts,
    }))
}

/// The latest emails to the address that failed.
async fn failures(gateway: &Gateway, company: &Company, alert: &Alert) -> Result<Vec<Value>, StoreError> {
    let since = alert.created_at.minus(FAILURES_WITHIN);
    let filter =
        EmailFilter { to: Some(alert.address.clone()), since: Some(since), ..EmailFilter::default() };
    let page = gateway.store.emails(company.id, &filter, None, 50).await?;
    let failed = page.items.iter().filter(|email| matches!(email.status, Status::Failed | Status::Bounced));
    Ok(failed.filter_map(failure).take(LISTED_MAX).collect())
}

fn failure(email: &Email) -> Option<Value> {
    let failure = email.last_failure.as_ref()?;
    Some(json!({ "at": failure.at.to_string(), "code": failure.code, "reason": failure.reason }))
}

#[cfg(test)]
mod tests;
