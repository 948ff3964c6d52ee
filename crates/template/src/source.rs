//! What a company wrote, and what is wrong with it in words. Whether it compiles is `template.rs`'s business.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A subject is one line of an email; its template may hold a few conditions.
pub const SUBJECT_BYTES_MAX: usize = 1024;
/// Html, MJML and text, each. Mail clients clip far smaller bodies.
pub const BODY_BYTES_MAX: usize = 512 * 1024;

/// The sources of one template. Exactly one of `html` and `mjml` is given; without `text` it is derived from the html.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    pub subject: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mjml: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Sizes only: a body never reaches a log.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |part: &Option<String>| part.as_ref().map(String::len);
        f.debug_struct("Source")
            .field("subject_bytes", &self.subject.len())
            .field("html_bytes", &bytes(&self.html))
            .field("mjml_bytes", &bytes(&self.mjml))
            .field("text_bytes", &bytes(&self.text))
            .finish()
    }
}

/// A part of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Field {
    Subject,
    Html,
    Mjml,
    Text,
}

impl Field {
    pub fn as_str(self) -> &'static str {
        match self {
            Field::Subject => "subject",
            Field::Html => "html",
            Field::Mjml => "mjml",
            Field::Text => "text",
        }
    }

    fn bytes_max(self) -> usize {
        match self {
            Field::Subject => SUBJECT_BYTES_MAX,
            Field::Html | Field::Mjml | Field::Text => BODY_BYTES_MAX,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing that is wrong with a source. The message speaks of the template only, never of a variable's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    pub field: Field,
    /// Counted from 1, in the source as it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    pub message: String,
}

impl Problem {
    pub(crate) fn of(field: Field, message: impl Into<String>) -> Self {
        Self { field, line: None, message: message.into() }
    }

    pub(crate) fn at(field: Field, line: usize, message: impl Into<String>) -> Self {
        Self { field, line: Some(line), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}, line {line}: {}", self.field, self.message),
            None => write!(f, "{}: {}", self.field, self.message),
        }
    }
}

impl Source {
    /// The parts that are there, in the order in which problems are told.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (Field, &str)> {
        [
            (Field::Subject, Some(&self.subject)),
            (Field::Html, self.html.as_ref()),
            (Field::Mjml, self.mjml.as_ref()),
            (Field::Text, self.text.as_ref()),
        ]
        .into_iter()
        .filter_map(|(field, part)| Some((field, part?.as_str())))
    }

    /// What can be said without reading the parts: their number and their sizes.
    pub(crate) fn misshapen(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        match (&self.html, &self.mjml) {
            (None, None) => problems.push(Problem::of(Field::Html, "give either html or mjml")),
            (Some(_), Some(_)) => problems.push(Problem::of(Field::Mjml, "give html or mjml, not both")),
            _ => {}
        }
        for (field, part) in self.parts() {
            if part.len() > field.bytes_max() {
                let message =
                    format!("must not be longer than {} bytes, has {}", field.bytes_max(), part.len());
                problems.push(Problem::of(field, message));
            }
        }
        problems
    }
}

/// Where the lines of a text start, so that many places in it can be told by line.
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The line, counted from 1, of a byte.
    pub fn at(&self, offset: usize) -> usize {
        self.0.partition_point(|&line_break| line_break < offset) + 1
    }
}
