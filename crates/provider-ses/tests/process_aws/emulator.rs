//! MiniStack, an AWS emulator that others wrote, as a child process that ends with the test.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub struct Emulator {
    child: Child,
    /// Closed before the child is waited for, which makes it end.
    stdin: Option<ChildStdin>,
    address: String,
}

impl Emulator {
    pub fn start() -> Self {
        let python = std::env::var("POSTHASTE_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
        let mut child = Command::new(python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/aws.py"))
            .arg("ses")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Python could not be started: run ./test, which sets up what the tests need");
        let mut first = String::new();
        BufReader::new(child.stdout.take().expect("stdout is piped")).read_line(&mut first).expect("a line");
        let Some(address) = first.trim().strip_prefix("listening ") else {
            let mut errors = String::new();
            let _ = child.stderr.take().expect("stderr is piped").read_to_string(&mut errors);
            panic!("MiniStack did not start: run ./test, which installs it\n{errors}");
        };
        Self { address: address.to_owned(), stdin: child.stdin.take(), child }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets mail be sent from that domain.
    pub async fn verify(&self, domain: &str) {
        let body = format!(r#"{{"EmailIdentity":"{domain}"}}"#);
        self.call("POST /v2/email/identities", &body).await;
    }

    /// What it recorded as sent, in order.
    pub async fn sent(&self) -> Vec<Value> {
        let answer = self.call("GET /_ministack/ses/messages", "").await;
        let messages = answer["messages"].as_object().expect("messages by account");
        messages.values().flat_map(|messages| messages.as_array().expect("a list").clone()).collect()
    }

    async fn call(&self, what: &str, body: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).await.expect("it listens");
        let request = format!(
            "{what} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}
