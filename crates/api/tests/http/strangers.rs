//! Thousands of random requests of companies that name each other's things: nobody is told anything that only another has,
//! and nothing of a company changes while others are at work. The routes come from the OpenAPI document.
//!
//! Ten thousand take two minutes: `POSTHASTE_TEST_CROSSINGS=10000`. `POSTHASTE_TEST_SEED` has a run again.

mod asks;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::http::Method;
use model::{Claim, EmailId, Verdict};
use serde_json::{Value, json};
use testkit::a_failure;

use self::asks::{Ask, Asker, Content, Route, routes};
use self::names::{Firm, LIVE, MARKERS, Owners, ids_in, leaks};
use crate::dice::Dice;
use crate::hooks::{Stage, resend_event};
use crate::world::{Answer, Call};

/// What a company reads of its own, by address.
type Picture = BTreeMap<String, String>;

/// Every list of a company.
const LISTS: [&str; 6] = [
    "/v1/emails",
    "/v1/dlq",
    "/v1/suppressions",
    "/v1/recipients",
    "/v1/recipients?problematic=true",
    "/v1/alerts",
];
/// Emails of a company that a picture shows in every detail: so many of the first, and of the last.
const DETAILED: usize = 5;

struct Run {
    stage: Stage,
    seed: u64,
    done: usize,
    dice: Dice,
    firms: Vec<Firm>,
    owners: Owners,
    people: Vec<String>,
    routes: Vec<Route>,
    /// Cursors that were given out: whose, for what, which.
    cursors: Vec<(usize, String, String)>,
    pictures: Vec<Picture>,
    /// How often each route knew what was asked for (it did it, or said why not), and how often it was asked for something of another company.
    tally: BTreeMap<String, (usize, usize)>,
    /// Lists that had something in them.
    filled: BTreeSet<String>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("POSTHASTE_TEST_SEED={} shows it again, at operation {}", self.seed, self.done);
        }
    }
}

impl Run {
    async fn new(seed: u64) -> Self {
        let stage = Stage::new().await;
        let mut firms = Vec::new();
        let mut owners = Owners::default();
        for (number, marker) in MARKERS.into_iter().enumerate() {
            let firm = Firm::new(&stage.world, marker).await;
            owners.learn(&firm.id.to_string(), number);
            firms.push(firm);
        }
        let routes = routes(&stage.world.document);
        assert!(routes.len() >= 30, "only {} routes", routes.len());
        let pictures = firms.iter().map(|_| Picture::new()).collect();
        let (people, cursors, tally, filled) = Default::default();
        let (done, dice) = (0, Dice(seed));
        let mut run =
            Self { stage, seed, done, dice, firms, owners, people, routes, cursors, pictures, tally, filled };
        run.furnish().await;
        run
    }

    /// Something of every kind, everybody's.
    async fn furnish(&mut self) {
        let place = |run: &Self, method: Method, path: &str| {
            run.routes.iter().position(|route| route.is(method.clone(), path)).expect("a route")
        };
        let send = place(self, Method::POST, "/v1/email/send");
        let suppress = place(self, Method::POST, "/v1/suppressions");
        let template = place(self, Method::PUT, "/v1/templates/{name}");
        for firm in 0..self.firms.len() {
            for _ in 0..8 {
                self.ask_route(firm, template).await;
            }
            for _ in 0..40 {
                self.ask_route(firm, send).await;
            }
        }
        for _ in 0..3 {
            self.time_passes().await;
        }
        for firm in 0..self.firms.len() {
            self.ask_route(firm, suppress).await;
            self.pictures[firm] = self.picture(firm).await;
        }
    }

