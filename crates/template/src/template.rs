//! Compile and render. Start reading here.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use minijinja::{Environment, Error, ErrorKind};
use serde_json::Value as Json;

use crate::engine::{self, Paper};
use crate::mjml;
use crate::source::{Field, Lines, Problem, Source};
use crate::tags::{self, Macros};
use crate::text;
use crate::variables::{self, Absent};

/// Html and text as rendered, each.
pub const OUTPUT_BYTES_MAX: usize = 512 * 1024;
/// A subject as rendered. Clients show half of it.
pub const SUBJECT_CHARS_MAX: usize = 150;
/// The most a subject can print before it is trimmed and counted.
const SUBJECT_PRINTED_BYTES_MAX: usize = 16 * 1024;
/// Missing variables that are named. A list of a thousand items may lack the same entry a thousand times.
const MISSING_NAMED_MAX: usize = 50;
/// How often a part is rendered again to find the missing variables behind a calculation that stopped it.
const TRIES_MAX: usize = 8;

/// A template that compiled. Rendering it is deterministic: the same variables give the same email.
#[derive(Clone)]
pub struct Template {
    env: Environment<'static>,
    subject: Part,
    body: Part,
    text: Option<Part>,
    variables: Vec<String>,
    /// Where the tags of an MJML source ended up in the html.
    origins: mjml::Origins,
}

#[derive(Clone)]
struct Part {
    /// How the author calls it.
    field: Field,
    /// How the engine calls it.
    name: &'static str,
    /// As the engine reads it: of MJML, the html.
    source: Arc<str>,
    bytes_max: usize,
    macros: Macros,
}

/// An email, as far as a template makes one.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendered {
    pub subject: String,
    pub html: String,
    pub text: String,
}

/// Sizes only: content never reaches a log.
impl fmt::Debug for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendered")
            .field("subject_bytes", &self.subject.len())
            .field("html_bytes", &self.html.len())
            .field("text_bytes", &self.text.len())
            .finish()
    }
}

/// Why these variables and this template make no email. Nothing in here quotes a variable's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Paths as the template names them: `order.items[0].price`. Sorted, at most 50.
    #[error("missing variables: {}", .0.join(", "))]
    MissingVariables(Vec<String>),
    #[error("the variables must be a JSON object")]
    NotAnObject,
    #[error("{field}: rendering takes too many steps")]
    TooMuchWork { field: Field },
    #[error("{field}: the output is longer than {bytes_max} bytes")]
    TooLarge { field: Field, bytes_max: usize },
    #[error("the rendered subject is longer than {SUBJECT_CHARS_MAX} characters")]
    SubjectTooLong,
    #[error("the rendered subject has a line break or another control character")]
    SubjectNotOneLine,
    #[error("{field}{}: {message}", .line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Failed { field: Field, line: Option<usize>, message: String },
}

impl Template {
    /// Checks a source and makes it ready. All problems are told at once, as far as one does not hide another.
    pub fn compile(source: &Source) -> Result<Template, Vec<Problem>> {
        let mut problems = source.misshapen();
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut env = engine::environment();
        let mut origins = mjml::Origins::default();
        let (mut subject, mut body, mut text) = (None, None, None);
        for (field, written) in source.parts() {
            match add_part(&mut env, field, written, &mut origins) {
                Err(more) => problems.extend(more),
                Ok(part) => match field {
                    Field::Subject => subject = Some(part),
                    Field::Html | Field::Mjml => body = Some(part),
                    Field::Text => text = Some(part),
                },
            }
        }
        match (subject, body) {
            (Some(subject), Some(body)) if problems.is_empty() => {
                let variables = used_variables(&env);
                Ok(Template { env, subject, body, text, variables, origins })
            }
            _ => Err(problems),
        }
    }

