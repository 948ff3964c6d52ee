//! Reading an object field by field: each value is moved out once, every fault is gathered with the path of
//! its field, and what nobody asked for is named together with the nearest field there is.
//!
//! Bodies and query strings are read alike. `null` counts as absent, since many clients cannot leave a field
//! out.

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;

use gateway::accept::draft::Fault;
use model::{Address, Mailbox, Timestamp};
use serde_json::{Map, Value};

use crate::limits::FAULTS_MAX;
use crate::nearest::nearest;

/// What was found wrong so far.
#[derive(Debug, Default)]
pub struct Faults(RefCell<Vec<Fault>>);

impl Faults {
    pub fn push(&self, fault: Fault) {
        let mut faults = self.0.borrow_mut();
        if faults.len() < FAULTS_MAX {
            faults.push(fault);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub fn into_vec(self) -> Vec<Fault> {
        self.0.into_inner()
    }
}

/// Where a value stands, spelled out only when something is wrong with it.
#[derive(Clone, Copy)]
pub enum At<'a> {
    Root,
    Field(&'a At<'a>, &'a str),
    Item(&'a At<'a>, usize),
}

/// A field's name may be anything the caller sent; what is told of it is bounded.
const NAME_SHOWN_MAX: usize = 64;

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Root => Ok(()),
            At::Item(parent, index) => write!(f, "{parent}[{index}]"),
            At::Field(parent, name) => {
                let dot = if matches!(parent, At::Root) { "" } else { "." };
                let shown: String = name.chars().take(NAME_SHOWN_MAX).collect();
                write!(f, "{parent}{dot}{shown}")
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Body,
    Query,
}

/// An object whose fields are taken out one by one.
pub struct Form<'a> {
    members: Map<String, Value>,
    at: At<'a>,
    known: &'static [&'static str],
    faults: &'a Faults,
    source: Source,
}

