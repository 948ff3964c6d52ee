//! A disk whose power can be cut: ext4 in a file, mounted by way of a loop device. What a program has written and not
//! synced is in the memory of that file system and not in the file, so a copy of the file is what a machine would find
//! after its power failed. What the file system has handed on and not flushed is in the file; a disk with a cache of its
//! own might lose that too.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel writes to a disk on its own account now and then; a copy that was disturbed is made again, so often.
const COPIES_MAX: usize = 100;
const CHUNK_BYTES: usize = 256 * 1024;

pub struct Disk {
    image: PathBuf,
    mount_point: PathBuf,
}

impl Disk {
    /// A new, empty one of that size in the folder, or why there can be none.
    pub fn make(folder: &Path, size_bytes: u64) -> Result<Self, String> {
        let image = folder.join("disk.img");
        let file = File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(size_bytes).map_err(|error| error.to_string())?;
        // Everything is written now, so that no thread of the kernel goes on doing it during the run.
        let now = "lazy_itable_init=0,lazy_journal_init=0";
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-E", now]).arg(&image))?;
        Self::mount(image, folder.join("disk"))
    }

    /// Mounts an image; the file system mends what the power cut has left.
    pub fn mount(image: PathBuf, mount_point: PathBuf) -> Result<Self, String> {
        std::fs::create_dir_all(&mount_point).map_err(|error| error.to_string())?;
        run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(&image).arg(&mount_point))?;
        Ok(Self { image, mount_point })
    }

    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// What is on the disk and not merely in memory, as of one moment: nothing may reach the disk meanwhile.
    pub fn copy_to(&self, copy: &Path) {
        let device = self.device();
        for _ in 0..COPIES_MAX {
            let before = traffic(&device);
            copy_image(&self.image, copy);
            if before.is_idle && traffic(&device) == before {
                return;
            }
        }
        panic!("the disk is never left alone for as long as it takes to copy it");
    }

    /// The power comes back: what is on the copy is all there is, in the place where everything was. No process may use
    /// the disk any more.
    pub fn replaced_by(self, copy: PathBuf) -> Self {
        let (image, mount_point) = (self.image.clone(), self.mount_point.clone());
        drop(self);
        std::fs::remove_file(image).expect("an image can be removed");
        Self::mount(copy, mount_point).expect("a disk that lost its power can be mounted")
    }

    /// The loop device by which it is mounted: `loop0`.
    fn device(&self) -> String {
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the kernel lists its mounts");
        let point = self.mount_point.to_str().expect("a path of our own is text");
        let is_ours = |line: &&str| line.split(' ').nth(1) == Some(point);
        let device = mounts.lines().find(is_ours).and_then(|line| line.split(' ').next());
        device.and_then(|device| device.strip_prefix("/dev/")).expect("it is mounted").to_owned()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = run(Command::new("umount").arg(&self.mount_point));
        if let Err(why) = unmounted
            && !std::thread::panicking()
        {
            panic!("a disk of this run cannot be unmounted: {why}");
        }
    }
}

/// Whether a disk of this kind can be had. Where it cannot, nothing is shown; in CI that is a failure.
pub fn can_be_had(folder: &Path) -> bool {
    const PROBE_BYTES: u64 = 8 * 1024 * 1024;
    let is_root = run(Command::new("sh").args(["-c", "test \"$(id -u)\" = 0"])).is_ok();
    let made = if is_root { Disk::make(folder, PROBE_BYTES).map(drop) } else { Err("not root".to_owned()) };
    let Err(why) = made else { return true };
    assert!(
        !is_root || std::env::var("CI").as_deref() != Ok("true"),
        "power cuts cannot be tried here: {why}"
    );
    eprintln!(
        "\n*** SKIPPED: power cuts are NOT tested here, since that takes root and loop devices: {why} ***\n"
    );
    false
}

/// What has been written to a device so far.
#[derive(Debug, PartialEq, Eq)]
struct Traffic {
    writes: u64,
    sectors_written: u64,
    is_idle: bool,
}

fn traffic(device: &str) -> Traffic {
    let text =
        std::fs::read_to_string(format!("/sys/block/{device}/stat")).expect("a loop device has numbers");
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // The order is that of Documentation/block/stat.rst.
    Traffic { writes: numbers[4], sectors_written: numbers[6], is_idle: numbers[8] == 0 }
}

/// Plain reads, which see what the loop device has written; holes stay holes.
pub fn copy_image(from: &Path, to: &Path) {
    let mut from = File::open(from).expect("an image can be read");
    let mut to = File::create(to).expect("an image can be written");
    let size_bytes = from.metadata().expect("an image has a size").len();
    let zeros = vec![0_u8; CHUNK_BYTES];
    let mut chunk = vec![0_u8; CHUNK_BYTES];
    loop {
        let length = from.read(&mut chunk).expect("an image can be read");
        if length == 0 {
            break;
        }
        if chunk[..length] == zeros[..length] {
            to.seek(SeekFrom::Current(length as i64)).expect("an image can be searched");
        } else {
            to.write_all(&chunk[..length]).expect("an image can be written");
        }
    }
    to.set_len(size_bytes).expect("an image can be written");
}

/// What the command complains of, should it fail.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
