//! Who signs. Only the name of the key can be printed.

use model::{Secret, Timestamp};
use serde::Deserialize;

use crate::failure::{Failure, none_found};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    pub access_key_id: String,
    pub secret_access_key: Secret<String>,
    /// What makes temporary credentials complete.
    pub session_token: Option<Secret<String>>,
    pub expires_at: Option<Timestamp>,
}

impl Credentials {
    /// Credentials that last.
    pub fn new(access_key_id: &str, secret_access_key: &str) -> Self {
        Self {
            access_key_id: access_key_id.to_owned(),
            secret_access_key: Secret::new(secret_access_key.to_owned()),
            session_token: None,
            expires_at: None,
        }
    }

    pub fn with_session_token(self, session_token: &str) -> Self {
        Self { session_token: Some(Secret::new(session_token.to_owned())), ..self }
    }

    pub fn until(self, expires_at: Timestamp) -> Self {
        Self { expires_at: Some(expires_at), ..self }
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// Credentials as containers, machines and programs write them, in JSON.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Written {
    access_key_id: String,
    secret_access_key: String,
    #[serde(alias = "Token")]
    session_token: Option<String>,
    expiration: Option<String>,
}

impl Written {
    /// What went wrong is told without the words of the parser, which would quote a secret.
    pub fn read(json: &[u8], who: &str) -> Result<Credentials, Failure> {
        let unreadable = || none_found(format!("{who} answered, but not with credentials"));
        let written: Self = serde_json::from_slice(json).map_err(|_| unreadable())?;
        let expires_at = match written.expiration.as_deref() {
            Some(text) => Some(Timestamp::parse(text).ok_or_else(unreadable)?),
            None => None,
        };
        if written.access_key_id.is_empty() || written.secret_access_key.is_empty() {
            return Err(unreadable());
        }
        let session_token = written.session_token.filter(|token| !token.is_empty()).map(Secret::new);
        let found = Credentials::new(&written.access_key_id, &written.secret_access_key);
        Ok(Credentials { session_token, expires_at, ..found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_them() {
        let moment = Timestamp::parse("2026-01-31T12:00:00Z").expect("a moment");
        let lasting = Credentials::new("AKID", "hunter2");
        let cases = [
            (r#"{"AccessKeyId":"AKID","SecretAccessKey":"hunter2"}"#, Some(lasting.clone())),
            (
                r#"{"Code":"Success","AccessKeyId":"AKID","SecretAccessKey":"hunter2","Token":"t",
                    "Expiration":"2026-01-31T12:00:00Z"}"#,
                Some(lasting.clone().with_session_token("t").until(moment)),
            ),
            (
                r#"{"Version":1,"AccessKeyId":"AKID","SecretAccessKey":"hunter2","SessionToken":"t",
                    "Expiration":"2026-01-31T13:00:00+01:00"}"#,
                Some(lasting.with_session_token("t").until(moment)),
            ),
            (r#"{"AccessKeyId":"AKID","SecretAccessKey":"hunter2","Expiration":"soon"}"#, None),
            (r#"{"AccessKeyId":"","SecretAccessKey":"hunter2"}"#, None),
            (r#"{"AccessKeyId":"AKID","SecretAccessKey":["hunter2"]}"#, None),
            ("hunter2", None),
        ];
        for (json, expected) in cases {
            let found = Written::read(json.as_bytes(), "it");
            assert_eq!(found.as_ref().ok(), expected.as_ref(), "{json}");
            assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
        }
    }
}
