//! The text alternative of an html body: its words, its links as "text (url)", its lists. Not a layout: tables become
//! lines, since nearly all tables in emails are scaffolding.
//!
//! Written here rather than taken from html2text: that one draws tables with lines, wraps at a width, collects links
//! at the end and recurses into the tree. This is one pass over the tokens.

use std::cell::RefCell;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{
    BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts,
};

/// Deeper lists are not indented further.
const INDENT_LEVELS_MAX: usize = 8;

/// The text of an html body, without markup, styles, scripts, and what is hidden.
pub fn from_html(html: &str) -> String {
    let queue = BufferQueue::default();
    queue.push_back(StrTendril::from(html));
    let tokenizer = Tokenizer::new(Sink::default(), TokenizerOpts::default());
    // It pauses at the end of each script, and goes on when asked again.
    while !queue.is_empty() {
        let _ = tokenizer.feed(&queue);
    }
    tokenizer.end();
    tokenizer.sink.0.into_inner().finish()
}

#[derive(Default)]
struct Sink(RefCell<Writer>);

impl TokenSink for Sink {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        let mut writer = self.0.borrow_mut();
        match token {
            Token::CharacterTokens(text) => writer.text(&text),
            Token::TagToken(tag) if tag.kind == TagKind::StartTag => {
                writer.start(&tag);
                return raw_content(&tag.name);
            }
            Token::TagToken(tag) => writer.end(&tag.name),
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

/// Elements whose content is no markup.
fn raw_content(name: &str) -> TokenSinkResult<()> {
    match name {
        "script" => TokenSinkResult::RawData(RawKind::ScriptData),
        "style" | "xmp" | "iframe" | "noembed" | "noframes" => TokenSinkResult::RawData(RawKind::Rawtext),
        "title" | "textarea" => TokenSinkResult::RawData(RawKind::Rcdata),
        _ => TokenSinkResult::Continue,
    }
}

/// What stands between the words written so far and the next one.
#[derive(Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Gap {
    #[default]
    None,
    Space,
    Line,
    Paragraph,
}

#[derive(Default)]
struct Writer {
    out: String,
    gap: Gap,
    /// The element whose content is left out, and how many of its name are open inside.
    skipping: Option<(String, usize)>,
    lists: Vec<List>,
    /// "- " or "3. ", before the next word.
    bullet: Option<String>,
    link: Option<Link>,
    preformatted: usize,
}

/// An open list: numbered from here, or not.
struct List {
    next: Option<u32>,
}

struct Link {
    url: String,
    /// Where its text starts in the output.
    start: usize,
}

impl Writer {
    fn start(&mut self, tag: &Tag) {
        let name: &str = &tag.name;
        if let Some((skipped, depth)) = &mut self.skipping {
            if skipped == name {
                *depth += 1;
            }
            return;
        }
        if is_left_out(tag) {
            self.skipping = Some((name.to_owned(), 1));
            return;
        }
        self.widen(self.gap_around(name));
        match name {
            "a" => self.open_link(tag),
            "img" => self.text(attribute(tag, "alt").unwrap_or_default()),
            "hr" => {
                self.word("---");
                self.widen(Gap::Paragraph);
            }
            "ul" => self.lists.push(List { next: None }),
            "ol" => self.lists.push(List { next: Some(1) }),
            "li" => self.open_item(),
            "pre" => self.preformatted += 1,
            _ => {}
        }
    }

    fn end(&mut self, name: &str) {
        if let Some((skipped, depth)) = &mut self.skipping {
            if skipped == name {
                *depth -= 1;
                if *depth == 0 {
                    self.skipping = None;
                }
            }
            return;
        }
        match name {
            "a" => self.close_link(),
            "ul" | "ol" => {
                self.lists.pop();
            }
            "li" => self.bullet = None,
            "pre" => self.preformatted = self.preformatted.saturating_sub(1),
            _ => {}
        }
        if name != "br" {
            self.widen(self.gap_around(name));
        }
    }

