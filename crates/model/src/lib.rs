//! The words of the trade and the laws they obey: statuses and legal moves, retry schedules, error codes,
//! masking. No I/O, no async, no back-end; everything else in the workspace is built on these types.

pub mod address;
pub mod alert;
pub mod attempt;
pub mod clock;
pub mod company;
pub mod document;
pub mod email;
pub mod error_code;
pub mod event;
pub mod id;
pub mod privacy;
pub mod report;
pub mod retry;
pub mod status;
pub mod suppression;
pub mod trace;

pub use address::{Address, InvalidAddress, Mailbox};
pub use alert::{Alert, AlertKind, AlertOutcome};
pub use attempt::{Claim, Failure, Guard, Verdict};
pub use clock::{CLOCK_MIN, Clock, Doubt, SystemClock, Timestamp};
pub use company::{ApiKey, Company, CompanySettings, KeyMode, Pause, Scope};
pub use email::{Attachment, Content, Email, Entity, Envelope, NewEmail, OnUnknown, Recipient};
pub use error_code::{Category, ErrorCode};
pub use event::{Event, EventKind};
pub use id::{AlertId, CompanyId, EmailId, KeyId, RecipientId, WorkerId};
pub use privacy::Secret;
pub use report::{Bounce, Report, ReportKind};
pub use retry::RetryPolicy;
pub use status::{IllegalMove, Move, Status};
pub use suppression::{Suppression, SuppressionSource};
pub use trace::TraceContext;
