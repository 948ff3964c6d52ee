//! Laws of reading back: every filter finds what it names, pages give each email once, newest first, and one
//! company never sees another's. How long a list may be looked at is the store's business: a page may be short.

use std::collections::BTreeSet;

use model::{CompanyId, EmailId, Event, NewEmail, Status};
use testkit::{START, a_recipient, an_address, an_email_at, an_entity, at_millis, at_secs};

use super::stage::{a_company, attempted, fail, listed, listed_ids, read, retry_at, stored};
use crate::{Cursor, EmailFilter, Store};

/// What is not there reads as nothing.
pub async fn the_missing_read_as_nothing(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = EmailId::new(START);
    assert_eq!(store.email(company, id).await.expect("read"), None);
    assert_eq!(store.events(company, id).await.expect("read"), None::<Vec<Event>>);
    assert_eq!(store.content(company, id).await.expect("read"), None);
    assert_eq!(store.company_of(id).await.expect("read"), None);
    assert_eq!(listed_ids(store, company, &EmailFilter::default()).await, []);
}

/// The operator finds whose email it is.
pub async fn the_company_of_an_email_is_found(store: &dyn Store) {
    let acme = a_company(store, "acme").await;
    let other = a_company(store, "other").await;
    for company in [acme, other] {
        let id = stored(store, an_email_at(company, START)).await;
        assert_eq!(store.company_of(id).await.expect("read"), Some(company));
    }
}

/// A list holds the same as a single read.
pub async fn a_list_holds_whole_emails(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let email = testkit::a_full_email(company);
    stored(store, email.clone()).await;
    attempted(store, retry_at(email.due_at.plus(super::stage::HOUR)), email.due_at).await;
    let list = listed(store, company, &EmailFilter::default(), 10).await;
    assert_eq!(list, [read(store, company, email.id).await]);
}

/// Twelve emails that differ in everything a filter can name: number n was accepted n seconds after the start.
async fn twelve(store: &dyn Store, company: CompanyId) -> Vec<EmailId> {
    let mut ids = Vec::new();
    for number in 0..12 {
        let now = at_secs(number);
        let mut email = an_email_at(company, now);
        email.envelope.to = an_address(&format!("to-{}@example.com", number % 3));
        email.envelope.tags = vec!["all".into(), format!("tag-{}", number % 2)];
        email.entity = (number % 4 == 0).then(|| an_entity(&format!("entity-{}", number % 8)));
        email.external_id = Some(format!("external-{}", number % 6));
        email.recipient = (number % 3 == 0).then(|| a_recipient(&format!("person-{number}")));
        email.request_id = format!("request-{}", number / 5);
        ids.push(stored(store, email).await);
        match number {
            0..=3 => drop(attempted(store, fail(&format!("CODE_{number}")), now).await),
            4..=6 => drop(attempted(store, retry_at(at_secs(50_000)), now).await),
            7 => drop(attempted(store, super::stage::sent(), now).await),
            _ => drop(attempted(store, model::Verdict::Expire { failure: None }, now).await),
        }
    }
    ids
}

type FilterCase = (&'static str, EmailFilter, &'static [usize]);

