//! The people that emails name, as acceptance makes them known: who is known by the identifiers at hand is read first,
//! what is new of them is written with the emails (`insert`), or by itself where requests are decided in order.

use std::collections::{BTreeMap, HashMap, HashSet};

use model::privacy::Secret;
use model::{NewEmail, Recipient, RecipientId, Timestamp};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row as _};
use uuid::Uuid;

use crate::error::Fault;
use crate::insert::Entry;
use crate::row::{at, clean};

/// The part of a statement that writes `People`: the numbers of its parameters, which rows are meant, and whether all of
/// them are new, which costs less. In the order of their identifiers, in which everybody writes them, so that two groups
/// that know the same new people do not wait for each other in a circle.
macro_rules! write_people {
    ($($number:literal)+, $condition:literal, all new) => { write_people!($($number)+, $condition, "") };
    ($($number:literal)+, $condition:literal, new and known) => {
        write_people!($($number)+, $condition, "
                 ON CONFLICT (id) DO UPDATE SET
                     external_id = coalesce(recipients.external_id, excluded.external_id),
                     document_hmac = coalesce(recipients.document_hmac, excluded.document_hmac),
                     document_sealed = coalesce(excluded.document_sealed, recipients.document_sealed),
                     email = excluded.email, name = coalesce(excluded.name, recipients.name),
                     legal_name = coalesce(excluded.legal_name, recipients.legal_name),
                     updated_at = excluded.updated_at, deleted_at = NULL")
    };
    ($id:literal $company:literal $external_id:literal $document:literal $sealed:literal $email:literal $name:literal
     $legal_name:literal $now:literal $email_id:literal, $condition:literal, $known:literal) => {
        concat!(
            "people AS (
                 INSERT INTO recipients (id, company_id, external_id, document_hmac, document_sealed, email, name,
                                         legal_name, created_at, updated_at)
                 SELECT id, company_id, external_id, document_hmac, document_sealed, email, name, legal_name, now, now
                 FROM UNNEST($", $id, "::uuid[], $", $company, "::uuid[], $", $external_id, "::text[], $", $document,
                     "::text[], $", $sealed, "::bytea[], $", $email, "::text[], $", $name, "::text[], $", $legal_name,
                     "::text[], $", $now, "::timestamptz[], $", $email_id, "::uuid[])
                     AS given (id, company_id, external_id, document_hmac, document_sealed, email, name, legal_name,
                               now, email_id)
                 WHERE ", $condition, "
                 ORDER BY company_id, external_id, document_hmac ", $known, "
                 RETURNING 1
             )"
        )
    };
}
pub(crate) use write_people;

const WRITE: &str = concat!("WITH ", write_people!(1 2 3 4 5 6 7 8 9 10, "true", new and known), " SELECT 1");

/// A recipient named by external id or document is created or brought up to date. One named by its own id is left as it
/// is: whether it exists and fits is the pipeline's question.
fn named(email: &NewEmail) -> Option<&Recipient> {
    let recipient = email.recipient.as_ref()?;
    let is_named = recipient.external_id.is_some() || recipient.document_hmac.is_some();
    (recipient.id.is_none() && is_named).then_some(recipient)
}

/// Two of these emails name the same person: what the first says has to be known before the second is looked at.
pub fn meet<'a>(emails: impl Iterator<Item = &'a NewEmail>) -> bool {
    let mut seen = HashSet::new();
    emails.filter_map(|email| Some((email.company, named(email)?))).any(|(company, person)| {
        let external_id = person.external_id.as_deref().map(|id| (company, "external id", id));
        let document = person.document_hmac.as_deref().map(|hmac| (company, "document", hmac));
        external_id.into_iter().chain(document).any(|identifier| !seen.insert(identifier))
    })
}

/// Who is known by the identifiers at hand, and what is to be written of them.
#[derive(Default)]
pub struct People {
    known: HashMap<Uuid, Known>,
    by_external_id: HashMap<(Uuid, String), Uuid>,
    by_document: HashMap<(Uuid, String), Uuid>,
    changed: BTreeMap<Uuid, Change>,
}

/// As the row stands, with what was learned since.
struct Known {
    external_id: Option<String>,
    document_hmac: Option<String>,
    email: String,
    name: Option<String>,
    legal_name: Option<String>,
    is_deleted: bool,
}

