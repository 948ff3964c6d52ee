//! Bringing the schema up to date: numbered migrations, each in one transaction with the note that it was done. Safe
//! when many processes start at once (they wait for each other) and when one is killed in the middle.

use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use store::StoreError;

use crate::error::{Fault, from_sqlx};

/// Numbered, embedded, never edited once released.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_init.sql"),
    include_str!("../migrations/0002_routes.sql"),
    include_str!("../migrations/0003_feedback.sql"),
    include_str!("../migrations/0004_search.sql"),
    include_str!("../migrations/0005_history.sql"),
    include_str!("../migrations/0006_dead_letters.sql"),
    include_str!("../migrations/0007_statistics.sql"),
    include_str!("../migrations/0008_narrower.sql"),
    include_str!("../migrations/0009_series.sql"),
    include_str!("../migrations/0010_packing.sql"),
    include_str!("../migrations/0011_lookups.sql"),
    include_str!("../migrations/0012_order.sql"),
    include_str!("../migrations/0013_people.sql"),
];

/// "Post" in ASCII, twice: the lock that migrating processes stand in line for.
const LOCK: i64 = 0x506F_7374_506F_7374;

/// Where it is noted which migrations were done.
const NOTES: &str = "posthaste_schema";
/// The tables of the first migration that other programs may have under the same names.
const OURS: [&str; 6] = ["email_outbox", "email_queue", "companies", "contents", "events", "recipients"];

pub async fn migrate(connection: &mut PgConnection) -> Result<(), StoreError> {
    if schema_version(connection).await.map_err(Fault::into_store_error)? == MIGRATIONS.len() {
        return Ok(());
    }
    loop {
        let outcome = migrate_once(connection).await;
        match outcome {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(fault) => {
                crate::lane::roll_back(connection).await;
                return Err(fault.into_store_error());
            }
        }
    }
}

pub async fn require_current(connection: &mut PgConnection) -> Result<(), StoreError> {
    let found = schema_version(connection).await.map_err(Fault::into_store_error)?;
    store::require_current(found, MIGRATIONS.len())
}

/// One migration, if one is missing.
async fn migrate_once(connection: &mut PgConnection) -> Result<bool, Fault> {
    run(connection, "BEGIN").await?;
    // Others may migrate a large table just now, and so may we.
    run(connection, "SET LOCAL lock_timeout = '10min'").await?;
    run(connection, "SET LOCAL statement_timeout = 0").await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *connection).await?;
    let version = schema_version(connection).await?;
    let Some(migration) = MIGRATIONS.get(version) else {
        run(connection, "COMMIT").await?;
        return Ok(false);
    };
    run(
        connection,
        "CREATE TABLE IF NOT EXISTS posthaste_schema (
             version    integer PRIMARY KEY,
             applied_at timestamptz NOT NULL DEFAULT now()
         )",
    )
    .await?;
    run(connection, migration).await?;
    sqlx::query("INSERT INTO posthaste_schema (version) VALUES ($1)")
        .bind(i32::try_from(version + 1).unwrap_or(i32::MAX))
        .execute(&mut *connection)
        .await?;
    run(connection, "COMMIT").await?;
    Ok(true)
}

async fn run(connection: &mut PgConnection, sql: &'static str) -> Result<(), Fault> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
    Ok(())
}

/// How many migrations the database has seen; refuses one that is another program's or newer than this one.
async fn schema_version(connection: &mut PgConnection) -> Result<usize, Fault> {
    let known = MIGRATIONS.len();
    // Read from the catalogue itself: to_regclass may answer from a cache that does not know yet what the process before
    // us in the line has made.
    let rows = sqlx::query(
        "SELECT relname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
         WHERE relname = ANY($1::text[]) AND nspname = ANY(current_schemas(false))",
    )
    .bind(OURS.iter().chain([&NOTES]).copied().collect::<Vec<_>>())
    .fetch_all(&mut *connection)
    .await?;
    let found: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let is_ours = found.iter().any(|name| name == NOTES);
    let holds_tables = found.iter().any(|name| name != NOTES);
    if !is_ours && holds_tables {
        let text = "the database holds tables of another program; name an empty database or schema";
        return Err(StoreError::Unusable(text.into()).into());
    }
    if !is_ours {
        return Ok(0);
    }
    let version: i32 = sqlx::query("SELECT coalesce(max(version), 0) FROM posthaste_schema")
        .fetch_one(connection)
        .await?
        .try_get(0)?;
    match usize::try_from(version) {
        Ok(version) if version <= known => Ok(version),
        _ => Err(StoreError::Unusable(format!(
            "the database has schema version {version}, this program knows up to {known}; use a newer posthaste"
        ))
        .into()),
    }
}

/// The first words of a server's version number that this store works with.
const VERSION_MIN: i32 = 150_000;

/// What a database must be written in: one of another encoding refuses what people write, a subject with a euro sign as
/// well as what a mail server answered. The second takes every byte as it is.
const ENCODINGS: [&str; 2] = ["UTF8", "SQL_ASCII"];

/// Refuses a server that lacks what the schema needs.
pub async fn require_fitness(connection: &mut PgConnection) -> Result<(), StoreError> {
    let sql = "SELECT current_setting('server_version_num')::integer, current_setting('server_encoding')";
    let row = sqlx::query(sql).fetch_one(connection).await.map_err(from_sqlx)?;
    let version: i32 = row.try_get(0).map_err(from_sqlx)?;
    if version < VERSION_MIN {
        let text = format!("PostgreSQL {} is too old; posthaste needs 15 or newer", version / 10_000);
        return Err(StoreError::Unusable(text));
    }
    let encoding: String = row.try_get(1).map_err(from_sqlx)?;
    if !ENCODINGS.contains(&&*encoding) {
        return Err(StoreError::Unusable(format!(
            "the database has the encoding {encoding}, which cannot hold every text; make one with \
             CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )));
    }
    Ok(())
}
