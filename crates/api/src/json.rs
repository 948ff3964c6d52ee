//! JSON as it comes in: read once, in one pass, with its depth bounded and repeated names refused, and told
//! with line and column when it is wrong. Also its canonical hash, for idempotency keys.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use sha2::{Digest as _, Sha256};
use store::QUICK_HASH;
use twox_hash::xxhash3_128::Hasher as Xxh3;

use crate::error::Problem;
use crate::limits::JSON_DEPTH_MAX;

const TOO_DEEP: &str = "nested too deep";
const REPEATED: &str = "a name stands twice in one object";

/// Reads a whole body as one JSON value.
pub fn read(bytes: &[u8]) -> Result<Value, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let (line, column) = place(bytes, error.valid_up_to());
        Problem::bad_request(
            "INVALID_ENCODING",
            format!(
                "the body is not UTF-8: line {line}, column {column} holds a byte that cannot stand there"
            ),
        )
    })?;
    if text.trim_ascii().is_empty() {
        return Err(Problem::bad_request(
            "INVALID_JSON",
            "the body is empty; JSON is expected (line 1, column 1)",
        ));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    Node { depth: 0 }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| malformed(&error))
}

fn malformed(error: &serde_json::Error) -> Problem {
    let (line, column) = (error.line(), error.column());
    let full = error.to_string();
    let words = full.rsplit_once(" at line ").map_or(full.as_str(), |(words, _)| words);
    let code = match words {
        words if words == TOO_DEEP || words.starts_with("recursion limit") => "TOO_DEEP",
        words if words == REPEATED => "REPEATED_FIELD",
        words if words.starts_with("number out of range") => "OUT_OF_RANGE",
        words if words.starts_with("control character") => "CONTROL_CHARACTER",
        words if words.contains("surrogate") || words.contains("unicode code point") => "INVALID_ENCODING",
        words if words.contains("hex escape") => "INVALID_ENCODING",
        _ => "INVALID_JSON",
    };
    let limit =
        if code == "TOO_DEEP" { format!(" (at most {JSON_DEPTH_MAX} levels)") } else { String::new() };
    Problem::bad_request(
        code,
        format!("the body is not the JSON expected: {words}{limit}, line {line}, column {column}"),
    )
}

/// Line and column of a byte, both counted from 1.
fn place(bytes: &[u8], at: usize) -> (usize, usize) {
    let before = &bytes[..at];
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    (line, at - line_start + 1)
}

/// One value at some depth.
#[derive(Clone, Copy)]
struct Node {
    depth: usize,
}

