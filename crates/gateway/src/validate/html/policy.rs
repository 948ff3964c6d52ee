//! The rules of the html policy for one start tag. Whether the tag is one is decided before, in `parse.rs`.

use html5ever::tokenizer::Tag;

use super::url::{self, Place};

/// Letters of a name that may appear in a message.
const NAME_CHARS_MAX: usize = 32;

/// Attributes holding words for people or programs, never a URL. All others are judged as if they held one,
/// since a list of URL attributes would be short by the next one invented.
const TEXT_ATTRIBUTES: [&str; 23] = [
    "abbr",
    "alt",
    "class",
    "content",
    "dir",
    "download",
    "for",
    "headers",
    "id",
    "itemprop",
    "label",
    "lang",
    "media",
    "name",
    "placeholder",
    "property",
    "rel",
    "role",
    "style",
    "summary",
    "title",
    "type",
    "value",
];

/// Attributes with several URLs, or a URL among other things.
const LIST_ATTRIBUTES: [&str; 10] =
    ["archive", "by", "content", "from", "imagesrcset", "ping", "srcset", "to", "values", "value"];

/// Attributes from which a client takes an image, on any element.
const IMAGE_ATTRIBUTES: [&str; 6] = ["background", "dynsrc", "imagesrcset", "lowsrc", "poster", "srcset"];

/// Elements whose `src` is painted or played, never opened as a document.
const MEDIA: [&str; 8] = ["audio", "img", "input", "source", "v:fill", "v:image", "v:imagedata", "video"];

/// What this tag violates, in words, if anything.
pub(super) fn violation(tag: &Tag) -> Option<String> {
    if is_script(&tag.name) {
        return Some("<script> element".to_owned());
    }
    tag.attrs.iter().find_map(|attribute| {
        let name = &*attribute.name.local;
        if is_event_handler(name) {
            return Some(format!(
                "event handler attribute {} on <{}>",
                printable(name),
                printable(&tag.name)
            ));
        }
        let refused = refused_value(tag, name, &attribute.value)?;
        Some(format!("{refused} in {} of <{}>", printable(name), printable(&tag.name)))
    })
}

/// The documents a tag carries in its attributes.
pub(super) fn embedded_documents(tag: &Tag) -> impl Iterator<Item = &str> {
    tag.attrs.iter().filter(|attribute| &*attribute.name.local == "srcdoc").map(|attribute| &*attribute.value)
}

/// `svg:script` is a script only to an XML parser, but nobody else has a use for it.
fn is_script(element: &str) -> bool {
    element == "script" || element.ends_with(":script")
}

/// Every `on` followed by at least three letters, so that handlers invented after this was written count.
/// What follows a name such as `onclick-id` or `on:click` is another attribute to every browser; what follows
/// `onclick` and is not part of any name (`onclick\x0b`) was a blank to some.
fn is_event_handler(attribute: &str) -> bool {
    let Some(event) = attribute.strip_prefix("on") else { return false };
    let rest = event.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let goes_on = rest.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.' | '_' | ':'));
    event.len() - rest.len() >= 3 && !goes_on && attribute != "online"
}

fn refused_value(tag: &Tag, attribute: &str, value: &str) -> Option<&'static str> {
    if attribute == "style" {
        return url::style_sheet_has_script(value).then_some("script URL");
    }
    if !may_hold_url(tag, attribute) {
        return None;
    }
    let place = place(&tag.name, attribute);
    if LIST_ATTRIBUTES.contains(&attribute) {
        url::refused_in_list(value, place)
    } else {
        url::refused(value, place)
    }
}

fn may_hold_url(tag: &Tag, attribute: &str) -> bool {
    match (&*tag.name, attribute) {
        ("meta", "content") => is_refresh(tag),
        ("param", "value") => true,
        _ => {
            !TEXT_ATTRIBUTES.contains(&attribute)
                && !attribute.starts_with("data-")
                && !attribute.starts_with("aria-")
        }
    }
}

fn is_refresh(meta: &Tag) -> bool {
    meta.attrs.iter().any(|attribute| {
        &*attribute.name.local == "http-equiv" && attribute.value.trim().eq_ignore_ascii_case("refresh")
    })
}

fn place(element: &str, attribute: &str) -> Place {
    let paints = match attribute {
        "src" => MEDIA.contains(&element),
        "href" | "xlink:href" => matches!(element, "image" | "feimage"),
        _ => IMAGE_ATTRIBUTES.contains(&attribute),
    };
    if paints { Place::Image } else { Place::Document }
}

/// A name fit for messages and logs: short and plain, whatever the html held.
fn printable(name: &str) -> String {
    let mut printable: String =
        name.chars().take(NAME_CHARS_MAX).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect();
    if name.chars().nth(NAME_CHARS_MAX).is_some() {
        printable.push_str("...");
    }
    printable
}
