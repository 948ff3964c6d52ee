//! The recipients that a group's emails name: read together, found or made one after the other in memory, as if the
//! emails had come one by one, and written back together.

use std::collections::HashMap;

use model::privacy::Secret;
use model::{CompanyId, NewEmail, Recipient, RecipientId, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::StoreError;

use crate::error::Fault;
use crate::row::{at, filled_up, get, moment, parsed, portions};

/// How many names are looked for with one statement.
const NAMES_MAX: usize = 256;

#[derive(Default)]
pub struct People {
    everybody: Vec<Person>,
    by_external_id: HashMap<(CompanyId, String), usize>,
    by_document: HashMap<(CompanyId, String), usize>,
}

struct Person {
    id: RecipientId,
    company: CompanyId,
    external_id: Option<String>,
    document_hmac: Option<String>,
    document_sealed: Option<Vec<u8>>,
    email: String,
    name: Option<String>,
    legal_name: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
    was_there: bool,
    is_changed: bool,
}

/// One by whom acceptance finds or makes a recipient. A recipient named by its own id is left as it is: whether it
/// exists and fits is the pipeline's question.
fn named_otherwise(email: &NewEmail) -> Option<&Recipient> {
    let is_named = |recipient: &&Recipient| {
        recipient.id.is_none() && (recipient.external_id.is_some() || recipient.document_hmac.is_some())
    };
    email.recipient.as_ref().filter(is_named)
}

impl People {
    /// Reads and locks those who are known. Somebody new is locked by nobody: if another group makes them first, `write`
    /// says so and this one is done again.
    pub async fn read(connection: &mut MySqlConnection, emails: &[&NewEmail]) -> Result<Self, Fault> {
        let mut people = Self::default();
        let named = |of: fn(&Recipient) -> Option<&String>| {
            let mut names: Vec<(CompanyId, &String)> = emails
                .iter()
                .filter_map(|email| Some((email.company, of(named_otherwise(email)?)?)))
                .collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        let external_ids = named(|recipient| recipient.external_id.as_ref());
        people.read_by(connection, ("external_id", "recipients_by_external_id"), &external_ids).await?;
        let documents = named(|recipient| recipient.document_hmac.as_ref());
        people.read_by(connection, ("document_hmac", "recipients_by_document"), &documents).await?;
        Ok(people)
    }

    async fn read_by(
        &mut self,
        connection: &mut MySqlConnection,
        (column, index): (&str, &str),
        names: &[(CompanyId, &String)],
    ) -> Result<(), Fault> {
        for names in names.chunks(NAMES_MAX) {
            let mut sql =
                QueryBuilder::<MySql>::new(format!("SELECT * FROM recipients FORCE INDEX ({index}) WHERE "));
            for (number, (company, name)) in filled_up(names.to_vec()).into_iter().enumerate() {
                sql.push(if number == 0 { "(company_id = " } else { " OR (company_id = " });
                sql.push_bind(company.to_string())
                    .push(format_args!(" AND {column} = "))
                    .push_bind(name)
                    .push(")");
            }
            sql.push(" FOR UPDATE");
            for row in sql.build().fetch_all(&mut *connection).await? {
                self.add(person(&row)?);
            }
        }
        Ok(())
    }

    fn add(&mut self, person: Person) -> usize {
        if let Some(known) = self.everybody.iter().position(|other| other.id == person.id) {
            return known;
        }
        self.everybody.push(person);
        let number = self.everybody.len() - 1;
        self.index(number);
        number
    }

    fn index(&mut self, number: usize) {
        let person = &self.everybody[number];
        if let Some(external_id) = &person.external_id {
            self.by_external_id.insert((person.company, external_id.clone()), number);
        }
        if let Some(document) = &person.document_hmac {
            self.by_document.insert((person.company, document.clone()), number);
        }
    }

    /// The recipient an email names: found and brought up to date, or made.
    pub fn recipient_of(&mut self, email: &NewEmail) -> Option<RecipientId> {
        let Some(recipient) = named_otherwise(email) else {
            return email.recipient.as_ref().and_then(|recipient| recipient.id);
        };
        let find = |known: &HashMap<(CompanyId, String), usize>, name: &Option<String>| {
            name.as_ref().and_then(|name| known.get(&(email.company, name.clone())).copied())
        };
        let by_external_id = find(&self.by_external_id, &recipient.external_id);
        let by_document = find(&self.by_document, &recipient.document_hmac);
        // Two people under one email's identifiers: the company's own name for the person decides, and neither gets
        // the other's document.
        let is_two = matches!((by_external_id, by_document), (Some(one), Some(other)) if one != other);
        let named = Named { recipient, takes_document: !is_two, email };
        let number = match by_external_id.or(by_document) {
            Some(number) => {
                named.bring_up_to_date(&mut self.everybody[number]);
                self.index(number);
                number
            }
            None => self.add(named.somebody_new()),
        };
        Some(self.everybody[number].id)
    }

    pub async fn write(&self, connection: &mut MySqlConnection) -> Result<(), Fault> {
        let (known, new): (Vec<&Person>, Vec<&Person>) =
            self.everybody.iter().filter(|person| person.is_changed).partition(|person| person.was_there);
        for people in portions(&new) {
            insert(connection, people, "").await?;
        }
        for people in portions(&known) {
            // They are there and locked: this always updates.
            let update = " ON DUPLICATE KEY UPDATE external_id = VALUES(external_id),
                 document_hmac = VALUES(document_hmac), document_sealed = VALUES(document_sealed),
                 email = VALUES(email), name = VALUES(name), legal_name = VALUES(legal_name),
                 updated_at = VALUES(updated_at), deleted_at = NULL";
            insert(connection, people, update).await?;
        }
        Ok(())
    }
}

/// A recipient as an email names it.
struct Named<'a> {
    recipient: &'a Recipient,
    takes_document: bool,
    email: &'a NewEmail,
}

impl Named<'_> {
    fn document(&self) -> Option<String> {
        self.recipient.document_hmac.clone().filter(|_| self.takes_document)
    }

    fn sealed(&self) -> Option<Vec<u8>> {
        let sealed = self.recipient.document_sealed.as_ref().map(|sealed| sealed.expose().clone());
        sealed.filter(|_| self.document().is_some())
    }

    /// What is named anew replaces what was known; identifiers stay with the person, and nothing named is no loss.
    fn bring_up_to_date(&self, person: &mut Person) {
        let text = |secret: &Option<Secret<String>>| secret.as_ref().map(|secret| secret.expose().clone());
        person.external_id = person.external_id.take().or_else(|| self.recipient.external_id.clone());
        person.document_hmac = person.document_hmac.take().or_else(|| self.document());
        if person.document_hmac == self.document() {
            person.document_sealed = self.sealed().or_else(|| person.document_sealed.take());
        }
        person.email = self.email.envelope.to.expose().to_owned();
        person.name = text(&self.recipient.name).or_else(|| person.name.take());
        person.legal_name = text(&self.recipient.legal_name).or_else(|| person.legal_name.take());
        person.updated_at = self.email.created_at;
        person.is_changed = true;
    }

    fn somebody_new(&self) -> Person {
        let now = self.email.created_at;
        let mut person = Person {
            id: RecipientId::new(now),
            company: self.email.company,
            external_id: None,
            document_hmac: None,
            document_sealed: None,
            email: String::new(),
            name: None,
            legal_name: None,
            created_at: now,
            updated_at: now,
            was_there: false,
            is_changed: true,
        };
        self.bring_up_to_date(&mut person);
        person
    }
}

