//! What providers report of emails they took: is it really from them, and what does it say.
//!
//! Bytes and headers in, [`model::Report`]s out; no network and no store. The caller asks in this order:
//!
//! - Resend: [`svix::verify`] over the raw body, then [`resend::read`].
//! - SES: [`sns::Envelope::parse`], [`sns::Envelope::certificate_url`] (nothing is fetched before it agrees), the
//!   caller fetches the certificate, [`sns::verify`], then [`ses::read`] of a notification's text.
//!
//! Neither signature keeps an old message from being sent again: every report has an id of its own, and the store takes
//! each id once.

mod facts;
pub mod resend;
pub mod ses;
pub mod sns;
pub mod svix;

/// It came from the provider and still makes no sense. Says what is wrong, never what it held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the provider's report cannot be read: {0}")]
pub struct Unreadable(&'static str);
