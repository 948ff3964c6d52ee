//! What the canaries are put into: emails that are sent, emails that fail, and requests that are wrong in every way.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::planted::Planted;
use super::witness::{Call, Witness};

const JSON: &str = "Content-Type: application/json";
const MESSAGE: &str = "Content-Type: message/rfc822";

/// The keys, as headers.
pub struct Keys {
    pub live: String,
    pub test: String,
    pub admin: String,
}

/// Everybody who takes part.
pub struct Traffic<'w, 'p> {
    pub witness: &'w mut Witness<'p>,
    pub planted: &'w Planted,
    pub keys: Keys,
}

impl Traffic<'_, '_> {
    fn text(&self, name: &str) -> &str {
        self.planted.text(name)
    }

    fn post(&mut self, what: &str, path: &str, headers: &[&str], body: &Value) -> (u16, Value) {
        self.post_bytes(what, path, headers, body.to_string().as_bytes())
    }

    fn post_bytes(&mut self, what: &str, path: &str, headers: &[&str], body: &[u8]) -> (u16, Value) {
        self.witness.call(&Call { what, method: "POST", path, headers, body: Some(body) })
    }

    fn ask(&mut self, what: &str, method: &str, path: &str, headers: &[&str]) -> (u16, Value) {
        self.witness.call(&Call { what, method, path, headers, body: None })
    }

    /// Hands in an email that has to be taken, and returns its id.
    fn send(&mut self, what: &str, headers: &[&str], body: &Value) -> String {
        let headers: Vec<&str> = [JSON].iter().chain(headers).copied().collect();
        let (status, answer) = self.post(what, "/v1/email/send", &headers, body);
        assert_eq!(status, 202, "{what}: {answer}");
        answer["outboxId"].as_str().expect("an id").to_owned()
    }

    /// An email with something planted in every field.
    fn full_email(&self) -> Value {
        let text = |name: &str| self.text(name).to_owned();
        json!({
            "to": text("to"),
            "from": text("from"),
            "cc": [text("copyone"), text("copytwo")],
            "bcc": [text("blindone"), text("blindtwo")],
            "replyTo": text("reply"),
            "subject": text("subject"),
            "html": text("html"),
            "text": text("text"),
            "headers": { "X-Note": text("header") },
            "tags": [text("tag")],
            "attachments": [{
                "filename": text("filename"),
                "contentType": "text/plain",
                "content": STANDARD.encode(text("attachment")),
                "contentId": text("contentid"),
            }],
            "recipient": {
                "externalId": text("recipient"),
                "cpfCnpj": text("cpf"),
                "nome": text("nome"),
                "razaoSocial": text("razao"),
                "email": text("to"),
            },
            "externalId": text("external"),
            "entity": { "id": text("entityid"), "name": text("entityname") },
            "callbackUrl": text("callback"),
        })
    }

    /// Emails that are sent, or captured. Returns their ids.
    pub fn what_goes_well(&mut self) -> Vec<String> {
        let (live, test) = (self.keys.live.clone(), self.keys.test.clone());
        let key = format!("Idempotency-Key: {}", self.text("idempotency"));
        let full = self.full_email();
        let mut ids = vec![self.send("a full email", &[&live, &key], &full)];
        assert_eq!(self.send("the same again", &[&live, &key], &full), ids[0]);
        ids.push(self.send("a full email with a test key", &[&test], &full));

        let mut hashed = self.full_email();
        hashed["recipient"] = json!({ "cpfCnpjHash": self.planted.hash("cpfhashed") });
        ids.push(self.send("the hash of a document", &[&live], &hashed));
        for name in ["cnpj", "cnpjletters"] {
            let mut email = self.full_email();
            email["recipient"] = json!({ "cpfCnpj": self.text(name), "nome": self.text("nome") });
            ids.push(self.send(name, &[&live], &email));
        }
        let mut closely = self.full_email();
        let markup = self.text("htmlclosely").to_owned();
        closely["html"] = json!(markup);
        ids.push(self.send("html that needs a closer look", &[&live], &closely));
        // A person of its own: one who moves to another address gets nothing more at the old one.
        let mut forgotten = self.to("erased");
        forgotten["recipient"] =
            json!({ "cpfCnpj": self.text("cpferased"), "nome": self.text("erasedname") });
        ids.push(self.send("a person who is to be forgotten", &[&live], &forgotten));
        ids
    }

