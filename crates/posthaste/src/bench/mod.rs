//! `posthaste bench`: how fast this machine takes and sends emails, measured on the real server over HTTP.
//!
//! The server is this program as a process of its own with a fresh database; `load` posts to it. Five figures:
//! accepting alone, draining a backlog, both at once (accept to SENT), latency at half that load, and latency
//! on an idle system. Nothing leaves the machine: mail goes to the capture provider, which can be told to take
//! its time (`--latency-ms`).

mod load;
mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use model::{
    Clock as _, Company, CompanyId, CompanySettings, EventKind, KeyMode, Mailbox, Scope, Status, SystemClock,
};
use serde_json::{Value, json};
use store::{EmailFilter, Store};

use crate::cli::out::Out;
use crate::wire;
use load::{Answers, Load};
use server::{Server, Usage};

/// How often the progress of sending is looked at, and how long it may stand still.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const STANDSTILL_MAX: Duration = Duration::from_secs(60);
/// Emails sent one at a time to an idle system.
const IDLE_EMAILS: u64 = 20;
const IDLE_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// How many emails each figure is measured with
    #[arg(long, default_value_t = 20_000)]
    emails: u64,
    /// How many connections post at once
    #[arg(long, default_value_t = 64)]
    connections: u32,
    /// The size of the html, in bytes
    #[arg(long, default_value_t = 10 * 1024)]
    html_bytes: usize,
    /// How long the provider takes to answer
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
    /// How many emails a worker holds at once
    #[arg(long, default_value_t = 512)]
    concurrency: u32,
}

/// One line of the result.
struct Figure {
    name: &'static str,
    value: f64,
    unit: &'static str,
}

pub async fn run(args: &Args, out: Out) -> anyhow::Result<()> {
    let mut figures = Vec::new();
    let accepting = accept_alone(args, &mut figures).await?;
    let through = accept_to_sent(args, &mut figures).await?;
    half_load(args, accepting.min(through) / 2.0, &mut figures).await?;
    idle(args, &mut figures).await?;
    print(args, &figures, out)
}

fn print(args: &Args, figures: &[Figure], out: Out) -> anyhow::Result<()> {
    if out.is_json() {
        let lines: Vec<Value> = figures
            .iter()
            .map(|figure| json!({"name": figure.name, "value": figure.value, "unit": figure.unit}))
            .collect();
        out.json(&json!({"emails": args.emails, "latencyMs": args.latency_ms, "figures": lines}))?;
        return Ok(());
    }
    out.line(format_args!(
        "{} emails of {} bytes of html, {} connections, provider answers after {} ms",
        args.emails, args.html_bytes, args.connections, args.latency_ms
    ))?;
    for figure in figures {
        out.line(format_args!("{:<44} {:>10.2} {}", figure.name, figure.value, figure.unit))?;
    }
    Ok(())
}

/// Accepting with no worker about, then a worker that drains what was accepted.
async fn accept_alone(args: &Args, figures: &mut Vec<Figure>) -> anyhow::Result<f64> {
    let bench = Bench::prepare(args).await?;
    let server = Server::start(bench.folder.path(), "api").await?;
    let answers = bench.post(args, &server, args.emails, None).await?;
    let usage = server.usage()?;
    server.stop().await?;
    figures.push(Figure { name: "accept alone", value: answers.per_sec(), unit: "emails/s" });
    figures.push(Figure { name: "accept alone, p50", value: answers.quantile_ms(0.5), unit: "ms" });
    figures.push(Figure { name: "accept alone, p99", value: answers.quantile_ms(0.99), unit: "ms" });
    push_usage(figures, ["accept alone, cpu", "accept alone, peak memory"], usage, args.emails);

    let start = Instant::now();
    let server = Server::start(bench.folder.path(), "worker").await?;
    bench.wait_for_sent(args.emails).await?;
    let elapsed = start.elapsed();
    let usage = server.usage()?;
    server.stop().await?;
    let drained = args.emails as f64 / elapsed.as_secs_f64();
    figures.push(Figure { name: "drain a backlog", value: drained, unit: "emails/s" });
    push_usage(figures, ["drain a backlog, cpu", "drain a backlog, peak memory"], usage, args.emails);
    Ok(answers.per_sec())
}

/// Accepting and sending at once, in one process.
async fn accept_to_sent(args: &Args, figures: &mut Vec<Figure>) -> anyhow::Result<f64> {
    let bench = Bench::prepare(args).await?;
    let server = Server::start(bench.folder.path(), "all").await?;
    let start = Instant::now();
    let answers = bench.post(args, &server, args.emails, None).await?;
    bench.wait_for_sent(args.emails).await?;
    let per_sec = args.emails as f64 / start.elapsed().as_secs_f64();
    let usage = server.usage()?;
    server.stop().await?;
    figures.push(Figure { name: "accept to SENT", value: per_sec, unit: "emails/s" });
    figures.push(Figure { name: "accept while sending", value: answers.per_sec(), unit: "emails/s" });
    push_usage(figures, ["accept to SENT, cpu", "accept to SENT, peak memory"], usage, args.emails);
    Ok(per_sec)
}

