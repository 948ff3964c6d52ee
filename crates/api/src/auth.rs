//! Who may call what: companies by their key and its scopes, the operator by the admin token. Each route says
//! in `routes` whom it is for; this is where that is held.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use gateway::keys::Caller;
use model::{Company, CompanyId, Scope};
use subtle::ConstantTimeEq as _;

use crate::error::Problem;
use crate::inside::Pass;
use crate::rate::RateStatus;
use crate::serve::Peer;
use crate::state::ApiState;

/// Whom a route is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Public,
    /// A company, with a key that has this scope.
    Key(Scope),
    /// Whoever runs this server.
    Operator,
}

/// A company that calls, known by its key.
#[derive(Debug, Clone)]
pub struct Client(pub Arc<Caller>);

impl Client {
    pub fn company(&self) -> &Company {
        &self.0.company
    }

    pub fn id(&self) -> CompanyId {
        self.0.company.id
    }
}

impl FromRequestParts<ApiState> for Client {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &ApiState) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(Problem::internal)
    }
}

/// The layer in front of a route that is not public.
pub async fn guard(
    State((state, access)): State<(ApiState, Access)>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(pass) = request.extensions().get::<Pass>().copied() {
        return let_pass(&state, access, pass, request, next).await;
    }
    let scope = match access {
        Access::Public => return next.run(request).await,
        Access::Operator => {
            return match operator(&state, &request) {
                Ok(()) => next.run(request).await,
                Err(problem) => problem.into_response(),
            };
        }
        Access::Key(scope) => scope,
    };
    let mut rate = None;
    let mut response = match admit(&state, request.headers(), request.uri(), scope, &mut rate).await {
        Ok(client) => {
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    if let Some(rate) = rate {
        response.extensions_mut().insert(rate);
    }
    response
}

/// A call from within. Neither key nor rate is asked for: it stands for a person at the dashboard.
async fn let_pass(
    state: &ApiState,
    access: Access,
    pass: Pass,
    mut request: Request,
    next: Next,
) -> Response {
    match pass.client(state, access).await {
        Ok(client) => {
            if let Some(client) = client {
                request.extensions_mut().insert(client);
            }
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

async fn admit(
    state: &ApiState,
    headers: &HeaderMap,
    uri: &Uri,
    scope: Scope,
    rate: &mut Option<RateStatus>,
) -> Result<Client, Problem> {
    let key = presented_key(headers, uri)?;
    let caller = state.keys.authenticate(key).await?;
    let counted = state.rate.take(caller.company.id, state.now());
    *rate = Some(counted.unwrap_or_else(|status| status));
    if counted.is_err() {
        return Err(too_many_requests(state.settings.requests_per_sec));
    }
    if !caller.key.may(scope) {
        let detail = format!("this API key lacks the scope {}", scope.as_str());
        return Err(Problem::new(StatusCode::FORBIDDEN, "INSUFFICIENT_SCOPE", detail));
    }
    Ok(Client(caller))
}

fn too_many_requests(limit: u32) -> Problem {
    let detail = format!("more than {limit} requests of this company within one second");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", detail)
        .later(std::time::Duration::from_secs(1))
}

/// The key from its header. One in the address ends up in logs everywhere, so it is not taken from there.
fn presented_key<'r>(headers: &'r HeaderMap, uri: &Uri) -> Result<&'r str, Problem> {
    let given = headers.get("x-api-key").map(|value| value.to_str().unwrap_or("\u{fffd}"));
    if let Some(key) = given.or_else(|| bearer(headers)).map(str::trim).filter(|key| !key.is_empty()) {
        return Ok(key);
    }
    let detail = if uri.query().is_some_and(holds_key) {
        "an API key in the address is not taken, since addresses end up in logs; send it as X-API-Key header"
    } else {
        "send an API key as X-API-Key header (or Authorization: Bearer)"
    };
    Err(Problem::unauthorized("MISSING_API_KEY", detail))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

fn holds_key(query: &str) -> bool {
    const NAMES: [&str; 8] =
        ["api_key", "apikey", "api-key", "x-api-key", "key", "token", "access_token", "authorization"];
    query.split('&').any(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let is_key = value.starts_with("live_") || value.starts_with("test_");
        is_key || NAMES.contains(&name.to_ascii_lowercase().as_str())
    })
}

/// With a token configured, whoever has it. Without one, only a program on this machine that no web page and
/// no proxy speaks through.
fn operator(state: &ApiState, request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let Some(expected) = &state.settings.admin_token else {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
        return if is_local(peer, headers) { Ok(()) } else { Err(not_local()) };
    };
    let given =
        headers.get("x-admin-token").and_then(|value| value.to_str().ok()).or_else(|| bearer(headers));
    let Some(given) = given.map(str::trim).filter(|token| !token.is_empty()) else {
        let detail = "send the admin token as Authorization: Bearer or X-Admin-Token header";
        return Err(Problem::unauthorized("MISSING_ADMIN_TOKEN", detail));
    };
    if bool::from(given.as_bytes().ct_eq(expected.expose().as_bytes())) {
        Ok(())
    } else {
        Err(Problem::unauthorized("INVALID_ADMIN_TOKEN", "this is not the admin token"))
    }
}

fn not_local() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "ADMIN_LOCAL_ONLY",
        "no admin token is configured, so this answers only to programs on the same machine; set admin_token",
    )
}

/// The peer is this machine, the Host header names it too (else a foreign name was made to lead here), no
/// proxy passed the request on, and no web page of elsewhere sent it.
pub fn is_local(peer: Option<IpAddr>, headers: &HeaderMap) -> bool {
    const PROXIED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip"];
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let Some(host) = text("host") else {
        return false;
    };
    let origin_is_ours = text("origin").is_none_or(|origin| {
        origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) == Some(host)
    });
    let site_is_ours = text("sec-fetch-site").is_none_or(|site| matches!(site, "same-origin" | "none"));
    peer.is_some_and(|peer| peer.to_canonical().is_loopback())
        && names_loopback(host)
        && origin_is_ours
        && site_is_ours
        && !PROXIED.iter().any(|name| headers.contains_key(*name))
}

