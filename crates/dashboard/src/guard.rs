//! In front of every page: who may see it, whether a form is really ours, and the headers that keep browsers strict.
//!
//! With an admin token people log in: the operator with it, a company's people with an API key of theirs, which shows
//! them their company alone. A key without the scope `admin` only looks, and sees no address whole. Without an admin token the pages answer to this machine alone, by the rules the API
//! has for the operator.

use std::net::IpAddr;
use std::time::Duration;

use api::Peer;
use api::inside::{KeyHolder, is_local};
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use model::{CompanyId, Timestamp};
use tokio::time::timeout;

use crate::fields::Fields;
use crate::layout;
use crate::links::with_query;
use crate::sessions::Proof;
use crate::state::Ui;

pub const COOKIE: &str = "posthaste_session";
/// A form holds an address and a reason.
const FORM_BYTES_MAX: usize = 64 * 1024;
/// A form that is not there by then is given up.
const FORM_TIMEOUT: Duration = Duration::from_secs(20);

/// Nothing from elsewhere, no inline code. Styles and scripts are files of ours, forms come back to us, and the only
/// frame is the preview of an email, which has a policy of its own.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; frame-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What a person may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Operator,
    /// Everything of one company, apart from its keys and limits.
    Member(CompanyId),
    /// Looks at one company, with addresses masked and without content.
    Reader(CompanyId),
}

impl Role {
    fn of(holder: KeyHolder) -> Self {
        if holder.is_admin { Self::Member(holder.company) } else { Self::Reader(holder.company) }
    }

    /// The one company whose pages open; `None` for all of them.
    pub fn only_company(self) -> Option<CompanyId> {
        match self {
            Self::Operator => None,
            Self::Member(company) | Self::Reader(company) => Some(company),
        }
    }

    pub fn is_operator(self) -> bool {
        self == Self::Operator
    }

    pub fn may_act(self) -> bool {
        !matches!(self, Self::Reader(_))
    }
}

