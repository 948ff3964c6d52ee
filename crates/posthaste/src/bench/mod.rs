//! `posthaste bench`: how fast this machine takes and sends emails, measured on the real server over HTTP.
//!
//! The server is this program as processes of its own; `load` posts to it. Five figures: accepting alone, draining a
//! backlog, both at once (accept to SENT), latency at half that load, and latency on an idle system. Nothing leaves
//! the machine: mail goes to the capture provider, which can be told to take its time (`--latency-ms`).
//!
//! Without `--store` every figure has a fresh SQLite file; otherwise all figures share the database that is named. On SQLite
//! there is one process, on a database server API and worker are processes of their own. `history` fills a store
//! beforehand.

mod history;
mod load;
mod server;

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use model::{
    Clock as _, Company, CompanyId, CompanySettings, EventKind, KeyMode, Mailbox, Scope, Status, SystemClock,
};
use serde_json::{Value, json};
use store::{EmailFilter, Store};
use tokio::sync::Mutex;

use crate::cli::Usage as WrongUsage;
use crate::cli::out::Out;
use crate::shutdown;
use crate::wire::{self, choices::StoreChoice};
use load::{Answers, Load};
use server::{Server, Usage};

/// How often the progress of sending is looked at, and how long it may stand still.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const STANDSTILL_MAX: Duration = Duration::from_secs(60);
/// How long half of the load is kept up, unless that takes more than three times the emails: in a few seconds one sync of a
/// busy disk decides about the slowest hundredth.
const HALF_LOAD_SECS: f64 = 30.0;
/// Emails sent one at a time to an idle system.
const IDLE_EMAILS: u64 = 20;
const IDLE_PAUSE: Duration = Duration::from_millis(200);
/// How companies made here are called, so that a database in use is told from one that was measured before.
const COMPANY_PREFIX: &str = "bench-";

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// How many emails each figure is measured with, up to three times as many at half load
    #[arg(long, default_value_t = 20_000)]
    emails: u64,
    /// How many connections post at once
    #[arg(long, default_value_t = 64)]
    connections: u32,
    /// The size of the html, in bytes
    #[arg(long, default_value_t = 10 * 1024)]
    html_bytes: usize,
    /// Requests as applications make them: each names a recipient, has tags, an id of the application's and an
    /// Idempotency-Key
    #[arg(long)]
    detailed: bool,
    /// How long the provider takes to answer
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
    /// Send through an SES v2 endpoint on this machine, such as http://127.0.0.1:4566, instead of capturing
    #[arg(long, value_name = "URL", conflicts_with = "latency_ms")]
    ses_endpoint: Option<url::Url>,
    /// How many emails a worker holds at once
    #[arg(long, default_value_t = 512)]
    concurrency: u32,
    /// How many emails of another company are waiting meanwhile
    #[arg(long, default_value_t = 0)]
    waiting: u64,
    /// How many emails were sent before
    #[arg(long, default_value_t = 0)]
    finished: u64,
    /// Only write those that wait and those that were sent, and measure nothing: the database can settle before another
    /// run measures it
    #[arg(long)]
    fill: bool,
}

/// One line of the result.
struct Figure {
    name: &'static str,
    value: f64,
    unit: &'static str,
}

/// `url` names the database to measure on; without it a file is made for every figure.
pub async fn run(args: &Args, url: Option<&str>, out: Out) -> anyhow::Result<()> {
    refuse_far_endpoint(args)?;
    if args.fill {
        return fill(args, url, out).await;
    }
    // Its servers end with what measures them, also when a signal ends that.
    let ended = shutdown::on_signal()?;
    let figures = tokio::select! {
        figures = measure(args, url) => figures?,
        () = ended.cancelled() => bail!("ended before everything was measured"),
    };
    print(args, &figures, out)
}

async fn measure(args: &Args, url: Option<&str>) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let accepting = accept_alone(args, url, &mut figures).await?;
    let through = accept_to_sent(args, url, &mut figures).await?;
    half_load(args, url, accepting.min(through) / 2.0, &mut figures).await?;
    idle(args, url, &mut figures).await?;
    Ok(figures)
}

async fn fill(args: &Args, url: Option<&str>, out: Out) -> anyhow::Result<()> {
    if url.is_none() {
        bail!(WrongUsage("--fill: name the database to fill with --store".to_owned()));
    }
    let bench = Bench::prepare(args, url).await?;
    history::fill(&*bench.store().await?, args.waiting, args.finished, args.html_bytes).await?;
    bench.leave_store().await;
    if out.is_json() {
        out.json(&json!({"waiting": args.waiting, "finished": args.finished}))?;
        return Ok(());
    }
    out.line(format_args!("{} emails wait, {} were sent", args.waiting, args.finished))?;
    Ok(())
}

