//! What is asked: any route of companies that the OpenAPI document has, with parameters and a body that name things of
//! anybody. A route, parameter or body that is not known here stops the test: say what it is to be asked with.

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::Status;
use serde_json::{Value, json};

use super::names::{Firm, LIVE, an_email_of, anyones};
use crate::dice::Dice;

pub struct Route {
    pub method: Method,
    pub path: String,
    query: Vec<String>,
}

impl Route {
    pub fn is(&self, method: Method, path: &str) -> bool {
        self.method == method && self.path == path
    }
}

/// Every route that is open to companies.
pub fn routes(document: &Value) -> Vec<Route> {
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            if operation.get("x-scope").is_none() {
                continue;
            }
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let query = parameters.filter(|parameter| parameter["in"] == "query");
            routes.push(Route {
                method: Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method"),
                path: path.clone(),
                query: query
                    .map(|parameter| parameter["name"].as_str().expect("a name").to_owned())
                    .collect(),
            });
        }
    }
    routes
}

/// A request, and every name in it that may be somebody else's.
pub struct Ask {
    /// Which of the company's keys is used.
    pub key: usize,
    pub path: String,
    /// What stands in the path.
    pub named: Vec<String>,
    pub said: Vec<String>,
    pub body: Option<Content>,
    pub idempotency_key: Option<String>,
}

pub enum Content {
    Json(Value),
    Eml(String),
}

/// Makes requests in the name of one company.
pub struct Asker<'r> {
    pub dice: &'r mut Dice,
    pub firms: &'r [Firm],
    pub firm: usize,
    /// Which of its keys it uses.
    pub key: usize,
    /// Ids of recipients, anybody's.
    pub people: &'r [String],
}