    /// A small email to that canary.
    fn to(&self, name: &str) -> Value {
        json!({ "to": self.text(name), "subject": self.text("subject"), "html": self.text("html") })
    }

    /// Emails that a mail server refuses, defers or drops. Returns their ids and what becomes of them.
    pub fn what_fails_at_the_provider(&mut self) -> Vec<(String, &'static str)> {
        // One that is dropped may have been taken, and is tried again only after a while.
        const LATER: &str = "RETRY_SCHEDULED";
        let cases = [
            ("nobody", "main", "FAILED"),
            ("later", "main", "FAILED"),
            ("cut", "main", LATER),
            ("unwanted", "main", "FAILED"),
            ("refused", "rude", "FAILED"),
            ("busy", "rude", "FAILED"),
            ("dropped", "rude", LATER),
            ("quoted", "rude", "FAILED"),
            ("locked", "locked", "FAILED"),
        ];
        let live = self.keys.live.clone();
        let mut sent = Vec::new();
        for (name, provider, status) in cases {
            let mut email = self.to(name);
            email["provider"] = json!(provider);
            sent.push((self.send(name, &[&live], &email), status));
        }
        sent
    }

    /// Messages handed in as they are. Returns the ids of those that were taken.
    pub fn raw_messages(&mut self) -> Vec<String> {
        let (live, test) = (self.keys.live.clone(), self.keys.test.clone());
        let eml = |from: &str, html: &str| {
            format!(
                "From: {from}\r\nTo: {}\r\nSubject: {}\r\nX-Note: {}\r\nMIME-Version: 1.0\r\n\
                 Content-Type: text/html; charset=utf-8\r\n\r\n{html}\r\n",
                self.text("rawto"),
                self.text("rawsubject"),
                self.text("rawheader"),
            )
        };
        let body = self.text("rawbody").to_owned();
        let good = eml(self.text("from"), &body);
        let unsafe_html = eml(self.text("from"), &format!("<script>{body}</script>"));
        let foreign = eml(self.text("stranger"), &body);
        let broken = format!("To {}\r\n\r\n{body}", self.text("rawto"));
        let path = format!("/v1/email/raw?callbackUrl={}", self.text("callback"));
        let mut ids = Vec::new();
        let cases = [
            ("an .eml", &live, path.as_str(), good.as_str(), true),
            ("an .eml with a test key", &test, "/v1/email/raw", &good, true),
            ("an .eml with a script", &live, "/v1/email/raw", &unsafe_html, true),
            ("an .eml of a stranger", &live, "/v1/email/raw", &foreign, false),
            ("an .eml that is none", &live, "/v1/email/raw", &broken, false),
        ];
        for (what, key, path, eml, must_be_taken) in cases {
            let (status, answer) = self.post_bytes(what, path, &[key, MESSAGE], eml.as_bytes());
            assert!(status == 202 || !must_be_taken, "{what}: {answer}");
            ids.extend(answer["outboxId"].as_str().map(str::to_owned));
        }
        let path =
            format!("/v1/email/raw?callbackUrl=ftp://{}&tag={}", self.text("callback"), self.text("tag"));
        self.post_bytes("an .eml with wrong options", &path, &[&live, MESSAGE], good.as_bytes());
        self.post_bytes("an .eml called JSON", "/v1/email/raw", &[&live, JSON], good.as_bytes());
        ids
    }