fn names_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header value"))
            })
            .collect()
    }

    #[test]
    fn keys_are_taken_from_headers_only() {
        let uri = |text: &str| text.parse::<Uri>().expect("a uri");
        let from = |pairs: &[(&'static str, &str)]| {
            presented_key(&headers(pairs), &uri("/v1/emails")).map(str::to_owned).ok()
        };
        assert_eq!(from(&[("x-api-key", "live_a")]).as_deref(), Some("live_a"));
        assert_eq!(from(&[("authorization", "bearer live_b")]).as_deref(), Some("live_b"));
        assert_eq!(from(&[("authorization", "Basic live_b")]), None);
        assert_eq!(from(&[("x-api-key", "")]), None);
        for query in ["apiKey=x", "a=1&x-api-key=x", "q=live_abc", "access_token"] {
            let (headers, uri) = (HeaderMap::new(), uri(&format!("/v1/emails?{query}")));
            let problem = presented_key(&headers, &uri).expect_err("no header");
            assert!(problem.detail.contains("address"), "{query}: {}", problem.detail);
            assert!(!problem.detail.contains("live_abc"), "the key is not echoed");
        }
    }

    #[test]
    fn only_this_machine_is_local() {
        let home: IpAddr = "127.0.0.1".parse().expect("an address");
        let away: IpAddr = "192.0.2.1".parse().expect("an address");
        let mapped: IpAddr = "::ffff:127.0.0.1".parse().expect("an address");
        type Case<'a> = (&'a str, Option<IpAddr>, &'a [(&'static str, &'a str)], bool);
        let cases: &[Case<'_>] = &[
            ("plain", Some(home), &[("host", "127.0.0.1:8025")], true),
            ("by name", Some(home), &[("host", "localhost:8025")], true),
            ("IPv6 name", Some(home), &[("host", "[::1]:8025")], true),
            ("mapped peer", Some(mapped), &[("host", "localhost")], true),
            ("own page", Some(home), &[("host", "localhost:1"), ("origin", "http://localhost:1")], true),
            ("peer elsewhere", Some(away), &[("host", "localhost")], false),
            ("peer unknown", None, &[("host", "localhost")], false),
            ("no host", Some(home), &[], false),
            ("rebound name", Some(home), &[("host", "evil.example:8025")], false),
            ("name that begins alike", Some(home), &[("host", "127.0.0.1.evil.example")], false),
            ("foreign page", Some(home), &[("host", "localhost"), ("origin", "http://evil.example")], false),
            ("other port", Some(home), &[("host", "localhost:1"), ("origin", "http://localhost:2")], false),
            ("opaque page", Some(home), &[("host", "localhost"), ("origin", "null")], false),
            ("cross-site", Some(home), &[("host", "localhost"), ("sec-fetch-site", "cross-site")], false),
            ("proxied", Some(home), &[("host", "localhost"), ("x-forwarded-for", "192.0.2.1")], false),
        ];
        for (case, peer, pairs, expected) in cases {
            assert_eq!(is_local(*peer, &headers(pairs)), *expected, "{case}");
        }
    }
}
