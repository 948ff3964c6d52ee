//! `/v1/dlq…`: dead letters listed, replayed, dropped.

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use gateway::accept::to_the_end;
use gateway::{lookup, observe, replay};
use model::{Category, EmailId, KeyMode};
use serde_json::{Value, json};
use store::DeadLetterFilter;

use super::cursor::Listing;
use super::draft::line;
use super::emails::{page_answer, page_limit};
use super::params::{Id, read_query};
use super::{answer, email_json};
use crate::auth::Client;
use crate::body;
use crate::error::Problem;
use crate::form::{At, Faults, Form};
use crate::json as json_body;
use crate::limits::{ID_LENGTH_MAX, REPLAY_IDS_MAX, REPLAY_LIMIT_MAX, SMALL_BODY_BYTES_MAX};
use crate::state::ApiState;

pub const PARAMETERS: &[&str] = &["code", "category", "to", "recipient", "since", "until", "cursor", "limit"];
pub const FILTERS: &[&str] = &["code", "category", "to", "recipient", "since", "until"];
pub const REPLAY_FIELDS: &[&str] = &["ids", "filter", "dryRun", "limit"];

pub async fn list(State(state): State<ApiState>, client: Client, uri: Uri) -> Result<Response, Problem> {
    let gateway = &state.desk.gateway;
    let listing = Listing::of(&state, client.id(), "dlq", &uri).await?;
    let (filter, after, limit) =
        read_query(&uri, PARAMETERS, |form| (filter(form), listing.take(form), page_limit(form)))?;
    let page = lookup::dead_letters(gateway, client.id(), &filter, after, limit).await?;
    Ok(page_answer(&listing, page, |email| email_json::dead_letter(gateway, email)))
}

/// Puts dead letters back into the queue, or only counts them.
pub async fn replay(
    State(state): State<ApiState>,
    client: Client,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, incoming) = request.into_parts();
    body::require_type(&parts.headers, body::JSON)?;
    let taken = body::take(&state, &parts.headers, incoming, SMALL_BODY_BYTES_MAX).await?;
    let mut order = read_order(json_body::read(&taken.bytes)?)?;
    // What a test key does never reaches a provider.
    order.filter.mode = Some(client.0.key.mode).filter(|mode| *mode == KeyMode::Test);
    let (gateway, company) = (state.desk.gateway.clone(), client.id());
    let count = to_the_end(async move {
        if order.dry_run {
            replay::count(&gateway, company, &order.filter).await
        } else {
            replay::replay(&gateway, company, order.filter, order.limit).await
        }
    })
    .await?;
    let body = json!({ "matched": count.matched, "replayed": count.replayed });
    Ok(answer::value(StatusCode::OK, &body))
}

/// Takes one dead letter off the list; the email stays FAILED.
pub async fn remove(
    State(state): State<ApiState>,
    client: Client,
    id: Result<Id<EmailId>, Problem>,
) -> Result<Response, Problem> {
    let missing = || Problem::not_found("DEAD_LETTER_NOT_FOUND", "there is no dead letter with this id");
    let Id(id) = id.map_err(|_| missing())?;
    let (store, company, now) = (state.desk.gateway.store.clone(), client.id(), state.now());
    if to_the_end(async move { store.drop_dead_letter(company, id, now).await }).await? {
        observe::dead_letter_dropped();
        Ok(answer::no_content())
    } else {
        Err(missing())
    }
}

struct Order {
    filter: DeadLetterFilter,
    dry_run: bool,
    /// No more than these at once.
    limit: Option<u32>,
}

fn read_order(body: Value) -> Result<Order, Problem> {
    let faults = Faults::default();
    let order = Form::open(body, At::Root, REPLAY_FIELDS, &faults).and_then(read_order_form);
    match (order, faults.into_vec()) {
        (Some(order), faults) if faults.is_empty() => Ok(order),
        (_, faults) => Err(faults.into()),
    }
}

fn read_order_form(mut form: Form<'_>) -> Option<Order> {
    let has_ids = form.has("ids");
    match (has_ids, form.has("filter")) {
        (true, true) => form.fault("filter", "CONFLICTING_FIELDS", "cannot be given together with ids"),
        (false, false) => form.fault("ids", "REQUIRED", "or filter is required; an empty filter matches all"),
        _ => {}
    }
    let ids = ids(&mut form);
    let dry_run = form.flag("dryRun").unwrap_or(false);
    let limit = form.whole("limit", 1..=REPLAY_LIMIT_MAX).and_then(|limit| u32::try_from(limit).ok());
    let root = At::Root;
    let filter = match form.take("filter") {
        None => DeadLetterFilter::default(),
        Some(value) => {
            let mut inner = Form::open(value, At::Field(&root, "filter"), FILTERS, form.faults())?;
            let filter = filter(&mut inner);
            inner.finish();
            filter
        }
    };
    form.finish();
    Some(Order { filter: DeadLetterFilter { ids: has_ids.then_some(ids), ..filter }, dry_run, limit })
}

fn ids(form: &mut Form<'_>) -> Vec<EmailId> {
    let texts = form.texts("ids", REPLAY_IDS_MAX, "TOO_MANY_IDS").into_iter();
    texts
        .filter_map(|(index, text)| {
            text.parse()
                .map_err(|_| form.item_fault("ids", index, "INVALID_ID", "must be a UUID with its hyphens"))
                .ok()
        })
        .collect()
}

fn filter(form: &mut Form<'_>) -> DeadLetterFilter {
    let words: Vec<&str> = Category::ALL.iter().map(|category| category.as_str()).collect();
    DeadLetterFilter {
        ids: None,
        code: line(form, "code", ID_LENGTH_MAX),
        category: form.choice("category", &words, Category::parse),
        to: form.address("to"),
        recipient: line(form, "recipient", ID_LENGTH_MAX),
        since: form.moment("since", "INVALID_TIME"),
        until: form.moment("until", "INVALID_TIME"),
        mode: None,
    }
}
