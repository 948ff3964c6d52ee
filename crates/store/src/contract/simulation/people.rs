//! What everybody but the workers does: hand emails in, withdraw them, ask for them, take dead letters back, and
//! switch companies off and on.

use std::time::Duration;

use ::model::{Company, EmailId, NewEmail, OnUnknown, Status};
use rand::Rng;
use testkit::an_email_at;

use super::model::{Checked, Key, Row, ensure};
use super::steps::ROUTES;
use super::{END_OFFSET, Simulation, TICK, failed};
use crate::{Acceptance, Accepted, Cancelled, DeadLetterFilter, IdempotencyKey, RetriedNow};

impl Simulation<'_> {
    pub(super) async fn accept(&mut self) -> Checked<()> {
        let company = self.dice.random_range(0..self.model.companies.len());
        let emails: Vec<NewEmail> =
            (0..self.dice.random_range(1..4)).map(|_| self.an_email(company)).collect();
        let key = self.dice.random_bool(0.5).then(|| self.a_key());
        let expected = self.expected_answer(company, key.as_ref());
        let acceptance = Acceptance {
            company: self.model.companies[company].id,
            emails: emails.clone(),
            key: key.clone(),
            daily_limit: None,
            now: self.now,
        };
        let accepted = self.store.accept(acceptance).await.map_err(failed)?;
        if accepted == Accepted::Stored {
            for email in &emails {
                let number = self.model.rows.len();
                self.model.rows.insert(email.id, Row::new(email, company, number));
                self.touched.insert(email.id);
            }
            if let Some(key) = key.clone() {
                let remembered =
                    Key { body: key.body_hash[0], answer: key.answer, keep_until: key.keep_until };
                self.model.keys.insert((company, key.key), remembered);
            }
        }
        let numbers = self.numbers(emails.iter().map(|email| email.id));
        let key = key.map(|key| (key.key, key.body_hash[0]));
        self.note(format!("company {company} hands in {numbers} under {key:?}: {accepted:?}"));
        ensure(accepted == expected, || format!("accepted as {accepted:?}, expected {expected:?}"))
    }

    fn expected_answer(&self, company: usize, key: Option<&IdempotencyKey>) -> Accepted {
        let Some(key) = key else { return Accepted::Stored };
        match self.model.keys.get(&(company, key.key.clone())) {
            Some(known) if known.keep_until < self.now => Accepted::Stored,
            Some(known) if known.body == key.body_hash[0] => {
                Accepted::Replayed { answer: known.answer.clone() }
            }
            Some(_) => Accepted::KeyReused,
            None => Accepted::Stored,
        }
    }

    fn an_email(&mut self, company: usize) -> NewEmail {
        let delay = if self.dice.random_bool(0.3) {
            TICK * self.dice.random_range(1..12_000)
        } else {
            Duration::ZERO
        };
        let ttl_secs = [8, 60, 600, 86_400][self.dice.random_range(0..4_usize)];
        let due_at = self.now.plus(delay);
        let mut email = NewEmail {
            id: EmailId::from_parts(self.now, self.dice.random()),
            priority: self.dice.random_range(1..=10),
            route: ROUTES[self.dice.random_range(0..ROUTES.len())].to_owned(),
            due_at,
            scheduled_at: (delay > Duration::ZERO).then_some(due_at),
            expires_at: due_at.plus(Duration::from_secs(ttl_secs)).plus(END_OFFSET),
            ..an_email_at(self.model.companies[company].id, self.now)
        };
        email.wishes.on_unknown = match self.dice.random_range(0..4) {
            0 => Some(OnUnknown::Hold),
            1 => Some(OnUnknown::Retry),
            _ => None,
        };
        email
    }

    /// One of a few keys, for one of two requests.
    fn a_key(&mut self) -> IdempotencyKey {
        let keep_secs = if self.dice.random_bool(0.3) { 30 } else { 3_600 };
        IdempotencyKey {
            key: format!("k{}", self.dice.random_range(0..8)),
            body_hash: [self.dice.random_range(1..3); 32],
            answer: format!("answer of step {}", self.step),
            keep_until: self.now.plus(Duration::from_secs(keep_secs)).plus(END_OFFSET),
        }
    }

    /// An email and who asks for it: mostly its own company.
    fn an_email_asked_for(&mut self) -> Option<(EmailId, usize, bool)> {
        let mut ids: Vec<EmailId> = self.model.rows.keys().copied().collect();
        if self.dice.random_bool(0.7) {
            ids.retain(|id| !self.model.rows[id].status.is_final());
        }
        let id = self.one_of(&ids)?;
        let company = self.model.rows[&id].company;
        let stranger = self.dice.random_bool(0.1);
        let asker = if stranger { (company + 1) % self.model.companies.len() } else { company };
        self.touched.insert(id);
        Some((id, asker, stranger))
    }

    pub(super) async fn cancel(&mut self) -> Checked<()> {
        let Some((id, asker, stranger)) = self.an_email_asked_for() else { return Ok(()) };
        let company = self.model.companies[asker].id;
        let cancelled = self.store.cancel(company, id, self.now).await.map_err(failed)?;
        self.note(format!("company {asker} cancels {}: {cancelled:?}", self.numbers([id])));
        let row = self.model.row(id)?;
        let at_provider = row.lease.is_some_and(|lease| lease.at_provider);
        let expected = if stranger {
            Cancelled::NotFound
        } else if row.status.is_final() || at_provider {
            Cancelled::TooLate(row.status)
        } else if row.outcome_unknown {
            // A provider was called for it once and may have taken it: the port lets the store decide.
            let decided =
                if cancelled == Cancelled::Done { cancelled } else { Cancelled::TooLate(row.status) };
            self.note("the store's choice, its outcome is unknown".into());
            decided
        } else {
            Cancelled::Done
        };
        ensure(cancelled == expected, || format!("cancelled as {cancelled:?}, expected {expected:?}"))?;
        if cancelled == Cancelled::Done { self.model.row(id)?.cancel() } else { Ok(()) }
    }

    pub(super) async fn retry_now(&mut self) -> Checked<()> {
        let Some((id, asker, stranger)) = self.an_email_asked_for() else { return Ok(()) };
        let (company, now) = (self.model.companies[asker].id, self.now);
        let retried = self.store.retry_now(company, id, now).await.map_err(failed)?;
        self.note(format!("company {asker} retries {}: {retried:?}", self.numbers([id])));
        let row = self.model.row(id)?;
        let expected = match row.status {
            _ if stranger => RetriedNow::NotFound,
            status if status.is_waiting() => RetriedNow::Done,
            status => RetriedNow::NotWaiting(status),
        };
        if expected == RetriedNow::Done {
            row.retry_now(now)?;
        }
        ensure(retried == expected, || format!("retried as {retried:?}, expected {expected:?}"))
    }

    pub(super) async fn replay(&mut self) -> Checked<()> {
        let company = self.dice.random_range(0..self.model.companies.len());
        let filter = self.a_filter();
        let limit = self.dice.random_range(1..6);
        let matching: Vec<EmailId> = self
            .model
            .rows
            .iter()
            .filter(|(id, row)| row.company == company && row.is_dead_letter && matches(&filter, **id, row))
            .map(|(id, _)| *id)
            .collect();
        let (of_company, now) = (self.model.companies[company].id, self.now);
        let counted = self.store.replay(of_company, &filter, now, limit).await.map_err(failed)?;
        let numbers = self.numbers(matching.iter().copied());
        self.note(format!("company {company} replays up to {limit} of {numbers}: {counted:?}"));
        let expected = matching.len().min(limit as usize);
        let holds = counted.replayed == expected as u64 && counted.matched >= counted.replayed;
        ensure(holds, || format!("replayed {counted:?}, expected {expected}"))?;
        let mut moved = 0;
        for id in matching {
            let email = self.store.email(of_company, id).await.map_err(failed)?;
            if email.is_some_and(|email| email.status != Status::Failed) {
                self.model.row(id)?.replay(now)?;
                self.touched.insert(id);
                moved += 1;
            }
        }
        ensure(moved == expected, || format!("{moved} were moved, expected {expected}"))
    }

    /// All, some by their ids, or those of one code.
    fn a_filter(&mut self) -> DeadLetterFilter {
        let mut filter = DeadLetterFilter::default();
        match self.dice.random_range(0..3) {
            0 => {}
            1 => {
                let all: Vec<EmailId> = self.model.rows.keys().copied().collect();
                filter.ids = Some((0..6).filter_map(|_| self.one_of(&all)).collect());
            }
            _ => filter.code = Some("INVALID_EMAIL".into()),
        }
        filter
    }

    pub(super) async fn drop_dead_letter(&mut self) -> Checked<()> {
        let dead: Vec<EmailId> =
            self.model.rows.iter().filter(|(_, row)| row.is_dead_letter).map(|(id, _)| *id).collect();
        let all: Vec<EmailId> = self.model.rows.keys().copied().collect();
        let from = if self.dice.random_bool(0.7) { dead } else { all };
        let Some(id) = self.one_of(&from) else { return Ok(()) };
        let row = self.model.row(id)?;
        let expected = row.is_dead_letter;
        let company = row.company;
        if expected {
            row.drop_dead_letter();
        }
        let company = self.model.companies[company].id;
        let dropped = self.store.drop_dead_letter(company, id, self.now).await.map_err(failed)?;
        self.note(format!("{} is dropped: {dropped}", self.numbers([id])));
        self.touched.insert(id);
        ensure(dropped == expected, || format!("dropped {dropped}, expected {expected}"))
    }

    pub(super) async fn switch_company(&mut self) -> Checked<()> {
        let number = self.dice.random_range(0..self.model.companies.len());
        let company = &self.model.companies[number];
        let disabled_at = if company.disabled_at.is_some() { None } else { Some(self.now) };
        let company = Company { disabled_at, ..company.clone() };
        self.note(format!("company {number} is switched off: {}", disabled_at.is_some()));
        self.switch(number, company).await
    }

    pub(super) async fn switch_everybody_on(&mut self) -> Checked<()> {
        for number in 0..self.model.companies.len() {
            let company = Company { disabled_at: None, ..self.model.companies[number].clone() };
            self.switch(number, company).await?;
        }
        Ok(())
    }

    async fn switch(&mut self, number: usize, company: Company) -> Checked<()> {
        let updated = self.store.update_company(company.clone()).await.map_err(failed)?;
        self.model.companies[number] = company;
        ensure(updated, || "the company is gone".to_owned())
    }
}

fn matches(filter: &DeadLetterFilter, id: EmailId, row: &Row) -> bool {
    filter.ids.as_ref().is_none_or(|ids| ids.contains(&id))
        && (filter.code.is_none() || filter.code == row.code)
}
