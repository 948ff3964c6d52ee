//! Reading a body: its type, its size (refused before it is read, where it is declared), its time, and room
//! for it in memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Problem;
use crate::limits::{BODY_BYTES_FREE, BODY_ROOM_STEP};
use crate::state::ApiState;

/// A declared length is believed up to this much before the bytes are there.
const RESERVED_BYTES_MAX: usize = 1024 * 1024;

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
    let reading = read(body, declared.unwrap_or(0), max, Room::new(&state.bodies));
    tokio::time::timeout(state.settings.body_timeout, reading).await.map_err(|_| too_slow())?
}

async fn read(mut body: Body, expected: usize, max: usize, mut room: Room) -> Result<Taken, Problem> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| broken())?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let size = first.as_ref().map_or(0, Bytes::len) + rest.len() + data.len();
        if size > max {
            return Err(too_large(max));
        }
        room.reach(size)?;
        match &first {
            // Most bodies come in one piece and need no copy.
            None if rest.is_empty() => first = Some(data),
            _ => {
                if let Some(first) = first.take() {
                    rest.reserve(expected.min(RESERVED_BYTES_MAX));
                    rest.extend_from_slice(&first);
                }
                rest.extend_from_slice(&data);
            }
        }
    }
    Ok(Taken { bytes: first.unwrap_or_else(|| rest.freeze()), _room: room.permit })
}

/// Room in memory for one body. It is asked for as the body arrives, so that nobody holds room by promising.
struct Room {
    bodies: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
    granted: usize,
}

impl Room {
    fn new(bodies: &Arc<Semaphore>) -> Self {
        Self { bodies: Arc::clone(bodies), permit: None, granted: BODY_BYTES_FREE }
    }

    fn reach(&mut self, size: usize) -> Result<(), Problem> {
        if size <= self.granted {
            return Ok(());
        }
        let steps = (size - self.granted).div_ceil(BODY_ROOM_STEP);
        let kibibytes = u32::try_from(steps * BODY_ROOM_STEP / 1024).unwrap_or(u32::MAX);
        let more = Arc::clone(&self.bodies).try_acquire_many_owned(kibibytes).map_err(|_| overloaded())?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        self.granted += steps * BODY_ROOM_STEP;
        Ok(())
    }
}

fn overloaded() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "OVERLOADED",
        "too many large requests at once; nothing was stored",
    )
    .later(Duration::from_secs(1))
    .closing()
}

fn declared_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
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
