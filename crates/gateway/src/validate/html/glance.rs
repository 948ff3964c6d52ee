//! The first look at the html: one linear pass which either clears it or asks for the parser.
//!
//! It must never clear what the parser would refuse. That holds because it reads a tag at *every* `<` before
//! a letter, in comments, raw text and attribute values too: how a tag is tokenised does not depend on what
//! came before its `<`, so the tags seen here include all those any parser could see. From there on each test
//! below is wider than the rule of `policy.rs` it stands for. A new rule there needs its wider shadow here;
//! the property in `tests.rs` compares the two.

use memchr::memchr;

/// Attributes one tag may have before html5ever, which compares each with all before it, becomes too slow.
const ATTRIBUTES_MAX: usize = 256;

/// Bytes read per byte of html. Ordinary html needs about 1; only tags within tags within tags need more.
const READS_PER_BYTE_MAX: usize = 8;

/// What short texts may read beyond that, so that the factor binds only where it matters.
const READS_SPARE: usize = 4096;

/// Types of `data:` URL that no rule refuses, so that embedded pictures do not cost a parse.
const PLAIN_IMAGES: [&[u8]; 5] = [b"image/png", b"image/jpeg", b"image/jpg", b"image/gif", b"image/webp"];

/// Character references that yield something a URL or a style sheet could be disguised with, besides `&#...`.
const DISGUISES: [&[u8]; 5] = [b"Tab;", b"NewLine;", b"colon;", b"bsol;", b"fjlig;"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Glance {
    /// No parser can find anything the policy refuses.
    Safe,
    /// Something looks like a violation; it may still be prose.
    LookCloser,
    /// Parsing this would take too long, and no honest html is like it.
    Tangled,
}

pub(super) fn glance(html: &str) -> Glance {
    look(html, Some(Remembered::default()))
}

/// The same without remembering anything, for the test that it makes no difference.
#[cfg(test)]
pub(super) fn glance_at_all(html: &str) -> Glance {
    look(html, None)
}

fn look<'a>(html: &'a str, mut remembered: Option<Remembered<'a>>) -> Glance {
    let bytes = html.as_bytes();
    let mut reader = Reader::new(bytes);
    let mut reads_left = html.len().saturating_mul(READS_PER_BYTE_MAX).saturating_add(READS_SPARE);
    let mut at = 0;
    while let Some(start) = next_tag(bytes, at) {
        let known = remembered.as_ref().and_then(|remembered| remembered.length_of(&bytes[start..]));
        let end = known.map_or_else(|| reader.read_tag(start), |length| start + length);
        if end - start > reads_left {
            return Glance::Tangled;
        }
        reads_left -= end - start;
        let tag = &bytes[start..end];
        let is_kept = known.is_some() || remembered.as_mut().is_some_and(|remembered| remembered.keep(tag));
        at = if is_kept { end } else { start + 1 };
    }
    match (reader.suspicious, reader.crowded) {
        (false, _) => Glance::Safe,
        (true, false) => Glance::LookCloser,
        (true, true) => Glance::Tangled,
    }
}

/// Where the tag of this name which ends just before `end` starts. Tags within tags can end at the same byte;
/// the outermost of the same name is the one the parser saw.
pub(super) fn tag_start(html: &str, end: usize, name: &str) -> Option<usize> {
    const CANDIDATES_MAX: usize = 64;
    let end = end.min(html.len());
    let bytes = &html.as_bytes()[..end];
    let candidates = memchr::memrchr_iter(b'<', bytes).take(CANDIDATES_MAX);
    let matching = candidates.filter(|&start| {
        let name_end = skip(bytes, start + 1, |byte| !ends_tag_name(byte));
        let mut reader = Reader::new(bytes);
        bytes[start + 1..name_end].eq_ignore_ascii_case(name.as_bytes())
            && reader.read_attributes(name_end) == end
    });
    matching.last()
}

/// Where the next tag starts, at `from` or behind it.
fn next_tag(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        // Many stand side by side.
        if bytes.get(at) != Some(&b'<') {
            at += memchr(b'<', bytes.get(at..)?)?;
        }
        if bytes.get(at + 1)?.is_ascii_alphabetic() {
            return Some(at);
        }
        at += 1;
    }
}

