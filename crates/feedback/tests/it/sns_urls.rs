//! The addresses a message of SNS may send us to, and the many it may not.

use feedback::sns::{Envelope, SnsError, Trust, TrustedHost, UrlFault};
use serde_json::json;

use crate::sns::{TOPIC, trust};

fn certificate_url(url: &str, trust: &Trust) -> Result<String, UrlFault> {
    let body = json!({
        "Type": "Notification", "MessageId": "1", "TopicArn": TOPIC, "Message": "", "Timestamp": "",
        "SignatureVersion": "2", "Signature": "", "SigningCertURL": url,
    });
    match Envelope::parse(body.to_string().as_bytes()).expect("an envelope").certificate_url(trust) {
        Ok(url) => Ok(url.to_string()),
        Err(SnsError::CertificateUrl(fault)) => Err(fault),
        Err(other) => panic!("{url}: {other}"),
    }
}

#[test]
fn hosts_of_sns_are_taken() {
    for url in [
        "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem",
        "https://sns.us-gov-west-1.amazonaws.com/a.pem",
        "https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-1.pem",
    ] {
        assert_eq!(certificate_url(url, &trust()).as_deref(), Ok(url));
    }
}

#[test]
fn hostile_addresses_are_refused() {
    use UrlFault::{Host, Path, Spelling, Unreadable};
    let cases = [
        ("https://evil.example/a.pem", Host),
        ("https://sns.us-east-1.amazonaws.com.evil.example/a.pem", Host),
        ("https://evil.example/sns.us-east-1.amazonaws.com/a.pem", Host),
        ("https://evil.example/?https://sns.us-east-1.amazonaws.com/a.pem", Host),
        ("https://evilsns.us-east-1.amazonaws.com/a.pem", Host),
        ("https://sns-us-east-1.amazonaws.com/a.pem", Host),
        ("https://sns.amazonaws.com/a.pem", Host),
        ("https://sns..amazonaws.com/a.pem", Host),
        ("https://sns.evil.us-east-1.amazonaws.com/a.pem", Host),
        ("https://sns.us_east.amazonaws.com/a.pem", Host),
        ("https://sns.us-east-1.amazonaws.com.cn.evil.example/a.pem", Host),
        ("https://sns.us-east-1.amazonaws.co/a.pem", Host),
        ("https://sns.us-east-1.amazonaws.com./a.pem", Host),
        ("https://sns.us-east-1xamazonaws.com/a.pem", Host),
        ("https://bucket.s3.amazonaws.com/a.pem", Host),
        ("https://sqs.us-east-1.amazonaws.com/a.pem", Host),
        ("http://sns.us-east-1.amazonaws.com/a.pem", Host),
        ("ftp://sns.us-east-1.amazonaws.com/a.pem", Host),
        ("https://127.0.0.1/a.pem", Host),
        ("https://169.254.169.254/a.pem", Host),
        ("https://[::1]/a.pem", Host),
        ("https://2130706433/a.pem", Spelling),
        ("https://localhost/a.pem", Host),
        ("https://sns.us-east-1.amazonaws.com:8443/a.pem", Host),
        ("https://sns.us-east-1.amazonaws.com:443/a.pem", Spelling),
        ("https://sns.us-east-1.amazonaws.com@evil.example/a.pem", Spelling),
        ("https://user@sns.us-east-1.amazonaws.com/a.pem", Spelling),
        ("https://user:pass@sns.us-east-1.amazonaws.com/a.pem", Spelling),
        ("https://@sns.us-east-1.amazonaws.com/a.pem", Spelling),
        ("https://SNS.us-east-1.amazonaws.com/a.pem", Spelling),
        ("HTTPS://sns.us-east-1.amazonaws.com/a.pem", Spelling),
        ("https://sns.us-east-1.amazonaws.com\\@evil.example/a.pem", Spelling),
        ("https:\\\\sns.us-east-1.amazonaws.com\\a.pem", Spelling),
        ("https:sns.us-east-1.amazonaws.com/a.pem", Spelling),
        ("https:///sns.us-east-1.amazonaws.com/a.pem", Spelling),
        ("https://sns%2Eus-east-1.amazonaws.com/a.pem", Spelling),
        ("https://sns。us-east-1。amazonaws。com/a.pem", Spelling),
        ("https://ｓns.us-east-1.amazonaws.com/a.pem", Spelling),
        ("https://sns.us-east-1.amazonaws.com/ä.pem", Spelling),
        (" https://sns.us-east-1.amazonaws.com/a.pem", Spelling),
        ("https://sns.us-east-1.amazonaws.com/a.pem ", Spelling),
        ("https://sns.us-east-1.amazonaws.com", Spelling),
        ("https://sns.us-east-1.amazonaws.com/", Path),
        ("https://sns.us-east-1.amazonaws.com/a.pem/", Path),
        ("https://sns.us-east-1.amazonaws.com/a.PEM", Path),
        ("https://sns.us-east-1.amazonaws.com/a.pem.txt", Path),
        ("https://sns.us-east-1.amazonaws.com/a.pem?Action=GetTopicAttributes", Path),
        ("https://sns.us-east-1.amazonaws.com/?a=b.pem", Path),
        ("https://sns.us-east-1.amazonaws.com/a.pem#b", Path),
        ("https://sns.us-east-1.amazonaws.com/#b.pem", Path),
        ("file:///etc/ssl/a.pem", Unreadable),
        ("data:,a.pem", Unreadable),
        ("sns.us-east-1.amazonaws.com/a.pem", Unreadable),
        ("//sns.us-east-1.amazonaws.com/a.pem", Unreadable),
        ("https://", Unreadable),
        ("", Unreadable),
    ];
    for (url, fault) in cases {
        assert_eq!(certificate_url(url, &trust()), Err(fault), "{url}");
    }
}