/// The person at the other end, let in.
#[derive(Debug, Clone)]
pub struct Visitor {
    pub role: Role,
    /// What its forms must carry.
    pub form_token: String,
    pub session: Option<String>,
    pub address: Option<IpAddr>,
    /// How the browser calls us: the Host header.
    pub host: String,
}

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        parts.extensions.get::<Self>().cloned().ok_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// The layer around all pages.
pub async fn guard(State(ui): State<Ui>, request: Request, next: Next) -> Response {
    let mut response = match let_in(&ui, request).await {
        Ok(request) => next.run(request).await,
        Err(refusal) => *refusal,
    };
    let headers = response.headers_mut();
    let mut default = |name: header::HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    default(header::CONTENT_SECURITY_POLICY, POLICY);
    default(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    // Not no-referrer: with that, browsers send forms with the origin "null".
    default(header::REFERRER_POLICY, "same-origin");
    default(header::X_FRAME_OPTIONS, "DENY");
    default(header::CACHE_CONTROL, "no-store");
    default(header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    default(header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    response
}

/// The request with its visitor and the fields of its form, or the answer that refuses it.
async fn let_in(ui: &Ui, mut request: Request) -> Result<Request, Box<Response>> {
    let now = ui.inside.now();
    let address = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
    let has_login = ui.inside.has_admin_token();
    if !has_login && !is_local(address, request.headers()) {
        return Err(refuse(
            ui,
            "Only from this machine",
            "No admin token is configured, so these pages open only on the machine that runs Posthaste, by the name \
             localhost and not through a proxy. Set admin_token to reach them from elsewhere.",
        ));
    }
    let known = if has_login { known(ui, cookie(request.headers()), now).await } else { None };
    if has_login && known.is_none() && !is_open_to_all(request.uri().path()) {
        return Err(Box::new(to_login(&request)));
    }
    let (session, role) = known.map_or((None, Role::Operator), |(session, role)| (Some(session), role));
    keep_to_role(ui, role, &request)?;
    if !is_reading(request.method()) {
        let (fields, rest) = ours(ui, session.as_deref(), request).await?;
        request = rest;
        request.extensions_mut().insert(fields);
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let visitor = Visitor {
        role,
        form_token: ui.sessions.form_token(session.as_deref()),
        host: host.to_owned(),
        session,
        address,
    };
    request.extensions_mut().insert(visitor);
    Ok(request)
}

/// The open session this cookie names, and what it allows now: a key may have been revoked since.
pub async fn known(ui: &Ui, id: Option<String>, now: Timestamp) -> Option<(String, Role)> {
    let id = id?;
    let role = match ui.sessions.proof(&id, now)? {
        Proof::AdminToken => Role::Operator,
        Proof::Key(hash) => Role::of(ui.inside.key_holder_by_hash(hash).await?),
    };
    Some((id, role))
}

/// A company's people have the pages of their company, and readers have no forms. That the company is theirs is seen to
/// where it is looked up (`visit`).
fn keep_to_role(ui: &Ui, role: Role, request: &Request) -> Result<(), Box<Response>> {
    let Some(company) = role.only_company() else {
        return Ok(());
    };
    let path = request.uri().path();
    let steps: Vec<&str> = path.split('/').skip(1).collect();
    let is_anybodys = is_open_to_all(path) || matches!(steps.as_slice(), ["ui", "go" | "logout"]);
    match steps.as_slice() {
        ["ui"] => Err(Box::new(Redirect::to(&format!("/ui/c/{company}")).into_response())),
        ["ui", "c", _, "settings", ..] => Err(only_operator(ui)),
        ["ui", "c", ..] if role.may_act() || is_reading(request.method()) => Ok(()),
        ["ui", "c", ..] => Err(refuse(
            ui,
            "You may only look",
            "The key you logged in with has no admin scope. Log in with one that has it to change something.",
        )),
        _ if is_anybodys => Ok(()),
        _ => Err(only_operator(ui)),
    }
}

fn only_operator(ui: &Ui) -> Box<Response> {
    refuse(
        ui,
        "Only for the operator",
        "This page is for whoever runs this server. Log in with the admin token to see it.",
    )
}

fn is_reading(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// What is there before a login; nothing in it is anybody's.
fn is_open_to_all(path: &str) -> bool {
    path == "/ui/login" || path.starts_with("/ui/assets/")
}

fn to_login(request: &Request) -> Response {
    let wanted = request.uri().path_and_query().map_or("/ui", |path| path.as_str());
    let is_page = *request.method() == Method::GET && wanted != "/ui";
    let next: &[(&str, &str)] = if is_page { &[("next", wanted)] } else { &[] };
    Redirect::to(&with_query("/ui/login", next)).into_response()
}

/// Reads a form and checks that a page of ours sent it.
async fn ours(ui: &Ui, session: Option<&str>, request: Request) -> Result<(Fields, Request), Box<Response>> {
    if !is_our_origin(request.headers(), ui.settings.public_url.as_deref()) {
        return Err(refuse(ui, "Sent from elsewhere", "This form was sent by a page of another site."));
    }
    let (parts, body) = request.into_parts();
    let Ok(Ok(body)) = timeout(FORM_TIMEOUT, to_bytes(body, FORM_BYTES_MAX)).await else {
        return Err(refuse(ui, "Not taken", "This form holds more than it may, or came too slowly."));
    };
    let fields = Fields::parse(&body);
    if !ui.sessions.is_form_token(session, fields.get("csrf").unwrap_or_default()) {
        return Err(refuse(
            ui,
            "This page is out of date",
            "The form does not belong to your session, or Posthaste was restarted meanwhile. Nothing was changed: go \
             back, reload the page and try again.",
        ));
    }
    Ok((fields, Request::from_parts(parts, Body::empty())))
}

/// Programs send no origin; they need the form's token all the same.
fn is_our_origin(headers: &HeaderMap, public_url: Option<&str>) -> bool {
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let Some(origin) = text(header::ORIGIN) else {
        return true;
    };
    let host = text(header::HOST);
    let is_host = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"))
        .is_some_and(|authority| host == Some(authority));
    is_host || public_url.is_some_and(|url| url.trim_end_matches('/') == origin)
}

fn cookie(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value.to_owned())
}

fn refuse(ui: &Ui, title: &str, words: &str) -> Box<Response> {
    Box::new(layout::bare(&ui.assets, StatusCode::FORBIDDEN, title, &layout::message(title, words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_come_from_our_own_pages() {
        let public = Some("https://mail.example.com/");
        let cases = [
            // case            host              origin                            public  ours
            ("same", "localhost:8025", Some("http://localhost:8025"), None, true),
            ("none", "localhost:8025", None, None, true),
            ("other port", "localhost:8025", Some("http://localhost:3000"), None, false),
            ("other site", "localhost:8025", Some("https://evil.example"), None, false),
            ("opaque", "localhost:8025", Some("null"), None, false),
            ("behind a proxy", "backend:8025", Some("https://mail.example.com"), public, true),
            ("behind a proxy, other", "backend:8025", Some("https://mail.example.com.evil"), public, false),
        ];
        for (case, host, origin, public, ours) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            }
            assert_eq!(is_our_origin(&headers, public), ours, "{case}");
        }
    }

    #[test]
    fn the_session_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1; posthaste_session_x=no"));
        headers.append(header::COOKIE, HeaderValue::from_static("b=2; posthaste_session=abc; c=3"));
        assert_eq!(cookie(&headers).as_deref(), Some("abc"));
    }
}
