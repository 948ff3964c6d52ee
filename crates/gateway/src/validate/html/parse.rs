//! Lets html5ever say which tags are real, and hands each of them to `policy.rs`.
//!
//! The rules are applied to start tags as the tokenizer emits them, the tree builder telling it what is raw
//! text, foreign content or a comment. No tree is kept. It is not needed, as every element a tree would hold
//! comes from such a tag; tags that the tree builder would drop (a row outside a table) are judged too, as
//! another client may keep them; and hostile nesting then has no tree to grow and no recursion to exhaust,
//! only fuel to burn.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use html5ever::buffer_queue::BufferQueue;
use html5ever::interface::{Attribute, ElementFlags, NodeOrText, QuirksMode, Tracer, TreeSink};
use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};
use html5ever::tree_builder::{TreeBuilder, TreeBuilderOpts};
use html5ever::{QualName, TokenizerResult, local_name, ns};

use super::{UnsafeHtml, glance, policy, url};

/// Steps one check may take, all views and inner documents together: a quarter of a second of processor time
/// at most. Honest html of 512 KB takes a seventh of them.
const FUEL: u64 = 32_000_000;

/// Steps that reading one byte is worth.
const FUEL_PER_BYTE: u64 = 8;

/// Steps that copying or comparing one attribute is worth.
const FUEL_PER_ATTRIBUTE: u64 = 4;

/// Read after the html, so that a tag or a comment cut off at its end is judged like a whole one: whatever a
/// client puts behind the html may complete it.
const ENDING: &str = "\n\"'>-->";

/// How the text is to be parsed: as a page, or as the content of an element in somebody's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Document { scripting: bool },
    Fragment { scripting: bool },
}

/// What is left of the steps a check may take. Every loop of the tree builder goes over its stack or its list
/// of formatting elements, so counting the sink's answers counts the work.
pub(super) struct Fuel(Cell<u64>);

impl Fuel {
    pub(super) fn full() -> Self {
        Self(Cell::new(FUEL))
    }

    fn burn(&self, steps: u64) {
        self.0.set(self.0.get().saturating_sub(steps));
    }

    fn is_empty(&self) -> bool {
        self.0.get() == 0
    }

    #[cfg(test)]
    pub(super) fn used_percent(&self) -> u64 {
        100 - 100 * self.0.get() / FUEL
    }
}

/// Judges every tag of the text under one view.
pub(super) fn judge(text: &str, view: View, depth: usize, fuel: &Fuel) -> Result<(), UnsafeHtml> {
    fuel.burn(FUEL_PER_BYTE * text.len() as u64);
    // A byte order mark is the caller's business; html5ever would drop one after every pause.
    let options = TokenizerOpts { discard_bom: false, ..TokenizerOpts::default() };
    let tokenizer = Tokenizer::new(Judge::new(text, view, depth, fuel), options);
    let input = BufferQueue::default();
    input.push_back(StrTendril::from_slice(text));
    input.push_back(StrTendril::from_slice(ENDING));
    // It pauses for encodings, which are of no interest, and where the judge has seen enough.
    while !tokenizer.sink.has_verdict() && !matches!(tokenizer.feed(&input), TokenizerResult::Done) {}
    tokenizer.sink.judge_style_sheet();
    let Some(verdict) = tokenizer.sink.verdict.take() else { return Ok(()) };
    let bytes_left: usize = std::iter::from_fn(|| input.pop_front()).map(|unread| unread.len()).sum();
    Err(verdict.locate(text, (text.len() + ENDING.len()).saturating_sub(bytes_left)))
}

/// A refusal, and the tag it is about where the tokenizer stopped right behind it.
struct Verdict {
    unsafe_html: UnsafeHtml,
    tag_name: Option<String>,
}

impl Verdict {
    fn locate(self, text: &str, tag_end: usize) -> UnsafeHtml {
        match self.tag_name {
            Some(name) => self.unsafe_html.at(glance::tag_start(text, tag_end, &name)),
            None => self.unsafe_html,
        }
    }
}

/// Stands between tokenizer and tree builder, and looks at every token that passes.
struct Judge<'a> {
    text: &'a str,
    depth: usize,
    fuel: &'a Fuel,
    builder: TreeBuilder<Handle, Names<'a>>,
    verdict: RefCell<Option<Verdict>>,
    /// The style sheet being read, if inside one.
    style_sheet: RefCell<Option<String>>,
}