fn print(args: &Args, figures: &[Figure], out: Out) -> anyhow::Result<()> {
    if out.is_json() {
        let lines: Vec<Value> = figures
            .iter()
            .map(|figure| json!({"name": figure.name, "value": figure.value, "unit": figure.unit}))
            .collect();
        out.json(&json!({
            "emails": args.emails,
            "latencyMs": args.latency_ms,
            "detailed": args.detailed,
            "waiting": args.waiting,
            "finished": args.finished,
            "figures": lines,
        }))?;
        return Ok(());
    }
    let provider = match &args.ses_endpoint {
        Some(endpoint) => format!("sent through SES at {endpoint}"),
        None => format!("provider answers after {} ms", args.latency_ms),
    };
    out.line(format_args!(
        "{} emails of {} bytes of html{}, {} connections, {provider}",
        args.emails,
        args.html_bytes,
        if args.detailed { ", recipient, tags, ids and key" } else { "" },
        args.connections
    ))?;
    if args.waiting + args.finished > 0 {
        out.line(format_args!("beside {} waiting and {} finished emails", args.waiting, args.finished))?;
    }
    for figure in figures {
        out.line(format_args!("{:<44} {:>10.2} {}", figure.name, figure.value, figure.unit))?;
    }
    Ok(())
}

/// Accepting with no worker about, then a worker that drains what was accepted.
async fn accept_alone(args: &Args, url: Option<&str>, figures: &mut Vec<Figure>) -> anyhow::Result<f64> {
    let bench = Bench::prepare(args, url).await?;
    history::fill(&*bench.store().await?, args.waiting, args.finished, args.html_bytes).await?;
    let sent_before = bench.sent().await?;
    let fleet = Fleet::start(&bench, &["api"]).await?;
    let answers = bench.post(args, &fleet, args.emails, None).await?;
    let usage = fleet.usage()?;
    fleet.stop().await?;
    figures.push(Figure { name: "accept alone", value: answers.per_sec(), unit: "emails/s" });
    figures.push(Figure { name: "accept alone, p50", value: answers.quantile_ms(0.5), unit: "ms" });
    figures.push(Figure { name: "accept alone, p99", value: answers.quantile_ms(0.99), unit: "ms" });
    push_usage(figures, ["accept alone, cpu", "accept alone, peak memory"], usage, args.emails);

    bench.leave_store().await;
    let start = Instant::now();
    let fleet = Fleet::start(&bench, &["worker"]).await?;
    bench.wait_for_sent(sent_before + args.emails).await?;
    let elapsed = start.elapsed();
    let usage = fleet.usage()?;
    fleet.stop().await?;
    let drained = args.emails as f64 / elapsed.as_secs_f64();
    figures.push(Figure { name: "drain a backlog", value: drained, unit: "emails/s" });
    push_usage(figures, ["drain a backlog, cpu", "drain a backlog, peak memory"], usage, args.emails);
    Ok(answers.per_sec())
}

/// Accepting and sending at once. Beside a backlog of another company, its emails count as well: both companies share
/// the workers.
async fn accept_to_sent(args: &Args, url: Option<&str>, figures: &mut Vec<Figure>) -> anyhow::Result<f64> {
    let bench = Bench::prepare(args, url).await?;
    let sent_before = bench.sent().await?;
    let fleet = Fleet::start(&bench, bench.roles()).await?;
    let start = Instant::now();
    let answers = bench.post(args, &fleet, args.emails, None).await?;
    let sent = bench.wait_for_sent(sent_before + args.emails).await? - sent_before;
    let per_sec = sent as f64 / start.elapsed().as_secs_f64();
    let usage = fleet.usage()?;
    fleet.stop().await?;
    figures.push(Figure { name: "accept to SENT", value: per_sec, unit: "emails/s" });
    figures.push(Figure { name: "accept while sending", value: answers.per_sec(), unit: "emails/s" });
    push_usage(figures, ["accept to SENT, cpu", "accept to SENT, peak memory"], usage, sent);
    Ok(per_sec)
}

async fn half_load(
    args: &Args,
    url: Option<&str>,
    rate: f64,
    figures: &mut Vec<Figure>,
) -> anyhow::Result<()> {
    let bench = Bench::prepare(args, url).await?;
    let sent_before = bench.sent().await?;
    let fleet = Fleet::start(&bench, bench.roles()).await?;
    let count = ((rate * HALF_LOAD_SECS) as u64).clamp(1, args.emails.saturating_mul(3).max(1));
    // The first second of a process is its start: connections are made and statements are planned.
    let first = (rate as u64).clamp(1, count);
    bench.post(args, &fleet, first, Some(rate)).await?;
    let answers = bench.post(args, &fleet, count, Some(rate)).await?;
    bench.wait_for_sent(sent_before + first + count).await?;
    fleet.stop().await?;
    figures.push(Figure { name: "half load, rate", value: rate, unit: "emails/s" });
    figures.push(Figure { name: "half load, accept p50", value: answers.quantile_ms(0.5), unit: "ms" });
    figures.push(Figure { name: "half load, accept p99", value: answers.quantile_ms(0.99), unit: "ms" });
    Ok(())
}