    fn gap_around(&self, name: &str) -> Gap {
        match name {
            // A list in a list goes on with it.
            "ul" | "ol" if !self.lists.is_empty() => Gap::Line,
            _ => gap_around(name),
        }
    }

    fn text(&mut self, text: &str) {
        if self.skipping.is_some() {
            return;
        }
        if self.preformatted > 0 {
            return self.verbatim(text);
        }
        let is_blank = |c: char| c.is_whitespace() || c.is_control();
        if text.starts_with(is_blank) {
            self.widen(Gap::Space);
        }
        for word in text.split(is_blank) {
            // Soft hyphens and the like pad the previews of mail clients and say nothing.
            let word = word.replace(['\u{ad}', '\u{200b}', '\u{feff}', '\u{34f}'], "");
            if !word.is_empty() {
                self.word(&word);
                self.widen(Gap::Space);
            }
        }
        if !text.ends_with(is_blank) && self.gap == Gap::Space {
            self.gap = Gap::None;
        }
    }

    fn verbatim(&mut self, text: &str) {
        for (at, line) in text.split('\n').enumerate() {
            if at > 0 {
                self.widen(Gap::Line);
            }
            if !line.trim().is_empty() {
                self.word(line.trim_end());
            }
        }
    }

    /// Writes what is due (gap, indent, bullet), then the word.
    fn word(&mut self, word: &str) {
        if !self.out.is_empty() {
            self.out.push_str(match self.gap {
                Gap::None => "",
                Gap::Space => " ",
                Gap::Line => "\n",
                Gap::Paragraph => "\n\n",
            });
        }
        let starts_line = self.out.is_empty() || self.gap >= Gap::Line;
        self.gap = Gap::None;
        if starts_line {
            let levels = self.lists.len().saturating_sub(usize::from(self.bullet.is_some()));
            self.out.push_str(&"  ".repeat(levels.min(INDENT_LEVELS_MAX)));
        }
        if let Some(bullet) = self.bullet.take() {
            self.out.push_str(&bullet);
        }
        self.out.push_str(word);
    }

    fn widen(&mut self, gap: Gap) {
        self.gap = self.gap.max(gap);
    }

    fn open_item(&mut self) {
        self.bullet = Some(match self.lists.last_mut().and_then(|list| list.next.as_mut()) {
            Some(next) => {
                let bullet = format!("{next}. ");
                *next = next.saturating_add(1);
                bullet
            }
            None => "- ".to_owned(),
        });
    }

    fn open_link(&mut self, tag: &Tag) {
        self.close_link();
        let url: String =
            attribute(tag, "href").unwrap_or_default().chars().filter(|c| !c.is_control()).collect();
        let url = url.trim();
        let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
        // Anchors lead nowhere outside of the html; other schemes are for programs.
        if matches!(scheme.as_str(), "http" | "https" | "mailto" | "tel") {
            self.link = Some(Link { url: url.to_owned(), start: self.out.len() });
        }
    }

    fn close_link(&mut self) {
        let Some(link) = self.link.take() else { return };
        let shown = self.out.get(link.start..).unwrap_or_default().trim();
        let bare = link.url.trim_start_matches("mailto:").trim_start_matches("tel:");
        if shown.is_empty() {
            return self.word(bare);
        }
        if shown != link.url && shown != bare {
            self.widen(Gap::Space);
            self.gap = self.gap.min(Gap::Space);
            self.word(&format!("({bare})"));
        }
    }

