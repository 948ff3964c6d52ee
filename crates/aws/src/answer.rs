//! What AWS answered, by the rules that its services with JSON have in common.

use std::fmt;
use std::time::Duration;

use reqwest::Response;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::http;

/// Its words may hold addresses, so only its status is printed.
pub struct Answer {
    pub status: u16,
    /// How long to wait before the next call, where it says so.
    pub retry_after: Option<Duration>,
    error_type: Option<String>,
    /// None when it broke off or was too long.
    body: Option<Vec<u8>>,
}

/// An answer that says no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// AWS's name for the error; none when it is not AWS that speaks.
    pub name: Option<String>,
    pub message: String,
}

/// AWS's names for credentials that it does not take: unknown, gone or expired, or whose secret is another one now.
const REFUSED_CREDENTIALS: [&str; 8] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];

impl Answer {
    pub(crate) async fn read(response: Response, bytes_max: usize) -> Self {
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let secs = header("retry-after").and_then(|secs| secs.trim().parse().ok());
        Self {
            status: response.status().as_u16(),
            retry_after: secs.map(Duration::from_secs),
            error_type: header("x-amzn-errortype").map(str::to_owned),
            body: http::body(response, bytes_max).await,
        }
    }

    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// What it says, if it is that.
    pub fn json<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(self.body.as_ref()?).ok()
    }

    /// Whether it is about who signed, so that other credentials may help.
    pub(crate) fn refuses_credentials(&self) -> bool {
        let name = || self.refusal().name;
        !self.is_success() && name().is_some_and(|name| REFUSED_CREDENTIALS.contains(&name.as_str()))
    }

    pub fn refusal(&self) -> Refusal {
        let words: Map<String, Value> = self.json().unwrap_or_default();
        let first = |keys: [&str; 2]| keys.iter().find_map(|key| words.get(*key)?.as_str());
        let name = self.error_type.as_deref().or_else(|| first(["__type", "code"]));
        let name = name.map(bare).filter(|name| !name.is_empty());
        let message = first(["message", "Message"]).unwrap_or_default();
        Refusal { name: name.map(str::to_owned), message: message.to_owned() }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("status", &self.status).finish_non_exhaustive()
    }
}

/// The name of an error without its namespace (`com.amazonaws.sesv2#Name`) and its link (`Name:http://…`).
fn bare(name: &str) -> &str {
    let name = name.split(':').next().unwrap_or_default();
    name.rsplit('#').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(error_type: Option<&str>, body: &str) -> Refusal {
        let error_type = error_type.map(str::to_owned);
        Answer { status: 400, retry_after: None, error_type, body: Some(body.as_bytes().to_vec()) }.refusal()
    }

    #[test]
    fn every_way_to_name_an_error() {
        let cases = [
            (Some("Throttling"), "{}", Some("Throttling"), ""),
            (Some("a.b#Throttling:http://x/#y"), "<html>", Some("Throttling"), ""),
            (Some("First"), r#"{"__type":"Second","message":"m"}"#, Some("First"), "m"),
            (None, r#"{"__type":"a.b#Throttling","Message":"m"}"#, Some("Throttling"), "m"),
            (None, r#"{"code":"Throttling"}"#, Some("Throttling"), ""),
            (None, r#"{"message":"m"}"#, None, "m"),
            (None, r#"{"message":null,"Message":"m"}"#, None, "m"),
            (None, r#"{"__type":"First","code":"Second","message":"m"}"#, Some("First"), "m"),
            (Some(""), "[]", None, ""),
        ];
        for (error_type, body, name, message) in cases {
            let expected = Refusal { name: name.map(str::to_owned), message: message.to_owned() };
            assert_eq!(refusal(error_type, body), expected, "{error_type:?} {body}");
        }
    }
}
