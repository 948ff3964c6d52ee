//! A company's settings as one JSON text, the same for every store.

use model::{Address, CompanySettings, Mailbox, OnUnknown};
use serde_json::{Map, Value, json};

pub fn encode(settings: &CompanySettings) -> String {
    json!({
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
    .to_string()
}

pub fn decode(text: &str) -> Option<CompanySettings> {
    let json: Map<String, Value> = serde_json::from_str(text).ok()?;
    let text_of = |name: &str| json.get(name).and_then(Value::as_str);
    let number = |name: &str| json.get(name).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let texts = |name: &str| -> Option<Vec<String>> {
        Some(json.get(name)?.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    };
    Some(CompanySettings {
        from: text_of("from").and_then(|text| Mailbox::parse(text).ok()),
        senders: texts("senders").unwrap_or_default(),
        route: texts("route"),
        weight: number("weight").unwrap_or(1).max(1),
        concurrency_max: number("concurrencyMax"),
        rate_per_sec: number("ratePerSec"),
        daily_limit: number("dailyLimit"),
        retry_policy: text_of("retryPolicy").map(str::to_owned),
        on_unknown: text_of("onUnknown").and_then(OnUnknown::parse),
        admin_email: text_of("adminEmail").map(|text| Address::trusted(text.to_owned())),
    })
}