    /// Bodies that are wrong, field by field and altogether.
    pub fn wrong_bodies(&mut self) {
        let live = self.keys.live.clone();
        let headers = [live.as_str(), JSON];
        let wrong = self.wrong_fields();
        for (field, value) in &wrong {
            let mut email = self.full_email();
            email[*field] = value.clone();
            let what = format!("a wrong {field}: {}", value.to_string().chars().take(20).collect::<String>());
            let (status, answer) = self.post(&what, "/v1/email/send", &headers, &email);
            assert!((400..500).contains(&status), "{what}: {status} {answer}");
        }
        let all: serde_json::Map<String, Value> =
            wrong.iter().map(|(field, value)| ((*field).to_owned(), value.clone())).collect();
        let all = Value::Object(all);
        self.post("everything wrong", "/v1/email/send", &headers, &all);
        let mut batch: Vec<Value> = wrong
            .iter()
            .map(|(field, value)| {
                let mut email = self.to("batchto");
                email[*field] = value.clone();
                email
            })
            .collect();
        batch.extend([self.to("batchto"), json!(self.text("subject"))]);
        let (status, answer) = self.post("a batch", "/v1/email/batch", &headers, &json!(batch));
        assert_eq!((status, &answer["accepted"]), (202, &json!(1)), "{answer}");
        self.post("a batch that is none", "/v1/email/batch", &headers, &all);
        let mut templated = self.to("to");
        templated["html"] = Value::Null;
        templated["template"] = json!(self.text("template"));
        templated["variables"] = json!({ "name": self.text("nome") });
        let (status, answer) =
            self.post("a template that is not there", "/v1/email/send", &headers, &templated);
        assert_eq!(status, 422, "{answer}");
        let key = format!("Idempotency-Key: {}", self.text("idempotency"));
        self.post("a key used again", "/v1/email/send", &[&live, JSON, &key], &self.to("to"));
        let key = format!("Idempotency-Key: {}\t", self.text("idempotency").repeat(30));
        self.post("a key that is too long", "/v1/email/send", &[&live, JSON, &key], &self.to("to"));
    }

    /// Each field with a value that is refused.
    fn wrong_fields(&self) -> Vec<(&'static str, Value)> {
        let text = |name: &str| self.text(name).to_owned();
        let with =
            |before: &str, name: &str, after: &str| json!(format!("{before}{}{after}", self.text(name)));
        let attachment = |filename: Value, content: Value| {
            json!([{ "filename": filename, "content": content, "contentType": with("", "filename", ";"),
                     "contentId": with("<", "contentid", ">"), "encoding": text("attachment") }])
        };
        let document =
            |name: &str| json!({ "cpfCnpj": format!("{}0", self.text(name)), "email": text("to") });
        vec![
            ("to", with("<", "to", " x")),
            ("to", json!([text("to")])),
            ("from", with("", "stranger", "")),
            ("from", with("", "from", ">>")),
            ("cc", json!([with("x ", "copyone", ""), text("copytwo"), 7])),
            ("bcc", json!(vec![text("blindone"); 6])),
            ("replyTo", with("", "reply", ",")),
            ("subject", with("a\r\nBcc: ", "blindone", "")),
            ("subject", with("Boleto de ", "cpf", "")),
            ("subject", json!(text("subject").repeat(20))),
            ("html", with("<script>", "html", "</script>")),
            ("html", with("<a href=\"javascript:", "htmlclosely", "\">x</a>")),
            ("html", with("<img/onerror=", "html", ">")),
            ("html", json!(text("html").repeat(20_000))),
            ("text", with("\u{0}", "text", "")),
            ("headers", json!({ "X-Note": with("a\r\nb: ", "header", ""), "Bcc": text("blindtwo") })),
            ("headers", json!([text("header")])),
            ("tags", json!([with("", "tag", "\u{e9}"), text("cpf")])),
            ("attachments", attachment(with("../", "filename", ""), with("*", "attachment", ""))),
            ("attachments", with("", "attachment", "")),
            ("recipient", json!({ "nome": text("nome"), "razaoSocial": text("razao"), "cpf": text("cpf") })),
            ("recipient", json!({ "externalId": text("cpf"), "email": text("copyone") })),
            ("recipient", json!({ "recipientId": text("recipient"), "nome": with("\n", "nome", "") })),
            ("recipient", json!({ "cpfCnpj": text("cpf"), "cpfCnpjHash": self.planted.hash("cpfhashed") })),
            ("recipient", json!({ "cpfCnpjHash": format!("{}0", self.planted.hash("cpf")) })),
            ("recipient", document("cpf")),
            ("recipient", document("cnpj")),
            ("recipient", document("cnpjletters")),
            ("externalId", json!(text("cnpj"))),
            ("externalId", with("\n", "external", "")),
            ("entity", json!({ "name": text("entityname"), "id": text("cnpj"), "note": text("entityid") })),
            ("priority", with("", "subject", "")),
            ("delay", with("", "subject", "")),
            ("scheduledAt", with("", "subject", "")),
            ("ttl", with("", "subject", "")),
            ("template", with("", "template", "")),
            ("variables", json!({ "name": text("nome") })),
            ("callbackUrl", with("ftp://", "callback", "")),
            ("callbackUrl", json!(format!("https://user:{}@example.com/", text("external")))),
            ("provider", with("", "subject", "")),
            ("retryPolicy", with("", "subject", "")),
            ("onUnknown", with("", "subject", "")),
            ("companyId", with("", "subject", "")),
        ]
    }

