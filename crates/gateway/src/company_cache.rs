//! Companies as the pipeline needs them: read through the store, kept for a few seconds, so that an attempt costs no
//! query for settings that hardly ever change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{Company, CompanyId};
use store::{Store, StoreError};
use tokio::time::Instant;

/// A change of a company's settings is obeyed at the latest after this.
const AGE_MAX: Duration = Duration::from_secs(5);
/// Enough for ten thousand companies that all send within seconds; a few megabytes.
const COMPANIES_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub struct CompanyCache {
    known: Mutex<HashMap<CompanyId, (Instant, Arc<Company>)>>,
}

impl CompanyCache {
    /// `None` when there is no such company; that is asked anew every time.
    pub async fn get(&self, store: &dyn Store, id: CompanyId) -> Result<Option<Arc<Company>>, StoreError> {
        let fresh = |(read_at, company): &(Instant, Arc<Company>)| {
            (read_at.elapsed() < AGE_MAX).then(|| company.clone())
        };
        if let Some(company) = self.known().get(&id).and_then(fresh) {
            return Ok(Some(company));
        }
        let read_at = Instant::now();
        let Some(company) = store.company(id).await?.map(Arc::new) else {
            return Ok(None);
        };
        self.remember(read_at, company.clone());
        Ok(Some(company))
    }

    fn remember(&self, read_at: Instant, company: Arc<Company>) {
        let mut known = self.known();
        if known.len() >= COMPANIES_MAX {
            known.retain(|_, (read_at, _)| read_at.elapsed() < AGE_MAX);
        }
        if known.len() < COMPANIES_MAX {
            known.insert(company.id, (read_at, company));
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<CompanyId, (Instant, Arc<Company>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
