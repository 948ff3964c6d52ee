//! The database of a run: what the gateway is told about it, how the run itself looks into it, and what can happen to
//! it. A file, or a server of the run's own behind a wire that can be cut.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::{Connection as _, Executor as _, MySqlConnection};
use store::Store;
use store_mysql::{MysqlConfig, MysqlStore};
use store_postgres::{PostgresConfig, PostgresStore};
use store_sqlite::SqliteStore;
use tokio::process::Command;

use crate::peer::{Files, Peer};
use crate::processes::python;
use testkit::wire::{Proxy, Wire};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    Postgres,
    Mariadb,
}

pub enum Database {
    Sqlite(PathBuf),
    Server(Box<Server>),
}

/// A database server and the ways to it.
pub struct Server {
    peer: Peer,
    proxy: Proxy,
    /// By way of the proxy.
    url: String,
    /// Past the proxy.
    url_direct: String,
}

impl Database {
    /// A new one, in the folder of the run. A file is made by the first process that opens it.
    pub async fn make(engine: Engine, folder: &Path) -> Self {
        match engine {
            Engine::Sqlite => Self::Sqlite(folder.join("posthaste.db")),
            // Its superuser's own database is empty, and as good as any.
            Engine::Postgres => Self::server(Peer::start("postgres", folder).await, str::to_owned).await,
            Engine::Mariadb => {
                let peer = Peer::start(&mysql_server(), folder).await;
                make_database(&peer.url(peer.address().port()).await).await;
                Self::server(peer, in_our_database).await
            }
        }
    }

    async fn server(peer: Peer, database: fn(&str) -> String) -> Self {
        let proxy = Proxy::start(peer.address()).await;
        let url = database(&peer.url(proxy.address.port()).await);
        let url_direct = database(&peer.url(peer.address().port()).await);
        Self::Server(Box::new(Server { peer, proxy, url, url_direct }))
    }

    /// What the gateway is told.
    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
            Self::Server(server) => server.url.clone(),
        }
    }

    /// The store itself, for the run's own questions.
    pub async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(_) => open(&self.url()).await,
            Self::Server(server) => open(&server.url_direct).await,
        }
    }

    /// The server dies as if the machine had taken it, and starts again at once. Returns when it takes connections.
    pub async fn kill_and_recover(&self) {
        let peer = &self.as_server().peer;
        peer.kill().await;
        peer.recover().await;
    }

    /// Cuts and mends the wire between the gateway and the server.
    pub fn set_wire(&self, wire: Wire) {
        self.as_server().proxy.set(wire);
    }

    /// How many connections have fallen deaf so far.
    pub fn deaf(&self) -> usize {
        self.as_server().proxy.deaf()
    }

    fn as_server(&self) -> &Server {
        match self {
            Self::Sqlite(_) => panic!("a file has no server"),
            Self::Server(server) => server,
        }
    }

    /// What SQLite itself says of its file, through a program that is not ours. A server checks its own on recovery.
    pub async fn is_intact(&self) -> bool {
        let Self::Sqlite(path) = self else { return true };
        let script = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); \
                      print(db.execute('PRAGMA integrity_check').fetchone()[0])";
        let output = Command::new(python()).args(["-c", script]).arg(path).output().await;
        let output = output.expect("python3 can be run");
        String::from_utf8_lossy(&output.stdout).trim() == "ok"
    }

    pub async fn end(self, files: Files) {
        if let Self::Server(server) = self {
            server.peer.end(files).await;
        }
    }
}

/// The store that a URL names.
pub async fn open(url: &str) -> Arc<dyn Store> {
    match url.split_once(':') {
        Some(("sqlite", path)) => {
            Arc::new(SqliteStore::open(Path::new(path)).await.expect("the database opens"))
        }
        Some(("postgres", _)) => {
            let config = PostgresConfig::parse(url).expect("a good URL");
            Arc::new(PostgresStore::open(&config).await.expect("the database opens"))
        }
        Some(("mysql", _)) => {
            let config = MysqlConfig::parse(url).expect("a good URL");
            Arc::new(MysqlStore::open(&config).await.expect("the database opens"))
        }
        _ => panic!("no store of ours: {url}"),
    }
}

/// The server's own database is no place for ours.
fn in_our_database(url: &str) -> String {
    format!("{}/posthaste", url.rsplit_once('/').expect("a URL with a database").0)
}

/// The script of the server that stands for MySQL: MariaDB's, unless the run was asked for the other.
fn mysql_server() -> String {
    std::env::var("POSTHASTE_TEST_MYSQL_SERVER").unwrap_or_else(|_| "mariadb".into())
}

async fn make_database(admin_url: &str) {
    let mut admin = MySqlConnection::connect(admin_url).await.expect("the server lets us in");
    let sql = "CREATE DATABASE posthaste CHARACTER SET utf8mb4";
    admin.execute(sql).await.expect("a database is made");
}
