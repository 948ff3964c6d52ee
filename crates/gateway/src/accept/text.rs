//! What a text may hold: no line breaks where one line is meant, no control characters, none that turn the
//! reading direction around (U+202E makes `exe.pdf` of `fdp.exe`), and no document number in clear.

use model::document::looks_like_document;
use model::email::SUBJECT_LENGTH_MAX;

/// A code and a message, for whoever knows the field.
pub type Flaw = (&'static str, String);

const PII: &str = "holds a CPF or CNPJ in clear; document numbers may only stand in recipient.cpfCnpj";

/// A subject: 1 to 150 characters (code points) on one line.
pub fn subject(text: &str) -> Result<(), Flaw> {
    let invalid = |message: &str| Err(("INVALID_SUBJECT", message.to_owned()));
    if text.trim().is_empty() {
        return invalid("is empty");
    }
    if text.chars().any(breaks_line) {
        return invalid("holds a line break");
    }
    if holds_encoded_word(text) {
        return invalid("holds an encoded word (=?…?=); write the text itself, it is encoded on the way out");
    }
    if text.chars().any(is_hidden) {
        return Err(("CONTROL_CHARACTER", "holds a control character".into()));
    }
    let length = text.chars().count();
    if length > SUBJECT_LENGTH_MAX {
        return invalid(&format!("has {length} characters; at most {SUBJECT_LENGTH_MAX} are allowed"));
    }
    no_document(text)
}

/// One line of 1 to `max` characters: names, labels, ids.
pub fn one_line(text: &str, max: usize) -> Result<(), Flaw> {
    if text.trim().is_empty() {
        return Err(("TOO_SHORT", "is empty".into()));
    }
    if text.chars().any(|c| breaks_line(c) || is_hidden(c)) {
        return Err(("CONTROL_CHARACTER", "holds a line break or a control character".into()));
    }
    let length = text.chars().count();
    if length > max {
        return Err(("TOO_LONG", format!("has {length} characters; at most {max} are allowed")));
    }
    Ok(())
}

/// The same, where a person's document number must not stand: it would go on into events and jobs.
pub fn line_without_document(text: &str, max: usize) -> Result<(), Flaw> {
    one_line(text, max)?;
    no_document(text)
}

/// A body of html or text: any lines, but nothing that only a damaged text has.
pub fn body(text: &str) -> Result<(), Flaw> {
    let starts_with_mark = ["\u{feff}", "\u{fffe}", "ÿþ", "þÿ"].iter().any(|mark| text.starts_with(mark));
    if starts_with_mark {
        return Err(("INVALID_ENCODING", "begins with a byte order mark; send it as plain UTF-8".into()));
    }
    if memchr::memchr(0, text.as_bytes()).is_some() {
        return Err(("CONTROL_CHARACTER", "holds a NUL character".into()));
    }
    Ok(())
}

/// Letters, digits and `_ . : -`, with blanks inside: what every provider's tags can be made of.
pub fn tag(text: &str, max: usize) -> Result<(), Flaw> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "_.:- ".contains(c);
    if text.is_empty() || text.len() > max || !text.chars().all(is_fine) || text.trim() != text {
        return Err((
            "INVALID_TAG",
            format!(
                "must have 1 to {max} letters, digits, blanks or _ . : - and not begin or end with a blank"
            ),
        ));
    }
    no_document(text)
}

pub fn no_document(text: &str) -> Result<(), Flaw> {
    if looks_like_document(text) { Err(("PII_NOT_ALLOWED", PII.into())) } else { Ok(()) }
}

fn breaks_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// `=?charset?B?…?=`: mail programs would show what it decodes to, line breaks included.
fn holds_encoded_word(text: &str) -> bool {
    text.match_indices("=?").any(|(start, _)| {
        let mut pieces = text[start + 2..].splitn(3, '?');
        let (Some(_), Some(encoding), Some(rest)) = (pieces.next(), pieces.next(), pieces.next()) else {
            return false;
        };
        encoding.len() == 1 && rest.contains("?=")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects() {
        let emoji = "😀".repeat(150);
        let longest = "x".repeat(150);
        let too_long = "x".repeat(151);
        let cases = [
            ("plain", "Seu pedido foi confirmado", None),
            ("150 letters", longest.as_str(), None),
            ("150 emoji", emoji.as_str(), None),
            ("equals sign and question mark", "2+2=? Ask me", None),
            ("empty", "", Some("INVALID_SUBJECT")),
            ("blank", "  ", Some("INVALID_SUBJECT")),
            ("151 letters", too_long.as_str(), Some("INVALID_SUBJECT")),
            ("CR", "a\rb", Some("INVALID_SUBJECT")),
            ("LF", "a\nb", Some("INVALID_SUBJECT")),
            ("folded", "a\r\n b", Some("INVALID_SUBJECT")),
            ("line separator", "a\u{2028}b", Some("INVALID_SUBJECT")),
            ("encoded word", "=?utf-8?Q?a=0D=0ABcc:_x@y.com?=", Some("INVALID_SUBJECT")),
            ("NUL", "a\0b", Some("CONTROL_CHARACTER")),
            ("turned around", "a\u{202e}b", Some("CONTROL_CHARACTER")),
            ("document", "Boleto de 529.982.247-25", Some("PII_NOT_ALLOWED")),
        ];
        for (case, text, code) in cases {
            assert_eq!(subject(text).err().map(|(code, _)| code), code, "{case}");
        }
    }

    #[test]
    fn tags() {
        let longest = "t".repeat(64);
        let too_long = "t".repeat(65);
        let cases = [
            ("order-confirmation", None),
            ("team a:1.0_x", None),
            (longest.as_str(), None),
            (too_long.as_str(), Some("INVALID_TAG")),
            ("", Some("INVALID_TAG")),
            (" x", Some("INVALID_TAG")),
            ("a\r\nb", Some("INVALID_TAG")),
            ("ação", Some("INVALID_TAG")),
            ("529.982.247-25", Some("PII_NOT_ALLOWED")),
        ];
        for (text, code) in cases {
            assert_eq!(tag(text, 64).err().map(|(code, _)| code), code, "{text:?}");
        }
    }

    #[test]
    fn bodies() {
        let cases = [
            ("<p>olá</p>\r\n", None),
            ("\u{feff}<p>x</p>", Some("INVALID_ENCODING")),
            ("ÿþ<\0", Some("INVALID_ENCODING")),
            ("a\0", Some("CONTROL_CHARACTER")),
        ];
        for (text, code) in cases {
            assert_eq!(body(text).err().map(|(code, _)| code), code, "{text:?}");
        }
    }
}
