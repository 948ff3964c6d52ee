//! The SMTP server of the tests, `tests/peers/smtp_sink.py`, as a provider of the real binary. It ends with the test.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A message the sink took.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// The email's id, as the message carries it.
    pub id: String,
    pub to: Vec<String>,
    /// Seconds since 1970, when the message was taken; its answer follows after the sink's latency.
    pub at_secs: f64,
}

pub struct Sink {
    child: Child,
    /// Closed before the child is waited for, which makes it end.
    stdin: Option<ChildStdin>,
    port: u16,
    folder: TempDir,
}

impl Sink {
    pub fn start(options: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().expect("a directory"), options)
    }

    /// Keeps the messages too.
    pub fn start_keeping(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let dump = folder.path().join("dump").to_str().expect("a plain path").to_owned();
        let options: Vec<&str> = options.iter().copied().chain(["--dump", &dump]).collect();
        Self::start_in(folder, &options)
    }

    fn start_in(folder: TempDir, options: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/smtp_sink.py");
        let python = std::env::var("POSTHASTE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let mut child = Command::new(python)
            .arg(script)
            .args(["--until-stdin-closes", "--ledger"])
            .arg(folder.path().join("ledger"))
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Python could not be started: run ./test, which sets up what the tests need");
        let mut first = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut first).expect("a line");
        let Some(port) = first.trim().strip_prefix("listening 127.0.0.1:") else {
            let mut errors = String::new();
            let _ = child.stderr.take().expect("piped").read_to_string(&mut errors);
            panic!(
                "the SMTP sink did not start: run ./test, which installs what it needs (aiosmtpd)\n{errors}"
            );
        };
        let port = port.parse().expect("a port");
        Self { stdin: child.stdin.take(), child, port, folder }
    }

    /// `user` is empty or ends with `@`.
    pub fn url(&self, user: &str) -> String {
        format!("smtp://{user}127.0.0.1:{}?tls=none", self.port)
    }

    /// What was taken so far, in order. A line that is still being written is left out.
    pub fn arrivals(&self) -> Vec<Arrival> {
        let ledger = std::fs::read_to_string(self.folder.path().join("ledger")).expect("a ledger");
        let whole = ledger.rfind('\n').map_or(0, |end| end + 1);
        ledger[..whole].lines().map(arrival).collect()
    }

    /// The messages it kept, one after the other.
    pub fn messages(&self) -> String {
        let count = self.arrivals().len();
        let message = |n: usize| std::fs::read(self.folder.path().join(format!("dump/{n}.eml")));
        (1..=count).map(|n| String::from_utf8_lossy(&message(n).expect("it was kept")).into_owned()).collect()
    }
}

fn arrival(line: &str) -> Arrival {
    let line: Value = serde_json::from_str(line).expect("JSON");
    let to = line["to"].as_array().expect("a list").iter();
    Arrival {
        id: line["id"].as_str().expect("an id").to_owned(),
        to: to.map(|address| address.as_str().expect("a text").to_owned()).collect(),
        at_secs: line["at"].as_f64().expect("a time"),
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}
