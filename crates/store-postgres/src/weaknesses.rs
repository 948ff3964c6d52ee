//! How the server is set up, as far as it may lose what was acknowledged or stand in the way of work.

use model::{Clock as _, SystemClock};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row as _};
use store::Weakness;

use crate::error::Fault;

/// Connections that this program needs besides the pool: its lanes, the listener, a migration.
const BESIDES_THE_POOL: i64 = 10;
/// A transaction idle for longer keeps vacuum from cleaning up behind the queue.
const IDLE_MAX_SECS: i64 = 3600;
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

pub async fn find(pool: &PgPool, pool_max: u32) -> Result<Vec<Weakness>, Fault> {
    #[expect(clippy::cast_precision_loss, reason = "an hour")]
    let row = sqlx::query(ASK).bind(IDLE_MAX_SECS as f64).fetch_one(pool).await?;
    let mut found = Vec::new();
    found.extend(durability(&row)?);
    found.extend(fitness(&row, pool_max)?);
    found.extend(surroundings(&row)?);
    Ok(found)
}

fn loses_data(setting: &str, text: &str) -> Weakness {
    Weakness { setting: setting.into(), text: text.into(), loses_data: true }
}

fn hinders(setting: &str, text: String) -> Weakness {
    Weakness { setting: setting.into(), text, loses_data: false }
}

fn durability(row: &PgRow) -> Result<Vec<Weakness>, Fault> {
    let is_off = |name: &str| -> Result<bool, Fault> { Ok(row.try_get::<&str, _>(name)? == "off") };
    let mut found = Vec::new();
    if is_off("fsync")? {
        let text = "off: a crash of the machine loses acknowledged emails and may damage the database; set fsync = on";
        found.push(loses_data("fsync", text));
    }
    if is_off("full_page_writes")? {
        let text = "off: a crash of the machine may damage the database; set full_page_writes = on";
        found.push(loses_data("full_page_writes", text));
    }
    let synchronous_commit: &str = row.try_get("synchronous_commit")?;
    let has_standbys: bool = row.try_get("has_standbys")?;
    if synchronous_commit == "off" {
        let text = "off: a crash loses the emails acknowledged last; set synchronous_commit = on for this database \
                    and this role";
        found.push(loses_data("synchronous_commit", text));
    } else if synchronous_commit == "local" && has_standbys {
        let text = "local, while synchronous_standby_names is set: a switch to a standby loses the emails \
                    acknowledged last; set synchronous_commit = on";
        found.push(loses_data("synchronous_commit", text));
    }
    Ok(found)
}

fn fitness(row: &PgRow, pool_max: u32) -> Result<Vec<Weakness>, Fault> {
    let mut found = Vec::new();
    if row.try_get("in_recovery")? {
        let text = "this server is a standby and refuses every write; name the primary in store.url";
        found.push(hinders("pg_is_in_recovery", text.into()));
    }
    if row.try_get::<&str, _>("read_only")? == "on" {
        let text = "on: every write is refused; set default_transaction_read_only = off";
        found.push(hinders("default_transaction_read_only", text.into()));
    }
    let version: i64 = row.try_get("version")?;
    if version < 150_000 {
        found.push(hinders("server_version", format!("{}: posthaste needs 15 or newer", version / 10_000)));
    }
    let max_connections: i64 = row.try_get("max_connections")?;
    let needed = i64::from(pool_max) + BESIDES_THE_POOL;
    if max_connections < needed {
        let text = format!(
            "{max_connections}: one process of posthaste may need {needed}; raise max_connections or lower pool_max \
             in store.url"
        );
        found.push(hinders("max_connections", text));
    }
    if let Some(hidden) = row.try_get::<Option<String>, _>("hidden")? {
        let text = format!(
            "row-level security hides rows from this role in {hidden}; connect as the owner of the tables"
        );
        found.push(hinders("row_security", text));
    }
    Ok(found)
}

fn surroundings(row: &PgRow) -> Result<Vec<Weakness>, Fault> {
    let mut found = Vec::new();
    let idle: i64 = row.try_get("idle_in_transaction")?;
    if idle > 0 {
        let text = format!(
            "{idle} session(s) have been idle in a transaction for more than an hour and keep vacuum from cleaning \
             up, so that claims get slower; end them, and set idle_in_transaction_session_timeout for their role"
        );
        found.push(hinders("idle in transaction", text));
    }
    let apart_ms = SystemClock.now().millis() - row.try_get::<i64, _>("clock_ms")?;
    if apart_ms.abs() > CLOCKS_APART_MAX_MS {
        let (secs, than) = (apart_ms.abs() / 1_000, if apart_ms > 0 { "behind" } else { "ahead of" });
        let text = format!("the server's clock is {secs} s {than} this machine's; synchronise both (NTP)");
        found.push(hinders("clock", text));
    }
    Ok(found)
}
