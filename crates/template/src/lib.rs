//! Templates of emails: checked, rendered within limits, missing variables named. Pure: a source and variables come in,
//! a subject, html and text go out. Keeping templates, their versions and names is others' work.
//!
//! The path of a template:
//!
//! 1. `source.rs`: what a company wrote, and what is wrong with it in words.
//! 2. `tags.rs`: the Jinja tags of a source, found before the engine sees them. What the engine would not survive
//!    (endless expressions) and what is not offered (includes) is refused here.
//! 3. `mjml.rs`: MJML becomes html once, when the template is compiled. The Jinja tags are taken out before and put
//!    back afterwards, so that MJML never sees a variable and a variable never sees MJML.
//! 4. `template.rs`: compile and render. `engine.rs` holds the settings of the engine, `variables.rs` the variables as
//!    the engine sees them and the ones it asked for in vain, `text.rs` the text alternative.
//!
//! `alerts` are the templates that ship with the gateway.
//!
//! What is promised: variables cannot inject. In html every value is escaped, in attributes too, unless the template
//! says `safe`; a company writes its own templates and may do so. Values are never read as Jinja or MJML. Whether a link
//! is harmless is not decided here: the html is checked again when the email is accepted.
//!
//! What is not promised: that an author who means harm cannot use up memory. Work and output are bounded, but the engine
//! does not count the bytes of values in between (`a ~ a`, forty times). Authors are keyholders of a company; variables
//! can be anybody's.

pub mod alerts;
mod engine;
mod mjml;
mod source;
mod tags;
mod template;
mod text;
mod variables;

pub use source::{BODY_BYTES_MAX, Field, Problem, SUBJECT_BYTES_MAX, Source};
pub use template::{OUTPUT_BYTES_MAX, RenderError, Rendered, SUBJECT_CHARS_MAX, Template};
pub use text::from_html as text_from_html;
