//! `posthaste doctor`: looks for what loses mail before it does: where the database is, whether it can be written, the
//! clock, the providers, the lease. Exit code 1 when something is wrong.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use model::email::Outgoing;
use model::{Address, CLOCK_MIN, CompanyId, Content, EmailId, Envelope, Mailbox, Secret, Timestamp};
use serde_json::json;
use store::{Store, Weakness};

use super::Session;
use super::out::duration;
use crate::config::Config;
use crate::wire::{self, Presence};

/// More than this between our clock and the file system's is no rounding.
const SKEW_MAX: Duration = Duration::from_secs(5);
/// How long the way to a provider may take to be found open.
const REACH_TIMEOUT: Duration = Duration::from_secs(20);
/// Of how many companies the senders are looked up.
const SENDERS_MAX: usize = 50;
/// File systems on which SQLite's locks or syncs cannot be trusted.
const NETWORK_FILE_SYSTEMS: &[&str] = &[
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "ceph",
    "glusterfs",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.glusterfs",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fine,
    Warning,
    Wrong,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
        }
    }
}

struct Finding {
    about: String,
    verdict: Verdict,
    text: String,
}

fn finding(about: impl Into<String>, verdict: Verdict, text: impl Into<String>) -> Finding {
    Finding { about: about.into(), verdict, text: text.into() }
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also send a test email to this address through every provider of the default route
    #[arg(long, value_name = "ADDRESS", value_parser = super::parse_address)]
    send_to: Option<Address>,
    /// The sender of the test email [default: that of the first company that has one]
    #[arg(long, value_name = "MAILBOX", value_parser = super::parse_mailbox, requires = "send_to")]
    from: Option<Mailbox>,
}

pub async fn run(session: &Session, args: &Args) -> anyhow::Result<()> {
    let findings = examine(session, args).await;
    for Finding { about, verdict, text } in &findings {
        let json = json!({ "about": about, "verdict": verdict.as_str(), "text": text });
        session.out.result(&json, format!("{:<8} {about:<16} {text}", verdict.as_str()))?;
    }
    let wrong = findings.iter().filter(|finding| finding.verdict == Verdict::Wrong).count();
    if wrong > 0 {
        bail!("{wrong} of {} checks found something wrong", findings.len());
    }
    Ok(())
}

async fn examine(session: &Session, args: &Args) -> Vec<Finding> {
    let config = &session.loaded.config;
    let mut findings: Vec<Finding> = session
        .loaded
        .warnings
        .iter()
        .map(|warning| finding("config", Verdict::Warning, warning.to_string()))
        .collect();
    if findings.is_empty() {
        findings.push(finding("config", Verdict::Fine, "no complaints"));
    }
    findings.push(clock(session.now()));
    match wire::database_file(config) {
        Some(database) => findings.extend(file(session, database).await),
        None => findings.extend(server(session).await),
    }
    findings.push(lease(config.lease));
    findings.push(guard(config));
    findings.push(alerts(config));
    let senders = senders(session).await;
    let addresses: Vec<Address> = senders.iter().map(|sender| sender.address.clone()).collect();
    for name in &config.default_route {
        findings.push(provider(config, name, &addresses).await);
        if let Some(to) = &args.send_to {
            findings.push(test_email(session, name, to, args.from.as_ref().or(senders.first())).await);
        }
    }
    findings
}

/// Whom companies send as, as far as the store can say.
async fn senders(session: &Session) -> Vec<Mailbox> {
    let config = &session.loaded.config;
    if wire::database_file(config).is_some_and(|database| !database.exists()) {
        return Vec::new();
    }
    let Ok(store) = wire::open_store(config, Presence::MustExist, session.patience).await else {
        return Vec::new();
    };
    let companies = store.companies().await.unwrap_or_default();
    store.close().await;
    companies.into_iter().filter_map(|company| company.settings.from).take(SENDERS_MAX).collect()
}

