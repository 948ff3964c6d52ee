//! `/v1/emails…`: reading emails back, withdrawing and hurrying them.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use gateway::accept::{self, to_the_end};
use gateway::{lookup, observe};
use model::{Attachment, Content, Email, EmailId, KeyMode, Status};
use serde_json::{Value, json};
use store::{Cancelled, EmailFilter, Page, RetriedNow};

use super::cursor::Listing;
use super::draft::line;
use super::params::{Id, Named as _, read_query};
use super::raw::MESSAGE;
use super::{answer, email_json};
use crate::auth::Client;
use crate::error::Problem;
use crate::limits::{ID_LENGTH_MAX, PAGE_DEFAULT, PAGE_MAX};
use crate::state::ApiState;

pub const FILTERS: &[&str] = &[
    "status",
    "to",
    "tag",
    "entity",
    "externalId",
    "recipient",
    "code",
    "requestId",
    "providerMessageId",
    "captured",
    "since",
    "until",
    "cursor",
    "limit",
];

pub async fn get(
    State(state): State<ApiState>,
    client: Client,
    Id(id): Id<EmailId>,
) -> Result<Response, Problem> {
    let email = find(&state, &client, id).await?;
    let mut shown = email_json::email(&state.desk.gateway, &email);
    if !(email.envelope.cc.is_empty() && email.envelope.bcc.is_empty()) {
        let states = state.desk.gateway.store.recipient_states(client.id(), id).await?;
        shown["recipients"] = states.iter().map(email_json::recipient_state).collect();
    }
    Ok(answer::value(StatusCode::OK, &shown))
}

pub async fn list(State(state): State<ApiState>, client: Client, uri: Uri) -> Result<Response, Problem> {
    let gateway = &state.desk.gateway;
    let listing = Listing::of(&state, client.id(), "emails", &uri).await?;
    let (filter, after, limit) = read_query(&uri, FILTERS, |form| {
        let words: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
        let filter = EmailFilter {
            status: form.choice("status", &words, |word| word.parse().ok()),
            to: form.address("to"),
            tag: line(form, "tag", ID_LENGTH_MAX),
            entity: line(form, "entity", ID_LENGTH_MAX),
            external_id: line(form, "externalId", ID_LENGTH_MAX),
            recipient: line(form, "recipient", ID_LENGTH_MAX),
            code: line(form, "code", ID_LENGTH_MAX),
            request_id: line(form, "requestId", ID_LENGTH_MAX),
            message_id: line(form, "providerMessageId", ID_LENGTH_MAX),
            providers: captured(form, gateway),
            since: form.moment("since", "INVALID_TIME"),
            until: form.moment("until", "INVALID_TIME"),
        };
        (filter, listing.take(form), page_limit(form))
    })?;
    let page = lookup::emails(gateway, client.id(), &filter, after, limit).await?;
    Ok(page_answer(&listing, page, |email| email_json::email(gateway, email)))
}

/// Those kept instead of sent, or those that were not: by the kind of the provider of their last attempt.
fn captured(form: &mut crate::form::Form<'_>, gateway: &gateway::Gateway) -> Option<Vec<String>> {
    let wanted = form.flag("captured")?;
    let names = gateway.providers.keys().filter(|name| gateway.captures(name) == wanted);
    Some(names.cloned().collect())
}

pub fn page_limit(form: &mut crate::form::Form<'_>) -> u32 {
    let limit = form.whole("limit", 1..=PAGE_MAX).unwrap_or(PAGE_DEFAULT);
    u32::try_from(limit).unwrap_or(u32::MAX)
}

/// `{data, nextCursor}`; the cursor is `null` on the last page.
pub fn page_answer<T>(listing: &Listing<'_>, page: Page<T>, shape: impl Fn(&T) -> Value) -> Response {
    let data: Vec<Value> = page.items.iter().map(shape).collect();
    let next = page.next.map(|cursor| listing.give_out(&cursor));
    answer::value(StatusCode::OK, &json!({ "data": data, "nextCursor": next }))
}

pub async fn events(
    State(state): State<ApiState>,
    client: Client,
    Id(id): Id<EmailId>,
) -> Result<Response, Problem> {
    let events = state.desk.gateway.store.events(client.id(), id).await?.ok_or_else(EmailId::missing)?;
    let data: Vec<Value> = events.iter().map(email_json::event).collect();
    Ok(answer::value(StatusCode::OK, &json!({ "data": data })))
}

pub const CONTENT_PARAMETERS: &[&str] = &["format"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Eml,
}

/// What was sent, as JSON or as the .eml itself.
pub async fn content(
    State(state): State<ApiState>,
    client: Client,
    Id(id): Id<EmailId>,
    request: Request,
) -> Result<Response, Problem> {
    let format = read_query(request.uri(), CONTENT_PARAMETERS, |form| {
        form.choice("format", &["json", "eml"], |word| match word {
            "json" => Some(Format::Json),
            "eml" => Some(Format::Eml),
            _ => None,
        })
    })?;
    let format = format.unwrap_or_else(|| accepted_format(request.headers()));
    let found = lookup::content(&state.desk.gateway, client.id(), id).await?;
    let (email, content) = found.ok_or_else(EmailId::missing)?;
    let content = content.ok_or_else(content_gone)?;
    match format {
        Format::Json => Ok(answer::value(StatusCode::OK, &email_json::content(&email, &content))),
        Format::Eml => {
            let request_id = email.request_id.clone();
            let outgoing = lookup::outgoing(&state.desk.gateway, client.company(), email, content).await?;
            let eml = message::render(&outgoing).map_err(|error| {
                tracing::error!(
                    outboxId = %id, requestId = request_id, companyId = %client.id(), %error,
                    "a stored email cannot be made into a message"
                );
                Problem::internal()
            })?;
            Ok(eml_answer(id, eml))
        }
    }
}