/// Tags that were read before, each in the place that its first bytes name. How a tag is read depends on its own bytes alone,
/// and what it gave reason for stays: so it need not be read again where it stands again. Emails repeat a few tags hundreds of
/// times.
#[derive(Default)]
struct Remembered<'a> {
    tags: [&'a [u8]; 1 << PLACE_BITS],
}

/// More places than an email has tags that it repeats.
const PLACE_BITS: u32 = 4;

impl<'a> Remembered<'a> {
    /// How long the tag is that stands at the beginning of `rest`, if it was read before.
    fn length_of(&self, rest: &[u8]) -> Option<usize> {
        let tag = self.tags[Self::place(rest)?];
        (!tag.is_empty() && rest.starts_with(tag)).then_some(tag.len())
    }

    /// Remembers a tag that holds no other and ends where its reading did: that of a style sheet does not.
    fn keep(&mut self, tag: &'a [u8]) -> bool {
        let is_whole = tag.ends_with(b">") && memchr(b'<', &tag[1..]).is_none();
        let is_kept = is_whole && !starts_with_ignore_case(&tag[1..], b"style");
        if let (true, Some(place)) = (is_kept, Self::place(tag)) {
            self.tags[place] = tag;
        }
        is_kept
    }

    /// Spreads the first eight bytes (the factor is the golden ratio's). Shorter tags are read as quickly as found.
    fn place(bytes: &[u8]) -> Option<usize> {
        let first = bytes.first_chunk().map(|first| u64::from_le_bytes(*first))?;
        usize::try_from(first.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - PLACE_BITS)).ok()
    }
}

/// Reads tags as the HTML tokenizer does, and remembers whether any of them gave reason to look closer.
struct Reader<'a> {
    bytes: &'a [u8],
    suspicious: bool,
    crowded: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, suspicious: memchr(0, bytes).is_some(), crowded: false }
    }

    /// Reads the tag whose `<` is at `start`; the answer is the byte after it. A tag cut off by the end of
    /// the text is judged like a whole one, since whatever is put after it may complete it.
    fn read_tag(&mut self, start: usize) -> usize {
        let name_end = skip(self.bytes, start + 1, |byte| !ends_tag_name(byte));
        let name = &self.bytes[start + 1..name_end];
        // Anywhere in the name: the end of a conditional comment may cut `<script-->` short.
        self.suspicious |= contains_script(name) && !name.eq_ignore_ascii_case(b"noscript");
        let end = self.read_attributes(name_end);
        if name.eq_ignore_ascii_case(b"style") { self.read_style_sheet(end) } else { end }
    }

    fn read_attributes(&mut self, name_end: usize) -> usize {
        let mut at = name_end;
        let mut count = 0;
        loop {
            at = skip(self.bytes, at, |byte| is_space(byte) || byte == b'/');
            match self.bytes.get(at) {
                None => return at,
                Some(b'>') => return at + 1,
                Some(_) => at = self.read_attribute(at),
            }
            count += 1;
            self.crowded |= count > ATTRIBUTES_MAX;
        }
    }

    fn read_attribute(&mut self, start: usize) -> usize {
        // The first byte belongs to the name whatever it is, even `=`.
        let name_end = skip(self.bytes, start + 1, |byte| !ends_tag_name(byte) && byte != b'=');
        let name = &self.bytes[start..name_end];
        self.suspicious |= starts_with_ignore_case(name, b"on") || name.eq_ignore_ascii_case(b"srcdoc");
        let equals = skip(self.bytes, name_end, is_space);
        if self.bytes.get(equals) != Some(&b'=') {
            return equals;
        }
        let value = skip(self.bytes, equals + 1, is_space);
        match self.bytes.get(value) {
            None | Some(b'>') => value,
            Some(b'"') => self.read_value(value + 1, class::DOUBLE_QUOTE) + 1,
            Some(b'\'') => self.read_value(value + 1, class::SINGLE_QUOTE) + 1,
            Some(_) => self.read_value(value, class::SPACE | class::GREATER),
        }
        .min(self.bytes.len())
    }

    /// Reads up to the first byte of class `stop`, or the end of the text.
    fn read_value(&mut self, start: usize, stop: u8) -> usize {
        let mut at = start;
        while let Some(&byte) = self.bytes.get(at) {
            let class = class::OF[usize::from(byte)];
            if class & stop != 0 {
                break;
            }
            if class & class::TELLTALE != 0 {
                let (before, after) = (&self.bytes[start..at], &self.bytes[at + 1..]);
                self.suspicious |= match byte {
                    b':' => {
                        ends_like(before, b"script") || (ends_like(before, b"data") && !is_plain_image(after))
                    }
                    b'&' => is_disguise(after),
                    _ => true,
                };
            }
            at += 1;
        }
        at
    }

    /// Reads what a `style` element contains. Markup in it is left to the parser: it may be foreign content,
    /// where comments and tags do not end the sheet.
    fn read_style_sheet(&mut self, start: usize) -> usize {
        let mut at = start;
        loop {
            at = self.read_value(at, class::LESS);
            let Some(rest) = self.bytes.get(at..).filter(|rest| !rest.is_empty()) else { return at };
            let closing = starts_with_ignore_case(rest, b"</style")
                && rest.get(7).is_some_and(|&byte| ends_tag_name(byte));
            if closing {
                return at;
            }
            self.suspicious = true;
            at += 1;
        }
    }
}