    /// One company is busy for a while; the others find everything as they left it.
    async fn turn(&mut self) {
        let firm = self.dice.below(self.firms.len());
        for _ in 0..=self.dice.below(60) {
            self.done += 1;
            match self.dice.below(20) {
                0..2 if !self.cursors.is_empty() => self.ask_cursor(firm).await,
                2 => self.ask_as_operator(firm).await,
                _ => {
                    let route = self.dice.below(self.routes.len());
                    self.ask_route(firm, route).await;
                }
            }
        }
        for other in (0..self.firms.len()).filter(|other| *other != firm) {
            let now = self.picture(other).await;
            for (path, shown) in &now {
                let before = self.pictures[other].get(path).map(String::as_str).unwrap_or_default();
                let who = [self.firms[other].marker, self.firms[firm].marker];
                assert_eq!(before, shown, "{path} of {} changed while {} was at work", who[0], who[1]);
            }
        }
        self.pictures[firm] = self.picture(firm).await;
        if self.dice.one_in(6) {
            self.time_passes().await;
            for firm in 0..self.firms.len() {
                self.pictures[firm] = self.picture(firm).await;
            }
        }
    }

    async fn ask_route(&mut self, firm: usize, route: usize) {
        let Self { dice, firms, people, routes, .. } = self;
        let route = &routes[route];
        let ask = Asker { key: dice.below(2), dice, firms, firm, people }.ask(route);
        let (name, method) = (format!("{} {}", route.method, route.path), route.method.clone());
        let expected = self.expected_count(firm, &name, &ask).await;
        let answer = self.send(firm, method, &ask).await;
        let is_foreign = ask.said.iter().any(|said| self.is_foreign(firm, said));
        let place = format!("{name} as {} {:?}: {}", self.firms[firm].marker, ask.said, answer.text());
        self.check_answer(firm, &name, &ask, &answer, &place);
        if let Some((field, expected)) = expected.filter(|_| answer.status == 200) {
            assert_eq!(answer.json()[field], expected, "{field}: {place}");
        }
        let (good, foreign) = self.tally.entry(name).or_default();
        *good += usize::from(answer.status < 300 || answer.status == 409);
        *foreign += usize::from(is_foreign);
        self.learn(firm, &ask, &answer);
    }

    async fn send(&mut self, firm: usize, method: Method, ask: &Ask) -> Answer {
        self.stage.world.clock.advance(Duration::from_millis(2));
        let key = self.firms[firm].keys[ask.key].clone();
        let request_id = self.firms[firm].gives(&mut self.dice, "request");
        let mut call = self.stage.world.call(method, &ask.path).key(&key).header("x-request-id", request_id);
        if let Some(key) = &ask.idempotency_key {
            call = call.header("idempotency-key", key);
        }
        let answer = match &ask.body {
            Some(Content::Json(body)) => call.json(body).await,
            Some(Content::Eml(eml)) => call.body("message/rfc822", eml.clone()).send().await,
            None => call.send().await,
        };
        self.check_leaks(firm, &ask.path, &ask.said, &answer);
        answer
    }

    fn check_leaks(&self, firm: usize, path: &str, said: &[String], answer: &Answer) {
        let mut text = format!("{} {}", answer.status, answer.text());
        for (name, value) in &answer.headers {
            text.push_str(&format!("\n{name}: {}", String::from_utf8_lossy(value.as_bytes())));
        }
        let leaks = leaks(&text, said, &self.firms, firm, &self.owners);
        assert!(
            leaks.is_empty(),
            "{} was told {leaks:?} by {path} {said:?}: {text}",
            self.firms[firm].marker
        );
        assert!(answer.status < 500, "{path} {said:?}: {text}");
    }

    /// Whether only another company has this.
    fn is_foreign(&self, firm: usize, said: &str) -> bool {
        let own = &self.firms[firm];
        MARKERS.iter().any(|marker| *marker != own.marker && said.contains(marker))
            || ids_in(said)
                .any(|id| self.owners.of(id).is_some_and(|owner| owner != firm) && !own.wrote.contains(id))
    }