    fn finish(mut self) -> String {
        self.close_link();
        self.out
    }
}

fn gap_around(name: &str) -> Gap {
    match name {
        "p" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "blockquote" | "table" | "pre" | "hr" | "dl"
        | "ul" | "ol" => Gap::Paragraph,
        "br" | "div" | "tr" | "li" | "dt" | "dd" | "section" | "article" | "header" | "footer" | "main"
        | "nav" | "address" | "center" | "caption" | "thead" | "tbody" | "tfoot" | "body" => Gap::Line,
        "td" | "th" | "img" => Gap::Space,
        _ => Gap::None,
    }
}

/// What a reader of the html does not see either.
fn is_left_out(tag: &Tag) -> bool {
    let name: &str = &tag.name;
    match name {
        "script" | "style" | "head" | "title" | "template" | "iframe" | "noembed" | "noframes" | "object"
        | "svg" | "select" | "textarea" => true,
        "area" | "base" | "br" | "col" | "embed" | "hr" | "img" | "input" | "link" | "meta" | "param"
        | "source" | "track" | "wbr" => false,
        _ => {
            let style = attribute(tag, "style").unwrap_or_default().to_ascii_lowercase();
            style.split(';').any(|rule| {
                let (property, value) = rule.split_once(':').unwrap_or_default();
                let value = value.trim().trim_end_matches("!important").trim_end();
                property.trim() == "display" && value == "none"
            })
        }
    }
}

fn attribute<'t>(tag: &'t Tag, name: &str) -> Option<&'t str> {
    tag.attrs.iter().find(|attribute| &*attribute.name.local == name).map(|attribute| &*attribute.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_becomes_readable_text() {
        let cases = [
            ("words", "<p>Hello  <b>Ana</b>,\n thanks</p>", "Hello Ana, thanks"),
            ("no space is invented", "<b>un</b>believable<i>!</i>", "unbelievable!"),
            ("paragraphs", "<p>One</p><p>Two</p>", "One\n\nTwo"),
            ("line breaks", "One<br>Two<br/>Three", "One\nTwo\nThree"),
            (
                "a link",
                r#"<a href="https://a.example/x?a=1&amp;b=2">Pay</a> now"#,
                "Pay (https://a.example/x?a=1&b=2) now",
            ),
            (
                "a link that shows itself",
                r#"<a href="https://a.example">https://a.example</a>"#,
                "https://a.example",
            ),
            ("an address", r#"<a href="mailto:a@b.example">a@b.example</a>"#, "a@b.example"),
            ("an anchor", r##"<a href="#top">Up</a>"##, "Up"),
            ("a script URL", r#"<a href="javascript:alert(1)">Click</a>"#, "Click"),
            (
                "a picture that links",
                r#"<a href="https://a.example"><img alt="Logo"></a>"#,
                "Logo (https://a.example)",
            ),
            ("a silent picture that links", r#"<a href="https://a.example"><img></a>"#, "https://a.example"),
            ("a list", "<p>Buy:</p><ul><li>milk</li><li>eggs</li></ul>", "Buy:\n\n- milk\n- eggs"),
            ("a numbered list", "<ol><li>one</li><li><p>two</p></li></ol>", "1. one\n\n2. two"),
            ("lists in lists", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>", "- a\n  - b\n- c"),
            (
                "no style, script, title",
                "<head><title>T</title></head><style>p{}</style><script>1<2</script>x",
                "x",
            ),
            (
                "nothing hidden",
                r#"<div style="color:red;Display : none !important">a<div>b</div></div>c"#,
                "c",
            ),
            ("conditional comments", "<!--[if mso]><p>Outlook</p><![endif]-->x", "x"),
            (
                "cells",
                "<table><tr><td>Total</td><td>9 €</td></tr><tr><td>Tax</td></tr></table>",
                "Total 9 €\nTax",
            ),
            ("entities", "a&nbsp;&lt;b&gt; &amp; c", "a <b> & c"),
            ("preformatted", "<pre>a\n  b</pre>c", "a\n  b\n\nc"),
            ("unclosed", "<ul><li>a<p>b", "- a\n\n  b"),
            ("too many ends", "</ul></li></a></pre>a", "a"),
            ("a rule", "a<hr>b", "a\n\n---\n\nb"),
        ];
        for (case, html, text) in cases {
            assert_eq!(from_html(html), text, "{case}");
        }
    }
}
