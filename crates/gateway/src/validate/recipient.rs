//! RECIPIENT: the person an email names is still known to the company, not deleted, and still has that address; and the
//! address is not one the company no longer writes to.

use model::{Address, Claim, ErrorCode, Failure};
use store::{RecipientRecord, Store, StoreError};

use super::refusal;
use crate::suppressions::names;

/// What the store knows of the person a claim names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// The claim names nobody.
    NotNamed,
    /// The company has no such recipient, or another company has.
    Missing,
    Found(RecipientRecord),
}

pub async fn look_up(store: &dyn Store, claim: &Claim) -> Result<Known, StoreError> {
    let Some(id) = claim.recipient.as_ref().and_then(|recipient| recipient.id) else {
        return Ok(Known::NotNamed);
    };
    Ok(store.recipient(claim.company, id).await?.map_or(Known::Missing, Known::Found))
}

pub fn check(claim: &Claim, known: &Known, suppressed: &[Address]) -> Result<(), Failure> {
    if names(suppressed, &claim.envelope.to) {
        let why = "the address is on the company's suppression list; lift it there to write to it again";
        return Err(refusal(ErrorCode::RECIPIENT_SUPPRESSED, why));
    }
    match known {
        Known::NotNamed => Ok(()),
        Known::Missing => Err(refusal(ErrorCode::RECIPIENT_NOT_FOUND, "the recipient does not exist")),
        Known::Found(record) if record.deleted_at.is_some() => {
            Err(refusal(ErrorCode::RECIPIENT_NOT_FOUND, "the recipient was deleted"))
        }
        Known::Found(record) if !record.email.same_mailbox(&claim.envelope.to) => {
            Err(refusal(ErrorCode::INVALID_EMAIL, "the recipient has another address by now"))
        }
        Known::Found(_) => Ok(()),
    }
}
