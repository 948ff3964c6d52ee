//! From how an attempt ended to what the store is to record: the verdict and its events. Pure: the clock, the dice
//! and the policy come in as values. `attempt` and `sweep` call this; the queue's `settle` follows.

use std::time::Duration;

use model::attempt::{LostLease, with_refused_copies};
use model::email::Wishes;
use model::{
    Category, Claim, CompanySettings, ErrorCode, Event, EventKind, Failure, OnUnknown, RetryPolicy,
    Timestamp, Verdict,
};
use provider::{SendError, Taken};

use crate::Settings;
use crate::validate::Invalid;

/// How long a report from the provider may take to tell us that an email of unknown outcome was sent after all.
/// It is not tried again before, unless its worker was shut down and gave it back.
pub const UNKNOWN_GRACE: Duration = Duration::from_secs(30);
/// How long an email whose providers are closed stays away at least.
const CLOSED_PAUSE: Duration = Duration::from_secs(1);

/// An email whose worker never came back this many times in a row is taken for the cause.
pub const STARTS_MAX: u32 = 3;

/// A worker that did not come back, as a code.
pub const LEASE_LOST: ErrorCode = ErrorCode::new("LEASE_LOST");
/// A fault of ours, as a code.
pub const INTERNAL_ERROR: ErrorCode = ErrorCode::new("INTERNAL_ERROR");

/// What counts about the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub attempt: u32,
    pub attempt_in_series: u32,
    pub unfinished_starts: u32,
    pub expires_at: Timestamp,
}

impl From<&Claim> for Facts {
    fn from(claim: &Claim) -> Self {
        Self {
            attempt: claim.attempt,
            attempt_in_series: claim.attempt_in_series,
            unfinished_starts: claim.unfinished_starts,
            expires_at: claim.expires_at,
        }
    }
}

impl From<&LostLease> for Facts {
    fn from(lost: &LostLease) -> Self {
        Self {
            attempt: lost.attempt,
            attempt_in_series: lost.attempt_in_series,
            unfinished_starts: lost.unfinished_starts,
            expires_at: lost.expires_at,
        }
    }
}

/// How the attempt ended.
#[derive(Debug)]
pub enum Ending {
    Sent {
        provider: String,
        provider_kind: &'static str,
        message_id: Option<String>,
        duration_ms: u64,
        /// Copies that the provider did not take along.
        refused: Vec<Failure>,
    },
    /// The provider did not take it, or did not say.
    NotSent(SendError),
    /// One of the four validations refused it.
    Invalid(Invalid),
    /// There is no provider or no sender for it.
    Unroutable(Failure),
    /// No provider it may go through is open, or none has time for it. With the route by which it waits from now on, if
    /// that has changed.
    Waits { reason: &'static str, route: Option<String> },
    /// Its time to live was over before the provider was called.
    Overdue,
    /// The same, if the clock is right, which will be known then.
    PerhapsOverdue { known_at: Timestamp },
    /// Our own code panicked.
    Panicked { at_provider: bool },
    /// The worker did not come back.
    LeaseLost { at_provider: bool },
    /// Given back, at shutdown or because the store failed.
    GivenBack { reason: &'static str, at_provider: bool },
}

/// What decides besides the attempt itself.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    pub policy: &'a RetryPolicy,
    pub on_unknown: OnUnknown,
    /// From -1 to 1, for jitter.
    pub dice: f64,
    pub now: Timestamp,
}

/// How an email is treated: what it asks for itself, else what its company asks for, else what the operator set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Treatment {
    pub policy: RetryPolicy,
    pub on_unknown: OnUnknown,
}

impl Treatment {
    /// A policy by a name that is no longer configured is passed over.
    pub fn of(wishes: &Wishes, company: Option<&CompanySettings>, settings: &Settings) -> Self {
        let names = [
            wishes.retry_policy.as_ref(),
            company.and_then(|company| company.retry_policy.as_ref()),
            Some(&settings.default_retry_policy),
        ];
        let policy = names.into_iter().flatten().find_map(|name| settings.retry_policies.get(name)).cloned();
        let on_unknown = wishes.on_unknown.or(company.and_then(|company| company.on_unknown));
        Self {
            policy: policy.unwrap_or_else(RetryPolicy::fast),
            on_unknown: on_unknown.unwrap_or(OnUnknown::Retry),
        }
    }

    pub fn rules(&self, dice: f64, now: Timestamp) -> Rules<'_> {
        Rules { policy: &self.policy, on_unknown: self.on_unknown, dice, now }
    }
}

