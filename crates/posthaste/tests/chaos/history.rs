//! An email's events, read as a story: does every step follow from the one before, and where does it end?

use model::{Event, EventKind, Move, Status, Timestamp};

/// What the events of one email say.
#[derive(Debug, Default)]
pub struct History {
    pub end: Option<Status>,
    /// Steps that do not follow from the ones before.
    pub illegal: Vec<String>,
    pub received: usize,
    /// When a provider was about to be called.
    pub calls: Vec<Timestamp>,
    pub sent: usize,
    pub released: usize,
    pub lost_at_provider: usize,
    pub late_results: usize,
    /// When it was recorded that the provider may or may not have taken it.
    pub doubts: Vec<Timestamp>,
}

impl History {
    pub fn of(events: &[Event]) -> Self {
        let mut history = Self::default();
        let mut last: Option<&Event> = None;
        for event in events {
            history.read(event, last);
            // One that comes too late moves nothing.
            if event.kind != EventKind::LateResult {
                last = Some(event);
            }
        }
        if last.is_some_and(ends_unsent) {
            history.step(Move::Release, EventKind::LeaseLost);
        }
        history
    }

    fn read(&mut self, event: &Event, last: Option<&Event>) {
        match event.kind {
            EventKind::Enqueued => self.begin(Status::Enqueued),
            EventKind::Accepted => self.begin(Status::Accepted),
            EventKind::Received => {
                if last.is_some_and(ends_unsent) {
                    self.step(Move::Release, EventKind::LeaseLost);
                }
                self.received += 1;
                self.step(Move::Claim, event.kind);
            }
            EventKind::SentAttempt => {
                self.calls.push(event.at);
                self.within_attempt(event.kind);
            }
            EventKind::Validated | EventKind::ValidationFailed => self.within_attempt(event.kind),
            EventKind::OutcomeUnknown => {
                self.doubts.push(event.at);
                self.within_attempt(event.kind);
            }
            EventKind::LeaseLost => self.lose(event),
            EventKind::Sent => {
                self.sent += 1;
                self.step(Move::Send, event.kind);
            }
            EventKind::RetryScheduled => self.step(Move::Defer, event.kind),
            EventKind::Failed => self.step(Move::Fail, event.kind),
            EventKind::Released => {
                self.released += 1;
                self.step(Move::Release, event.kind);
            }
            EventKind::LateResult => self.late_results += 1,
            other => self.illegal.push(format!("{other} has no place in this run")),
        }
    }

    /// Is a second copy explained? One that was taken at `first` was handed over by the call before that, and between
    /// this call and the second copy it must have been recorded that nobody knows. (Not between the two copies: a
    /// worker that was stopped within its call goes on with it after the others have given it up.)
    pub fn is_doubted_between(&self, first: Timestamp, second: Timestamp) -> bool {
        let called_at = self.calls.iter().rfind(|called_at| **called_at <= first);
        called_at.is_some_and(|called_at| self.doubts.iter().any(|at| called_at <= at && *at <= second))
    }

    fn begin(&mut self, status: Status) {
        if self.end.replace(status).is_some() {
            self.illegal.push(format!("{status} a second time"));
        }
    }

    fn lose(&mut self, event: &Event) {
        self.within_attempt(event.kind);
        if is_at_provider(event) {
            self.lost_at_provider += 1;
            self.doubts.push(event.at);
        }
    }

    fn within_attempt(&mut self, kind: EventKind) {
        if self.end != Some(Status::Processing) {
            self.illegal.push(format!("{kind} while {:?}", self.end));
        }
    }

    fn step(&mut self, step: Move, kind: EventKind) {
        match self.end.map(|status| status.after(step)) {
            Some(Ok(status)) => self.end = Some(status),
            Some(Err(illegal)) => self.illegal.push(format!("{kind}: {illegal}")),
            None => self.illegal.push(format!("{kind} before the beginning")),
        }
    }
}

fn is_at_provider(event: &Event) -> bool {
    event.metadata.get("atProvider").and_then(serde_json::Value::as_bool) == Some(true)
}

/// A worker that vanished before it called a provider: the email went back into the queue without a further event.
fn ends_unsent(event: &Event) -> bool {
    event.kind == EventKind::LeaseLost && !is_at_provider(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(kinds: &[EventKind]) -> Vec<Event> {
        kinds.iter().map(|kind| Event::new(*kind, Timestamp::from_millis(0))).collect()
    }

    #[test]
    fn stories_that_make_sense_and_stories_that_do_not() {
        use EventKind::*;
        let cases: [(&str, &[EventKind], Option<Status>, usize); 8] = [
            ("sent", &[Enqueued, Received, Validated, SentAttempt, Sent], Some(Status::Sent), 0),
            ("lost before the call", &[Enqueued, Received, LeaseLost], Some(Status::Enqueued), 0),
            (
                "lost before the call, then sent",
                &[Enqueued, Received, LeaseLost, Received, Validated, SentAttempt, Sent],
                Some(Status::Sent),
                0,
            ),
            (
                "lost before the call, heard of too late, then sent",
                &[Enqueued, Received, LeaseLost, LateResult, Received, Validated, SentAttempt, Sent],
                Some(Status::Sent),
                0,
            ),
            ("given back", &[Enqueued, Received, Released], Some(Status::Enqueued), 0),
            ("sent twice", &[Enqueued, Received, Sent, Sent], Some(Status::Sent), 1),
            ("sent, then claimed", &[Enqueued, Received, Sent, Received], Some(Status::Sent), 1),
            ("sent while it waits", &[Enqueued, Sent], Some(Status::Enqueued), 1),
        ];
        for (case, kinds, end, illegal) in cases {
            let history = History::of(&events(kinds));
            assert_eq!((history.end, history.illegal.len()), (end, illegal), "{case}: {history:?}");
        }
    }
}
