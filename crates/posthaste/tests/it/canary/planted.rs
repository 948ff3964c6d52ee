//! The canaries: made-up personal data and secrets, each with a word in it that stands nowhere else, and the search
//! for them in whatever was seen, however it is spelled.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use model::document::Document;

/// Where a canary may be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Reach {
    /// In answers to its own company and on the operator's terminal.
    Owners,
    /// In the database only.
    Database,
    /// Nowhere, since it is kept hashed or sealed, or not at all.
    Nobody,
}

pub struct Canary {
    name: &'static str,
    text: String,
    /// What is looked for: parts of the text that are in no other.
    words: Vec<String>,
    reach: Reach,
}

/// Who reads what was seen, and so what may be in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// A log, a metric, an error: nothing may be in it.
    Anyone,
    /// A company in an answer of its own, the operator on a terminal.
    Owner,
    /// Whoever gets hold of the database.
    Thief,
}

impl Reader {
    fn may_see(self, canary: &Canary) -> bool {
        match self {
            Self::Anyone => false,
            Self::Owner => canary.reach == Reach::Owners,
            Self::Thief => canary.reach < Reach::Nobody,
        }
    }
}

/// Something that was printed, answered or written.
pub struct Seen {
    pub place: String,
    pub reader: Reader,
    pub text: String,
}

/// All canaries there are.
#[derive(Default)]
pub struct Planted(Vec<Canary>);

/// The word of a canary: letters only, so that few spellings change it.
fn word(name: &str) -> String {
    format!("zq{name}canary")
}

impl Planted {
    /// `#` in the pattern stands for the canary's word.
    pub fn plant(&mut self, name: &'static str, reach: Reach, pattern: &str) {
        let word = word(name);
        assert!(pattern.contains('#') && name.bytes().all(|byte| byte.is_ascii_lowercase()), "{name}");
        self.add(Canary { name, text: pattern.replace('#', &word), words: vec![word], reach });
    }

    /// A secret that has no word of ours in it: its end is looked for, since its beginning may be shown.
    pub fn plant_secret(&mut self, name: &'static str, text: &str) {
        const END_LENGTH: usize = 24;
        let words = vec![text[text.len() - END_LENGTH..].to_owned()];
        self.add(Canary { name, text: text.to_owned(), words, reach: Reach::Nobody });
    }

    /// A CPF or CNPJ, written with its punctuation. Neither it nor its plain hash may be found.
    pub fn plant_document(&mut self, name: &'static str, number: &str) {
        let document = Document::parse(number).expect("a valid number");
        let hash = document.sha256_hex();
        let words = vec![number.to_owned(), document.expose().to_owned(), hash[..32].to_owned(), hash];
        self.add(Canary { name, text: number.to_owned(), words, reach: Reach::Nobody });
    }

    fn add(&mut self, canary: Canary) {
        let is_new = self.0.iter().all(|other| other.name != canary.name);
        assert!(is_new, "{} is there twice", canary.name);
        self.0.push(canary);
    }

    /// The text to put somewhere.
    pub fn text(&self, name: &str) -> &str {
        let canary = self.0.iter().find(|canary| canary.name == name);
        &canary.unwrap_or_else(|| panic!("there is no canary `{name}`")).text
    }

    /// The SHA-256 of a document.
    pub fn hash(&self, name: &str) -> String {
        Document::parse(self.text(name)).expect("a document").sha256_hex()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Those that are in the text, as they are.
    pub fn found_plainly_in(&self, text: &str) -> BTreeSet<&'static str> {
        let is_in = |canary: &&Canary| canary.words.iter().any(|word| text.contains(word));
        self.0.iter().filter(is_in).map(|canary| canary.name).collect()
    }

    /// Every canary that is where it may not be, in words for a person.
    pub fn leaks(&self, seen: &[Seen]) -> Vec<String> {
        let needles: Vec<(&Canary, Vec<Spelling>)> =
            self.0.iter().map(|canary| (canary, spellings_of(canary))).collect();
        seen.iter().flat_map(|seen| leaks_in(seen, &needles)).collect()
    }
}