/// The verdict on an attempt, and the events to record with it.
pub fn conclude(facts: Facts, ending: Ending, rules: &Rules<'_>) -> (Verdict, Vec<Event>) {
    let case = Case { facts, rules, events: Vec::new() };
    match ending {
        Ending::Sent { provider, provider_kind, message_id, duration_ms, refused } => {
            case.sent(provider, provider_kind, message_id, duration_ms, refused)
        }
        Ending::NotSent(error) => match error.taken {
            Taken::No => case.not_sent(error.into()),
            Taken::Unknown => case.unknown(error.into()),
        },
        Ending::Invalid(invalid) => case.invalid(invalid),
        Ending::Unroutable(failure) => case.fail(failure, false),
        Ending::Waits { reason, route } => case.waits(reason, route),
        Ending::Overdue => case.overdue(),
        Ending::PerhapsOverdue { known_at } => case.perhaps_overdue(known_at),
        Ending::Panicked { at_provider } => case.panicked(at_provider),
        Ending::LeaseLost { at_provider } => case.lease_lost(at_provider),
        Ending::GivenBack { reason, at_provider } => case.given_back(reason, at_provider),
    }
}

/// One case on its way to a verdict; each step adds the events it stands for.
struct Case<'a> {
    facts: Facts,
    rules: &'a Rules<'a>,
    events: Vec<Event>,
}

type Conclusion = (Verdict, Vec<Event>);

