//! `POST /v1/email/raw`: an .eml taken as it is. Only its envelope is read here; the intake checks the rest.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use gateway::accept::draft::{Draft, Fault};
use model::document::looks_like_document;
use model::{Content, TraceContext};

use super::draft::{OPTION_FIELDS, Options, options};
use super::params::{canonical_query, idempotency_key, read_query};
use super::send::{Drafts, HandIn, decide, finish};
use crate::auth::Client;
use crate::body;
use crate::edge::RequestId;
use crate::error::Problem;
use crate::json;
use crate::state::ApiState;

pub const MESSAGE: &str = "message/rfc822";

pub async fn raw(
    State(state): State<ApiState>,
    client: Client,
    id: RequestId,
    request: Request,
) -> Result<Response, Problem> {
    let arrived = Instant::now();
    let (parts, incoming) = request.into_parts();
    let trace = parts.extensions.get::<TraceContext>().copied();
    let key = idempotency_key(&parts.headers)?;
    body::require_type(&parts.headers, &[MESSAGE])?;
    let taken = body::take(&state, &parts.headers, incoming, state.settings.send_body_bytes_max()).await?;
    let hand_in = HandIn { state: state.clone(), client, request_id: id.0, key, arrived };
    let uri = parts.uri;
    let hand_in = Arc::new(hand_in);
    let reading = Arc::clone(&hand_in);
    let (drafts, taken) = decide(taken, move |eml| read(&reading, &uri, eml)).await?;
    finish(hand_in, drafts, taken, trace).await
}

fn read(hand_in: &HandIn, uri: &Uri, eml: &[u8]) -> Result<Drafts, Problem> {
    let query = canonical_query(uri, &[])?;
    let request = hand_in.request(|mode| json::bytes_hash(&["raw", mode, &query], eml));
    let options = read_query(uri, OPTION_FIELDS, |form| options(form, request.now))?;
    Ok(Drafts::One(request, Box::new(draft_of(eml, options)?)))
}

/// The message as a draft, under the envelope that its own header names.
pub fn draft_of(eml: &[u8], options: Options) -> Result<Draft, Problem> {
    let envelope = message::read_envelope(eml)
        .map_err(|reason| Problem::bad_request("INVALID_MESSAGE", reason.to_string()))?;
    if looks_like_document(envelope.subject.expose()) {
        let message = "holds a CPF or CNPJ in clear";
        return Err(vec![Fault::wrong("subject", "PII_NOT_ALLOWED", message)].into());
    }
    Ok(Draft {
        envelope,
        recipient: None,
        external_id: options.external_id,
        entity: None,
        priority: options.priority,
        when: options.when,
        ttl: options.ttl,
        notes: super::draft::not_yet(&options.wishes).into_iter().collect(),
        wishes: options.wishes,
        content: Content::Raw(eml.to_vec()),
        template: None,
        on_suppressed: options.on_suppressed,
    })
}
