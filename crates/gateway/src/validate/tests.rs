//! The validations as tables: each case is a sound claim with one thing changed.

use model::privacy::Secret;
use model::{Address, Content, KeyMode, RecipientId};
use store::RecipientRecord;
use testkit::{START, a_company, a_recipient, an_address};

use super::*;
use crate::addressees::{Addressees, Person};
use crate::testing::a_claim;

type Change = fn(&mut Claim);

fn composed(html: &str) -> Option<Content> {
    Some(Content::Composed { html: html.into(), text: None, attachments: vec![] })
}

fn code_after(change: Change, check: fn(&Claim) -> Result<(), Failure>) -> Option<String> {
    let mut claim = a_claim(a_company("acme").id);
    change(&mut claim);
    check(&claim).err().map(|failure| {
        assert_eq!(failure.category, Category::Validation);
        failure.code.as_str().to_owned()
    })
}

#[test]
fn integrity() {
    let cases: [(&str, Change, bool); 12] = [
        ("a sound claim", |_| {}, true),
        ("no attempt", |claim| claim.attempt = 0, false),
        ("no address", |claim| claim.envelope.to = Address::trusted("ana".into()), false),
        ("a line break in an address", |claim| claim.envelope.to = Address::trusted("a\n@b.c".into()), false),
        ("no subject", |claim| claim.envelope.subject = Secret::default(), false),
        ("two lines of subject", |claim| claim.envelope.subject = Secret::new("a\r\nBcc: b".into()), false),
        ("five in copy", |claim| claim.envelope.cc = vec![an_address("b@example.com"); 5], true),
        ("six in copy", |claim| claim.envelope.cc = vec![an_address("b@example.com"); 6], false),
        ("six tags", |claim| claim.envelope.tags = vec!["t".into(); 6], false),
        (
            "a header of two lines",
            |claim| claim.envelope.headers = vec![("X-A".into(), Secret::new("1\r\nX-B: 2".into()))],
            false,
        ),
        ("a recipient without identifier", |claim| claim.recipient = Some(Default::default()), false),
        ("a test key", |claim| claim.mode = KeyMode::Test, true),
    ];
    for (case, change, passes) in cases {
        let expected = (!passes).then(|| "INVALID_PAYLOAD".to_owned());
        assert_eq!(code_after(change, integrity::check), expected, "{case}");
    }
}

#[test]
fn an_eml_is_taken_as_it_is() {
    let raw: Change = |claim| {
        claim.content = Some(Content::Raw(b"Subject:\r\n\r\nhello".to_vec()));
        claim.envelope.subject = Secret::default();
        claim.envelope.cc = vec![an_address("b@example.com"); 6];
    };
    assert_eq!(code_after(raw, integrity::check), None);
    assert_eq!(code_after(raw, template::check), None);
}

#[test]
fn outbox() {
    let company = a_company("acme");
    let claim = a_claim(company.id);
    assert_eq!(outbox::check(Some(&company), &claim), Ok(()));
    for (case, other) in [("no company", None), ("another company", Some(a_company("other")))] {
        let failure = outbox::check(other.as_ref(), &claim).expect_err(case);
        assert_eq!(failure.code, ErrorCode::OUTBOX_NOT_FOUND, "{case}");
    }
}

#[test]
fn recipient() {
    let mut claim = a_claim(a_company("acme").id);
    claim.recipient = Some(a_recipient("r-1"));
    let record = RecipientRecord {
        id: RecipientId::new(START),
        email: an_address("Ana@example.com"),
        external_id: Some("r-1".into()),
        deleted_at: None,
    };
    let deleted = RecipientRecord { deleted_at: Some(START), ..record.clone() };
    let moved = RecipientRecord { email: an_address("ana@example.org"), ..record.clone() };
    let cases = [
        ("nobody named", Person::NotNamed, None),
        ("found, other case", Person::Found(record), None),
        ("missing", Person::Missing, Some(ErrorCode::RECIPIENT_NOT_FOUND)),
        ("deleted", Person::Found(deleted), Some(ErrorCode::RECIPIENT_NOT_FOUND)),
        ("another address", Person::Found(moved), Some(ErrorCode::INVALID_EMAIL)),
    ];
    for (case, person, expected) in cases {
        assert_eq!(
            recipient::check(&claim, &Addressees { person, ..Addressees::default() })
                .err()
                .map(|failure| failure.code),
            expected,
            "{case}"
        );
    }
}

#[test]
fn template() {
    let cases: [(&str, Change, bool); 9] = [
        ("a paragraph", |claim| claim.content = composed("<p>Hello</p>"), true),
        ("prose about onclick", |claim| claim.content = composed("<p>use onclick= with care</p>"), true),
        ("no content", |claim| claim.content = None, false),
        ("blank html", |claim| claim.content = composed(" \n\t "), false),
        ("a script", |claim| claim.content = composed("<script>alert(1)</script>"), false),
        ("html at its limit", |claim| claim.content = composed(&"a".repeat(512 * 1024)), true),
        ("html over its limit", |claim| claim.content = composed(&"a".repeat(512 * 1024 + 1)), false),
        ("a subject at its limit", |claim| claim.envelope.subject = Secret::new("ä".repeat(150)), true),
        ("a subject over its limit", |claim| claim.envelope.subject = Secret::new("ä".repeat(151)), false),
    ];
    for (case, change, passes) in cases {
        let expected = (!passes).then(|| "INVALID_TEMPLATE".to_owned());
        assert_eq!(code_after(change, template::check), expected, "{case}");
    }
}
