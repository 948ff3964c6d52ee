//! Line ends. SMTP knows one, CRLF, and servers disagree about every other, which is how one message is smuggled
//! inside another. So all of them become CRLF before anything is read from or sent of a message.

use std::borrow::Cow;

/// The same text with every line end, CRLF, LF or CR, as CRLF, and the last line ended.
pub fn normalised(eml: &[u8]) -> Cow<'_, [u8]> {
    if is_normal(eml) {
        return Cow::Borrowed(eml);
    }
    let mut normal = Vec::with_capacity(eml.len() + eml.len() / 40 + 2);
    let mut rest = eml;
    while let Some(at) = memchr::memchr2(b'\r', b'\n', rest) {
        normal.extend_from_slice(&rest[..at]);
        normal.extend_from_slice(b"\r\n");
        let line_end_bytes = if rest[at..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[at + line_end_bytes..];
    }
    if !rest.is_empty() {
        normal.extend_from_slice(rest);
        normal.extend_from_slice(b"\r\n");
    }
    Cow::Owned(normal)
}

/// The lines of a normalised message, each with its CRLF.
pub fn lines(eml: &[u8]) -> impl Iterator<Item = &[u8]> {
    eml.split_inclusive(|byte| *byte == b'\n')
}

fn is_normal(eml: &[u8]) -> bool {
    let is_pair = |at: usize| match eml[at] {
        b'\r' => eml.get(at + 1) == Some(&b'\n'),
        _ => at > 0 && eml[at - 1] == b'\r',
    };
    (eml.is_empty() || eml.ends_with(b"\r\n")) && memchr::memchr2_iter(b'\r', b'\n', eml).all(is_pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_end_becomes_crlf() {
        let cases: [(&[u8], &[u8]); 8] = [
            (b"", b""),
            (b"a", b"a\r\n"),
            (b"a\r\nb\r\n", b"a\r\nb\r\n"),
            (b"a\nb\n", b"a\r\nb\r\n"),
            (b"a\rb\r", b"a\r\nb\r\n"),
            (b"a\r\rb\n\nc", b"a\r\n\r\nb\r\n\r\nc\r\n"),
            (b"\n.\n", b"\r\n.\r\n"),
            (b"a\r\n.\rb", b"a\r\n.\r\nb\r\n"),
        ];
        for (given, expected) in cases {
            assert_eq!(normalised(given).as_ref(), expected, "{}", given.escape_ascii());
        }
    }

    #[test]
    fn what_is_normal_is_not_copied() {
        assert!(matches!(normalised(b"a\r\n\r\nb\r\n"), Cow::Borrowed(_)));
    }
}
