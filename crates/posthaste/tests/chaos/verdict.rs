//! Compares what the clients were told, what reached the provider and what the store says. Pure; its tests take one
//! piece of evidence away at a time and see that it is missed.

use std::collections::BTreeSet;
use std::fmt;

use model::{EmailId, ErrorCode, EventKind, Status, Timestamp};

use crate::history::History;
use crate::load::Receipt;
use crate::provider_ledger::ProviderLedger;
use crate::stored::{Emails, Stored};

/// More complaints than this say nothing new.
const COMPLAINTS_SHOWN: usize = 30;

/// The three ledgers of a run.
pub struct Evidence {
    pub seed: u64,
    pub faults: usize,
    /// When a process was started after the one before had died.
    pub restarts: Vec<Timestamp>,
    pub receipts: Vec<Option<Receipt>>,
    pub provider: ProviderLedger,
    pub stored: Emails,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub seed: u64,
    pub faults: usize,
    pub accepted: usize,
    pub sent: usize,
    /// Accepted and not in the store, or SENT and not at the provider.
    pub lost: usize,
    /// On its way for ever.
    pub stuck: usize,
    /// Emails of which the provider has several copies.
    pub dup: usize,
    /// All copies beyond the first.
    pub dup_copies: usize,
    /// Emails with a copy that no event warns of.
    pub dup_unflagged: usize,
    /// Attempts that were at the provider when their process died.
    pub in_flight: usize,
    /// Histories that break the rules.
    pub regressions: usize,
    /// Given up because their process died too often around them.
    pub quarantined: usize,
    /// Given up for any other reason; the sink takes everything, so there is none.
    pub failed: usize,
    pub leases_lost: usize,
    pub released: usize,
    pub late_results: usize,
    /// Attempts that were received and neither called a provider nor were given back.
    pub vanished_attempts: usize,
    /// The longest time from a restart to the moment at which the last of the emails of the dead was taken over.
    pub resumed_ms_max: i64,
    pub complaints: Vec<String>,
}

impl Verdict {
    pub fn of(evidence: &Evidence) -> Self {
        let mut verdict = Self { seed: evidence.seed, faults: evidence.faults, ..Self::default() };
        verdict.hear_clients(evidence);
        verdict.look_for_strangers(evidence);
        for (id, stored) in &evidence.stored {
            let copies = evidence.provider.copies.get(id).map_or(&[][..], Vec::as_slice);
            verdict.judge(*id, stored, copies);
            verdict.judge_resumption(stored, &evidence.restarts);
        }
        verdict
    }

    /// Every answer names an email of its own that is in the store.
    fn hear_clients(&mut self, evidence: &Evidence) {
        let mut ids = BTreeSet::new();
        for (index, receipt) in evidence.receipts.iter().enumerate() {
            let Some(receipt) = receipt else {
                self.complain(format!("email {index} never got an answer"));
                continue;
            };
            self.accepted += 1;
            if !ids.insert(receipt.id) {
                self.complain(format!("{} is the answer to two different emails", receipt.id));
            }
            if !evidence.stored.contains_key(&receipt.id) {
                self.lost += 1;
                self.complain(format!("{} was accepted and is not in the store", receipt.id));
            }
        }
    }

    /// Nothing is stored or sent that no client was told of: they all asked until they knew.
    fn look_for_strangers(&mut self, evidence: &Evidence) {
        let told: BTreeSet<EmailId> = evidence.receipts.iter().flatten().map(|receipt| receipt.id).collect();
        for id in evidence.stored.keys().filter(|id| !told.contains(id)) {
            self.complain(format!("{id} is in the store and no client was told of it"));
        }
        for id in evidence.provider.copies.keys().filter(|id| !told.contains(id)) {
            self.complain(format!("{id} was sent and no client was told of it"));
        }
        if evidence.provider.strangers > 0 {
            self.complain(format!("{} messages without our id were sent", evidence.provider.strangers));
        }
    }

    fn judge(&mut self, id: EmailId, stored: &Stored, copies: &[Timestamp]) {
        let history = History::of(&stored.events);
        self.judge_end(id, stored, copies);
        self.judge_copies(id, stored, copies, &history);
        self.judge_history(id, stored, copies, &history);
        self.in_flight += history.lost_at_provider;
        self.released += history.released;
        self.late_results += history.late_results;
    }

