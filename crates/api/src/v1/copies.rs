//! `POST /v1/emails/{id}/resend` and `/release`: a copy of an email that is kept, as a new one. See `gateway::accept::copy`.

use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use gateway::accept::copy::{self, NotCopied, Order};
use gateway::accept::{self, RequestKey};
use model::{EmailId, Status};
use serde_json::{Value, json};

use super::answer;
use super::draft::line;
use super::emails::content_gone;
use super::params::{Id, Named as _, idempotency_key};
use crate::auth::Client;
use crate::body;
use crate::edge::RequestId;
use crate::error::Problem;
use crate::form::{At, Faults, Form};
use crate::json as json_body;
use crate::limits::{SMALL_BODY_BYTES_MAX, WORD_LENGTH_MAX};
use crate::state::ApiState;

pub const RELEASE_FIELDS: &[&str] = &["provider", "to"];

/// The same email once more.
pub async fn resend(
    State(state): State<ApiState>,
    client: Client,
    id: RequestId,
    Id(email): Id<EmailId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let asked = Asked { id, email, arrived: Instant::now(), what: json!({ "resend": email.to_string() }) };
    asked.copy(&state, &client, &headers, Order::Resend).await
}

/// What was captured, through a real provider, to one address. For whoever holds an admin key; test keys never send.
pub async fn release(
    State(state): State<ApiState>,
    client: Client,
    id: RequestId,
    Id(email): Id<EmailId>,
    request: Request,
) -> Result<Response, Problem> {
    let arrived = Instant::now();
    // A foreign id is answered as one that is not there, whatever comes with it.
    let is_there = state.desk.gateway.store.email(client.id(), email).await?.is_some();
    if !is_there {
        return Err(EmailId::missing());
    }
    let (parts, incoming) = request.into_parts();
    let body = read_body(&state, &parts.headers, incoming).await?;
    let what = json!({ "release": email.to_string(), "as": body });
    let order = read_order(body)?;
    Asked { id, email, arrived, what }.copy(&state, &client, &parts.headers, order).await
}

async fn read_body(state: &ApiState, headers: &HeaderMap, incoming: Body) -> Result<Value, Problem> {
    body::require_type(headers, body::JSON)?;
    let taken = body::take(state, headers, incoming, SMALL_BODY_BYTES_MAX).await?;
    json_body::read(&taken.bytes)
}

fn read_order(body: Value) -> Result<Order, Problem> {
    let faults = Faults::default();
    let order = Form::open(body, At::Root, RELEASE_FIELDS, &faults).map(|mut form| {
        let order =
            Order::Release { provider: line(&mut form, "provider", WORD_LENGTH_MAX), to: form.address("to") };
        form.finish();
        order
    });
    match (order, faults.into_vec()) {
        (Some(order), faults) if faults.is_empty() => Ok(order),
        (_, faults) => Err(faults.into()),
    }
}

/// A copy that was asked for.
struct Asked {
    id: RequestId,
    email: EmailId,
    arrived: Instant,
    /// What the idempotency key stands for.
    what: Value,
}

impl Asked {
    async fn copy(
        self,
        state: &ApiState,
        client: &Client,
        headers: &HeaderMap,
        order: Order,
    ) -> Result<Response, Problem> {
        let mode = client.0.key.mode.as_str();
        let key = idempotency_key(headers)?
            .map(|key| RequestKey { key, body_hash: json_body::canonical_hash(&["copy", mode], &self.what) });
        let request =
            accept::Request { id: self.id.0.to_string(), key, now: state.now(), arrived: self.arrived };
        let copied = copy::copy(&state.desk, &client.0, request, self.email, order).await;
        Ok(answer::taken(copied.map_err(problem)?))
    }
}

fn problem(reason: NotCopied) -> Problem {
    let conflict = |code, detail: &'static str| Problem::new(StatusCode::CONFLICT, code, detail);
    match reason {
        NotCopied::Missing => EmailId::missing(),
        NotCopied::ContentGone => content_gone(),
        NotCopied::NotCopyable(status) => not_copyable(status),
        NotCopied::TestKey => Problem::new(
            StatusCode::FORBIDDEN,
            "LIVE_KEY_REQUIRED",
            "a test key never reaches a provider; releasing takes a live key with the scope admin",
        ),
        NotCopied::NoRealProvider => conflict(
            "NO_REAL_PROVIDER",
            "no provider that sends is configured; the operator can add one of the kinds smtp, ses or resend",
        ),
        NotCopied::StaysCaptured => conflict(
            "STAYS_CAPTURED",
            "this environment keeps such an email in the capture mailbox: the guard captures it, or the address is one \
             of the sandbox",
        ),
        NotCopied::Faults(faults) => faults.into(),
        NotCopied::NotTaken(reason) => reason.into(),
    }
}

fn not_copyable(status: Status) -> Problem {
    let detail = match status {
        Status::Invalid => "the email was refused as it came in; send a corrected one instead".to_owned(),
        status => format!("the email is {status}; it is still to be sent itself"),
    };
    Problem::new(StatusCode::CONFLICT, "NOT_COPYABLE", detail)
}
