//! Questions are answered beside the writer, on connections of their own that never block it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use store::StoreError;
use tokio::sync::Semaphore;

use crate::schema;
use crate::writer::Writer;

/// How many questions are answered at once; the others wait their turn.
const CONNECTIONS_MAX: usize = 4;

#[derive(Clone)]
pub enum Reader {
    File {
        path: Arc<PathBuf>,
        idle: Arc<Mutex<Vec<Connection>>>,
        turns: Arc<Semaphore>,
    },
    /// A database in memory has one connection only: the writer's.
    Through(Writer),
}

impl Reader {
    pub fn of_file(path: &Path) -> Self {
        Self::File {
            path: Arc::new(path.to_owned()),
            idle: Arc::default(),
            turns: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        }
    }

    pub fn through(writer: Writer) -> Self {
        Self::Through(writer)
    }

    pub async fn run<T, F>(&self, question: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let (path, idle, turns) = match self {
            Self::Through(writer) => {
                let mut question = Some(question);
                let undone = || StoreError::Unavailable("what was read has been undone".into());
                return writer.run(move |work| question.take().ok_or_else(undone)?(work.connection)).await;
            }
            Self::File { path, idle, turns } => (Arc::clone(path), Arc::clone(idle), Arc::clone(turns)),
        };
        let turn =
            turns.acquire_owned().await.map_err(|_| StoreError::Unavailable("the store is closed".into()))?;
        let answer = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = match kept {
                Some(connection) => connection,
                None => schema::connect_for_reading(&path)?,
            };
            let answer = question(&connection);
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            answer
        });
        // The words of a panic may quote what was read.
        answer.await.map_err(|_panic| StoreError::Broken("a read panicked".into()))?
    }

    /// Closes the connections that are idle and refuses new questions.
    pub fn close(&self) {
        if let Self::File { idle, turns, .. } = self {
            turns.close();
            idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}
