//! What a worker has to know of those its emails go to: who must not be written to, and whether the person an email names
//! is still known. Asked for all emails of a claim at once, so that it costs a question per company and not per email.

use std::collections::HashMap;

use model::{Address, Claim, CompanyId, EmailId, RecipientId};
use store::{RecipientRecord, Store, StoreError};

use crate::suppressions::{self, SuppressionList};

/// Of one email.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addressees {
    /// Those the company does not write to.
    pub suppressed: Vec<Address>,
    pub person: Person,
}

/// What the store knows of the person a claim names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Person {
    /// The claim names nobody.
    #[default]
    NotNamed,
    /// The company has no such recipient, or another company has.
    Missing,
    Found(RecipientRecord),
}

pub async fn of_claims(
    list: &SuppressionList,
    store: &dyn Store,
    claims: &[Claim],
) -> Result<HashMap<EmailId, Addressees>, StoreError> {
    let mut suppressed = suppressions::of_claims(list, store, claims).await?;
    let known = people(store, claims).await?;
    let of = |claim: &Claim| {
        let person = match recipient_id(claim) {
            None => Person::NotNamed,
            Some(id) => known.get(&(claim.company, id)).cloned().map_or(Person::Missing, Person::Found),
        };
        (claim.id(), Addressees { suppressed: suppressed.remove(&claim.id()).unwrap_or_default(), person })
    };
    Ok(claims.iter().map(of).collect())
}

async fn people(
    store: &dyn Store,
    claims: &[Claim],
) -> Result<HashMap<(CompanyId, RecipientId), RecipientRecord>, StoreError> {
    let mut asked: HashMap<CompanyId, Vec<RecipientId>> = HashMap::new();
    for claim in claims {
        asked.entry(claim.company).or_default().extend(recipient_id(claim));
    }
    let mut known = HashMap::new();
    for (company, mut ids) in asked.into_iter().filter(|(_, ids)| !ids.is_empty()) {
        ids.sort_unstable();
        ids.dedup();
        let found = store.recipients_by_id(company, &ids).await?;
        known.extend(found.into_iter().map(|record| ((company, record.id), record)));
    }
    Ok(known)
}

fn recipient_id(claim: &Claim) -> Option<RecipientId> {
    claim.recipient.as_ref()?.id
}
