//! The settings of the engine: what it offers, how it escapes, how far it goes. Who calls it is `template.rs`.

use std::io;

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, escape_formatter, filters,
};

use crate::variables::{guards, is_missing};

/// Steps of one rendering of one part: about a tenth of a second, and a hundred times what a long receipt takes.
const FUEL: u64 = 1_000_000;
/// Macros that call macros. Real templates have two or three levels.
const RECURSION_MAX: usize = 40;

/// Tests that answer "no" for what is not there instead of complaining, and so are a way to ask for it.
const QUIET_TESTS: &[(&str, ValueKind)] = &[
    ("boolean", ValueKind::Bool),
    ("mapping", ValueKind::Map),
    ("none", ValueKind::None),
    ("number", ValueKind::Number),
    ("sequence", ValueKind::Seq),
    ("string", ValueKind::String),
];

/// An engine with the names of the parts: values in the part called `html` are escaped.
pub(crate) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_debug(false);
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION_MAX);
    env.set_auto_escape_callback(|name| if name == "html" { AutoEscape::Html } else { AutoEscape::None });
    env.set_formatter(print);
    // It prints all variables at once.
    env.remove_global("debug");
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("map", map);
    env.add_test("defined", |value: &Value| !guards(value));
    env.add_test("undefined", |value: &Value| guards(value));
    for &(name, kind) in QUIET_TESTS {
        env.add_test(name, move |value: &Value| !guards(value) && value.kind() == kind);
    }
    env.add_test("iterable", |value: &Value| !guards(value) && value.try_iter().is_ok());
    env
}

/// A null prints nothing: "Dear None" helps nobody.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if value.is_none() { Ok(()) } else { escape_formatter(out, state, value) }
}

/// As the engine's own, for variables that are missing in our way.
fn default(state: &mut State, value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    if guards(value) {
        return Ok(args.first().cloned().unwrap_or_else(|| Value::from("")));
    }
    let chosen = filters::default(state, value, Rest(args.to_vec()))?;
    // The alternative was looked up in vain, but nobody needs it.
    if !is_missing(&chosen) {
        args.iter().for_each(|unused| {
            guards(unused);
        });
    }
    Ok(chosen)
}

/// As the engine's own. `map(attribute='x', default='y')` is one more way to ask for what may be missing.
fn map(state: &mut State, value: Value, args: Rest<ValueOrKwargs>) -> Result<Vec<Value>, Error> {
    let options = args.last().map(|last| &**last).filter(|last| last.is_kwargs());
    let default =
        options.and_then(|options| options.get_attr("default").ok()).filter(|value| !value.is_undefined());
    let mut mapped = filters::map(state, value, args)?;
    if let Some(default) = default {
        mapped.iter_mut().filter(|value| guards(value)).for_each(|missing| *missing = default.clone());
    }
    Ok(mapped)
}

/// Takes the output, up to a limit.
pub(crate) struct Paper {
    pub bytes: Vec<u8>,
    pub bytes_max: usize,
    pub is_full: bool,
}

impl Paper {
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), bytes_max, is_full: false }
    }
}

impl io::Write for Paper {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > self.bytes_max {
            self.is_full = true;
            return Err(io::Error::other("output too large"));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What went wrong, in words that quote the template and never a value. The engine's own words may quote values.
pub(crate) fn in_words(error: &Error, source: &str) -> String {
    let place = error.range().and_then(|range| source.get(range)).map(str::trim).unwrap_or_default();
    let place: String = place.chars().take(80).collect();
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        ErrorKind::UndefinedError => format!("`{place}` has no value"),
        ErrorKind::InvalidOperation if detail == "recursion limit exceeded" => {
            "macros call each other too deeply".to_owned()
        }
        // Their details are names out of the template.
        ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => detail.to_owned(),
        ErrorKind::UnknownMethod => format!("`{place}`: there is no such method"),
        _ => format!("`{place}` cannot be calculated"),
    }
}
