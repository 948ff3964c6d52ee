//! What opening a database server's database may do to it. Servers and `migrate` bring its tables up to date; who only
//! looks must not, lest a mistyped name be filled with tables, or a newer program change what older ones work with.

use crate::StoreError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    BringsUpToDate,
    LeavesAsItIs,
}

/// `found` and `known` count migrations.
pub fn require_current(found: usize, known: usize) -> Result<(), StoreError> {
    match found {
        0 => Err(StoreError::Unusable(
            "the database has no tables of posthaste; name another with --store, or make them with `posthaste migrate`"
                .into(),
        )),
        found if found < known => Err(StoreError::Unusable(format!(
            "the database has schema version {found} and this program works with {known}; bring it up to date with \
             `posthaste migrate`, or use the posthaste that its servers are"
        ))),
        _ => Ok(()),
    }
}
