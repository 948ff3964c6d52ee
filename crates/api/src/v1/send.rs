//! `POST /v1/email/send` and `/batch`: reading, then `gateway::accept`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use gateway::accept::{self, Prepared, RequestKey};
use serde_json::Value;

use super::params::idempotency_key;
use super::{answer, draft};
use crate::auth::Client;
use crate::body::{self, Taken};
use crate::edge::RequestId;
use crate::error::Problem;
use crate::json;
use crate::limits::{BATCH_BODY_BYTES_MAX, BATCH_EMAILS_MAX, BODY_BYTES_INLINE};
use crate::state::ApiState;

/// One email.
pub async fn send(
    State(state): State<ApiState>,
    client: Client,
    id: RequestId,
    request: Request,
) -> Result<Response, Problem> {
    let bytes_max = state.settings.send_body_bytes_max();
    hand_in(state, client, id, request, bytes_max, prepare_one).await
}

/// Up to 1,000 emails, each accepted or rejected for itself.
pub async fn batch(
    State(state): State<ApiState>,
    client: Client,
    id: RequestId,
    request: Request,
) -> Result<Response, Problem> {
    let bytes_max = BATCH_BODY_BYTES_MAX.max(state.settings.send_body_bytes_max());
    hand_in(state, client, id, request, bytes_max, prepare_batch).await
}

/// What the decision about a request needs.
pub struct HandIn {
    pub state: ApiState,
    pub client: Client,
    pub request_id: Arc<str>,
    pub key: Option<String>,
    pub arrived: Instant,
}

impl HandIn {
    /// The request as the gateway takes it; `hash` is asked for only when there is a key to keep it with.
    pub fn request(&self, hash: impl FnOnce(&str) -> [u8; 32]) -> accept::Request {
        let mode = self.client.0.key.mode.as_str();
        accept::Request {
            id: self.request_id.to_string(),
            key: self.key.clone().map(|key| RequestKey { key, body_hash: hash(mode) }),
            now: self.state.now(),
            arrived: self.arrived,
        }
    }
}

async fn hand_in(
    state: ApiState,
    client: Client,
    id: RequestId,
    request: Request,
    bytes_max: usize,
    prepare: fn(&HandIn, Value) -> Result<Prepared, Problem>,
) -> Result<Response, Problem> {
    let arrived = Instant::now();
    let (parts, incoming) = request.into_parts();
    let key = idempotency_key(&parts.headers)?;
    body::require_type(&parts.headers, body::JSON)?;
    let taken = body::take(&state, &parts.headers, incoming, bytes_max).await?;
    let hand_in = HandIn { state: state.clone(), client, request_id: id.0, key, arrived };
    let (prepared, _taken) = decide(taken, move |bytes| prepare(&hand_in, json::read(bytes)?)).await?;
    Ok(answer::taken(accept::commit(&state.desk, prepared).await?))
}

/// Runs the decision here, or off the threads that serve requests when it will take milliseconds. The body
/// is given back, since it takes up room until the request is answered.
pub async fn decide<T: Send + 'static>(
    taken: Taken,
    decide: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
) -> Result<(T, Taken), Problem> {
    if taken.bytes.len() <= BODY_BYTES_INLINE {
        return Ok((decide(&taken.bytes)?, taken));
    }
    let work = tokio::task::spawn_blocking(move || Ok((decide(&taken.bytes)?, taken)));
    work.await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(Problem::internal()),
    })
}

fn prepare_one(hand_in: &HandIn, body: Value) -> Result<Prepared, Problem> {
    let HandIn { state, client, .. } = hand_in;
    let request = hand_in.request(|mode| json::canonical_hash(&["send", mode], &body));
    let draft = draft::read(body, state.settings.attachments_bytes_max, request.now)?;
    Ok(accept::prepare_one(&state.desk, &client.0, request, draft)?)
}

fn prepare_batch(hand_in: &HandIn, body: Value) -> Result<Prepared, Problem> {
    let HandIn { state, client, .. } = hand_in;
    let request = hand_in.request(|mode| json::canonical_hash(&["batch", mode], &body));
    let emails = match body {
        Value::Array(emails) if emails.is_empty() => {
            return Err(Problem::bad_request("EMPTY_BATCH", "the batch holds no email"));
        }
        Value::Array(emails) if emails.len() > BATCH_EMAILS_MAX => {
            let detail =
                format!("the batch holds {} emails; at most {BATCH_EMAILS_MAX} are allowed", emails.len());
            return Err(Problem::bad_request("TOO_MANY_EMAILS", detail));
        }
        Value::Array(emails) => emails,
        _ => return Err(Problem::bad_request("INVALID_TYPE", "a batch is a list of emails")),
    };
    let bytes_max = state.settings.attachments_bytes_max;
    let drafts = emails.into_iter().map(|email| draft::read(email, bytes_max, request.now)).collect();
    Ok(accept::prepare_many(&state.desk, &client.0, request, drafts))
}