async fn insert(connection: &mut MySqlConnection, people: &[&Person], or_else: &str) -> Result<(), Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "INSERT INTO recipients (id, company_id, external_id, document_hmac, document_sealed, email, name, legal_name,
             created_at, updated_at) ",
    );
    sql.push_values(people, |mut row, person| {
        row.push_bind(person.id.to_string())
            .push_bind(person.company.to_string())
            .push_bind(&person.external_id);
        row.push_bind(&person.document_hmac).push_bind(&person.document_sealed).push_bind(&person.email);
        row.push_bind(&person.name).push_bind(&person.legal_name);
        row.push_bind(at(person.created_at)).push_bind(at(person.updated_at));
    });
    sql.push(or_else);
    match sql.build().execute(connection).await.map_err(Fault::Sql) {
        // Somebody else made this person, or learned this identifier, just now.
        Err(fault) if fault.is_duplicate() => Err(Fault::Overtaken),
        written => written.map(|_| ()),
    }
}

fn person(row: &MySqlRow) -> Result<Person, StoreError> {
    Ok(Person {
        id: parsed(row, "id")?,
        company: parsed(row, "company_id")?,
        external_id: get(row, "external_id")?,
        document_hmac: get(row, "document_hmac")?,
        document_sealed: get(row, "document_sealed")?,
        email: get(row, "email")?,
        name: get(row, "name")?,
        legal_name: get(row, "legal_name")?,
        created_at: moment(row, "created_at")?,
        updated_at: moment(row, "updated_at")?,
        was_there: true,
        is_changed: false,
    })
}