#[test]
fn hosts_the_operator_named() {
    let hosts = ["localhost:4566", "127.0.0.1:80", "aws.internal", "[::1]:4566"];
    let hosts = hosts.iter().map(|host| TrustedHost::parse(host).expect("a host")).collect();
    let trust = Trust { hosts, ..trust() };
    for url in [
        "http://localhost:4566/_aws/sns/a.pem",
        "https://localhost:4566/a.pem",
        "http://127.0.0.1/a.pem",
        "http://aws.internal/a.pem",
        "https://aws.internal/a.pem",
        "http://[::1]:4566/a.pem",
        "https://sns.us-east-1.amazonaws.com/a.pem",
    ] {
        assert_eq!(certificate_url(url, &trust).as_deref(), Ok(url));
    }
    for (url, fault) in [
        ("http://localhost/a.pem", UrlFault::Host),
        ("http://localhost:4567/a.pem", UrlFault::Host),
        ("https://127.0.0.1/a.pem", UrlFault::Host),
        ("http://aws.internal:8080/a.pem", UrlFault::Host),
        ("http://aws.internal.evil.example/a.pem", UrlFault::Host),
        ("http://evil.aws.internal/a.pem", UrlFault::Host),
        ("ftp://aws.internal/a.pem", UrlFault::Host),
        ("http://user@aws.internal/a.pem", UrlFault::Spelling),
        ("http://aws.internal/secrets", UrlFault::Path),
        ("http://aws.internal/a.pem?b", UrlFault::Path),
        ("http://sns.us-east-1.amazonaws.com/a.pem", UrlFault::Host),
    ] {
        assert_eq!(certificate_url(url, &trust), Err(fault), "{url}");
    }
}

#[test]
fn hosts_are_written_plainly() {
    for text in [
        "",
        "http://localhost",
        "localhost/",
        "localhost/path",
        "user@localhost",
        "localhost:",
        "localhost:99999",
        "localhost:x",
        "LOCALHOST",
        "local host",
        "*.internal:80/",
        "localhost?x",
        "localhost#x",
        "::1",
    ] {
        assert!(TrustedHost::parse(text).is_err(), "{text:?}");
    }
}
