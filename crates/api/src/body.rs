//! Reading a body: its type, its size (refused before it is read, where it is declared), its time, and room
//! for it in memory.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::sync::OwnedSemaphorePermit;

use crate::error::Problem;
use crate::limits::BODY_BYTES_FREE;
use crate::state::ApiState;

/// A body that was read, and the room it takes until it is dropped.
pub struct Taken {
    pub bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

/// Reads a whole body of at most `max` bytes.
pub async fn take(state: &ApiState, headers: &HeaderMap, body: Body, max: usize) -> Result<Taken, Problem> {
    let declared = declared_length(headers);
    if declared.is_some_and(|length| length > max) {
        return Err(too_large(max));
    }
    let room = room(state, declared.unwrap_or(max))?;
    let reading = read(body, declared.unwrap_or(0), max);
    let bytes =
        tokio::time::timeout(state.settings.body_timeout, reading).await.map_err(|_| too_slow())??;
    Ok(Taken { bytes, _room: room })
}

async fn read(mut body: Body, expected: usize, max: usize) -> Result<Bytes, Problem> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| broken())?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if first.as_ref().map_or(0, Bytes::len) + rest.len() + data.len() > max {
            return Err(too_large(max));
        }
        match &first {
            // Most bodies come in one piece and need no copy.
            None if rest.is_empty() => first = Some(data),
            _ => {
                if let Some(first) = first.take() {
                    rest.reserve(expected.min(max));
                    rest.extend_from_slice(&first);
                }
                rest.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| rest.freeze()))
}

fn declared_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A body of unknown length is given room for the most it may have.
fn room(state: &ApiState, size: usize) -> Result<Option<OwnedSemaphorePermit>, Problem> {
    if size <= BODY_BYTES_FREE {
        return Ok(None);
    }
    let kibibytes = u32::try_from(size.div_ceil(1024)).unwrap_or(u32::MAX);
    let permit = std::sync::Arc::clone(&state.bodies).try_acquire_many_owned(kibibytes);
    permit.map(Some).map_err(|_| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "OVERLOADED",
            "too many large requests at once; nothing was stored",
        )
        .later(std::time::Duration::from_secs(1))
        .closing()
    })
}

/// The types a route takes; a charset, if named, must be UTF-8, and nothing may be compressed.
pub fn require_type(headers: &HeaderMap, types: &[&str]) -> Result<(), Problem> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut pieces = given.split(';').map(str::trim);
    let kind = pieces.next().unwrap_or_default();
    let kind_is_fine = types.iter().any(|known| known.eq_ignore_ascii_case(kind));
    let charset_is_fine = pieces.filter_map(|piece| piece.split_once('=')).all(|(name, value)| {
        let value = value.trim_matches('"');
        !name.eq_ignore_ascii_case("charset")
            || value.eq_ignore_ascii_case("utf-8")
            || value.eq_ignore_ascii_case("utf8")
    });
    let encoding = headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok());
    let is_plain = encoding.is_none_or(|encoding| encoding.eq_ignore_ascii_case("identity"))
        && (encoding.is_some() || !headers.contains_key(header::CONTENT_ENCODING));
    if kind_is_fine && charset_is_fine && is_plain {
        return Ok(());
    }
    let detail = format!("the body must be {} in UTF-8, not compressed", types.join(" or "));
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE", detail).closing())
}

pub const JSON: &[&str] = &["application/json"];

fn too_large(max: usize) -> Problem {
    Problem::too_large(
        "BODY_TOO_LARGE",
        format!("the body has more than {max} bytes, which is the limit here"),
    )
    .closing()
}

fn too_slow() -> Problem {
    Problem::new(
        StatusCode::REQUEST_TIMEOUT,
        "BODY_TIMEOUT",
        "the body did not arrive in time; nothing was stored",
    )
    .closing()
}

fn broken() -> Problem {
    Problem::bad_request("INVALID_BODY", "the body broke off before its end").closing()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn types() {
        let cases = [
            ("application/json", None, true),
            ("Application/JSON; charset=UTF-8", None, true),
            ("application/json;charset=\"utf-8\"", None, true),
            ("application/json", Some("identity"), true),
            ("application/json; charset=latin1", None, false),
            ("application/json", Some("gzip"), false),
            ("text/plain", None, false),
            ("", None, false),
        ];
        for (kind, encoding, taken) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            if let Some(encoding) = encoding {
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
            }
            assert_eq!(require_type(&headers, JSON).is_ok(), taken, "{kind} {encoding:?}");
        }
    }
}