    /// The email for these variables. If any are missing, all of them are named.
    pub fn render(&self, variables: &Json) -> Result<Rendered, RenderError> {
        let nothing = serde_json::Map::new();
        let variables = match variables {
            Json::Object(variables) => variables,
            Json::Null => &nothing,
            _ => return Err(RenderError::NotAnObject),
        };
        let mut missing = BTreeSet::new();
        let subject = self.render_part(&self.subject, variables, &mut missing);
        let html = self.render_part(&self.body, variables, &mut missing);
        let text = self.text.as_ref().map(|part| self.render_part(part, variables, &mut missing)).transpose();
        if !missing.is_empty() {
            return Err(RenderError::MissingVariables(missing.into_iter().take(MISSING_NAMED_MAX).collect()));
        }
        let subject = one_line(subject)?;
        let html = html?;
        let text = text?.unwrap_or_else(|| text::from_html(&html));
        Ok(Rendered { subject, html, text })
    }

    /// The variables the template mentions, with their dotted paths where they can be told, sorted. Guarded ones too.
    pub fn variables(&self) -> &[String] {
        &self.variables
    }

    /// Those of the given variables that the template does not mention, sorted; only the outermost, since objects are
    /// handed over whole.
    pub fn unmentioned<'v>(&self, variables: &'v Json) -> Vec<&'v str> {
        let root = |path: &String| path.split(['.', '[']).next().unwrap_or_default().to_owned();
        let mentioned: BTreeSet<String> = self.variables.iter().map(root).collect();
        let given = variables.as_object().into_iter().flat_map(serde_json::Map::keys);
        let mut extra: Vec<&str> =
            given.map(String::as_str).filter(|name| !mentioned.contains(*name)).collect();
        extra.sort_unstable();
        extra
    }

    /// One part, and the variables it missed. A calculation with a missing variable stops the engine: the variable is
    /// noted, a number takes its place, and the part is rendered again to find what else is missing.
    fn render_part(
        &self,
        part: &Part,
        variables: &serde_json::Map<String, Json>,
        missing: &mut BTreeSet<String>,
    ) -> Result<String, RenderError> {
        let mut stand_ins = BTreeSet::new();
        let mut tries = 0;
        loop {
            let absent = Absent::with_stand_ins(stand_ins.clone());
            let printed = self.print(part, variables, &absent);
            missing.extend(absent.used());
            let stopped = match printed {
                Ok(printed) => {
                    missing.extend(absent.held().into_iter().filter(|path| !part.macros.mention(path)));
                    return Ok(printed);
                }
                Err(Stopped::For(error)) => return Err(error),
                Err(Stopped::By(error)) => error,
            };
            let culprits = Self::culprits(part, &stopped, &absent);
            tries += 1;
            if culprits.is_empty() || tries == TRIES_MAX {
                missing.extend(culprits);
                return self.explain(part, &stopped, missing);
            }
            missing.extend(culprits.iter().cloned());
            stand_ins.extend(culprits);
        }
    }

    /// The missing variables that may have stopped the engine.
    fn culprits(part: &Part, stopped: &Error, absent: &Absent) -> BTreeSet<String> {
        let place = place(part, stopped);
        let mut held = absent.held();
        held.retain(|path| !part.macros.mention(path) || place.contains(path.as_str()));
        held
    }

    /// What stopped the engine for good: something without a value that can be named, or an error of the template.
    fn explain(
        &self,
        part: &Part,
        stopped: &Error,
        missing: &mut BTreeSet<String>,
    ) -> Result<String, RenderError> {
        let place = place(part, stopped);
        if stopped.kind() == ErrorKind::UndefinedError && is_path(place) {
            missing.insert(place.to_owned());
        }
        let line = stopped.range().map(|range| match part.field {
            Field::Mjml => self.origins.line_of(range.start),
            _ => Some(Lines::of(&part.source).at(range.start)),
        });
        let message = engine::in_words(stopped, &part.source);
        Err(RenderError::Failed { field: part.field, line: line.flatten(), message })
    }

    fn print(
        &self,
        part: &Part,
        variables: &serde_json::Map<String, Json>,
        absent: &Arc<Absent>,
    ) -> Result<String, Stopped> {
        let globals = self.env.globals().map(|(name, _)| name.to_owned());
        let globals: BTreeSet<String> = globals.chain(part.macros.names.iter().cloned()).collect();
        let root = variables::root(variables, absent, move |name| globals.contains(name));
        let mut paper = Paper::new(part.bytes_max);
        let template = self.env.get_template(part.name).map_err(Stopped::By)?;
        let printed = template.render_captured_to(root, &mut paper).map(drop);
        match printed {
            Ok(()) => Ok(String::from_utf8_lossy(&paper.bytes).into_owned()),
            Err(_) if paper.is_full => {
                Err(Stopped::For(RenderError::TooLarge { field: part.field, bytes_max: part.bytes_max }))
            }
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                Err(Stopped::For(RenderError::TooMuchWork { field: part.field }))
            }
            Err(error) => Err(Stopped::By(error)),
        }
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("variables", &self.variables).finish_non_exhaustive()
    }
}

