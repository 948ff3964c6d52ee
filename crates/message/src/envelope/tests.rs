//! Messages of every kind, friendly and hostile.

use super::*;

fn eml(headers: &str) -> Vec<u8> {
    format!("{headers}\r\n\r\nbody\r\n").into_bytes()
}

#[test]
fn who_and_what() {
    let envelope = read_envelope(&eml("From: =?utf-8?Q?Jo=C3=A3o_=22the_Boss=22?= <joao@acme.com>\r\n\
         To: Ana <ana@example.com>, =?utf-8?B?w4l2YQ==?= <eva@example.com>\r\n\
         Cc: Team: a@example.org, b@example.org;, ANA@example.com, a@example.org\r\n\
         Bcc: c@example.net,\r\n d@example.net\r\n\
         Reply-To: help@acme.com\r\n\
         Subject: =?utf-8?Q?Ol=C3=A1?=\r\n mundo"))
    .expect("readable");
    let shown = |addresses: &[Address]| -> Vec<String> {
        addresses.iter().map(|address| address.expose().to_owned()).collect()
    };
    assert_eq!(envelope.from.map(|from| from.expose()).as_deref(), Some("João the Boss <joao@acme.com>"));
    assert_eq!(envelope.to.expose(), "ana@example.com");
    assert_eq!(shown(&envelope.cc), ["eva@example.com", "a@example.org", "b@example.org"]);
    assert_eq!(shown(&envelope.bcc), ["c@example.net", "d@example.net"]);
    assert_eq!(envelope.reply_to.map(|reply| reply.expose()).as_deref(), Some("help@acme.com"));
    assert_eq!(envelope.subject.expose(), "Olá mundo");
    assert_eq!((envelope.headers, envelope.tags), (vec![], vec![]));
}

#[test]
fn a_name_can_be_written_and_read_again() {
    let names = ["\"Silva, João\"", "=?utf-8?Q?=22x=22_=3Cy=3E?=", "\"a <b> c\""];
    for name in names {
        let envelope = read_envelope(&eml(&format!("From: {name} <a@b.com>\r\nTo: c@d.com"))).expect(name);
        let written = envelope.from.expect("a sender").expose();
        assert_eq!(Mailbox::parse(&written).map(|mailbox| mailbox.expose()), Ok(written));
    }
}

#[test]
fn what_is_wrong_is_named() {
    use UnreadableMessage as U;
    let six = (0..6).map(|n| format!("c{n}@example.com")).collect::<Vec<_>>().join(", ");
    let from_to = "From: a@b.com\r\nTo: c@d.com";
    let invalid = |header, reason| U::InvalidAddress { header, reason };
    let cases = [
        ("nothing", String::new(), U::NoTo),
        ("no from", "To: a@b.com".into(), U::NoFrom),
        ("empty from", "From: \r\nTo: a@b.com".into(), U::NoFrom),
        ("no to", "From: a@b.com".into(), U::NoTo),
        ("undisclosed", "From: a@b.com\r\nTo: undisclosed-recipients:;".into(), U::NoTo),
        ("two senders", "From: a@b.com, c@d.com\r\nTo: e@f.com".into(), U::SeveralFrom),
        ("from twice", format!("{from_to}\r\nFrom: x@y.com"), U::Repeated("From")),
        ("from by a bare return", format!("{from_to}\rFrom: x@y.com"), U::Repeated("From")),
        ("subject twice", format!("{from_to}\r\nSubject: a\r\nSubject: b"), U::Repeated("Subject")),
        ("six in cc", format!("{from_to}\r\nCc: {six}"), U::TooManyCopies("To and Cc beside the first")),
        ("seven in to", format!("From: a@b.com\r\nTo: x@d.com, {six}"), {
            U::TooManyCopies("To and Cc beside the first")
        }),
        ("six in bcc", format!("{from_to}\r\nBcc: {six}"), U::TooManyCopies("Bcc")),
        ("long subject", format!("{from_to}\r\nSubject: {}", "é".repeat(151)), U::SubjectTooLong),
        ("hidden line break", format!("{from_to}\r\nSubject: =?utf-8?Q?a=0D=0Ab?="), U::SubjectControl),
        (
            "local host",
            "From: a@b.com\r\nTo: c@localhost".into(),
            invalid("To", InvalidAddress::InvalidDomain),
        ),
        ("bad cc", format!("{from_to}\r\nCc: x y"), invalid("Cc", InvalidAddress::Empty)),
        ("quoted", "From: \"a b\"@c.com\r\nTo: d@e.com".into(), invalid("From", InvalidAddress::Malformed)),
        ("name", format!("From: {} <a@b.com>\r\nTo: c@d.com", "n".repeat(129)), {
            invalid("From", InvalidAddress::InvalidName)
        }),
    ];
    for (case, headers, expected) in cases {
        assert_eq!(read_envelope(&eml(&headers)), Err(expected), "{case}");
    }
}

