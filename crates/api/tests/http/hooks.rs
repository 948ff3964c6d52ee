//! Webhooks in the making: signed as Resend signs, and with a certificate that is made on the spot; and the web as it is
//! seen through the port `Fetch`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use api::{ApiSettings, Fetch, NotFetched, WebhookSource, Webhooks};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use feedback::sns::{Root, Trust, TrustedHost};
use feedback::svix::{SigningSecret, sign};
use model::{Clock as _, EmailId};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_RSA_SHA256, SigningKey as _,
    date_time_ymd,
};
use serde_json::{Value, json};

use crate::world::{Answer, Wanted, World, world_of};

pub const SECRET: &str = "whsec_bmV3IHNlY3JldCBvZiB0aGUgc2hvcCAwMTIzNDU2Nzg5";
pub const OLD_SECRET: &str = "whsec_b2xkIHNlY3JldCBvZiB0aGUgc2hvcCAwMTIzNDU2Nzg5";
pub const STRANGE_SECRET: &str = "whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldCAwMTIzNDU2Nzg5";
pub const TOPIC: &str = "arn:aws:sns:us-east-1:123456789012:ses-events";
pub const CERTIFICATE_URL: &str = "https://sns.test:8443/signing.pem";

/// The web: pages by address; what is not there cannot be reached.
#[derive(Default)]
pub struct Web {
    pages: Mutex<HashMap<String, Bytes>>,
    asked: Mutex<Vec<String>>,
}

impl Web {
    pub fn put(&self, url: &str, page: impl Into<Bytes>) {
        self.pages.lock().expect("no panic").insert(url.to_owned(), page.into());
    }

    pub fn remove(&self, url: &str) {
        self.pages.lock().expect("no panic").remove(url);
    }

    /// What was asked for since the last time.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().expect("no panic"))
    }
}

#[async_trait]
impl Fetch for Web {
    async fn get(&self, url: &str) -> Result<Bytes, NotFetched> {
        self.asked.lock().expect("no panic").push(url.to_owned());
        let page = self.pages.lock().expect("no panic").get(url).cloned();
        page.ok_or_else(|| NotFetched("not found".into()))
    }
}

/// Who signs for SNS, and a stranger with a certificate of the same name.
pub struct Signers {
    pub key: KeyPair,
    pub pem: String,
    pub strange_key: KeyPair,
    pub strange_pem: String,
    root_pem: String,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(2027, 1, 1);
    params
}

impl Signers {
    pub fn new() -> Self {
        let rsa = || KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key");
        let (key, strange_key) = (rsa(), rsa());
        let root_key = KeyPair::generate().expect("a key");
        let mut root = params("Root of the tests");
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root_pem = root.self_signed(&root_key).expect("a root").pem();
        let issuer = Issuer::from_params(&root, &root_key);
        let pem = params("sns.test").signed_by(&key, &issuer).expect("a certificate").pem();
        let strange_pem = params("sns.test").self_signed(&strange_key).expect("a certificate").pem();
        Self { key, pem, strange_key, strange_pem, root_pem }
    }

    fn trust(&self) -> Trust {
        Trust {
            topics: vec![TOPIC.to_owned()],
            hosts: vec![TrustedHost::parse("sns.test:8443").expect("a host")],
            roots: Root::read_all(&self.root_pem).expect("a root"),
        }
    }
}

/// A world with the providers `post` (Resend, two secrets) and `main` (SES).
pub struct Stage {
    pub world: World,
    pub web: Arc<Web>,
    pub signers: Signers,
}

pub fn secret(text: &str) -> SigningSecret {
    SigningSecret::parse(text).expect("a secret")
}

impl Stage {
    pub async fn new() -> Self {
        let signers = Signers::new();
        let web = Arc::new(Web::default());
        web.put(CERTIFICATE_URL, signers.pem.clone());
        let sources = [
            ("post".to_owned(), WebhookSource::Resend { secrets: vec![secret(SECRET), secret(OLD_SECRET)] }),
            ("main".to_owned(), WebhookSource::Ses { trust: signers.trust() }),
        ];
        let wanted = Wanted::default();
        let webhooks = Webhooks::new(sources, web.clone());
        let settings = ApiSettings { webhooks, ..wanted.settings };
        let world = world_of(Wanted { settings, ..wanted }).await;
        Self { world, web, signers }
    }

    pub fn now_secs(&self) -> i64 {
        self.world.clock.now().millis() / 1000
    }

    /// An event of Resend, signed now.
    pub fn resend(&self, id: &str, event: &Value) -> Hook {
        self.resend_by(SECRET, id, event, self.now_secs())
    }

    pub fn resend_by(&self, secret_text: &str, id: &str, event: &Value, secs: i64) -> Hook {
        let body = event.to_string();
        let signature = sign(&secret(secret_text), id, secs, body.as_bytes());
        let headers =
            [("svix-id", id.to_owned()), ("svix-timestamp", secs.to_string()), ("svix-signature", signature)];
        Hook { path: "/v1/webhooks/resend".into(), headers: headers.into(), body }
    }

