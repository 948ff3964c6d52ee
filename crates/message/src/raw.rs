//! An .eml that was handed in, made ready to go out. It is the company's own: our id goes on top, what only we may
//! know (Bcc), what belongs to an earlier delivery (Return-Path) and what would tell SES what to do (X-SES-…) comes out, line
//! ends become CRLF, and not one other byte changes: Received and DKIM-Signature stay.

use model::EmailId;

use crate::ID_HEADER;
use crate::lines::{lines, normalised};

/// Never sent: who else got it, an id that would send a report to another email (an .eml that was ours before), and where
/// the bounces of an earlier delivery went, which the last server writes and SES would send ours to.
const REMOVED: &[&[u8]] = &[b"bcc", b"resent-bcc", b"return-path", b"x-posthaste-id"];
/// By such headers SES takes orders: which configuration set reports go through, in whose name a message is sent. They are
/// the operator's.
const REMOVED_PREFIX: &[u8] = b"x-ses-";

pub fn render(id: EmailId, eml: &[u8]) -> Vec<u8> {
    let eml = normalised(eml);
    let mut rendered = Vec::with_capacity(eml.len() + 64);
    rendered.extend_from_slice(format!("{ID_HEADER}: {id}\r\n").as_bytes());
    let mut rest: &[u8] = &eml;
    let mut removing = false;
    for line in lines(&eml) {
        if line == b"\r\n" {
            break;
        }
        let is_folded = matches!(line.first(), Some(b' ' | b'\t'));
        removing = if is_folded { removing } else { is_removed(line) };
        if !removing {
            rendered.extend_from_slice(line);
        }
        rest = &rest[line.len()..];
    }
    rendered.extend_from_slice(rest);
    rendered
}

/// Blanks within the name do not hide it: there are readers that skip them.
fn is_removed(line: &[u8]) -> bool {
    let Some(colon) = memchr::memchr(b':', line) else {
        return false;
    };
    let name: Vec<u8> =
        line[..colon].iter().filter(|byte| !byte.is_ascii_whitespace()).map(u8::to_ascii_lowercase).collect();
    REMOVED.contains(&name.as_slice()) || name.starts_with(REMOVED_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(eml: &str) -> String {
        let id = "0190c3d2-7b7e-7000-8000-000000000000".parse().expect("an id");
        String::from_utf8(render(id, eml.as_bytes())).expect("text")
    }

    #[test]
    fn only_what_must_changes() {
        let top = "X-Posthaste-Id: 0190c3d2-7b7e-7000-8000-000000000000\r\n";
        let cases = [
            ("untouched", "To: a@b.com\r\n\r\nbcc: body\r\n", "To: a@b.com\r\n\r\nbcc: body\r\n"),
            ("bcc", "Bcc: x@y.com\r\nTo: a@b.com\r\n\r\nhi\r\n", "To: a@b.com\r\n\r\nhi\r\n"),
            ("bcc, folded", "To: a\r\nBCC : x,\r\n y,\r\n\tz\r\nCc: c\r\n\r\n", "To: a\r\nCc: c\r\n\r\n"),
            ("bcc, twice", "Bcc: x\r\nTo: a\r\nbcc: y\r\n\r\n", "To: a\r\n\r\n"),
            ("bcc with blanks", "B cc: x\r\nTo: a\r\n\r\n", "To: a\r\n\r\n"),
            ("resent", "Resent-Bcc: x\r\nTo: a\r\n\r\n", "To: a\r\n\r\n"),
            ("a return path", "Return-Path: <x@y.com>\r\nTo: a\r\n\r\n", "To: a\r\n\r\n"),
            ("orders to SES", "X-SES-Source-ARN: arn:x\r\n y\r\nTo: a\r\n\r\n", "To: a\r\n\r\n"),
            (
                "traces and signatures",
                "Received: from x\r\n\tby y\r\nDKIM-Signature: v=1\r\nTo: a\r\n\r\n",
                "Received: from x\r\n\tby y\r\nDKIM-Signature: v=1\r\nTo: a\r\n\r\n",
            ),
            ("folded to a bcc", "Subject: a\r\n Bcc: x\r\n\r\n", "Subject: a\r\n Bcc: x\r\n\r\n"),
            ("a name that starts alike", "Bcc-Note: a\r\n\r\n", "Bcc-Note: a\r\n\r\n"),
            ("an id of before", "x-posthaste-ID: 1\r\nTo: a\r\n\r\n", "To: a\r\n\r\n"),
            ("bare line feeds", "To: a\nBcc: x\n\n.\nb\n", "To: a\r\n\r\n.\r\nb\r\n"),
            ("a bare return hides no bcc", "To: a\rBcc: x\r\n\r\n", "To: a\r\n\r\n"),
            ("no body", "To: a\r\nBcc: x", "To: a\r\n"),
        ];
        for (case, eml, expected) in cases {
            assert_eq!(rendered(eml), format!("{top}{expected}"), "{case}");
        }
    }
}
