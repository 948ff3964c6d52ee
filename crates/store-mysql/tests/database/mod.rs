//! A database of its own for each test, on the server that POSTHASTE_TEST_MYSQL names, dropped at the test's end.

#![allow(dead_code, reason = "each test uses a part of this")]

use std::ops::Deref;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection};
use store_mysql::{MysqlConfig, MysqlStore};
use url::Url;
use uuid::Uuid;

/// A database without tables.
pub struct Database {
    name: String,
}

impl Database {
    pub async fn new() -> Self {
        let name = format!("posthaste_test_{}", Uuid::new_v4().simple());
        let mut admin = connect(&admin_url()).await;
        let sql = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        admin.execute(sql).await.expect("a database can be made");
        Self { name }
    }

    pub fn url(&self) -> String {
        let mut url = admin_url();
        url.set_path(&self.name);
        url.to_string()
    }

    pub fn config(&self) -> MysqlConfig {
        MysqlConfig::parse(&self.url()).expect("a good URL")
    }

    /// A connection for looking behind the store's back.
    pub async fn connect(&self) -> MySqlConnection {
        connect(&Url::parse(&self.url()).expect("a good URL")).await
    }

    pub async fn open(&self) -> MysqlStore {
        MysqlStore::open(&self.config()).await.expect("the store opens")
    }
}

impl Drop for Database {
    /// On a thread of its own: the test's runtime may be ending. What cannot be dropped is left behind.
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {}", self.name);
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async move {
                let mut admin = connect(&admin_url()).await;
                let _ = admin.execute(AssertSqlSafe(sql)).await;
            });
            std::io::Result::Ok(())
        });
        let _ = dropped.join();
    }
}

/// A store and the database it lives in.
pub struct Fixture {
    store: MysqlStore,
    pub database: Database,
}

impl Deref for Fixture {
    type Target = MysqlStore;

    fn deref(&self) -> &MysqlStore {
        &self.store
    }
}

pub async fn fresh() -> Fixture {
    let database = Database::new().await;
    Fixture { store: database.open().await, database }
}

/// The server's own user may do everything there.
pub fn admin_url() -> Url {
    let text = std::env::var("POSTHASTE_TEST_MYSQL").unwrap_or_else(|_| {
        panic!("no server: run tests/peers/run.sh cargo nextest run -p store-mysql, or set POSTHASTE_TEST_MYSQL")
    });
    Url::parse(&text).expect("POSTHASTE_TEST_MYSQL is a URL")
}

pub async fn connect(url: &Url) -> MySqlConnection {
    MySqlConnection::connect(url.as_str()).await.expect("the server of POSTHASTE_TEST_MYSQL answers")
}
