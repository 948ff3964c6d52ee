//! What a store can fail with. Callers ask `is_temporary`, never the text.

/// The store's failures. None of them ever means that half of a verb was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached or is too busy now; the same call may succeed later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// No room: nothing is accepted until there is.
    #[error("the store has no room left: {0}")]
    Full(String),
    /// A thing of that name is there already.
    #[error("{0} exists already")]
    Exists(String),
    /// The schema or the file is not what this program works with.
    #[error("{0}")]
    Unusable(String),
    /// The store answered what it never should.
    #[error("the store failed: {0}")]
    Broken(String),
}

impl StoreError {
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Full(_))
    }
}
