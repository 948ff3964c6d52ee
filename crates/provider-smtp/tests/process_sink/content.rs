//! What arrives: the bytes that were rendered, no more and no less, and what another parser makes of them.

use model::email::Outgoing;
use model::{Attachment, Content, Mailbox, Secret};
use provider::Provider;
use serde_json::json;
use testkit::an_address;

use crate::sink::{Sink, outgoing, parsed};

fn composed(html: &str, text: Option<&str>, attachments: Vec<Attachment>) -> Outgoing {
    let mut email = outgoing("ana@example.com");
    email.content = Content::Composed { html: html.into(), text: text.map(Into::into), attachments };
    email
}

fn raw(eml: &[u8]) -> Outgoing {
    let mut email = outgoing("ana@example.com");
    email.content = Content::Raw(eml.to_vec());
    email
}

fn file(filename: &str, content_type: &str, content_id: Option<&str>, bytes: &[u8]) -> Attachment {
    Attachment {
        filename: filename.into(),
        content_type: content_type.into(),
        content_id: content_id.map(Into::into),
        bytes: Secret::new(bytes.to_vec()),
    }
}

#[tokio::test]
async fn bytes_arrive_as_they_were_rendered() {
    let header = "From: shop@acme.test\r\nTo: ana@example.com\r\nSubject: raw\r\n\r\n";
    let long = "x".repeat(10 * 1024);
    let many = "a line of a long message\r\n.\r\n".repeat(20_000);
    let body = |body: &str| raw(format!("{header}{body}").as_bytes());
    let cases = [
        ("html", composed("<p>Hello</p>", None, vec![])),
        ("a long line", composed(&long, Some(&long), vec![])),
        ("dots", composed(".\n..\n.a\n\n.\n", Some(".\r\n.\r\n"), vec![])),
        ("letters", composed("<p>Olá João 安 😀</p>", Some("Olá"), vec![])),
        ("a file", composed("<p>", None, vec![file("ç.bin", "application/pdf", None, &[0; 70_000])])),
        ("raw", body("Hello\r\n")),
        ("raw, lone dots", body(".\r\n..\r\n.a\r\n\r\n.\r\n")),
        ("raw, a dot at the end", body("a\r\n.")),
        ("raw, a dot first", body(".a\r\n")),
        ("raw, empty", body("")),
        ("raw, empty lines at the end", body("a\r\n\r\n\r\n")),
        ("raw, bare line feeds", body("a\n.\nb\n\n.\n")),
        ("raw, a bare return", body("a\r.\rb")),
        ("raw, 8 bit", body("Olá\r\n")),
        ("raw, over several pieces", body(&many)),
        ("raw, headers only", raw(b"From: a@b.com\r\nTo: c@d.com\r\n")),
    ];
    let sink = Sink::start(&[]);
    let smtp = sink.provider();
    for (n, (case, email)) in cases.into_iter().enumerate() {
        smtp.send(&email).await.expect(case);
        let expected = message::render(&email).expect("renders");
        let arrived = sink.message(n + 1);
        assert_eq!(arrived.len(), expected.len(), "{case}");
        assert!(arrived == expected, "{case}: the bytes differ");
    }
    assert!(sink.connections().iter().all(|connection| *connection == 1), "none upset the connection");
}

#[tokio::test]
async fn a_raw_message_keeps_all_but_its_blind_copies() {
    let sink = Sink::start(&[]);
    let eml = "Received: from x\r\n\tby y; Thu, 1 Jan 2026 00:00:00 +0000\r\nFrom: shop@acme.test\r\n\
        BCC: hidden@example.org,\r\n  more@example.org\r\nTo: ana@example.com\r\nX-Odd:   two  blanks \r\n\
        DKIM-Signature: v=1; b=abc\r\n\r\nBcc: not a header\r\n";
    let mut email = raw(eml.as_bytes());
    email.envelope.bcc = vec![an_address("hidden@example.org"), an_address("more@example.org")];
    sink.provider().send(&email).await.expect("taken");
    let kept = eml.replace("BCC: hidden@example.org,\r\n  more@example.org\r\n", "");
    let expected = format!("X-Posthaste-Id: {}\r\n{kept}", email.id);
    assert_eq!(String::from_utf8_lossy(&sink.message(1)), expected);
    assert_eq!(sink.ledger()[0]["to"], json!(["ana@example.com", "hidden@example.org", "more@example.org"]));
}

#[tokio::test]
async fn another_parser_reads_what_was_meant() {
    let sink = Sink::start(&[]);
    let long = "palavra ".repeat(1300) + &"é".repeat(10 * 1024);
    let html = format!("<p>.\r\n.\r\n..</p><img src=cid:logo>{long}");
    let files = vec![
        file("logo.png", "image/png", Some("logo"), b"\x89PNG\r\n\x1a\n\0"),
        file("relatório nº 5.pdf", "application/pdf", None, b"%PDF-1.7\n.\n"),
    ];
    let mut email = composed(&html, Some("Olá\n.\nJoão"), files);
    email.from = Mailbox::parse("Lojas São João <shop@acme.test>").expect("a mailbox");
    email.envelope.subject = Secret::new("Promoção — só hoje 😀".into());
    email.envelope.cc = vec![an_address("eva@example.com")];
    email.envelope.bcc = vec![an_address("hidden@example.org")];
    sink.provider().send(&email).await.expect("taken");
    let report = parsed(&sink.message(1));
    assert_eq!(report["defects"], json!([]));
    assert_eq!(report["subject"], "Promoção — só hoje 😀");
    assert_eq!(report["from"], json!([{"name": "Lojas São João", "address": "shop@acme.test"}]));
    assert_eq!(report["to"], json!([{"name": "", "address": "ana@example.com"}]));
    assert_eq!(report["cc"], json!([{"name": "", "address": "eva@example.com"}]));
    assert_eq!(report["headers"]["Bcc"], json!(null));
    assert!(!String::from_utf8_lossy(&sink.message(1)).contains("hidden"));
    assert_eq!(
        report["structure"],
        "multipart/mixed(multipart/alternative(text/plain, multipart/related(text/html, image/png)), application/pdf)"
    );
    let text = |n: usize| report["parts"][n]["text"].as_str().unwrap_or_default().replace("\r\n", "\n");
    assert_eq!(text(0), "Olá\n.\nJoão");
    assert_eq!(text(1), html.replace("\r\n", "\n"));
    let part = |n: usize, field: &str| report["parts"][n][field].clone();
    assert_eq!(
        (part(2, "cid"), part(2, "filename"), part(2, "size")),
        (json!("logo"), json!("logo.png"), json!(9))
    );
    assert_eq!((part(3, "filename"), part(3, "size")), (json!("relatório nº 5.pdf"), json!(11)));
}