pub fn content_gone() -> Problem {
    Problem::not_found("CONTENT_GONE", "the content of this email is no longer kept; the email itself is")
}

fn accepted_format(headers: &HeaderMap) -> Format {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let wants_eml =
        accept.split(',').filter_map(|kind| kind.split(';').next()).any(|kind| kind.trim() == MESSAGE);
    if wants_eml { Format::Eml } else { Format::Json }
}

/// Always a download: a browser must not be made to show a stranger's mail as a page of ours.
fn eml_answer(id: EmailId, eml: Vec<u8>) -> Response {
    let mut response = eml.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MESSAGE));
    if let Ok(disposition) = HeaderValue::from_str(&format!("attachment; filename=\"{id}.eml\"")) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    response
}

/// One attachment, as it was handed in; always a download, whatever it calls itself.
pub async fn attachment(
    State(state): State<ApiState>,
    client: Client,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, Problem> {
    let Path((id, position)) = path.map_err(|_| EmailId::missing())?;
    let id: EmailId = id.parse().map_err(|_| EmailId::missing())?;
    let found = lookup::content(&state.desk.gateway, client.id(), id).await?;
    let (_, content) = found.ok_or_else(EmailId::missing)?;
    let attachments = match content.ok_or_else(content_gone)? {
        Content::Composed { attachments, .. } => attachments,
        Content::Raw(_) => Vec::new(),
    };
    let wanted = position.parse::<usize>().ok().and_then(|position| attachments.into_iter().nth(position));
    let attachment = wanted.ok_or_else(|| {
        Problem::not_found("ATTACHMENT_NOT_FOUND", "the email has no attachment at this position")
    })?;
    Ok(attachment_answer(attachment))
}

fn attachment_answer(attachment: Attachment) -> Response {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    // Browsers that know the second form take it; the first is for the others.
    let fallback: String = attachment.filename.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    let exact: String = attachment
        .filename
        .bytes()
        .map(
            |byte| {
                if plain(char::from(byte)) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
            },
        )
        .collect();
    let disposition = format!("attachment; filename=\"{fallback}\"; filename*=UTF-8''{exact}");
    let mut response = attachment.bytes.into_inner().into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Ok(disposition) = HeaderValue::from_str(&disposition) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    response
}

/// A live email is none of a test key's business, though it may look at it: what it does never reaches a provider.
async fn require_key_for(state: &ApiState, client: &Client, id: EmailId) -> Result<(), Problem> {
    if client.0.key.mode == KeyMode::Live {
        return Ok(());
    }
    let email = state.desk.gateway.store.email(client.id(), id).await?.ok_or_else(EmailId::missing)?;
    match email.mode {
        KeyMode::Test => Ok(()),
        KeyMode::Live => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "LIVE_KEY_REQUIRED",
            "the email was handed in with a live key; a test key cannot send or withdraw it",
        )),
    }
}

/// Withdraws an email. Asking twice is fine.
pub async fn cancel(
    State(state): State<ApiState>,
    client: Client,
    Id(id): Id<EmailId>,
) -> Result<Response, Problem> {
    require_key_for(&state, &client, id).await?;
    let (store, company, now) = (state.desk.gateway.store.clone(), client.id(), state.now());
    match to_the_end(async move { store.cancel(company, id, now).await }).await? {
        Cancelled::Done => {
            observe::cancelled();
            get(State(state), client, Id(id)).await
        }
        Cancelled::TooLate(Status::Cancelled) => get(State(state), client, Id(id)).await,
        Cancelled::NotFound => Err(EmailId::missing()),
        Cancelled::TooLate(status) => Err(too_late(status)),
    }
}

fn too_late(status: Status) -> Problem {
    let detail = match status {
        Status::Processing => {
            "the email is with a provider right now; it can no longer be withdrawn".to_owned()
        }
        status => format!("the email is {status}; only one that has not been sent can be withdrawn"),
    };
    Problem::new(StatusCode::CONFLICT, "TOO_LATE", detail)
}

/// Makes a waiting email due now.
pub async fn retry(
    State(state): State<ApiState>,
    client: Client,
    Id(id): Id<EmailId>,
) -> Result<Response, Problem> {
    require_key_for(&state, &client, id).await?;
    let (gateway, company, now) = (state.desk.gateway.clone(), client.id(), state.now());
    let retried = to_the_end(async move {
        let retried = gateway.store.retry_now(company, id, now).await?;
        if retried == RetriedNow::Done {
            accept::offer(&gateway, &[(id, now)]).await;
        }
        Ok::<_, store::StoreError>(retried)
    });
    match retried.await? {
        RetriedNow::Done => {
            observe::retry_requested();
            get(State(state), client, Id(id)).await
        }
        RetriedNow::NotFound => Err(EmailId::missing()),
        RetriedNow::NotWaiting(status) => Err(not_waiting(status)),
    }
}

fn not_waiting(status: Status) -> Problem {
    let detail = match status {
        Status::Failed => "the email is FAILED; POST /v1/dlq/replay puts it back into the queue".to_owned(),
        status => format!("the email is {status}; only one that waits can be made due now"),
    };
    Problem::new(StatusCode::CONFLICT, "NOT_WAITING", detail)
}

async fn find(state: &ApiState, client: &Client, id: EmailId) -> Result<Email, Problem> {
    state.desk.gateway.store.email(client.id(), id).await?.ok_or_else(EmailId::missing)
}
