//! A database of its own for each test, on the server that POSTHASTE_TEST_POSTGRES names, dropped at the end.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ops::Deref;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use store_postgres::{PostgresConfig, PostgresStore};

const VARIABLE: &str = "POSTHASTE_TEST_POSTGRES";

/// An empty database; gone when this is dropped.
pub struct Database {
    pub name: String,
    admin_url: String,
}

impl Database {
    pub async fn new() -> Self {
        let admin_url = std::env::var(VARIABLE).unwrap_or_else(|_| {
            panic!("{VARIABLE} is not set: run tests/peers/run.sh cargo nextest run -p store-postgres")
        });
        let name = format!("posthaste_{}", uuid::Uuid::new_v4().simple());
        let mut admin = PgConnection::connect(&admin_url).await.expect("the test server lets us in");
        run(&mut admin, &format!("CREATE DATABASE {name}")).await;
        Self { name, admin_url }
    }

    /// The URL of this database for its owner.
    pub fn url(&self) -> String {
        self.url_with("")
    }

    pub fn url_with(&self, query: &str) -> String {
        let mut url: url::Url = self.admin_url.parse().expect("a URL");
        url.set_path(&self.name);
        url.set_query((!query.is_empty()).then_some(query));
        url.into()
    }

    /// The URL for another role without a password.
    pub fn url_of_role(&self, role: &str) -> String {
        let mut url: url::Url = self.url().parse().expect("a URL");
        url.set_username(role).expect("a URL with a host");
        url.set_password(None).expect("a URL with a host");
        url.into()
    }

    pub fn config(&self) -> PostgresConfig {
        PostgresConfig::parse(&self.url()).expect("a good URL")
    }

    pub async fn open(&self) -> PostgresStore {
        PostgresStore::open(&self.config()).await.expect("a new store opens")
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.expect("a connection")
    }

    pub async fn admin(&self) -> PgConnection {
        PgConnection::connect(&self.admin_url).await.expect("a connection")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin_url, name) = (self.admin_url.clone(), self.name.clone());
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                if let Ok(mut admin) = PgConnection::connect(&admin_url).await {
                    let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                    let _ = admin.execute(AssertSqlSafe(sql)).await;
                }
            });
        });
        // What is left behind goes with the server.
        let _ = dropping.join();
    }
}

pub async fn run(connection: &mut PgConnection, sql: &str) {
    if let Err(error) = connection.execute(AssertSqlSafe(sql.to_owned())).await {
        panic!("{sql}: {error}");
    }
}

/// A store and the database it lives in.
pub struct Fixture {
    pub store: PostgresStore,
    pub database: Database,
}

impl Deref for Fixture {
    type Target = PostgresStore;

    fn deref(&self) -> &PostgresStore {
        &self.store
    }
}

impl Fixture {
    /// The same store, as another process opens it.
    pub async fn another(&self) -> PostgresStore {
        self.database.open().await
    }
}

pub async fn fresh() -> Fixture {
    let database = Database::new().await;
    let store = database.open().await;
    Fixture { store, database }
}
