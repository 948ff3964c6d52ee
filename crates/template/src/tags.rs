//! The Jinja tags of a source, found before the engine sees them. It refuses what the engine would not survive: its
//! compiler walks long expressions and long chains of `elif` by recursion, and a stack that overflows takes the
//! whole process with it. It also refuses what is not offered (other templates) and names unknown filters and tests,
//! which the engine would only notice while rendering. Everything else about syntax is left to the engine.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::source::{Field, Lines, Problem};

/// Words, numbers, texts and signs in one tag. Each can be one level of recursion in the engine's compiler.
const TOKENS_MAX: usize = 400;
/// `elif` and `else if` in one part: each is one level, as if it were nested.
const ELIFS_MAX: usize = 100;
/// Problems told of one part. More would not be read.
const PROBLEMS_MAX: usize = 20;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// `{{ … }}`
    Value,
    /// `{% … %}`
    Block,
    /// `{# … #}`
    Comment,
    /// `{% raw %} … {% endraw %}`, all of it.
    Raw,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tag<'s> {
    pub range: Range<usize>,
    pub kind: Kind,
    tokens: Vec<Token<'s>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Token<'s> {
    Word(&'s str),
    /// Quoted text, numbers: what is inside does not matter here.
    Constant,
    Sign(char),
}

impl<'s> Tag<'s> {
    /// The word that says what a block tag does: `for`, `endif`.
    pub fn keyword(&self) -> Option<&'s str> {
        match (&self.kind, self.tokens.first()) {
            (Kind::Block, Some(Token::Word(word))) => Some(word),
            _ => None,
        }
    }

    fn words(&self) -> impl Iterator<Item = &'s str> {
        self.tokens.iter().filter_map(|token| match token {
            Token::Word(word) => Some(*word),
            _ => None,
        })
    }
}

/// The macros of a part. The engine looks up what they mention when they are defined, called or not, so that for these
/// names looking up proves nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Macros {
    pub names: BTreeSet<String>,
    pub mentioned: BTreeSet<String>,
}

