//! The parts of a running gateway and how they end: API, worker and sweep start together, and when the token is
//! cancelled each finishes what it holds before the store is closed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use api::{ApiSettings, ApiState, ServeSettings};
use axum::Router;
use dashboard::DashboardSettings;
use gateway::accept::Desk;
use gateway::{Gateway, sweep, worker};
use store::Store;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::descriptors::{self, Places};
use crate::telemetry::{self, otlp};
use crate::wire;

/// Writing down the last few things and closing the store.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Takes emails in and sends them
    All,
    /// Takes emails in and answers questions
    Api,
    /// Sends
    Worker,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Api => "api",
            Self::Worker => "worker",
        }
    }

    fn takes_in(self) -> bool {
        matches!(self, Self::All | Self::Api)
    }

    fn sends(self) -> bool {
        matches!(self, Self::All | Self::Worker)
    }
}

/// Where a process of this role listens, if it does.
pub fn address(config: &Config, role: Role) -> Option<SocketAddr> {
    if role.takes_in() { Some(config.listen) } else { config.worker_listen }
}

/// The dashboard as it is configured.
pub fn dashboard(config: &Config) -> DashboardSettings {
    DashboardSettings { public_url: config.public_url.clone(), dev_key: None }
}

/// Runs until the token is cancelled and everything has ended. An error when a part ends by itself.
pub async fn run(
    config: &Config,
    store: Arc<dyn Store>,
    listener: Option<TcpListener>,
    role: Role,
    dashboard: DashboardSettings,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let gateway = wire::gateway(config, store.clone())?;
    store.warm_up().await;
    let metrics = telemetry::start_metrics(gateway.clock.now())?;
    let traces = otlp::start(config, role.as_str(), gateway.clock.clone())?;
    let gateway = Gateway { tracer: traces.tracer(), ..gateway };
    let mut parts = JoinSet::new();
    if role.sends() {
        parts.spawn(named("worker", worker::Worker::run(gateway.clone(), shutdown.clone())));
        parts.spawn(named("sweep", sweep::run(gateway.clone(), shutdown.clone())));
    }
    let state = match listener {
        Some(listener) => {
            let state = api_state(config, gateway.clone(), metrics.clone())?;
            tracing::info!(address = %listener.local_addr()?, role = role.as_str(), "listening");
            let router = router(dashboard, state.clone(), role);
            let settings = serve_settings(config, role);
            parts.spawn(named("api", api::serve(listener, router, settings, drained(&state, &shutdown))));
            Some(state)
        }
        None => None,
    };
    let upkeep = tokio::spawn(telemetry::keep_up(metrics, gateway, role.sends(), shutdown.clone()));
    let ended = finish(parts, &shutdown).await;
    upkeep.abort();
    traces.finish().await;
    close(state, &*store).await;
    ended
}

async fn named(name: &'static str, part: impl Future<Output = ()>) -> &'static str {
    part.await;
    name
}

fn api_state(
    config: &Config,
    gateway: Gateway,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
) -> anyhow::Result<ApiState> {
    let documents = wire::documents(config)?.map(Arc::new);
    let settings = ApiSettings {
        admin_token: config.admin_token.clone(),
        requests_per_sec: config.limits.requests_per_sec,
        attachments_bytes_max: config.limits.attachments_bytes_max,
        webhooks: wire::webhooks(config),
        ..ApiSettings::default()
    };
    Ok(ApiState::new(Desk { gateway, documents }, settings, Arc::new(move || metrics.render())))
}

/// As many connections as are configured, or as the system's limit of open files leaves room for.
fn serve_settings(config: &Config, role: Role) -> ServeSettings {
    let wanted = ServeSettings {
        connections_max: config.limits.connections_max,
        requests_per_sec: config.limits.requests_per_sec,
        ..Default::default()
    };
    let open_files_max = descriptors::open_files_max();
    let calls = if role.sends() { config.worker_concurrency as usize } else { 0 };
    let places = Places { connections: wanted.connections_max, refusals: wanted.refusals_max };
    let fitting = descriptors::places(places, open_files_max, calls);
    if fitting.connections < wanted.connections_max {
        tracing::info!(
            connectionsMax = fitting.connections,
            configured = wanted.connections_max,
            openFilesMax = open_files_max,
            "the limit of open files leaves room for fewer connections than are configured"
        );
    }
    ServeSettings { connections_max: fitting.connections, refusals_max: fitting.refusals, ..wanted }
}

/// Ends with the shutdown, after load balancers were told to look elsewhere.
fn drained(state: &ApiState, shutdown: &CancellationToken) -> impl Future<Output = ()> + Send + 'static {
    let (state, shutdown) = (state.clone(), shutdown.clone());
    async move {
        shutdown.cancelled().await;
        state.begin_draining();
    }
}

/// A process that only sends answers for its health and nothing else.
fn router(dashboard: DashboardSettings, state: ApiState, role: Role) -> Router {
    if !role.takes_in() {
        return api::health_router(state);
    }
    dashboard::router(state.clone(), dashboard).fallback_service(api::router(state))
}

/// Waits for every part. One that ends before it was asked to, or panics, brings the others down in good order.
async fn finish(mut parts: JoinSet<&'static str>, shutdown: &CancellationToken) -> anyhow::Result<()> {
    let mut first_trouble = None;
    while let Some(ended) = parts.join_next().await {
        let was_asked = shutdown.is_cancelled();
        shutdown.cancel();
        match ended {
            Ok(_) if was_asked => {}
            Ok(name) => first_trouble = first_trouble.or(Some(format!("the {name} ended by itself"))),
            // The words of a panic may quote somebody's mail; the log says where it was.
            Err(_panic) => first_trouble = first_trouble.or(Some("a part met a bug and stopped".to_owned())),
        }
    }
    match first_trouble {
        Some(trouble) => bail!(trouble),
        None => Ok(()),
    }
}

async fn close(state: Option<ApiState>, store: &dyn Store) {
    let closing = async {
        if let Some(state) = state
            && let Err(error) = state.flush().await
        {
            tracing::warn!(%error, "the last uses of API keys could not be written down");
        }
        store.close().await;
    };
    if tokio::time::timeout(CLOSE_TIMEOUT, closing).await.is_err() {
        tracing::warn!("the store did not close in time; the next start repairs what is left");
    }
    tracing::info!("stopped");
}
