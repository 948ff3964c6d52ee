//! The people that emails name, as acceptance makes them known. Who is known by the identifiers at hand, and what is new of
//! them, is decided by the statement that stores the emails (`insert`), so that naming somebody costs no round trip of its
//! own. That statement looks at the table as it was: emails that speak of the same person are brought together here, or
//! stored one after the other.

use std::borrow::Cow;
use std::collections::HashMap;

use model::{NewEmail, Recipient, RecipientId, Secret};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};
use uuid::Uuid;

use crate::error::Fault;
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

/// Columns of `email` that `known_people` yields. Most emails say nothing new of a person: then `says_more` is not true and
/// nothing is written. A document that came sealed is always written: sealed twice it looks different, and the key may be
/// another.
macro_rules! known_columns {
    () => {
        "coalesce(given.recipient_id, by_name.id, holder.id, given.person_id) AS recipient_id,
         CASE WHEN by_name.id <> holder.id OR by_name.document_hmac <> given.document_hmac THEN NULL
              ELSE given.document_hmac END AS document_hmac,
         given.document_sealed, given.name, given.legal_name, given.speaks,
         by_name.id IS NULL AND holder.id IS NULL AS is_new,
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

/// Writes what `email` says of people: of whom something new is said, all that is said. So two who mean the same person by
/// different identifiers are found out, also where the second takes back what the first says: the server writes no row
/// twice (`Fault::is_person_named_twice`). In the order of their identifiers, so that two statements that name the same
/// people do not wait for each other in a circle.
///
/// Somebody new is inserted without `ON CONFLICT`, which would cost a lock and a line of the log more. If two make the same
/// person known at once, one of them does it all again (`Fault::is_collision`).
macro_rules! write_people {
    () => {
        "said AS (
             SELECT recipient_id AS id, company_id, recipient_external_id AS external_id, document_hmac,
                    CASE WHEN document_hmac IS NOT NULL THEN document_sealed END AS document_sealed,
                    to_email AS email, name, legal_name, created_at, created_at AS updated_at, is_new
             FROM email
             WHERE speaks AND (is_new OR (recipient_id IN (SELECT recipient_id FROM email WHERE says_more)) IS TRUE)
             ORDER BY company_id, recipient_external_id, document_hmac
         ), newcomers AS (
             INSERT INTO recipients (id, company_id, external_id, document_hmac, document_sealed, email, name, legal_name,
                                     created_at, updated_at)
             SELECT id, company_id, external_id, document_hmac, document_sealed, email, name, legal_name, created_at,
                    updated_at
             FROM said WHERE is_new
             RETURNING 1
         ), people AS (
             INSERT INTO recipients (id, company_id, external_id, document_hmac, document_sealed, email, name, legal_name,
                                     created_at, updated_at)
             SELECT id, company_id, external_id, document_hmac, document_sealed, email, name, legal_name, created_at,
                    updated_at
             FROM said WHERE NOT is_new AND (SELECT count(*) FROM newcomers) >= 0
             ON CONFLICT (id) DO UPDATE SET
                 external_id = coalesce(recipients.external_id, excluded.external_id),
                 document_hmac = coalesce(recipients.document_hmac, excluded.document_hmac),
                 document_sealed = CASE
                     WHEN recipients.document_hmac IS NULL OR recipients.document_hmac = excluded.document_hmac
                     THEN coalesce(excluded.document_sealed, recipients.document_sealed)
                     ELSE recipients.document_sealed END,
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
    /// Several of them name the same person, by the very same identifiers.
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

/// Who is known by which identifier, as far as that was read or follows from emails before.
pub type Known = HashMap<Identifier, Uuid>;

/// Reads who is known by the identifiers of these emails.
pub async fn read_known(connection: &mut PgConnection, entries: &[Entry<'_>]) -> Result<Known, Fault> {
    let named = || entries.iter().filter_map(|entry| Some((entry.email.company.uuid(), named(entry.email)?)));
    let rows = sqlx::query(
        "SELECT r.id, r.company_id, r.external_id, r.document_hmac
         FROM UNNEST($1::uuid[], $2::text[], $3::text[]) AS named (company_id, external_id, document_hmac)
              CROSS JOIN LATERAL (
                  SELECT * FROM recipients r
                  WHERE r.company_id = named.company_id AND r.external_id = named.external_id
                  UNION ALL
                  SELECT * FROM recipients r
                  WHERE r.company_id = named.company_id AND r.document_hmac = named.document_hmac
              ) AS r",
    )
    .bind(named().map(|(company, _)| company).collect::<Vec<_>>())
    .bind(named().map(|(_, person)| person.external_id.as_deref().map(clean)).collect::<Vec<_>>())
    .bind(named().map(|(_, person)| person.document_hmac.as_deref()).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    let mut known = Known::new();
    for row in &rows {
        let (id, company): (Uuid, Uuid) = (row.try_get("id")?, row.try_get("company_id")?);
        let external_id: Option<String> = row.try_get("external_id")?;
        let document_hmac: Option<String> = row.try_get("document_hmac")?;
        known.extend(external_id.map(|name| (Identifier::ExternalId(company, name), id)));
        known.extend(document_hmac.map(|hmac| (Identifier::Document(company, hmac), id)));
    }
    Ok(known)
}

/// Cuts emails, in their order, into as few statements as they need: of those who share an identifier and not all of them,
/// the second can mean somebody who is known only after the first. That two without a common identifier mean the same
/// person is found when they are stored, if it is not `known`, where what these emails make known is noted.
pub fn runs<'s, 'a>(entries: &'s [Entry<'a>], known: &mut Known) -> Vec<Run<'s, 'a>> {
    let mut runs = Vec::new();
    let (mut from, mut run) = (0, Named::default());
    for (number, entry) in entries.iter().enumerate() {
        let identifiers = identifiers(entry.email, known);
        if !run.takes(entry, &identifiers) {
            runs.push((&entries[from..number], std::mem::take(&mut run).people));
            from = number;
        }
        run.add(entry, identifiers);
    }
    if from < entries.len() {
        runs.push((&entries[from..], run.people));
    }
    runs
}

#[derive(PartialEq, Eq, Hash, Clone)]
pub enum Identifier {
    ExternalId(Uuid, String),
    Document(Uuid, String),
    /// Of somebody known.
    Id(Uuid),
}

#[derive(Default)]
struct Named<'a> {
    people: People<'a>,
    /// The last email that names each.
    last: HashMap<Identifier, usize>,
}

impl<'a> Named<'a> {
    /// Somebody of just these identifiers was named before, or nobody of any of them.
    fn takes(&self, entry: &Entry<'a>, identifiers: &[Identifier]) -> bool {
        let mut before = identifiers.iter().filter_map(|identifier| self.last.get(identifier));
        before.all(|&before| match (&self.people.mentions[before], named(entry.email)) {
            (Some(mention), Some(recipient)) => {
                mention.recipient.external_id == recipient.external_id
                    && mention.recipient.document_hmac == recipient.document_hmac
            }
            _ => false,
        })
    }

    fn add(&mut self, entry: &Entry<'a>, identifiers: Vec<Identifier>) {
        let number = self.people.mentions.len();
        let mut mention = named(entry.email).map(|recipient| Mention::of(entry.email, recipient));
        for identifier in identifiers {
            let before = self.last.insert(identifier, number);
            let before = before.and_then(|before| self.people.mentions[before].as_mut());
            if let (Some(mention), Some(before)) = (&mut mention, before) {
                self.people.meet = true;
                mention.speak_for(before);
            }
        }
        self.people.mentions.push(mention);
    }
}

/// All by which an email names somebody, with the id of whoever is known by it. From here on somebody is known by each of
/// them, if nobody was: an email that names both makes one person of them.
fn identifiers(email: &NewEmail, known: &mut Known) -> Vec<Identifier> {
    let Some(recipient) = named(email) else { return Vec::new() };
    let company = email.company.uuid();
    // As the database has it.
    let text = |text: &String| clean(text).into_owned();
    let external_id = recipient.external_id.as_ref().map(|id| Identifier::ExternalId(company, text(id)));
    let document = recipient.document_hmac.as_ref().map(|hmac| Identifier::Document(company, text(hmac)));
    let mut identifiers: Vec<Identifier> = external_id.into_iter().chain(document).collect();
    if identifiers.len() > 1 || !known.is_empty() {
        let found = identifiers.iter().find_map(|identifier| known.get(identifier)).copied();
        let somebody = found.unwrap_or_else(|| RecipientId::new(email.created_at).uuid());
        let ids = identifiers.iter().map(|identifier| *known.entry(identifier.clone()).or_insert(somebody));
        let mut ids: Vec<Identifier> = ids.map(Identifier::Id).collect();
        ids.dedup();
        identifiers.extend(ids);
    }
    identifiers
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
