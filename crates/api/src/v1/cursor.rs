//! Cursors of a list: what they are bound to as they are given out (the company, the list and its filters), so that one
//! that was mistyped or is used elsewhere is refused here, and no store has to make sense of it. How they are sealed is
//! in the gateway's `cursors`.

use axum::http::Uri;
use gateway::cursors::CursorKey;
use model::CompanyId;
use store::Cursor;

use super::params::canonical_query;
use crate::error::Problem;
use crate::form::Form;
use crate::limits::CURSOR_LENGTH_MAX;
use crate::state::ApiState;

/// What a cursor belongs to.
pub struct Listing<'a> {
    key: &'a CursorKey,
    place: Vec<u8>,
}

impl<'a> Listing<'a> {
    pub async fn of(
        state: &'a ApiState,
        company: CompanyId,
        list: &'static str,
        uri: &Uri,
    ) -> Result<Self, Problem> {
        Self::new(state.cursor_key().await?, company, list, uri)
    }

    pub fn new(
        key: &'a CursorKey,
        company: CompanyId,
        list: &'static str,
        uri: &Uri,
    ) -> Result<Self, Problem> {
        let filters = canonical_query(uri, &["cursor", "limit"])?;
        let mut place = company.uuid().as_bytes().to_vec();
        for word in [list, filters.as_str()] {
            place.extend_from_slice(&word.len().to_le_bytes());
            place.extend_from_slice(word.as_bytes());
        }
        Ok(Self { key, place })
    }

    pub fn give_out(&self, cursor: &Cursor) -> String {
        self.key.seal(&self.place, cursor)
    }

    /// The cursor of the parameter of that name, if it is one of ours.
    pub fn take(&self, form: &mut Form<'_>) -> Option<Cursor> {
        let text = form.text("cursor")?;
        let cursor = Some(&text)
            .filter(|text| text.len() <= CURSOR_LENGTH_MAX)
            .and_then(|text| self.key.open(&self.place, text));
        if cursor.is_none() {
            form.fault("cursor", "INVALID_CURSOR", "is not a cursor of this list with these filters");
        }
        cursor
    }
}