/// What was said of a person; what is `None` stays as it is.
struct Change {
    /// The email that said so.
    email_id: Uuid,
    is_new: bool,
    company: Uuid,
    external_id: Option<String>,
    document_hmac: Option<String>,
    document_sealed: Option<Vec<u8>>,
    email: String,
    name: Option<String>,
    legal_name: Option<String>,
    now: Timestamp,
}

impl People {
    /// Whom these emails mean, one after the other; noted in each entry.
    pub async fn of(connection: &mut PgConnection, entries: &mut [Entry<'_>]) -> Result<Self, Fault> {
        if !entries.iter().any(|entry| named(entry.email).is_some()) {
            return Ok(Self::default());
        }
        let mut people = Self::read(connection, entries).await?;
        for entry in entries.iter_mut() {
            if let Some(recipient) = named(entry.email) {
                entry.recipient = Some(people.know(entry.email, recipient));
            }
        }
        Ok(people)
    }

    /// Nothing is to be written.
    pub fn are_as_known(&self) -> bool {
        self.changed.is_empty()
    }

    /// Nobody who is to be written was known before.
    pub fn are_all_new(&self) -> bool {
        self.changed.values().all(|change| change.is_new)
    }

    async fn read(connection: &mut PgConnection, entries: &[Entry<'_>]) -> Result<Self, Fault> {
        let recipients: Vec<(Uuid, &Recipient)> = entries
            .iter()
            .filter_map(|entry| Some((entry.email.company.uuid(), named(entry.email)?)))
            .collect();
        let rows = sqlx::query(
            "SELECT r.id, r.company_id, r.external_id, r.document_hmac, r.email, r.name, r.legal_name,
                    r.deleted_at IS NOT NULL AS is_deleted
             FROM UNNEST($1::uuid[], $2::text[], $3::text[]) AS named (company_id, external_id, document_hmac)
                  CROSS JOIN LATERAL (
                      SELECT * FROM recipients r
                      WHERE r.company_id = named.company_id AND r.external_id = named.external_id
                      UNION ALL
                      SELECT * FROM recipients r
                      WHERE r.company_id = named.company_id AND r.document_hmac = named.document_hmac
                  ) AS r",
        )
        .bind(recipients.iter().map(|(company, _)| *company).collect::<Vec<_>>())
        .bind(
            recipients.iter().map(|(_, person)| person.external_id.as_deref().map(clean)).collect::<Vec<_>>(),
        )
        .bind(recipients.iter().map(|(_, person)| person.document_hmac.as_deref()).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
        let mut people = Self::default();
        for row in &rows {
            let known = Known {
                external_id: row.try_get("external_id")?,
                document_hmac: row.try_get("document_hmac")?,
                email: row.try_get("email")?,
                name: row.try_get("name")?,
                legal_name: row.try_get("legal_name")?,
                is_deleted: row.try_get("is_deleted")?,
            };
            people.remember(row.try_get("company_id")?, row.try_get("id")?, known);
        }
        Ok(people)
    }

    fn remember(&mut self, company: Uuid, id: Uuid, known: Known) {
        if let Some(external_id) = &known.external_id {
            self.by_external_id.insert((company, external_id.clone()), id);
        }
        if let Some(document) = &known.document_hmac {
            self.by_document.insert((company, document.clone()), id);
        }
        self.known.insert(id, known);
    }

    /// Who an email means, new or known, with what it says of them.
    fn know(&mut self, email: &NewEmail, recipient: &Recipient) -> RecipientId {
        let company = email.company.uuid();
        let text = |text: &Option<String>| text.as_deref().map(|text| clean(text).into_owned());
        let secret =
            |text: &Option<Secret<String>>| text.as_ref().map(|text| clean(text.expose()).into_owned());
        let external_id = text(&recipient.external_id);
        let find = |ids: &HashMap<(Uuid, String), Uuid>, name: &Option<String>| {
            ids.get(&(company, name.clone()?)).copied()
        };
        let by_external_id = find(&self.by_external_id, &external_id);
        let by_document = find(&self.by_document, &recipient.document_hmac);
        // Two people under one email's identifiers: the company's own name for the person decides, and neither gets
        // the other's document.
        let document_hmac = match (by_external_id, by_document) {
            (Some(one), Some(other)) if one != other => None,
            _ => text(&recipient.document_hmac),
        };
        let known = by_external_id.or(by_document);
        let id = known.unwrap_or_else(|| RecipientId::new(email.created_at).uuid());
        let sealed = recipient.document_sealed.as_ref().filter(|_| document_hmac.is_some());
        let change = Change {
            email_id: email.id.uuid(),
            is_new: known.is_none(),
            company,
            external_id,
            document_hmac,
            document_sealed: sealed.map(|sealed| sealed.expose().clone()),
            email: clean(email.envelope.to.expose()).into_owned(),
            name: secret(&recipient.name),
            legal_name: secret(&recipient.legal_name),
            now: email.created_at,
        };
        self.apply(id, change);
        RecipientId::from_uuid(id)
    }

    /// Most emails say nothing new of a person: then nothing is written.
    fn apply(&mut self, id: Uuid, change: Change) {
        if self.known.get(&id).is_some_and(|known| !known.would_change(&change)) {
            return;
        }
        let known = match self.known.remove(&id) {
            Some(known) => known.after(&change),
            None => Known::of(&change),
        };
        self.remember(change.company, id, known);
        let change = match self.changed.remove(&id) {
            Some(earlier) => earlier.then(change),
            None => change,
        };
        self.changed.insert(id, change);
    }

    /// By itself, inside a transaction that stores the emails afterwards.
    pub async fn write(&self, connection: &mut PgConnection) -> Result<(), Fault> {
        if !self.are_as_known() {
            self.bind(sqlx::query(WRITE)).execute(connection).await?;
        }
        Ok(())
    }

    pub fn bind<'q>(&'q self, query: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments> {
        let each = || self.changed.values();
        query
            .bind(self.changed.keys().copied().collect::<Vec<_>>())
            .bind(each().map(|change| change.company).collect::<Vec<_>>())
            .bind(each().map(|change| change.external_id.as_deref()).collect::<Vec<_>>())
            .bind(each().map(|change| change.document_hmac.as_deref()).collect::<Vec<_>>())
            .bind(each().map(|change| change.document_sealed.as_deref()).collect::<Vec<_>>())
            .bind(each().map(|change| change.email.as_str()).collect::<Vec<_>>())
            .bind(each().map(|change| change.name.as_deref()).collect::<Vec<_>>())
            .bind(each().map(|change| change.legal_name.as_deref()).collect::<Vec<_>>())
            .bind(each().map(|change| at(change.now)).collect::<Vec<_>>())
            .bind(each().map(|change| change.email_id).collect::<Vec<_>>())
    }
}

impl Known {
    fn of(change: &Change) -> Self {
        Self {
            external_id: change.external_id.clone(),
            document_hmac: change.document_hmac.clone(),
            email: change.email.clone(),
            name: change.name.clone(),
            legal_name: change.legal_name.clone(),
            is_deleted: false,
        }
    }

    fn after(self, change: &Change) -> Self {
        Self {
            external_id: self.external_id.or(change.external_id.clone()),
            document_hmac: self.document_hmac.or(change.document_hmac.clone()),
            email: change.email.clone(),
            name: change.name.clone().or(self.name),
            legal_name: change.legal_name.clone().or(self.legal_name),
            is_deleted: false,
        }
    }

    /// A document that came sealed is always written: sealed twice it looks different, and the key may be another.
    fn would_change(&self, change: &Change) -> bool {
        self.is_deleted
            || self.email != change.email
            || change.document_sealed.is_some()
            || (self.external_id.is_none() && change.external_id.is_some())
            || (self.document_hmac.is_none() && change.document_hmac.is_some())
            || (change.name.is_some() && self.name != change.name)
            || (change.legal_name.is_some() && self.legal_name != change.legal_name)
    }
}

impl Change {
    fn then(self, later: Self) -> Self {
        Self {
            email_id: later.email_id,
            is_new: self.is_new,
            company: self.company,
            external_id: self.external_id.or(later.external_id),
            document_hmac: self.document_hmac.or(later.document_hmac),
            document_sealed: later.document_sealed.or(self.document_sealed),
            email: later.email,
            name: later.name.or(self.name),
            legal_name: later.legal_name.or(self.legal_name),
            now: later.now,
        }
    }
}