    fn check_answer(&self, firm: usize, route: &str, ask: &Ask, answer: &Answer, place: &str) {
        let body = || answer.json();
        if ask.named.iter().any(|named| self.is_foreign(firm, named)) {
            if route.contains("{entity}") {
                assert!(answer.status == 400 || tells_of_nothing(&body()), "{place}");
            } else {
                assert_eq!(answer.status, 404, "{place}");
            }
        } else if route.starts_with("GET") && ask.said.iter().any(|said| self.is_foreign(firm, said)) {
            let is_empty = answer.status == 200 && body()["data"] == json!([]);
            assert!(is_empty || answer.status == 400, "{place}");
        }
        let sender = match &ask.body {
            Some(Content::Json(body)) => body["from"].as_str(),
            _ => None,
        };
        if sender.is_some_and(|sender| self.is_foreign(firm, sender)) {
            assert!((400..500).contains(&answer.status), "{place}");
        }
        // A key that it never used itself is a new one, whoever else did.
        if let Some(key) =
            ask.idempotency_key.as_ref().filter(|key| !self.firms[firm].used_keys.contains(*key))
        {
            assert_eq!(answer.header("idempotent-replayed"), None, "{key} {place}");
            assert!(!answer.text().contains("IDEMPOTENCY_KEY_REUSED"), "{key} {place}");
        }
    }