impl<'a> Form<'a> {
    /// `None`, and a fault, when the value is no object.
    pub fn open(
        value: Value,
        at: At<'a>,
        known: &'static [&'static str],
        faults: &'a Faults,
    ) -> Option<Self> {
        match value {
            Value::Object(members) => Some(Self { members, at, known, faults, source: Source::Body }),
            _ => {
                faults.push(Fault::wrong(at.to_string(), "INVALID_TYPE", "must be an object"));
                None
            }
        }
    }

    /// The parameters of a query string, each at most once.
    pub fn of_query(
        pairs: Vec<(String, String)>,
        known: &'static [&'static str],
        faults: &'a Faults,
    ) -> Self {
        let mut members = Map::new();
        for (name, value) in pairs {
            if members.contains_key(&name) {
                let field = At::Field(&At::Root, &name).to_string();
                faults.push(Fault::wrong(field, "REPEATED_PARAMETER", "is given more than once"));
            }
            members.insert(name, Value::String(value));
        }
        Self { members, at: At::Root, known, faults, source: Source::Query }
    }

    pub fn faults(&self) -> &'a Faults {
        self.faults
    }

    pub fn fault(&self, name: &str, code: &'static str, message: impl Into<String>) {
        self.faults.push(Fault::wrong(At::Field(&self.at, name).to_string(), code, message));
    }

    pub fn push(&self, name: &str, make: impl FnOnce(String) -> Fault) {
        self.faults.push(make(At::Field(&self.at, name).to_string()));
    }

    pub fn has(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|value| !value.is_null())
    }

    /// The value, unless it is absent or `null`.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.take_nullable(name).filter(|value| !value.is_null())
    }

    /// The value, `null` included.
    pub fn take_nullable(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name)
    }

    pub fn text(&mut self, name: &str) -> Option<String> {
        match self.take(name)? {
            Value::String(text) => Some(text),
            _ => self.wrong_type(name, "must be a text"),
        }
    }

    pub fn required_text(&mut self, name: &str) -> Option<String> {
        if !self.has(name) {
            self.fault(name, "REQUIRED", "is required");
        }
        self.text(name)
    }

    pub fn flag(&mut self, name: &str) -> Option<bool> {
        match self.take(name)? {
            Value::Bool(flag) => Some(flag),
            Value::String(text) if self.source == Source::Query && text == "true" => Some(true),
            Value::String(text) if self.source == Source::Query && text == "false" => Some(false),
            _ => self.wrong_type(name, "must be true or false"),
        }
    }

    /// A whole number, however it is spelled: `5` and `5.0` are the same in JSON.
    pub fn whole(&mut self, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.take(name)?;
        let number = match (&value, self.source) {
            (Value::Number(number), Source::Body) => whole_of(number),
            (Value::String(text), Source::Query) => text.parse::<u64>().map_err(|_| NotWhole::Type),
            _ => Err(NotWhole::Type),
        };
        let (least, most) = (range.start(), range.end());
        match number {
            Ok(number) if range.contains(&number) => Some(number),
            Ok(_) | Err(NotWhole::Range) => {
                self.fault(name, "OUT_OF_RANGE", format!("must be from {least} to {most}"));
                None
            }
            Err(NotWhole::Type) => {
                self.wrong_type(name, &format!("must be a whole number from {least} to {most}"))
            }
        }
    }

    /// One of a few words.
    pub fn choice<T>(&mut self, name: &str, words: &[&str], parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name)?;
        let parsed = parse(&text);
        if parsed.is_none() {
            let hint = nearest(&text, words).map_or(String::new(), |word| format!(" (did you mean {word}?)"));
            self.fault(name, "INVALID_VALUE", format!("must be one of {}{hint}", words.join(", ")));
        }
        parsed
    }

    /// A moment with its zone. In a query string a bare `+` reads as a blank, so that is mended.
    pub fn moment(&mut self, name: &str, code: &'static str) -> Option<Timestamp> {
        let mut text = self.text(name)?;
        if self.source == Source::Query {
            text = text.replace(' ', "+");
        }
        let moment = Timestamp::parse(&text);
        if moment.is_none() {
            self.fault(name, code, "must be a date and time with its zone, such as 2026-01-31T12:00:00Z");
        }
        moment
    }

    pub fn address(&mut self, name: &str) -> Option<Address> {
        let text = self.text(name)?;
        Address::parse(&text).map_err(|reason| self.fault(name, "INVALID_EMAIL", reason.to_string())).ok()
    }

    pub fn mailbox(&mut self, name: &str) -> Option<Mailbox> {
        let text = self.text(name)?;
        Mailbox::parse(&text).map_err(|reason| self.fault(name, "INVALID_EMAIL", reason.to_string())).ok()
    }

    /// The items of a list; absent is empty.
    pub fn list(&mut self, name: &str, max: usize, too_many: &'static str) -> Vec<Value> {
        match self.take(name) {
            None => Vec::new(),
            Some(Value::Array(items)) if items.len() <= max => items,
            Some(Value::Array(items)) => {
                self.fault(name, too_many, format!("has {} items; at most {max} are allowed", items.len()));
                Vec::new()
            }
            Some(_) => self.wrong_type(name, "must be a list").unwrap_or_default(),
        }
    }

    /// A list of texts; an item of another type is a fault and left out.
    pub fn texts(&mut self, name: &str, max: usize, too_many: &'static str) -> Vec<(usize, String)> {
        let items = self.list(name, max, too_many).into_iter().enumerate();
        items
            .filter_map(|(index, item)| match item {
                Value::String(text) => Some((index, text)),
                _ => {
                    self.item_fault(name, index, "INVALID_TYPE", "must be a text");
                    None
                }
            })
            .collect()
    }

    pub fn addresses(&mut self, name: &str, max: usize, too_many: &'static str) -> Vec<Address> {
        let texts = self.texts(name, max, too_many).into_iter();
        texts
            .filter_map(|(index, text)| {
                Address::parse(&text)
                    .map_err(|reason| self.item_fault(name, index, "INVALID_EMAIL", reason.to_string()))
                    .ok()
            })
            .collect()
    }

    pub fn item_fault(&self, name: &str, index: usize, code: &'static str, message: impl Into<String>) {
        let list = At::Field(&self.at, name);
        self.faults.push(Fault::wrong(At::Item(&list, index).to_string(), code, message));
    }

    /// Tells of everything that was not taken.
    pub fn finish(self) {
        let (code, what) = match self.source {
            Source::Body => ("UNKNOWN_FIELD", "field"),
            Source::Query => ("UNKNOWN_PARAMETER", "parameter"),
        };
        for (name, _) in self.members.iter().filter(|(name, _)| !self.known.contains(&name.as_str())) {
            let hint =
                nearest(name, self.known).map_or(String::new(), |known| format!("; did you mean {known}?"));
            self.fault(name, code, format!("is not a known {what}{hint}"));
        }
    }

    fn wrong_type<T>(&self, name: &str, message: &str) -> Option<T> {
        self.fault(name, "INVALID_TYPE", message);
        None
    }
}

