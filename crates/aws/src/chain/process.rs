//! Credentials that a command prints (`credential_process` of a profile).

use std::process::Stdio;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::chain::ANSWER_BYTES_MAX;
use crate::credentials::{Credentials, Written};
use crate::failure::{Failure, none_found};

/// Run by the shell, as everywhere with AWS. The command and what it says besides are not told: both may hold secrets.
pub async fn credentials(command: &str) -> Result<Credentials, Failure> {
    let failed = |error: std::io::Error| none_found(format!("credential_process could not be run: {error}"));
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let mut printed = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let most = u64::try_from(ANSWER_BYTES_MAX).unwrap_or(u64::MAX);
        stdout.take(most).read_to_end(&mut printed).await.map_err(failed)?;
    }
    let status = child.wait().await.map_err(failed)?;
    if !status.success() {
        return Err(none_found(format!("credential_process ended with {status}")));
    }
    Written::read(&printed, "credential_process")
}
