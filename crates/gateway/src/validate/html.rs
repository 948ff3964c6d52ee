//! The html policy of the TEMPLATE validation: no scripts, no script URLs, no event handlers.
//!
//! Two readers share the work. `html/glance.rs` looks at everything that could be a tag, whatever surrounds
//! it, and clears nearly every email in microseconds. What it cannot clear goes to `html/parse.rs`, which
//! lets html5ever's tokenizer and tree builder say which of those tags are real, so that prose, comments and
//! raw text are not taken for markup. `html/policy.rs` holds the rules for one tag, `html/url.rs` those for
//! URLs and style sheets.
//!
//! Nothing here changes the html, and nothing here knows about emails: `validate` turns a refusal into
//! `INVALID_TEMPLATE`.

mod glance;
mod parse;
mod policy;
mod url;

#[cfg(test)]
mod tests;

use std::fmt;

use glance::Glance;
use parse::{Fuel, View};

/// Documents inside documents (`srcdoc`, conditional comments) that are still followed. Real emails have one
/// level.
const DOCUMENT_DEPTH_MAX: usize = 4;

/// Why the html was refused: in words for a person, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unsafe html: {what}{}", Place(*.offset))]
pub struct UnsafeHtml {
    /// Names the rule, the element and the attribute; carries nothing else of the html.
    pub what: String,
    /// Byte where the offending tag starts, where that could be told.
    pub offset: Option<usize>,
}

struct Place(Option<usize>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(offset) => write!(f, " at byte {offset}"),
            None => Ok(()),
        }
    }
}

impl UnsafeHtml {
    fn nowhere(what: impl Into<String>) -> Self {
        Self { what: what.into(), offset: None }
    }

    fn at(self, offset: Option<usize>) -> Self {
        Self { offset, ..self }
    }

    fn too_deep() -> Self {
        Self::nowhere("markup nested too deeply")
    }
}

/// Refuses html which carries a script in any form an html parser would recognise.
pub fn check(html: &str) -> Result<(), UnsafeHtml> {
    inspect(html, 0, &Fuel::full())
}

/// `check` for a document at some depth inside another. All of them draw on the same fuel.
fn inspect(html: &str, depth: usize, fuel: &Fuel) -> Result<(), UnsafeHtml> {
    match glance::glance(html) {
        Glance::Safe => return Ok(()),
        Glance::LookCloser => {}
        Glance::Tangled => return Err(UnsafeHtml::nowhere("markup too tangled to judge")),
    }
    if depth > DOCUMENT_DEPTH_MAX {
        return Err(UnsafeHtml::too_deep());
    }
    // Browsers drop the mark before they parse; left in, it would count as text and change what follows.
    let text = html.strip_prefix('\u{feff}').unwrap_or(html);
    let mark_bytes = html.len() - text.len();
    for view in views(text) {
        parse::judge(text, view, depth, fuel).map_err(|unsafe_html| UnsafeHtml {
            offset: unsafe_html.offset.map(|at| at + mark_bytes),
            ..unsafe_html
        })?;
    }
    if text.contains('\0') {
        // The standard turns NUL into U+FFFD, older clients drop it and read `<scr\0ipt>` as what it then
        // spells.
        let dropped = text.replace('\0', "");
        inspect(&dropped, depth, fuel).map_err(|unsafe_html| unsafe_html.at(None))?;
    }
    Ok(())
}

/// The ways in which a client may parse this text and come to different tags. Most texts have only one.
fn views(text: &str) -> Vec<View> {
    let lower = text.to_ascii_lowercase();
    let mut views = vec![View::Document { scripting: true }];
    // Without scripting the content of noscript is markup; with it, text.
    if lower.contains("<noscript") {
        views.push(View::Document { scripting: false });
    }
    // A frameset makes a browser ignore what a webmail, which puts the html into a page of its own, would
    // show.
    if lower.contains("<frameset") {
        views.push(View::Fragment { scripting: true });
        views.push(View::Fragment { scripting: false });
    }
    views
}
