//! MJML becomes html once, when a template is compiled: rendering an email then costs no MJML, and a variable can
//! never become an MJML element.
//!
//! The Jinja tags must survive that. MJML would take `{% if a < b %}` for an element, so each tag is replaced by a mark,
//! a word of letters and digits that MJML carries along in texts and attributes, and put back afterwards. In the body
//! a tag may stand between elements too (`{% for %}` around a section), with `mj-raw` around it or without.
//!
//! What cannot work is told: between the elements of the head, which MJML sorts, and in an attribute that MJML itself
//! calculates with, such as the width of a column.
//!
//! Words outside of ASCII travel as marks too: the tokenizer under mrml panics at `é >`, since it looks two bytes back.

use std::ops::Range;

use htmlparser::{ElementEnd, Token, Tokenizer};
use mrml::prelude::parser::Error as ParseError;
use mrml::prelude::render::RenderOptions;

use crate::source::{BODY_BYTES_MAX, Field, Lines, Problem};
use crate::tags::{Kind, Tag};

/// Elements inside elements. mrml recurses into them, and a stack that overflows ends the process.
const DEPTH_MAX: usize = 60;

/// Lost tags that are told. More would not be read.
const LOST_TOLD_MAX: usize = 20;

/// Elements whose children MJML sorts by kind: a tag between them would end up elsewhere.
const SORTED: &[&str] = &["mjml", "mj-head", "mj-attributes"];

/// Elements without an end, as mrml knows them.
const VOID: &[&str] = &[
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track",
    "wbr",
];

pub(crate) struct Html {
    pub html: String,
    pub origins: Origins,
}

/// Offsets of tags in the html and their lines in the MJML, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins(Vec<(usize, usize)>);

impl Origins {
    pub fn line_of(&self, offset: usize) -> Option<usize> {
        let after = self.0.partition_point(|&(start, _)| start <= offset);
        self.0.get(after.checked_sub(1)?).map(|&(_, line)| line)
    }
}

pub(crate) fn to_html(source: &str, tags: &[Tag<'_>]) -> Result<Html, Vec<Problem>> {
    if !source.contains("<mjml") {
        return Err(vec![problem(None, "has no `mjml` element")]);
    }
    let marks = Marks { prefix: unused_word(source), source, holes: holes(source, tags) };
    let marked = marks.put_in();
    check_structure(&marks, &marked).map_err(|problem| vec![problem])?;
    let parsed = mrml::parse(&marked).map_err(|error| vec![marks.in_words(&marked, &error)])?;
    // No fonts: the default ones would make the recipient's client call a foreign server.
    let options = RenderOptions { fonts: Default::default(), ..RenderOptions::default() };
    let html = parsed.element.render(&options).map_err(|error| vec![problem(None, &error.to_string())])?;
    // MJML's own style sheets must not open a tag.
    let html = html.replace("{{", "{ {").replace("{%", "{ %").replace("{#", "{ #");
    if html.len() > 4 * BODY_BYTES_MAX {
        return Err(vec![problem(None, "becomes too much html")]);
    }
    marks.put_back(&html)
}

fn problem(line: Option<usize>, message: &str) -> Problem {
    Problem { field: Field::Mjml, line, message: message.to_owned() }
}

/// A word that the source does not have.
fn unused_word(source: &str) -> String {
    let lower = source.to_ascii_lowercase();
    (0..).map(|n| format!("jtag{n}x")).find(|word| !lower.contains(word)).unwrap_or_default()
}

/// A piece of the source that a mark stands for.
struct Hole<'s> {
    range: Range<usize>,
    /// None for words outside of ASCII.
    tag: Option<&'s Tag<'s>>,
}

