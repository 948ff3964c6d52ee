//! The SMTP server of the tests, `tests/peers/smtp_sink.py`, as a child process that ends with the test.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use model::email::Outgoing;
use model::{Mailbox, Secret};
use provider_smtp::{SmtpConfig, SmtpProvider};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{START, a_company, an_address, an_email};

pub struct Sink {
    child: Child,
    /// Closed before the child is waited for, which makes it end.
    stdin: Option<ChildStdin>,
    pub port: u16,
    folder: TempDir,
}

impl Sink {
    pub fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(python())
            .arg(peers().join("smtp_sink.py"))
            .args(["--port", "0", "--until-stdin-closes", "--ledger"])
            .arg(folder.path().join("ledger"))
            .arg("--dump")
            .arg(folder.path().join("dump"))
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Python could not be started: run ./test, which sets up what the tests need");
        let mut first = String::new();
        BufReader::new(child.stdout.take().expect("stdout is piped")).read_line(&mut first).expect("a line");
        let Some(port) = first.trim().strip_prefix("listening 127.0.0.1:") else {
            let mut errors = String::new();
            let _ = child.stderr.take().expect("stderr is piped").read_to_string(&mut errors);
            panic!(
                "the SMTP sink did not start: run ./test, which installs what it needs (aiosmtpd)\n{errors}"
            );
        };
        let port = port.parse().expect("a port");
        Self { stdin: child.stdin.take(), child, port, folder }
    }

    /// A sink with a certificate, and the path of the authority to trust.
    pub fn with_tls(options: &[&str]) -> (Self, PathBuf) {
        let certificates = certificates();
        let path = |name: &str| certificates.path().join(name).to_str().expect("a plain path").to_owned();
        let (cert, key) = (path("cert.pem"), path("key.pem"));
        let options: Vec<&str> = options.iter().copied().chain(["--cert", &cert, "--key", &key]).collect();
        let sink = Self::start(&options);
        let ca = sink.folder.path().join("ca.pem");
        std::fs::copy(certificates.path().join("ca.pem"), &ca).expect("the authority is copied");
        (sink, ca)
    }

    pub fn config(&self) -> SmtpConfig {
        SmtpConfig::parse(&format!("smtp://127.0.0.1:{}?hello=client.test", self.port)).expect("an address")
    }

    pub fn provider(&self) -> SmtpProvider {
        SmtpProvider::new(self.config()).expect("a usable configuration")
    }

    /// What the sink accepted, in order.
    pub fn ledger(&self) -> Vec<Value> {
        let ledger = std::fs::read_to_string(self.folder.path().join("ledger")).expect("a ledger");
        ledger.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    pub fn connections(&self) -> Vec<u64> {
        self.ledger().iter().map(|line| line["connection"].as_u64().expect("a number")).collect()
    }

    /// The bytes of the n-th message, from 1.
    pub fn message(&self, n: usize) -> Vec<u8> {
        std::fs::read(self.folder.path().join(format!("dump/{n}.eml"))).expect("the message was dumped")
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// The email of the tests, to that address; change its fields as the test needs.
pub fn outgoing(to: &str) -> Outgoing {
    let email = an_email(a_company("acme").id);
    let mut envelope = email.envelope;
    envelope.to = an_address(to);
    envelope.subject = Secret::new("Hello".into());
    Outgoing {
        id: email.id,
        company: email.company,
        attempt: 1,
        series: 0,
        is_last_attempt: false,
        created_at: START,
        from: Mailbox::parse("Acme <shop@acme.test>").expect("a mailbox"),
        envelope,
        content: email.content,
    }
}

/// Reads a message with Python's email package.
pub fn parsed(eml: &[u8]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("message.eml");
    std::fs::write(&file, eml).expect("the message is written");
    let output =
        Command::new(python()).arg(peers().join("parse_eml.py")).arg(file).output().expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn certificates() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let made = Command::new("bash").arg(peers().join("make_cert.sh")).arg(folder.path()).status();
    assert!(made.is_ok_and(|status| status.success()), "no certificates: run ./test, which installs openssl");
    folder
}

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers")
}

fn python() -> String {
    std::env::var("POSTHASTE_TEST_PYTHON").unwrap_or_else(|_| "python3".into())
}
