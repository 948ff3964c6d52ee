//! What happens, as it happens: the events of all emails in the order in which they were written, for operators who
//! watch. Every event has a number, and later ones have higher ones; [`Watch`] follows them without missing one that
//! was written late and without reading anything twice that it need not.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use model::{Address, CompanyId, EmailId, Event, KeyMode, Secret, Status, Timestamp};

use crate::StoreError;

/// How many numbers one call looks at.
pub const SPAN_MAX: u64 = 1_000;

/// The events of all companies, which is why only the operator's commands use it.
#[async_trait]
pub trait History: Send + Sync {
    /// The number of the newest event, 0 where there is none. It may be that of one that is being written just now.
    async fn last_event(&self) -> Result<u64, StoreError>;

    /// A number below which no event is of `since` or later, as far as events are written in the order of their times.
    async fn first_event_since(&self, since: Timestamp) -> Result<u64, StoreError>;

    /// The events with the numbers from `first` to `last`, in order; at most [`SPAN_MAX`] numbers are looked at. Numbers
    /// are missing where events were deleted, where a transaction was undone, and where one has not ended yet.
    async fn happened(&self, first: u64, last: u64) -> Result<Vec<Happening>, StoreError>;
}

/// An event, and what a person wants to know of its email.
#[derive(Debug, Clone, PartialEq)]
pub struct Happening {
    pub number: u64,
    pub email: EmailId,
    pub company: CompanyId,
    pub mode: KeyMode,
    /// Where the email is by now, which may be further on.
    pub status: Status,
    pub to: Address,
    pub subject: Secret<String>,
    pub entity: Option<String>,
    /// Who took it, if somebody did.
    pub provider: Option<String>,
    pub event: Event,
}

/// The end of a span that is not too long.
pub fn bounded(first: u64, last: u64) -> u64 {
    last.min(first.saturating_add(SPAN_MAX - 1))
}

/// Finds the first number of a time by halving, for stores that find events by number alone.
#[derive(Debug)]
pub struct Halving {
    from: u64,
    to: u64,
}

impl Halving {
    /// Among the numbers up to `last`.
    pub fn new(last: u64) -> Self {
        Self { from: 1, to: last.saturating_add(1) }
    }

    /// From which number on to look for one event; `None` when the answer is known.
    pub fn next(&self) -> Option<u64> {
        (self.from < self.to).then(|| self.from + (self.to - self.from) / 2)
    }

    /// What was found there: the first event from `looked` on.
    pub fn found(&mut self, looked: u64, event: Option<(u64, Timestamp)>, since: Timestamp) {
        match event {
            Some((number, at)) if at < since => self.from = number.saturating_add(1).min(self.to),
            _ => self.to = looked,
        }
    }

    pub fn answer(&self) -> u64 {
        self.from
    }
}

/// Follows the events of a store. Numbers are given out when an event is written and become visible when its transaction
/// ends, so a number that is missing is looked for again for a while.
#[derive(Debug)]
pub struct Watch {
    next: u64,
    /// Numbers that were not there, and since when they are looked for.
    missing: BTreeMap<u64, Timestamp>,
    /// Found, but not given out yet: an error came between.
    found: Vec<Happening>,
    is_behind: bool,
}

impl Watch {
    /// For how long a missing number is looked for: longer than any transaction may take.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// How many missing numbers are kept in mind; beyond it the oldest are given up.
    const MISSING_MAX: usize = 20_000;
    /// How many spans of missing numbers one look reads, the newest first.
    const SPANS_MAX: usize = 32;

    pub fn from(first: u64) -> Self {
        Self { next: first.max(1), missing: BTreeMap::new(), found: Vec::new(), is_behind: true }
    }