/// All tags, and between them all that is not ASCII.
fn holes<'s>(source: &str, tags: &'s [Tag<'s>]) -> Vec<Hole<'s>> {
    let mut holes = Vec::new();
    let mut at = 0;
    let ends = tags.iter().map(|tag| (tag.range.start, Some(tag))).chain([(source.len(), None)]);
    for (end, tag) in ends {
        let bytes = &source.as_bytes()[..end];
        while let Some(found) = bytes[at..].iter().position(|byte| !byte.is_ascii()) {
            let start = at + found;
            let length = bytes[start..].iter().position(u8::is_ascii).unwrap_or(end - start);
            at = start + length;
            holes.push(Hole { range: start..at, tag: None });
        }
        if let Some(tag) = tag {
            at = tag.range.end;
            holes.push(Hole { range: tag.range.clone(), tag: Some(tag) });
        }
    }
    holes
}

/// The stand-ins of the holes: prefix, number, `z` or `y`.
struct Marks<'s> {
    prefix: String,
    source: &'s str,
    holes: Vec<Hole<'s>>,
}

impl Marks<'_> {
    /// A tag right after a quote (`class="a"{% endif %}`) needs a space before its mark, or the attribute would not
    /// end; `y` says that the space is not the author's.
    fn mark(&self, number: usize) -> String {
        let hole = &self.holes[number];
        let follows_quote = self.source[..hole.range.start].ends_with(['"', '\'']);
        match hole.tag.map(|tag| &tag.kind) {
            Some(Kind::Block | Kind::Comment) if follows_quote => format!(" {}{number}y", self.prefix),
            _ => format!("{}{number}z", self.prefix),
        }
    }

    /// Whether a mark stands for a tag that does something.
    fn acts(&self, number: usize) -> bool {
        let tag = self.holes.get(number).and_then(|hole| hole.tag);
        tag.is_some_and(|tag| tag.kind != Kind::Comment)
    }

    fn put_in(&self) -> String {
        let mut marked = String::with_capacity(self.source.len());
        let mut at = 0;
        for (number, hole) in self.holes.iter().enumerate() {
            marked.push_str(&self.source[at..hole.range.start]);
            marked.push_str(&self.mark(number));
            at = hole.range.end;
        }
        marked.push_str(&self.source[at..]);
        marked
    }

    /// The pieces of a marked text: what stands before each mark, the mark's number, and the rest.
    fn split<'t>(&self, marked: &'t str) -> (Vec<(&'t str, usize)>, &'t str) {
        let mut pieces = Vec::new();
        let mut rest = marked;
        while let Some(start) = rest.find(&self.prefix) {
            let after = &rest[start + self.prefix.len()..];
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let Ok(number) = after[..digits].parse() else { break };
            let is_spaced = after[digits..].starts_with('y');
            let before = &rest[..start];
            pieces
                .push((if is_spaced { before.strip_suffix(' ').unwrap_or(before) } else { before }, number));
            rest = after[digits..].strip_prefix(['y', 'z']).unwrap_or(&after[digits..]);
        }
        (pieces, rest)
    }

    /// The html with its tags. A tag of the body that MJML dropped is a problem, a comment excepted; in the head a
    /// default that no element takes may go.
    fn put_back(&self, html: &str) -> Result<Html, Vec<Problem>> {
        let (pieces, rest) = self.split(html);
        let mut whole = String::with_capacity(html.len() + self.source.len());
        let lines = Lines::of(self.source);
        let mut origins = Vec::new();
        let mut is_lost = vec![true; self.holes.len()];
        for (before, number) in pieces {
            whole.push_str(before);
            let Some(hole) = self.holes.get(number) else { continue };
            is_lost[number] = false;
            origins.push((whole.len(), lines.at(hole.range.start)));
            whole.push_str(&self.source[hole.range.clone()]);
        }
        whole.push_str(rest);
        let head_end = self.source.find("</mj-head>").unwrap_or(0);
        let lost: Vec<Problem> = self
            .holes
            .iter()
            .enumerate()
            .filter(|&(number, hole)| is_lost[number] && self.acts(number) && hole.range.start >= head_end)
            .take(LOST_TOLD_MAX)
            .map(|(_, hole)| {
                let written: String = self.source[hole.range.clone()].chars().take(60).collect();
                let message = format!("MJML drops `{written}` here: it needs to know this value beforehand");
                problem(Some(lines.at(hole.range.start)), &message)
            })
            .collect();
        if lost.is_empty() { Ok(Html { html: whole, origins: Origins(origins) }) } else { Err(lost) }
    }

    /// The author's line of a byte of the marked text: tags may have had line breaks in them.
    fn line_of(&self, marked: &str, offset: usize) -> usize {
        let mut end = offset.min(marked.len());
        while !marked.is_char_boundary(end) {
            end -= 1;
        }
        let (pieces, _) = self.split(&marked[..end]);
        let hidden: usize = pieces
            .iter()
            .filter_map(|&(_, number)| self.holes.get(number))
            .map(|hole| self.source[hole.range.clone()].matches('\n').count())
            .sum();
        Lines::of(marked).at(end) + hidden
    }

    fn in_words(&self, marked: &str, error: &ParseError) -> Problem {
        let at = |start: usize| Some(self.line_of(marked, start));
        match error {
            ParseError::UnexpectedElement { position, .. } => {
                let name: String =
                    marked.get(position.start..position.end).unwrap_or_default().chars().take(40).collect();
                problem(at(position.start), &format!("the element `{name}` does not belong here"))
            }
            ParseError::UnexpectedToken { position, .. } => {
                problem(at(position.start), "unexpected markup; is an element not closed?")
            }
            ParseError::MissingAttribute { name, position, .. } => {
                problem(at(position.start), &format!("the attribute `{name}` is missing"))
            }
            ParseError::InvalidAttribute { position, .. } | ParseError::InvalidFormat { position, .. } => {
                problem(at(position.start), "an attribute has a value that MJML does not know")
            }
            ParseError::IncludeLoaderError { position, .. } => problem(at(position.start), INCLUDE),
            ParseError::ParserError { source, .. } => self.not_markup(marked, source),
            ParseError::EndOfStream { .. } => problem(None, "ends too early: an element is not closed"),
            ParseError::NoRootNode => problem(None, "has no `mjml` element"),
            ParseError::SizeLimit { .. } => problem(None, "is too long"),
        }
    }

    fn not_markup(&self, marked: &str, error: &htmlparser::Error) -> Problem {
        let row = error.pos().row as usize;
        let offset: usize = marked.split_inclusive('\n').take(row.saturating_sub(1)).map(str::len).sum();
        problem(Some(self.line_of(marked, offset)), "is not well-formed markup")
    }
}

