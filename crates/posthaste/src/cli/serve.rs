//! `posthaste serve --role all|api|worker`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use store::{Store, StoreError, Weakness};
use tokio::net::{TcpListener, TcpSocket};

use super::{Session, note};
use crate::running::{self, Role};
use crate::wire::{self, Patience, Presence};
use crate::{shutdown, telemetry};

/// Before the store is opened again that went away as soon as it was there.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Clients that have connected and were not taken yet; the system may allow fewer (4,096 by default). When it is full the
/// system drops or resets connections without a word of ours, so it is as long as all clients that are to be served or
/// told otherwise may need.
const QUEUE_MAX: u32 = 8192;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What this process does.
    #[arg(long, value_enum, default_value_t = Role::All)]
    role: Role,
}

pub async fn run(session: Session, args: &Args) -> anyhow::Result<()> {
    let config = &session.loaded.config;
    telemetry::start_log(&config.log)?;
    let shutdown = shutdown::on_signal()?;
    let listener = match running::address(config, args.role) {
        Some(address) => Some(listen(address).with_context(|| format!("cannot listen on {address}"))?),
        None => None,
    };
    let Some(store) = shutdown.run_until_cancelled(open_store(&session)).await else {
        return Ok(());
    };
    let store = store?;
    if let Some(complaint) = wire::database_file(config).and_then(super::doctor::on_network) {
        tracing::error!("{complaint}");
    }
    say_weaknesses(&*store).await;
    if config.default_route == [gateway::CAPTURE] && config.guard == gateway::EnvironmentGuard::Open {
        tracing::warn!("no provider is configured: all mail goes to the capture mailbox and none is sent");
    }
    running::run(config, store, listener, args.role, running::dashboard(config), shutdown).await
}

/// As `TcpListener::bind`, with a longer queue.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUE_MAX)
}

/// Opens the store of this environment. With `--wait` also a database that goes away between the two is waited for.
async fn open_store(session: &Session) -> anyhow::Result<Arc<dyn Store>> {
    let config = &session.loaded.config;
    loop {
        let store = wire::open_store(config, Presence::MayBeNew, session.patience).await?;
        let Err(error) = wire::check_environment(config, &*store).await else { return Ok(store) };
        let is_temporary = error.downcast_ref().is_some_and(StoreError::is_temporary);
        if session.patience == Patience::Once || !is_temporary {
            return Err(error);
        }
        note(format_args!("posthaste: {error}; trying again"));
        store.close().await;
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// What `doctor` would complain about, for those who never ask it.
async fn say_weaknesses(store: &dyn Store) {
    match store.weaknesses().await {
        Ok(weaknesses) => {
            for Weakness { setting, text, loses_data } in weaknesses {
                if loses_data {
                    tracing::error!(setting, "the database can lose acknowledged emails: {text}");
                } else {
                    tracing::warn!(setting, "the database is not set up well: {text}");
                }
            }
        }
        Err(error) => tracing::warn!(%error, "the settings of the database could not be read"),
    }
}