    /// A notification of SNS that holds this message.
    pub fn ses(&self, id: &str, event: &Value) -> Hook {
        self.sns(&Notice::of(id, &event.to_string()))
    }

    pub fn sns(&self, notice: &Notice) -> Hook {
        notice.signed_by(&self.signers.key)
    }

    pub async fn send(&self, hook: &Hook) -> Answer {
        let mut call = self.world.post(&hook.path);
        for (name, value) in &hook.headers {
            call = call.header(name, value);
        }
        call.body("text/plain; charset=UTF-8", hook.body.clone()).send().await
    }

    /// Sends it and returns what became of it.
    pub async fn result(&self, hook: &Hook) -> String {
        let answer = self.send(hook).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["result"].as_str().expect("a result").to_owned()
    }

    pub async fn status(&self, id: EmailId) -> String {
        let email = self.world.get(&format!("/v1/emails/{id}")).key(&self.world.live).send().await.json();
        email["status"].as_str().expect("a status").to_owned()
    }

    /// An email to that address that a provider took.
    pub async fn taken(&self, changes: Value) -> EmailId {
        let id = self.world.sent_with(&self.world.live, changes).await;
        assert_eq!(self.world.deliver_all("post").await, 1);
        id
    }
}

#[derive(Debug, Clone)]
pub struct Hook {
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

/// A message of SNS before it is signed.
#[derive(Debug, Clone)]
pub struct Notice {
    pub kind: &'static str,
    pub id: String,
    pub topic: String,
    pub message: String,
    pub certificate_url: String,
    pub subscribe_url: Option<String>,
}

impl Notice {
    pub fn of(id: &str, message: &str) -> Self {
        Self {
            kind: "Notification",
            id: id.to_owned(),
            topic: TOPIC.to_owned(),
            message: message.to_owned(),
            certificate_url: CERTIFICATE_URL.to_owned(),
            subscribe_url: None,
        }
    }

    pub fn confirmation(kind: &'static str, subscribe_url: &str) -> Self {
        Self {
            kind,
            subscribe_url: Some(subscribe_url.to_owned()),
            ..Self::of("confirmation", "please confirm")
        }
    }

    pub fn signed_by(&self, key: &KeyPair) -> Hook {
        let Self { kind, id, topic, message, .. } = self;
        let (url, token) = match &self.subscribe_url {
            Some(url) => (format!("SubscribeURL\n{url}\n"), "Token\nt-1\n"),
            None => (String::new(), ""),
        };
        let text = format!(
            "Message\n{message}\nMessageId\n{id}\n{url}Timestamp\n2026-01-01T00:00:00.000Z\n{token}\
             TopicArn\n{topic}\nType\n{kind}\n"
        );
        let mut body = json!({
            "Type": kind, "MessageId": id, "TopicArn": topic, "Message": message,
            "Timestamp": "2026-01-01T00:00:00.000Z", "SignatureVersion": "2",
            "Signature": STANDARD.encode(key.sign(text.as_bytes()).expect("signed")),
            "SigningCertURL": self.certificate_url,
        });
        if let Some(url) = &self.subscribe_url {
            body["SubscribeURL"] = json!(url);
            body["Token"] = json!("t-1");
        }
        Hook { path: "/v1/webhooks/ses".into(), headers: Vec::new(), body: body.to_string() }
    }
}

/// An event of Resend about an email of ours to one address.
pub fn resend_event(kind: &str, id: EmailId, to: &str) -> Value {
    let mut event = json!({
        "type": kind,
        "created_at": "2026-01-01T00:00:00.000Z",
        "data": { "email_id": format!("m-{id}"), "to": [to], "tags": { "posthaste_id": id.to_string() } },
    });
    match kind {
        "email.bounced" => {
            event["data"]["bounce"] =
                json!({ "type": "Permanent", "subType": "General", "message": "550 no such user" });
        }
        "email.failed" => event["data"]["failed"] = json!({ "reason": "reached_daily_quota" }),
        "email.clicked" => event["data"]["click"] = json!({ "link": "https://example.com/a" }),
        _ => {}
    }
    event
}

/// An event of SES about the message that SES knows by `m-` and our id.
pub fn ses_event(kind: &str, id: EmailId, to: &str) -> Value {
    let person = json!([{ "emailAddress": to }]);
    let mut event = json!({
        "eventType": kind,
        "mail": { "messageId": format!("m-{id}"), "destination": [to], "timestamp": "2026-01-01T00:00:00.000Z" },
    });
    match kind {
        "Delivery" => event["delivery"] = json!({ "recipients": [to] }),
        "Bounce" => {
            event["bounce"] = json!({
                "bounceType": "Permanent", "bounceSubType": "General", "bouncedRecipients": person,
            });
        }
        "Complaint" => event["complaint"] = json!({ "complainedRecipients": person }),
        "DeliveryDelay" => event["deliveryDelay"] = json!({ "delayedRecipients": person }),
        "Reject" => event["reject"] = json!({ "reason": "Bad content" }),
        _ => {}
    }
    event
}
