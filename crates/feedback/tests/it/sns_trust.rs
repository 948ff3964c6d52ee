//! Certificates for SNS messages, made on the spot: names, times, roots.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use feedback::sns::{
    CertificateFault, Envelope, InvalidRoot, Message, Root, SnsError, Trust, TrustedHost, UrlFault, verify,
};
use model::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, PKCS_RSA_SHA512,
    SigningKey, date_time_ymd,
};
use serde_json::json;

use crate::sns::{TOPIC, trust};
use crate::{now, time};

const SUBSCRIBE_URL: &str = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription";

/// A certificate for 2026, unless changed.
fn params(common_name: &str, alternatives: &[&str]) -> CertificateParams {
    let alternatives: Vec<String> = alternatives.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(alternatives).expect("names");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = date_time_ymd(2026, 1, 1);
    params.not_after = date_time_ymd(2027, 1, 1);
    params
}

fn authority(common_name: &str) -> CertificateParams {
    let mut params = params(common_name, &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

/// A confirmation whose certificate is said to be at `certificate_host`, signed with `key`.
fn signed(certificate_host: &str, subscribe_url: &str, key: &KeyPair) -> Envelope {
    let text = format!(
        "Message\nhello\nMessageId\nm1\nSubscribeURL\n{subscribe_url}\nTimestamp\nt\nToken\n1\n\
         TopicArn\n{TOPIC}\nType\nSubscriptionConfirmation\n"
    );
    let body = json!({
        "Type": "SubscriptionConfirmation", "MessageId": "m1", "TopicArn": TOPIC, "Message": "hello",
        "Timestamp": "t", "Token": "1", "SubscribeURL": subscribe_url, "SignatureVersion": "2",
        "Signature": STANDARD.encode(key.sign(text.as_bytes()).expect("signed")),
        "SigningCertURL": format!("{certificate_host}/a.pem"),
    });
    Envelope::parse(body.to_string().as_bytes()).expect("an envelope")
}

fn rsa_key() -> KeyPair {
    KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key")
}

fn fault(result: Result<Message, SnsError>) -> Option<CertificateFault> {
    match result {
        Ok(_) => None,
        Err(SnsError::Certificate(fault)) => Some(fault),
        Err(other) => panic!("{other}"),
    }
}

fn emulator(roots: Vec<Root>) -> Trust {
    Trust { hosts: vec![TrustedHost::parse("localhost:4566").expect("a host")], roots, ..trust() }
}

#[test]
fn certificates_from_aws_carry_a_name_of_sns() {
    let key = rsa_key();
    let (us, af, gov, cn) = (
        "https://sns.us-east-1.amazonaws.com",
        "https://sns.af-south-1.amazonaws.com",
        "https://sns.us-gov-east-1.amazonaws.com",
        "https://sns.cn-north-1.amazonaws.com.cn",
    );
    let cases: [(&str, &str, &[&str], bool); 17] = [
        (us, "sns.amazonaws.com", &[], true),
        (us, "sns.amazonaws.com", &["sns.amazonaws.com"], true),
        (us, "Amazon", &["x.example.com", "sns.amazonaws.com"], true),
        (us, "sns.us-east-1.amazonaws.com", &[], true),
        (af, "sns-signing.af-south-1.amazonaws.com", &["sns.af-south-1.amazonaws.com"], true),
        (af, "sns-signing.af-south-1.amazonaws.com", &[], true),
        (gov, "sns-us-gov-west-1.amazonaws.com", &[], true),
        (cn, "sns-cn-north-1.amazonaws.com.cn", &[], true),
        (us, "sns-signing.af-south-1.amazonaws.com", &[], false),
        (us, "sns.eu-west-1.amazonaws.com", &[], false),
        (us, "sns-us-gov-west-1.amazonaws.com", &[], false),
        (us, "amazonaws.com", &["amazonaws.com"], false),
        (us, "sns.amazonaws.com.evil.example", &[], false),
        (us, "evil.example", &["sns.evil.example"], false),
        (us, "*.amazonaws.com", &["*.amazonaws.com"], false),
        (us, "sns.amazonaws.com\0.evil.example", &[], false),
        (us, "", &[], false),
    ];
    for (host, common_name, alternatives, taken) in cases {
        let pem = params(common_name, alternatives).self_signed(&key).expect("a certificate").pem();
        let result = verify(&signed(host, SUBSCRIBE_URL, &key), &pem, &trust(), now());
        let expected = (!taken).then_some(CertificateFault::Name);
        assert_eq!(fault(result), expected, "{host} {common_name:?} {alternatives:?}");
    }
}

#[test]
fn certificates_have_their_time() {
    let key = rsa_key();
    let pem = params("sns.amazonaws.com", &[]).self_signed(&key).expect("a certificate").pem();
    let cases = [
        ("2025-12-31T23:59:59.999Z", Some(CertificateFault::NotYetValid)),
        ("2026-01-01T00:00:00Z", None),
        ("2027-01-01T00:00:00Z", None),
        ("2027-01-01T00:00:01Z", Some(CertificateFault::Expired)),
        ("9999-12-31T23:59:59Z", Some(CertificateFault::Expired)),
    ];
    let aws = signed("https://sns.us-east-1.amazonaws.com", SUBSCRIBE_URL, &key);
    let local = signed("http://localhost:4566", SUBSCRIBE_URL, &key);
    for (at, expected) in cases {
        assert_eq!(fault(verify(&aws, &pem, &trust(), time(at))), expected, "{at}");
        let emulated = verify(&local, &pem, &emulator(Vec::new()), time(at));
        assert_eq!(fault(emulated), expected, "{at}, from a trusted host");
    }
    for millis in [i64::MIN, i64::MAX] {
        assert!(verify(&aws, &pem, &trust(), Timestamp::from_millis(millis)).is_err(), "{millis}");
    }
}

#[test]
fn another_key_is_not_believed() {
    let (key, other) = (rsa_key(), rsa_key());
    let pem = params("sns.amazonaws.com", &[]).self_signed(&other).expect("a certificate").pem();
    let envelope = signed("https://sns.us-east-1.amazonaws.com", SUBSCRIBE_URL, &key);
    assert_eq!(verify(&envelope, &pem, &trust(), now()), Err(SnsError::Signature));
}

#[test]
fn only_rsa_keys_sign_for_sns() {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let pem = params("sns.amazonaws.com", &[]).self_signed(&key).expect("a certificate").pem();
    let envelope = signed("https://sns.us-east-1.amazonaws.com", SUBSCRIBE_URL, &key);
    assert_eq!(fault(verify(&envelope, &pem, &trust(), now())), Some(CertificateFault::Key));
}

#[test]
fn texts_that_are_no_certificate() {
    let key = rsa_key();
    let pem = params("sns.amazonaws.com", &[]).self_signed(&key).expect("a certificate").pem();
    let envelope = signed("https://sns.us-east-1.amazonaws.com", SUBSCRIBE_URL, &key);
    let cases = [
        ("empty", String::new()),
        ("a page that quotes one", format!("<Attributes>\n{pem}</Attributes>")),
        ("cut off", pem[..pem.len() / 2].to_owned()),
        ("a key", key.serialize_pem()),
        ("another label", pem.replace("CERTIFICATE", "X509 CRL")),
        ("no end", pem.replace("-----END", "")),
        ("nothing inside", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n".to_owned()),
        ("not base64", "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n".to_owned()),
    ];
    for (case, text) in cases {
        let result = verify(&envelope, &text, &trust(), now());
        assert_eq!(fault(result), Some(CertificateFault::Unreadable), "{case}");
    }
}

#[test]
fn on_a_trusted_host_roots_decide() {
    let key = rsa_key();
    let envelope = signed("http://localhost:4566", SUBSCRIBE_URL, &key);
    let algorithms = [
        ("P-256", &PKCS_ECDSA_P256_SHA256, true),
        ("P-384", &PKCS_ECDSA_P384_SHA384, true),
        ("RSA, SHA-256", &PKCS_RSA_SHA256, true),
        ("RSA, SHA-512", &PKCS_RSA_SHA512, true),
        ("Ed25519, which we do not take", &PKCS_ED25519, false),
    ];
    for (case, algorithm, taken) in algorithms {
        let root_key = KeyPair::generate_for(algorithm).expect("a key");
        let root_params = authority("Our root");
        let root = root_params.self_signed(&root_key).expect("a root").pem();
        let issuer = Issuer::from_params(&root_params, &root_key);
        let leaf = params("whatever", &[]).signed_by(&key, &issuer).expect("a leaf").pem();
        let roots = Root::read_all(&root).expect("a root");
        let result = verify(&envelope, &leaf, &emulator(roots), now());
        assert_eq!(fault(result), (!taken).then_some(CertificateFault::Root), "{case}");
    }
}

#[test]
fn roots_that_do_not_vouch() {
    let key = rsa_key();
    let envelope = signed("http://localhost:4566", SUBSCRIBE_URL, &key);
    let root_key = KeyPair::generate().expect("a key");
    let other_key = KeyPair::generate().expect("a key");
    let root_params = authority("Our root");
    let mut expired = authority("Our root");
    expired.not_after = date_time_ymd(2026, 2, 1);
    let mut may_not_sign = authority("Our root");
    may_not_sign.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let mut may_sign = authority("Our root");
    may_sign.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let issuer = Issuer::from_params(&root_params, &root_key);
    let leaf = params("whatever", &[]).signed_by(&key, &issuer).expect("a leaf").pem();
    let own = params("whatever", &[]).self_signed(&key).expect("a certificate").pem();

    let pem_of = |params: &CertificateParams, key: &KeyPair| params.self_signed(key).expect("a root").pem();
    let cases = [
        ("the right one", pem_of(&root_params, &root_key), &leaf, true),
        ("one that may sign", pem_of(&may_sign, &root_key), &leaf, true),
        (
            "the right one among others",
            pem_of(&root_params, &other_key) + &pem_of(&root_params, &root_key),
            &leaf,
            true,
        ),
        ("the certificate itself", own.clone(), &own, true),
        ("the name alone", pem_of(&root_params, &other_key), &leaf, false),
        ("the key alone", pem_of(&authority("Another"), &root_key), &leaf, false),
        ("not an authority", pem_of(&params("Our root", &[]), &root_key), &leaf, false),
        ("expired", pem_of(&expired, &root_key), &leaf, false),
        ("may not sign", pem_of(&may_not_sign, &root_key), &leaf, false),
        ("a stranger's own", pem_of(&root_params, &root_key), &own, false),
    ];
    for (case, roots, certificate, taken) in cases {
        let trust = emulator(Root::read_all(&roots).expect("roots"));
        let result = verify(&envelope, certificate, &trust, now());
        assert_eq!(fault(result), (!taken).then_some(CertificateFault::Root), "{case}");
    }
    let without_roots = verify(&envelope, &own, &emulator(Vec::new()), now());
    assert_eq!(fault(without_roots), None, "without roots the host is enough");
}

/// Whatever an authority of the operator signs, it does not speak for AWS, and its host is not AWS's.
#[test]
fn trusted_hosts_do_not_weaken_the_rule_for_aws() {
    let key = rsa_key();
    let own = params("whatever", &[]).self_signed(&key).expect("a certificate").pem();
    let trust = emulator(Root::read_all(&own).expect("a root"));
    let aws = signed("https://sns.us-east-1.amazonaws.com", SUBSCRIBE_URL, &key);
    assert_eq!(fault(verify(&aws, &own, &trust, now())), Some(CertificateFault::Name));
}

#[test]
fn a_subscription_is_confirmed_on_trusted_hosts_only() {
    let key = rsa_key();
    let pem = params("sns.amazonaws.com", &[]).self_signed(&key).expect("a certificate").pem();
    let cases = [
        ("https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=1", None),
        ("http://localhost:4566/?Action=ConfirmSubscription", None),
        ("https://evil.example/?Action=ConfirmSubscription", Some(UrlFault::Host)),
        ("http://169.254.169.254/latest/meta-data/", Some(UrlFault::Host)),
        ("https://sns.us-east-1.amazonaws.com@evil.example/", Some(UrlFault::Spelling)),
        ("", Some(UrlFault::Unreadable)),
    ];
    for (url, expected) in cases {
        let envelope = signed("https://sns.us-east-1.amazonaws.com", url, &key);
        let result = verify(&envelope, &pem, &emulator(Vec::new()), now());
        match expected {
            None => assert_eq!(result.expect(url).subscribe_url().map(|url| url.as_str()), Some(url)),
            Some(fault) => assert_eq!(result, Err(SnsError::SubscribeUrl(fault)), "{url}"),
        }
    }
}

#[test]
fn files_of_roots() {
    let key = KeyPair::generate().expect("a key");
    let root = authority("Our root").self_signed(&key).expect("a root").pem();
    assert_eq!(Root::read_all(&format!("# ours\n{root}\n{root}")).map(|roots| roots.len()), Ok(2));
    assert_eq!(Root::read_all(""), Err(InvalidRoot::Empty));
    assert_eq!(Root::read_all("no certificate"), Err(InvalidRoot::Empty));
    assert_eq!(Root::read_all(&key.serialize_pem()), Err(InvalidRoot::Unreadable));
    assert_eq!(Root::read_all(&root[..root.len() / 2]), Err(InvalidRoot::Unreadable));
    assert_eq!(Root::read_all(&root.repeat(513)), Err(InvalidRoot::TooMany));
}
