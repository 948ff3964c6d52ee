//! Which server it is, and bringing the schema up to date. MySQL commits every statement that changes a schema by
//! itself, so each can be run again, and a migration counts as done when its number is written, last of all. Safe when
//! many processes start at once (they wait for each other) and when one is killed in the middle.

use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use store::StoreError;

use crate::error::{Fault, from_sqlx, number_of};

/// Numbered, embedded, never edited once released.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_init.sql"),
    include_str!("../migrations/0002_routes.sql"),
    include_str!("../migrations/0003_feedback.sql"),
    include_str!("../migrations/0004_search.sql"),
    include_str!("../migrations/0005_entities.sql"),
    include_str!("../migrations/0006_times.sql"),
    include_str!("../migrations/0007_series.sql"),
    include_str!("../migrations/0008_messages.sql"),
];

/// "Duplicate column name", "duplicate key name": somebody who was killed before writing the migration's number has
/// added it.
const IS_THERE: [u16; 2] = [1060, 1061];

/// How long a process waits for another one that migrates, in seconds.
const LOCK_WAIT_SECS: i32 = 600;

/// The two servers that speak this protocol, as far as they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Mysql,
    Mariadb,
}

/// What every connection asks of the server. Read committed locks no gaps between rows. Nothing of ours takes long: what
/// does is stuck, and says so. A transaction whose next statement does not come belongs to a connection that was lost
/// without a word, and holds locks. Strict: a value that does not fit is an error, never cut.
macro_rules! session {
    ($time_limit:literal) => {
        concat!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET autocommit = 1, time_zone = '+00:00', ",
            "sql_mode = 'STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,",
            "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', ",
            "innodb_lock_wait_timeout = 10, lock_wait_timeout = 10, ",
            $time_limit
        )
    };
}

impl Server {
    pub fn session(self) -> &'static str {
        match self {
            // Milliseconds, and for reading alone. It has no limit for idle transactions: see `begin`.
            Self::Mysql => session!("max_execution_time = 30000, wait_timeout = 60"),
            // A transaction whose process was lost ends before those who wait for its locks give up.
            Self::Mariadb => session!("max_statement_time = 30, idle_transaction_timeout = 5"),
        }
    }

    /// Begins a transaction that ends, as all do on MariaDB, when nothing is heard of it for 5 s. MySQL's limit is one for
    /// idle connections, in force for as long as the transaction is.
    pub fn begin(self) -> &'static str {
        match self {
            Self::Mysql => "SET wait_timeout = 5; BEGIN",
            Self::Mariadb => "BEGIN",
        }
    }

    pub fn commit(self) -> &'static str {
        match self {
            Self::Mysql => "COMMIT; SET wait_timeout = 60",
            Self::Mariadb => "COMMIT",
        }
    }

    pub fn roll_back(self) -> &'static str {
        match self {
            Self::Mysql => "ROLLBACK; SET wait_timeout = 60",
            Self::Mariadb => "ROLLBACK",
        }
    }

    /// For migrations, which may have to wait for each other and take their time with large tables.
    fn unlimited_session(self) -> &'static str {
        match self {
            Self::Mysql => "SET max_execution_time = 0, lock_wait_timeout = 600, wait_timeout = 28800",
            Self::Mariadb => {
                "SET max_statement_time = 0, lock_wait_timeout = 600, idle_transaction_timeout = 0"
            }
        }
    }

    /// The collation that tells apart all that differs, trailing spaces too.
    fn exact_collation(self) -> &'static str {
        match self {
            Self::Mysql => "utf8mb4_0900_bin",
            Self::Mariadb => "utf8mb4_nopad_bin",
        }
    }

    /// Refuses what is too old for the statements of this store.
    pub async fn of(connection: &mut MySqlConnection) -> Result<Self, StoreError> {
        let version: String = sqlx::query("SELECT VERSION()")
            .fetch_one(connection)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(from_sqlx)?;
        Self::from_version(&version)
    }

    fn from_version(version: &str) -> Result<Self, StoreError> {
        let (server, name, least) = if version.to_ascii_lowercase().contains("mariadb") {
            (Self::Mariadb, "MariaDB", [10, 6, 0])
        } else {
            (Self::Mysql, "MySQL", [8, 0, 17])
        };
        let numbers: Vec<u32> = version
            .split(|c: char| !c.is_ascii_digit())
            .take(3)
            .map(|number| number.parse().unwrap_or(0))
            .collect();
        if numbers[..] < least[..] {
            let [major, minor, patch] = least;
            return Err(StoreError::Unusable(format!(
                "{name} {version} is too old; posthaste needs {major}.{minor}.{patch} or newer"
            )));
        }
        Ok(server)
    }
}

pub async fn migrate(connection: &mut MySqlConnection, server: Server) -> Result<(), StoreError> {
    if schema_version(connection).await? == MIGRATIONS.len() {
        return Ok(());
    }
    run(connection, server.unlimited_session()).await?;
    lock(connection).await?;
    let done = schema_version(connection).await?;
    for (version, migration) in MIGRATIONS.iter().enumerate().skip(done) {
        for statement in statements(migration, server) {
            change(connection, &statement).await?;
        }
        let sql = "INSERT INTO posthaste_schema (version, applied_at) VALUES (?, UTC_TIMESTAMP(3))";
        sqlx::query(sql).bind(number(version + 1)).execute(&mut *connection).await.map_err(from_sqlx)?;
    }
    run(connection, "DO RELEASE_LOCK(CONCAT('posthaste.', LEFT(SHA2(DATABASE(), 256), 40)))").await
}

