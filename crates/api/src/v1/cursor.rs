//! Cursors as they are given out: the store's own, with a seal that ties it to the company and the filters it
//! was made for. A cursor that was mistyped or used with other filters is refused here, and no store has to
//! make sense of it.

use axum::http::Uri;
use model::CompanyId;
use sha2::{Digest as _, Sha256};
use store::Cursor;

use super::params::canonical_query;
use crate::error::Problem;
use crate::form::Form;
use crate::limits::CURSOR_LENGTH_MAX;

const SEAL_BYTES: usize = 6;

/// What a cursor belongs to.
pub struct Listing {
    company: CompanyId,
    list: &'static str,
    filters: String,
}

impl Listing {
    pub fn new(company: CompanyId, list: &'static str, uri: &Uri) -> Result<Self, Problem> {
        Ok(Self { company, list, filters: canonical_query(uri, &["cursor", "limit"])? })
    }

    pub fn give_out(&self, cursor: &Cursor) -> String {
        format!("{}.{}", cursor.0, self.seal(&cursor.0))
    }

    /// The cursor of the parameter of that name, if it is one of ours.
    pub fn take(&self, form: &mut Form<'_>) -> Option<Cursor> {
        let text = form.text("cursor")?;
        let genuine = text
            .rsplit_once('.')
            .filter(|(cursor, seal)| text.len() <= CURSOR_LENGTH_MAX && *seal == self.seal(cursor));
        if genuine.is_none() {
            form.fault("cursor", "INVALID_CURSOR", "is not a cursor of this list with these filters");
        }
        genuine.map(|(cursor, _)| Cursor(cursor.to_owned()))
    }

    fn seal(&self, cursor: &str) -> String {
        let words = [self.list, self.filters.as_str(), cursor];
        let mut hasher = Sha256::new();
        hasher.update(self.company.uuid().as_bytes());
        for word in words {
            hasher.update(word.len().to_le_bytes());
            hasher.update(word.as_bytes());
        }
        hasher.finalize()[..SEAL_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
