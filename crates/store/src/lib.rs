//! The port to whatever keeps everything: a trait per role, each method one whole, atomic business verb.
//! There is no begin and commit here, since not every store could offer them. Reads take the company first.
//! `contract` (feature `contract`) holds the laws every store must pass.

pub mod companies;
pub mod dead_letters;
pub mod error;
pub mod lookup;
pub mod outbox;
pub mod providers;
pub mod recipients;
pub mod upkeep;

// What the back-ends share, so that each holds little more than its own statements.
pub mod change;
pub mod content_codec;
pub mod detail;
pub mod erasure;
pub mod fairness;
pub mod group;
pub mod record;
pub mod settings_codec;
pub mod starts;

#[cfg(feature = "contract")]
pub mod contract;

pub use companies::Companies;
pub use dead_letters::{DeadLetterFilter, DeadLetters, ReplayCount};
pub use error::StoreError;
pub use lookup::{Cursor, EmailFilter, Lookup, Page};
pub use outbox::{
    Acceptance, Accepted, AttemptStart, Begun, Cancelled, ClaimRequest, IdempotencyKey, IntakeItem,
    IntakeVerdict, Outbox, RetriedNow, Routes, Settled, SettledBy, Settlement,
};
pub use providers::{ProviderNote, Providers};
pub use recipients::{Erased, RecipientRecord, Recipients};
pub use upkeep::{Pruned, QueueStats, Retention, Upkeep, Weakness};

/// Everything a store does.
pub trait Store: Outbox + Lookup + DeadLetters + Companies + Recipients + Providers + Upkeep {}

impl<T: Outbox + Lookup + DeadLetters + Companies + Recipients + Providers + Upkeep> Store for T {}