/// Why a part came to no end.
enum Stopped {
    /// A limit: final.
    For(RenderError),
    /// The engine: perhaps because of a missing variable.
    By(Error),
}

fn add_part(
    env: &mut Environment<'static>,
    field: Field,
    written: &str,
    origins: &mut mjml::Origins,
) -> Result<Part, Vec<Problem>> {
    let found = tags::scan(written);
    let knows = |kind: &str, name: &str| {
        let asked = env.compile_expression_owned(format!("name is {kind}"));
        let answer = asked.and_then(|question| question.eval(minijinja::context! { name }));
        answer.is_ok_and(|answer| answer.is_true())
    };
    let problems =
        tags::problems(field, written, &found, &|name| knows("filter", name), &|name| knows("test", name));
    if !problems.is_empty() {
        return Err(problems);
    }
    let (name, bytes_max) = match field {
        Field::Subject => ("subject", SUBJECT_PRINTED_BYTES_MAX),
        Field::Html | Field::Mjml => ("html", OUTPUT_BYTES_MAX),
        Field::Text => ("text", OUTPUT_BYTES_MAX),
    };
    // MJML goes in as it was written first, so that the lines of syntax errors are the author's.
    env.add_template_owned(name, written.to_owned()).map_err(|error| {
        let message = error.detail().unwrap_or("syntax error").to_owned();
        let line = error.range().map(|range| Lines::of(written).at(range.start)).or(error.line());
        vec![Problem { field, line, message }]
    })?;
    let mut source: Arc<str> = written.into();
    if field == Field::Mjml {
        let html = mjml::to_html(written, &found)?;
        *origins = html.origins;
        source = html.html.as_str().into();
        env.add_template_owned(name, html.html).map_err(|error| {
            let detail = error.detail().unwrap_or("syntax error");
            vec![Problem::of(field, format!("MJML moved the tags so that they no longer fit: {detail}"))]
        })?;
    }
    Ok(Part { field, name, source, bytes_max, macros: Macros::of(&found) })
}

fn used_variables(env: &Environment<'_>) -> Vec<String> {
    let globals: BTreeSet<&str> = env.globals().map(|(name, _)| name).collect();
    let mentioned: BTreeSet<String> =
        env.templates().flat_map(|(_, template)| template.undeclared_variables(true)).collect();
    mentioned.into_iter().filter(|name| !globals.contains(name.as_str())).collect()
}

/// Blanks around a subject come from the template's own lines; inside it there must be none but spaces.
fn one_line(subject: Result<String, RenderError>) -> Result<String, RenderError> {
    let subject = match subject {
        Ok(subject) => subject.trim().to_owned(),
        Err(RenderError::TooLarge { .. }) => return Err(RenderError::SubjectTooLong),
        Err(error) => return Err(error),
    };
    // The separators end a line for some readers of headers.
    if subject.chars().any(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')) {
        return Err(RenderError::SubjectNotOneLine);
    }
    if subject.chars().count() > SUBJECT_CHARS_MAX {
        return Err(RenderError::SubjectTooLong);
    }
    Ok(subject)
}

/// The piece of the template at which the engine stopped.
fn place<'p>(part: &'p Part, stopped: &Error) -> &'p str {
    let range = stopped.range().unwrap_or_default();
    part.source.get(range).unwrap_or_default().trim()
}

/// Whether a piece of a template is a name with attributes and keys, and so names a variable.
fn is_path(place: &str) -> bool {
    place.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && place.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '[' | ']' | '\'' | '"' | '-'))
}

#[cfg(test)]
#[path = "template/tests.rs"]
mod tests;
