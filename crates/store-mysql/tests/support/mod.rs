//! A database of its own for each test, on the server that POSTHASTE_TEST_MYSQL names, dropped at the end.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ops::Deref;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _};
use store_mysql::{MysqlConfig, MysqlStore};

const VARIABLE: &str = "POSTHASTE_TEST_MYSQL";

/// An empty database; gone when this is dropped.
pub struct Database {
    pub name: String,
    admin_url: String,
}

impl Database {
    pub async fn new() -> Self {
        let admin_url = std::env::var(VARIABLE).unwrap_or_else(|_| {
            panic!("{VARIABLE} is not set: run tests/peers/run.sh cargo nextest run -p store-mysql")
        });
        let name = format!("posthaste_{}", uuid::Uuid::new_v4().simple());
        let mut admin = MySqlConnection::connect(&admin_url).await.expect("the test server lets us in");
        run(&mut admin, &format!("CREATE DATABASE {name}")).await;
        Self { name, admin_url }
    }

    pub fn url(&self) -> String {
        self.url_with("")
    }

    pub fn url_with(&self, query: &str) -> String {
        let mut url: url::Url = self.admin_url.parse().expect("a URL");
        url.set_path(&self.name);
        url.set_query((!query.is_empty()).then_some(query));
        url.into()
    }

    pub fn config(&self) -> MysqlConfig {
        MysqlConfig::parse(&self.url()).expect("a good URL")
    }

    pub async fn open(&self) -> MysqlStore {
        MysqlStore::open(&self.config()).await.expect("a new store opens")
    }

    pub async fn connect(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.url()).await.expect("a connection")
    }

    pub async fn admin(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.admin_url).await.expect("a connection")
    }

    /// The numbers of the connections to this database.
    pub async fn connections(&self) -> Vec<i64> {
        let mut admin = self.admin().await;
        // MySQL's own list of processes fails on statements that hold binary values.
        let sql = if is_mariadb(&mut admin).await {
            "SELECT CAST(id AS SIGNED) AS id FROM information_schema.processlist WHERE db = ?"
        } else {
            "SELECT CAST(processlist_id AS SIGNED) AS id FROM performance_schema.threads WHERE processlist_db = ?"
        };
        let rows = sqlx::query(sql).bind(&self.name).fetch_all(&mut admin).await.expect("asked");
        rows.iter().map(|row| row.get("id")).collect()
    }

    /// Ends every connection to this database.
    pub async fn kill_connections(&self) {
        let mut admin = self.admin().await;
        for id in self.connections().await {
            // It may have ended by itself.
            let _ = admin.execute(AssertSqlSafe(format!("KILL {id}"))).await;
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin_url, name) = (self.admin_url.clone(), self.name.clone());
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                if let Ok(mut admin) = MySqlConnection::connect(&admin_url).await {
                    let _ = admin.execute("SET lock_wait_timeout = 5").await;
                    let _ = admin.execute(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name}"))).await;
                }
            });
        });
        // What is left behind goes with the server.
        let _ = dropping.join();
    }
}

pub async fn is_mariadb(connection: &mut MySqlConnection) -> bool {
    let row = sqlx::query("SELECT VERSION() AS version").fetch_one(connection).await.expect("asked");
    row.get::<String, _>("version").contains("MariaDB")
}

pub async fn run(connection: &mut MySqlConnection, sql: &str) {
    if let Err(error) = connection.execute(AssertSqlSafe(sql.to_owned())).await {
        panic!("{sql}: {error}");
    }
}

/// A store and the database it lives in.
pub struct Fixture {
    pub store: MysqlStore,
    pub database: Database,
}

impl Deref for Fixture {
    type Target = MysqlStore;

    fn deref(&self) -> &MysqlStore {
        &self.store
    }
}

impl Fixture {
    /// The same store, as another process opens it.
    pub async fn another(&self) -> MysqlStore {
        self.database.open().await
    }
}

pub async fn fresh() -> Fixture {
    let database = Database::new().await;
    let store = database.open().await;
    Fixture { store, database }
}
