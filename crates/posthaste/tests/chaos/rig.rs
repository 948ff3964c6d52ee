//! The bench on which a run takes place: a folder with the configuration, the ledgers and the logs, a database, the
//! SMTP sink, a company and its key. The processes of the gateway are started by the test.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use testkit::small_disk::SmallDisk;

use crate::database::{Database, Engine};
use crate::peer::Files;
use crate::plan::WORKER_CONCURRENCY;
use crate::processes::{Patience, Post, Server, Sink, free_port, log_end, posthaste};
use crate::provider_ledger::Follower;

pub const COMPANY: &str = "chaos";
/// The lease of workers unless a run says otherwise.
pub const LEASE_SECS: usize = 45;
/// Enough that attempts never run out before a run ends: what is given up is given up for another reason.
const ATTEMPTS_MAX: usize = 30;

pub struct Rig {
    /// What the database is on, if not on the disk of the rest. Goes before the folder it is mounted in.
    pub disk: Option<SmallDisk>,
    folder: Folder,
    sink: Sink,
    pub database: Database,
    /// Where the processes that take emails in listen.
    pub api_addresses: Vec<SocketAddr>,
    pub key: String,
}

impl Rig {
    /// Everything that one process needs that does all, and a company with a key.
    pub async fn set_up(sink_latency_ms: usize) -> Self {
        let mut rig = Self::without_company(Engine::Sqlite, sink_latency_ms).await;
        rig.add_company().await;
        rig
    }

    /// The same with the database's file in another folder than the rest.
    pub async fn set_up_with_file_in(data: &Path, sink_latency_ms: usize) -> Self {
        let database = Database::make(Engine::Sqlite, data).await;
        let mut rig = Self::over(Folder::new(), database, 1, sink_latency_ms, LEASE_SECS).await;
        rig.add_company().await;
        rig
    }

    pub async fn without_company(engine: Engine, sink_latency_ms: usize) -> Self {
        Self::bare(engine, 1, sink_latency_ms, LEASE_SECS).await
    }

    /// The same with the database on a small disk of its own, and a reserve of the run's choice if it makes one. `None`
    /// where that cannot be had.
    pub async fn on_small_disk(
        mebibytes: u32,
        reserve_mb: Option<u32>,
        sink_latency_ms: usize,
    ) -> Option<Self> {
        let folder = Folder::new();
        let place = folder.path().join("disk");
        std::fs::create_dir(&place).expect("a folder can be made");
        let disk = SmallDisk::mount(&place, mebibytes)?;
        let database = Database::make(Engine::Sqlite, disk.path()).await;
        let mut rig = Self::over(folder, database, 1, sink_latency_ms, LEASE_SECS).await;
        rig.disk = Some(disk);
        if let Some(reserve_mb) = reserve_mb {
            let settings = settings(&rig.database.url(), &rig.sink_url(), LEASE_SECS)
                .replace("[store]", &format!("[store]\nreserve_mb = {reserve_mb}"));
            std::fs::write(rig.config(), settings).expect("the configuration can be written");
        }
        rig.add_company().await;
        Some(rig)
    }

    /// Everything for several processes on a database server, and a company with a key.
    pub async fn on_server(
        engine: Engine,
        api_processes: usize,
        sink_latency_ms: usize,
        lease_secs: usize,
    ) -> Self {
        let mut rig = Self::bare(engine, api_processes, sink_latency_ms, lease_secs).await;
        rig.add_company().await;
        rig
    }

    async fn bare(engine: Engine, api_processes: usize, sink_latency_ms: usize, lease_secs: usize) -> Self {
        let folder = Folder::new();
        let database = Database::make(engine, folder.path()).await;
        Self::over(folder, database, api_processes, sink_latency_ms, lease_secs).await
    }

    async fn over(
        folder: Folder,
        database: Database,
        api_processes: usize,
        sink_latency_ms: usize,
        lease_secs: usize,
    ) -> Self {
        let sink = Sink::start(&folder.path().join("ledger.jsonl"), sink_latency_ms).await;
        let address = |_| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let api_addresses = (0..api_processes).map(address).collect();
        let rig = Self { disk: None, folder, sink, database, api_addresses, key: String::new() };
        let settings = settings(&rig.database.url(), &rig.sink_url(), lease_secs);
        std::fs::write(rig.config(), settings).expect("the configuration can be written");
        rig
    }