impl Case<'_> {
    fn sent(
        self,
        provider: String,
        provider_kind: &'static str,
        message_id: Option<String>,
        duration_ms: u64,
        refused: Vec<Failure>,
    ) -> Conclusion {
        let event = self
            .event(EventKind::Sent)
            .with("providerMessageId", message_id.clone())
            .with("provider", provider.clone())
            .with("durationMs", duration_ms);
        let event = with_refused_copies(event, &refused);
        self.note(event).end(Verdict::Sent { provider, provider_kind, message_id, duration_ms, refused })
    }

    /// The provider surely did not take it: the category and the policy decide.
    fn not_sent(self, failure: Failure) -> Conclusion {
        match self.retry_due(&failure) {
            None => self.fail(failure, false),
            Some(due_at) if due_at >= self.facts.expires_at => self.expire_early(failure, due_at),
            Some(due_at) => self.retry(failure, due_at, false),
        }
    }

    /// The provider may have taken it. When no further try is possible, what is left is a dead letter, not an
    /// expired email: EXPIRED would say that it was never sent, and nobody knows that.
    fn unknown(self, failure: Failure) -> Conclusion {
        let on_unknown = self.rules.on_unknown;
        let event = with_failure(self.event(EventKind::OutcomeUnknown), &failure)
            .with("onUnknown", on_unknown.as_str());
        let case = self.note(event);
        if on_unknown == OnUnknown::Hold {
            return case.end(Verdict::Hold { failure: outcome_unknown(failure) });
        }
        let earliest = case.rules.now.plus(UNKNOWN_GRACE);
        match case.retry_due(&failure).map(|due_at| due_at.max(earliest)) {
            Some(due_at) if due_at < case.facts.expires_at => case.retry(failure, due_at, true),
            Some(_) | None => case.fail(outcome_unknown(failure), true),
        }
    }

    fn invalid(self, invalid: Invalid) -> Conclusion {
        let event = self
            .event(EventKind::ValidationFailed)
            .with("validation", invalid.validation.as_str())
            .with("errorCode", invalid.failure.code.as_str())
            .with("errorMessage", invalid.failure.message.clone());
        self.note(event).fail(invalid.failure, false)
    }

    fn overdue(self) -> Conclusion {
        let event = self.event(EventKind::Expired).with("expiresAt", self.facts.expires_at.to_rfc3339());
        self.note(event).end(Verdict::Expire { failure: None })
    }

    /// It is as if it had never been claimed. The pause only keeps it from coming right back: while its route is closed
    /// it is not looked at.
    fn waits(self, reason: &'static str, route: Option<String>) -> Conclusion {
        if self.rules.now >= self.facts.expires_at {
            return self.overdue();
        }
        let due_at = self.rules.now.plus(CLOSED_PAUSE);
        let event = self.event(EventKind::Released).with("reason", reason);
        self.note(event).end(Verdict::PutBack { due_at, route })
    }

    /// As if it had never been claimed, too.
    fn perhaps_overdue(self, known_at: Timestamp) -> Conclusion {
        let event = self.event(EventKind::Released).with("reason", "clock in doubt");
        self.note(event).end(Verdict::PutBack { due_at: known_at, route: None })
    }

    /// A fault of ours that the same email meets again and again is the email's: it is quarantined like one that
    /// brings the whole process down, after as many starts.
    fn panicked(self, at_provider: bool) -> Conclusion {
        let failure =
            failure(INTERNAL_ERROR, Category::Transient, "the attempt was stopped by an internal error");
        let starts = self.facts.unfinished_starts.max(self.facts.attempt_in_series);
        match at_provider {
            _ if starts >= STARTS_MAX => self.quarantine(at_provider),
            true => self.unknown(failure),
            false => self.not_sent(failure),
        }
    }

    fn lease_lost(self, at_provider: bool) -> Conclusion {
        let event = self.event(EventKind::LeaseLost).with("atProvider", at_provider);
        let case = self.note(event);
        if case.facts.unfinished_starts >= STARTS_MAX {
            return case.quarantine(at_provider);
        }
        let failure =
            failure(LEASE_LOST, Category::Transient, "the worker that held this email did not come back");
        if at_provider {
            return case.unknown(failure);
        }
        if case.facts.attempt_in_series >= case.rules.policy.max_attempts {
            return case.fail(failure, false);
        }
        if case.rules.now >= case.facts.expires_at {
            return case.overdue();
        }
        let due_at = case.rules.now;
        case.end(Verdict::Requeue { due_at })
    }

    fn given_back(self, reason: &'static str, at_provider: bool) -> Conclusion {
        let failure =
            failure(LEASE_LOST, Category::Transient, "the worker stopped before the provider answered");
        if at_provider && self.rules.on_unknown == OnUnknown::Hold {
            return self.unknown(failure);
        }
        let case = if at_provider {
            let event = with_failure(self.event(EventKind::OutcomeUnknown), &failure)
                .with("onUnknown", self.rules.on_unknown.as_str());
            self.note(event)
        } else {
            self
        };
        let event = case.event(EventKind::Released).with("reason", reason);
        case.note(event).end(Verdict::Release { outcome_unknown: at_provider })
    }

    fn quarantine(self, at_provider: bool) -> Conclusion {
        let message = format!("its worker did not survive it {STARTS_MAX} times in a row");
        let failure = failure(ErrorCode::QUARANTINED, Category::Permanent, &message);
        let case = if at_provider {
            let event = with_failure(self.event(EventKind::OutcomeUnknown), &failure);
            self.note(event)
        } else {
            self
        };
        case.fail(failure, at_provider)
    }

    fn retry(self, failure: Failure, due_at: Timestamp, outcome_unknown: bool) -> Conclusion {
        let delay_ms = millis(due_at.since(self.rules.now));
        let event = with_failure(self.event(EventKind::RetryScheduled), &failure)
            .with("willRetry", true)
            .with("nextAttemptNumber", self.facts.attempt + 1)
            .with("backoffDelay", delay_ms);
        self.note(event).end(Verdict::Retry { due_at, failure, outcome_unknown })
    }

    fn expire_early(self, failure: Failure, would_retry_at: Timestamp) -> Conclusion {
        let event = with_failure(self.event(EventKind::Expired), &failure)
            .with("expiresAt", self.facts.expires_at.to_rfc3339())
            .with("wouldRetryAt", would_retry_at.to_rfc3339());
        self.note(event).end(Verdict::Expire { failure: Some(failure) })
    }

    fn fail(self, failure: Failure, outcome_unknown: bool) -> Conclusion {
        let event = with_failure(self.event(EventKind::Failed), &failure).with("willRetry", false);
        self.note(event).end(Verdict::Fail { failure, outcome_unknown })
    }

    /// When the policy would have it again, or `None` when it would not.
    fn retry_due(&self, failure: &Failure) -> Option<Timestamp> {
        if !failure.category.is_retried() {
            return None;
        }
        let rules = self.rules;
        let delay =
            rules.policy.delay_after(self.facts.attempt_in_series, rules.dice, failure.retry_after)?;
        Some(rules.now.plus(delay))
    }

    fn event(&self, kind: EventKind) -> Event {
        Event::new(kind, self.rules.now).with("attempt", self.facts.attempt)
    }

    fn note(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }

    fn end(self, verdict: Verdict) -> Conclusion {
        (verdict, self.events)
    }
}

fn failure(code: ErrorCode, category: Category, message: &str) -> Failure {
    Failure {
        code,
        category,
        message: message.to_owned(),
        original_code: None,
        retry_after: None,
        refused: None,
    }
}

/// The failure under the code that says what matters: nobody knows whether it was sent, and nothing more is tried.
fn outcome_unknown(failure: Failure) -> Failure {
    let original_code = failure.original_code.or(Some(failure.code.as_str().to_owned()));
    Failure { code: ErrorCode::OUTCOME_UNKNOWN, original_code, ..failure }
}

fn with_failure(event: Event, failure: &Failure) -> Event {
    let event = event
        .with("errorCode", failure.code.as_str())
        .with("errorCategory", failure.category.as_str())
        .with("errorMessage", failure.message.clone());
    match &failure.original_code {
        Some(code) => event.with("originalCode", code.clone()),
        None => event,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
