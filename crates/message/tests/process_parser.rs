//! What is rendered, read back by an implementation that is not ours: Python's email package, which reports every
//! defect it had to forgive. There must be none.

use std::path::Path;
use std::process::Command;

use base64::prelude::{BASE64_STANDARD, Engine};
use model::email::Outgoing;
use model::{Attachment, Content, Mailbox, Secret};
use serde_json::{Value, json};
use testkit::{START, a_company, an_address, an_email};

/// Parses the message with `tests/peers/parse_eml.py`. Needs no more than Python itself.
fn parsed(eml: &[u8]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("message.eml");
    std::fs::write(&file, eml).expect("the message is written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/parse_eml.py");
    let python = std::env::var("POSTHASTE_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let output = Command::new(python)
        .arg(script)
        .arg(file)
        .output()
        .expect("Python could not be started: run ./test, which sets up what the tests need");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn outgoing(subject: &str, html: &str, text: Option<&str>, attachments: Vec<Attachment>) -> Outgoing {
    let email = an_email(a_company("acme").id);
    let mut envelope = email.envelope;
    envelope.subject = Secret::new(subject.to_owned());
    Outgoing {
        id: email.id,
        company: email.company,
        attempt: 1,
        series: 0,
        is_last_attempt: false,
        created_at: START,
        from: Mailbox::parse("João da Conceição, Ltda. <loja@acme.com>").expect("a mailbox"),
        envelope,
        content: Content::Composed { html: html.into(), text: text.map(Into::into), attachments },
    }
}

fn attachment(filename: &str, content_type: &str, content_id: Option<&str>, bytes: &[u8]) -> Attachment {
    Attachment {
        filename: filename.into(),
        content_type: content_type.into(),
        content_id: content_id.map(Into::into),
        bytes: Secret::new(bytes.to_vec()),
    }
}

fn read_back(email: &Outgoing) -> Value {
    let eml = message::render(email).expect("renders");
    let report = parsed(&eml);
    assert_eq!(report["defects"], json!([]), "{}", String::from_utf8_lossy(&eml));
    report
}

#[test]
fn names_and_subjects_beyond_ascii() {
    let subject = "Olá João, seu pedido nº 5 — “pronto” 😀 安心してください、これはとても長い件名です";
    let mut email = outgoing(subject, "<p>Olá</p>", None, vec![]);
    email.envelope.cc = vec![an_address("eva@exämple.com")];
    email.envelope.bcc = vec![an_address("hidden@example.org")];
    email.envelope.reply_to = Some(Mailbox::parse("Ajuda & Cia <ajuda@acme.com>").expect("a mailbox"));
    email.envelope.headers = vec![
        ("List-Unsubscribe".into(), Secret::new(format!("<https://acme.com/u?t={}>", "t".repeat(300)))),
        ("List-Unsubscribe-Post".into(), Secret::new("List-Unsubscribe=One-Click".into())),
        ("X-Pedido".into(), Secret::new("nº 5".into())),
    ];
    let report = read_back(&email);
    assert_eq!(report["subject"], subject);
    assert_eq!(report["from"], json!([{"name": "João da Conceição, Ltda.", "address": "loja@acme.com"}]));
    assert_eq!(report["to"], json!([{"name": "", "address": "ana@example.com"}]));
    assert_eq!(report["cc"], json!([{"name": "", "address": "eva@xn--exmple-cua.com"}]));
    let headers = &report["headers"];
    assert_eq!(headers["Reply-To"], "Ajuda & Cia <ajuda@acme.com>");
    assert_eq!(headers["X-Posthaste-Id"], email.id.to_string());
    assert_eq!(headers["Message-ID"], format!("<{}@acme.com>", email.id));
    assert_eq!(headers["Date"], "Thu, 01 Jan 2026 00:00:00 +0000");
    assert_eq!(headers["X-Pedido"], "nº 5");
    assert_eq!(headers["List-Unsubscribe"], format!("<https://acme.com/u?t={}>", "t".repeat(300)));
    assert_eq!(headers["List-Unsubscribe-Post"], "List-Unsubscribe=One-Click");
    assert_eq!(headers["Bcc"], Value::Null);
}

#[test]
fn text_html_images_and_files() {
    let every_byte: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let long_name = format!("relatório de {} — versão final.pdf", "vendas ".repeat(30));
    let files = vec![
        attachment("logo.png", "image/png", Some("logo@acme"), &every_byte[..3000]),
        attachment(&long_name, "application/pdf", None, &every_byte),
        attachment("dados \"2026\".csv", "text/csv; charset=iso-8859-1", None, b"a;b\rc;d\n\xe9\0\x7f"),
        attachment("empty.txt", "text/plain", None, b""),
        attachment("was.eml", "message/rfc822", None, b"Subject: x\n\nhi"),
    ];
    let html = "<p>Olá <img src=\"cid:logo@acme\"></p>";
    let report = read_back(&outgoing("files", html, Some("Olá\nmundo"), files.clone()));
    assert_eq!(
        report["structure"],
        "multipart/mixed(multipart/alternative(text/plain, multipart/related(text/html, image/png)), \
         application/pdf, text/csv, text/plain, application/octet-stream)"
    );
    let parts = report["parts"].as_array().expect("parts");
    assert_eq!((text(&parts[0]), &parts[0]["charset"]), ("Olá\nmundo".into(), &json!("utf-8")));
    assert_eq!((text(&parts[1]), &parts[1]["charset"]), (html.into(), &json!("utf-8")));
    assert_eq!((&parts[2]["cid"], &parts[2]["disposition"]), (&json!("logo@acme"), &json!("inline")));
    for (part, file) in parts[2..].iter().zip(&files) {
        assert_eq!(part["filename"], file.filename);
        assert_eq!(part["size"], file.bytes.expose().len(), "{}", file.filename);
        assert_eq!(part["sha256"], sha256(file.bytes.expose()), "{}", file.filename);
    }
    assert!(parts[3..].iter().all(|part| part["disposition"] == "attachment"));
}

#[test]
fn every_smaller_tree() {
    let image = || attachment("i.png", "image/png", Some("i"), b"png");
    let file = || attachment("f.pdf", "application/pdf", None, b"pdf");
    let cases = [
        (None, vec![], "text/html"),
        (Some("t"), vec![], "multipart/alternative(text/plain, text/html)"),
        (None, vec![image()], "multipart/related(text/html, image/png)"),
        (None, vec![file()], "multipart/mixed(text/html, application/pdf)"),
        (None, vec![file(), image()], {
            "multipart/mixed(multipart/related(text/html, image/png), application/pdf)"
        }),
        (Some("t"), vec![image()], {
            "multipart/alternative(text/plain, multipart/related(text/html, image/png))"
        }),
        (Some("t"), vec![file()], {
            "multipart/mixed(multipart/alternative(text/plain, text/html), application/pdf)"
        }),
    ];
    for (text, files, structure) in cases {
        assert_eq!(read_back(&outgoing("tree", "<p>", text, files))["structure"], structure);
    }
}

#[test]
fn bodies_that_are_hard_to_carry() {
    let long = "á".repeat(10 * 1024);
    let cases = [
        ("a long line", long.as_str(), long.as_str()),
        ("dots", ".\r\n..\r\n.a", ".\n..\n.a"),
        ("from", "From here\nto there", "From here\nto there"),
        ("a bare return", "a\rb", "a\nb"),
        ("a zero byte", "a\0b", "a\0b"),
        ("blanks at line ends", "a \t\r\n b ", "a \t\n b "),
        ("a boundary", "--=_mixed_\nContent-Type: x/y\n\n", "--=_mixed_\nContent-Type: x/y\n\n"),
        ("equals", "=\n=3D", "=\n=3D"),
    ];
    for (case, html, expected) in cases {
        let file = attachment("f.txt", "text/plain", None, html.as_bytes());
        let report = read_back(&outgoing(case, html, Some(html), vec![file]));
        assert_eq!(text(&report["parts"][0]), expected, "{case}: text");
        assert_eq!(text(&report["parts"][1]), expected, "{case}: html");
        assert_eq!(report["parts"][2]["sha256"], sha256(html.as_bytes()), "{case}: file");
    }
}

/// The text of a part. Python has made some of its line ends LF on the way in and kept those in base64.
fn text(part: &Value) -> String {
    part["text"].as_str().expect("a text part").replace("\r\n", "\n")
}

/// The digest by Python too: what is compared is whether both sides saw the same bytes.
fn sha256(bytes: &[u8]) -> Value {
    let header = "Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n\r\n";
    let eml = format!("{header}{}", BASE64_STANDARD.encode(bytes));
    parsed(eml.as_bytes())["parts"][0]["sha256"].clone()
}
