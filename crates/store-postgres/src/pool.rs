//! The connections for everything that has none of its own (`lane`), and what becomes of those that are lost.
//!
//! One that is lost is replaced in its place, never closed: over TLS sqlx waits for the farewell of the other side, and
//! where a firewall has forgotten the connection there is none. It would keep its place in the pool for good.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection as _, PgConnection};
use store::trust::Trust;

use crate::config::{ACQUIRE_TIMEOUT, PostgresConfig};
use crate::{lane, sockets};

/// How often a connection that was lost in use is replaced, and the pause between two tries: together more than the minute
/// that a network may be away.
const TRIES_MAX: u32 = 60;
const PAUSE: Duration = Duration::from_secs(1);

pub fn pool(config: &PostgresConfig, trust: &Arc<Trust>) -> PgPool {
    let (options, port) = (Arc::new(config.options()), config.options().get_port());
    let (trust, before, after) = (Arc::clone(trust), Arc::clone(&options), options);
    PgPoolOptions::new()
        .max_connections(config.pool_max())
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .before_acquire(move |connection, idle| {
            let (trust, options) = (Arc::clone(&trust), Arc::clone(&before));
            Box::pin(async move {
                let lives = trust.lives(idle.idle_for, async { connection.ping().await.is_ok() }).await;
                Ok(lives || is_replaced(connection, &options).await)
            })
        })
        .after_connect(move |_, _| {
            sockets::tune(port);
            Box::pin(async { Ok(()) })
        })
        .after_release(move |connection, _| {
            let options = Arc::clone(&after);
            Box::pin(async move {
                // A transaction whose caller went away in its first moment would stay open (sqlx issue 4385).
                Ok(lane::roll_back(connection).await || is_replaced_in_time(connection, &options).await)
            })
        })
        .connect_lazy_with(config.options())
}

async fn is_replaced(connection: &mut PgConnection, options: &PgConnectOptions) -> bool {
    let Ok(new) = lane::connect(options).await else { return false };
    *connection = new;
    true
}

/// Nobody waits for it.
async fn is_replaced_in_time(connection: &mut PgConnection, options: &PgConnectOptions) -> bool {
    for _ in 0..TRIES_MAX {
        if is_replaced(connection, options).await {
            return true;
        }
        tokio::time::sleep(PAUSE).await;
    }
    false
}
