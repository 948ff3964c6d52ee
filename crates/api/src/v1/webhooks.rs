//! `/v1/webhooks/…`: what providers report. First whether it is theirs, then what it says, then the store; the answer is
//! 200 only after the store has it. Nothing of a body ever reaches a log or an answer.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use feedback::sns::{Envelope, Message, MessageKind, SnsError};
use feedback::svix::{self, Headers};
use feedback::{Unreadable, resend, ses};
use gateway::accept::to_the_end;
use gateway::observe;
use model::Report;
use serde_json::json;
use store::{ReportArrival, Reported};

use super::answer;
use crate::body;
use crate::error::Problem;
use crate::limits::WEBHOOK_BODY_BYTES_MAX;
use crate::state::ApiState;
use crate::webhooks::{Doubt, Kind, Source};

type Provider = Result<Path<String>, PathRejection>;

/// The only provider of its kind.
pub async fn resend(State(state): State<ApiState>, request: Request) -> Result<Response, Problem> {
    take(&state, Kind::Resend, None, request).await
}

pub async fn resend_named(
    State(state): State<ApiState>,
    provider: Provider,
    request: Request,
) -> Result<Response, Problem> {
    let Path(provider) = provider.map_err(|_| not_configured())?;
    take(&state, Kind::Resend, Some(&provider), request).await
}

pub async fn ses(State(state): State<ApiState>, request: Request) -> Result<Response, Problem> {
    take(&state, Kind::Ses, None, request).await
}

pub async fn ses_named(
    State(state): State<ApiState>,
    provider: Provider,
    request: Request,
) -> Result<Response, Problem> {
    let Path(provider) = provider.map_err(|_| not_configured())?;
    take(&state, Kind::Ses, Some(&provider), request).await
}

/// What became of a webhook; also what is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Applied,
    Repeated,
    Unmatched,
    Ignored,
    /// A subscription.
    Confirmed,
}

impl Outcome {
    pub const ALL: [Self; 5] =
        [Self::Applied, Self::Repeated, Self::Unmatched, Self::Ignored, Self::Confirmed];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Repeated => "repeated",
            Self::Unmatched => "unmatched",
            Self::Ignored => "ignored",
            Self::Confirmed => "confirmed",
        }
    }
}

async fn take(
    state: &ApiState,
    kind: Kind,
    name: Option<&str>,
    request: Request,
) -> Result<Response, Problem> {
    let (provider, source) = state.settings.webhooks.find(kind, name).ok_or_else(not_configured)?;
    let (parts, incoming) = request.into_parts();
    let taken = body::take(state, &parts.headers, incoming, WEBHOOK_BODY_BYTES_MAX).await?;
    let outcome = match source {
        Source::Resend { secrets } => {
            from_resend(state, provider, secrets, &parts.headers, &taken.bytes).await
        }
        Source::Ses { trust } => from_ses(state, provider, trust, &taken.bytes).await,
    };
    match outcome {
        Ok(outcome) => {
            observe::webhook_in(provider, outcome.as_str());
            Ok(answer::value(StatusCode::OK, &json!({ "result": outcome.as_str() })))
        }
        Err(problem) => {
            let result = if problem.status.is_server_error() { "failed" } else { "refused" };
            observe::webhook_in(provider, result);
            Err(problem)
        }
    }
}

