//! Who is alive: a worker holds a lock on a file of its own beside the database for as long as its process
//! lives, however that ends. So the leases of a killed process are taken over at once, not when they run out.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use model::WorkerId;
use store::StoreError;

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
        let file = File::create(folder.join(worker.to_string())).map_err(cannot)?;
        file.try_lock().map_err(|error| cannot(error.into()))?;
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
        let Ok(file) = File::open(folder.join(worker)) else { return false };
        !matches!(file.try_lock(), Err(TryLockError::WouldBlock | TryLockError::Error(_)))
    }

    /// Removes the files of the dead among those who own no lease any more.
    pub fn forget_dead(&self, owning: &[String]) {
        let Some(folder) = &self.folder else { return };
        let Ok(files) = std::fs::read_dir(folder) else { return };
        for name in files.flatten().filter_map(|file| file.file_name().into_string().ok()) {
            if !owning.contains(&name) && self.is_dead(&name) {
                let _ = std::fs::remove_file(folder.join(&name));
            }
        }
    }
}
