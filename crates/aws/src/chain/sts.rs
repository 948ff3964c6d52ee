//! Roles taken on through AWS's own service for that, STS. It is asked by forms and answers in XML, of which four
//! values are read.

use model::{Secret, Timestamp};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Request};
use url::form_urlencoded::Serializer;

use crate::chain::{ANSWER_BYTES_MAX, Search};
use crate::client::host;
use crate::credentials::Credentials;
use crate::endpoint::{self, Service};
use crate::failure::{Failure, none_found};
use crate::http;
use crate::sign::{Scope, Unsigned, sign};

const STS: Service = Service { id: "sts", host: "sts", signing_name: "sts" };
const VERSION: &str = "2011-06-15";
const FORM: &str = "application/x-www-form-urlencoded";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role<'x> {
    pub arn: &'x str,
    /// Who takes it on, for AWS's records.
    pub session_name: Option<&'x str>,
    pub external_id: Option<&'x str>,
}

/// The credentials of a role that these credentials may take on.
pub async fn assume(
    search: &Search<'_>,
    role: &Role<'_>,
    credentials: &Credentials,
) -> Result<Credentials, Failure> {
    let external_id = role.external_id.map(|id| ("ExternalId", id));
    ask(search, form(search, "AssumeRole", role, external_id), Some(credentials)).await
}

/// The credentials of a role that the token in a file lets us take on. Read anew every time: the token is renewed.
pub async fn assume_by_token(
    search: &Search<'_>,
    role: &Role<'_>,
    token_file: &str,
) -> Result<Credentials, Failure> {
    let token = tokio::fs::read_to_string(token_file).await;
    let token =
        token.map_err(|error| none_found(format!("the file with the web identity token: {error}")))?;
    let token = Some(("WebIdentityToken", token.trim()));
    ask(search, form(search, "AssumeRoleWithWebIdentity", role, token), None).await
}

/// What STS is told: the same for each action, and perhaps one thing more.
fn form(search: &Search<'_>, action: &str, role: &Role<'_>, more: Option<(&str, &str)>) -> String {
    let session_name =
        role.session_name.map_or_else(|| format!("posthaste-{}", search.now.millis()), str::to_owned);
    Serializer::new(String::new())
        .append_pair("Action", action)
        .append_pair("Version", VERSION)
        .append_pair("RoleArn", role.arn)
        .append_pair("RoleSessionName", &session_name)
        .extend_pairs(more)
        .finish()
}

async fn ask(
    search: &Search<'_>,
    form: String,
    signer: Option<&Credentials>,
) -> Result<Credentials, Failure> {
    let request = request(search, form, signer)?;
    let lost = |error| none_found(format!("STS: {}", http::failure(error)));
    let response = search.http.execute(request).await.map_err(lost)?;
    let status = response.status();
    let body = http::body(response, ANSWER_BYTES_MAX).await.unwrap_or_default();
    let xml = String::from_utf8_lossy(&body);
    if !status.is_success() {
        let code = value(&xml, "Code").unwrap_or("without a reason");
        return Err(none_found(format!("STS refused the role: {} {code}", status.as_u16())));
    }
    read(&xml).ok_or_else(|| none_found("STS answered, but not with credentials"))
}

/// Signed, if there is somebody to sign.
fn request(search: &Search<'_>, form: String, signer: Option<&Credentials>) -> Result<Request, Failure> {
    let url = endpoint::find(&STS, search.region, search.settings)?;
    let headers = match signer {
        None => [(CONTENT_TYPE, HeaderValue::from_static(FORM))].into_iter().collect(),
        Some(credentials) => {
            let unsigned = Unsigned {
                method: "POST",
                host: &host(&url),
                path: url.path(),
                headers: &[("content-type", FORM)],
                body: form.as_bytes(),
            };
            let scope = Scope { region: search.region, service: STS.signing_name };
            sign(&unsigned, credentials, scope, search.now)?
        }
    };
    let mut request = Request::new(Method::POST, url);
    *request.headers_mut() = headers;
    *request.body_mut() = Some(form.into());
    Ok(request)
}

fn read(xml: &str) -> Option<Credentials> {
    let credentials = Credentials::new(value(xml, "AccessKeyId")?, value(xml, "SecretAccessKey")?);
    Some(Credentials {
        session_token: Some(Secret::new(value(xml, "SessionToken")?.to_owned())),
        expires_at: Some(Timestamp::parse(value(xml, "Expiration")?)?),
        ..credentials
    })
}

/// The text of the first element of that name. Keys, tokens, times and codes need no escapes in XML.
fn value<'x>(xml: &'x str, name: &str) -> Option<&'x str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text.trim()).filter(|text| !text.is_empty() && !text.contains('<'))
}