/// One email straight through the provider; it is in no store and counts nowhere.
async fn test_email(session: &Session, name: &str, to: &Address, from: Option<&Mailbox>) -> Finding {
    let about = format!("test via {name}");
    let Some(from) = from else {
        return finding(about, Verdict::Wrong, "no company has a sender; give one with --from");
    };
    let Some(choice) = session.loaded.config.providers.get(name) else {
        return finding(about, Verdict::Wrong, "it is on the route but not configured");
    };
    let provider = match wire::provider(choice) {
        Ok(provider) => provider,
        Err(error) => return finding(about, Verdict::Wrong, format!("{error:#}")),
    };
    match provider.send(&a_test_email(session.now(), to, from)).await {
        Ok(receipt) => {
            let id = receipt.message_id.unwrap_or_else(|| "no id".to_owned());
            finding(about, Verdict::Fine, format!("sent to {to}: {id}"))
        }
        Err(error) => finding(about, Verdict::Wrong, error.to_string()),
    }
}

fn a_test_email(now: Timestamp, to: &Address, from: &Mailbox) -> Outgoing {
    let html = "<p>This is a test email of Posthaste. If you can read it, the provider works.</p>";
    Outgoing {
        id: EmailId::new(now),
        company: CompanyId::new(now),
        attempt: 1,
        series: 0,
        is_last_attempt: true,
        created_at: now,
        from: from.clone(),
        envelope: Envelope {
            from: Some(from.clone()),
            to: to.clone(),
            cc: vec![],
            bcc: vec![],
            reply_to: None,
            subject: Secret::new("Posthaste test email".to_owned()),
            headers: vec![],
            tags: vec![],
        },
        content: Content::Composed { html: html.to_owned(), text: None, attachments: vec![] },
    }
}

/// A database that is a file on this machine.
async fn file(session: &Session, database: &Path) -> Vec<Finding> {
    let directory = directory_of(database);
    let mut findings = vec![
        writable(&directory),
        file_system(file_system_at(&directory).as_deref()),
        clock_of_disk(session.now(), probe(&directory).ok().flatten()),
        private(database),
    ];
    if database.exists() {
        findings.extend(store(session).await);
        // Only now: a copy made by VACUUM INTO has no log until it is opened for the first time.
        findings.push(journal(database));
    } else {
        let text = format!("{} is not there yet; the first start makes it", database.display());
        findings.push(finding("store", Verdict::Warning, text));
    }
    findings
}

/// A database on a server, which several machines may use.
async fn server(session: &Session) -> Vec<Finding> {
    let mut findings = store(session).await;
    findings.push(match wire::documents(&session.loaded.config) {
        Ok(Some(_)) => finding("documents", Verdict::Fine, "CPF and CNPJ are taken and sealed"),
        Ok(None) => finding(
            "documents",
            Verdict::Warning,
            "emails with a CPF or CNPJ are refused; set privacy.hash_key and privacy.seal_keys, the same everywhere",
        ),
        Err(error) => finding("documents", Verdict::Wrong, format!("{error:#}")),
    });
    findings
}

