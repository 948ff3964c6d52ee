//! RECIPIENT: the person an email names is still known to the company, not deleted, and still has that address; and the
//! address is not one the company no longer writes to.

use model::{Claim, ErrorCode, Failure};

use super::refusal;
use crate::addressees::{Addressees, Person};
use crate::suppressions::names;

pub fn check(claim: &Claim, addressees: &Addressees) -> Result<(), Failure> {
    if names(&addressees.suppressed, &claim.envelope.to) {
        let why = "the address is on the company's suppression list; lift it there to write to it again";
        return Err(refusal(ErrorCode::RECIPIENT_SUPPRESSED, why));
    }
    match &addressees.person {
        Person::NotNamed => Ok(()),
        Person::Missing => Err(refusal(ErrorCode::RECIPIENT_NOT_FOUND, "the recipient does not exist")),
        Person::Found(record) if record.deleted_at.is_some() => {
            Err(refusal(ErrorCode::RECIPIENT_NOT_FOUND, "the recipient was deleted"))
        }
        Person::Found(record) if !record.email.same_mailbox(&claim.envelope.to) => {
            Err(refusal(ErrorCode::INVALID_EMAIL, "the recipient has another address by now"))
        }
        Person::Found(_) => Ok(()),
    }
}
