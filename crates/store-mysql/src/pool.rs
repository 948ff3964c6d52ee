//! The connections for questions, and what becomes of those that are lost.
//!
//! One that is lost is replaced in its place, never closed: over TLS sqlx waits for the farewell of the other side, and
//! where a firewall has forgotten the connection there is none. It would keep its place in the pool for good.

use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{Connection as _, Executor as _, MySqlConnection};
use store::trust::Trust;
use tokio::time::timeout;

use crate::config::{ACQUIRE_TIMEOUT, CONNECT_TIMEOUT, MysqlConfig};
use crate::{lane, sockets};

/// How often a connection that was lost in use is replaced, and the pause between two tries: together more than the minute
/// that a network may be away.
const TRIES_MAX: u32 = 60;
const PAUSE: Duration = Duration::from_secs(1);
/// A connection that was idle this long is asked whether it still lives.
const TRUSTED_FOR: Duration = Duration::from_millis(500);

pub fn pool(config: &MysqlConfig, session: &'static str, trust: &Arc<Trust>) -> MySqlPool {
    let (options, port) = (Arc::new(config.options()), config.options().get_port());
    let (trust, before, after) = (Arc::clone(trust), Arc::clone(&options), options);
    MySqlPoolOptions::new()
        .max_connections(config.pool_max())
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .before_acquire(move |connection, idle| {
            let (trust, options) = (Arc::clone(&trust), Arc::clone(&before));
            Box::pin(async move {
                let lives = idle.idle_for < TRUSTED_FOR
                    || trust.lives(idle.idle_for, async { connection.ping().await.is_ok() }).await;
                Ok(lives || is_replaced(connection, &options, session).await)
            })
        })
        .after_connect(move |connection, _| {
            sockets::tune(port);
            Box::pin(async move { connection.execute(session).await.map(|_| ()) })
        })
        .after_release(move |connection, _| {
            let options = Arc::clone(&after);
            Box::pin(async move {
                let lives = matches!(timeout(CONNECT_TIMEOUT, connection.ping()).await, Ok(Ok(())));
                Ok(lives || is_replaced_in_time(connection, &options, session).await)
            })
        })
        .connect_lazy_with(config.options())
}

async fn is_replaced(
    connection: &mut MySqlConnection,
    options: &MySqlConnectOptions,
    session: &'static str,
) -> bool {
    let Ok(new) = lane::connect(options, session).await else { return false };
    *connection = new;
    true
}

/// Nobody waits for it.
async fn is_replaced_in_time(
    connection: &mut MySqlConnection,
    options: &MySqlConnectOptions,
    session: &'static str,
) -> bool {
    for _ in 0..TRIES_MAX {
        if is_replaced(connection, options, session).await {
            return true;
        }
        tokio::time::sleep(PAUSE).await;
    }
    false
}