fn leaks_in(seen: &Seen, needles: &[(&Canary, Vec<Spelling>)]) -> Vec<String> {
    let lower = seen.text.to_lowercase();
    let forbidden = needles.iter().filter(|(canary, _)| !seen.reader.may_see(canary));
    forbidden
        .filter_map(|(canary, spellings)| {
            let found = spellings.iter().find_map(|spelling| spelling.find(&seen.text, &lower))?;
            Some(format!("{} is in {}: {found}", canary.name, seen.place))
        })
        .collect()
}

/// One way to write a word.
struct Spelling {
    text: String,
    /// Upper and lower case are different letters in base64, and the same everywhere else.
    is_exact: bool,
}

impl Spelling {
    /// What stands around the place where it is found.
    fn find(&self, text: &str, lower: &str) -> Option<String> {
        const AROUND: usize = 100;
        let within = if self.is_exact { text } else { lower };
        let at = within.find(&self.text)?;
        let start = within.floor_char_boundary(at.saturating_sub(AROUND));
        let end = within.ceil_char_boundary(at + self.text.len() + AROUND);
        Some(within[start..end].to_owned())
    }
}

fn spellings_of(canary: &Canary) -> Vec<Spelling> {
    let mut exact = BTreeSet::new();
    let mut folded = BTreeSet::new();
    for word in canary.words.iter().map(String::as_str).chain([canary.text.as_str()]) {
        folded.extend([word.to_lowercase(), json_escaped(word), percent_encoded(word), hexadecimal(word)]);
        for word in [word.to_owned(), word.to_lowercase(), word.to_uppercase()] {
            exact.extend((0..3).flat_map(|offset| base64_at(&word, offset)));
        }
    }
    let exact = exact.into_iter().map(|text| Spelling { text, is_exact: true });
    folded.into_iter().map(|text| Spelling { text, is_exact: false }).chain(exact).collect()
}

fn json_escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string().to_lowercase();
    quoted.trim_matches('"').to_owned()
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02x}"),
    };
    text.bytes().map(encode).collect::<String>().to_lowercase()
}

fn hexadecimal(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// The characters that are the same whatever stands around the word, when it begins `offset` bytes into a group of
/// three.
fn base64_at(word: &str, offset: usize) -> [String; 2] {
    let bytes: Vec<u8> = std::iter::repeat_n(0, offset).chain(word.bytes()).collect();
    let (start, end) = ((offset * 8).div_ceil(6), bytes.len() * 8 / 6);
    [STANDARD.encode(&bytes), URL_SAFE.encode(&bytes)].map(|text| text[start..end].to_owned())
}

#[test]
fn process_canaries_are_found_in_every_spelling() {
    let mut planted = Planted::default();
    planted.plant("name", Reach::Owners, "José \"#\" / x");
    planted.plant_document("cpf", "529.982.247-25");
    let encoded = |padding: &str| STANDARD.encode(format!("{padding}{}!", planted.text("name")));
    let spellings = [
        format!("hello {}", word("name").to_uppercase()),
        json_escaped(planted.text("name")),
        percent_encoded(planted.text("name")),
        hexadecimal(planted.text("name")),
        encoded(""),
        encoded("-"),
        encoded("--"),
        "52998224725".to_owned(),
        "%35529.982.247-25".to_owned(),
        planted.hash("cpf").to_uppercase(),
    ];
    for text in spellings {
        let seen = |reader| Seen { place: "a log".to_owned(), reader, text: text.clone() };
        assert_eq!(planted.leaks(&[seen(Reader::Anyone)]).len(), 1, "{text}");
        let is_document = planted.leaks(&[seen(Reader::Thief)]).len() == 1;
        assert_eq!(is_document, planted.leaks(&[seen(Reader::Owner)]).len() == 1, "{text}");
    }
    let clean = Seen { place: "a log".to_owned(), reader: Reader::Anyone, text: "z***@e***.com".to_owned() };
    assert_eq!(planted.leaks(&[clean]), Vec::<String>::new());
}
