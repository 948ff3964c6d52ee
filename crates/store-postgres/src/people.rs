//! The people that emails name, as acceptance makes them known. Who is known by the identifiers at hand, and what is new of
//! them, is decided by the statement that stores the emails (`insert`), so that naming somebody costs no round trip of its
//! own. That statement looks at the table as it was: emails that speak of the same person are brought together here, or
//! stored one after the other.

use std::borrow::Cow;
use std::collections::HashMap;

use model::{NewEmail, Recipient, RecipientId, Secret};
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use uuid::Uuid;

use crate::insert::Entry;
use crate::row::clean;

/// What decides who is meant and what is new of them: the rest of the `SELECT` that makes the table `email`.
///
/// The company's own name for a person decides; a document (CPF, CNPJ) that somebody else holds is left to them. Each is
/// looked up by itself (`OFFSET 0`): as joins they might be planned as a walk through all people.
macro_rules! known_people {
    () => {
        "LEFT JOIN LATERAL (
             SELECT id, email, name, legal_name, document_hmac, deleted_at FROM recipients
             WHERE given.person_id IS NOT NULL AND recipients.company_id = given.company_id
               AND recipients.external_id = given.recipient_external_id
             OFFSET 0
         ) AS by_name ON true
         LEFT JOIN LATERAL (
             SELECT id, external_id, email, name, legal_name, deleted_at FROM recipients
             WHERE given.person_id IS NOT NULL AND recipients.company_id = given.company_id
               AND recipients.document_hmac = given.document_hmac
             OFFSET 0
         ) AS holder ON true"
    };
}
pub(crate) use known_people;

/// Columns of `email` that `known_people` yields. Most emails say nothing new of a person; then `says_more` is false and
/// nothing is written. A document that came sealed is always written: sealed twice it looks different, and the key may be
/// another.
macro_rules! known_columns {
    () => {
        "coalesce(given.recipient_id, by_name.id, holder.id, given.person_id) AS recipient_id,
         CASE WHEN by_name.id <> holder.id OR by_name.document_hmac <> given.document_hmac THEN NULL
              ELSE given.document_hmac END AS document_hmac,
         given.document_sealed, given.name, given.legal_name,
         given.speaks AND CASE
             WHEN by_name.id IS NOT NULL THEN
                 by_name.deleted_at IS NOT NULL OR by_name.email <> given.to_email
                 OR coalesce(given.name <> by_name.name, given.name IS NOT NULL)
                 OR coalesce(given.legal_name <> by_name.legal_name, given.legal_name IS NOT NULL)
                 OR (given.document_hmac IS NOT NULL AND by_name.document_hmac IS NULL AND holder.id IS NULL)
                 OR (given.document_sealed IS NOT NULL AND by_name.document_hmac = given.document_hmac)
             WHEN holder.id IS NOT NULL THEN
                 holder.deleted_at IS NOT NULL OR holder.email <> given.to_email
                 OR coalesce(given.name <> holder.name, given.name IS NOT NULL)
                 OR coalesce(given.legal_name <> holder.legal_name, given.legal_name IS NOT NULL)
                 OR (given.recipient_external_id IS NOT NULL AND holder.external_id IS NULL)
                 OR given.document_sealed IS NOT NULL
             ELSE true
         END AS says_more"
    };
}
pub(crate) use known_columns;

/// Writes what `email` says of people. In the order of their identifiers, in which everybody writes them, so that two
/// groups that name the same people do not wait for each other in a circle.
macro_rules! write_people {
    () => {
        "people AS (
             INSERT INTO recipients (id, company_id, external_id, document_hmac, document_sealed, email, name, legal_name,
                                     created_at, updated_at)
             SELECT recipient_id, company_id, recipient_external_id, document_hmac,
                    CASE WHEN document_hmac IS NOT NULL THEN document_sealed END, to_email, name, legal_name, created_at,
                    created_at
             FROM email WHERE says_more
             ORDER BY company_id, recipient_external_id, document_hmac
             ON CONFLICT (id) DO UPDATE SET
                 external_id = coalesce(recipients.external_id, excluded.external_id),
                 document_hmac = coalesce(recipients.document_hmac, excluded.document_hmac),
                 document_sealed = coalesce(excluded.document_sealed, recipients.document_sealed),
                 email = excluded.email, name = coalesce(excluded.name, recipients.name),
                 legal_name = coalesce(excluded.legal_name, recipients.legal_name),
                 updated_at = excluded.updated_at, deleted_at = NULL
             RETURNING 1
         )"
    };
}
pub(crate) use write_people;

/// A recipient named by external id or document is created or brought up to date. One named by its own id is left as it
/// is: whether it exists and fits is the pipeline's question.
fn named(email: &NewEmail) -> Option<&Recipient> {
    let recipient = email.recipient.as_ref()?;
    let is_named = recipient.external_id.is_some() || recipient.document_hmac.is_some();
    (recipient.id.is_none() && is_named).then_some(recipient)
}

/// Whom each of the emails of one statement names.
#[derive(Default)]
pub struct People<'a> {
    mentions: Vec<Option<Mention<'a>>>,
    /// Several of them name the same person.
    pub meet: bool,
}