impl Asker<'_> {
    pub fn ask(mut self, route: &Route) -> Ask {
        let mut named = Vec::new();
        let mut path = route.path.clone();
        for name in route.path.split(['{', '}']).skip(1).step_by(2) {
            let value = self.in_path(route, name);
            path = path.replace(&format!("{{{name}}}"), &value);
            named.push(value);
        }
        let mut said = named.clone();
        let mut separator = '?';
        for name in &route.query {
            let is_wanted = self.dice.one_in(4);
            if let Some(value) = self.in_query(route, name).filter(|_| is_wanted) {
                path.push_str(&format!("{separator}{name}={value}"));
                separator = '&';
                said.push(value);
            }
        }
        let body = self.body(route);
        if let Some(Content::Json(value)) = &body {
            texts(value, &mut said);
        }
        let takes_key = route.method == Method::POST && route.path.contains("email");
        let idempotency_key = (takes_key && self.dice.one_in(2)).then(|| anyones(self.dice, "key"));
        Ask { key: self.key, path, named, said, body, idempotency_key }
    }

    fn own(&self) -> &Firm {
        &self.firms[self.firm]
    }

    fn given(&mut self, kind: &str) -> String {
        self.firms[self.firm].gives(self.dice, kind)
    }

    fn in_path(&mut self, route: &Route, name: &str) -> String {
        match name {
            "id" => an_email_of(self.dice, self.firms).to_string(),
            "position" => self.dice.below(2).to_string(),
            "name" if route.method == Method::PUT => self.given("template"),
            "name" => anyones(self.dice, "template"),
            "entity" => anyones(self.dice, "entity"),
            "email" => anyones(self.dice, "address"),
            other => panic!("{} names a {other}: say here what it may be", route.path),
        }
    }

    /// `None` for what names nothing.
    fn in_query(&mut self, route: &Route, name: &str) -> Option<String> {
        let stores = route.method == Method::POST;
        Some(match name {
            "externalId" if stores => self.given("external"),
            "externalId" => anyones(self.dice, "external"),
            "to" => anyones(self.dice, "address"),
            "tag" => anyones(self.dice, "tag"),
            "entity" => anyones(self.dice, "entity"),
            "recipient" if !self.people.is_empty() && self.dice.one_in(2) => {
                self.dice.of(self.people).clone()
            }
            "recipient" => anyones(self.dice, "recipient"),
            "requestId" => anyones(self.dice, "request"),
            "providerMessageId" => format!("m-{}", an_email_of(self.dice, self.firms)),
            "code" => anyones(self.dice, "code"),
            "status" => self.dice.of(&Status::ALL).as_str().to_owned(),
            "category" => "TRANSIENT_ERROR".to_owned(),
            "captured" | "problematic" => (*self.dice.of(&["true", "false"])).to_owned(),
            "limit" | "days" | "version" => (1 + self.dice.below(4)).to_string(),
            "format" => (*self.dice.of(&["json", "eml"])).to_owned(),
            "since" => "2026-01-01T00:00:00Z".to_owned(),
            // Cursors have a turn of their own; the rest is about how an email is sent.
            "cursor" | "until" | "priority" | "delay" | "scheduledAt" | "ttl" | "callbackUrl"
            | "provider" | "retryPolicy" | "onUnknown" | "onSuppressed" => return None,
            other => panic!("{} is asked with {other}: say here what it may be", route.path),
        })
    }

    fn body(&mut self, route: &Route) -> Option<Content> {
        Some(Content::Json(match (route.method.as_str(), route.path.as_str()) {
            ("GET" | "DELETE", _) => return None,
            ("POST", "/v1/emails/{id}/cancel" | "/v1/emails/{id}/retry" | "/v1/emails/{id}/resend") => {
                return None;
            }
            ("POST", "/v1/email/send") => self.email(),
            ("POST", "/v1/email/batch") => {
                (0..1 + self.dice.below(3)).map(|_| self.email()).collect::<Vec<_>>().into()
            }
            ("POST", "/v1/email/raw") => return Some(Content::Eml(self.eml())),
            ("POST", "/v1/emails/{id}/release") => json!({ "to": self.given("address") }),
            ("POST", "/v1/dlq/replay") => self.replay(),
            ("POST", "/v1/suppressions") => {
                json!({ "email": self.given("address"), "reason": format!("{} asked", self.own().marker) })
            }
            ("PUT", "/v1/templates/{name}") => self.template(),
            ("POST", "/v1/templates/{name}/preview") => json!({ "variables": self.variables() }),
            (method, path) => panic!("{method} {path} is new: say here what its body is"),
        }))
    }

    /// An email that says in every field whose it is, or one that anybody might send, to the byte.
    fn email(&mut self) -> Value {
        let marker = self.own().marker;
        if self.dice.one_in(4) {
            return json!({ "to": "person-0@example.com", "subject": "Hello", "html": "<p>Hello</p>" });
        }
        let mut email = json!({
            "to": self.given("address"),
            "subject": format!("{marker} subject"),
            "tags": [self.given("tag")],
            "externalId": self.given("external"),
            "entity": { "id": self.given("entity"), "name": format!("{marker} entity") },
        });
        if self.dice.one_in(4) {
            email["template"] = anyones(self.dice, "template").into();
            email["variables"] = self.variables();
            email.as_object_mut().expect("an object").remove("subject");
        } else {
            email["html"] = format!("<p>{marker}</p>").into();
            email["text"] = format!("{marker} text").into();
        }
        if self.dice.one_in(2) {
            let content = STANDARD.encode(format!("{marker} attached"));
            email["attachments"] = json!([{ "filename": format!("{marker}.txt"), "content": content }]);
            email["headers"] = json!({ "X-Note": format!("{marker} note") });
            email["replyTo"] = format!("{marker} <reply@{marker}.example>").into();
        }
        if self.dice.one_in(2) {
            email["recipient"] = self.recipient();
        }
        if self.dice.one_in(4) {
            email["cc"] = json!([self.given("address")]);
            email["bcc"] = json!([self.given("address")]);
        }
        // A test key may send as anybody: it reaches nobody.
        if self.key == LIVE && self.dice.one_in(8) {
            let sender = self.dice.of(self.firms).marker;
            email["from"] = format!("shop@{sender}.example").into();
        }
        if self.dice.one_in(4) {
            email["delay"] = json!(3_600_000);
        }
        email
    }

    fn recipient(&mut self) -> Value {
        let marker = self.own().marker;
        let names = json!({ "nome": format!("{marker} name"), "razaoSocial": format!("{marker} legal") });
        let mut recipient = names;
        if !self.people.is_empty() && self.dice.one_in(3) {
            recipient["recipientId"] = self.dice.of(self.people).as_str().into();
        } else {
            recipient["externalId"] = self.given("recipient").into();
        }
        recipient
    }

    fn eml(&mut self) -> String {
        let marker = self.own().marker;
        let to = self.given("address");
        format!(
            "From: shop@{marker}.example\r\nTo: {to}\r\nSubject: {marker} raw\r\n\
             Date: Thu, 1 Jan 2026 00:00:00 +0000\r\nMessage-ID: <{marker}@{marker}.example>\r\n\
             MIME-Version: 1.0\r\nContent-Type: text/plain\r\n\r\n{marker} raw\r\n"
        )
    }

    fn template(&mut self) -> Value {
        let marker = self.own().marker;
        let turn = self.dice.below(3);
        json!({
            "subject": format!("{marker} template {turn}"),
            "html": format!("<p>{marker} {{{{ v_{marker} }}}}</p>"),
            "text": format!("{marker} text"),
        })
    }

    /// What its own templates need, now and then forgotten.
    fn variables(&mut self) -> Value {
        let marker = self.own().marker;
        if self.dice.one_in(3) { json!({}) } else { json!({ format!("v_{marker}"): "there" }) }
    }

    fn replay(&mut self) -> Value {
        let mut order = if self.dice.one_in(2) {
            let count = 1 + self.dice.below(4);
            let ids = (0..count).map(|_| an_email_of(self.dice, self.firms).to_string());
            json!({ "ids": ids.collect::<Vec<_>>() })
        } else {
            let mut filter = json!({});
            if self.dice.one_in(2) {
                filter["to"] = anyones(self.dice, "address").into();
            }
            if self.dice.one_in(3) {
                filter["code"] = anyones(self.dice, "code").into();
            }
            if self.dice.one_in(3) {
                filter["recipient"] = anyones(self.dice, "recipient").into();
            }
            json!({ "filter": filter })
        };
        if self.dice.one_in(2) {
            order["dryRun"] = true.into();
        }
        order
    }
}

/// Every text in a value.
fn texts(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::String(text) => into.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, into)),
        Value::Object(members) => members.values().for_each(|member| texts(member, into)),
        _ => {}
    }
}
