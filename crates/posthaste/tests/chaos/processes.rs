//! The processes of a run: the SMTP sink and the server under test. Each is ended by its own id, and none outlives
//! the run, however that ends.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rand::Rng as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// How long a server may take to end after SIGTERM: 35 seconds on a machine that is not busy.
pub const TERMINATION_MAX: Duration = Duration::from_secs(60);
/// A process that was killed is gone at once; this is for a machine under load.
const DEATH_MAX: Duration = Duration::from_secs(10);
const SINK_START_MAX: Duration = Duration::from_secs(30);
const START_MAX: Duration = Duration::from_secs(30);
/// Below the range from which the kernel takes ports for outgoing connections. A client that knocks on a port of
/// that range while nobody listens can be given the very same port and end up talking to itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

const PROGRAM: &str = env!("CARGO_BIN_EXE_posthaste");

/// The SMTP server that takes everything and keeps the provider's ledger.
pub struct Sink {
    child: Child,
    pub address: SocketAddr,
}

impl Sink {
    pub async fn start(ledger: &Path, latency_ms: usize) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/smtp_sink.py");
        let mut child = Command::new(python())
            .arg(script)
            .arg("--ledger")
            .arg(ledger)
            .args(["--latency-ms", &latency_ms.to_string(), "--until-stdin-closes"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("python3 can be started");
        let mut first_line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let read = tokio::time::timeout(SINK_START_MAX, stdout.read_line(&mut first_line)).await;
        read.expect("the SMTP sink starts in time").expect("the SMTP sink can be read");
        let address = first_line.trim().strip_prefix("listening ").and_then(|text| text.parse().ok());
        let Some(address) = address else {
            let mut stderr = String::new();
            let mut pipe = child.stderr.take().expect("stderr is a pipe");
            let _ = tokio::time::timeout(DEATH_MAX, pipe.read_to_string(&mut stderr)).await;
            assert!(
                !stderr.contains("aiosmtpd"),
                "the SMTP sink needs the Python package aiosmtpd: run ./test"
            );
            panic!("the SMTP sink did not start: {stderr}");
        };
        Self { child, address }
    }

    /// Closing its stdin asks the sink to end.
    pub async fn stop(mut self) {
        drop(self.child.stdin.take());
        let ended = tokio::time::timeout(DEATH_MAX, self.child.wait()).await;
        ended.expect("the SMTP sink ends in time").expect("the SMTP sink can be waited for");
    }
}

pub fn python() -> String {
    std::env::var("POSTHASTE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

/// The gateway's own program, without settings from the environment of the test.
pub fn posthaste(config: &Path) -> Command {
    without_settings(Command::new(PROGRAM), config)
}

/// The same, allowed to open so many files at once. `prlimit` becomes the program, so their ids are one.
fn posthaste_with_files(config: &Path, open_files_max: usize) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={open_files_max}:{open_files_max}")).arg(PROGRAM);
    without_settings(command, config)
}

fn without_settings(mut command: Command, config: &Path) -> Command {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("POSTHASTE_") || name == "ADMIN_EMAIL" {
            command.env_remove(&*name);
        }
    }
    command.arg("--config").arg(config).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// How a process under test is started, every time anew.
#[derive(Debug, Clone)]
pub struct Post {
    pub config: PathBuf,
    pub log: PathBuf,
    /// As the command line says it.
    pub role: &'static str,
    /// Where it listens, if its role does.
    pub address: SocketAddr,
    pub patience: Patience,
    /// If not as many as the test itself may.
    pub open_files_max: Option<usize>,
}

/// What a process does that finds no database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    Once,
    UntilAvailable,
}

impl Post {
    fn spawn(&self) -> Child {
        let log = File::options().create(true).append(true).open(&self.log).expect("the log can be written");
        let log_too = log.try_clone().expect("the log can be written twice");
        let mut command = match self.open_files_max {
            Some(most) => posthaste_with_files(&self.config, most),
            None => posthaste(&self.config),
        };
        if self.patience == Patience::UntilAvailable {
            command.arg("--wait");
        }
        command
            .env("POSTHASTE_LISTEN", self.address.to_string())
            .args(["serve", "--role", self.role])
            .stdout(log)
            .stderr(log_too)
            .spawn()
            .expect("the server can be started")
    }
}

/// A server under test; it always listens on the same port, whichever process that is.
pub struct Server {
    post: Post,
    child: Child,
}

impl Server {
    /// Returns when the process exists, not when it listens.
    pub fn start(post: Post) -> Self {
        Self { child: post.spawn(), post }
    }

