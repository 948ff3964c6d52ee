//! Taking dead letters back into the queue, in chunks, so that no call holds the store for long.

use std::time::{Duration, Instant};

use model::{CompanyId, EmailId, Timestamp};
use store::{Cursor, DeadLetterFilter, ReplayCount, StoreError};

use crate::{Gateway, accept, observe};

/// Dead letters per call of the store: one short transaction.
const CHUNK: u32 = 500;
/// How long one call goes on; what is left is replayed by the next one. Below every client's time-out.
const PATIENCE: Duration = Duration::from_secs(15);

/// How many dead letters match; nothing is replayed.
pub async fn count(
    gateway: &Gateway,
    company: CompanyId,
    filter: &DeadLetterFilter,
) -> Result<ReplayCount, StoreError> {
    let matched = gateway.store.count_dead_letters(company, filter).await?;
    Ok(ReplayCount { matched, replayed: 0 })
}

/// Replays the dead letters that match and failed before now, so that one that fails again at once is not
/// taken twice. Fewer are replayed than matched when somebody else was first, the limit was reached or the time was up:
/// call again.
pub async fn replay(
    gateway: &Gateway,
    company: CompanyId,
    filter: DeadLetterFilter,
    limit: Option<u32>,
) -> Result<ReplayCount, StoreError> {
    let mut steps = Steps::begin(gateway, filter);
    let started = Instant::now();
    let mut total = count(gateway, company, &steps.filter).await?;
    let room = |replayed: u64| limit.map_or(CHUNK.into(), |limit| u64::from(limit).saturating_sub(replayed));
    while started.elapsed() < PATIENCE
        && let Ok(chunk @ 1..) = u32::try_from(room(total.replayed)).map(|room| room.min(CHUNK))
        && let Some(replayed) = steps.step(gateway, company, chunk).await?
    {
        total.replayed += replayed;
    }
    total.matched = total.matched.max(total.replayed);
    Ok(total)
}

/// A replay in steps, for those who want to see it go on.
#[derive(Debug)]
pub struct Steps {
    filter: DeadLetterFilter,
    now: Timestamp,
    after: Option<Cursor>,
    is_done: bool,
}

impl Steps {
    /// Of the dead letters that match and failed before now.
    pub fn begin(gateway: &Gateway, filter: DeadLetterFilter) -> Self {
        let now = gateway.clock.now();
        Self { filter: failed_by(filter, now), now, after: None, is_done: false }
    }

    /// One short transaction, and how many it replayed; `None` when all were seen.
    pub async fn next(&mut self, gateway: &Gateway, company: CompanyId) -> Result<Option<u64>, StoreError> {
        self.step(gateway, company, CHUNK).await
    }

    async fn step(
        &mut self,
        gateway: &Gateway,
        company: CompanyId,
        chunk: u32,
    ) -> Result<Option<u64>, StoreError> {
        if self.is_done {
            return Ok(None);
        }
        let page = gateway.store.dead_letters(company, &self.filter, self.after.as_ref(), chunk).await?;
        let ids = page.items.iter().map(|email| email.id).collect();
        let replayed = replay_chunk(gateway, company, &self.filter, ids, self.now).await?;
        self.is_done = page.next.is_none();
        self.after = page.next;
        Ok(Some(replayed))
    }
}

/// The ids are read first, since the queue has to be told of each and the store only counts.
async fn replay_chunk(
    gateway: &Gateway,
    company: CompanyId,
    filter: &DeadLetterFilter,
    ids: Vec<EmailId>,
    now: Timestamp,
) -> Result<u64, StoreError> {
    if ids.is_empty() {
        return Ok(0);
    }
    let offers: Vec<_> = ids.iter().map(|id| (*id, now)).collect();
    let chunk = DeadLetterFilter { ids: Some(ids), ..filter.clone() };
    let count = gateway.store.replay(company, &chunk, now, CHUNK).await?;
    observe::replayed(count.replayed);
    accept::offer(gateway, &offers).await;
    Ok(count.replayed)
}

/// Those that failed within this very millisecond are still meant.
fn failed_by(mut filter: DeadLetterFilter, now: Timestamp) -> DeadLetterFilter {
    let bound = now.plus(Duration::from_millis(1));
    filter.until = Some(filter.until.map_or(bound, |until| until.min(bound)));
    filter
}
