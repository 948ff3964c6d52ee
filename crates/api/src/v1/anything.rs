//! Whatever comes in as a body, a query string or a cursor: read or refused with faults that are bounded, never a panic.

use axum::http::{HeaderMap, HeaderValue, Uri};
use gateway::cursors::CursorKey;
use model::{CompanyId, Secret};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use testkit::START;

use super::cursor::Listing;
use super::params::{idempotency_key, read_query};
use super::{attachments, draft, recipient};
use crate::json;
use crate::limits::{ATTACHMENTS_BYTES_MAX, FAULTS_MAX, IDEMPOTENCY_KEY_LENGTH_MAX, JSON_DEPTH_MAX};

/// Texts that some field or other takes for something.
const TEXTS: &str = "ana@example.com¦Ana <ana@example.com>¦529.982.247-25¦52998224725¦aGk=¦a.txt¦text/plain¦<p>x</p>¦<script>¦\
    https://example.com/a?b=c¦http://[::1]:0/¦file:///¦2026-01-02T00:00:00Z¦2026-13-99T99:99:99+99:99¦warn¦hold¦welcome@1¦welcome@¦@¦X-A¦\
    =?utf-8?Q?x?=¦\r\n¦\0¦\u{202e}¦\u{feff}¦😀¦-1¦1e9¦null¦%ff¦0190b2e8-7c3a-7d52-9982-247252998224¦ ";

fn any_text() -> impl Strategy<Value = String> {
    let known = prop::sample::select(TEXTS.split('¦').collect::<Vec<_>>()).prop_map(str::to_owned);
    prop_oneof![3 => known, 1 => "\\PC{0,20}", 1 => any::<String>()]
}

fn any_name() -> impl Strategy<Value = String> {
    let names: Vec<&str> = [draft::FIELDS, recipient::FIELDS, attachments::FIELDS, &["id", "name"]].concat();
    prop_oneof![6 => prop::sample::select(names).prop_map(str::to_owned), 1 => any_text()]
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        5 => any_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 60, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::vec((any_name(), inner), 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A good email with some fields that are anything.
fn any_email() -> impl Strategy<Value = Value> {
    prop::collection::vec((any_name(), any_value()), 0..6).prop_map(|changes| {
        let mut email = json!({ "to": "ana@example.com", "subject": "Hello", "html": "<p>Hello</p>" });
        for (name, value) in changes {
            email[name] = value;
        }
        email
    })
}

/// JSON, JSON with a piece cut out or doubled, and what is none.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let damaged = (any_email(), any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(
        |(email, from, to)| {
            let mut bytes = email.to_string().into_bytes();
            let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
            if from < to {
                bytes.drain(from..to);
            } else {
                let piece = bytes[to..from].to_vec();
                bytes.splice(from..from, piece);
            }
            bytes
        },
    );
    let signs = "[\\[\\]{}\",:0-9eE.+\\\\u \n-]{0,80}".prop_map(String::into_bytes);
    let deep = (1..200_usize, "[\\[{]").prop_map(|(times, open)| open.repeat(times).into_bytes());
    prop_oneof![
        3 => damaged,
        1 => any_value().prop_map(|value| value.to_string().into_bytes()),
        1 => signs,
        1 => deep,
        1 => prop::collection::vec(any::<u8>(), 0..200),
    ]
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

proptest! {
    #[test]
    fn emails(email in any_email()) {
        match draft::read(email, ATTACHMENTS_BYTES_MAX, START) {
            Ok(draft) => prop_assert!(draft.notes.len() <= FAULTS_MAX),
            Err(faults) => {
                prop_assert!((1..=FAULTS_MAX).contains(&faults.len()), "{faults:?}");
                let told: usize = faults.iter().map(|fault| fault.field.len() + fault.message.len()).sum();
                prop_assert!(told <= faults.len() * 2000, "{faults:?}");
                // The message, not the field: an unknown field has to be named.
                prop_assert!(faults.iter().all(|fault| !fault.message.contains("529.982.247-25")), "{faults:?}");
            }
        }
    }

    #[test]
    fn bodies(bytes in any_bytes()) {
        match json::read(&bytes) {
            Ok(value) => {
                prop_assert!(depth(&value) <= JSON_DEPTH_MAX);
                prop_assert_eq!(json::canonical_hash(&["x"], &value), json::canonical_hash(&["x"], &value.clone()));
                let _ = draft::read(value, ATTACHMENTS_BYTES_MAX, START);
            }
            Err(problem) => {
                prop_assert!(problem.status.is_client_error());
                prop_assert!(problem.body("req_1").len() < 4000, "{problem:?}");
                prop_assert!(serde_json::from_str::<Value>(&problem.body("req_1")).is_ok(), "{problem:?}");
            }
        }
    }

    #[test]
    fn cursors(text in prop_oneof![any_text(), "[A-Za-z0-9_.-]{0,600}", "[a-z0-9]{0,20}\\.[0-9a-f]{12}"]) {
        let uri: Uri = "/v1/emails?status=SENT".parse().expect("a path");
        let company = CompanyId::new(START);
        let key = CursorKey::new(&Secret::new([7; 32]));
        let listing = Listing::new(&key, company, "emails", &uri).expect("a query");
        let query: String = percent(&text);
        let asked: Uri = format!("/v1/emails?cursor={query}").parse().expect("a path");
        let taken = read_query(&asked, &["cursor"], |form| listing.take(form));
        let foreign = matches!(&taken, Ok(Some(_)));
        prop_assert!(!foreign, "nobody can make one up: {text}");
        // One that was given out is taken back, by whom it was given to and nobody else.
        if text.len() < 300 {
            let given: Uri = format!("/v1/emails?cursor={}", percent(&listing.give_out(&store::Cursor(text.clone())))).parse().expect("a path");
            let back = read_query(&given, &["cursor"], |form| listing.take(form)).ok().flatten();
            prop_assert_eq!(back.map(|cursor| cursor.0), Some(text));
            let other = Listing::new(&key, CompanyId::new(START), "emails", &uri).expect("a query");
            prop_assert!(read_query(&given, &["cursor"], |form| other.take(form)).is_err());
        }
    }

    #[test]
    fn queries(query in prop_oneof!["[a-zA-Z0-9=&%+;._~-]{0,120}", "(externalId|priority|ttl|delay|scheduledAt|callbackUrl)=[0-9a-zA-Z%:/.-]{0,60}"]) {
        let Ok(uri) = format!("/v1/email/raw?{query}").parse::<Uri>() else { return Ok(()) };
        if let Err(problem) = read_query(&uri, draft::OPTION_FIELDS, |form| draft::options(form, START).priority) {
            prop_assert!(problem.status.is_client_error() && problem.errors.len() <= FAULTS_MAX, "{problem:?}");
        }
    }

    #[test]
    fn idempotency_keys(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..3)) {
        let mut headers = HeaderMap::new();
        for value in values {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append("idempotency-key", value);
            }
        }
        if let Ok(Some(key)) = idempotency_key(&headers) {
            prop_assert!((1..=IDEMPOTENCY_KEY_LENGTH_MAX).contains(&key.len()));
            prop_assert!(key.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{key:?}");
        }
    }
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}