    /// There is more to read already.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// What is new since the last look. The cost does not depend on how many events there are. After an error the same
    /// call can be made again; nothing is lost by it.
    pub async fn look(
        &mut self,
        history: &dyn History,
        now: Timestamp,
    ) -> Result<Vec<Happening>, StoreError> {
        // Who reads a long history has no time to look back.
        if !self.is_behind {
            self.look_back(history, now).await?;
        }
        let newest = history.last_event().await?;
        // The newest events were deleted, and their numbers are given out again.
        self.next = self.next.min(newest.saturating_add(1));
        if self.next <= newest {
            let last = bounded(self.next, newest);
            let events = history.happened(self.next, last).await?;
            self.take(events, last, now);
        }
        self.is_behind = self.next <= newest;
        Ok(std::mem::take(&mut self.found))
    }

    async fn look_back(&mut self, history: &dyn History, now: Timestamp) -> Result<(), StoreError> {
        self.missing.retain(|_, since| now.since(*since) < Self::PATIENCE);
        for (first, last) in self.spans() {
            for event in history.happened(first, last).await? {
                if self.missing.remove(&event.number).is_some() {
                    self.found.push(event);
                }
            }
        }
        Ok(())
    }

    /// The missing numbers in as few spans as there can be.
    fn spans(&self) -> Vec<(u64, u64)> {
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for number in self.missing.keys().rev() {
            if let Some((first, last)) = spans.last_mut()
                && *last - number < SPAN_MAX
            {
                *first = *number;
            } else if spans.len() < Self::SPANS_MAX {
                spans.push((*number, *number));
            } else {
                break;
            }
        }
        spans
    }

