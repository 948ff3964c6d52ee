//! The port to whatever keeps everything: a trait per role, each method one whole, atomic business verb.
//! There is no begin and commit here, since not every store could offer them. Reads take the company first.
//! `contract` (feature `contract`) holds the laws every store must pass.

pub mod alerts;
pub mod companies;
pub mod dead_letters;
pub mod error;
pub mod feedback;
pub mod history;
pub mod lookup;
pub mod opening;
pub mod outbox;
pub mod providers;
pub mod recipients;
pub mod suppressions;
pub mod tallies;
pub mod templates;
pub mod upkeep;

// What the back-ends share, so that each holds little more than its own statements.
pub mod change;
pub mod consequence;
pub mod content_codec;
pub mod detail;
pub mod erasure;
pub mod fairness;
pub mod group;
pub mod record;
pub mod report_codec;
pub mod settings_codec;
pub mod starts;
pub mod suspects;
pub mod task;
pub mod thread;
pub mod trust;

#[cfg(feature = "contract")]
pub mod contract;

pub use alerts::{Alerts, Problem};
pub use companies::Companies;
pub use dead_letters::{DeadLetterFilter, DeadLetters, ReplayCount};
pub use error::StoreError;
pub use feedback::{Feedback, KeptReport, RecipientState, ReportArrival, Reported};
pub use history::{Happening, History, Watch};
pub use lookup::{Cursor, EmailFilter, Lookup, Page};
pub use opening::{Opening, require_current};
pub use outbox::{
    Acceptance, Accepted, AttemptStart, Begun, Cancelled, ClaimRequest, INTAKE_LEASE, IdempotencyKey,
    IntakeItem, IntakeStart, IntakeVerdict, KeptAnswer, Outbox, QUICK_HASH, RetriedNow, Routes, Settled,
    SettledBy, Settlement, count_towards_day, first_id_of,
};
pub use providers::{ProviderNote, Providers, StartsWish};
pub use recipients::{Erased, RecipientRecord, Recipients};
pub use suppressions::Suppressions;
pub use suspects::SUSPECT_STARTS;
pub use tallies::{DayTally, EntityRecord, EntityTally, Tallies};
pub use templates::{StoredTemplate, Templates};
pub use upkeep::{Pruned, QueueStats, Retention, RoomLeft, Upkeep, Weakness};

/// Everything a store does.
pub trait Store:
    Outbox
    + Lookup
    + History
    + DeadLetters
    + Companies
    + Recipients
    + Providers
    + Feedback
    + Suppressions
    + Alerts
    + Templates
    + Tallies
    + Upkeep
{
}

impl<T> Store for T where
    T: Outbox
        + Lookup
        + History
        + DeadLetters
        + Companies
        + Recipients
        + Providers
        + Feedback
        + Suppressions
        + Alerts
        + Templates
        + Tallies
        + Upkeep
{
}