    fn judge_resumption(&mut self, stored: &Stored, restarts: &[Timestamp]) {
        for lost_at in
            stored.events.iter().filter(|event| event.kind == EventKind::LeaseLost).map(|event| event.at)
        {
            self.leases_lost += 1;
            let restart = restarts.iter().rfind(|restart| **restart <= lost_at);
            let resumed_ms = restart.map_or(0, |restart| lost_at.millis() - restart.millis());
            self.resumed_ms_max = self.resumed_ms_max.max(resumed_ms);
        }
    }

    fn judge_end(&mut self, id: EmailId, stored: &Stored, copies: &[Timestamp]) {
        let code = stored.failure_code.as_deref().unwrap_or_default();
        match stored.status {
            Status::Sent => {
                self.sent += 1;
                if copies.is_empty() {
                    self.lost += 1;
                    self.complain(format!("{id} is SENT and the provider never saw it"));
                }
            }
            Status::Failed if code == ErrorCode::QUARANTINED.as_str() => self.quarantined += 1,
            status if status.is_final() => {
                self.failed += 1;
                self.complain(format!("{id} ended as {status} {code}"));
            }
            status => {
                self.stuck += 1;
                self.complain(format!("{id} is still {status} {code}"));
            }
        }
        if stored.status != Status::Sent && !copies.is_empty() && !stored.outcome_unknown {
            self.complain(format!("{id} is {} {code}, unmarked, although it was sent", stored.status));
        }
    }

    /// Between two copies there is always an event that says that a second one is possible.
    fn judge_copies(&mut self, id: EmailId, stored: &Stored, copies: &[Timestamp], history: &History) {
        if copies.len() < 2 {
            return;
        }
        self.dup += 1;
        self.dup_copies += copies.len() - 1;
        let is_flagged = |pair: &[Timestamp]| history.is_doubted_between(pair[0], pair[1]);
        if !copies.windows(2).all(is_flagged) || !stored.outcome_unknown {
            self.dup_unflagged += 1;
            self.complain(format!("{id} was sent at {copies:?}, doubted at {:?}", history.doubts));
        }
    }

    fn judge_history(&mut self, id: EmailId, stored: &Stored, copies: &[Timestamp], history: &History) {
        let mut wrong = history.illegal.clone();
        if history.end != Some(stored.status) {
            wrong.push(format!("the events end in {:?}, the row says {}", history.end, stored.status));
        }
        if copies.len() > history.calls.len() {
            wrong.push(format!("{} copies, {} recorded calls", copies.len(), history.calls.len()));
        }
        if history.sent > 1 {
            wrong.push(format!("{} times SENT", history.sent));
        }
        if stored.attempts + history.released != history.received {
            wrong.push(format!("{} attempts, {} received", stored.attempts, history.received));
        }
        self.vanished_attempts += history.received.saturating_sub(history.calls.len() + history.released);
        if !wrong.is_empty() {
            self.regressions += 1;
            self.complain(format!("{id}: {}", wrong.join("; ")));
        }
    }

    pub fn complain(&mut self, what: String) {
        self.complaints.push(what);
    }

    /// What may never happen, whatever was done to the process.
    pub fn breaks_promises(&self) -> bool {
        let counts = [self.lost, self.stuck, self.dup_unflagged, self.regressions, self.failed];
        counts.iter().any(|count| *count > 0)
            || self.dup_copies > self.in_flight
            // Suspects run alone, so each fault blames one of them at most.
            || self.quarantined > self.faults
            || self.sent + self.quarantined != self.accepted
            || !self.complaints.is_empty()
    }

    /// The verdict and its reasons, for whoever sees no more of a run than how it failed.
    pub fn in_full(&self) -> String {
        let shown = self.complaints.iter().take(COMPLAINTS_SHOWN).map(|complaint| format!("\n  {complaint}"));
        format!("{self}{}\n  {} complaints in all", shown.collect::<String>(), self.complaints.len())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, accepted, sent, faults, lost, stuck, dup, dup_unflagged, in_flight, .. } = self;
        write!(
            f,
            "seed={seed} accepted={accepted} sent={sent} kills={faults} lost={lost} stuck={stuck} dup={dup} "
        )?;
        write!(f, "dup_unflagged={dup_unflagged} in_flight_at_kills={in_flight} ")?;
        write!(f, "regressions={} quarantined={} ", self.regressions, self.quarantined)?;
        write!(f, "failed={} leases_lost={} released={} ", self.failed, self.leases_lost, self.released)?;
        write!(f, "resumed_ms_max={}", self.resumed_ms_max)
    }
}

#[cfg(test)]
mod tests;
