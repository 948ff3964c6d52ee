//! The port to how workers find work. The store is always the truth; an engine only decides which emails a
//! worker gets next and when it wakes up.

use async_trait::async_trait;
use model::{Claim, EmailId, Guard, Timestamp, WorkerId};
use store::{ClaimRequest, Settled, Settlement, StoreError};

#[async_trait]
pub trait Queue: Send + Sync {
    /// Tells the engine of emails that are committed and due at the given times.
    async fn offer(&self, emails: &[(EmailId, Timestamp)]) -> Result<(), StoreError>;

    /// Leases due emails to a worker, in fair order.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError>;

    /// Prolongs leases; returns those that are lost.
    async fn extend(
        &self,
        owner: WorkerId,
        guards: Vec<Guard>,
        until: Timestamp,
    ) -> Result<Vec<EmailId>, StoreError>;

    /// Records how an attempt ended, in the store and in the engine.
    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError>;

    /// Returns when there may be something to claim: after an offer, when something offered falls due, or
    /// after a while, since other processes offer too.
    async fn wait_for_work(&self, now: Timestamp);
}
