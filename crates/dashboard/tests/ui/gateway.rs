//! A gateway on a store in memory, for tests and for the example.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::inside::Retention;
use gateway::{CAPTURE, EnvironmentGuard, Gateway, Settings};
use model::{Clock, RetryPolicy};
use provider_capture::CaptureProvider;
use queue_store::StoreQueue;
use store_sqlite::SqliteStore;

/// Everything is sent through the capture mailbox, under two names.
pub async fn a_gateway(clock: Arc<dyn Clock>) -> Gateway {
    let store = Arc::new(SqliteStore::in_memory().await.expect("a store"));
    let policies = [RetryPolicy::fast(), RetryPolicy::patient()];
    let day = Duration::from_secs(24 * 3600);
    Gateway {
        queue: Arc::new(StoreQueue::new(store.clone())),
        store,
        providers: Arc::new(BTreeMap::from([
            (CAPTURE.to_owned(), Arc::new(CaptureProvider::default()) as _),
            ("relay".to_owned(), Arc::new(CaptureProvider::default()) as _),
        ])),
        clock,
        suppressions: Arc::default(),
        templates: Arc::default(),
        tracer: Default::default(),
        dice: Arc::new(|| 0.0),
        settings: Arc::new(Settings {
            retry_policies: policies.into_iter().map(|policy| (policy.name.clone(), policy)).collect(),
            default_retry_policy: "fast".into(),
            default_route: vec!["relay".into()],
            ttl: day,
            worker_concurrency: 32,
            lease: Duration::from_secs(45),
            retention: Retention { content: 30 * day, emails: 90 * day, dead_letters: 7 * day },
            guard: EnvironmentGuard::Open,
            provider_rates: BTreeMap::from([("relay".to_owned(), 14)]),
            alerts: Default::default(),
            reputation: None,
        }),
    }
}
