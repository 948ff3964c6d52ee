//! What every handler works with, made once at start.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use gateway::accept::Desk;
use gateway::cursors::CursorKey;
use gateway::keys::KeyRing;
use model::{Secret, Timestamp};
use store::StoreError;
use tokio::sync::{OnceCell, Semaphore, watch};

use crate::health::Readiness;
use crate::limits;
use crate::pages::Pages;
use crate::rate::RateWindows;
use crate::webhooks::Webhooks;

/// What the operator decides about the API.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// Without one the operator's routes answer to this machine alone.
    pub admin_token: Option<Secret<String>>,
    /// Per company.
    pub requests_per_sec: u32,
    pub body_timeout: Duration,
    pub request_timeout: Duration,
    pub attachments_bytes_max: usize,
    /// The providers that report here; none unless given.
    pub webhooks: Webhooks,
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            admin_token: None,
            requests_per_sec: limits::REQUESTS_PER_SEC,
            body_timeout: limits::BODY_TIMEOUT,
            request_timeout: limits::REQUEST_TIMEOUT,
            attachments_bytes_max: limits::ATTACHMENTS_BYTES_MAX,
            webhooks: Webhooks::default(),
        }
    }
}

impl ApiSettings {
    /// One email with its attachments in base64 and two megabytes for the rest.
    pub(crate) fn send_body_bytes_max(&self) -> usize {
        let rest = 2 * 1024 * 1024;
        limits::SEND_BODY_BYTES_MAX.max(self.attachments_bytes_max.saturating_mul(4).div_ceil(3) + rest)
    }
}

/// Renders the metrics as Prometheus reads them.
pub type MetricsPage = Arc<dyn Fn() -> String + Send + Sync>;

/// Shared by all requests; cheap to clone.
#[derive(Clone)]
pub struct ApiState(Arc<Shared>);

pub struct Shared {
    pub(crate) desk: Desk,
    pub(crate) keys: KeyRing,
    pub(crate) settings: ApiSettings,
    pub(crate) metrics: MetricsPage,
    pub(crate) rate: RateWindows,
    /// Room for bodies, in KiB.
    pub(crate) bodies: Arc<Semaphore>,
    pub(crate) readiness: Readiness,
    pub(crate) pages: Pages,
    /// Asked for with the first list.
    cursor_key: OnceCell<CursorKey>,
    draining: watch::Sender<bool>,
}

impl ApiState {
    pub fn new(desk: Desk, settings: ApiSettings, metrics: MetricsPage) -> Self {
        let keys = KeyRing::new(Arc::clone(&desk.gateway.store), Arc::clone(&desk.gateway.clock));
        Self(Arc::new(Shared {
            keys,
            metrics,
            rate: RateWindows::new(settings.requests_per_sec),
            bodies: Arc::new(Semaphore::new(limits::BODIES_BYTES_MAX / 1024)),
            readiness: Readiness::default(),
            pages: Pages::new(),
            cursor_key: OnceCell::new(),
            draining: watch::Sender::new(false),
            desk,
            settings,
        }))
    }

    /// From now on `/readyz` says no, so that a load balancer looks elsewhere while the rest is answered.
    pub fn begin_draining(&self) {
        self.0.draining.send_replace(true);
    }

    /// Writes down what is only in memory; for the shutdown.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.0.keys.flush_uses().await
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.0.draining.borrow()
    }

    /// Returns when the shutdown begins: answers that go on and on end then.
    pub(crate) async fn draining(&self) {
        let mut draining = self.0.draining.subscribe();
        // The sender lives as long as this does.
        let _ = draining.wait_for(|draining| *draining).await;
    }

    pub(crate) async fn cursor_key(&self) -> Result<&CursorKey, StoreError> {
        self.0.cursor_key.get_or_try_init(|| CursorKey::of(&*self.0.desk.gateway.store)).await
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.desk.gateway.clock.now()
    }
}

impl Deref for ApiState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
