//! Signatures that AWS's own implementation in Python (botocore 1.43.11) computed for the same requests, with its clock
//! held at noon of 31 January 2026.

use super::*;

const TOKEN: &str = "AQoDYXdzEPT//////////wEXAMPLE+token==";

fn credentials() -> Credentials {
    Credentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
}

struct Case {
    name: &'static str,
    service: &'static str,
    region: &'static str,
    credentials: Credentials,
    request: Unsigned<'static>,
    signed: &'static str,
    signature: &'static str,
}

fn cases() -> Vec<Case> {
    const HOST: &str = "email.eu-west-1.amazonaws.com";
    let get = Unsigned { method: "GET", host: HOST, path: "/", headers: &[], body: b"" };
    vec![
        Case {
            name: "a body in JSON",
            service: "ses",
            region: "eu-west-1",
            credentials: credentials(),
            request: Unsigned {
                method: "POST",
                path: "/v2/email/outbound-emails",
                headers: &[("content-type", "application/json")],
                body: br#"{"FromEmailAddress":"shop@acme.test"}"#,
                ..get
            },
            signed: "content-type;host;x-amz-date",
            signature: "7f1b7a46b1011a9db4b0d05ec27f88ea261a4c38c4df088d849ed26641bf6f40",
        },
        Case {
            name: "a path that is encoded, and temporary credentials",
            service: "ses",
            region: "eu-west-1",
            credentials: credentials().with_session_token(TOKEN),
            request: Unsigned { path: "/v2/email/identities/ana%2Bx%40example.com", ..get },
            signed: "host;x-amz-date;x-amz-security-token",
            signature: "992fd42b865bbafc994281e827a1fd611725e1f8fbc744b4e634a9b4832a1fe2",
        },
        Case {
            name: "a port",
            service: "ses",
            region: "us-east-1",
            credentials: credentials(),
            request: Unsigned { host: "127.0.0.1:4566", path: "/v2/email/account", ..get },
            signed: "host;x-amz-date",
            signature: "e7be58e0a9ab8337251bc40febe407451966543c0927a5a53148946007d27ed7",
        },
        Case {
            name: "another service, which is told by a header what to do",
            service: "dynamodb",
            region: "us-east-1",
            credentials: credentials().with_session_token(TOKEN),
            request: Unsigned {
                method: "POST",
                host: "dynamodb.us-east-1.amazonaws.com",
                path: "/",
                headers: &[
                    ("x-amz-target", "DynamoDB_20120810.ListTables"),
                    ("content-type", "application/x-amz-json-1.0"),
                ],
                body: b"{}",
            },
            signed: "content-type;host;x-amz-date;x-amz-security-token;x-amz-target",
            signature: "76b1edf6e02680b5652bdaa1bb3af0e8cafbd2446aebefebfad519a694cd9a07",
        },
    ]
}

#[test]
fn signatures_are_those_of_aws() {
    let now = Timestamp::parse("2026-01-31T12:00:00.999Z").expect("a moment");
    for Case { name, service, region, credentials, request, signed, signature } in cases() {
        let headers = sign(&request, &credentials, Scope { region, service }, now).expect("headers");
        let expected = format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260131/{region}/{service}/aws4_request, \
             SignedHeaders={signed}, Signature={signature}"
        );
        assert_eq!(headers["authorization"], expected.as_str(), "{name}");
        assert_eq!(headers["x-amz-date"], "20260131T120000Z", "{name}");
        let token = credentials.session_token.as_ref().map(|token| token.expose().as_bytes());
        assert_eq!(headers.get(SESSION_TOKEN).map(HeaderValue::as_bytes), token, "{name}");
        for (name, value) in request.headers {
            assert_eq!(headers[*name], *value, "{name}");
        }
        let printed = format!("{headers:?}");
        assert!(!printed.contains(signature) && !printed.contains(TOKEN), "{printed}");
    }
}

#[test]
fn a_piece_of_a_path() {
    assert_eq!(encode("ana+x@example.com"), "ana%2Bx%40example.com");
    assert_eq!(encode("a/b~c_d-e.f é"), "a%2Fb~c_d-e.f%20%C3%A9");
}

#[test]
fn credentials_that_no_header_can_carry() {
    let now = Timestamp::from_millis(0);
    let request = Unsigned { method: "GET", host: "h", path: "/", headers: &[], body: b"" };
    let scope = Scope { region: "eu-west-1", service: "ses" };
    let failure =
        sign(&request, &credentials().with_session_token("a\nb"), scope, now).expect_err("unusable");
    assert!(matches!(failure, Failure::Credentials(crate::Lack::Misconfigured, _)), "{failure:?}");
}
