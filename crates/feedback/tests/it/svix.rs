//! Signatures of webhooks: those the official libraries made, and every way they can be wrong.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use feedback::svix::{Headers, InvalidSecret, Refused, SigningSecret, sign, verify};
use model::Timestamp;
use serde_json::Value;

use crate::vectors;

const SENT_SECS: i64 = 1_772_000_000;
const BODY: &[u8] = br#"{"type":"email.sent"}"#;

fn secret(byte: u8) -> SigningSecret {
    SigningSecret::parse(&format!("whsec_{}", base64_of(&[byte; 32]))).expect("a secret")
}

fn base64_of(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn at(secs: i64) -> Timestamp {
    Timestamp::from_millis(secs * 1_000)
}

fn check(secrets: &[SigningSecret], signature: &str) -> Result<(), Refused> {
    let timestamp = SENT_SECS.to_string();
    let headers = Headers { id: "msg_1", timestamp: &timestamp, signature };
    verify(secrets, &headers, BODY, at(SENT_SECS))
}

#[test]
fn what_the_official_library_signed_is_believed_and_signed_alike() {
    let file = vectors(include_str!("../vectors/svix.json"));
    for vector in file["vectors"].as_array().expect("a list") {
        let field = |name: &str| vector[name].as_str().expect("a text");
        let case = field("case");
        let secret = SigningSecret::parse(field("secret")).expect(case);
        let secs: i64 = field("timestamp").parse().expect(case);
        let body = field("body").as_bytes();
        assert_eq!(sign(&secret, field("id"), secs, body), field("signature"), "{case}");

        let headers =
            Headers { id: field("id"), timestamp: field("timestamp"), signature: field("signature") };
        let believes = |headers: &Headers<'_>, body: &[u8]| {
            verify(std::slice::from_ref(&secret), headers, body, at(secs))
        };
        assert_eq!(believes(&headers, body), Ok(()), "{case}");
        let longer = [body, b" "].concat();
        assert_eq!(believes(&headers, &longer), Err(Refused::Signature), "{case}: another body");
        let other_id = Headers { id: "msg_other", ..headers };
        assert_eq!(believes(&other_id, body), Err(Refused::Signature), "{case}: another id");
        let later = (secs + 1).to_string();
        let other_time = Headers { timestamp: &later, ..headers };
        assert_eq!(believes(&other_time, body), Err(Refused::Signature), "{case}: another time");
    }
    assert!(matches!(&file["note"], Value::String(_)), "the file says how it was made");
}

#[test]
fn lists_of_signatures() {
    let good = sign(&secret(1), "msg_1", SENT_SECS, BODY);
    let other = sign(&secret(2), "msg_1", SENT_SECS, BODY);
    let encoded = good.strip_prefix("v1,").expect("version 1");
    let unpadded = good.trim_end_matches('=');
    let cases = [
        ("alone", good.clone(), true),
        ("after another key's", format!("{other} {good}"), true),
        ("before another key's", format!("{good} {other}"), true),
        ("among other versions", format!("v1a,AAAA v2,{encoded} {good}"), true),
        ("among broken ones", format!("v1 v1, , v1,!!! {good}"), true),
        ("another key's", other.clone(), false),
        ("as another version", format!("v1a,{encoded}"), false),
        ("without version", encoded.to_owned(), false),
        ("with commas between", format!("{other},{good}"), false),
        ("empty entry", "v1,".to_owned(), false),
        ("only spaces", "   ".to_owned(), false),
        ("empty", String::new(), false),
        ("without padding", unpadded.to_owned(), false),
        ("first half", good[..good.len() / 2].to_owned(), false),
        ("first 4 characters", format!("v1,{}", &encoded[..4]), false),
        ("31 bytes", format!("v1,{}", base64_of(&[7; 31])), false),
        ("33 bytes", format!("v1,{}", base64_of(&[7; 33])), false),
        ("other case", good.to_ascii_uppercase(), false),
    ];
    for (case, signature, believed) in cases {
        assert_eq!(check(&[secret(1)], &signature).is_ok(), believed, "{case}: {signature}");
    }
}

/// Every signature that is a beginning of the right one.
#[test]
fn no_shortened_signature_is_believed() {
    let good = sign(&secret(1), "msg_1", SENT_SECS, BODY);
    let expected = STANDARD.decode(good.strip_prefix("v1,").expect("version 1")).expect("base64");
    for length in 0..expected.len() {
        let signature = format!("v1,{}", base64_of(&expected[..length]));
        assert_eq!(check(&[secret(1)], &signature), Err(Refused::Signature), "{length} bytes");
    }
}

#[test]
fn secrets_change() {
    let old = sign(&secret(1), "msg_1", SENT_SECS, BODY);
    assert_eq!(check(&[secret(2), secret(1)], &old), Ok(()), "both are known while they change");
    assert_eq!(check(&[secret(2)], &old), Err(Refused::Signature), "the old one is gone");
    assert_eq!(check(&[], &old), Err(Refused::Signature), "no secret believes nothing");
}

