//! The companies of the random run, and the names they give things: some that all of them use, some that only one does.
//! Whatever only one company has says so, by a word that is found wherever it turns up.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::{CompanyId, EmailId, KeyMode, Mailbox, Scope};
use serde_json::Value;
use testkit::{START, a_company};

use crate::dice::Dice;
use crate::world::World;

/// One per company, each nine letters long, so that it looks the same in base64 when a text begins with it.
pub const MARKERS: [&str; 3] = ["zqalphazq", "zqbravozq", "zqcarolzq"];
/// How many names of a kind all companies use, and how many each has to itself.
const NAMES: usize = 3;

/// The place of the live key among a company's keys.
pub const LIVE: usize = 0;

pub struct Firm {
    pub id: CompanyId,
    pub marker: &'static str,
    /// Live and test.
    pub keys: [String; 2],
    pub emails: Vec<EmailId>,
    /// Idempotency keys it used up.
    pub used_keys: BTreeSet<String>,
    /// Ids of others that it wrote into emails of its own, where it may read them.
    pub wrote: BTreeSet<String>,
}

impl Firm {
    pub async fn new(world: &World, marker: &'static str) -> Self {
        let mut company = a_company(marker);
        let from = Mailbox::parse(&format!("{marker} <shop@{marker}.example>")).expect("a mailbox");
        company.settings.from = Some(from);
        company.settings.senders = vec![format!("@{marker}.example")];
        world.gateway.store.add_company(company.clone()).await.expect("a company");
        let keys = [
            world.key(&company, KeyMode::Live, &[Scope::Admin]).await,
            world.key(&company, KeyMode::Test, &[Scope::Admin]).await,
        ];
        let (used_keys, wrote) = Default::default();
        Self { id: company.id, marker, keys, emails: Vec::new(), used_keys, wrote }
    }

    /// A name it may give: one that all use, or one of its own.
    pub fn gives(&self, dice: &mut Dice, kind: &str) -> String {
        let number = dice.below(NAMES);
        if dice.one_in(2) { shared(kind, number) } else { own(kind, self.marker, number) }
    }

    /// Every name it may have given.
    pub fn names(&self, kind: &str) -> Vec<String> {
        let numbers = 0..NAMES;
        numbers.flat_map(|number| [shared(kind, number), own(kind, self.marker, number)]).collect()
    }
}

fn shared(kind: &str, number: usize) -> String {
    match kind {
        "address" => format!("person-{number}@example.com"),
        kind => format!("{kind}-{number}"),
    }
}

fn own(kind: &str, marker: &str, number: usize) -> String {
    match kind {
        "address" => format!("p{number}@{marker}.example"),
        kind => format!("{kind}-{marker}-{number}"),
    }
}

/// A name to ask for: anybody's.
pub fn anyones(dice: &mut Dice, kind: &str) -> String {
    let number = dice.below(NAMES);
    match dice.below(MARKERS.len() + 1) {
        0 => shared(kind, number),
        firm => own(kind, MARKERS[firm - 1], number),
    }
}

/// An email to ask for: mostly somebody's.
pub fn an_email_of(dice: &mut Dice, firms: &[Firm]) -> EmailId {
    let firm = dice.of(firms);
    if firm.emails.is_empty() || dice.one_in(20) {
        return EmailId::new(START);
    }
    // The first ones more often: much has happened to them.
    let among = if dice.one_in(2) { firm.emails.len().min(8) } else { firm.emails.len() };
    firm.emails[dice.below(among)]
}

/// Whose each id is.
#[derive(Default)]
pub struct Owners(BTreeMap<String, usize>);

impl Owners {
    pub fn learn(&mut self, id: &str, firm: usize) {
        let before = self.0.insert(id.to_owned(), firm);
        assert!(before.is_none_or(|before| before == firm), "{id} was given to two companies");
    }

    /// Learns the ids in a list of the firm's own.
    pub fn learn_all(&mut self, data: &Value, field: &str, firm: usize) {
        for item in data.as_array().into_iter().flatten() {
            if let Some(id) = item[field].as_str() {
                self.learn(id, firm);
            }
        }
    }

    pub fn of(&self, id: &str) -> Option<usize> {
        self.0.get(id).copied()
    }

    pub fn of_firm(&self, firm: usize) -> impl Iterator<Item = &String> {
        self.0.iter().filter(move |(_, owner)| **owner == firm).map(|(id, _)| id)
    }
}

/// What in the text only another company has, apart from what was asked for by name.
pub fn leaks(text: &str, said: &[String], firms: &[Firm], firm: usize, owners: &Owners) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text.to_owned();
    for said in said.iter().filter(|said| MARKERS.iter().any(|marker| said.contains(marker))) {
        rest = rest.replace(said, "");
    }
    for other in firms.iter().filter(|other| other.marker != firms[firm].marker) {
        let words = [other.marker.to_owned(), STANDARD.encode(other.marker)];
        let secrets = words.iter().chain(&other.keys).filter(|word| rest.contains(word.as_str()));
        found.extend(secrets.cloned());
    }
    let is_known = |id: &str| said.iter().any(|said| said.contains(id)) || firms[firm].wrote.contains(id);
    for id in ids_in(text) {
        if owners.of(id).is_some_and(|owner| owner != firm) && !is_known(id) {
            found.push(id.to_owned());
        }
    }
    found
}

pub fn ids_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_hexdigit() || c == '-'));
    // A provider's id of an email is `m-` and ours, of which the hyphen is left here.
    words.map(|word| word.trim_start_matches('-')).filter(|word| word.len() == 36)
}