    /// Bytes that are no JSON, or no request at all.
    pub fn garbage(&mut self) {
        let live = self.keys.live.clone();
        let subject = self.text("subject").to_owned();
        let bodies: Vec<(&str, Vec<u8>)> = vec![
            ("truncated", format!("{{\"subject\": \"{subject}").into_bytes()),
            ("a bare word", format!("{{\"subject\": {subject}}}").into_bytes()),
            ("a name twice", format!("{{\"subject\": \"x\", \"subject\": \"{subject}\"}}").into_bytes()),
            ("a name that is none", format!("{{{subject}: 1}}").into_bytes()),
            ("something behind it", format!("{{}} {subject}").into_bytes()),
            ("a wrong escape", format!("{{\"subject\": \"\\x{subject}\"}}").into_bytes()),
            ("a number out of range", format!("{{\"{}\": 1e999}}", "subject").into_bytes()),
            ("too deep", format!("{}\"{subject}\"", "[".repeat(100)).into_bytes()),
            ("not UTF-8", [subject.as_bytes(), b"\xff"].concat()),
            ("a control character", format!("{{\"subject\": \"\u{1}{subject}\"}}").into_bytes()),
            ("only a text", format!("\"{subject}\"").into_bytes()),
        ];
        for (what, body) in bodies {
            for path in ["/v1/email/send", "/v1/email/batch"] {
                let (status, answer) = self.post_bytes(what, path, &[&live, JSON], &body);
                assert!((400..500).contains(&status), "{what}: {answer}");
            }
        }
        let kind = format!("Content-Type: text/{}", self.text("tag"));
        self.post_bytes("another type", "/v1/email/send", &[&live, &kind], subject.as_bytes());
        let broken =
            format!("GET /v1/emails HTTP/1.1\r\nHost: x\r\n{live} {subject}\u{1}\u{7f}\r\n bad\r\n\r\n");
        self.witness.call_with_garbage("a broken header", broken.as_bytes());
        self.witness.call_with_garbage("no request", format!("{subject}\r\n\r\n").as_bytes());
        let cut = format!(
            "POST /v1/email/send HTTP/1.1\r\nHost: x\r\n{live}\r\n{JSON}\r\nContent-Length: 900\r\n\r\n"
        );
        self.witness
            .call_with_garbage("a body cut off", format!("{cut}{{\"subject\": \"{subject}").as_bytes());
    }

    /// Wrong keys and tokens, and canaries in paths, queries and headers.
    pub fn strangers(&mut self) {
        let (live, admin) = (self.keys.live.clone(), self.keys.admin.clone());
        let wrong = self.text("wrongkey").to_owned();
        let wrong_token = self.text("wrongtoken").to_owned();
        let headers = [
            format!("X-API-Key: live_{wrong}"),
            format!("X-API-Key: {wrong}"),
            format!("X-API-Key: test_{}x", self.text("livekey")),
            format!("Authorization: Bearer live_{wrong}"),
            format!("Authorization: Basic {}", STANDARD.encode(&wrong)),
            format!("X-Admin-Token: {wrong_token}"),
            format!("Authorization: Bearer {wrong_token}"),
            format!("X-Admin-Token: {}x", self.text("admintoken")),
        ];
        for header in &headers {
            for path in ["/v1/emails", "/v1/admin/companies"] {
                let (status, answer) = self.ask("a wrong key", "GET", path, &[header]);
                assert_eq!(status, 401, "{answer}");
            }
        }
        let (to, token) = (self.text("filter").to_owned(), self.text("livekey").to_owned());
        let encoded = to.replace('@', "%40");
        let paths = [
            format!("/v1/emails?api_key={wrong}"),
            format!("/v1/emails?token={token}"),
            format!("/v1/{to}"),
            format!("/v1/emails/{to}"),
            format!("/v1/emails/{encoded}/events"),
            format!("/v1/emails/{token}/content"),
            format!("/v1/dlq/{to}"),
            format!("/v1/admin/companies/{to}"),
        ];
        for path in &paths {
            for method in ["GET", "DELETE", "POST"] {
                self.ask("a canary in the path", method, path, &[]);
                self.ask("a canary in the path, with a key", method, path, &[&live]);
                self.ask("a canary in the path, with the token", method, path, &[&admin]);
            }
        }
        let request_id = format!("X-Request-Id: {to}");
        self.ask("an id of the request that is none", "GET", "/v1/emails", &[&request_id, &live]);
        self.ask("an id of the request that is none", "GET", "/v1/none", &[&request_id]);
    }

