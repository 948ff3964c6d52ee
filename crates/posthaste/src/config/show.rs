//! What is in force, as `posthaste config` prints it: every setting, its value without secrets, its origin.

use std::collections::BTreeMap;

use super::keys::{Found, KEYS, Kind, find};
use super::layers::{Entry, Value};

/// One line of what is in force.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    pub key: String,
    /// As TOML has it; `None` when it is unset.
    pub value: Option<String>,
    pub origin: String,
}

pub fn lines(entries: &BTreeMap<String, Entry>) -> Vec<Line> {
    let in_force = entries.iter().map(|(key, entry)| Line {
        key: key.clone(),
        value: Some(shown(kind_of(key), &entry.value)),
        origin: entry.origin.to_string(),
    });
    let unset = KEYS
        .iter()
        .filter(|known| !known.pattern.contains('*') && !entries.contains_key(known.pattern))
        .map(|known| Line { key: known.pattern.to_owned(), value: None, origin: "unset".to_owned() });
    let mut lines: Vec<Line> = in_force.chain(unset).collect();
    // As in the file: first what stands above the tables.
    lines.sort_by(|left, right| {
        (left.key.contains('.'), &left.key).cmp(&(right.key.contains('.'), &right.key))
    });
    lines
}

/// Whether the value holds something that must not be printed.
pub fn hides(key: &str, value: &Value) -> bool {
    shown(kind_of(key), value).contains("***")
}

fn kind_of(key: &str) -> Kind {
    match find(key) {
        Found::Setting(known) => known.kind,
        _ => Kind::Secret,
    }
}

fn shown(kind: Kind, value: &Value) -> String {
    match (kind, value) {
        (Kind::Secret, _) => "\"***\"".to_owned(),
        (Kind::Secrets, Value::List(items)) => format!("[{}]", vec!["\"***\""; items.len()].join(", ")),
        (Kind::Secrets, _) => "\"***\"".to_owned(),
        (Kind::Url, Value::Text(url)) => format!("{:?}", without_password(url)),
        (_, Value::Text(text)) => format!("{text:?}"),
        (_, Value::Integer(number)) => number.to_string(),
        (_, Value::List(items)) => {
            format!("[{}]", items.iter().map(|item| shown(kind, item)).collect::<Vec<_>>().join(", "))
        }
        (_, Value::Other(name)) => (*name).to_owned(),
    }
}

/// A URL as it may be shown: no password, neither before the host nor among the options behind it.
pub fn without_password(url: &str) -> String {
    let (url, query) = match url.split_once('?') {
        Some((url, query)) => {
            (url, format!("?{}", query.split('&').map(without_value).collect::<Vec<_>>().join("&")))
        }
        None => (url, String::new()),
    };
    let Some((scheme, rest)) = url.split_once("://") else {
        return format!("{url}{query}");
    };
    // A password may hold slashes and at signs that should have been escaped: the last one ends it.
    let shown = match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:***@{host}"),
            None => format!("{user}@{host}"),
        },
        None => rest.to_owned(),
    };
    format!("{scheme}://{shown}{query}")
}

fn without_value(option: &str) -> String {
    let name = option.split('=').next().unwrap_or_default();
    let is_secret = ["pass", "secret", "key", "token"].iter().any(|word| name.to_lowercase().contains(word));
    if is_secret { format!("{name}=***") } else { option.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let cases = [
            ("sqlite:posthaste.db", "sqlite:posthaste.db"),
            ("smtp://mail.example.com:587", "smtp://mail.example.com:587"),
            ("smtp://ana:s3cret@mail.example.com:587", "smtp://ana:***@mail.example.com:587"),
            ("smtp://ana:s3/cr@et@mail.example.com", "smtp://ana:***@mail.example.com"),
            (
                "smtp://mail.example.com?tls=none&password=s3cret",
                "smtp://mail.example.com?tls=none&password=***",
            ),
        ];
        for (url, shown) in cases {
            assert_eq!(without_password(url), shown);
        }
    }
}
