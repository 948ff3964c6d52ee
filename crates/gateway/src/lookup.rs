//! Reads for the API: full pages out of a store that looks at a bounded number of rows per call, and the
//! message as a provider would get it.

use std::time::{Duration, Instant};

use model::email::Outgoing;
use model::{Address, Company, CompanyId, Content, Email, EmailId, Mailbox};
use store::{Cursor, DeadLetterFilter, EmailFilter, Page, StoreError};

use crate::Gateway;
use crate::route::CAPTURE_SENDER;

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

/// The email as it would go out, for the .eml that people download.
pub fn outgoing(company: &Company, email: Email, content: Content) -> Outgoing {
    let from = email
        .envelope
        .from
        .clone()
        .or_else(|| company.settings.from.clone())
        .unwrap_or_else(|| Mailbox::plain(Address::trusted(CAPTURE_SENDER.to_owned())));
    Outgoing {
        id: email.id,
        company: email.company,
        attempt: email.attempts.max(1),
        series: 0,
        created_at: email.created_at,
        from,
        envelope: email.envelope,
        content,
    }
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
