//! Addresses that companies no longer write to, as acceptance and the workers ask for them. A company without any costs
//! no query: whether it has some is remembered for a moment.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{Address, Claim, CompanyId, EmailId, Envelope, Event};
use serde_json::Value;
use store::{Store, StoreError};
use tokio::time::Instant;

/// What another process puts on a list is obeyed at the latest after this.
const AGE_MAX: Duration = Duration::from_secs(1);
const COMPANIES_MAX: usize = 16_384;
/// So many addresses are asked for at once.
const ADDRESSES_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub struct SuppressionList {
    /// Companies that had none when they were last looked at.
    without: Mutex<HashMap<CompanyId, Instant>>,
}

impl SuppressionList {
    /// Those of the addresses that the company does not write to.
    pub async fn among(
        &self,
        store: &dyn Store,
        company: CompanyId,
        addresses: &[Address],
    ) -> Result<Vec<Address>, StoreError> {
        if addresses.is_empty() || self.has_none(store, company).await? {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for some in addresses.chunks(ADDRESSES_MAX) {
            found.extend(store.suppressed(company, some).await?.into_iter().map(|found| found.address));
        }
        Ok(found)
    }

    /// The list of this company was changed by this process.
    pub fn changed(&self, company: CompanyId) {
        self.without().remove(&company);
    }

    async fn has_none(&self, store: &dyn Store, company: CompanyId) -> Result<bool, StoreError> {
        if self.without().get(&company).is_some_and(|looked_at| looked_at.elapsed() < AGE_MAX) {
            return Ok(true);
        }
        let looked_at = Instant::now();
        let has_none = store.suppressions(company, None, 1).await?.items.is_empty();
        let mut without = self.without();
        if without.len() >= COMPANIES_MAX {
            without.retain(|_, looked_at| looked_at.elapsed() < AGE_MAX);
        }
        if has_none && without.len() < COMPANIES_MAX {
            without.insert(company, looked_at);
        } else {
            without.remove(&company);
        }
        Ok(has_none)
    }

    fn without(&self) -> MutexGuard<'_, HashMap<CompanyId, Instant>> {
        self.without.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For each of the claims those of its recipients that are not to be written to: one question per company.
pub async fn of_claims(
    list: &SuppressionList,
    store: &dyn Store,
    claims: &[Claim],
) -> Result<HashMap<EmailId, Vec<Address>>, StoreError> {
    let mut asked: HashMap<CompanyId, Vec<Address>> = HashMap::new();
    for claim in claims {
        asked.entry(claim.company).or_default().extend(recipients(&claim.envelope).cloned());
    }
    let mut suppressed: HashMap<CompanyId, Vec<Address>> = HashMap::new();
    for (company, addresses) in asked {
        let found = list.among(store, company, &addresses).await?;
        if !found.is_empty() {
            suppressed.insert(company, found);
        }
    }
    let of = |claim: &Claim| {
        let listed = suppressed.get(&claim.company)?;
        let met: Vec<Address> =
            recipients(&claim.envelope).filter(|address| names(listed, address)).cloned().collect();
        (!met.is_empty()).then(|| (claim.id(), met))
    };
    Ok(claims.iter().filter_map(of).collect())
}

/// The copies of an email that are not sent since the company does not write to those they are for. By their places in
/// the email as it was accepted, so that its history can say which they were without naming anybody.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    places: Vec<String>,
    /// How many copies there were: places mean nothing once somebody was erased from among them.
    copies: usize,
}

impl LeftOut {
    pub fn of(envelope: &Envelope, suppressed: &[Address]) -> Self {
        let places = copies(envelope).filter(|(_, address)| names(suppressed, address));
        Self { places: places.map(|(place, _)| place).collect(), copies: copies(envelope).count() }
    }

    /// Adds it to the event of the validation, where there is something to tell.
    pub fn tell(self, event: Event) -> Event {
        if self.places.is_empty() {
            return event;
        }
        event
            .with("copiesLeftOut", self.places.len())
            .with("leftOut", self.places)
            .with("copies", self.copies)
            .with("reason", "suppressed")
    }

    /// What such an event tells of the email; `None` when it does not fit the email any more, or is of an earlier version,
    /// which told their number only.
    pub fn told_by(event: &Event, envelope: &Envelope) -> Option<Self> {
        if !event.metadata.contains_key("copiesLeftOut") {
            return Some(Self::default());
        }
        let places = event.metadata.get("leftOut")?.as_array()?;
        let copies = usize::try_from(event.metadata.get("copies")?.as_u64()?).ok()?;
        let places = places.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        (copies == self::copies(envelope).count()).then_some(Self { places, copies })
    }

    pub fn take_from(&self, envelope: &mut Envelope) {
        let kept = |list| {
            let mut place = 0;
            move |_: &Address| {
                place += 1;
                !self.places.contains(&place_of(list, place - 1))
            }
        };
        envelope.cc.retain(kept("cc"));
        envelope.bcc.retain(kept("bcc"));
    }
}

fn copies(envelope: &Envelope) -> impl Iterator<Item = (String, &Address)> {
    let cc = envelope.cc.iter().enumerate().map(|(index, address)| (place_of("cc", index), address));
    let bcc = envelope.bcc.iter().enumerate().map(|(index, address)| (place_of("bcc", index), address));
    cc.chain(bcc)
}

/// As the API names it: `cc[0]`.
fn place_of(list: &str, index: usize) -> String {
    format!("{list}[{index}]")
}

/// Everybody an email goes to.
pub fn recipients(envelope: &Envelope) -> impl Iterator<Item = &Address> {
    std::iter::once(&envelope.to).chain(&envelope.cc).chain(&envelope.bcc)
}

/// Whether the address is among those, however it is spelled.
pub fn names(listed: &[Address], address: &Address) -> bool {
    listed.iter().any(|other| other.same_mailbox(address))
}

#[cfg(test)]
mod tests;