    fn take(&mut self, events: Vec<Happening>, last: u64, now: Timestamp) {
        let mut expected = self.next;
        for number in events.iter().map(|event| event.number).chain([last.saturating_add(1)]) {
            self.missing.extend((expected..number).map(|missing| (missing, now)));
            expected = number.saturating_add(1);
        }
        while self.missing.len() > Self::MISSING_MAX {
            self.missing.pop_first();
        }
        self.next = last.saturating_add(1);
        self.found.extend(events);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use model::EventKind;

    use super::*;

    /// Events by number, some of them not to be seen yet.
    #[derive(Default)]
    struct Book {
        seen: Mutex<BTreeMap<u64, Happening>>,
        given_out: Mutex<u64>,
        fails: Mutex<bool>,
        calls: Mutex<u64>,
    }

    impl Book {
        fn write(&self, number: u64) {
            self.seen.lock().expect("held").insert(number, an_event(number));
            let mut given_out = self.given_out.lock().expect("held");
            *given_out = number.max(*given_out);
        }

        fn numbers(&self, watch: &mut Watch, secs: u64) -> Result<Vec<u64>, StoreError> {
            let now = Timestamp::from_millis(0).plus(Duration::from_secs(secs));
            let found = block_on(watch.look(self, now))?;
            Ok(found.into_iter().map(|event| event.number).collect())
        }
    }

    /// Nothing here waits, so a future is ready when it is first asked.
    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(value) => value,
            std::task::Poll::Pending => panic!("it waits"),
        }
    }

    fn an_event(number: u64) -> Happening {
        let now = Timestamp::from_millis(0);
        Happening {
            number,
            email: EmailId::new(now),
            company: CompanyId::new(now),
            mode: KeyMode::Live,
            status: Status::Sent,
            to: Address::trusted("ana@example.com".into()),
            subject: Secret::new(String::new()),
            entity: None,
            provider: None,
            event: Event::new(EventKind::Sent, now),
        }
    }

    #[async_trait]
    impl History for Book {
        async fn last_event(&self) -> Result<u64, StoreError> {
            if *self.fails.lock().expect("held") {
                return Err(StoreError::Unavailable("away".into()));
            }
            Ok(*self.given_out.lock().expect("held"))
        }

        async fn first_event_since(&self, _since: Timestamp) -> Result<u64, StoreError> {
            Ok(1)
        }

        async fn happened(&self, first: u64, last: u64) -> Result<Vec<Happening>, StoreError> {
            *self.calls.lock().expect("held") += 1;
            assert!(last - first < SPAN_MAX, "{first}..={last}");
            Ok(self.seen.lock().expect("held").range(first..=last).map(|(_, event)| event.clone()).collect())
        }
    }

    #[test]
    fn what_is_written_late_is_found_once() {
        let book = Book::default();
        let mut watch = Watch::from(1);
        [1, 2, 5].into_iter().for_each(|number| book.write(number));
        assert_eq!(book.numbers(&mut watch, 0), Ok(vec![1, 2, 5]));
        assert_eq!(book.numbers(&mut watch, 1), Ok(vec![]));
        book.write(4);
        book.write(6);
        assert_eq!(book.numbers(&mut watch, 2), Ok(vec![4, 6]));
        book.write(3);
        assert_eq!(book.numbers(&mut watch, 59), Ok(vec![3]));
        assert_eq!(book.numbers(&mut watch, 59), Ok(vec![]));
    }

    #[test]
    fn nothing_is_lost_by_an_error() {
        let book = Book::default();
        let mut watch = Watch::from(1);
        [1, 3].into_iter().for_each(|number| book.write(number));
        assert_eq!(book.numbers(&mut watch, 0), Ok(vec![1, 3]));
        book.write(2);
        *book.fails.lock().expect("held") = true;
        assert!(book.numbers(&mut watch, 1).is_err(), "2 was found before the error came");
        *book.fails.lock().expect("held") = false;
        assert_eq!(book.numbers(&mut watch, 2), Ok(vec![2]));
    }

    #[test]
    fn what_never_comes_is_given_up_and_costs_nothing() {
        let book = Book::default();
        let mut watch = Watch::from(1);
        [1, 3].into_iter().for_each(|number| book.write(number));
        assert_eq!(book.numbers(&mut watch, 0), Ok(vec![1, 3]));
        let calls = || *book.calls.lock().expect("held");
        let before = calls();
        assert_eq!(book.numbers(&mut watch, 61), Ok(vec![]));
        assert_eq!(calls(), before);
    }

    #[test]
    fn a_long_history_is_read_in_spans() {
        let book = Book::default();
        let mut watch = Watch::from(1);
        (1..=2_500).filter(|number| number % 7 != 0).for_each(|number| book.write(number));
        let mut read = Vec::new();
        while watch.is_behind() {
            read.extend(book.numbers(&mut watch, 0).expect("read"));
        }
        assert_eq!(read.len(), 2_500 - 2_500 / 7);
        assert_eq!(*book.calls.lock().expect("held"), 3);
    }

    #[test]
    fn numbers_given_out_again_are_read_again() {
        let book = Book::default();
        let mut watch = Watch::from(1);
        (1..=5).for_each(|number| book.write(number));
        assert_eq!(book.numbers(&mut watch, 0), Ok(vec![1, 2, 3, 4, 5]));
        book.seen.lock().expect("held").clear();
        *book.given_out.lock().expect("held") = 0;
        assert_eq!(book.numbers(&mut watch, 1), Ok(vec![]));
        book.write(1);
        assert_eq!(book.numbers(&mut watch, 2), Ok(vec![1]));
    }

    #[test]
    fn halving_finds_the_first_of_a_time() {
        let at = |secs| Timestamp::from_millis(0).plus(Duration::from_secs(secs));
        let book: BTreeMap<u64, Timestamp> =
            [(2, at(1)), (3, at(2)), (40, at(3)), (41, at(5)), (99, at(9))].into();
        let cases = [(0, 2), (1, 2), (2, 3), (3, 40), (4, 41), (9, 99), (10, 100)];
        for (since, first) in cases {
            let mut halving = Halving::new(99);
            let mut looks = 0;
            while let Some(number) = halving.next() {
                let found = book.range(number..).next().map(|(number, at)| (*number, *at));
                halving.found(number, found, at(since));
                looks += 1;
            }
            let found = book.range(halving.answer()..).next().map_or(100, |(number, _)| *number);
            assert_eq!(found, first, "since {since}");
            assert!(looks <= 8, "{looks}");
        }
    }
}