impl<'a> Judge<'a> {
    fn new(text: &'a str, view: View, depth: usize, fuel: &'a Fuel) -> Self {
        let (View::Document { scripting } | View::Fragment { scripting }) = view;
        let options = TreeBuilderOpts { scripting_enabled: scripting, ..TreeBuilderOpts::default() };
        let names = Names { document: Element::html(local_name!("html")), fuel };
        let builder = match view {
            View::Document { .. } => TreeBuilder::new(names, options),
            View::Fragment { .. } => {
                TreeBuilder::new_for_fragment(names, Element::html(local_name!("div")), None, options)
            }
        };
        Self { text, depth, fuel, builder, verdict: RefCell::default(), style_sheet: RefCell::default() }
    }

    fn has_verdict(&self) -> bool {
        self.verdict.borrow().is_some()
    }

    fn refuse(&self, unsafe_html: UnsafeHtml, tag: Option<&Tag>) {
        let tag_name = tag.map(|tag| tag.name.to_string());
        self.verdict.borrow_mut().get_or_insert(Verdict { unsafe_html, tag_name });
    }

    fn judge_token(&self, token: &Token) {
        match token {
            Token::TagToken(tag) if tag.kind == TagKind::StartTag => self.judge_start_tag(tag),
            Token::TagToken(tag) if tag.name == local_name!("style") => self.judge_style_sheet(),
            Token::CommentToken(comment) => self.judge_comment(comment),
            Token::CharacterTokens(text) => {
                if let Some(style_sheet) = self.style_sheet.borrow_mut().as_mut() {
                    style_sheet.push_str(text);
                }
            }
            _ => {}
        }
    }

    fn judge_start_tag(&self, tag: &Tag) {
        if let Some(what) = policy::violation(tag) {
            return self.refuse(UnsafeHtml::nowhere(what), Some(tag));
        }
        for document in policy::embedded_documents(tag) {
            if let Err(unsafe_html) = super::inspect(document, self.depth + 1, self.fuel) {
                return self.refuse(unsafe_html, Some(tag));
            }
        }
        self.burn_for_formatting(tag);
    }

    /// Internet Explorer and Outlook take the content of a conditional comment for markup.
    fn judge_comment(&self, comment: &str) {
        let Some(content) = conditional_content(comment) else { return };
        let Err(unsafe_html) = super::inspect(content, self.depth + 1, self.fuel) else { return };
        let comment_start = self.text.find(content);
        let offset = comment_start.and_then(|start| Some(start + unsafe_html.offset?));
        self.refuse(unsafe_html.at(offset), None);
    }

    fn judge_style_sheet(&self) {
        let style_sheet = self.style_sheet.take();
        if style_sheet.is_some_and(|css| url::style_sheet_has_script(&css)) {
            self.refuse(UnsafeHtml::nowhere("script URL in a <style> element"), None);
        }
    }

    /// The builder compares a new formatting element, attributes and all, with each that is still open, and
    /// does so without asking the sink. The elements it would name to a garbage collector include those.
    fn burn_for_formatting(&self, tag: &Tag) {
        const FORMATTING: [&str; 14] =
            ["a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"];
        if FORMATTING.contains(&&*tag.name) {
            let open = OpenElements { attributes_more: tag.attrs.len() as u64, steps: Cell::new(0) };
            self.builder.trace_handles(&open);
            self.fuel.burn(open.steps.get());
        }
    }
}

impl TokenSink for Judge<'_> {
    type Handle = Handle;

    fn process_token(&self, token: Token, line: u64) -> TokenSinkResult<Handle> {
        let is_tag = matches!(token, Token::TagToken(_));
        let opens_style = matches!(&token, Token::TagToken(tag)
            if tag.kind == TagKind::StartTag && tag.name == local_name!("style"));
        let closes_itself = matches!(&token, Token::TagToken(tag) if tag.self_closing);
        if !self.has_verdict() {
            self.judge_token(&token);
        }
        if self.fuel.is_empty() {
            self.refuse(UnsafeHtml::too_deep(), None);
        }
        if self.has_verdict() {
            // To wait for a script is the one way to halt the tokenizer, and it halts for tags only.
            let document = self.builder.sink.document.clone();
            return if is_tag { TokenSinkResult::Script(document) } else { TokenSinkResult::Continue };
        }
        let result = self.builder.process_token(token, line);
        // In foreign content a style element may close itself, and what follows is no style sheet.
        let is_raw = matches!(result, TokenSinkResult::RawData(_));
        if opens_style && (is_raw || !closes_itself) {
            self.style_sheet.borrow_mut().get_or_insert_default();
        }
        result
    }

    fn adjusted_current_node_present_but_not_in_html_namespace(&self) -> bool {
        self.builder.adjusted_current_node_present_but_not_in_html_namespace()
    }
}