    /// Filters of lists and replays.
    pub fn filters(&mut self) {
        let live = self.keys.live.clone();
        let to = self.text("filter").to_owned();
        let (plain, encoded) = (to.replace('+', "%2B"), to.replace('@', "%40").replace('+', "%2B"));
        let good = [("to", plain.as_str()), ("to", encoded.as_str()), ("recipient", plain.as_str())];
        let wrong = [
            ("to", format!("{encoded}%20x")),
            ("status", encoded.clone()),
            ("since", encoded.clone()),
            ("limit", encoded.clone()),
            ("cursor", encoded.clone()),
            ("address", encoded.clone()),
            ("code", format!("{encoded}%0A")),
        ];
        for list in ["/v1/emails", "/v1/dlq"] {
            for (name, value) in good {
                let (status, answer) =
                    self.ask("a filter", "GET", &format!("{list}?{name}={value}"), &[&live]);
                assert_eq!(status, 200, "{answer}");
            }
            for (name, value) in &wrong {
                let what = format!("a wrong filter {name}");
                let (status, answer) = self.ask(&what, "GET", &format!("{list}?{name}={value}"), &[&live]);
                assert_eq!(status, 400, "{answer}");
            }
        }
        let orders = [
            (json!({ "filter": { "to": to } }), 200),
            (json!({ "filter": { "to": to, "recipient": to }, "dryRun": true }), 200),
            (json!({ "filter": { "to": format!("{to} x"), "category": to, "since": to, "name": to } }), 400),
            (json!({ "ids": [to] }), 400),
            (json!({ "ids": to, "filter": to, "dryRun": to }), 400),
        ];
        for (order, expected) in orders {
            let (status, answer) = self.post("a replay", "/v1/dlq/replay", &[&live, JSON], &order);
            assert_eq!(status, expected, "{answer}");
        }
    }

    /// The operator's part of the API.
    pub fn administration(&mut self) {
        let admin = self.keys.admin.clone();
        let headers = [admin.as_str(), JSON];
        let companies = "/v1/admin/companies";
        let company = json!({
            "name": self.text("company"),
            "from": self.text("sender"),
            "adminEmail": self.text("companyadmin"),
        });
        let (status, added) = self.post("a company", companies, &headers, &company);
        assert_eq!(status, 201, "{added}");
        let (status, answer) = self.post("the same company", companies, &headers, &company);
        assert_eq!(status, 409, "{answer}");
        let wrong = json!({
            "name": format!("{}\n", self.text("company")),
            "from": format!("{}>", self.text("sender")),
            "senders": [self.text("sender"), self.text("nome")],
            "adminEmail": format!("{} x", self.text("companyadmin")),
            "route": [self.text("company")],
            "retryPolicy": self.text("company"),
            "weight": self.text("company"),
            "owner": self.text("companyadmin"),
        });
        self.post("a wrong company", companies, &headers, &wrong);
        let keys = format!("{companies}/{}/keys", added["id"].as_str().expect("an id"));
        let wrong = json!({ "label": self.text("label").repeat(20), "scopes": [self.text("label")],
                            "mode": self.text("label"), "expiresAt": self.text("label") });
        let (status, answer) = self.post("a wrong key", &keys, &headers, &wrong);
        assert_eq!(status, 400, "{answer}");
        self.ask("the companies", "GET", companies, &[&admin]);
        self.ask("the keys", "GET", &keys, &[&admin]);
    }

    /// Looks at the emails in every way the API has, and tries to change what has ended.
    pub fn look_at(&mut self, ids: &[String]) {
        let live = self.keys.live.clone();
        for id in ids {
            for part in ["", "/events", "/content"] {
                self.ask("an email", "GET", &format!("/v1/emails/{id}{part}"), &[&live]);
            }
            for verb in ["cancel", "retry"] {
                self.ask(verb, "POST", &format!("/v1/emails/{id}/{verb}"), &[&live]);
            }
        }
        for path in ["/v1/emails", "/v1/dlq"] {
            let (status, answer) = self.ask("a list", "GET", path, &[&live]);
            assert_eq!(status, 200, "{answer}");
        }
    }
}