#[test]
fn limits_of_the_edge_hold_exactly() {
    let five = (0..5).map(|n| format!("c{n}@example.com")).collect::<Vec<_>>().join(", ");
    let subject = "😀".repeat(150);
    let message =
        eml(&format!("From: a@b.com\r\nTo: c@d.com\r\nCc: {five}\r\nBcc: {five}\r\nSubject: {subject}"));
    let envelope = read_envelope(&message).expect("within the limits");
    assert_eq!((envelope.cc.len(), envelope.bcc.len()), (5, 5));
    assert_eq!(envelope.subject.expose(), &subject);
}

#[test]
fn html_is_decoded() {
    let multipart = "Content-Type: multipart/alternative; boundary=b\r\n\r\n\
        --b\r\nContent-Type: text/plain\r\n\r\nplain\r\n\
        --b\r\nContent-Type: text/html; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
        <p>Ol=E1</p>\r\n--b--\r\n";
    let two = "Content-Type: multipart/mixed; boundary=b\r\n\r\n\
        --b\r\nContent-Type: text/html\r\n\r\n<p>1</p>\r\n--b\r\nContent-Type: text/html\r\n\r\n<p>2</p>\r\n--b--\r\n";
    let attached = "Content-Type: text/html\r\nContent-Disposition: attachment\r\n\r\n<p>\r\n";
    let cases = [
        ("alone", "Content-Type: text/html\n\n<p>hi</p>\n", Some("<p>hi</p>\r\n")),
        ("base64", "Content-Type: text/html\nContent-Transfer-Encoding: base64\n\nPHA+\n", Some("<p>")),
        ("in a multipart", multipart, Some("<p>Olá</p>\r\n")),
        ("several", two, Some("<p>1</p>\r\n\n<p>2</p>\r\n")),
        ("attached", attached, None),
        ("a second type", "Content-Type: text/plain\nContent-Type: text/html\n\n<p>\n", Some("<p>\r\n")),
        ("none", "Subject: x\r\n\r\n<p>\r\n", None),
        ("nothing", "", None),
    ];
    for (case, message, expected) in cases {
        assert_eq!(html_of(message.as_bytes()).as_deref(), expected, "{case}");
    }
}

#[test]
fn its_own_id_is_found() {
    assert_eq!(message_id(&eml("Message-ID: <a@b>")).as_deref(), Some("<a@b>"));
    assert_eq!(message_id(&eml("Subject: x")), None);
    assert_eq!(message_id(&eml(&format!("Message-ID: <{}@b>", "a".repeat(300)))), None);
}