    /// A configuration that differs in its database alone.
    pub fn config_for(&self, name: &str, database: &Path) -> PathBuf {
        let config = self.folder.path().join(format!("{name}.toml"));
        let url = format!("sqlite:{}", database.display());
        let settings = settings(&url, &self.sink_url(), LEASE_SECS);
        std::fs::write(&config, settings).expect("the configuration can be written");
        config
    }

    async fn add_company(&mut self) {
        self.run(&["company", "add", COMPANY, "--from", "Chaos <chaos@sender.test>"]).await;
        let printed = self.run(&["key", "create", "--company", COMPANY]).await;
        self.key = key_in(&printed).unwrap_or_else(|| panic!("no live key in: {printed}"));
    }

    /// One process that does all. A database that it cannot open at once is a fault.
    pub fn start_server(&self) -> Server {
        Server::start(Post { patience: Patience::Once, ..self.post("all", 0) })
    }

    /// The same on another configuration, in the place of the first.
    pub fn start_server_with(&self, config: PathBuf) -> Server {
        Server::start(Post { patience: Patience::Once, config, ..self.post("all", 0) })
    }

    /// The same with a limit of open files.
    pub fn start_server_with_files(&self, open_files_max: usize) -> Server {
        let post = Post { patience: Patience::Once, ..self.post("all", 0) };
        Server::start(Post { open_files_max: Some(open_files_max), ..post })
    }

    /// For what is started from now on.
    pub fn set_connections_max(&self, connections_max: usize) {
        let settings = std::fs::read_to_string(self.config()).expect("the configuration can be read");
        let settings =
            settings.replace("[limits]", &format!("[limits]\nconnections_max = {connections_max}"));
        std::fs::write(self.config(), settings).expect("the configuration can be written");
    }

    /// The process that listens on that address.
    pub fn start_api(&self, number: usize) -> Server {
        Server::start(self.post("api", number))
    }

    pub fn start_worker(&self, number: usize) -> Server {
        Server::start(self.post("worker", number))
    }

    fn post(&self, role: &'static str, number: usize) -> Post {
        Post {
            config: self.config(),
            log: self.folder.path().join(format!("{role}-{number}.log")),
            role,
            address: self.api_addresses[number % self.api_addresses.len()],
            patience: Patience::UntilAvailable,
            open_files_max: None,
        }
    }

    /// Lines of the one server's log that hold these words.
    pub fn logged(&self, words: &str) -> usize {
        let text = std::fs::read_to_string(self.post("all", 0).log).unwrap_or_default();
        text.lines().filter(|line| line.contains(words)).count()
    }

    pub fn provider_ledger(&self) -> Follower {
        Follower::of(&self.folder.path().join("ledger.jsonl"))
    }

    pub fn sink_url(&self) -> String {
        format!("smtp://{}?tls=none", self.sink.address)
    }

    /// Ends sink and database and removes the folder, or keeps it as evidence and says where it is.
    pub async fn tear_down(mut self, failed: bool) {
        self.sink.stop().await;
        self.database.end(if failed { Files::Kept } else { Files::Deleted }).await;
        if failed {
            self.folder.keep();
        }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("posthaste.toml")
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

fn settings(database: &str, sink: &str, lease_secs: usize) -> String {
    let delays = vec!["1"; ATTEMPTS_MAX - 1].join(", ");
    format!(
        r#"[store]
url = "{database}"
[worker]
concurrency = {WORKER_CONCURRENCY}
lease_secs = {lease_secs}
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
    )
}

/// Goes with the run, unless that fails.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("posthaste-chaos-").tempdir();
        Self(folder.expect("a temporary folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Keeps it as evidence, says where it is, and shows the ends of the logs.
    fn keep(&mut self) {
        self.0.disable_cleanup(true);
        println!("the ledgers, the logs and, if it is a file, the database are kept in");
        println!("{}", self.path().display());
        for log in self.logs() {
            println!("{} ends with:\n{}", log.display(), log_end(&log));
        }
    }

    fn logs(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.path()) else { return Vec::new() };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "log")).collect()
    }
}

impl Drop for Folder {
    /// A run that was given up half-way is evidence too.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.keep();
        }
    }
}

fn key_in(printed: &str) -> Option<String> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    printed.split(|character| !is_part(character)).find(|word| word.starts_with("live_")).map(str::to_owned)
}
