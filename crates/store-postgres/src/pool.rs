//! The connections for everything that has none of its own (`lane`), and what becomes of those that are lost.
//!
//! One that is lost is replaced in its place, never closed: over TLS sqlx waits for the farewell of the other side, and
//! where a firewall has forgotten the connection there is none. It would keep its place in the pool for good.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Connection as _, PgConnection};
use store::trust::Trust;
use tokio::time::timeout;

use crate::config::{ACQUIRE_TIMEOUT, CONNECT_TIMEOUT, PostgresConfig, Session};
use crate::{lane, sockets};

/// How often a connection that was lost in use is replaced, and the pause between two tries: together more than the minute
/// that a network may be away.
const TRIES_MAX: u32 = 60;
const PAUSE: Duration = Duration::from_secs(1);

pub fn pool(config: &PostgresConfig, trust: &Arc<Trust>) -> PgPool {
    let session = Arc::new(config.session());
    let (trust, before, made, after) =
        (Arc::clone(trust), Arc::clone(&session), Arc::clone(&session), Arc::clone(&session));
    PgPoolOptions::new()
        .max_connections(config.pool_max())
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .before_acquire(move |connection, idle| {
            let (trust, session) = (Arc::clone(&trust), Arc::clone(&before));
            Box::pin(async move {
                let lives = trust.lives(idle.idle_for, async { connection.ping().await.is_ok() }).await;
                Ok(lives || is_replaced(connection, &session).await)
            })
        })
        .after_connect(move |connection, _| {
            let session = Arc::clone(&made);
            sockets::tune(session.options.get_port());
            Box::pin(async move { session.set_up(connection).await })
        })
        .after_release(move |connection, _| {
            let session = Arc::clone(&after);
            Box::pin(async move {
                Ok(is_at_rest(connection).await || is_replaced_in_time(connection, &session).await)
            })
        })
        .connect_lazy_with(session.options.clone())
}

/// Ends what is left open; `false` when the connection is not to be used again. A transaction whose caller went away in its
/// first moment is open without sqlx's knowing (its issue 4385): a beginning that begins nothing finds it. To roll back
/// without looking would leave a warning in the server's log each time.
async fn is_at_rest(connection: &mut PgConnection) -> bool {
    let looking = async {
        match connection.begin_with("").await {
            Ok(left_open) => left_open.rollback().await.is_ok(),
            Err(sqlx::Error::BeginFailed) => true,
            Err(_) => false,
        }
    };
    timeout(CONNECT_TIMEOUT, looking).await.unwrap_or(false)
}

async fn is_replaced(connection: &mut PgConnection, session: &Session) -> bool {
    let Ok(new) = lane::connect(session).await else { return false };
    *connection = new;
    true
}

/// Nobody waits for it.
async fn is_replaced_in_time(connection: &mut PgConnection, session: &Session) -> bool {
    for _ in 0..TRIES_MAX {
        if is_replaced(connection, session).await {
            return true;
        }
        tokio::time::sleep(PAUSE).await;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};

    use futures_util::FutureExt as _;
    use sqlx::Executor as _;
    use sqlx::pool::PoolConnection;
    use sqlx::{Postgres, Row as _};

    use super::*;
    use crate::support::Database;

    /// What the server remarks, as sqlx logs it.
    #[derive(Clone, Default)]
    struct Remarks(Arc<Mutex<Vec<u8>>>);

    impl Remarks {
        fn text(&self) -> String {
            String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
        }
    }

    impl Write for Remarks {
        fn write(&mut self, said: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(said)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// It would write it into its log as well, once for every question.
    #[tokio::test]
    async fn the_server_has_nothing_to_remark_on_a_connection_that_comes_back() {
        let remarks = Remarks::default();
        let writer = remarks.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let _guard = tracing::subscriber::set_default(subscriber);

        let database = Database::new().await;
        let pool = pool_of(&database);
        let mut connection = pool.acquire().await.expect("a connection");
        connection.execute("SET client_min_messages = notice").await.expect("set");
        comes_back(&pool, connection).await;
        pool.close().await;
        assert_eq!(remarks.text(), "");
    }

    /// The server has begun it, and whoever asked for it is gone before the answer: sqlx does not know of it.
    #[tokio::test]
    async fn a_beginning_nobody_waited_for_is_taken_back() {
        let database = Database::new().await;
        let pool = pool_of(&database);
        let mut connection = pool.acquire().await.expect("a connection");
        let asked = connection.fetch_one("SELECT pg_backend_pid()").await.expect("asked");
        // One that was answered at once is known to sqlx.
        while connection.begin().now_or_never().is_some() {}
        comes_back(&pool, connection).await;
        let state =
            sqlx::query("SELECT state FROM pg_stat_activity WHERE pid = $1").bind(asked.get::<i32, _>(0));
        let seen = state.fetch_one(&mut database.admin().await).await.expect("asked");
        assert_eq!(seen.get::<&str, _>(0), "idle");
        pool.close().await;
    }

    fn pool_of(database: &Database) -> PgPool {
        let config = PostgresConfig::parse(&database.url_with("sslmode=disable")).expect("a good URL");
        pool(&config, &Arc::new(Trust::default()))
    }

    async fn comes_back(pool: &PgPool, connection: PoolConnection<Postgres>) {
        drop(connection);
        while pool.num_idle() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
