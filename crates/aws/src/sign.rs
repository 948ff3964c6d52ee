//! Signature Version 4: the headers that prove who sent a request. Pure.
//!
//! Written by hand, since it is a screenful, and what others offer either brings half an SDK along or encodes the path
//! once, as S3 alone wants it; every other service wants the encoded path encoded again.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use model::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use crate::credentials::Credentials;
use crate::failure::{Failure, misconfigured};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SESSION_TOKEN: &str = "x-amz-security-token";
const DATE: &str = "x-amz-date";
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const ENCODED_PATH: &AsciiSet = &ENCODED.remove(b'/');

/// For what and where a signature is good.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'x> {
    pub region: &'x str,
    /// The service as signatures name it.
    pub service: &'x str,
}

/// A request as it goes out.
#[derive(Clone, Copy)]
pub struct Unsigned<'x> {
    pub method: &'x str,
    /// As in the header: with the port, unless it is the usual one.
    pub host: &'x str,
    /// As in the request line; there is no query.
    pub path: &'x str,
    /// By names in small letters. All of them are signed.
    pub headers: &'x [(&'static str, &'x str)],
    pub body: &'x [u8],
}

/// One piece of a path, encoded.
pub fn encode(piece: &str) -> String {
    utf8_percent_encode(piece, ENCODED).to_string()
}

/// The headers to send: those of the request and those that sign it.
pub fn sign(
    request: &Unsigned<'_>,
    credentials: &Credentials,
    scope: Scope<'_>,
    now: Timestamp,
) -> Result<HeaderMap, Failure> {
    let date = compact(now);
    let token = credentials.session_token.as_ref().map(|token| token.expose().as_str());
    let mut signed: Vec<(&'static str, &str)> = request.headers.to_vec();
    signed.push((DATE, &date));
    signed.extend(token.map(|token| (SESSION_TOKEN, token)));

    let mut headers = HeaderMap::with_capacity(signed.len() + 1);
    for (name, value) in &signed {
        headers.insert(HeaderName::from_static(name), header_value(value)?);
    }
    headers.get_mut(SESSION_TOKEN).into_iter().for_each(|token| token.set_sensitive(true));
    signed.push(("host", request.host));
    signed.sort_unstable();
    let authorization = authorization(request, &signed, credentials, scope, &date);
    let mut authorization = header_value(&authorization)?;
    authorization.set_sensitive(true);
    headers.insert(AUTHORIZATION, authorization);
    Ok(headers)
}

fn authorization(
    request: &Unsigned<'_>,
    signed: &[(&str, &str)],
    credentials: &Credentials,
    Scope { region, service }: Scope<'_>,
    date: &str,
) -> String {
    let names = signed.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let canonical = canonical(request, signed, &names);
    let day = &date[..8];
    let scope = format!("{day}/{region}/{service}/aws4_request");
    let to_sign = format!("{ALGORITHM}\n{date}\n{scope}\n{}", hash(canonical.as_bytes()));
    let key = format!("AWS4{}", credentials.secret_access_key.expose());
    let key = [day, region, service, "aws4_request"]
        .iter()
        .fold(hmac_key(key.as_bytes()), |key, piece| hmac_key(hmac::sign(&key, piece.as_bytes()).as_ref()));
    let signature = hex(hmac::sign(&key, to_sign.as_bytes()).as_ref());
    let id = &credentials.access_key_id;
    format!("{ALGORITHM} Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}")
}

/// The request in the one form in which AWS and we hash it.
fn canonical(request: &Unsigned<'_>, signed: &[(&str, &str)], names: &str) -> String {
    let path = utf8_percent_encode(request.path, ENCODED_PATH);
    let mut text = format!("{}\n{path}\n\n", request.method);
    for (name, value) in signed {
        text.extend([name, ":", value.trim(), "\n"]);
    }
    text.extend(["\n", names, "\n", &hash(request.body)]);
    text
}

/// Such as 20260131T120000Z.
fn compact(moment: Timestamp) -> String {
    let text = moment.to_rfc3339();
    let seconds = text.split('.').next().unwrap_or_default();
    seconds.chars().filter(|char| !matches!(char, '-' | ':')).chain(['Z']).collect()
}

fn header_value(text: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(text)
        .map_err(|_| misconfigured("the credentials have characters that no header can carry"))
}

fn hmac_key(bytes: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, bytes)
}

fn hash(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests;
