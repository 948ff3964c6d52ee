//! A file system of its own and of a few MiB, in memory, for tests of what happens when it fills up. It is gone with
//! the test, whatever becomes of that. Only root can make one.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Why there is none.
const NEEDS_ROOT: &str = "only root can mount a file system";

pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts one in the folder, which has to exist. `None`, said loudly, where it is not allowed; in CI root has to be
    /// allowed.
    pub fn mount(folder: &Path, mebibytes: u32) -> Option<Self> {
        let options = format!("size={mebibytes}m,mode=0700");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder).output();
        let mounted = mounted.expect("mount can be run");
        if mounted.status.success() {
            return Some(Self { folder: folder.to_owned() });
        }
        let complaint = String::from_utf8_lossy(&mounted.stderr).into_owned();
        assert!(!(is_ci() && is_root()), "no small disk for the test: {complaint}");
        eprintln!("\n*** SKIPPED: a test of full disks did not run: {NEEDS_ROOT} ({})\n", complaint.trim());
        None
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Takes up all but so many bytes.
    pub fn fill_up(&self, but_bytes: u64) -> Filler {
        let mut filler = Filler::on(self);
        filler.grow();
        let size = filler.file.metadata().expect("the file is there").len();
        filler.file.set_len(size.saturating_sub(but_bytes)).expect("a file can be cut short");
        filler
    }

    /// Takes up everything, also what others give back, as a program does that writes its log without end.
    pub fn keep_full(&self) -> GreedyFiller {
        let mut filler = Filler::on(self);
        filler.grow();
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let greed = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                filler.grow();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        GreedyFiller { is_over, greed: Some(greed) }
    }
}

/// What takes up the room; gives it back when dropped.
pub struct Filler {
    path: PathBuf,
    file: File,
}

impl Filler {
    fn on(disk: &SmallDisk) -> Self {
        let path = disk.folder.join("filler");
        let file = File::create(&path).expect("a file can be made");
        Self { path, file }
    }

    fn grow(&mut self) {
        let block = [0x5A_u8; 4096];
        while self.file.write(&block).is_ok() {}
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Takes up the room there is and the room there will be; gives it all back when dropped.
pub struct GreedyFiller {
    is_over: Arc<AtomicBool>,
    greed: Option<JoinHandle<()>>,
}

impl Drop for GreedyFiller {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(greed) = self.greed.take() {
            // Its filler goes with it, whichever way it ended.
            let _ = greed.join();
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that still has a file open must not keep it in the tree.
        let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
    }
}

fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}