async fn from_resend(
    state: &ApiState,
    provider: &str,
    secrets: &[svix::SigningSecret],
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Outcome, Problem> {
    let now = state.now();
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let signed = Headers::find(header)
        .and_then(|signed| svix::verify(secrets, &signed, body, now).map(|()| signed))
        .map_err(|reason| {
            tracing::warn!(provider, %reason, "a webhook was refused: its signature is not good");
            not_signed()
        })?;
    let report = resend::read(signed.id, body, now).map_err(|reason| unreadable(provider, reason))?;
    keep(state, provider, report, body.to_vec()).await
}

async fn from_ses(
    state: &ApiState,
    provider: &str,
    trust: &feedback::sns::Trust,
    body: &[u8],
) -> Result<Outcome, Problem> {
    let now = state.now();
    let envelope = Envelope::parse(body).map_err(|reason| refused(provider, reason))?;
    let believed = state.settings.webhooks.believe(&envelope, trust, now).await;
    let Message { id, kind, .. } = believed.map_err(|doubt| match doubt {
        Doubt::Refused(reason) => refused(provider, reason),
        Doubt::Unchecked(reason) => {
            tracing::warn!(provider, %reason, "a webhook could not be checked: no certificate was fetched");
            later("CERTIFICATE_UNAVAILABLE", "the certificate of the signature cannot be fetched now")
        }
    })?;
    match kind {
        MessageKind::Notification(text) => {
            let text = text.into_inner();
            let report = ses::read(&id, &text, now).map_err(|reason| unreadable(provider, reason))?;
            keep(state, provider, report, text.into_bytes()).await
        }
        MessageKind::SubscriptionConfirmation(url) => {
            state.settings.webhooks.confirm(url.expose().as_str()).await.map_err(|reason| {
                tracing::warn!(provider, %reason, "a subscription to webhooks could not be confirmed");
                later("SUBSCRIPTION_NOT_CONFIRMED", "the subscription could not be confirmed now")
            })?;
            tracing::info!(provider, "a subscription to webhooks was confirmed");
            Ok(Outcome::Confirmed)
        }
        MessageKind::UnsubscribeConfirmation(_) => {
            tracing::warn!(provider, "the topic of a provider sends no more webhooks: it was unsubscribed");
            Ok(Outcome::Ignored)
        }
    }
}

/// Once the store has it, it is carried out as well.
async fn keep(
    state: &ApiState,
    provider: &str,
    report: Option<Report>,
    payload: Vec<u8>,
) -> Result<Outcome, Problem> {
    let Some(report) = report else { return Ok(Outcome::Ignored) };
    let kind = report.kind;
    let arrival = ReportArrival { report, provider: provider.to_owned(), payload, now: state.now() };
    let gateway = state.desk.gateway.clone();
    let reported = to_the_end(async move {
        let reported = gateway.store.report(arrival).await?;
        observe::reported(kind, &reported);
        if let Reported::Applied { company, .. } = reported {
            gateway.suppressions.changed(company);
        }
        Ok::<_, store::StoreError>(reported)
    });
    Ok(match reported.await? {
        Reported::Applied { .. } => Outcome::Applied,
        Reported::Repeated => Outcome::Repeated,
        Reported::Unmatched => Outcome::Unmatched,
    })
}

fn refused(provider: &str, reason: SnsError) -> Problem {
    tracing::warn!(provider, %reason, "a webhook was refused");
    let forbidden = |code, detail| Problem::new(StatusCode::FORBIDDEN, code, detail);
    match reason {
        SnsError::NotAnEnvelope(_) | SnsError::Signature => not_signed(),
        SnsError::Topic => forbidden("UNKNOWN_TOPIC", "this topic is not one of those configured"),
        SnsError::CertificateUrl(_) | SnsError::Certificate(_) => {
            forbidden("UNTRUSTED_CERTIFICATE", "the certificate of the signature is not trusted here")
        }
        SnsError::SubscribeUrl(_) => {
            forbidden("FORBIDDEN_URL", "the address for confirming the subscription is not trusted here")
        }
    }
}

fn not_signed() -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "INVALID_SIGNATURE", "the signature is missing, old or wrong")
}

fn not_configured() -> Problem {
    Problem::not_found(
        "WEBHOOK_NOT_CONFIGURED",
        "no provider of this kind and name takes webhooks here; of several, name the one meant in the path",
    )
}

fn unreadable(provider: &str, reason: Unreadable) -> Problem {
    tracing::warn!(provider, %reason, "a webhook was signed well and cannot be read");
    Problem::bad_request("UNREADABLE_REPORT", "the signature is good, but the report cannot be read")
}

fn later(code: &'static str, detail: &'static str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).later(std::time::Duration::from_secs(5))
}