async fn half_load(args: &Args, rate: f64, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let bench = Bench::prepare(args).await?;
    let server = Server::start(bench.folder.path(), "all").await?;
    let count = (args.emails / 2).max(1);
    let answers = bench.post(args, &server, count, Some(rate)).await?;
    bench.wait_for_sent(count).await?;
    server.stop().await?;
    figures.push(Figure { name: "half load, rate", value: rate, unit: "emails/s" });
    figures.push(Figure { name: "half load, accept p50", value: answers.quantile_ms(0.5), unit: "ms" });
    figures.push(Figure { name: "half load, accept p99", value: answers.quantile_ms(0.99), unit: "ms" });
    Ok(())
}

/// One email at a time: from acceptance to the provider's being called, by the email's own history.
async fn idle(args: &Args, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let bench = Bench::prepare(args).await?;
    let server = Server::start(bench.folder.path(), "all").await?;
    let before = server.usage()?;
    for _ in 0..IDLE_EMAILS {
        bench.post(args, &server, 1, None).await?;
        tokio::time::sleep(IDLE_PAUSE).await;
    }
    bench.wait_for_sent(IDLE_EMAILS).await?;
    let mut delays = bench.delays_to_provider().await?;
    delays.sort_unstable();
    let usage = server.usage()?;
    server.stop().await?;
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

/// A fresh database with one company and a key, and the configuration for the server.
struct Bench {
    folder: tempfile::TempDir,
    store: Arc<dyn Store>,
    company: CompanyId,
    key: String,
}

impl Bench {
    async fn prepare(args: &Args) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("no folder to work in")?;
        write_config(folder.path(), args)?;
        let store = wire::open_for_bench(&folder.path().join("bench.db")).await?;
        let now = SystemClock.now();
        let from = Mailbox::parse("Bench <bench@example.com>").context("the sender is fine")?;
        let settings = CompanySettings { from: Some(from), ..CompanySettings::default() };
        let company = Company {
            id: CompanyId::new(now),
            name: "bench".into(),
            settings,
            created_at: now,
            disabled_at: None,
        };
        let id = company.id;
        store.add_company(company).await?;
        let key = gateway::keys::make_key(id, KeyMode::Live, vec![Scope::Send], None, None, now);
        store.add_key(key.record).await?;
        Ok(Self { folder, store, company: id, key: key.text.expose().clone() })
    }

    async fn post(
        &self,
        args: &Args,
        server: &Server,
        count: u64,
        rate: Option<f64>,
    ) -> anyhow::Result<Answers> {
        let load = Load {
            address: server.address,
            key: self.key.clone(),
            connections: args.connections.min(u32::try_from(count).unwrap_or(u32::MAX)),
            count,
            rate,
            html_bytes: args.html_bytes,
        };
        let answers = load::run(&load).await?;
        ensure!(answers.refused == 0, "the server refused {} of {count} emails", answers.refused);
        ensure!(answers.accepted == count, "the server took {} of {count} emails", answers.accepted);
        Ok(answers)
    }

    async fn wait_for_sent(&self, count: u64) -> anyhow::Result<()> {
        let mut last = (0, Instant::now());
        loop {
            let stats = self.store.stats(SystemClock.now()).await?;
            let sent = stats.by_status.get(&Status::Sent).copied().unwrap_or(0);
            if sent >= count {
                return Ok(());
            }
            if sent > last.0 {
                last = (sent, Instant::now());
            }
            ensure!(last.1.elapsed() < STANDSTILL_MAX, "only {sent} of {count} emails were sent: {stats:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn delays_to_provider(&self) -> anyhow::Result<Vec<Duration>> {
        let page = self.store.emails(self.company, &EmailFilter::default(), None, 100).await?;
        let mut delays = Vec::new();
        for email in page.items {
            let events = self.store.events(self.company, email.id).await?.unwrap_or_default();
            let at = |kind: EventKind| events.iter().find(|event| event.kind == kind).map(|event| event.at);
            if let (Some(accepted), Some(called)) = (at(EventKind::Enqueued), at(EventKind::SentAttempt)) {
                delays.push(called.since(accepted));
            }
        }
        Ok(delays)
    }
}

fn write_config(folder: &Path, args: &Args) -> anyhow::Result<()> {
    let database = folder.join("bench.db");
    let config = format!(
        "[store]\nurl = \"sqlite:{}\"\n[worker]\nconcurrency = {}\n[providers.bench]\nkind = \"capture\"\n\
         url = \"capture:?latency_ms={}\"\n[routes]\ndefault = [\"bench\"]\n[limits]\nrequests_per_sec = 1000000\n\
         [log]\nlevel = \"warn\"\n",
        database.display(),
        args.concurrency,
        args.latency_ms
    );
    std::fs::write(folder.join("posthaste.toml"), config).context("cannot write the configuration")
}
