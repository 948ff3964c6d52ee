//! The parts of a message, found in one pass over its lines. Hostile MIME (a thousand layers, a million parts, a
//! boundary that never comes) makes general parsers slow or deep, so the limits are held here, and the parser only
//! ever sees one header block or one leaf at a time.

use mail_parser::{ContentType, HeaderName, HeaderValue, Message, MessageParser};

use crate::lines::lines;

/// How deep parts may lie in parts.
pub const DEPTH_MAX: usize = 10;
/// How many parts a message may have.
pub const PARTS_MAX: usize = 200;
/// How long one header block may be.
pub const HEADER_BYTES_MAX: usize = 256 * 1024;

/// A limit the message does not keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooComplex {
    Depth,
    Parts,
    Header,
}

/// A part that holds no other parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Leaf<'x> {
    /// Its header block, the empty line and its body.
    pub bytes: &'x [u8],
    /// It is the html a reader gets to see: not attached, not inside an attached message.
    pub is_html_body: bool,
}

/// The leaves of a normalised message, in order.
pub fn leaves(eml: &[u8]) -> Result<Vec<Leaf<'_>>, TooComplex> {
    let mut walk =
        Walk { eml, parts: 1, open: Vec::new(), place: Place::Header { start: 0 }, leaves: vec![] };
    let mut offset = 0;
    for line in lines(eml) {
        let next = offset + line.len();
        match walk.delimiter(line) {
            Some((level, is_last)) => walk.pass_delimiter(offset, next, level, is_last)?,
            None => walk.pass_line(line, next)?,
        }
        offset = next;
    }
    walk.end_part(eml.len())?;
    Ok(walk.leaves)
}

/// The header block of a normalised message or part, with the empty line that ends it if there is one.
pub fn header_block(eml: &[u8]) -> &[u8] {
    let end: usize = lines(eml).take_while(|line| *line != b"\r\n").map(<[u8]>::len).sum();
    &eml[..eml.len().min(end + 2)]
}

struct Walk<'x> {
    eml: &'x [u8],
    parts: usize,
    /// What was opened and not closed yet: a multipart's boundary, or none for a message inside the message.
    open: Vec<Option<String>>,
    place: Place,
    leaves: Vec<Leaf<'x>>,
}

enum Place {
    Header {
        start: usize,
    },
    Body {
        start: usize,
        is_html: bool,
    },
    /// Before the first part of a multipart or after its last: shown to nobody.
    Between,
}

enum Kind {
    Multipart(String),
    Message,
    Leaf { is_html: bool },
}

impl<'x> Walk<'x> {
    /// Which open multipart this line divides, and whether it ends it.
    fn delimiter(&self, line: &[u8]) -> Option<(usize, bool)> {
        let line = line.strip_prefix(b"--")?;
        self.open.iter().enumerate().rev().find_map(|(level, boundary)| {
            let rest = line.strip_prefix(boundary.as_ref()?.as_bytes())?;
            match rest.trim_ascii_end() {
                b"" => Some((level, false)),
                b"--" => Some((level, true)),
                _ => None,
            }
        })
    }

    fn pass_delimiter(
        &mut self,
        offset: usize,
        next: usize,
        level: usize,
        is_last: bool,
    ) -> Result<(), TooComplex> {
        self.end_part(offset)?;
        if is_last {
            self.open.truncate(level);
            self.place = Place::Between;
            return Ok(());
        }
        self.open.truncate(level + 1);
        self.begin_part(next)
    }

    fn pass_line(&mut self, line: &[u8], next: usize) -> Result<(), TooComplex> {
        let Place::Header { start } = self.place else {
            return Ok(());
        };
        if next - start > HEADER_BYTES_MAX {
            return Err(TooComplex::Header);
        }
        if line != b"\r\n" {
            return Ok(());
        }
        match kind(&self.eml[start..next]) {
            Kind::Leaf { is_html } => self.place = Place::Body { start, is_html },
            Kind::Multipart(boundary) => {
                self.place = Place::Between;
                self.descend(Some(boundary))?;
            }
            Kind::Message => {
                self.descend(None)?;
                self.begin_part(next)?;
            }
        }
        Ok(())
    }

    fn descend(&mut self, boundary: Option<String>) -> Result<(), TooComplex> {
        self.open.push(boundary);
        if self.open.len() > DEPTH_MAX { Err(TooComplex::Depth) } else { Ok(()) }
    }

    fn begin_part(&mut self, start: usize) -> Result<(), TooComplex> {
        self.place = Place::Header { start };
        self.parts += 1;
        if self.parts > PARTS_MAX { Err(TooComplex::Parts) } else { Ok(()) }
    }

    fn end_part(&mut self, end: usize) -> Result<(), TooComplex> {
        let (start, is_html) = match self.place {
            Place::Between => return Ok(()),
            Place::Header { start } if end - start > HEADER_BYTES_MAX => return Err(TooComplex::Header),
            Place::Header { start } => (start, false),
            Place::Body { start, is_html } => (start, is_html),
        };
        let is_html_body = is_html && self.open.iter().all(Option::is_some);
        self.leaves.push(Leaf { bytes: &self.eml[start..end], is_html_body });
        Ok(())
    }
}

