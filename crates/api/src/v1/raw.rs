//! `POST /v1/email/raw`: an .eml taken as it is. Only its envelope is read here; the intake checks the rest.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use gateway::accept::draft::{Draft, Fault};
use gateway::accept::{self, Prepared};
use model::Content;
use model::document::looks_like_document;

use super::answer;
use super::draft::{OPTION_FIELDS, options};
use super::params::{canonical_query, idempotency_key, read_query};
use super::send::{HandIn, decide};
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
    let key = idempotency_key(&parts.headers)?;
    body::require_type(&parts.headers, &[MESSAGE])?;
    let taken = body::take(&state, &parts.headers, incoming, state.settings.send_body_bytes_max()).await?;
    let hand_in = HandIn { state: state.clone(), client, request_id: id.0, key, arrived };
    let uri = parts.uri;
    let (prepared, _taken) = decide(taken, move |eml| prepare(&hand_in, &uri, eml)).await?;
    Ok(answer::taken(accept::commit(&state.desk, prepared).await?))
}

fn prepare(hand_in: &HandIn, uri: &Uri, eml: &[u8]) -> Result<Prepared, Problem> {
    let HandIn { state, client, .. } = hand_in;
    let query = canonical_query(uri, &[])?;
    let request = hand_in.request(|mode| json::bytes_hash(&["raw", mode, &query], eml));
    let options = read_query(uri, OPTION_FIELDS, |form| options(form, request.now))?;
    let envelope = message::read_envelope(eml)
        .map_err(|reason| Problem::bad_request("INVALID_MESSAGE", reason.to_string()))?;
    if looks_like_document(envelope.subject.expose()) {
        let message = "holds a CPF or CNPJ in clear";
        return Err(vec![Fault::wrong("subject", "PII_NOT_ALLOWED", message)].into());
    }
    let draft = Draft {
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
    };
    Ok(accept::prepare_one(&state.desk, &client.0, request, draft)?)
}
