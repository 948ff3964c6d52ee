//! What a store can fail with. Callers ask `is_temporary`, never the text.

/// The store's failures. None of them ever means that half of a verb was done, and all but one that nothing was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached or is too busy now; the same call may succeed later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// It was lost between the order to keep something and the word that it is kept: it may be kept, or be kept yet.
    /// What can be done twice without harm may be tried again; whoever else asked has to be told.
    #[error("the store was lost, and whether it kept what it was given is not known: {0}")]
    InDoubt(String),
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
    /// The next call may succeed. Whether this one did nothing is another question.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::InDoubt(_) | Self::Full(_))
    }
}
