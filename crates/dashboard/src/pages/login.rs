//! Logging in with the admin token or an API key, and out again.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;

use crate::fields::{Fields, Query};
use crate::guard::{COOKIE, Visitor};
use crate::layout;
use crate::sessions::{Proof, SESSION_AGE_MAX};
use crate::state::Ui;

pub async fn show(State(ui): State<Ui>, visitor: Visitor, Query(query): Query) -> Response {
    let next = next(&query);
    if visitor.session.is_some() || !ui.inside.has_admin_token() {
        return Redirect::to(&next).into_response();
    }
    form(&ui, &visitor, &next, StatusCode::OK, None)
}

pub async fn log_in(State(ui): State<Ui>, visitor: Visitor, fields: Fields) -> Response {
    let (next, now) = (next(&fields), ui.inside.now());
    let address = visitor.address.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into());
    if !ui.tries.take(address, now) {
        let words = "Too many tries. Wait a minute.";
        return form(&ui, &visitor, &next, StatusCode::TOO_MANY_REQUESTS, Some(words));
    }
    let Some(proof) = proof(&ui, fields.get("token").unwrap_or_default().trim()).await else {
        tracing::warn!("somebody tried to log in with neither the admin token nor a key that may read");
        let words = "This is neither the admin token nor an API key that may read.";
        return form(&ui, &visitor, &next, StatusCode::UNAUTHORIZED, Some(words));
    };
    let session = ui.sessions.open(proof, now);
    with_cookie(&ui, Redirect::to(&next).into_response(), &session, SESSION_AGE_MAX.as_secs())
}

async fn proof(ui: &Ui, given: &str) -> Option<Proof> {
    if ui.inside.is_admin_token(given) {
        return Some(Proof::AdminToken);
    }
    ui.inside.key_holder(given).await.map(|(_, hash)| Proof::Key(hash))
}

pub async fn log_out(State(ui): State<Ui>, visitor: Visitor) -> Response {
    if let Some(session) = &visitor.session {
        ui.sessions.close(session);
    }
    with_cookie(&ui, Redirect::to("/ui/login").into_response(), "", 0)
}

fn form(ui: &Ui, visitor: &Visitor, next: &str, status: StatusCode, fault: Option<&str>) -> Response {
    let main = html! {
        h1 { "Log in" }
        @if let Some(fault) = fault { div.notice.bad role="alert" { (fault) } }
        form.stack method="post" action="/ui/login" {
            input type="hidden" name="csrf" value=(visitor.form_token);
            input type="hidden" name="next" value=(next);
            label for="token" { "Admin token or API key" }
            input #token type="password" name="token" required autocomplete="current-password" autofocus;
            button.main type="submit" { "Log in" }
        }
        p.soft {
            "The token is " code { "admin_token" } " in the configuration and opens everything. A key opens its own company: with the scope "
            code { "admin" } " to work in it, without to look, addresses masked."
        }
    };
    layout::bare(&ui.assets, status, "Log in", &main)
}

/// Where to go afterwards: a page of ours, never elsewhere.
fn next(fields: &Fields) -> String {
    let wanted = fields.get("next").unwrap_or("/ui");
    let is_ours = (wanted == "/ui" || wanted.starts_with("/ui/") || wanted.starts_with("/ui?"))
        && wanted.bytes().all(|byte| (b'!'..=b'~').contains(&byte) && byte != b'\\')
        && !wanted.starts_with("/ui/log");
    if is_ours { wanted.to_owned() } else { "/ui".to_owned() }
}

fn with_cookie(ui: &Ui, mut response: Response, value: &str, age_secs: u64) -> Response {
    let secure = if ui.settings.is_https() { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={value}; Path=/ui; Max-Age={age_secs}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_never_leads_elsewhere() {
        let cases = [
            ("/ui/c/acme/emails?status=FAILED", "/ui/c/acme/emails?status=FAILED"),
            ("/ui", "/ui"),
            ("//evil.example", "/ui"),
            ("https://evil.example/ui", "/ui"),
            ("/uievil", "/ui"),
            ("/ui/\\evil.example", "/ui"),
            ("/ui/logout", "/ui"),
            ("", "/ui"),
        ];
        for (wanted, expected) in cases {
            let query = crate::links::with_query("", &[("next", wanted)]);
            assert_eq!(next(&Fields::parse(query.trim_start_matches('?').as_bytes())), expected, "{wanted}");
        }
    }
}
