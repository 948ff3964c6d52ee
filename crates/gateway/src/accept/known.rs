//! What the store knows that a decision about drafts needs. It is read before, so that the decision itself is pure.

use std::collections::HashMap;
use std::sync::Arc;

use model::{Address, Content};
use serde_json::Value;
use store::StoreError;
use template::{RenderError, Template};

use super::draft::{Draft, DraftTemplate, Fault, Note, OnSuppressed};
use super::{Desk, text};
use crate::keys::Caller;
use crate::suppressions::{names, recipients};
use crate::templates::TemplateName;

#[derive(Default)]
pub struct Known {
    /// Those of the drafts' recipients that the company does not write to.
    suppressed: Vec<Address>,
    /// Those of the templates the drafts name that there are.
    templates: HashMap<TemplateName, Arc<Template>>,
}

/// Reads what `prepare` needs for these drafts.
pub async fn look_up<'a>(
    desk: &Desk,
    caller: &Caller,
    drafts: impl IntoIterator<Item = &'a Draft>,
) -> Result<Known, StoreError> {
    let (gateway, company) = (&desk.gateway, caller.company.id);
    let mut known = Known::default();
    let mut addresses: Vec<Address> = Vec::new();
    for draft in drafts {
        addresses.extend(recipients(&draft.envelope).cloned());
        let Some(DraftTemplate { name, .. }) = &draft.template else { continue };
        if !known.templates.contains_key(name)
            && let Some(template) = gateway.templates.get(&*gateway.store, company, name).await?
        {
            known.templates.insert(name.clone(), template);
        }
    }
    known.suppressed = gateway.suppressions.among(&*gateway.store, company, &addresses).await?;
    Ok(known)
}

impl Known {
    /// Fills in what the template makes.
    pub(super) fn render(&self, draft: &mut Draft) -> Result<(), Vec<Fault>> {
        let Some(DraftTemplate { name, variables }) = draft.template.take() else { return Ok(()) };
        let Some(template) = self.templates.get(&name) else {
            let message = "is not the name of a template of this company";
            return Err(vec![Fault::unacceptable("template", "TEMPLATE_NOT_FOUND", message)]);
        };
        let rendered = template.render(&variables).map_err(faults)?;
        if draft.envelope.subject.expose().is_empty() {
            text::subject(&rendered.subject).map_err(|flaw| vec![flawed("subject", flaw)])?;
            draft.envelope.subject = model::Secret::new(rendered.subject);
        }
        let is_empty = rendered.html.trim().is_empty();
        let body =
            if is_empty { Err(("INVALID_HTML", "is empty".into())) } else { text::body(&rendered.html) };
        body.map_err(|flaw| vec![flawed("html", flaw)])?;
        draft.notes.extend(unused(template, &variables));
        if let Content::Composed { html, text, .. } = &mut draft.content {
            *html = rendered.html;
            text.get_or_insert(rendered.text);
        }
        Ok(())
    }

    /// A fault where the company asked for one, notes otherwise: the email is taken, and not sent to those on the list.
    pub(super) fn suppression(&self, draft: &Draft) -> Result<Vec<Note>, Fault> {
        if self.suppressed.is_empty() {
            return Ok(Vec::new());
        }
        let mut notes = Vec::new();
        let envelope = &draft.envelope;
        let copies = |name, list: &[Address]| -> Vec<(String, Address)> {
            let place = |(index, address): (usize, &Address)| (format!("{name}[{index}]"), address.clone());
            list.iter().enumerate().map(place).collect()
        };
        let everybody = [("to".to_owned(), envelope.to.clone())]
            .into_iter()
            .chain(copies("cc", &envelope.cc))
            .chain(copies("bcc", &envelope.bcc));
        for (field, address) in everybody {
            if !names(&self.suppressed, &address) {
                continue;
            }
            let message = "is on the company's suppression list: nothing is sent to it until it is lifted";
            if draft.on_suppressed == OnSuppressed::Reject {
                return Err(Fault::unacceptable(field, SUPPRESSED, message));
            }
            notes.push(Note { field, code: SUPPRESSED, message: message.to_owned() });
        }
        Ok(notes)
    }
}

/// Variables told of that a template does not mention. Whoever hands over everything it has need not read more.
const UNUSED_TOLD_MAX: usize = 10;
/// Of a variable's name; it is the caller's and may be anything.
const NAME_CHARS_MAX: usize = 64;

/// What was given in vain is likely misspelt.
fn unused<'v>(template: &Template, variables: &'v Value) -> impl Iterator<Item = Note> + use<'v> {
    template.unmentioned(variables).into_iter().take(UNUSED_TOLD_MAX).map(|name| Note {
        field: format!("variables.{}", name.chars().take(NAME_CHARS_MAX).collect::<String>()),
        code: "UNUSED_VARIABLE",
        message: "is not mentioned in the template".to_owned(),
    })
}

/// What may not be written may not be made of variables either.
fn flawed(field: &str, (code, message): text::Flaw) -> Fault {
    let message = format!("{message} as the template makes it");
    match code {
        "PII_NOT_ALLOWED" => Fault::wrong(field, code, message),
        _ => Fault::unacceptable(field, code, message),
    }
}

pub const SUPPRESSED: &str = "RECIPIENT_SUPPRESSED";

/// Every missing variable is named.
fn faults(error: RenderError) -> Vec<Fault> {
    match error {
        RenderError::MissingVariables(names) => names
            .into_iter()
            .map(|name| {
                let field = format!("variables.{name}");
                Fault::unacceptable(field, "MISSING_VARIABLE", "is missing; the template needs it")
            })
            .collect(),
        other => vec![Fault::unacceptable("template", "TEMPLATE_ERROR", format!("makes no email: {other}"))],
    }
}