/// What an email says of a person; what is `None` stays as it is.
struct Mention<'a> {
    recipient: &'a Recipient,
    /// The person's id, unless the person is known.
    id: Uuid,
    document_sealed: Option<&'a [u8]>,
    name: Option<Cow<'a, str>>,
    legal_name: Option<Cow<'a, str>>,
    /// The last to name a person speaks for all of them.
    speaks: bool,
}

/// Emails that one statement can store, and whom they name.
pub type Run<'s, 'a> = (&'s [Entry<'a>], People<'a>);

/// Cuts emails, in their order, into as few statements as they need: of those who share an identifier and not all of them,
/// the second can mean somebody who is known only after the first. That two without a common identifier mean the same
/// person is only found when they are stored.
pub fn runs<'s, 'a>(entries: &'s [Entry<'a>]) -> Vec<Run<'s, 'a>> {
    let mut runs = Vec::new();
    let (mut from, mut run) = (0, Named::default());
    for (number, entry) in entries.iter().enumerate() {
        if !run.takes(entry) {
            runs.push((&entries[from..number], std::mem::take(&mut run).people));
            from = number;
        }
        run.add(entry);
    }
    if from < entries.len() {
        runs.push((&entries[from..], run.people));
    }
    runs
}

#[derive(PartialEq, Eq, Hash, Clone, Copy)]
enum Identifier<'a> {
    ExternalId(Uuid, &'a str),
    Document(Uuid, &'a str),
}

#[derive(Default)]
struct Named<'a> {
    people: People<'a>,
    /// The last email that names each.
    last: HashMap<Identifier<'a>, usize>,
}

impl<'a> Named<'a> {
    /// Somebody of just these identifiers was named before, or nobody of any of them.
    fn takes(&self, entry: &Entry<'a>) -> bool {
        let Some(recipient) = named(entry.email) else { return true };
        let mut last = identifiers(entry.email, recipient).map(|identifier| self.last.get(&identifier));
        match last.next() {
            Some(Some(&before)) => self.people.mentions[before].as_ref().is_some_and(|mention| {
                mention.recipient.external_id == recipient.external_id
                    && mention.recipient.document_hmac == recipient.document_hmac
            }),
            _ => last.all(|last| last.is_none()),
        }
    }

    fn add(&mut self, entry: &Entry<'a>) {
        let number = self.people.mentions.len();
        let Some(recipient) = named(entry.email) else { return self.people.mentions.push(None) };
        let mut mention = Mention::of(entry.email, recipient);
        for identifier in identifiers(entry.email, recipient) {
            let before = self.last.insert(identifier, number);
            if let Some(before) = before.and_then(|before| self.people.mentions[before].as_mut()) {
                self.people.meet = true;
                mention.speak_for(before);
            }
        }
        self.people.mentions.push(Some(mention));
    }
}

fn identifiers<'a>(
    email: &NewEmail,
    recipient: &'a Recipient,
) -> impl Iterator<Item = Identifier<'a>> + use<'a> {
    let company = email.company.uuid();
    let external_id = recipient.external_id.as_deref().map(|id| Identifier::ExternalId(company, id));
    let document = recipient.document_hmac.as_deref().map(|hmac| Identifier::Document(company, hmac));
    external_id.into_iter().chain(document)
}

impl<'a> Mention<'a> {
    fn of(email: &NewEmail, recipient: &'a Recipient) -> Self {
        fn text(text: &Option<Secret<String>>) -> Option<Cow<'_, str>> {
            text.as_ref().map(|text| clean(text.expose()))
        }
        Self {
            recipient,
            id: RecipientId::new(email.created_at).uuid(),
            document_sealed: recipient.document_sealed.as_ref().map(|sealed| &sealed.expose()[..]),
            name: text(&recipient.name),
            legal_name: text(&recipient.legal_name),
            speaks: true,
        }
    }

    fn speak_for(&mut self, before: &mut Self) {
        before.speaks = false;
        self.id = before.id;
        self.document_sealed = self.document_sealed.or(before.document_sealed);
        self.name = self.name.take().or_else(|| before.name.take());
        self.legal_name = self.legal_name.take().or_else(|| before.legal_name.take());
    }
}

impl<'a> People<'a> {
    pub fn are_named(&self) -> bool {
        self.mentions.iter().any(Option::is_some)
    }

    pub fn bind<'q>(&self, query: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments>
    where
        'a: 'q,
    {
        let each = || self.mentions.iter().map(Option::as_ref);
        query
            .bind(each().map(|mention| mention.map(|mention| mention.id)).collect::<Vec<_>>())
            .bind(each().map(|mention| mention?.recipient.document_hmac.as_deref()).collect::<Vec<_>>())
            .bind(each().map(|mention| mention?.document_sealed).collect::<Vec<_>>())
            .bind(each().map(|mention| mention?.name.clone()).collect::<Vec<_>>())
            .bind(each().map(|mention| mention?.legal_name.clone()).collect::<Vec<_>>())
            .bind(each().map(|mention| mention.is_some_and(|mention| mention.speaks)).collect::<Vec<_>>())
    }
}