/// What each byte can mean to `read_value`.
mod class {
    pub const DOUBLE_QUOTE: u8 = 1;
    pub const SINGLE_QUOTE: u8 = 2;
    pub const SPACE: u8 = 4;
    pub const GREATER: u8 = 8;
    pub const LESS: u8 = 16;
    /// Without one of these no value can hold a refused URL: the colon of a scheme, a reference, a CSS
    /// escape.
    pub const TELLTALE: u8 = 32;

    pub const OF: [u8; 256] = {
        let mut table = [0; 256];
        table[b'"' as usize] = DOUBLE_QUOTE;
        table[b'\'' as usize] = SINGLE_QUOTE;
        table[b' ' as usize] = SPACE;
        table[b'\t' as usize] = SPACE;
        table[b'\n' as usize] = SPACE;
        table[b'\r' as usize] = SPACE;
        table[0x0c] = SPACE;
        table[b'>' as usize] = GREATER;
        table[b'<' as usize] = LESS;
        table[b':' as usize] = TELLTALE;
        table[b'&' as usize] = TELLTALE;
        table[b'\\' as usize] = TELLTALE;
        table
    };
}

fn skip(bytes: &[u8], from: usize, unwanted: impl Fn(u8) -> bool) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.iter().position(|&byte| !unwanted(byte)).unwrap_or(rest.len())
}

fn is_space(byte: u8) -> bool {
    class::OF[usize::from(byte)] & class::SPACE != 0
}

fn ends_tag_name(byte: u8) -> bool {
    is_space(byte) || byte == b'/' || byte == b'>'
}

fn starts_with_ignore_case(bytes: &[u8], lower: &[u8]) -> bool {
    bytes.get(..lower.len()).is_some_and(|head| head.eq_ignore_ascii_case(lower))
}

fn contains_script(name: &[u8]) -> bool {
    name.windows(b"script".len()).any(|part| part.eq_ignore_ascii_case(b"script"))
}

/// Does it end in this word, if blanks and control characters are not counted? URL parsers drop some of them.
fn ends_like(bytes: &[u8], lower: &[u8]) -> bool {
    let mut visible = bytes.iter().rev().filter(|&&byte| byte > b' ');
    lower.iter().rev().all(|wanted| visible.next().is_some_and(|byte| byte.eq_ignore_ascii_case(wanted)))
}

fn is_plain_image(after_colon: &[u8]) -> bool {
    PLAIN_IMAGES.iter().any(|mime| {
        starts_with_ignore_case(after_colon, mime) && matches!(after_colon.get(mime.len()), Some(b';' | b','))
    })
}

fn is_disguise(after_ampersand: &[u8]) -> bool {
    after_ampersand.first() == Some(&b'#') || DISGUISES.iter().any(|name| after_ampersand.starts_with(name))
}