fn filters_alone() -> Vec<FilterCase> {
    let any = EmailFilter::default;
    let text = |text: &str| Some(text.to_owned());
    vec![
        ("all", any(), &[11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        ("status failed", EmailFilter { status: Some(Status::Failed), ..any() }, &[3, 2, 1, 0]),
        ("status retry", EmailFilter { status: Some(Status::RetryScheduled), ..any() }, &[6, 5, 4]),
        ("status sent", EmailFilter { status: Some(Status::Sent), ..any() }, &[7]),
        ("no such status", EmailFilter { status: Some(Status::Invalid), ..any() }, &[]),
        ("to", EmailFilter { to: Some(an_address("to-1@example.com")), ..any() }, &[10, 7, 4, 1]),
        ("no such to", EmailFilter { to: Some(an_address("to@example.com")), ..any() }, &[]),
        ("tag", EmailFilter { tag: text("tag-1"), ..any() }, &[11, 9, 7, 5, 3, 1]),
        ("a part of a tag", EmailFilter { tag: text("tag"), ..any() }, &[]),
        ("entity", EmailFilter { entity: text("entity-4"), ..any() }, &[4]),
        ("external id", EmailFilter { external_id: text("external-2"), ..any() }, &[8, 2]),
        ("recipient", EmailFilter { recipient: text("person-9"), ..any() }, &[9]),
        ("code", EmailFilter { code: text("CODE_2"), ..any() }, &[2]),
        ("code of retries", EmailFilter { code: text("NETWORK_ERROR"), ..any() }, &[6, 5, 4]),
        ("request", EmailFilter { request_id: text("request-1"), ..any() }, &[9, 8, 7, 6, 5]),
        ("a part of a request", EmailFilter { request_id: text("request"), ..any() }, &[]),
        ("no such message", EmailFilter { message_id: text("nobody's"), ..any() }, &[]),
        ("provider's id", EmailFilter { message_id: text("relay-1"), ..any() }, &[7]),
        ("another provider", EmailFilter { providers: Some(vec!["x".into()]), ..any() }, &[]),
        ("no provider", EmailFilter { providers: Some(vec![]), ..any() }, &[]),
        ("since", EmailFilter { since: Some(at_secs(10)), ..any() }, &[11, 10]),
        ("until", EmailFilter { until: Some(at_secs(2)), ..any() }, &[1, 0]),
        ("one moment", EmailFilter { since: Some(at_secs(4)), until: Some(at_millis(4_001)), ..any() }, &[4]),
    ]
}

fn filters_together() -> Vec<FilterCase> {
    let any = EmailFilter::default;
    let text = |text: &str| Some(text.to_owned());
    vec![
        (
            "providers and status",
            EmailFilter {
                providers: Some(vec!["x".into(), "relay".into()]),
                status: Some(Status::Failed),
                ..any()
            },
            &[3, 2, 1, 0],
        ),
        (
            "request and status",
            EmailFilter { request_id: text("request-0"), status: Some(Status::Failed), ..any() },
            &[3, 2, 1, 0],
        ),
        (
            "since and until",
            EmailFilter { since: Some(at_secs(4)), until: Some(at_secs(6)), ..any() },
            &[5, 4],
        ),
        (
            "tag and status",
            EmailFilter { tag: text("tag-0"), status: Some(Status::Failed), ..any() },
            &[2, 0],
        ),
        (
            "to, code and since",
            EmailFilter {
                to: Some(an_address("to-2@example.com")),
                code: text("NETWORK_ERROR"),
                since: Some(at_secs(3)),
                ..any()
            },
            &[5],
        ),
        (
            "two that exclude each other",
            EmailFilter { tag: text("tag-0"), code: text("CODE_1"), ..any() },
            &[],
        ),
    ]
}

/// Every filter alone, and several together.
pub async fn every_filter_finds_what_it_names(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let ids = twelve(store, company).await;
    twelve(store, a_company(store, "other").await).await;
    for (case, filter, expected) in filters_alone().into_iter().chain(filters_together()) {
        let expected: Vec<EmailId> = expected.iter().map(|number| ids[*number]).collect();
        assert_eq!(listed_ids(store, company, &filter).await, expected, "{case}");
        let in_pages: Vec<EmailId> =
            listed(store, company, &filter, 1).await.iter().map(|email| email.id).collect();
        assert_eq!(in_pages, expected, "{case}, one by one");
    }
}

/// A filter follows the email: it is found under its status of now, not under those it had.
pub async fn filters_follow_the_email(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email_at(company, START)).await;
    let of = |status| EmailFilter { status: Some(status), ..EmailFilter::default() };
    assert_eq!(listed_ids(store, company, &of(Status::Enqueued)).await, [id]);
    attempted(store, super::stage::sent(), START).await;
    assert_eq!(listed_ids(store, company, &of(Status::Enqueued)).await, []);
    assert_eq!(listed_ids(store, company, &of(Status::Processing)).await, []);
    assert_eq!(listed_ids(store, company, &of(Status::Sent)).await, [id]);
}

/// What waits and what is in flight is found by its status, whatever its route and whoever else waits; in pages, too.
pub async fn what_is_under_way_is_found(store: &dyn Store) {
    let (company, other) = (a_company(store, "acme").await, a_company(store, "other").await);
    let of = |status| EmailFilter { status: Some(status), ..EmailFilter::default() };
    let retried = attempted_of(store, company, super::stage::retry_at(at_secs(3_600))).await;
    stored(store, an_email_at(company, START)).await;
    stored(store, an_email_at(other, START)).await;
    let in_flight = super::stage::claimed_ids(store, START, 2).await;
    let mut waiting = Vec::new();
    for (number, route) in ["b", "a", "", "a", "c"].into_iter().enumerate() {
        let due_at = at_secs(60 * (10 - number as u64));
        let email = |company| NewEmail {
            route: route.to_owned(),
            due_at,
            ..an_email_at(company, at_millis(number as u64))
        };
        waiting.push(stored(store, email(company)).await);
        stored(store, email(other)).await;
    }
    waiting.reverse();
    assert_eq!(listed_ids(store, company, &of(Status::Enqueued)).await, waiting);
    let one_by_one = listed(store, company, &of(Status::Enqueued), 1).await;
    assert_eq!(one_by_one.iter().map(|email| email.id).collect::<Vec<_>>(), waiting, "one by one");
    assert_eq!(listed_ids(store, company, &of(Status::RetryScheduled)).await, [retried]);
    let mut processing = listed_ids(store, company, &of(Status::Processing)).await;
    processing.extend(listed_ids(store, other, &of(Status::Processing)).await);
    processing.sort();
    assert_eq!(processing.len(), 2, "one of each company");
    assert!(in_flight.iter().all(|id| processing.contains(id)));
}

/// An email that was tried once, with that verdict.
async fn attempted_of(store: &dyn Store, company: CompanyId, verdict: model::Verdict) -> EmailId {
    let id = stored(store, an_email_at(company, START)).await;
    attempted(store, verdict, START).await;
    id
}

/// The recipient filter takes the recipient's own id too.
pub async fn the_recipient_filter_takes_either_id(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let email =
        |person: &str| NewEmail { recipient: Some(a_recipient(person)), ..an_email_at(company, START) };
    let id = stored(store, email("person-1")).await;
    stored(store, email("person-2")).await;
    let recipient = read(store, company, id).await.recipient.and_then(|recipient| recipient.id);
    let recipient = recipient.expect("the store gave the recipient an id");
    for text in ["person-1".to_owned(), recipient.to_string()] {
        let filter = EmailFilter { recipient: Some(text), ..EmailFilter::default() };
        assert_eq!(listed_ids(store, company, &filter).await, [id]);
    }
}

/// The address filter knows a mailbox however it was written.
pub async fn the_address_filter_ignores_case(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut email = an_email_at(company, START);
    email.envelope.to = an_address("Ana.Maria@example.com");
    let id = stored(store, email).await;
    for text in ["Ana.Maria@example.com", "ana.maria@example.com", "ANA.MARIA@example.com"] {
        let filter = EmailFilter { to: Some(an_address(text)), ..EmailFilter::default() };
        assert_eq!(listed_ids(store, company, &filter).await, [id], "{text}");
    }
}

/// 250 emails in small pages: each once, newest first, with and without a filter.
pub async fn pages_give_each_email_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut ids = Vec::new();
    for number in 0..250 {
        let mut email = an_email_at(company, at_millis(number));
        email.envelope.tags = vec![format!("tag-{}", number % 10)];
        ids.push(stored(store, email).await);
    }
    ids.reverse();
    for limit in [1, 7, 100, 250, 1_000] {
        let listed = listed(store, company, &EmailFilter::default(), limit).await;
        assert_eq!(listed.iter().map(|email| email.id).collect::<Vec<_>>(), ids, "pages of {limit}");
    }
    let filter = EmailFilter { tag: Some("tag-3".into()), ..EmailFilter::default() };
    let tagged = listed(store, company, &filter, 4).await;
    assert_eq!(tagged.len(), 25);
    assert!(tagged.windows(2).all(|pair| pair[0].created_at > pair[1].created_at), "newest first");
}