pub async fn require_current(connection: &mut MySqlConnection) -> Result<(), StoreError> {
    store::require_current(schema_version(connection).await?, MIGRATIONS.len())
}

/// The connection's end releases it too.
async fn lock(connection: &mut MySqlConnection) -> Result<(), StoreError> {
    let locked: Option<i64> =
        sqlx::query("SELECT GET_LOCK(CONCAT('posthaste.', LEFT(SHA2(DATABASE(), 256), 40)), ?)")
            .bind(LOCK_WAIT_SECS)
            .fetch_one(connection)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(from_sqlx)?;
    match locked {
        Some(1) => Ok(()),
        _ => Err(StoreError::Unavailable("another process has been migrating the schema for long".into())),
    }
}

/// The statements of a migration: each ends with a semicolon at the end of a line.
fn statements(migration: &str, server: Server) -> Vec<String> {
    let is_code = |line: &&str| !line.trim_start().starts_with("--") && !line.trim().is_empty();
    let code = migration.lines().filter(is_code).collect::<Vec<_>>().join("\n");
    let code = code.replace("{exact}", server.exact_collation());
    code.split(";\n")
        .map(|text| text.trim_end_matches(';').to_owned())
        .filter(|text| !text.is_empty())
        .collect()
}

/// Statements that add columns or indexes cannot say "if not there" on MySQL. They are done as a whole or not at all, so
/// that one of them which is there already means that all of the statement was done.
async fn change(connection: &mut MySqlConnection, sql: &str) -> Result<(), StoreError> {
    match sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
        Err(error) if number_of(&error).is_some_and(|number| IS_THERE.contains(&number)) => Ok(()),
        changed => changed.map(|_| ()).map_err(from_sqlx),
    }
}

async fn run(connection: &mut MySqlConnection, sql: &str) -> Result<(), StoreError> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map_err(from_sqlx)?;
    Ok(())
}

/// How many migrations the database has seen; refuses one that is another program's or newer than this one.
async fn schema_version(connection: &mut MySqlConnection) -> Result<usize, StoreError> {
    read_version(connection).await.map_err(Fault::into_store_error)
}

async fn read_version(connection: &mut MySqlConnection) -> Result<usize, Fault> {
    let row = sqlx::query(
        "SELECT COUNT(CASE WHEN table_name = 'posthaste_schema' THEN 1 END) AS ours,
                COUNT(CASE WHEN table_name <> 'posthaste_schema' THEN 1 END) AS likenesses
         FROM information_schema.tables
         WHERE table_schema = DATABASE() AND table_name IN
             ('posthaste_schema', 'email_outbox', 'email_queue', 'companies', 'contents', 'events', 'recipients')",
    )
    .fetch_one(&mut *connection)
    .await?;
    let (ours, likenesses): (i64, i64) = (row.try_get("ours")?, row.try_get("likenesses")?);
    if ours == 0 && likenesses > 0 {
        let text = "the database holds tables of another program; name an empty database";
        return Err(StoreError::Unusable(text.into()).into());
    }
    if ours == 0 {
        return Ok(0);
    }
    let version: i64 =
        sqlx::query("SELECT CAST(COALESCE(MAX(version), 0) AS SIGNED) AS version FROM posthaste_schema")
            .fetch_one(connection)
            .await?
            .try_get("version")?;
    let known = MIGRATIONS.len();
    match usize::try_from(version) {
        Ok(version) if version <= known => Ok(version),
        _ => Err(StoreError::Unusable(format!(
            "the database has schema version {version}, this program knows up to {known}; use a newer posthaste"
        ))
        .into()),
    }
}

fn number(version: usize) -> u32 {
    u32::try_from(version).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_apart_and_old_ones_refused() {
        let cases = [
            ("8.0.17", Ok(Server::Mysql)),
            ("8.4.2-commercial", Ok(Server::Mysql)),
            ("9.7.4-2", Ok(Server::Mysql)),
            ("10.11.19-MariaDB-0+deb12u1", Ok(Server::Mariadb)),
            ("11.8.1-MariaDB", Ok(Server::Mariadb)),
            ("5.7.44-log", Err("MySQL 5.7.44-log is too old; posthaste needs 8.0.17 or newer")),
            ("8.0.16", Err("MySQL 8.0.16 is too old; posthaste needs 8.0.17 or newer")),
            ("10.5.20-MariaDB", Err("MariaDB 10.5.20-MariaDB is too old; posthaste needs 10.6.0 or newer")),
        ];
        for (version, expected) in cases {
            let found = Server::from_version(version).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{version}");
        }
    }

    #[test]
    fn every_statement_can_be_run_again() {
        for migration in MIGRATIONS {
            for statement in statements(migration, Server::Mysql) {
                // The update goes by columns that it leaves alone.
                let repeatable = [
                    "CREATE TABLE IF NOT EXISTS ",
                    "CREATE OR REPLACE SQL SECURITY INVOKER VIEW ",
                    "UPDATE email_queue q JOIN email_outbox o ON o.id = q.email_id SET o.series = ",
                ];
                let is_repeatable = repeatable.iter().any(|start| statement.starts_with(start));
                // Adding fails when it is done again, before it has changed anything; what is as it should be stays so.
                let changes = ["ADD COLUMN ", "ADD INDEX ", "MODIFY COLUMN "];
                let alters = statement.starts_with("ALTER TABLE ")
                    && changes.iter().any(|change| statement.contains(change));
                assert!(is_repeatable || alters, "{statement}");
            }
        }
    }
}