impl Node {
    fn inner<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth >= JSON_DEPTH_MAX {
            return Err(E::custom(TOO_DEEP));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Node {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(REPEATED));
            }
            let value = members.next_value_seed(inner)?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

/// What tells a request from another under the same key, whatever the order of its members and the blanks between them.
/// `context` tells apart requests that may not stand in for each other. XXH3 of 128 bits, far quicker than SHA-256: nobody
/// but the company whose key it is gains by two requests of one hash.
pub fn canonical_hash(context: &[&str], value: &Value) -> [u8; 32] {
    let mut hasher = Xxh3::new();
    feed_context(context, &mut |bytes| hasher.write(bytes));
    feed(value, &mut |bytes| hasher.write(bytes));
    quick_hash(&hasher)
}

/// The same for a body that is not JSON.
pub fn bytes_hash(context: &[&str], bytes: &[u8]) -> [u8; 32] {
    let mut hasher = Xxh3::new();
    feed_context(context, &mut |bytes| hasher.write(bytes));
    hasher.write(bytes);
    quick_hash(&hasher)
}

fn quick_hash(hasher: &Xxh3) -> [u8; 32] {
    let mut hash = [0; 32];
    hash[..16].copy_from_slice(&hasher.finish_128().to_le_bytes());
    hash[16..].copy_from_slice(&QUICK_HASH);
    hash
}

/// SHA-256 of the same, by which an email can be named among those of strangers.
pub fn canonical_digest(context: &[&str], value: &Value) -> [u8; 32] {
    let mut hasher = Sha256::new();
    feed_context(context, &mut |bytes| hasher.update(bytes));
    feed(value, &mut |bytes| hasher.update(bytes));
    hasher.finalize().into()
}

/// The same for a body that is not JSON.
pub fn bytes_digest(context: &[&str], bytes: &[u8]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    feed_context(context, &mut |bytes| hasher.update(bytes));
    hasher.update(bytes);
    hasher.finalize().into()
}

fn feed_context(context: &[&str], put: &mut impl FnMut(&[u8])) {
    context.iter().for_each(|word| feed_text(word, put));
}

/// Every value begins with its kind and its length, so that no two different values feed the same bytes.
fn feed(value: &Value, put: &mut impl FnMut(&[u8])) {
    match value {
        Value::Null => put(b"n"),
        Value::Bool(true) => put(b"t"),
        Value::Bool(false) => put(b"f"),
        Value::Number(number) => {
            put(b"#");
            feed_text(&number.to_string(), put);
        }
        Value::String(text) => {
            put(b"s");
            feed_text(text, put);
        }
        Value::Array(items) => {
            put(b"a");
            put(&items.len().to_le_bytes());
            items.iter().for_each(|item| feed(item, put));
        }
        Value::Object(members) => {
            put(b"o");
            put(&members.len().to_le_bytes());
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in sorted {
                feed_text(name, put);
                feed(value, put);
            }
        }
    }
}

fn feed_text(text: &str, put: &mut impl FnMut(&[u8])) {
    put(&text.len().to_le_bytes());
    put(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let deep = "[".repeat(10_000);
        let cases: &[(&str, &[u8], &str, &str)] = &[
            ("empty", b"", "INVALID_JSON", "line 1, column 1"),
            ("not JSON", b"hello", "INVALID_JSON", "line 1, column 1"),
            ("truncated", b"{\"a\":\n[1", "INVALID_JSON", "line 2, column 2"),
            ("trailing", b"{} x", "INVALID_JSON", "line 1, column 4"),
            ("deep", deep.as_bytes(), "TOO_DEEP", "at most 32 levels"),
            ("huge number", b"{\"a\":1e400}", "OUT_OF_RANGE", "line 1"),
            ("raw NUL", b"{\"a\":\"\0\"}", "CONTROL_CHARACTER", "line 1"),
            ("lone surrogate", br#"{"a":"\ud800"}"#, "INVALID_ENCODING", "line 1"),
            ("lone trail surrogate", br#"{"a":"\udc00 x"}"#, "INVALID_ENCODING", "line 1"),
            ("not UTF-8", b"{\n\"a\":\"\xff\"}", "INVALID_ENCODING", "line 2, column 6"),
            ("twice", br#"{"to":1,"to":2}"#, "REPEATED_FIELD", "line 1"),
        ];
        for (case, body, code, place) in cases {
            let problem = read(body).expect_err(case);
            assert_eq!(problem.code, *code, "{case}: {}", problem.detail);
            assert!(problem.detail.contains(place), "{case}: {}", problem.detail);
        }
    }

    #[test]
    fn depth_is_counted_in_levels() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(nested(JSON_DEPTH_MAX).as_bytes()).is_ok());
        assert!(read(nested(JSON_DEPTH_MAX + 1).as_bytes()).is_err());
    }

    #[test]
    fn order_and_blanks_do_not_change_the_hash() {
        for hash_of in [canonical_hash, canonical_digest] {
            let hash = |text: &str| hash_of(&["send"], &read(text.as_bytes()).expect("valid"));
            assert_eq!(hash(r#"{"a":1,"b":[true,null]}"#), hash("{ \"b\" : [true , null],\n\"a\":1 }"));
            assert_ne!(hash(r#"{"a":1}"#), hash(r#"{"a":"1"}"#));
            assert_ne!(hash(r#"["ab","c"]"#), hash(r#"["a","bc"]"#));
            assert_ne!(hash("{}"), hash("[]"));
            let value = Value::Null;
            assert_ne!(hash_of(&["send"], &value), hash_of(&["batch"], &value));
        }
    }
}
