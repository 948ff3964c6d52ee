//! Reads for the API: full pages out of a store that looks at a bounded number of rows per call, and the
//! message as a provider would get it.

use std::time::{Duration, Instant};

use model::email::Outgoing;
use model::{Address, Company, CompanyId, Content, Email, EmailId, EventKind, Mailbox};
use store::{Cursor, DeadLetterFilter, EmailFilter, Page, StoreError};

use crate::Gateway;
use crate::route::CAPTURE_SENDER;
use crate::suppressions::LeftOut;

/// How long a rare match is searched for before a short page is given out; the cursor goes on from there. With the last
/// look, which goes on for some fifty milliseconds, a page is there before a person has begun to wait.
const PATIENCE: Duration = Duration::from_millis(100);

/// Newest first. A page is short only at the end of the list or after a long search.
pub async fn emails(
    gateway: &Gateway,
    company: CompanyId,
    filter: &EmailFilter,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page<Email>, StoreError> {
    let mut gathered = Gathering::new(after, limit);
    while let Some((after, missing)) = gathered.wants() {
        let page = gateway.store.emails(company, filter, after.as_ref(), missing).await?;
        gathered.add(page);
    }
    Ok(gathered.page)
}

/// Dead letters, newest first; pages as those of [`emails`].
pub async fn dead_letters(
    gateway: &Gateway,
    company: CompanyId,
    filter: &DeadLetterFilter,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page<Email>, StoreError> {
    let mut gathered = Gathering::new(after, limit);
    while let Some((after, missing)) = gathered.wants() {
        let page = gateway.store.dead_letters(company, filter, after.as_ref(), missing).await?;
        gathered.add(page);
    }
    Ok(gathered.page)
}

/// The email and what it says; the content is `None` once it was pruned.
pub async fn content(
    gateway: &Gateway,
    company: CompanyId,
    id: EmailId,
) -> Result<Option<(Email, Option<Content>)>, StoreError> {
    let Some(email) = gateway.store.email(company, id).await? else {
        return Ok(None);
    };
    let content = gateway.store.content(company, id).await?;
    Ok(Some((email, content)))
}

/// The email as it went out, or would go out now, for the .eml that people download. One that names no sender is of an
/// earlier version, or of a company that had none then.
pub async fn outgoing(
    gateway: &Gateway,
    company: &Company,
    mut email: Email,
    content: Content,
) -> Result<Outgoing, StoreError> {
    leave_out_copies(gateway, &mut email).await?;
    let from = email
        .envelope
        .from
        .clone()
        .or_else(|| company.settings.from.clone())
        .unwrap_or_else(|| Mailbox::plain(Address::trusted(CAPTURE_SENDER.to_owned())));
    Ok(Outgoing {
        id: email.id,
        company: email.company,
        attempt: email.attempts.max(1),
        series: 0,
        is_last_attempt: false,
        created_at: email.created_at,
        from,
        envelope: email.envelope,
        content,
    })
}

/// Takes out the copies that were left out when the email was sent; before that, and where it is not known any more, those
/// that would be left out now.
async fn leave_out_copies(gateway: &Gateway, email: &mut Email) -> Result<(), StoreError> {
    if email.envelope.cc.is_empty() && email.envelope.bcc.is_empty() {
        return Ok(());
    }
    let left_out = match told_left_out(gateway, email).await? {
        Some(left_out) => left_out,
        None => {
            let copies: Vec<Address> = email.envelope.cc.iter().chain(&email.envelope.bcc).cloned().collect();
            let suppressed = gateway.suppressions.among(&*gateway.store, email.company, &copies).await?;
            LeftOut::of(&email.envelope, &suppressed)
        }
    };
    left_out.take_from(&mut email.envelope);
    Ok(())
}

/// What the history tells of them. One that was sent, reported as failed and replayed waits again.
async fn told_left_out(gateway: &Gateway, email: &Email) -> Result<Option<LeftOut>, StoreError> {
    if email.sent_at.is_none() || !email.status.is_final() {
        return Ok(None);
    }
    let events = gateway.store.events(email.company, email.id).await?.unwrap_or_default();
    let validated = events.iter().rev().find(|event| event.kind == EventKind::Validated);
    Ok(validated.and_then(|event| LeftOut::told_by(event, &email.envelope)))
}

/// A page in the making.
struct Gathering {
    page: Page<Email>,
    limit: usize,
    begun: bool,
    started: Instant,
}

impl Gathering {
    fn new(after: Option<Cursor>, limit: u32) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { page: Page { items: Vec::new(), next: after }, limit, begun: false, started: Instant::now() }
    }

    /// Where to go on and how many are missing; `None` when the page is done.
    fn wants(&self) -> Option<(Option<Cursor>, u32)> {
        let missing = self.limit.saturating_sub(self.page.items.len());
        let at_end = self.begun && self.page.next.is_none();
        let out_of_time = self.begun && self.started.elapsed() >= PATIENCE;
        if missing == 0 || at_end || out_of_time {
            return None;
        }
        Some((self.page.next.clone(), u32::try_from(missing).unwrap_or(u32::MAX)))
    }

    fn add(&mut self, page: Page<Email>) {
        self.begun = true;
        self.page.items.extend(page.items);
        self.page.next = page.next;
    }
}
