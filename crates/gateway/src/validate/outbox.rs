//! OUTBOX: the row belongs to a company that exists. That the row itself exists goes without saying for a claim: it
//! was read under the lease a moment ago, and `begin` asks again, by status, version and fence, before anything is
//! sent. So this costs no query of its own.

use model::{Claim, Company, ErrorCode, Failure};

use super::refusal;

pub fn check(company: Option<&Company>, claim: &Claim) -> Result<(), Failure> {
    match company {
        Some(company) if company.id == claim.company => Ok(()),
        _ => Err(refusal(ErrorCode::OUTBOX_NOT_FOUND, "the email's company does not exist")),
    }
}
