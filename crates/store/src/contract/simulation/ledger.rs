//! What the provider saw: every send, and how long the email's history was then.

use model::{EmailId, EventKind, Guard};

use super::model::{Checked, Model, ensure};

/// A send as the provider saw it.
#[derive(Debug, Clone, Copy)]
pub struct Send {
    id: EmailId,
    fence: u64,
    /// How long the email's history was then.
    history: usize,
}

impl Model {
    /// The provider took the email in this attempt.
    pub fn sent_to_provider(&mut self, guard: Guard) -> Checked<()> {
        let history = self.row(guard.id)?.events.len();
        let twice = self.ledger.iter().any(|send| send.id == guard.id && send.fence == guard.fence);
        ensure(!twice, || format!("fence {} sent {} twice", guard.fence, guard.id))?;
        self.ledger.push(Send { id: guard.id, fence: guard.fence, history });
        Ok(())
    }

    /// No email went out twice unless its history says, between the two, that an outcome was not known.
    pub fn check_ledger(&self) -> Checked<()> {
        for (id, row) in &self.rows {
            let sends: Vec<&Send> = self.ledger.iter().filter(|send| send.id == *id).collect();
            for pair in sends.windows(2) {
                let between = &row.events[pair[0].history..pair[1].history];
                let is_marked = between
                    .iter()
                    .any(|kind| matches!(kind, EventKind::OutcomeUnknown | EventKind::LeaseLost));
                ensure(is_marked, || format!("email #{} was sent twice, unmarked: {between:?}", row.number))?;
            }
        }
        Ok(())
    }
}
