//! Logs, metrics and traces of the process. What is logged, counted and timed is decided where it happens; here is only
//! how it is written, the numbers that nobody else has, and where spans go (`otlp`).

pub mod otlp;
mod panics;
mod process;

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Context as _;
use gateway::{Gateway, observe};
use metrics::{describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use model::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::config::{Log, LogFormat};

pub use panics::hush as hush_panics;

/// From half a millisecond, what an accept takes, to the 30 seconds a provider may take, and a little more.
const DURATION_BUCKETS_SECS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// How often the recorder folds what it gathered; without it histograms grow.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// How often the sizes of the queue are read from the store.
const STATS_EVERY: Duration = Duration::from_secs(5);

/// Whether the text is something `log.level` can be. A filter takes a word that is no level for the name of a part of the
/// program: a mistyped level would turn the log off.
pub fn is_filter(text: &str) -> bool {
    let is_told = |part: &str| part.contains(['=', '[']) || part.trim().parse::<LevelFilter>().is_ok();
    text.split(',').all(is_told) && text.parse::<EnvFilter>().is_ok()
}

/// Logs go to standard error: standard output belongs to what a command prints.
pub fn start_log(log: &Log) -> anyhow::Result<()> {
    let filter: EnvFilter = log.level.parse().context("log.level is no filter")?;
    let is_json = match log.format {
        LogFormat::Json => true,
        LogFormat::Human => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Not `init`, which would also take in what libraries write to the older `log` crate: html5ever tells there all
    // of the html it reads.
    let started = if is_json {
        let subscriber =
            builder.json().flatten_event(true).with_current_span(false).with_span_list(false).finish();
        tracing::subscriber::set_global_default(subscriber)
    } else {
        tracing::subscriber::set_global_default(builder.with_target(false).compact().finish())
    };
    started.map_err(|error| anyhow::anyhow!("the log cannot be started: {error}"))
}

/// Starts to count. The handle renders everything for `/metrics`.
pub fn start_metrics(now: Timestamp) -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), DURATION_BUCKETS_SECS)
        .and_then(PrometheusBuilder::install_recorder)
        .context("metrics cannot be started")?;
    observe::describe();
    describe_gauge!("posthaste_build_info", "Always 1; the labels say which version this is");
    gauge!("posthaste_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    process::describe(now);
    Ok(handle)
}

/// Keeps the recorder up to date until the end, and the sizes of the queue where no sweep does it.
pub async fn keep_up(handle: PrometheusHandle, gateway: Gateway, has_sweep: bool, end: CancellationToken) {
    let mut upkeep = tokio::time::interval(UPKEEP_EVERY);
    let mut stats = tokio::time::interval(STATS_EVERY);
    upkeep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    stats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            _ = upkeep.tick() => {
                handle.run_upkeep();
                process::refresh();
            }
            _ = stats.tick(), if !has_sweep => refresh(&gateway).await,
        }
    }
}

async fn refresh(gateway: &Gateway) {
    let now = gateway.clock.now();
    match gateway.store.stats(now).await {
        Ok(stats) => observe::waiting(&stats, now),
        Err(error) => tracing::warn!(%error, "the sizes of the queue cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_level_is_no_filter() {
        for good in ["info", "WARN", "off", "info,gateway=debug", "gateway[send]=debug"] {
            assert!(is_filter(good), "{good}");
        }
        for bad in ["warning", "inf", "info,verbose", "info,gateway=loud", "gateway"] {
            assert!(!is_filter(bad), "{bad}");
        }
    }
}
