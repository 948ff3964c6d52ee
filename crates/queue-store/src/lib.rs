//! The `store` engine: the outbox itself is the queue. Claiming and settling are the store's own verbs; this adds
//! only the knowledge of when it is worth looking (`alarm`), so that an email offered in this process is claimed
//! at once, and one offered by another process when the store tells of it or at the next look.

mod alarm;

use std::sync::Arc;

use async_trait::async_trait;
use model::{Claim, EmailId, Guard, Timestamp, Verdict, WorkerId};
use queue::Queue;
use store::{ClaimRequest, Settled, Settlement, Store, StoreError};

use alarm::Alarm;

pub struct StoreQueue {
    store: Arc<dyn Store>,
    alarm: Alarm,
}

impl StoreQueue {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, alarm: Alarm::new() }
    }
}

#[async_trait]
impl Queue for StoreQueue {
    async fn offer(&self, emails: &[(EmailId, Timestamp)]) -> Result<(), StoreError> {
        self.alarm.set(emails.iter().map(|(_, due_at)| *due_at));
        Ok(())
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        let now = request.now;
        let claims = self.store.claim(request).await;
        let found = claims.as_ref().is_ok_and(|claims| !claims.is_empty());
        self.alarm.looked(now, found);
        claims
    }

    async fn extend(
        &self,
        owner: WorkerId,
        guards: Vec<Guard>,
        until: Timestamp,
    ) -> Result<Vec<EmailId>, StoreError> {
        self.store.renew(owner, guards, until).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let due_at = due_again(&settlement);
        let settled = self.store.settle(settlement).await?;
        if let (Settled::Done(status), Some(due_at)) = (settled, due_at)
            && status.is_waiting()
        {
            self.alarm.set([due_at]);
        }
        Ok(settled)
    }

    async fn wait_for_work(&self, now: Timestamp) {
        tokio::select! {
            () = self.alarm.wait(now) => {}
            () = self.store.arrival() => {}
        }
    }
}

/// When an email that goes back into the queue is due.
fn due_again(settlement: &Settlement) -> Option<Timestamp> {
    match &settlement.verdict {
        Verdict::Retry { due_at, .. } | Verdict::PutBack { due_at, .. } | Verdict::Requeue { due_at } => {
            Some(*due_at)
        }
        Verdict::Release { .. } => Some(settlement.now),
        Verdict::Sent { .. } | Verdict::Hold { .. } | Verdict::Fail { .. } | Verdict::Expire { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use model::{Category, ErrorCode, Failure};
    use store::SettledBy;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);
    const LATER: Timestamp = Timestamp::from_millis(1_767_225_605_000);

    #[test]
    fn what_goes_back_into_the_queue_is_waited_for() {
        let failure = Failure {
            code: ErrorCode::NETWORK_ERROR,
            category: Category::Transient,
            message: String::new(),
            original_code: None,
            retry_after: None,
            refused: None,
        };
        let retry = Verdict::Retry { due_at: LATER, failure: failure.clone(), outcome_unknown: false };
        let cases = [
            ("a retry", retry, Some(LATER)),
            ("put back", Verdict::Requeue { due_at: LATER }, Some(LATER)),
            ("given back", Verdict::Release { outcome_unknown: true }, Some(NOW)),
            ("put back for later", Verdict::PutBack { due_at: LATER, route: None }, Some(LATER)),
            ("held", Verdict::Hold { failure: failure.clone() }, None),
            ("failed", Verdict::Fail { failure, outcome_unknown: false }, None),
            ("expired", Verdict::Expire { failure: None }, None),
        ];
        for (case, verdict, expected) in cases {
            let id = EmailId::new(NOW);
            let guard = Guard { id, fence: 1, version: 1 };
            let settlement = Settlement { guard, by: SettledBy::Worker, verdict, events: vec![], now: NOW };
            assert_eq!(due_again(&settlement), expected, "{case}");
        }
    }
}