/// What stands between `<!--[if ...]>` and its end.
fn conditional_content(comment: &str) -> Option<&str> {
    let condition = comment.trim_start();
    let opening = condition.get(..3)?;
    let (_, content) = condition.split_once("]>")?;
    opening.eq_ignore_ascii_case("[if").then_some(content)
}

/// All that the tree builder needs to know of an element, and what burning fuel needs.
#[derive(Debug)]
struct Element {
    name: QualName,
    attribute_count: u64,
    takes_html: bool,
}

type Handle = Rc<Element>;

impl Element {
    fn html(local: html5ever::LocalName) -> Handle {
        Rc::new(Self { name: QualName::new(None, ns!(html), local), attribute_count: 0, takes_html: false })
    }
}

/// Adds up what comparing a tag with all open elements would cost.
struct OpenElements {
    attributes_more: u64,
    steps: Cell<u64>,
}

impl Tracer for OpenElements {
    type Handle = Handle;

    fn trace_handle(&self, element: &Handle) {
        let attributes = element.attribute_count + self.attributes_more;
        self.steps.set(self.steps.get() + 1 + FUEL_PER_ATTRIBUTE * attributes);
    }
}

/// A tree that remembers the names of its elements and nothing else.
struct Names<'a> {
    document: Handle,
    fuel: &'a Fuel,
}

impl TreeSink for Names<'_> {
    type Handle = Handle;
    type Output = ();
    type ElemName<'a>
        = &'a QualName
    where
        Self: 'a;

    fn finish(self) {}

    fn parse_error(&self, _message: Cow<'static, str>) {}

    fn get_document(&self) -> Handle {
        self.document.clone()
    }

    fn elem_name<'a>(&'a self, target: &'a Handle) -> &'a QualName {
        self.fuel.burn(1);
        &target.name
    }

    fn create_element(&self, name: QualName, attributes: Vec<Attribute>, flags: ElementFlags) -> Handle {
        let attribute_count = attributes.len() as u64;
        self.fuel.burn(1 + FUEL_PER_ATTRIBUTE * attribute_count);
        Rc::new(Element { name, attribute_count, takes_html: flags.mathml_annotation_xml_integration_point })
    }

    fn create_comment(&self, _text: StrTendril) -> Handle {
        self.document.clone()
    }

    fn create_pi(&self, _target: StrTendril, _data: StrTendril) -> Handle {
        self.document.clone()
    }

    fn append(&self, _parent: &Handle, _child: NodeOrText<Handle>) {}

    fn append_based_on_parent_node(&self, _element: &Handle, _previous: &Handle, _child: NodeOrText<Handle>) {
    }

    fn append_doctype_to_document(&self, _name: StrTendril, _public_id: StrTendril, _system_id: StrTendril) {}

    fn get_template_contents(&self, target: &Handle) -> Handle {
        target.clone()
    }

    fn same_node(&self, x: &Handle, y: &Handle) -> bool {
        self.fuel.burn(1);
        Rc::ptr_eq(x, y)
    }

    fn set_quirks_mode(&self, _mode: QuirksMode) {}

    fn append_before_sibling(&self, _sibling: &Handle, _new_node: NodeOrText<Handle>) {}

    fn add_attrs_if_missing(&self, _target: &Handle, _attributes: Vec<Attribute>) {}

    fn remove_from_parent(&self, _target: &Handle) {}

    fn reparent_children(&self, _node: &Handle, _new_parent: &Handle) {}

    fn is_mathml_annotation_xml_integration_point(&self, element: &Handle) -> bool {
        element.takes_html
    }
}
