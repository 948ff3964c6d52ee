//! Who is alive: a worker holds a lock on a file of its own beside the database for as long as its process
//! lives, however that ends. So the leases of a killed process are taken over at once, not when they run out.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use model::WorkerId;
use store::StoreError;

/// How often a worker tries to mark itself as alive while others look at its file, and the pause in between.
const MARKS_MAX: u32 = 100;
const MARK_AGAIN_AFTER: Duration = Duration::from_millis(1);

pub struct Owners {
    /// `None` for a store in memory: its workers die with it.
    folder: Option<PathBuf>,
    mine: Mutex<HashMap<WorkerId, File>>,
}

impl Owners {
    pub fn beside(database: &Path) -> Self {
        let mut name = database.as_os_str().to_owned();
        name.push("-owners");
        Self { folder: Some(PathBuf::from(name)), mine: Mutex::default() }
    }

    pub fn nowhere() -> Self {
        Self { folder: None, mine: Mutex::default() }
    }

    pub fn join(&self, worker: WorkerId) -> Result<(), StoreError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let cannot = |error: std::io::Error| {
            StoreError::Unavailable(format!(
                "cannot mark the worker as alive in {}: {error}",
                folder.display()
            ))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(cannot)?;
        let file = mark(&folder.join(worker.to_string())).map_err(cannot)?;
        self.mine.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(worker, file);
        Ok(())
    }

    pub fn leave(&self, worker: WorkerId) {
        // The lock goes with it. The file stays until nothing is leased to this worker any more (`forget_dead`), so
        // that a lease it left behind is taken over at once.
        self.mine.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&worker);
    }

    /// Is this owner of a lease known to be dead? One that never joined is judged by its lease alone.
    pub fn is_dead(&self, worker: &str) -> bool {
        let Some(folder) = &self.folder else { return false };
        let is_mine = |mine: &HashMap<WorkerId, File>| mine.keys().any(|id| id.to_string() == worker);
        if is_mine(&self.mine.lock().unwrap_or_else(std::sync::PoisonError::into_inner)) {
            return false;
        }
        lock_of_dead(&folder.join(worker)).is_some()
    }

    /// Removes the files of the dead among those who own no lease any more.
    pub fn forget_dead(&self, owning: &[String]) {
        let Some(folder) = &self.folder else { return };
        let Ok(files) = std::fs::read_dir(folder) else { return };
        for name in files.flatten().filter_map(|file| file.file_name().into_string().ok()) {
            let path = folder.join(&name);
            // It is locked until it is gone: who is just about to mark itself as alive with it notices.
            if !owning.contains(&name)
                && let Some(_locked) = lock_of_dead(&path)
            {
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

/// Makes the file and locks it. Until it is locked it looks like that of a dead worker, and may be taken away.
fn mark(path: &Path) -> io::Result<File> {
    for _ in 0..MARKS_MAX {
        let file = File::create(path)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => return Ok(file),
            Ok(()) | Err(TryLockError::WouldBlock) => std::thread::sleep(MARK_AGAIN_AFTER),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other("somebody else holds its file"))
}

/// Is this file still the one of that name?
fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: io::Result<std::fs::Metadata>| metadata.ok().map(|found| (found.dev(), found.ino()));
    let found = id(std::fs::metadata(path));
    found.is_some() && found == id(file.metadata())
}

/// The file of a worker that is no more, locked as long as it is held.
fn lock_of_dead(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    file.try_lock().ok().map(|()| file)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use model::Timestamp;

    use super::*;

    /// Whoever tidies up beside it takes no file of the living: else its leases would have to run out when it dies.
    #[test]
    fn a_worker_that_joins_keeps_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("posthaste.db");
        let (here, elsewhere) = (Owners::beside(&database), Owners::beside(&database));
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for owners in [&here, &elsewhere] {
                let is_done = &is_done;
                scope.spawn(move || {
                    while !is_done.load(Ordering::Relaxed) {
                        owners.forget_dead(&[]);
                    }
                });
            }
            let joined: Vec<bool> = (0..2_000)
                .map(|_| {
                    let worker = WorkerId::new(Timestamp::from_millis(1));
                    // No panic in here: those who tidy up would go on for ever.
                    let has_joined = here.join(worker).is_ok();
                    let name = worker.to_string();
                    let is_marked = here.folder.as_ref().is_some_and(|folder| folder.join(&name).exists());
                    let is_alive = has_joined && is_marked && !elsewhere.is_dead(&name);
                    here.leave(worker);
                    is_alive
                })
                .collect();
            is_done.store(true, Ordering::Relaxed);
            assert!(joined.into_iter().all(|is_alive| is_alive));
        });
    }
}
