//! The message itself, as bytes: an email made into an .eml, and an .eml read back into who and what.
//!
//! [`render`] is what every provider that takes MIME sends and what the API offers for download. [`read_envelope`]
//! and [`html_of`] are for an .eml that was handed in. Nothing here does I/O, knows a provider or reads a clock.

mod compose;
mod envelope;
mod header;
mod lines;
mod raw;
mod structure;

pub use compose::{RenderError, check_attachment};
pub use envelope::{UnreadableMessage, html_of, read_envelope, senders_beside_from};
pub use header::{InvalidHeader, check_header, mailbox_in_ascii, mailbox_in_utf8};
pub use structure::{DEPTH_MAX, HEADER_BYTES_MAX, PARTS_MAX};

use model::Content;
use model::email::Outgoing;

/// The header by which a report finds its email even when the provider's answer was lost.
pub const ID_HEADER: &str = "X-Posthaste-Id";

/// The email as an .eml: CRLF line ends only, the last line ended too. The same email gives the same bytes at every
/// attempt, so that whoever gets it twice can tell.
pub fn render(email: &Outgoing) -> Result<Vec<u8>, RenderError> {
    match &email.content {
        Content::Composed { html, text, attachments } => {
            compose::render(email, html, text.as_deref(), attachments)
        }
        Content::Raw(eml) => Ok(raw::render(email.id, eml)),
    }
}

/// The Message-ID the email carries, in angle brackets: ours, or the one an .eml brought along, if it did.
pub fn message_id(email: &Outgoing) -> Option<String> {
    match &email.content {
        Content::Composed { .. } => Some(format!("<{}>", compose::message_id(email))),
        Content::Raw(eml) => envelope::message_id(eml),
    }
}