const MOVED: &str =
    "a tag cannot stand between the elements of the head, only inside `mj-title`, `mj-preview` or `mj-style`";
const INCLUDE: &str = "`mj-include` is not available: a template stands alone";

/// Refuses includes, what is nested too deeply, and tags that would be moved. This reads with the tokenizer that mrml
/// uses, so that both see the same elements.
fn check_structure(marks: &Marks<'_>, marked: &str) -> Result<(), Problem> {
    let mut open: Vec<&str> = Vec::new();
    let mut starting = "";
    let problem_at = |offset: usize, message: &str| problem(Some(marks.line_of(marked, offset)), message);
    for token in Tokenizer::from(marked) {
        match token.map_err(|error| marks.not_markup(marked, &error))? {
            Token::ElementStart { local, .. } => {
                starting = local.as_str();
                if starting == "mj-include" {
                    return Err(problem_at(local.start(), INCLUDE));
                }
                if open.len() >= DEPTH_MAX {
                    let message = format!("elements are nested more than {DEPTH_MAX} deep");
                    return Err(problem_at(local.start(), &message));
                }
            }
            Token::ElementEnd { end: ElementEnd::Open, .. } if !VOID.contains(&starting) => {
                open.push(starting)
            }
            Token::ElementEnd { end: ElementEnd::Close(..), .. } => {
                open.pop();
            }
            Token::Text { text } if open.last().is_some_and(|holder| SORTED.contains(holder)) => {
                let (pieces, _) = marks.split(text.as_str());
                if pieces.iter().any(|&(_, number)| marks.acts(number)) {
                    return Err(problem_at(text.end(), MOVED));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
