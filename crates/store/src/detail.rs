//! The parts of an email that no query looks at, as one JSON text per row, the same for every store.

use model::email::Wishes;
use model::privacy::Secret;
use model::{Address, Entity, Envelope, Mailbox, NewEmail, OnUnknown, Recipient, TraceContext};
use serde_json::{Map, Value, json};

/// What `decode` gives back besides the columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Detail {
    pub from: Option<Mailbox>,
    pub cc: Vec<Address>,
    pub bcc: Vec<Address>,
    pub reply_to: Option<Mailbox>,
    pub headers: Vec<(String, Secret<String>)>,
    pub tags: Vec<String>,
    pub recipient: Option<Recipient>,
    pub entity_name: Option<String>,
    pub wishes: Wishes,
    pub trace: Option<TraceContext>,
}

impl Detail {
    pub fn of(email: &NewEmail) -> Self {
        Self {
            recipient: email.recipient.clone(),
            entity_name: email.entity.as_ref().and_then(|entity| entity.name.clone()),
            wishes: email.wishes.clone(),
            trace: email.trace,
            ..Self::of_envelope(&email.envelope)
        }
    }

    pub fn of_envelope(envelope: &Envelope) -> Self {
        Self {
            from: envelope.from.clone(),
            cc: envelope.cc.clone(),
            bcc: envelope.bcc.clone(),
            reply_to: envelope.reply_to.clone(),
            headers: envelope.headers.clone(),
            tags: envelope.tags.clone(),
            recipient: None,
            entity_name: None,
            wishes: Wishes::default(),
            trace: None,
        }
    }

    /// Takes over the parts that come from an envelope.
    pub fn with_envelope(self, envelope: &Envelope) -> Self {
        Self {
            recipient: self.recipient,
            entity_name: self.entity_name,
            wishes: self.wishes,
            trace: self.trace,
            ..Self::of_envelope(envelope)
        }
    }

    pub fn envelope(&self, to: Address, subject: Secret<String>) -> Envelope {
        Envelope {
            from: self.from.clone(),
            to,
            cc: self.cc.clone(),
            bcc: self.bcc.clone(),
            reply_to: self.reply_to.clone(),
            subject,
            headers: self.headers.clone(),
            tags: self.tags.clone(),
        }
    }

    pub fn entity(&self, id: Option<String>) -> Option<Entity> {
        id.map(|id| Entity { id, name: self.entity_name.clone() })
    }

    /// Without what is absent: most emails need a few dozen bytes.
    pub fn encode(&self) -> String {
        let mut json = Map::new();
        let mut put = |name: &str, value: Value| {
            let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            if !is_empty {
                json.insert(name.to_owned(), value);
            }
        };
        put("from", json!(self.from.as_ref().map(Mailbox::expose)));
        put("cc", addresses(&self.cc));
        put("bcc", addresses(&self.bcc));
        put("replyTo", json!(self.reply_to.as_ref().map(Mailbox::expose)));
        put("headers", self.headers.iter().map(|(name, value)| json!([name, value.expose()])).collect());
        put("tags", json!(self.tags));
        put("recipient", json!(self.recipient.as_ref().map(encode_recipient)));
        put("entityName", json!(self.entity_name));
        put("provider", json!(self.wishes.provider));
        put("retryPolicy", json!(self.wishes.retry_policy));
        put("onUnknown", json!(self.wishes.on_unknown.map(OnUnknown::as_str)));
        put("callbackUrl", json!(self.wishes.callback_url.as_ref().map(Secret::expose)));
        put("isAlert", json!(self.wishes.is_alert.then_some(true)));
        put("trace", json!(self.trace.map(|trace| trace.to_string())));
        Value::Object(json).to_string()
    }

    pub fn decode(text: &str) -> Option<Self> {
        let json: Map<String, Value> = serde_json::from_str(text).ok()?;
        let text_of = |name: &str| json.get(name).and_then(Value::as_str).map(str::to_owned);
        let mailbox = |name: &str| text_of(name).and_then(|text| Mailbox::parse(&text).ok());
        let list = |name: &str| json.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let address_list = |name: &str| {
            list(name)
                .iter()
                .filter_map(Value::as_str)
                .map(|text| Address::trusted(text.to_owned()))
                .collect()
        };
        Some(Self {
            from: mailbox("from"),
            cc: address_list("cc"),
            bcc: address_list("bcc"),
            reply_to: mailbox("replyTo"),
            headers: list("headers").iter().filter_map(decode_header).collect(),
            tags: list("tags").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            recipient: json.get("recipient").and_then(Value::as_object).map(decode_recipient),
            entity_name: text_of("entityName"),
            wishes: Wishes {
                provider: text_of("provider"),
                retry_policy: text_of("retryPolicy"),
                on_unknown: text_of("onUnknown").and_then(|text| OnUnknown::parse(&text)),
                callback_url: text_of("callbackUrl").map(Secret::new),
                is_alert: json.get("isAlert").is_some_and(|is_alert| *is_alert == true),
            },
            trace: text_of("trace").and_then(|text| TraceContext::parse(&text)),
        })
    }
}

fn addresses(list: &[Address]) -> Value {
    list.iter().map(Address::expose).collect()
}

fn decode_header(pair: &Value) -> Option<(String, Secret<String>)> {
    Some((pair.get(0)?.as_str()?.to_owned(), Secret::new(pair.get(1)?.as_str()?.to_owned())))
}

/// The sealed document stays behind: it belongs to the recipients table alone.
fn encode_recipient(recipient: &Recipient) -> Value {
    let mut json = Map::new();
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            json.insert(name.to_owned(), Value::String(value));
        }
    };
    put("id", recipient.id.map(|id| id.to_string()));
    put("externalId", recipient.external_id.clone());
    put("documentHmac", recipient.document_hmac.clone());
    put("legalName", recipient.legal_name.as_ref().map(|name| name.expose().clone()));
    put("name", recipient.name.as_ref().map(|name| name.expose().clone()));
    Value::Object(json)
}

fn decode_recipient(json: &Map<String, Value>) -> Recipient {
    let text_of = |name: &str| json.get(name).and_then(Value::as_str).map(str::to_owned);
    Recipient {
        id: text_of("id").and_then(|text| text.parse().ok()),
        external_id: text_of("externalId"),
        document_hmac: text_of("documentHmac"),
        document_sealed: None,
        legal_name: text_of("legalName").map(Secret::new),
        name: text_of("name").map(Secret::new),
    }
}
