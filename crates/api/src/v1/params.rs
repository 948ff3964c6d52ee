//! What comes beside the body: ids in the path, the query string, the idempotency key.

use gateway::accept::text;
use std::str::FromStr;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use model::{CompanyId, EmailId};

use crate::error::Problem;
use crate::form::{Faults, Form};
use crate::limits::IDEMPOTENCY_KEY_LENGTH_MAX;
use crate::state::ApiState;

/// A thing named by its id in the path. What is no id is answered like an id that is not there.
pub trait Named: FromStr {
    fn missing() -> Problem;
}

impl Named for EmailId {
    fn missing() -> Problem {
        Problem::not_found("EMAIL_NOT_FOUND", "there is no email with this id")
    }
}

impl Named for CompanyId {
    fn missing() -> Problem {
        Problem::not_found("COMPANY_NOT_FOUND", "there is no company with this id")
    }
}

/// The one id of a path.
pub struct Id<T>(pub T);

impl<T: Named> FromRequestParts<ApiState> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let Ok(Path(text)) = Path::<String>::from_request_parts(parts, state).await else {
            return Err(T::missing());
        };
        text.parse().map(Self).map_err(|_| T::missing())
    }
}

/// Reads the query string by a function over its parameters; all faults are told at once.
pub fn read_query<T>(
    uri: &Uri,
    known: &'static [&'static str],
    read: impl FnOnce(&mut Form<'_>) -> T,
) -> Result<T, Problem> {
    let faults = Faults::default();
    let mut form = Form::of_query(pairs(uri)?, known, &faults);
    let found = read(&mut form);
    form.finish();
    if faults.is_empty() { Ok(found) } else { Err(faults.into_vec().into()) }
}

/// The query string in one spelling, for telling queries apart; without the parameters named.
pub fn canonical_query(uri: &Uri, without: &[&str]) -> Result<String, Problem> {
    let mut pairs = pairs(uri)?;
    pairs.retain(|(name, _)| !without.contains(&name.as_str()));
    pairs.sort_unstable();
    Ok(format!("{pairs:?}"))
}

fn pairs(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|_| Problem::bad_request("INVALID_QUERY", "the query string cannot be read"))?;
    Ok(pairs)
}

/// The idempotency key: at most one, 1 to 256 printable ASCII characters.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let key = value.to_str().unwrap_or_default();
    let is_fine = (1..=IDEMPOTENCY_KEY_LENGTH_MAX).contains(&key.len())
        && key.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && values.next().is_none();
    if is_fine {
        let pii =
            |(code, message)| Problem::bad_request(code, format!("the header Idempotency-Key {message}"));
        return text::no_document(key).map(|()| Some(key.to_owned())).map_err(pii);
    }
    let detail = format!(
        "the header Idempotency-Key must be given once and have 1 to {IDEMPOTENCY_KEY_LENGTH_MAX} printable ASCII characters"
    );
    Err(Problem::bad_request("INVALID_IDEMPOTENCY_KEY", detail))
}