    /// What a change has to count, by what the company can see of its own.
    async fn expected_count(&mut self, firm: usize, route: &str, ask: &Ask) -> Option<(&'static str, usize)> {
        let Some(Content::Json(body)) = &ask.body else {
            return None;
        };
        match route {
            "POST /v1/dlq/replay" => {
                let query: Vec<String> = body["filter"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
                    .collect();
                let letters = self.list(firm, &format!("/v1/dlq?{}", query.join("&"))).await;
                let asked = body["ids"].as_array();
                let mut meant = 0;
                for letter in letters {
                    let id = &letter["outboxId"];
                    let path = format!("/v1/emails/{}", id.as_str().expect("an id"));
                    // With a test key those of test keys.
                    let is_reached = ask.key == LIVE || self.read(firm, &path).await.json()["mode"] == "test";
                    meant += usize::from(is_reached && asked.is_none_or(|ids| ids.contains(id)));
                }
                Some(("matched", meant))
            }
            "POST /v1/suppressions" => {
                let wanted = body["email"].as_str().expect("an address");
                let there = self.list(firm, "/v1/suppressions").await;
                Some(("added", usize::from(!there.iter().any(|item| item["email"] == wanted))))
            }
            _ => None,
        }
    }

    /// Whose the new ids are, which keys are used up, which cursors there are.
    fn learn(&mut self, firm: usize, ask: &Ask, answer: &Answer) {
        if answer.status == 202 {
            let body = answer.json();
            let is_new = answer.header("idempotent-replayed").is_none();
            for item in body["results"].as_array().unwrap_or(&vec![body.clone()]) {
                let Some(id) = item["outboxId"].as_str() else { continue };
                assert_eq!(self.owners.of(id).is_none(), is_new, "{id} in {body}");
                self.owners.learn(id, firm);
                if is_new {
                    self.firms[firm].emails.push(id.parse().expect("an id"));
                }
            }
            let ids: Vec<String> = ask.said.iter().flat_map(|said| ids_in(said)).map(str::to_owned).collect();
            self.firms[firm].wrote.extend(ids);
            self.firms[firm].used_keys.extend(ask.idempotency_key.clone());
        }
        let is_page = answer.status == 200 && answer.text().contains("\"nextCursor\":\"");
        if is_page && self.cursors.len() < 400 {
            let cursor = answer.json()["nextCursor"].as_str().expect("a cursor").to_owned();
            self.cursors.push((firm, ask.path.clone(), cursor));
        }
    }

    /// With a cursor of anybody's, as it was given out or with a piece of it changed.
    async fn ask_cursor(&mut self, firm: usize) {
        let (owner, path, mut cursor) = self.dice.of(&self.cursors).clone();
        let list = path.split('?').next().expect("a path").to_owned();
        let forges = self.dice.one_in(2);
        let path = match (forges, path.contains('?')) {
            (true, _) => {
                cursor = forged(&mut self.dice, &cursor);
                format!("{list}?cursor={cursor}")
            }
            (false, true) => format!("{path}&cursor={cursor}"),
            (false, false) => format!("{path}?cursor={cursor}"),
        };
        let said = vec![path.clone(), cursor];
        let ask = Ask { key: LIVE, path, named: Vec::new(), said, body: None, idempotency_key: None };
        let answer = self.send(firm, Method::GET, &ask).await;
        if owner != firm || forges {
            assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID_CURSOR"), "{}", ask.path);
        } else {
            assert_eq!(answer.status, 200, "{}: {}", ask.path, answer.text());
        }
    }

    /// Where only the operator may go.
    async fn ask_as_operator(&mut self, firm: usize) {
        let other = self.dice.of(&self.firms).id;
        let email = names::an_email_of(&mut self.dice, &self.firms);
        let paths = [
            "/v1/admin/companies".to_owned(),
            format!("/v1/admin/companies/{other}"),
            format!("/v1/admin/companies/{other}/keys"),
            format!("/v1/admin/emails/{email}/reports"),
        ];
        let path = self.dice.of(&paths).clone();
        let said = vec![other.to_string(), email.to_string()];
        let ask = Ask { key: LIVE, path, named: Vec::new(), said, body: None, idempotency_key: None };
        let answer = self.send(firm, Method::GET, &ask).await;
        assert!(matches!(answer.status, 401 | 403), "{}: {}", ask.path, answer.text());
    }

    /// Everything in a list of the company's own.
    async fn list(&mut self, firm: usize, path: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut after = String::new();
        loop {
            let separator = if path.contains('?') { '&' } else { '?' };
            let page = self.read(firm, &format!("{path}{separator}limit=100{after}")).await;
            assert_eq!(page.status, 200, "{path}: {}", page.text());
            let mut page = page.json();
            items.append(page["data"].as_array_mut().expect("a list"));
            match page["nextCursor"].as_str() {
                Some(cursor) => after = format!("&cursor={cursor}"),
                None => return items,
            }
        }
    }

    async fn read(&mut self, firm: usize, path: &str) -> Answer {
        self.stage.world.clock.advance(Duration::from_millis(1));
        let key = self.firms[firm].keys[LIVE].clone();
        let call: Call<'_> = self.stage.world.get(path).key(&key).header("x-request-id", "reading");
        let answer = call.send().await;
        self.check_leaks(firm, path, &[path.to_owned()], &answer);
        answer
    }

    /// What the company reads of its own: every list, what its names stand for, and some emails in every detail.
    async fn picture(&mut self, firm: usize) -> Picture {
        let mut picture = Picture::new();
        for path in LISTS {
            let items = self.list(firm, path).await;
            if !items.is_empty() {
                self.filled.insert(path.to_owned());
            }
            let items = Value::from(items);
            if path == "/v1/recipients" {
                self.owners.learn_all(&items, "recipientId", firm);
            }
            picture.insert(path.to_owned(), items.to_string());
        }
        self.people = (0..self.firms.len())
            .flat_map(|firm| self.owners.of_firm(firm))
            .filter(|id| !self.firms.iter().any(|firm| firm.id.to_string() == **id))
            .filter(|id| {
                !self.firms.iter().any(|firm| firm.emails.iter().any(|email| email.to_string() == **id))
            })
            .cloned()
            .collect();
        let mut paths =
            vec!["/v1/entities".to_owned(), "/v1/templates".to_owned(), "/v1/summary?days=2".to_owned()];
        let own = &self.firms[firm];
        paths.extend(own.names("entity").iter().map(|name| format!("/v1/entities/{name}/summary?days=2")));
        paths.extend(own.names("template").iter().map(|name| format!("/v1/templates/{name}")));
        let emails = own.emails.iter().take(DETAILED).chain(own.emails.iter().rev().take(DETAILED));
        for email in emails {
            let parts = ["", "/events", "/content", "/content?format=eml", "/attachments/0"];
            paths.extend(parts.iter().map(|part| format!("/v1/emails/{email}{part}")));
        }
        for path in paths {
            let answer = self.read(firm, &path).await;
            picture.insert(path, format!("{} {}", answer.status, answer.text()));
        }
        picture
    }

    /// Workers send what is due, or fail to, and a provider reports some bounces.
    async fn time_passes(&mut self) {
        let markers: BTreeMap<_, _> = self.firms.iter().map(|firm| (firm.id, firm.marker)).collect();
        let verdict = |claim: &Claim| {
            let marker = markers[&claim.company];
            let chance = claim.id().to_string().bytes().map(usize::from).sum::<usize>();
            if chance % 3 == 0 {
                return Verdict::Sent {
                    provider: "post".to_owned(),
                    provider_kind: "resend",
                    message_id: Some(format!("m-{}", claim.id())),
                    duration_ms: 1,
                    refused: Vec::new(),
                };
            }
            let code = if chance % 2 == 0 { "code-0".to_owned() } else { format!("code-{marker}-1") };
            let mut failure = a_failure(&code);
            failure.message = format!("{marker} refused");
            Verdict::Fail { failure, outcome_unknown: false }
        };
        while self.stage.world.settle_due(verdict).await > 0 {}
        for firm in 0..self.firms.len() {
            let sent = self.list(firm, "/v1/emails?status=SENT").await;
            for email in sent.iter().take(2) {
                let id: EmailId = email["id"].as_str().expect("an id").parse().expect("an id");
                let event = resend_event("email.bounced", id, email["to"].as_str().expect("an address"));
                self.stage.result(&self.stage.resend(&format!("r-{id}"), &event)).await;
            }
        }
    }

    /// That the run was what it is meant to be.
    async fn check_reach(&mut self) {
        for route in &self.routes {
            let name = format!("{} {}", route.method, route.path);
            let (good, foreign) = self.tally.get(&name).copied().unwrap_or_default();
            assert!(good > 0, "{name} never found anything");
            assert!(
                foreign > 0 || !route.path.contains('{') || route.method == Method::PUT,
                "{name}: {foreign}"
            );
        }
        assert_eq!(self.filled.len(), LISTS.len(), "lists with something in them: {:?}", self.filled);
        for firm in 0..self.firms.len() {
            let listed = self.list(firm, "/v1/emails").await.len();
            assert_eq!(listed, self.firms[firm].emails.len(), "emails of {}", self.firms[firm].marker);
        }
    }
}

/// A summary without an event, and without one on any of its days.
fn tells_of_nothing(summary: &Value) -> bool {
    let days = summary["trend"].as_array().into_iter().flatten();
    let mut counts = days.flat_map(|day| day.as_object().expect("a day").values()).filter_map(Value::as_u64);
    summary["events"] == json!([]) && counts.all(|count| count == 0)
}

/// Somebody's cursor with one character changed: who does not have the key gets nowhere with it.
fn forged(dice: &mut Dice, cursor: &str) -> String {
    let mut bytes = cursor.as_bytes().to_vec();
    let at = dice.below(bytes.len());
    bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
    String::from_utf8(bytes).expect("a cursor is ASCII")
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given.map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

#[tokio::test]
async fn process_random_requests_of_companies_never_cross() {
    let operations = usize::try_from(number("POSTHASTE_TEST_CROSSINGS", 2_500)).expect("a count");
    let mut run = Run::new(number("POSTHASTE_TEST_SEED", 24)).await;
    while run.done < operations {
        run.turn().await;
    }
    run.check_reach().await;
    let foreign: usize = run.tally.values().map(|(_, foreign)| foreign).sum();
    println!("{} operations, {foreign} of them with something of another company", run.done);
}
