//! Which URLs the html policy refuses, read as a URL parser would read them.

use std::str::Chars;

/// Longest scheme that is looked at; those that matter have ten letters.
const SCHEME_CHARS_MAX: usize = 32;

/// Longest media type that is looked at; browsers know none longer.
const MIME_CHARS_MAX: usize = 64;

/// Where a URL stands decides what it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The client may open it as a document.
    Document,
    /// The client only paints it; scripts in an SVG image do not run.
    Image,
}

/// Names the refused kind of URL, or says that there is none.
pub(super) fn refused(value: &str, place: Place) -> Option<&'static str> {
    let mut rest = visible(value);
    let scheme = scheme(&mut rest)?;
    if scheme.ends_with("script") {
        return Some(match scheme.as_str() {
            "javascript" => "javascript: URL",
            "vbscript" => "vbscript: URL",
            _ => "script URL",
        });
    }
    (scheme == "data" && place == Place::Document).then(|| refused_data(rest)).flatten()
}

/// The same for attributes that hold several URLs, or a URL among other things.
pub(super) fn refused_in_list(value: &str, place: Place) -> Option<&'static str> {
    // Controls go first: the separator test must not split where the URL parser joins.
    let value: String = value.chars().filter(|&c| c >= ' ').collect();
    value
        .split([' ', ',', ';', '=', '"', '\''])
        .find_map(|part| refused(part, place))
        .or_else(|| refused(&value, place))
}

/// Does this style sheet, or style attribute, hold a script URL? Old clients ran them.
pub(super) fn style_sheet_has_script(css: &str) -> bool {
    let plain = plain_css(css);
    plain.match_indices("script:").any(|(at, _)| {
        let before = plain[..at].trim_end_matches(|c: char| c.is_ascii_alphabetic());
        before.ends_with(['(', '"', '\''])
    })
}

/// The URL without what the parser strips before it: leading blanks, and control characters anywhere. The
/// standard drops fewer (tab, CR and LF inside); clients were seen to drop all, and no honest URL has any.
fn visible(value: &str) -> impl Iterator<Item = char> + Clone + '_ {
    let blank =
        |c: char| c.is_whitespace() || c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{feff}');
    value.trim_start_matches(blank).chars().filter(|&c| c >= ' ')
}

/// Takes the scheme and its colon off the front, in lower case.
fn scheme(rest: &mut (impl Iterator<Item = char> + Clone)) -> Option<String> {
    let mut scheme = String::new();
    for c in rest.by_ref().take(SCHEME_CHARS_MAX + 1) {
        match c {
            ':' => return Some(scheme),
            'a'..='z' | 'A'..='Z' | '0'..='9' | '+' | '-' | '.' => scheme.push(c.to_ascii_lowercase()),
            _ => return None,
        }
    }
    None
}

/// `data:` documents that a browser would render together with their scripts.
fn refused_data(after_scheme: impl Iterator<Item = char>) -> Option<&'static str> {
    let mime = after_scheme.skip_while(|c| c.is_whitespace()).take_while(|c| !matches!(c, ',' | ';'));
    let mime = mime.take(MIME_CHARS_MAX).collect::<String>().to_ascii_lowercase();
    if mime.contains("html") {
        Some("data: URL holding an html document")
    } else if mime.contains("xml") {
        Some("data: URL holding an XML or SVG document")
    } else {
        None
    }
}

/// The style sheet with comments cut out, escapes resolved and blanks dropped, in lower case.
fn plain_css(css: &str) -> String {
    /// Stands for a comment, so that what it separates stays apart.
    const CUT: char = '\u{fffc}';
    let mut plain = String::with_capacity(css.len());
    let mut chars = css.chars();
    while let Some(c) = chars.next() {
        let c = match c {
            '/' if chars.as_str().starts_with('*') => {
                let comment_end = chars.as_str().get(1..).and_then(|body| body.find("*/"));
                chars = comment_end.map_or("", |end| &chars.as_str()[end + 3..]).chars();
                CUT
            }
            '\\' => css_escape(&mut chars),
            c => c,
        };
        if c > ' ' {
            plain.push(c.to_ascii_lowercase());
        }
    }
    plain
}

/// What an escape stands for; the backslash is already taken.
fn css_escape(chars: &mut Chars<'_>) -> char {
    let rest = chars.as_str();
    let digits = rest.bytes().take(6).take_while(u8::is_ascii_hexdigit).count();
    if digits == 0 {
        return chars.next().unwrap_or(' ');
    }
    let code = u32::from_str_radix(&rest[..digits], 16).unwrap_or_default();
    *chars = rest[digits..].strip_prefix([' ', '\t', '\n', '\r', '\x0c']).unwrap_or(&rest[digits..]).chars();
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}