enum NotWhole {
    Type,
    Range,
}

fn whole_of(number: &serde_json::Number) -> Result<u64, NotWhole> {
    /// Whole numbers beyond this cannot be told apart in JSON as most programs read it.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if let Some(whole) = number.as_u64() {
        return Ok(whole);
    }
    match number.as_f64() {
        Some(float) if float.fract() != 0.0 => Err(NotWhole::Type),
        Some(float) if (0.0..=EXACT_MAX).contains(&float) => Ok(float as u64),
        _ => Err(NotWhole::Range),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KNOWN: &[&str] = &["to", "subject", "priority", "tags"];

    fn codes(faults: Faults) -> Vec<(String, &'static str)> {
        faults.into_vec().into_iter().map(|fault| (fault.field, fault.code)).collect()
    }

    #[test]
    fn whole_numbers() {
        let cases = [
            (json!(5), Ok(5)),
            (json!(5.0), Ok(5)),
            (json!(0), Err("OUT_OF_RANGE")),
            (json!(-0.0), Err("OUT_OF_RANGE")),
            (json!(-1), Err("OUT_OF_RANGE")),
            (json!(9_007_199_254_740_993_u64), Err("OUT_OF_RANGE")),
            (json!(1e300), Err("OUT_OF_RANGE")),
            (json!(5.5), Err("INVALID_TYPE")),
            (json!("5"), Err("INVALID_TYPE")),
        ];
        for (value, expected) in cases {
            let faults = Faults::default();
            let mut form =
                Form::open(json!({ "priority": value }), At::Root, KNOWN, &faults).expect("an object");
            let found = form.whole("priority", 1..=10);
            let code = faults.into_vec().first().map(|fault| fault.code);
            assert_eq!(found.ok_or(code.unwrap_or("no fault")), expected, "{value}");
        }
    }

    #[test]
    fn unknown_fields_are_named_with_the_nearest() {
        let faults = Faults::default();
        let body = json!({ "subjet": "x", "status": "SENT", "to": null });
        let form = Form::open(body, At::Root, KNOWN, &faults).expect("an object");
        form.finish();
        let found: Vec<String> = faults.into_vec().into_iter().map(|fault| fault.message).collect();
        assert_eq!(found, ["is not a known field", "is not a known field; did you mean subject?"]);
    }

    #[test]
    fn paths_lead_to_the_field() {
        let faults = Faults::default();
        let attachments = At::Field(&At::Root, "attachments");
        let first = At::Item(&attachments, 0);
        let mut form =
            Form::open(json!({ "subject": 1, "tags": [1] }), first, KNOWN, &faults).expect("an object");
        form.required_text("to");
        form.text("subject");
        form.texts("tags", 5, "TOO_MANY_TAGS");
        let expected = [
            ("attachments[0].to", "REQUIRED"),
            ("attachments[0].subject", "INVALID_TYPE"),
            ("attachments[0].tags[0]", "INVALID_TYPE"),
        ];
        let found = codes(faults);
        let found: Vec<(&str, &str)> = found.iter().map(|(field, code)| (field.as_str(), *code)).collect();
        assert_eq!(found, expected);
    }
}
