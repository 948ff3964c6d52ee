//! The bench on which a run takes place: a folder with the database, the configuration and the ledgers, the SMTP
//! sink, a company and its key. The server itself is started by the test.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tempfile::TempDir;

use crate::database::Database;
use crate::plan::WORKER_CONCURRENCY;
use crate::processes::{Post, Server, Sink, free_port, log_end, posthaste};
use crate::provider_ledger::Follower;

pub const COMPANY: &str = "chaos";
/// Enough that attempts never run out before a run ends: what is given up is given up for another reason.
const ATTEMPTS_MAX: usize = 30;

pub struct Rig {
    folder: TempDir,
    sink: Sink,
    pub database: Database,
    /// Where the processes that take emails in listen.
    pub api_addresses: Vec<SocketAddr>,
    pub key: String,
}

impl Rig {
    /// Everything a server needs, and a company with a key.
    pub async fn set_up(sink_latency_ms: usize) -> Self {
        let mut rig = Self::without_company(sink_latency_ms).await;
        rig.run(&["company", "add", COMPANY, "--from", "Chaos <chaos@sender.test>"]).await;
        let printed = rig.run(&["key", "create", "--company", COMPANY]).await;
        rig.key = key_in(&printed).unwrap_or_else(|| panic!("no live key in: {printed}"));
        rig
    }

    pub async fn without_company(sink_latency_ms: usize) -> Self {
        let folder =
            tempfile::Builder::new().prefix("posthaste-chaos-").tempdir().expect("a temporary folder");
        let sink = Sink::start(&folder.path().join("ledger.jsonl"), sink_latency_ms).await;
        let database = Database::sqlite(folder.path());
        let api_addresses = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))];
        let rig = Self { folder, sink, database, api_addresses, key: String::new() };
        std::fs::write(rig.config(), rig.settings()).expect("the configuration can be written");
        rig
    }

    pub fn start_server(&self) -> Server {
        Server::start(Post {
            config: self.config(),
            log: self.log(),
            role: "all",
            address: self.api_addresses[0],
        })
    }

    pub fn provider_ledger(&self) -> Follower {
        Follower::of(&self.folder.path().join("ledger.jsonl"))
    }

    pub fn sink_url(&self) -> String {
        format!("smtp://{}?tls=none", self.sink.address)
    }

    /// Ends the sink and removes the folder, or keeps it as evidence and says where it is.
    pub async fn tear_down(mut self, failed: bool) {
        let log = self.log();
        self.sink.stop().await;
        if failed {
            self.folder.disable_cleanup(true);
            println!("the database, the ledgers and the log are kept in {}", self.folder.path().display());
            println!("the log ends with:\n{}", log_end(&log));
        }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("posthaste.toml")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    fn settings(&self) -> String {
        let delays = vec!["1"; ATTEMPTS_MAX - 1].join(", ");
        format!(
            r#"[store]
url = "{database}"
[worker]
concurrency = {WORKER_CONCURRENCY}
[providers.sink]
kind = "smtp"
url = "{sink}"
[routes]
default = ["sink"]
[retry.fast]
delays_secs = [{delays}]
max_attempts = {ATTEMPTS_MAX}
[limits]
requests_per_sec = 100000
[log]
format = "json"
level = "warn"
"#,
            database = self.database.url(),
            sink = self.sink_url(),
        )
    }

    async fn run(&self, arguments: &[&str]) -> String {
        let output =
            posthaste(&self.config()).args(arguments).output().await.expect("the program can be run");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "posthaste {}: {complaint}{printed}", arguments.join(" "));
        printed
    }
}

fn key_in(printed: &str) -> Option<String> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    printed.split(|character| !is_part(character)).find(|word| word.starts_with("live_")).map(str::to_owned)
}