/// One email at a time: from acceptance to the provider's being called, by the email's own history.
async fn idle(args: &Args, url: Option<&str>, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let bench = Bench::prepare(args, url).await?;
    let sent_before = bench.sent().await?;
    let fleet = Fleet::start(&bench, bench.roles()).await?;
    let before = fleet.usage()?;
    for _ in 0..IDLE_EMAILS {
        bench.post(args, &fleet, 1, None).await?;
        tokio::time::sleep(IDLE_PAUSE).await;
    }
    bench.wait_for_sent(sent_before + IDLE_EMAILS).await?;
    let mut delays = bench.delays_to_provider().await?;
    delays.sort_unstable();
    let usage = fleet.usage()?;
    fleet.stop().await?;
    let middle = delays.get(delays.len() / 2).copied().unwrap_or_default();
    let worst = delays.last().copied().unwrap_or_default();
    figures.push(Figure { name: "idle, accept to provider call, p50", value: ms(middle), unit: "ms" });
    figures.push(Figure { name: "idle, accept to provider call, worst", value: ms(worst), unit: "ms" });
    let share = (usage.cpu_secs - before.cpu_secs) / (IDLE_PAUSE * IDLE_EMAILS as u32).as_secs_f64();
    figures.push(Figure { name: "idle, cpu", value: share * 100.0, unit: "% of a core" });
    figures.push(Figure { name: "idle, memory", value: usage.peak_mb, unit: "MB" });
    Ok(())
}