/// What a header block announces. With two types the first counts, as it does for most readers, but html in either
/// is html: what a reader may show is to be looked at.
fn kind(block: &[u8]) -> Kind {
    let header = MessageParser::new().parse_headers(block).unwrap_or_default();
    let types: Vec<(String, String)> = values(&header, HeaderName::ContentType)
        .filter_map(HeaderValue::as_content_type)
        .map(type_of)
        .collect();
    let is_html = types.iter().any(|(kind, subtype)| kind == "text" && subtype == "html");
    let encoding = values(&header, HeaderName::ContentTransferEncoding).find_map(HeaderValue::as_text);
    let encoding = encoding.unwrap_or_default().to_ascii_lowercase();
    let is_encoded = ["base64", "quoted-printable"].contains(&encoding.as_str());
    match types.first().map(|(kind, subtype)| (kind.as_str(), subtype.as_str())) {
        Some(("multipart", _)) => boundary(&header).map_or(Kind::Leaf { is_html: false }, Kind::Multipart),
        Some(("message", "rfc822" | "global")) if !is_encoded => Kind::Message,
        _ => Kind::Leaf { is_html: is_html && !is_attached(&header) },
    }
}

fn type_of(content_type: &ContentType<'_>) -> (String, String) {
    let subtype = content_type.subtype().unwrap_or_default();
    (content_type.ctype().to_ascii_lowercase(), subtype.to_ascii_lowercase())
}

fn boundary(header: &Message<'_>) -> Option<String> {
    let content_type = values(header, HeaderName::ContentType).find_map(HeaderValue::as_content_type)?;
    content_type.attribute("boundary").filter(|boundary| !boundary.is_empty()).map(str::to_owned)
}

fn is_attached(header: &Message<'_>) -> bool {
    values(header, HeaderName::ContentDisposition)
        .find_map(HeaderValue::as_content_type)
        .is_some_and(ContentType::is_attachment)
}

/// The values of every header of that name, in order.
pub fn values<'x>(
    header: &'x Message<'x>,
    name: HeaderName<'static>,
) -> impl Iterator<Item = &'x HeaderValue<'x>> {
    let headers = header.parts.first().map_or(&[][..], |part| part.headers.as_slice());
    headers.iter().filter(move |header| header.name == name).map(|header| &header.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        let open = |level| format!("Content-Type: multipart/mixed; boundary=b{level}\r\n\r\n--b{level}\r\n");
        let close = |level| format!("\r\n--b{level}--\r\n");
        let opened: String = (0..depth).map(open).collect();
        let closed: String = (0..depth).rev().map(close).collect();
        format!("{opened}Content-Type: text/html\r\n\r\n<p>deep</p>{closed}")
    }

    fn wide(parts: usize) -> String {
        let part = "--b\r\nContent-Type: text/plain\r\n\r\nx\r\n";
        format!("Content-Type: multipart/mixed; boundary=b\r\n\r\n{}--b--\r\n", part.repeat(parts))
    }

    #[test]
    fn limits_are_exact() {
        assert_eq!(leaves(nested(DEPTH_MAX).as_bytes()).map(|leaves| leaves.len()), Ok(1));
        assert_eq!(leaves(nested(DEPTH_MAX + 1).as_bytes()), Err(TooComplex::Depth));
        assert_eq!(leaves(wide(PARTS_MAX - 1).as_bytes()).map(|leaves| leaves.len()), Ok(PARTS_MAX - 1));
        assert_eq!(leaves(wide(PARTS_MAX).as_bytes()), Err(TooComplex::Parts));
        let header = format!("X-A: {}\r\n\r\n", "x".repeat(HEADER_BYTES_MAX));
        assert_eq!(leaves(header.as_bytes()), Err(TooComplex::Header));
        assert_eq!(leaves(&header.as_bytes()[..HEADER_BYTES_MAX + 3]), Err(TooComplex::Header));
    }

    #[test]
    fn messages_in_messages_count_as_depth() {
        let layer = "Content-Type: message/rfc822\r\n\r\n";
        let leaf = "Content-Type: text/html\r\n\r\n<p>hidden</p>";
        let within = layer.repeat(DEPTH_MAX) + leaf;
        let found = leaves(within.as_bytes()).expect("within the limit");
        assert!(found.iter().all(|leaf| !leaf.is_html_body), "html of an attached message is not shown");
        assert_eq!(leaves((layer.repeat(DEPTH_MAX + 1) + leaf).as_bytes()), Err(TooComplex::Depth));
    }

    #[test]
    fn leaves_in_order() {
        let eml = "Content-Type: multipart/mixed; boundary=\"o o\"\r\n\r\npreamble\r\n--o o\r\n\
            Content-Type: multipart/alternative;\r\n boundary=i\r\n\r\n--i\r\n\r\ntext\r\n--i \r\n\
            Content-Type: TEXT/HTML\r\n\r\n<p>\r\n--not-i\r\n--i--\r\nepilogue\r\n--o o\r\n\
            Content-Type: text/html\r\nContent-Disposition: attachment\r\n\r\n<b>\r\n--o o--\r\n";
        let found: Vec<(String, bool)> = leaves(eml.as_bytes())
            .expect("simple")
            .iter()
            .map(|leaf| (String::from_utf8_lossy(leaf.bytes).into_owned(), leaf.is_html_body))
            .collect();
        let expected = [
            ("\r\ntext\r\n", false),
            ("Content-Type: TEXT/HTML\r\n\r\n<p>\r\n--not-i\r\n", true),
            ("Content-Type: text/html\r\nContent-Disposition: attachment\r\n\r\n<b>\r\n", false),
        ];
        assert_eq!(found, expected.map(|(text, is_html)| (text.to_owned(), is_html)));
    }
}
