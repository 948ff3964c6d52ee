//! What the user wrote: the built-in defaults, the file, the environment and the command line, one over the
//! other, each value with its origin. Names and types are checked here, meanings in `check`.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::keys::{self, Found, Kind};
use super::problem::{Origin, Problem};

/// A value as written. Not printable, since it may be a secret.
#[derive(Clone, PartialEq)]
pub enum Value {
    Text(String),
    Integer(i64),
    List(Vec<Value>),
    /// Something no setting takes, by the name of its type.
    Other(&'static str),
}

impl Value {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Integer(_) => "a number",
            Self::List(_) => "a list",
            Self::Other(name) => name,
        }
    }
}

#[derive(Clone)]
pub struct Entry {
    pub value: Value,
    pub origin: Origin,
}

/// Values by dotted name, and what was wrong on the way.
#[derive(Default)]
pub struct Layers {
    pub entries: BTreeMap<String, Entry>,
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

impl Layers {
    pub fn complain(&mut self, origin: Origin, key: &str, what: impl Into<String>) {
        self.problems.push(Problem { origin, key: key.to_owned(), what: what.into() });
    }

    /// Puts a value over what was there, if the setting takes it.
    pub fn put(&mut self, key: &str, kind: Kind, value: Value, origin: Origin) {
        match mismatch(kind, &value) {
            Some(what) => self.complain(origin, key, what),
            None => {
                self.entries.insert(key.to_owned(), Entry { value, origin });
            }
        }
    }

    pub fn read_defaults(&mut self, text: &str) {
        self.read_toml(text, &|_| Origin::Default);
    }

    pub fn read_file(&mut self, name: &str, text: &str) {
        self.read_toml(text, &|line| Origin::File { name: name.to_owned(), line });
    }

    fn read_toml(&mut self, text: &str, origin_at: &dyn Fn(usize) -> Origin) {
        let origin_of = |offset: usize| origin_at(line_of(text, offset));
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let span = error.span().unwrap_or_default();
            let named = text.get(span.clone()).map(str::trim).filter(|name| is_plain(name));
            let (key, what) = match named.filter(|_| error.message().contains("duplicate")) {
                Some(key) => (key, "is there twice; keep one of them".to_owned()),
                None => {
                    ("", format!("not valid TOML: {}; mend the line", error.message().replace('\n', ", ")))
                }
            };
            self.complain(origin_of(span.start), key, what);
        }
        self.read_table("", table.get_ref(), &origin_of);
    }

    fn read_table(&mut self, section: &str, table: &DeTable<'_>, origin_of: &dyn Fn(usize) -> Origin) {
        for (name, value) in table {
            let path = match section {
                "" => name.get_ref().to_string(),
                section => format!("{section}.{}", name.get_ref()),
            };
            let origin = origin_of(name.span().start);
            match (keys::find(&path), value.get_ref()) {
                // Not repeated: after a stray quote, the name goes on through the values of further lines.
                _ if !is_plain(name.get_ref()) => {
                    self.complain(origin, section, "a name here is none; use letters, digits, - and _");
                }
                (Found::Setting(key), value) => self.put(&path, key.kind, plain(value), origin),
                (Found::Section, DeValue::Table(table)) => self.read_table(&path, table, origin_of),
                (Found::Section, _) => {
                    let what = format!("must be a table; write [{path}] and its settings on the lines below");
                    self.complain(origin, &path, what);
                }
                (Found::Nothing, _) => {
                    let what = format!("there is no such setting; did you mean `{}`?", keys::nearest(&path));
                    self.complain(origin, &path, what);
                }
            }
        }
    }
}

fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}

fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Other("a number that is too large"), Value::Integer),
        DeValue::Array(items) => Value::List(items.iter().map(|item| plain(item.get_ref())).collect()),
        DeValue::Float(_) => Value::Other("a number with a fraction"),
        DeValue::Boolean(_) => Value::Other("true or false"),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Table(_) => Value::Other("a table"),
    }
}

/// Reads a list as TOML has it.
pub fn list_from_toml(text: &str) -> Option<Value> {
    let value = DeValue::parse(text).ok()?;
    value.get_ref().is_array().then(|| plain(value.get_ref()))
}

/// Why a setting of this kind does not take this value.
fn mismatch(kind: Kind, value: &Value) -> Option<String> {
    let found = value.type_name();
    match (kind, value) {
        (Kind::Text | Kind::Secret | Kind::Url | Kind::Choice(_), Value::Text(text))
            if text.trim().is_empty() =>
        {
            Some("is empty; give it a value or remove it".to_owned())
        }
        (Kind::Choice(choices), Value::Text(text)) if !choices.contains(&text.as_str()) => {
            Some(format!("must be one of {}", choices.join(", ")))
        }
        (Kind::Text | Kind::Secret | Kind::Url | Kind::Choice(_), Value::Text(_)) => None,
        (Kind::Text | Kind::Secret | Kind::Url | Kind::Choice(_), _) => {
            Some(format!("must be a text in quotes, not {found}"))
        }
        (Kind::Count(least, most), Value::Integer(number)) => {
            let fits = u64::try_from(*number).is_ok_and(|number| (least..=most).contains(&number));
            (!fits).then(|| format!("must be from {least} to {most}"))
        }
        (Kind::Count(..), _) => Some(format!("must be a whole number without quotes, not {found}")),
        (Kind::Texts | Kind::Secrets, Value::List(items)) => {
            let wrong = items.iter().find(|item| !matches!(item, Value::Text(_)))?;
            Some(format!("must be a list of texts in quotes, but holds {}", wrong.type_name()))
        }
        (Kind::Texts | Kind::Secrets, _) => {
            Some(format!("must be a list such as [\"a\", \"b\"], not {found}"))
        }
        (Kind::Counts, Value::List(items)) => {
            let wrong = items.iter().find(|item| !matches!(item, Value::Integer(number) if *number >= 0))?;
            let wrong = match wrong {
                Value::Integer(_) => "a negative one",
                other => other.type_name(),
            };
            Some(format!("must be a list of whole numbers from 0, but holds {wrong}"))
        }
        (Kind::Counts, _) => Some(format!("must be a list such as [1, 5, 30], not {found}")),
    }
}