fn push_usage(figures: &mut Vec<Figure>, [cpu, memory]: [&'static str; 2], usage: Usage, emails: u64) {
    let per_thousand = usage.cpu_secs * 1000.0 / emails as f64;
    figures.push(Figure { name: cpu, value: per_thousand, unit: "s per 1,000 emails" });
    figures.push(Figure { name: memory, value: usage.peak_mb, unit: "MB" });
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The processes that are measured together.
struct Fleet(Vec<Server>);

impl Fleet {
    async fn start(bench: &Bench, roles: &[&str]) -> anyhow::Result<Self> {
        let mut servers = Vec::new();
        for role in roles {
            servers.push(Server::start(bench.folder.path(), role).await?);
        }
        Ok(Self(servers))
    }

    /// Of all processes together.
    fn usage(&self) -> anyhow::Result<Usage> {
        let mut sum = Usage { cpu_secs: 0.0, peak_mb: 0.0 };
        for server in &self.0 {
            let usage = server.usage()?;
            sum.cpu_secs += usage.cpu_secs;
            sum.peak_mb += usage.peak_mb;
        }
        Ok(sum)
    }

    async fn stop(self) -> anyhow::Result<()> {
        for server in self.0 {
            server.stop().await?;
        }
        Ok(())
    }
}

/// A company of its own with a key, and the configuration for the servers.
struct Bench {
    folder: tempfile::TempDir,
    choice: StoreChoice,
    /// Open between the measurements only: a second process on a SQLite file would share the work of its log.
    store: Mutex<Option<Arc<dyn Store>>>,
    company: CompanyId,
    key: String,
}

impl Bench {
    async fn prepare(args: &Args, url: Option<&str>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("no folder to work in")?;
        let file = format!("sqlite:{}", folder.path().join("bench.db").display());
        let chosen = url.unwrap_or(&file);
        write_config(folder.path(), chosen, args)?;
        let choice = StoreChoice::parse(chosen).map_err(|what| WrongUsage(format!("--store: {what}")))?;
        let store = wire::open(&choice).await?;
        refuse_real_data(&*store).await?;
        let now = SystemClock.now();
        let id = add_company(&*store, "").await?;
        let key = gateway::keys::make_key(id, KeyMode::Live, vec![Scope::Send], None, None, now);
        store.add_key(key.record).await?;
        let key = key.text.expose().clone();
        let store = Mutex::new(Some(store));
        Ok(Self { folder, choice, store, company: id, key })
    }

    async fn store(&self) -> anyhow::Result<Arc<dyn Store>> {
        let mut kept = self.store.lock().await;
        if let Some(store) = &*kept {
            return Ok(store.clone());
        }
        let store = wire::open(&self.choice).await?;
        Ok(kept.insert(store).clone())
    }

    async fn leave_store(&self) {
        if let Some(store) = self.store.lock().await.take() {
            store.close().await;
        }
    }

    fn roles(&self) -> &'static [&'static str] {
        match self.choice {
            StoreChoice::Sqlite(_) => &["all"],
            StoreChoice::Postgres(_) | StoreChoice::Mysql(_) => &["api", "worker"],
        }
    }

    async fn sent(&self) -> anyhow::Result<u64> {
        let stats = self.store().await?.stats(SystemClock.now()).await?;
        Ok(stats.by_status.get(&Status::Sent).copied().unwrap_or(0))
    }

    async fn post(
        &self,
        args: &Args,
        fleet: &Fleet,
        count: u64,
        rate: Option<f64>,
    ) -> anyhow::Result<Answers> {
        self.leave_store().await;
        let load = Load {
            address: fleet.0.first().context("a server to post to")?.address,
            key: self.key.clone(),
            connections: args.connections.min(u32::try_from(count).unwrap_or(u32::MAX)),
            count,
            rate,
            html_bytes: args.html_bytes,
            detail: args.detailed.then(|| CompanyId::new(SystemClock.now()).to_string()),
        };
        let answers = load::run(&load).await?;
        ensure!(answers.refused == 0, "the server refused {} of {count} emails", answers.refused);
        ensure!(answers.accepted == count, "the server took {} of {count} emails", answers.accepted);
        Ok(answers)
    }

    /// Waits until so many were ever sent; returns how many were.
    async fn wait_for_sent(&self, count: u64) -> anyhow::Result<u64> {
        let mut last = (0, Instant::now());
        loop {
            let sent = self.sent().await?;
            if sent >= count {
                return Ok(sent);
            }
            if sent > last.0 {
                last = (sent, Instant::now());
            }
            ensure!(last.1.elapsed() < STANDSTILL_MAX, "only {sent} of {count} emails were sent");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn delays_to_provider(&self) -> anyhow::Result<Vec<Duration>> {
        let store = self.store().await?;
        let page = store.emails(self.company, &EmailFilter::default(), None, 100).await?;
        let mut delays = Vec::new();
        for email in page.items {
            let events = store.events(self.company, email.id).await?.unwrap_or_default();
            let at = |kind: EventKind| events.iter().find(|event| event.kind == kind).map(|event| event.at);
            if let (Some(accepted), Some(called)) = (at(EventKind::Enqueued), at(EventKind::SentAttempt)) {
                delays.push(called.since(accepted));
            }
        }
        Ok(delays)
    }
}

/// A company whose emails can be sent.
async fn add_company(store: &dyn Store, kind: &str) -> anyhow::Result<CompanyId> {
    let now = SystemClock.now();
    let id = CompanyId::new(now);
    let from = Mailbox::parse("Bench <bench@example.com>").context("the sender is fine")?;
    let company = Company {
        id,
        name: format!("{COMPANY_PREFIX}{kind}{id}"),
        settings: CompanySettings { from: Some(from), ..CompanySettings::default() },
        created_at: now,
        disabled_at: None,
        pause: None,
        resumed_at: None,
    };
    store.add_company(company).await?;
    Ok(id)
}

/// Measuring fills a database and sends what waits in it: never one that is in use.
async fn refuse_real_data(store: &dyn Store) -> anyhow::Result<()> {
    let is_ours = |company: &Company| company.name.starts_with(COMPANY_PREFIX);
    if store.companies().await?.iter().all(is_ours) {
        return Ok(());
    }
    bail!(WrongUsage(
        "--store: this database has companies of its own; name an empty one for measuring".to_owned()
    ))
}

/// Thousands of emails go to people in no case.
fn refuse_far_endpoint(args: &Args) -> anyhow::Result<()> {
    let is_near = |url: &url::Url| match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    };
    if args.ses_endpoint.as_ref().is_none_or(is_near) {
        return Ok(());
    }
    bail!(WrongUsage(
        "--ses-endpoint: measuring sends thousands of emails; name an endpoint on this machine".to_owned()
    ))
}

fn write_config(folder: &Path, url: &str, args: &Args) -> anyhow::Result<()> {
    let provider = match &args.ses_endpoint {
        Some(endpoint) => format!(
            "kind = \"ses\"\nregion = \"us-east-1\"\nendpoint = \"{endpoint}\"\nrate_per_sec = 1000000\n"
        ),
        None => format!("kind = \"capture\"\nurl = \"capture:?latency_ms={}\"\n", args.latency_ms),
    };
    let config = format!(
        "[store]\nurl = {url:?}\n[worker]\nconcurrency = {}\n[providers.bench]\n{provider}\
         [routes]\ndefault = [\"bench\"]\n[limits]\nrequests_per_sec = 1000000\n[log]\nlevel = \"warn\"\n",
        args.concurrency
    );
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(folder.join("posthaste.toml"))?;
    file.write_all(config.as_bytes()).context("cannot write the configuration")
}
