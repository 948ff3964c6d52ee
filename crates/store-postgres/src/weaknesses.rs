//! How the server is set up, as far as it may lose what was acknowledged or stand in the way of work.

use model::{Clock as _, SystemClock};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row as _};
use store::Weakness;

use crate::error::Fault;

/// Connections that this program needs besides the pool: lanes for accepting (3), beginning (2), settling (2), reports (4), claims
/// and renewals (3), one to notify and one to listen.
const BESIDES_THE_POOL: i64 = 16;
/// A transaction idle for longer keeps vacuum from cleaning up behind the queue.
const IDLE_MAX_SECS: i64 = 3600;
const VERSION_MIN: i64 = 150_000;
/// Clocks further apart make due times, leases and lives mean different things.
const CLOCKS_APART_MAX_MS: i64 = 5_000;

/// Everything asked for at once; one row.
const ASK: &str = "SELECT
         current_setting('fsync') AS fsync,
         current_setting('full_page_writes') AS full_page_writes,
         current_setting('synchronous_commit') AS synchronous_commit,
         current_setting('synchronous_standby_names') <> '' AS has_standbys,
         current_setting('default_transaction_read_only') AS read_only,
         pg_is_in_recovery() AS in_recovery,
         current_setting('server_version_num')::bigint AS version,
         current_setting('max_connections')::bigint AS max_connections,
         (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS clock_ms,
         (SELECT string_agg(c.relname, ', ' ORDER BY c.relname)
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
          WHERE n.nspname = current_schema() AND c.relkind = 'r' AND c.relrowsecurity
            AND row_security_active(c.oid)) AS hidden,
         (SELECT count(*) FROM pg_stat_activity
          WHERE datname = current_database() AND state LIKE 'idle in transaction%'
            AND state_change < clock_timestamp() - make_interval(secs => $1)) AS idle_in_transaction";

/// What the server said.
#[derive(Debug, Clone)]
struct Settings {
    fsync: String,
    full_page_writes: String,
    synchronous_commit: String,
    has_standbys: bool,
    read_only: String,
    in_recovery: bool,
    version: i64,
    max_connections: i64,
    /// Tables of which row-level security hides rows from us.
    hidden: Option<String>,
    idle_in_transaction: i64,
    /// How far our clock is ahead of the server's.
    ahead_ms: i64,
}

pub async fn find(pool: &PgPool, pool_max: u32) -> Result<Vec<Weakness>, Fault> {
    #[expect(clippy::cast_precision_loss, reason = "an hour")]
    let row = sqlx::query(ASK).bind(IDLE_MAX_SECS as f64).fetch_one(pool).await?;
    let settings = Settings::read(&row)?;
    let mut found = settings.durability();
    found.extend(settings.fitness(pool_max));
    found.extend(settings.surroundings());
    Ok(found)
}

fn loses_data(setting: &str, text: &str) -> Weakness {
    Weakness { setting: setting.into(), text: text.into(), loses_data: true }
}

fn hinders(setting: &str, text: String) -> Weakness {
    Weakness { setting: setting.into(), text, loses_data: false }
}

impl Settings {
    fn read(row: &PgRow) -> Result<Self, Fault> {
        Ok(Self {
            fsync: row.try_get("fsync")?,
            full_page_writes: row.try_get("full_page_writes")?,
            synchronous_commit: row.try_get("synchronous_commit")?,
            has_standbys: row.try_get("has_standbys")?,
            read_only: row.try_get("read_only")?,
            in_recovery: row.try_get("in_recovery")?,
            version: row.try_get("version")?,
            max_connections: row.try_get("max_connections")?,
            hidden: row.try_get("hidden")?,
            idle_in_transaction: row.try_get("idle_in_transaction")?,
            ahead_ms: SystemClock.now().millis() - row.try_get::<i64, _>("clock_ms")?,
        })
    }

    fn durability(&self) -> Vec<Weakness> {
        let mut found = Vec::new();
        if self.fsync == "off" {
            let text = "off: a crash of the machine loses acknowledged emails and may damage the database; set fsync = on";
            found.push(loses_data("fsync", text));
        }
        if self.full_page_writes == "off" {
            let text = "off: a crash of the machine may damage the database; set full_page_writes = on";
            found.push(loses_data("full_page_writes", text));
        }
        if self.synchronous_commit == "off" {
            let text = "off: a crash loses the emails acknowledged last; set synchronous_commit = on for this \
                        database and this role";
            found.push(loses_data("synchronous_commit", text));
        } else if self.synchronous_commit == "local" && self.has_standbys {
            let text = "local, while synchronous_standby_names is set: a switch to a standby loses the emails \
                        acknowledged last; set synchronous_commit = on";
            found.push(loses_data("synchronous_commit", text));
        }
        found
    }

    fn fitness(&self, pool_max: u32) -> Vec<Weakness> {
        let mut found = Vec::new();
        if self.in_recovery {
            let text = "this server is a standby and refuses every write; name the primary in store.url";
            found.push(hinders("pg_is_in_recovery", text.into()));
        }
        if self.read_only == "on" {
            let text = "on: every write is refused; set default_transaction_read_only = off";
            found.push(hinders("default_transaction_read_only", text.into()));
        }
        if self.version < VERSION_MIN {
            let text = format!("{}: posthaste needs 15 or newer", self.version / 10_000);
            found.push(hinders("server_version", text));
        }
        let (max_connections, needed) = (self.max_connections, i64::from(pool_max) + BESIDES_THE_POOL);
        if max_connections < needed {
            let text = format!(
                "{max_connections}: one process of posthaste may need {needed}; raise max_connections or lower \
                 pool_max in store.url"
            );
            found.push(hinders("max_connections", text));
        }
        if let Some(hidden) = &self.hidden {
            let text = format!(
                "row-level security hides rows from this role in {hidden}; connect as the owner of the tables"
            );
            found.push(hinders("row_security", text));
        }
        found
    }

    fn surroundings(&self) -> Vec<Weakness> {
        let mut found = Vec::new();
        let idle = self.idle_in_transaction;
        if idle > 0 {
            let text = format!(
                "{idle} session(s) have been idle in a transaction for more than an hour and keep vacuum from cleaning \
                 up, so that claims get slower; end them, and set idle_in_transaction_session_timeout for their role"
            );
            found.push(hinders("idle in transaction", text));
        }
        let apart_ms = self.ahead_ms;
        if apart_ms.abs() > CLOCKS_APART_MAX_MS {
            let (secs, than) = (apart_ms.abs() / 1_000, if apart_ms > 0 { "behind" } else { "ahead of" });
            let text =
                format!("the server's clock is {secs} s {than} this machine's; synchronise both (NTP)");
            found.push(hinders("clock", text));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Settings {
        Settings {
            fsync: "on".into(),
            full_page_writes: "on".into(),
            synchronous_commit: "on".into(),
            has_standbys: false,
            read_only: "off".into(),
            in_recovery: false,
            version: VERSION_MIN,
            max_connections: 32,
            hidden: None,
            idle_in_transaction: 0,
            ahead_ms: CLOCKS_APART_MAX_MS,
        }
    }

    fn found(settings: &Settings) -> Vec<(String, bool)> {
        let all = [settings.durability(), settings.fitness(16), settings.surroundings()];
        all.into_iter().flatten().map(|weakness| (weakness.setting, weakness.loses_data)).collect()
    }

    #[test]
    fn every_setting_that_loses_data_or_hinders_is_told() {
        type Spoil = fn(&mut Settings);
        let cases: [(Spoil, &str, bool); 13] = [
            (|server| server.fsync = "off".into(), "fsync", true),
            (|server| server.full_page_writes = "off".into(), "full_page_writes", true),
            (|server| server.synchronous_commit = "off".into(), "synchronous_commit", true),
            (
                |server| (server.synchronous_commit, server.has_standbys) = ("local".into(), true),
                "synchronous_commit",
                true,
            ),
            (|server| server.in_recovery = true, "pg_is_in_recovery", false),
            (|server| server.read_only = "on".into(), "default_transaction_read_only", false),
            (|server| server.version = 140_011, "server_version", false),
            (|server| server.max_connections = 31, "max_connections", false),
            (|server| server.hidden = Some("events".into()), "row_security", false),
            (|server| server.idle_in_transaction = 1, "idle in transaction", false),
            (|server| server.ahead_ms = CLOCKS_APART_MAX_MS + 1, "clock", false),
            (|server| server.ahead_ms = -CLOCKS_APART_MAX_MS - 1, "clock", false),
            (|server| server.ahead_ms = i64::from(i32::MAX), "clock", false),
        ];
        for (spoil, setting, loses_data) in cases {
            let mut settings = good();
            spoil(&mut settings);
            assert_eq!(found(&settings), [(setting.to_owned(), loses_data)], "{settings:?}");
        }
    }

    #[test]
    fn what_is_good_enough_is_not_told() {
        let cases: [fn(&mut Settings); 4] = [
            |_| {},
            |server| server.synchronous_commit = "local".into(),
            |server| server.synchronous_commit = "remote_apply".into(),
            |server| server.ahead_ms = -CLOCKS_APART_MAX_MS,
        ];
        for spoil in cases {
            let mut settings = good();
            spoil(&mut settings);
            assert_eq!(found(&settings), [], "{settings:?}");
        }
    }
}
