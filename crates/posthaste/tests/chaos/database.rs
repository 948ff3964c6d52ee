//! The database of a run: what the gateway is told about it, and how the run itself looks into it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::Store;
use store_sqlite::SqliteStore;
use tokio::process::Command;

use crate::processes::python;

pub enum Database {
    Sqlite(PathBuf),
}

impl Database {
    /// A file in the folder of the run; the first process makes it.
    pub fn sqlite(folder: &Path) -> Self {
        Self::Sqlite(folder.join("posthaste.db"))
    }

    /// What the gateway is told.
    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
        }
    }

    /// The store itself, for the run's own questions.
    pub async fn open(&self) -> Arc<dyn Store> {
        open(&self.url()).await
    }

    /// What SQLite itself says of its file, through a program that is not ours.
    pub async fn is_intact(&self) -> bool {
        let Self::Sqlite(path) = self;
        let script = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); \
                      print(db.execute('PRAGMA integrity_check').fetchone()[0])";
        let output = Command::new(python()).args(["-c", script]).arg(path).output().await;
        let output = output.expect("python3 can be run");
        String::from_utf8_lossy(&output.stdout).trim() == "ok"
    }
}

/// The store that a URL names.
pub async fn open(url: &str) -> Arc<dyn Store> {
    let path = url.strip_prefix("sqlite:").expect("a store that is known here");
    Arc::new(SqliteStore::open(Path::new(path)).await.expect("the database opens"))
}
