//! `/v1/recipients…`: people known to a company, and addresses that keep failing. Both are shown in one shape.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use gateway::Gateway;
use gateway::accept::to_the_end;
use gateway::suppressions::names;
use model::{Address, CompanyId, RecipientId, Timestamp};
use serde_json::{Value, json};
use store::{Page, Problem as Trouble, RecipientRecord, StoreError};

use super::answer;
use super::cursor::Listing;
use super::emails::{page_answer, page_limit};
use super::params::read_query;
use super::suppressions::{InPath, address_of};
use crate::auth::Client;
use crate::error::Problem;
use crate::limits::{PROBLEMS_LOOKED_AT_MAX, PROBLEMS_STEP};
use crate::state::ApiState;

pub const PARAMETERS: &[&str] = &["problematic", "cursor", "limit"];

pub async fn list(State(state): State<ApiState>, client: Client, uri: Uri) -> Result<Response, Problem> {
    let (gateway, company) = (&state.desk.gateway, client.id());
    let listing = Listing::of(&state, company, "recipients", &uri).await?;
    let (problematic, after, limit) = read_query(&uri, PARAMETERS, |form| {
        (form.flag("problematic").unwrap_or(false), listing.take(form), page_limit(form))
    })?;
    let page = if problematic {
        let Page { items, next } = gateway.store.problems(company, after.as_ref(), limit).await?;
        let lines = items.into_iter().map(Line::of_trouble).collect();
        Page { items: lines, next }
    } else {
        let Page { items, next } = gateway.store.recipients(company, after.as_ref(), limit).await?;
        let addresses: Vec<Address> = items.iter().map(|record| record.email.clone()).collect();
        let troubles = troubles_among(gateway, company, &addresses).await?;
        let lines = items.into_iter().map(|record| Line::of_recipient(record, &troubles)).collect();
        Page { items: lines, next }
    };
    let addresses: Vec<Address> = page.items.iter().map(|line: &Line| line.email.clone()).collect();
    let suppressed = gateway.suppressions.among(&*gateway.store, company, &addresses).await?;
    Ok(page_answer(&listing, page, |line| line.show(names(&suppressed, &line.email))))
}

/// Forgets the failures of an address.
pub async fn clear(
    State(state): State<ApiState>,
    client: Client,
    email: InPath,
) -> Result<Response, Problem> {
    let missing = || Problem::not_found("PROBLEM_NOT_FOUND", "this address has no repeated failures");
    let address = address_of(email).ok_or_else(missing)?;
    let (store, company) = (state.desk.gateway.store.clone(), client.id());
    let cleared = to_the_end(async move { store.clear_problem(company, &address).await }).await?;
    if cleared { Ok(answer::no_content()) } else { Err(missing()) }
}

/// Those of the addresses that keep failing. The store lists them, the latest first; most companies have few.
async fn troubles_among(
    gateway: &Gateway,
    company: CompanyId,
    addresses: &[Address],
) -> Result<Vec<Trouble>, StoreError> {
    let mut found = Vec::new();
    let (mut after, mut looked_at) = (None, 0);
    while !addresses.is_empty() && looked_at < PROBLEMS_LOOKED_AT_MAX {
        let page = gateway.store.problems(company, after.as_ref(), PROBLEMS_STEP).await?;
        found.extend(page.items.into_iter().filter(|trouble| names(addresses, &trouble.address)));
        after = page.next;
        looked_at += PROBLEMS_STEP;
        if after.is_none() {
            break;
        }
    }
    Ok(found)
}

struct Line {
    known: Option<(RecipientId, Option<String>)>,
    email: Address,
    trouble: Option<Trouble>,
}

impl Line {
    fn of_recipient(record: RecipientRecord, troubles: &[Trouble]) -> Self {
        let trouble = troubles.iter().find(|trouble| trouble.address.same_mailbox(&record.email)).cloned();
        Self { known: Some((record.id, record.external_id)), email: record.email, trouble }
    }

    fn of_trouble(trouble: Trouble) -> Self {
        Self { known: None, email: trouble.address.clone(), trouble: Some(trouble) }
    }

    fn show(&self, suppressed: bool) -> Value {
        let trouble = self.trouble.as_ref();
        let time = |at: Timestamp| at.to_rfc3339();
        json!({
            "recipientId": self.known.as_ref().map(|(id, _)| id.to_string()),
            "externalId": self.known.as_ref().and_then(|(_, external_id)| external_id.clone()),
            "email": self.email.expose(),
            "suppressed": suppressed,
            "problematic": trouble.is_some(),
            "failures": trouble.map(|trouble| trouble.failures),
            "since": trouble.map(|trouble| time(trouble.since)),
            "lastFailureAt": trouble.map(|trouble| time(trouble.last_failure_at)),
            "lastFailureCode": trouble.map(|trouble| trouble.last_failure_code.clone()),
        })
    }
}
