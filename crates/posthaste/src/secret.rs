//! The local secret: 32 random bytes in `posthaste.secret` beside the SQLite file, made at first use, from which
//! every key that the configuration does not name is derived.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hmac::{Hmac, KeyInit, Mac};
use model::Secret;
use rand::TryRngCore;
use sha2::Sha256;

const FILE: &str = "posthaste.secret";

/// What every derived key comes from.
#[derive(Debug, Clone)]
pub struct LocalSecret(Secret<[u8; 32]>);

impl LocalSecret {
    /// Reads the secret beside the database, or makes it.
    pub fn beside(database: &Path) -> anyhow::Result<Self> {
        let path = path_beside(database);
        match read(&path)? {
            Some(secret) => Ok(secret),
            None => make(&path),
        }
    }

    /// The key for one purpose. The same secret and purpose always give the same key.
    pub fn derive(&self, purpose: &str) -> Secret<[u8; 32]> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.0.expose()).expect("an HMAC key may have any length");
        mac.update(b"posthaste/");
        mac.update(purpose.as_bytes());
        Secret::new(mac.finalize().into_bytes().into())
    }
}

pub fn path_beside(database: &Path) -> PathBuf {
    database.with_file_name(FILE)
}

fn read(path: &Path) -> anyhow::Result<Option<LocalSecret>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
    };
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o077 != 0 {
        bail!("others can read or change {}; run: chmod 600 {0}", path.display());
    }
    let mut text = String::new();
    // One byte more than a secret and its line end, so that anything longer is seen to be something else.
    file.take(66).read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
    let Some(secret) = from_hex(text.trim_end()) else {
        bail!("{} does not hold 64 hexadecimal digits; restore it from a backup", path.display());
    };
    Ok(Some(LocalSecret(Secret::new(secret))))
}

/// Written under another name and linked into place, so that nobody ever reads half of it, and of two processes
/// that make it at once both end with the same.
fn make(path: &Path) -> anyhow::Result<LocalSecret> {
    let mut secret = [0_u8; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut secret).context("the system gives no random numbers")?;
    let draft = path.with_extension(format!("secret.{}", std::process::id()));
    let failed = || format!("cannot create {}", path.display());
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .with_context(failed)?;
    let written = file.write_all(format!("{}\n", to_hex(&secret)).as_bytes()).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| std::fs::hard_link(&draft, path));
    std::fs::remove_file(&draft).with_context(failed)?;
    sync_names(path).with_context(failed)?;
    match linked {
        Ok(()) => Ok(LocalSecret(Secret::new(secret))),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            read(path)?.with_context(|| format!("{} came and went", path.display()))
        }
        Err(error) => Err(error).with_context(failed),
    }
}

/// The name has to outlive a power cut as well: what is sealed by means of the secret will.
fn sync_names(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()
}

/// 64 hexadecimal digits.
pub fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn to_hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_and_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let database = directory.path().join("posthaste.db");
        let first = LocalSecret::beside(&database).expect("made");
        let second = LocalSecret::beside(&database).expect("read");
        assert_eq!(first.derive("a").expose(), second.derive("a").expose());
        assert_ne!(first.derive("a").expose(), first.derive("b").expose());
        let mode = std::fs::metadata(directory.path().join(FILE)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).expect("readable").count(), 1, "no draft is left");
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let database = directory.path().join("posthaste.db");
        LocalSecret::beside(&database).expect("made");
        let path = path_beside(&database);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("changed");
        assert!(LocalSecret::beside(&database).is_err());
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        for text in ["", "abc", &"g".repeat(64), &"a".repeat(65)] {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
            assert!(LocalSecret::beside(&directory.path().join("x.db")).is_err(), "{text}");
        }
    }
}
