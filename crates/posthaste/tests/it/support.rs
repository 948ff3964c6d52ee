//! Starting the binary, talking to it, and waiting for things without hoping for times.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// How often something is looked at before it is given up, and the pause between two looks.
const LOOKS_MAX: u32 = 400;
const LOOK_PAUSE: Duration = Duration::from_millis(25);
/// No line is waited for longer.
const LINE_TIMEOUT: Duration = Duration::from_secs(20);
/// What a server that was told to end may need at most: for what is in flight, and to close.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory of its own, in which commands are run.
pub struct Place {
    directory: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory") }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn write(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
    }

    /// The binary in this directory, without settings of whoever runs the tests.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("POSTHASTE_") || text.starts_with("OTEL_") || text == "ADMIN_EMAIL" {
                command.env_remove(&name);
            }
        }
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    /// What the command prints; it has to succeed.
    pub fn print(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", err(&output));
        out(&output)
    }

    /// The JSON lines the command prints; it has to succeed.
    pub fn json(&self, args: &[&str]) -> Vec<Value> {
        let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        self.print(&args).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Hands in an email and returns its id.
    pub fn send(&self, company: &str, to: &str, more: &[&str]) -> String {
        self.write("mail.html", "<p>hello</p>");
        let args = ["send", "--company", company, "--to", to, "--subject", "Hello", "--html", "mail.html"];
        let args: Vec<&str> = args.iter().chain(more).copied().collect();
        self.print(&args).trim().to_owned()
    }

    /// Looks at an email until it has the status.
    pub fn wait_for(&self, id: &str, status: &str) -> Value {
        let mut email = Value::Null;
        for _ in 0..LOOKS_MAX {
            email = self.json(&["show", id]).remove(0);
            if email["status"] == status {
                return email;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        panic!("waited in vain: {id} is {status}, but {email:#}");
    }
}

pub fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

pub fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Looks again and again until there is something to see.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS_MAX {
        if let Some(seen) = look() {
            return seen;
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    panic!("waited in vain: {what}");
}

/// The kinds of an email's events, in order.
pub fn kinds(email: &Value) -> Vec<String> {
    let events = email["events"].as_array().expect("a list of events");
    events.iter().map(|event| event["type"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A running server; ended with the test, whatever becomes of it.
pub struct Server {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Server {
    pub fn start(mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let stdout = lines(child.stdout.take().expect("piped"));
        let stderr = lines(child.stderr.take().expect("piped"));
        Self { child, stdout, stderr }
    }

    /// What is printed up to the line that contains `end`.
    pub fn printed_until(&self, end: &str) -> Vec<String> {
        read_until(&self.stdout, end)
    }

    /// The address in the log line that says it listens.
    pub fn address(&self) -> String {
        let lines = read_until(&self.stderr, "\"listening\"");
        let line: Value = serde_json::from_str(lines.last().expect("a line")).expect("JSON");
        line["address"].as_str().expect("an address").to_owned()
    }

    pub fn log_until(&self, end: &str) -> Vec<String> {
        read_until(&self.stderr, end)
    }

    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    /// As Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal("-INT");
    }

    fn signal(&self, signal: &str) {
        let killed = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(killed.expect("kill runs").success());
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it can be asked").is_none()
    }

    pub fn wait(&mut self) -> ExitStatus {
        let since = Instant::now();
        while since.elapsed() < END_TIMEOUT {
            if let Some(status) = self.child.try_wait().expect("it can be asked") {
                return status;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
        panic!("the server still runs after {END_TIMEOUT:?}");
    }

    /// Asks it to end and expects that it does so in good order.
    pub fn stop(mut self) {
        self.terminate();
        assert_eq!(self.wait().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail when it has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn read_until(lines: &Receiver<String>, end: &str) -> Vec<String> {
    let mut read = Vec::new();
    loop {
        let line = lines.recv_timeout(LINE_TIMEOUT);
        let line = line.unwrap_or_else(|_| panic!("no line with {end}, only: {read:#?}"));
        read.push(line);
        if read.last().is_some_and(|line| line.contains(end)) {
            return read;
        }
    }
}

/// What an address answers, by way of curl.
pub fn curl(args: &[&str]) -> String {
    let output = Command::new("curl").args(["-sS", "--noproxy", "*", "--max-time", "10"]).args(args).output();
    let output = output.expect("curl runs");
    assert!(output.status.success(), "curl {args:?}: {}", err(&output));
    out(&output)
}