#[test]
fn the_window_of_time() {
    let secret = secret(1);
    let cases = [
        ("now", 0, Ok(())),
        ("300 seconds old", 300_000, Ok(())),
        ("a little older", 300_001, Err(Refused::TooOld)),
        ("300 seconds ahead", -300_000, Ok(())),
        ("a little more ahead", -300_001, Err(Refused::TooNew)),
        ("a day old", 86_400_000, Err(Refused::TooOld)),
    ];
    for (case, age_millis, expected) in cases {
        let signature = sign(&secret, "msg_1", SENT_SECS, BODY);
        let timestamp = SENT_SECS.to_string();
        let headers = Headers { id: "msg_1", timestamp: &timestamp, signature: &signature };
        let now = Timestamp::from_millis(SENT_SECS * 1_000 + age_millis);
        assert_eq!(verify(std::slice::from_ref(&secret), &headers, BODY, now), expected, "{case}");
    }
}

#[test]
fn timestamps_that_are_none() {
    for timestamp in
        ["", "x", "-1", "+1772000000", "1772000000.0", " 1772000000", "0x10", "99999999999999999999"]
    {
        let headers = Headers { id: "msg_1", timestamp, signature: "v1,AAAA" };
        let refused = verify(&[secret(1)], &headers, BODY, at(SENT_SECS));
        assert_eq!(refused, Err(Refused::TimestampUnreadable), "{timestamp:?}");
    }
    let far = i64::MAX.to_string();
    let headers = Headers { id: "msg_1", timestamp: &far, signature: "v1,AAAA" };
    assert_eq!(verify(&[secret(1)], &headers, BODY, at(SENT_SECS)), Err(Refused::TooNew));
}

#[test]
fn one_whole_family_of_headers_is_needed() {
    let whole = |family: &'static str| {
        vec![(family, "-id", "1"), (family, "-timestamp", "2"), (family, "-signature", "3")]
    };
    let without =
        |family, name| whole(family).into_iter().filter(|header| header.1 != name).collect::<Vec<_>>();
    let cases = [
        ("svix", whole("svix"), Ok(())),
        ("standard webhooks", whole("webhook"), Ok(())),
        ("both", [whole("svix"), whole("webhook")].concat(), Ok(())),
        ("half and whole", [without("svix", "-id"), whole("webhook")].concat(), Ok(())),
        ("none", vec![], Err("svix-id")),
        ("no id", without("svix", "-id"), Err("svix-id")),
        ("no timestamp", without("svix", "-timestamp"), Err("svix-timestamp")),
        ("no signature", without("svix", "-signature"), Err("svix-signature")),
        ("the other family", without("webhook", "-timestamp"), Err("webhook-timestamp")),
        ("an empty one", [without("svix", "-id"), vec![("svix", "-id", "")]].concat(), Err("svix-id")),
        (
            "a mixture",
            vec![("svix", "-id", "1"), ("webhook", "-timestamp", "2"), ("webhook", "-signature", "3")],
            Err("svix-timestamp"),
        ),
    ];
    for (case, sent, expected) in cases {
        let header = |name: &str| sent.iter().find(|h| format!("{}{}", h.0, h.1) == name).map(|h| h.2);
        let found = Headers::find(header);
        match expected {
            Ok(()) => {
                assert_eq!(found, Ok(Headers { id: "1", timestamp: "2", signature: "3" }), "{case}");
            }
            Err(missing) => assert_eq!(found, Err(Refused::MissingHeader(missing)), "{case}"),
        }
    }
}

#[test]
fn secrets_are_read_strictly_and_hide() {
    let of = |length: usize| format!("whsec_{}", base64_of(&vec![9; length]));
    let cases = [
        ("24 bytes", of(24), None),
        ("64 bytes", of(64), None),
        ("without padding", of(32).trim_end_matches('=').to_owned(), None),
        ("23 bytes", of(23), Some(InvalidSecret::Length(23))),
        ("65 bytes", of(65), Some(InvalidSecret::Length(65))),
        ("nothing", "whsec_".to_owned(), Some(InvalidSecret::Length(0))),
        ("empty", String::new(), Some(InvalidSecret::Prefix)),
        ("no prefix", base64_of(&[9; 32]), Some(InvalidSecret::Prefix)),
        ("upper case", of(32).to_ascii_uppercase(), Some(InvalidSecret::Prefix)),
        ("not base64", "whsec_not base64 at all".to_owned(), Some(InvalidSecret::Base64)),
        ("for the web", format!("whsec_{}", "-_".repeat(20)), Some(InvalidSecret::Base64)),
        ("a private key", "whsk_AAAA".to_owned(), Some(InvalidSecret::Asymmetric)),
        ("a public key", "whpk_AAAA".to_owned(), Some(InvalidSecret::Asymmetric)),
    ];
    for (case, text, expected) in cases {
        let parsed = SigningSecret::parse(&text);
        if let Ok(secret) = &parsed {
            assert_eq!(format!("{secret:?}"), "SigningSecret(***)", "{case}");
        }
        assert_eq!(parsed.err(), expected, "{case}");
    }
}
