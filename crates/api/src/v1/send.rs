//! `POST /v1/email/send` and `/batch`: reading, then `gateway::accept`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use gateway::accept::draft::{Draft, Fault};
use gateway::accept::{self, Known, Prepared, RequestKey};
use model::TraceContext;
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
    hand_in(state, client, id, request, bytes_max, read_one).await
}

/// Up to 1,000 emails, each accepted or rejected for itself.
pub async fn batch(
    State(state): State<ApiState>,
    client: Client,
    id: RequestId,
    request: Request,
) -> Result<Response, Problem> {
    let bytes_max = BATCH_BODY_BYTES_MAX.max(state.settings.send_body_bytes_max());
    hand_in(state, client, id, request, bytes_max, read_batch).await
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
    read: fn(&HandIn, Value) -> Result<Drafts, Problem>,
) -> Result<Response, Problem> {
    let arrived = Instant::now();
    let (parts, incoming) = request.into_parts();
    let trace = parts.extensions.get::<TraceContext>().copied();
    let key = idempotency_key(&parts.headers)?;
    body::require_type(&parts.headers, body::JSON)?;
    let taken = body::take(&state, &parts.headers, incoming, bytes_max).await?;
    let hand_in = HandIn { state: state.clone(), client, request_id: id.0, key, arrived };
    let hand_in = Arc::new(hand_in);
    let reading = Arc::clone(&hand_in);
    let (drafts, taken) = decide(taken, move |bytes| read(&reading, json::read(bytes)?)).await?;
    finish(hand_in, drafts, taken, trace).await
}

/// Decides about what was read, and stores it.
pub async fn finish(
    hand_in: Arc<HandIn>,
    drafts: Drafts,
    taken: Taken,
    trace: Option<TraceContext>,
) -> Result<Response, Problem> {
    let desk = &hand_in.state.desk;
    let caller = &hand_in.client.0;
    let known = accept::look_up(desk, caller, drafts.good()).await?;
    let (request, deciding) = (drafts.request().clone(), Arc::clone(&hand_in));
    let answer = match decide(taken, move |_| prepare(&deciding, drafts, &known)).await {
        Ok((prepared, _taken)) => accept::commit(desk, prepared.within(trace)).await?,
        Err(problem) => accept::answered_before(desk, caller.company.id, &request).await?.ok_or(problem)?,
    };
    Ok(answer::taken(answer))
}

/// What was read of a request, before anything is decided.
pub enum Drafts {
    One(accept::Request, Box<Draft>),
    Many(accept::Request, Vec<Result<Draft, Vec<Fault>>>),
}

impl Drafts {
    fn request(&self) -> &accept::Request {
        match self {
            Self::One(request, _) | Self::Many(request, _) => request,
        }
    }

    /// Those that could be read.
    pub fn good(&self) -> impl Iterator<Item = &Draft> {
        let (one, many): (Option<&Draft>, &[Result<Draft, Vec<Fault>>]) = match self {
            Self::One(_, draft) => (Some(draft), &[]),
            Self::Many(_, drafts) => (None, drafts),
        };
        one.into_iter().chain(many.iter().filter_map(|draft| draft.as_ref().ok()))
    }
}

fn prepare(hand_in: &HandIn, drafts: Drafts, known: &Known) -> Result<Prepared, Problem> {
    let (desk, caller) = (&hand_in.state.desk, &hand_in.client.0);
    match drafts {
        Drafts::One(request, draft) => Ok(accept::prepare_one(desk, caller, request, *draft, known)?),
        Drafts::Many(request, drafts) => Ok(accept::prepare_many(desk, caller, request, drafts, known)),
    }
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

fn read_one(hand_in: &HandIn, body: Value) -> Result<Drafts, Problem> {
    let HandIn { state, .. } = hand_in;
    let request = hand_in.request(|mode| json::canonical_hash(&["send", mode], &body));
    let draft = draft::read(body, state.settings.attachments_bytes_max, request.now)?;
    Ok(Drafts::One(request, Box::new(draft)))
}

fn read_batch(hand_in: &HandIn, body: Value) -> Result<Drafts, Problem> {
    let HandIn { state, .. } = hand_in;
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
    Ok(Drafts::Many(request, drafts))
}
