//! A company's name and settings, read from a body and shown again. A patch changes what it names; `null`
//! brings back the default.

use gateway::Gateway;
use gateway::accept::draft::Fault;
use gateway::accept::rules::known_name;
use model::{Address, Company, CompanySettings, Mailbox, OnUnknown, Timestamp};
use serde_json::{Value, json};

use crate::form::{At, Faults, Form};
use crate::limits::{
    COMPANY_NAME_LENGTH_MAX, CONCURRENCY_MAX, DAILY_LIMIT_MAX, RATE_PER_SEC_MAX, ROUTE_MAX, SENDERS_MAX,
    WEIGHT_MAX, WORD_LENGTH_MAX,
};
use crate::v1::draft::line;

pub const FIELDS: &[&str] = &[
    "name",
    "disabled",
    "from",
    "senders",
    "route",
    "weight",
    "concurrencyMax",
    "ratePerSec",
    "dailyLimit",
    "retryPolicy",
    "onUnknown",
    "adminEmail",
];

/// Applies a body to a company; all faults at once.
pub fn apply(
    gateway: &Gateway,
    company: Company,
    body: Value,
    now: Timestamp,
) -> Result<Company, Vec<Fault>> {
    let faults = Faults::default();
    let changed = Form::open(body, At::Root, FIELDS, &faults).map(|form| read(gateway, company, form, now));
    match (changed, faults.into_vec()) {
        (Some(company), faults) if faults.is_empty() => Ok(company),
        (_, faults) => Err(faults),
    }
}

fn read(gateway: &Gateway, mut company: Company, mut form: Form<'_>, now: Timestamp) -> Company {
    if let Some(name) = line(&mut form, "name", COMPANY_NAME_LENGTH_MAX) {
        company.name = name;
    }
    match form.flag("disabled") {
        Some(true) => company.disabled_at = company.disabled_at.or(Some(now)),
        Some(false) => company.disabled_at = None,
        None => {}
    }
    let settings = &mut company.settings;
    change(&mut form, "from", &mut settings.from, |form, name| form.mailbox(name));
    change(&mut form, "adminEmail", &mut settings.admin_email, |form, name| form.address(name));
    change(&mut form, "onUnknown", &mut settings.on_unknown, |form, name| {
        form.choice(name, &["retry", "hold"], OnUnknown::parse)
    });
    let number = |most: u64| {
        move |form: &mut Form<'_>, name: &str| form.whole(name, 1..=most).and_then(|n| u32::try_from(n).ok())
    };
    change(&mut form, "concurrencyMax", &mut settings.concurrency_max, number(CONCURRENCY_MAX));
    change(&mut form, "ratePerSec", &mut settings.rate_per_sec, number(RATE_PER_SEC_MAX));
    change(&mut form, "dailyLimit", &mut settings.daily_limit, number(DAILY_LIMIT_MAX));
    change(&mut form, "retryPolicy", &mut settings.retry_policy, |form, name| {
        retry_policy(gateway, form, name)
    });
    change(&mut form, "route", &mut settings.route, |form, name| route(gateway, form, name));
    let mut weight = Some(settings.weight);
    change(&mut form, "weight", &mut weight, number(WEIGHT_MAX));
    settings.weight = weight.unwrap_or_else(|| CompanySettings::default().weight);
    let mut listed = Some(std::mem::take(&mut settings.senders));
    change(&mut form, "senders", &mut listed, |form, name| Some(senders(form, name)));
    settings.senders = listed.unwrap_or_default();
    form.finish();
    company
}

/// Leaves a field alone that is not named, clears it on `null`, and reads it otherwise.
fn change<T>(
    form: &mut Form<'_>,
    name: &str,
    field: &mut Option<T>,
    read: impl FnOnce(&mut Form<'_>, &str) -> Option<T>,
) {
    if form.has(name) {
        *field = read(form, name);
    } else if form.take_nullable(name).is_some() {
        *field = None;
    }
}

fn retry_policy(gateway: &Gateway, form: &mut Form<'_>, name: &str) -> Option<String> {
    let policy = line(form, name, WORD_LENGTH_MAX)?;
    let fault =
        known_name(name, "UNKNOWN_RETRY_POLICY", Some(&policy), gateway.settings.retry_policies.keys());
    match fault {
        None => Some(policy),
        Some(fault) => {
            form.faults().push(fault);
            None
        }
    }
}

fn route(gateway: &Gateway, form: &mut Form<'_>, name: &str) -> Option<Vec<String>> {
    let names: Vec<String> =
        form.texts(name, ROUTE_MAX, "TOO_MANY_PROVIDERS").into_iter().map(|(_, text)| text).collect();
    if names.is_empty() {
        form.fault(name, "TOO_SHORT", "must name at least one provider; null brings back the default route");
    }
    for (index, provider) in names.iter().enumerate() {
        let field = format!("{name}[{index}]");
        if let Some(fault) = known_name(&field, "UNKNOWN_PROVIDER", Some(provider), gateway.providers.keys())
        {
            form.faults().push(fault);
        }
    }
    Some(names)
}

/// Addresses and whole domains (`@example.com`), each in its DNS form.
fn senders(form: &mut Form<'_>, name: &str) -> Vec<String> {
    let texts = form.texts(name, SENDERS_MAX, "TOO_MANY_SENDERS").into_iter();
    texts
        .filter_map(|(index, text)| {
            let sender = match text.strip_prefix('@') {
                Some(domain) => {
                    Address::parse(&format!("x@{domain}")).map(|address| format!("@{}", address.domain()))
                }
                None => Address::parse(&text).map(|address| address.expose().to_owned()),
            };
            sender
                .map_err(|_| {
                    let message = "must be an address or a domain such as @example.com";
                    form.item_fault(name, index, "INVALID_SENDER", message);
                })
                .ok()
        })
        .collect()
}

/// A company as the operator sees it.
pub fn show(company: &Company) -> Value {
    let settings = &company.settings;
    json!({
        "id": company.id.to_string(),
        "name": company.name,
        "createdAt": company.created_at.to_rfc3339(),
        "disabled": company.disabled_at.is_some(),
        "disabledAt": company.disabled_at.map(Timestamp::to_rfc3339),
        "paused": company.pause.as_ref().map(|pause| {
            json!({ "at": pause.at.to_rfc3339(), "reason": pause.reason })
        }),
        "from": settings.from.as_ref().map(Mailbox::expose),
        "senders": settings.senders,
        "route": settings.route,
        "weight": settings.weight,
        "concurrencyMax": settings.concurrency_max,
        "ratePerSec": settings.rate_per_sec,
        "dailyLimit": settings.daily_limit,
        "retryPolicy": settings.retry_policy,
        "onUnknown": settings.on_unknown.map(OnUnknown::as_str),
        "adminEmail": settings.admin_email.as_ref().map(Address::expose),
    })
}