/// Each is large enough to hang a reader that goes over it again and again, or to overrun the stack of one that
/// descends into it.
#[test]
fn hostile_input_ends() {
    let head = "From: a@b.com\r\nTo: c@d.com\r\n";
    let multipart = |n: usize| format!("Content-Type: multipart/mixed; boundary=b{n}\r\n\r\n--b{n}\r\n");
    let lost = "--b\r\nContent-Type: multipart/mixed; boundary=nowhere\r\n\r\nx\r\n".repeat(50_000);
    let cases: Vec<(&str, String)> = vec![
        ("a tower", (0..20_000).map(multipart).collect()),
        ("messages", "Content-Type: message/rfc822\r\n\r\n".repeat(100_000)),
        ("lost boundaries", format!("Content-Type: multipart/mixed; boundary=b\r\n\r\n{lost}")),
        (
            "dashes",
            format!("Content-Type: multipart/mixed; boundary=-\r\n\r\n{}", "---\r\n".repeat(1_000_000)),
        ),
        ("comments", format!("Cc: {}\r\n", "(".repeat(200_000))),
        ("groups", format!("Cc: {}\r\n", "a:".repeat(100_000))),
        ("quotes", format!("Cc: {}\r\n", "\"\\".repeat(100_000))),
        ("addresses", format!("Cc: {}\r\n", "a@b.com,".repeat(30_000))),
        ("encoded words", format!("Subject: {}\r\n", "=?utf-8?Q?".repeat(20_000))),
        ("parameters", format!("Content-Type: text/html;{}\r\n", "a*0=b;".repeat(40_000))),
        ("folds", format!("Subject: {}\r\n", "\r\n x".repeat(60_000))),
        ("one long line", format!("Content-Type: text/html\r\n\r\n{}", "<".repeat(5_000_000))),
    ];
    for (case, tail) in cases {
        let message = format!("{head}{tail}");
        // What they say matters less than that they say it; the runner's time limit is the judge.
        let _ = (read_envelope(message.as_bytes()), html_of(message.as_bytes()), case);
    }
    let tower = format!("{head}{}", (0..11).map(multipart).collect::<String>());
    assert_eq!(read_envelope(tower.as_bytes()), Err(UnreadableMessage::TooDeep));
    let parts = format!("{head}{}{}", multipart(0), "--b0\r\n\r\nx\r\n".repeat(200));
    assert_eq!(read_envelope(parts.as_bytes()), Err(UnreadableMessage::TooManyParts));
}

mod properties {
    use proptest::prelude::*;

    use super::*;
    use crate::raw;

    /// Pieces of MIME in any order, so that generated messages get past the first line.
    fn mime() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(&b"Content-Type: multipart/mixed; boundary=b\r\n"[..]),
            Just(&b"Content-Type: multipart/mixed; boundary=\"b\xff\r\n"[..]),
            Just(&b"Content-Type: message/rfc822\r\n"[..]),
            Just(&b"Content-Type: text/html; charset=utf-16\r\n"[..]),
            Just(&b"Content-Transfer-Encoding: base64\r\n"[..]),
            Just(&b"Content-Transfer-Encoding: quoted-printable\r\n"[..]),
            Just(&b"From: a@b.com\r\n"[..]),
            Just(&b"To: =?utf-8?B?"[..]),
            Just(&b"Bcc: x@y.com\r\n"[..]),
            Just(&b"\r\n"[..]),
            Just(&b"\n"[..]),
            Just(&b"\r"[..]),
            Just(&b" "[..]),
            Just(&b"--b\r\n"[..]),
            Just(&b"--b--\r\n"[..]),
            Just(&b"=\r\n=3"[..]),
            Just(&b"\xc3\x28(<:;,\"\\"[..]),
        ];
        proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
    }

    fn try_all(eml: &[u8]) {
        let _ = (read_envelope(eml), html_of(eml), message_id(eml), senders_beside_from(eml));
        let id = model::EmailId::from_uuid(Default::default());
        let rendered = raw::render(id, eml);
        assert!(rendered.ends_with(b"\r\n"));
        assert_eq!(rendered, normalised(&rendered).as_ref(), "a bare line end was left");
    }

    proptest! {
        #[test]
        fn bytes_never_panic(eml in proptest::collection::vec(any::<u8>(), 0..3000)) {
            try_all(&eml);
        }

        #[test]
        fn mime_never_panics(eml in mime()) {
            try_all(&eml);
        }
    }
}