/// Emails of the same millisecond are all there, once.
pub async fn pages_split_a_millisecond(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let ids: BTreeSet<EmailId> =
        super::stage::backlog(store, company, 100, START).await.into_iter().collect();
    for limit in [1, 7, 99] {
        let listed = listed(store, company, &EmailFilter::default(), limit).await;
        assert_eq!(listed.len(), 100, "pages of {limit}");
        assert_eq!(listed.iter().map(|email| email.id).collect::<BTreeSet<_>>(), ids, "pages of {limit}");
    }
}

/// What arrives or changes while somebody turns the pages does not shift them.
pub async fn pages_stand_still_while_emails_arrive(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut old = Vec::new();
    for number in 0..60 {
        old.push(stored(store, an_email_at(company, at_millis(number))).await);
    }
    old.reverse();
    let mut seen = Vec::new();
    let mut after: Option<Cursor> = None;
    for turn in 0..200 {
        let filter = EmailFilter::default();
        let page = store.emails(company, &filter, after.as_ref(), 7).await.expect("a page is read");
        seen.extend(page.items.iter().map(|email| email.id));
        stored(store, an_email_at(company, at_secs(10 + turn))).await;
        store
            .cancel(company, old[usize::try_from(turn).expect("few") % 60], at_secs(1))
            .await
            .expect("cancel");
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, old);
}

/// A cursor that nobody handed out is refused or ignored, never a panic and never another company's email.
pub async fn a_garbage_cursor_does_no_harm(store: &dyn Store) {
    let acme = a_company(store, "acme").await;
    let other = a_company(store, "other").await;
    super::stage::backlog(store, acme, 5, START).await;
    super::stage::backlog(store, other, 5, START).await;
    let filter = EmailFilter::default();
    let foreign = store.emails(other, &filter, None, 2).await.expect("a page").next.expect("a second page");
    let long = "A".repeat(10_000);
    let texts = ["", "x", "%", "' OR 1=1 --", "é🎉", "AAAA", "-1", "99999999999999999999", &long, &foreign.0];
    for text in texts {
        let cursor = Cursor(text.to_owned());
        if let Ok(page) = store.emails(acme, &filter, Some(&cursor), 10).await {
            assert!(page.items.iter().all(|email| email.company == acme), "{text}");
        }
        let dead = crate::DeadLetterFilter::default();
        if let Ok(page) = store.dead_letters(acme, &dead, Some(&cursor), 10).await {
            assert!(page.items.is_empty(), "{text}");
        }
    }
    assert!(
        foreign.0.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)),
        "{foreign:?}"
    );
}