impl Macros {
    pub fn of(tags: &[Tag<'_>]) -> Self {
        let mut macros = Self::default();
        let mut depth = 0_usize;
        for tag in tags {
            match tag.keyword() {
                Some("macro") => {
                    depth += 1;
                    macros.names.extend(tag.words().nth(1).map(str::to_owned));
                }
                Some("call") => depth += 1,
                Some("endmacro" | "endcall") => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > 0 {
                macros.mentioned.extend(tag.words().map(str::to_owned));
            }
        }
        macros
    }

    /// Whether a macro mentions the variable of this path.
    pub fn mention(&self, path: &str) -> bool {
        let name = path.split(['.', '[']).next().unwrap_or(path);
        self.mentioned.contains(name)
    }
}

/// All tags, in order. A tag that never ends reaches to the end of the source.
pub(crate) fn scan(source: &str) -> Vec<Tag<'_>> {
    let mut tags = Vec::new();
    let mut at = 0;
    while let Some(start) = next_start(source, at) {
        let tag = read_tag(source, start);
        at = tag.range.end;
        tags.push(tag);
    }
    tags
}

/// What the engine must not see or would notice too late. `knows_filter` and `knows_test` say what it has.
pub(crate) fn problems(
    field: Field,
    source: &str,
    tags: &[Tag<'_>],
    knows_filter: &dyn Fn(&str) -> bool,
    knows_test: &dyn Fn(&str) -> bool,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let lines = Lines::of(source);
    let elifs = tags.iter().filter(|tag| matches!(tag.keyword(), Some("elif" | "elseif"))).count();
    if elifs > ELIFS_MAX {
        problems.push(Problem::of(field, format!("must not have more than {ELIFS_MAX} elif tags")));
    }
    for tag in tags {
        if problems.len() >= PROBLEMS_MAX {
            break;
        }
        let line = lines.at(tag.range.start);
        if tag.tokens.len() > TOKENS_MAX {
            let message = format!("this tag is too long: more than {TOKENS_MAX} words and signs");
            problems.push(Problem::at(field, line, message));
            continue;
        }
        if let Some(word @ ("include" | "import" | "from" | "extends")) = tag.keyword() {
            let message = format!("`{word}` is not available: a template stands alone");
            problems.push(Problem::at(field, line, message));
        }
        for name in filters(tag).filter(|name| !knows_filter(name)) {
            problems.push(Problem::at(field, line, format!("there is no filter `{name}`")));
        }
        for name in tests(tag).filter(|name| !knows_test(name)) {
            problems.push(Problem::at(field, line, format!("there is no test `{name}`")));
        }
    }
    problems
}

/// Names after a bar, which means nothing else in Jinja, and the first name of a filter block.
fn filters<'t>(tag: &'t Tag<'_>) -> impl Iterator<Item = &'t str> {
    let of_block = match (tag.keyword(), tag.tokens.get(1)) {
        (Some("filter"), Some(Token::Word(name))) => Some(*name),
        _ => None,
    };
    let after_bars = tag.tokens.windows(2).filter_map(|pair| match pair {
        [Token::Sign('|'), Token::Word(name)] => Some(*name),
        _ => None,
    });
    of_block.into_iter().chain(after_bars)
}

/// Names after `is` or `is not`.
fn tests<'t>(tag: &'t Tag<'_>) -> impl Iterator<Item = &'t str> {
    let tokens = &tag.tokens;
    (0..tokens.len()).filter_map(move |at| {
        let is_attribute = at > 0 && tokens[at - 1] == Token::Sign('.');
        if tokens[at] != Token::Word("is") || is_attribute {
            return None;
        }
        let name_at = if tokens.get(at + 1) == Some(&Token::Word("not")) { at + 2 } else { at + 1 };
        match tokens.get(name_at) {
            Some(Token::Word(name)) => Some(*name),
            _ => None,
        }
    })
}

fn next_start(source: &str, from: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    (from..bytes.len().saturating_sub(1))
        .find(|&at| bytes[at] == b'{' && matches!(bytes[at + 1], b'{' | b'%' | b'#'))
}

fn read_tag(source: &str, start: usize) -> Tag<'_> {
    let inside = start + 2;
    match source.as_bytes()[start + 1] {
        b'#' => {
            let end = source[inside..].find("#}").map_or(source.len(), |at| inside + at + 2);
            Tag { range: start..end, kind: Kind::Comment, tokens: Vec::new() }
        }
        sign => {
            let closing = if sign == b'%' { "%}" } else { "}}" };
            let (tokens, end) = read_tokens(source, inside, closing);
            let kind = if sign == b'%' { Kind::Block } else { Kind::Value };
            let tag = Tag { range: start..end, kind, tokens };
            if tag.tokens == [Token::Word("raw")] && tag.kind == Kind::Block {
                whole_raw(source, tag)
            } else {
                tag
            }
        }
    }
}

/// From `{% raw %}` to the end of its `{% endraw %}`.
fn whole_raw<'s>(source: &'s str, opening: Tag<'s>) -> Tag<'s> {
    let mut at = opening.range.end;
    while let Some(found) = source[at..].find("{%") {
        let inside = at + found + 2;
        let (tokens, end) = read_tokens(source, inside, "%}");
        if tokens == [Token::Word("endraw")] {
            return Tag { range: opening.range.start..end, kind: Kind::Raw, tokens: Vec::new() };
        }
        at = inside;
    }
    Tag { range: opening.range.start..source.len(), kind: Kind::Raw, tokens: Vec::new() }
}

/// The tokens of a tag and where it ends. As in the engine, a closing sign inside brackets does not count, and the
/// minus or plus that trims blanks is no token.
fn read_tokens<'s>(source: &'s str, inside: usize, closing: &str) -> (Vec<Token<'s>>, usize) {
    let mut tokens = Vec::new();
    let mut open_brackets = 0_i32;
    let mut at = inside;
    if source[at..].starts_with(['-', '+']) {
        at += 1;
    }
    while let Some(sign) = source[at..].chars().next() {
        let rest = &source[at..];
        if open_brackets == 0 {
            let unsigned = rest.strip_prefix(['-', '+']).unwrap_or(rest);
            if unsigned.starts_with(closing) {
                return (tokens, source.len() - unsigned.len() + closing.len());
            }
        }
        at += match sign {
            _ if sign.is_ascii_whitespace() => 1,
            '\'' | '"' => {
                tokens.push(Token::Constant);
                quoted_bytes(rest, sign)
            }
            _ if sign.is_alphanumeric() || sign == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                let is_number = sign.is_ascii_digit();
                tokens.push(if is_number { Token::Constant } else { Token::Word(&rest[..end]) });
                end
            }
            _ => {
                match sign {
                    '(' | '[' | '{' => open_brackets += 1,
                    ')' | ']' | '}' => open_brackets -= 1,
                    _ => {}
                }
                tokens.push(Token::Sign(sign));
                sign.len_utf8()
            }
        };
    }
    (tokens, source.len())
}

/// The length of a quoted text with its quotes; to the end if it is never closed.
fn quoted_bytes(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, sign) in rest.char_indices().skip(1) {
        match sign {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if sign == quote => return at + sign.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_as_the_engine_finds_them() {
        let cases = [
            // case                    source                                   tags
            ("none", "a { b } c", vec![]),
            ("a value", "a {{ b }} c", vec!["{{ b }}"]),
            ("a closing sign in quotes", "{{ '}}' }}x", vec!["{{ '}}' }}"]),
            ("an escaped quote", r"{{ 'a\'}}' }}x", vec![r"{{ 'a\'}}' }}"]),
            ("a closing sign in brackets", "{{ {'a': {}} }}x", vec!["{{ {'a': {}} }}"]),
            ("trimmed", "{%- if a -%}x{%+ endif +%}", vec!["{%- if a -%}", "{%+ endif +%}"]),
            ("a comment hides tags", "{# {{ a }} #}{{ b }}", vec!["{# {{ a }} #}", "{{ b }}"]),
            ("raw is one tag", "{% raw %}{{ a }}{% endraw %}b", vec!["{% raw %}{{ a }}{% endraw %}"]),
            ("never closed", "a {{ b", vec!["{{ b"]),
        ];
        for (case, source, expected) in cases {
            let found: Vec<&str> = scan(source).into_iter().map(|tag| &source[tag.range]).collect();
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn names_of_filters_and_tests_are_read_outside_of_quotes_only() {
        let tags =
            scan("{{ a|upper|replace('|x', b is odd) }}{% filter lower|trim %}{% if a.is is not defined %}");
        let found: Vec<&str> = tags.iter().flat_map(filters).collect();
        assert_eq!(found, ["upper", "replace", "lower", "trim"]);
        let found: Vec<&str> = tags.iter().flat_map(super::tests).collect();
        assert_eq!(found, ["odd", "defined"]);
    }
}
