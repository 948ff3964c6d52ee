//! From a signal to a token: the first SIGTERM or SIGINT asks everything to finish, the second one ends the
//! process at once. What is left unfinished then is repaired by the next start.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a shell reports for a program that a signal ended.
const EXIT_AT_ONCE: i32 = 130;

/// A token that is cancelled by the first signal. Listens from now on.
pub fn on_signal() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let name = next().await;
        tracing::info!(signal = name, "shutting down: no new work, what is in flight is finished");
        cancelled.cancel();
        let name = next().await;
        tracing::warn!(signal = name, "second signal: ending at once");
        std::process::exit(EXIT_AT_ONCE);
    });
    Ok(token)
}