fn directory_of(database: &Path) -> PathBuf {
    match database.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// A file that is ours alone and gone afterwards.
fn probe(directory: &Path) -> std::io::Result<Option<Timestamp>> {
    let path = directory.join(format!(".posthaste-doctor-{}", std::process::id()));
    let written = std::fs::File::create_new(&path).and_then(|mut file| {
        file.write_all(b"probe")?;
        file.sync_all()?;
        file.metadata()?.modified()
    });
    let removed = std::fs::remove_file(&path);
    let modified = written?;
    removed?;
    Ok(modified.duration_since(std::time::UNIX_EPOCH).ok().map(|since| Timestamp::from_millis(0).plus(since)))
}

fn writable(directory: &Path) -> Finding {
    let shown = directory.display();
    match probe(directory) {
        Ok(_) => finding("directory", Verdict::Fine, format!("{shown} can be written")),
        Err(error) => finding("directory", Verdict::Wrong, format!("{shown} cannot be written: {error}")),
    }
}

/// The complaint about a database on a network file system. A server says it at its start, too.
pub fn on_network(database: &Path) -> Option<String> {
    network_complaint(&file_system_at(&directory_of(database))?)
}

fn network_complaint(kind: &str) -> Option<String> {
    NETWORK_FILE_SYSTEMS
        .contains(&kind)
        .then(|| format!("{kind} is a network file system, on which SQLite loses data; use a local disk"))
}

fn file_system_at(directory: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let real = directory.canonicalize().ok()?;
    file_system_of(&mounts, &real).map(str::to_owned)
}

/// What a database on a file system of this kind has to expect; none where it cannot be found out.
fn file_system(kind: Option<&str>) -> Finding {
    if let Some(text) = kind.and_then(network_complaint) {
        return finding("file system", Verdict::Wrong, text);
    }
    match kind {
        Some("tmpfs" | "ramfs") => finding(
            "file system",
            Verdict::Warning,
            "kept in memory: everything is gone after a restart of the machine",
        ),
        Some(kind) => finding("file system", Verdict::Fine, format!("{kind}, local")),
        None => finding(
            "file system",
            Verdict::Warning,
            "its kind cannot be found out; make sure it is a local disk",
        ),
    }
}

/// The kind of the file system with the longest mount point above the path; of equals the last one covers the rest.
fn file_system_of<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (_, Some(point), Some(kind)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let point = point.replace("\\040", " ");
        if path.starts_with(&point) && best.is_none_or(|(length, _)| point.len() >= length) {
            best = Some((point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind)
}

fn clock(now: Timestamp) -> Finding {
    if now < CLOCK_MIN {
        return finding(
            "clock",
            Verdict::Wrong,
            format!(
                "it shows {now}, so it was never set; nothing is taken in and nothing expires until it is"
            ),
        );
    }
    finding("clock", Verdict::Fine, format!("it shows {now}"))
}

/// `written_at` is what the disk says of a file that was written now.
fn clock_of_disk(now: Timestamp, written_at: Option<Timestamp>) -> Finding {
    let skew = written_at.map_or(Duration::ZERO, |at| at.since(now).max(now.since(at)));
    if skew > SKEW_MAX {
        let text = format!("it is {} away from ours; set both by NTP", duration(skew));
        return finding("clock of disk", Verdict::Wrong, text);
    }
    finding("clock of disk", Verdict::Fine, "it agrees with ours")
}

/// Whether others on this machine can read the mail.
fn private(database: &Path) -> Finding {
    let mode = match std::fs::metadata(database) {
        Ok(metadata) => metadata.permissions().mode() & 0o777,
        Err(_) => return finding("privacy", Verdict::Fine, "there is no database yet"),
    };
    if mode & 0o077 == 0 {
        return finding("privacy", Verdict::Fine, "only its owner can read the database");
    }
    let text =
        format!("others can read the database (mode {mode:04o}); run: chmod 600 {}", database.display());
    finding("privacy", Verdict::Warning, text)
}

/// The two bytes of SQLite's header that say how the file is written: 2 is the write-ahead log. That a commit waits for
/// the disk is no property of the file; the store reads it back from its own connection when it is opened.
fn journal(database: &Path) -> Finding {
    let mut header = [0_u8; 20];
    match std::fs::File::open(database).and_then(|mut file| file.read_exact(&mut header)) {
        Err(_) => finding("journal", Verdict::Fine, "there is no database yet"),
        Ok(()) if header[18..20] == [2, 2] => finding("journal", Verdict::Fine, "write-ahead log"),
        Ok(()) => finding(
            "journal",
            Verdict::Wrong,
            "the database is not in WAL mode; something else has changed it",
        ),
    }
}

async fn store(session: &Session) -> Vec<Finding> {
    let config = &session.loaded.config;
    let store = match wire::open_store(config, Presence::MustExist, session.patience).await {
        Ok(store) => store,
        Err(error) => return vec![finding("store", Verdict::Wrong, format!("{error:#}"))],
    };
    let mut findings = vec![
        check_store(&*store).await,
        check_environment(config, &*store).await,
        check_queue(session, &*store).await,
    ];
    findings.extend(check_settings(&*store).await);
    store.close().await;
    findings
}

async fn check_settings(store: &dyn Store) -> Vec<Finding> {
    match store.weaknesses().await {
        Ok(weaknesses) => settings(weaknesses),
        Err(error) => vec![finding("settings", Verdict::Wrong, error.to_string())],
    }
}

fn settings(weaknesses: Vec<Weakness>) -> Vec<Finding> {
    if weaknesses.is_empty() {
        return vec![finding("settings", Verdict::Fine, "none that loses data")];
    }
    let found = |weakness: Weakness| {
        let verdict = if weakness.loses_data { Verdict::Wrong } else { Verdict::Warning };
        finding(weakness.setting, verdict, weakness.text)
    };
    weaknesses.into_iter().map(found).collect()
}

async fn check_store(store: &dyn Store) -> Finding {
    match store.check().await {
        Ok(()) => finding("store", Verdict::Fine, "it can be written and read"),
        Err(error) => finding("store", Verdict::Wrong, error.to_string()),
    }
}

async fn check_environment(config: &Config, store: &dyn Store) -> Finding {
    match wire::check_environment(config, store).await {
        Ok(()) => finding("environment", Verdict::Fine, config.environment.clone()),
        Err(error) => finding("environment", Verdict::Wrong, error.to_string()),
    }
}

async fn check_queue(session: &Session, store: &dyn Store) -> Finding {
    let now = session.now();
    let stats = match store.stats(now).await {
        Ok(stats) => stats,
        Err(error) => return finding("queue", Verdict::Wrong, error.to_string()),
    };
    let oldest = stats.oldest_due_at.map(|at| now.since(at)).unwrap_or_default();
    let text = format!(
        "{} waiting, {} dead letters, longest due for {}",
        stats.waiting(),
        stats.dead_letters,
        duration(oldest)
    );
    let is_stuck = oldest > Duration::from_secs(60);
    finding("queue", if is_stuck { Verdict::Warning } else { Verdict::Fine }, text)
}

fn lease(lease: Duration) -> Finding {
    let timeout = provider::SEND_TIMEOUT;
    let text = format!("{} for a call of at most {}", duration(lease), duration(timeout));
    // The configuration refuses this already; said here because it is what keeps mail from going out twice.
    let verdict = if lease > timeout { Verdict::Fine } else { Verdict::Wrong };
    finding("lease", verdict, text)
}

fn only_captures(config: &Config) -> bool {
    config.default_route.iter().all(|name| name == gateway::CAPTURE)
}

fn guard(config: &Config) -> Finding {
    let text = match &config.guard {
        gateway::EnvironmentGuard::Open if only_captures(config) => {
            let text =
                "no provider is configured: all mail is captured, none is sent; add one under [providers]";
            return finding("guard", Verdict::Warning, text);
        }
        gateway::EnvironmentGuard::Open => "none: mail goes where its route leads".to_owned(),
        gateway::EnvironmentGuard::Capture => "nothing leaves: all mail is captured".to_owned(),
        gateway::EnvironmentGuard::Redirect(address) => format!("all mail goes to {address}"),
        gateway::EnvironmentGuard::Allow(list) => {
            format!("mail leaves for {} listed addresses and domains only", list.len())
        }
    };
    finding("guard", Verdict::Fine, text)
}

fn alerts(config: &Config) -> Finding {
    let text = match &config.admin_email {
        Some(address) => {
            format!("go to {address} where a company names nobody, in {}", config.alert_language)
        }
        None => {
            "go to the admins that companies name; others are in the log and in GET /v1/alerts".to_owned()
        }
    };
    finding("alerts", Verdict::Fine, text)
}

async fn provider(config: &Config, name: &str, senders: &[Address]) -> Finding {
    let about = format!("provider {name}");
    let Some(choice) = config.providers.get(name) else {
        return finding(about, Verdict::Wrong, "it is on the route but not configured");
    };
    match tokio::time::timeout(REACH_TIMEOUT, wire::reach(choice, senders)).await {
        Ok(Ok(text)) => finding(about, Verdict::Fine, text),
        Ok(Err(error)) => finding(about, Verdict::Wrong, format!("{error:#}")),
        Err(_) => finding(about, Verdict::Wrong, format!("no connection within {}", duration(REACH_TIMEOUT))),
    }
}

#[cfg(test)]
mod tests;
