use super::*;
use crate::payload::payload;
use model::Content as EmailContent;
use serde_json::{Value, json};
use testkit::{a_company, an_email, an_outgoing};

fn outgoing(eml: &str) -> Outgoing {
    let mut email = an_email(a_company("acme").id);
    let eml = eml.replace('\n', "\r\n").into_bytes();
    email.envelope = message::read_envelope(&eml).expect("an envelope");
    email.content = EmailContent::Raw(eml);
    an_outgoing(email, "Acme <shop@acme.test>")
}

fn mapped(eml: &str) -> Value {
    serde_json::from_slice(&payload(&outgoing(eml)).expect("it can be sent")).expect("JSON")
}

fn refused(eml: &str) -> String {
    match payload(&outgoing(eml)) {
        Err(Mishap::Unfit(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

const HEAD: &str = "From: Acme <shop@acme.test>\nTo: ana@example.com\nSubject: Hi\nMIME-Version: 1.0\n";

#[test]
fn a_plain_message() {
    let found = mapped(&format!("{HEAD}\nHello\nAna\n"));
    assert_eq!(found["text"], "Hello\r\nAna\r\n");
    assert_eq!(found["subject"], "Hi");
    assert_eq!(found["to"], json!(["ana@example.com"]));
    for absent in ["html", "attachments", "cc", "bcc", "reply_to"] {
        assert_eq!(found.get(absent), None, "{absent}");
    }
}

#[test]
fn who_is_shown_where() {
    let eml = "From: Acme <shop@acme.test>\nTo: Ana <ana@example.com>, Eva <EVA@example.com>\n\
        Cc: =?utf-8?B?Sm/Do28=?= <joao@example.com>\nBcc: hidden@example.com\nReply-To: Help <help@acme.test>\n\
        Subject: Hi\n\nHello\n";
    let found = mapped(eml);
    assert_eq!(found["from"], "Acme <shop@acme.test>");
    assert_eq!(found["to"], json!(["Ana <ana@example.com>", "Eva <EVA@example.com>"]));
    assert_eq!(found["cc"], json!(["João <joao@example.com>"]));
    assert_eq!(found["bcc"], json!(["hidden@example.com"]));
    assert_eq!(found["reply_to"], json!(["Help <help@acme.test>"]));
}

#[test]
fn the_envelope_decides_who_gets_it() {
    let mut email = outgoing("From: shop@acme.test\nTo: ana@example.com\nCc: eva@example.com\n\nHello\n");
    email.envelope.to = testkit::an_address("guard@acme.test");
    email.envelope.cc = vec![];
    let found: Value = serde_json::from_slice(&payload(&email).expect("sendable")).expect("JSON");
    assert_eq!((&found["to"], found.get("cc")), (&json!(["guard@acme.test"]), None));
}

#[test]
fn text_html_images_and_files() {
    let eml = format!(
        "{HEAD}Message-ID: <1@acme.test>\nDate: Thu, 1 Jan 2026 00:00:00 +0000\nIn-Reply-To: <0@acme.test>\n\
         X-Order: 42\nX-Long: a\n b\nX-Order: 43\nDKIM-Signature: v=1\nX-Posthaste-Id: old\n\
         Content-Type: multipart/mixed; boundary=m\n\n--m\nContent-Type: multipart/alternative; boundary=a\n\n\
         --a\nContent-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: quoted-printable\n\n\
         Ol=E1\n--a\nContent-Type: multipart/related; boundary=r\n\n--r\nContent-Type: text/html; charset=utf-8\n\n\
         <p>Olá <img src=\"cid:logo\"></p>\n--r\nContent-Type: image/png; name=logo.png\n\
         Content-Transfer-Encoding: base64\nContent-ID: <logo>\nContent-Disposition: inline\n\niVBORw0KGgo=\n\
         --r--\n--a--\n--m\nContent-Type: text/csv; charset=iso-8859-1\n\
         Content-Disposition: attachment; filename=\"list.csv\"\nContent-Transfer-Encoding: base64\n\n4Q==\n\
         --m\nContent-Type: application/pdf\nContent-ID: <unused>\n\
         Content-Disposition: attachment; filename*=utf-8''a%C3%A7%C3%A3o.pdf\n\
         Content-Transfer-Encoding: base64\n\nJVBERg==\n--m--\n"
    );
    let found = mapped(&eml);
    assert_eq!(found["text"], "Olá");
    assert_eq!(found["html"], "<p>Olá <img src=\"cid:logo\"></p>");
    let files = json!([
        {"filename": "logo.png", "content": "iVBORw0KGgo=", "content_type": "image/png", "content_id": "logo"},
        {"filename": "list.csv", "content": "w6E=", "content_type": "text/csv; charset=utf-8"},
        {"filename": "ação.pdf", "content": "JVBERg==", "content_type": "application/pdf"},
    ]);
    assert_eq!(found["attachments"], files);
    let headers = found["headers"].as_object().expect("headers");
    let mut names: Vec<&String> = headers.keys().collect();
    names.sort();
    assert_eq!(names, ["In-Reply-To", "X-Long", "X-Order", "X-Posthaste-Id"]);
    assert_eq!((&headers["X-Order"], &headers["X-Long"]), (&json!("42, 43"), &json!("a b")));
    assert_ne!(headers["X-Posthaste-Id"], "old");
}

#[test]
fn what_would_lose_its_meaning_is_refused() {
    let part = |kind: &str, body: &str| format!("--b\nContent-Type: {kind}\n\n{body}\n");
    let holding = |kind: &str, parts: &[String]| {
        format!("{HEAD}Content-Type: multipart/{kind}; boundary=b\n\n{}--b--\n", parts.concat())
    };
    let text = part("text/plain", "Hello");
    let html = part("text/html", "<p>Hello</p>");
    let cases = [
        (
            "signed",
            holding("signed", &[text.clone(), part("application/pgp-signature", "x")]),
            "multipart/signed",
        ),
        ("encrypted", holding("encrypted", std::slice::from_ref(&text)), "multipart/encrypted"),
        ("sealed", format!("{HEAD}Content-Type: application/pkcs7-mime\n\nx\n"), "signed or encrypted"),
        (
            "an invitation",
            holding("alternative", &[text.clone(), part("text/calendar", "BEGIN:VCALENDAR")]),
            "text/calendar",
        ),
        (
            "an attached message",
            holding("mixed", &[text.clone(), part("message/rfc822", "Subject: x\n\nx")]),
            "a message is attached",
        ),
        ("two texts", holding("mixed", &[text.clone(), text]), "more than one text"),
        ("two htmls", holding("mixed", &[html.clone(), html]), "more than one html"),
        ("nothing", format!("{HEAD}Content-Type: application/pdf\n\nx\n"), "neither text nor html"),
        (
            "broken base64",
            format!("{HEAD}Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n%%%\n"),
            "not encoded",
        ),
    ];
    for (case, eml, reason) in cases {
        let found = refused(&eml);
        assert!(found.contains(reason), "{case}: {found}");
    }
}