    /// The process dies as if the machine had taken it, and the next one starts at once.
    pub async fn kill_and_restart(&mut self) {
        self.kill().await;
        self.restart();
    }

    pub async fn kill(&mut self) {
        self.assert_runs();
        self.child.start_kill().expect("the server can be killed");
        let death = tokio::time::timeout(DEATH_MAX, self.child.wait()).await;
        death.expect("the server dies").expect("the server can be waited for");
    }

    /// Stops the process in its tracks. When this returns all its threads stand still, also those that were within a
    /// sync: nothing is written and no answer leaves after that.
    pub async fn freeze(&mut self) {
        self.assert_runs();
        signal(&self.child, "STOP").await;
        let process = self.child.id().expect("it runs");
        let deadline = Instant::now() + DEATH_MAX;
        while !stands_still(process) {
            assert!(Instant::now() < deadline, "a stopped process stands still within {DEATH_MAX:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Asks the server to end and waits as long as it may take.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.await_ears().await;
        signal(&self.child, "TERM").await;
        self.ended().await
    }

    /// Asks twice, which means at once.
    pub async fn terminate_twice(&mut self, pause: Duration) -> ExitStatus {
        self.await_ears().await;
        signal(&self.child, "TERM").await;
        tokio::time::sleep(pause).await;
        signal(&self.child, "TERM").await;
        self.ended().await
    }

    /// A process that was started a moment ago may not listen for SIGTERM yet, and would die of it.
    async fn await_ears(&mut self) {
        let deadline = Instant::now() + START_MAX;
        while !listens_for_sigterm(self.id()) {
            self.assert_runs();
            assert!(Instant::now() < deadline, "a server listens for signals within {START_MAX:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    pub fn restart(&mut self) {
        self.child = self.post.spawn();
    }

    async fn ended(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(TERMINATION_MAX, self.child.wait()).await;
        let Ok(status) = ended else { panic!("the server still ran {TERMINATION_MAX:?} after SIGTERM") };
        status.expect("the server can be waited for")
    }

    /// A server that ends by itself would make every count that follows worthless.
    pub fn assert_runs(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            let Post { role, log, .. } = &self.post;
            panic!("a server ({role}) ended by itself ({status}); its log ends with:\n{}", log_end(log));
        }
    }
}

/// Whether each thread of the process is stopped; one that waits for the disk goes on until it has its answer.
fn stands_still(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process exists");
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let state = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
        // The state follows the name, which stands in parentheses.
        state.is_ok_and(|text| text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't'])))
    };
    threads.into_iter().all(is_stopped)
}

/// The kernel keeps the signals that a process handles itself as a mask in hexadecimal.
fn listens_for_sigterm(process: u32) -> bool {
    const SIGTERM: u32 = 15;
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (SIGTERM - 1)) != 0)
}

/// Sends a signal to a process that we started.
pub async fn signal(child: &Child, name: &str) {
    let Some(id) = child.id() else { return };
    let sent = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &id.to_string()]).status().await;
    assert!(sent.is_ok_and(|status| status.success()), "SIG{name} can be sent to process {id}");
}

pub fn free_port() -> u16 {
    let mut dice = rand::rng();
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    (0..1000).map(|_| dice.random_range(PORTS)).find(is_free).expect("one of many ports is free")
}

/// The last lines of a log, for a person.
pub fn log_end(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
