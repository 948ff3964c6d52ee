//! `posthaste migrate`: the store brings its schema up to date when it is opened; this does nothing more.

use serde_json::json;

use super::Session;

pub async fn run(session: &Session) -> anyhow::Result<()> {
    let store = session.store_or_new().await?;
    store.check().await?;
    store.close().await;
    session.out.result(&json!({ "migrated": true }), "the store is up to date")?;
    Ok(())
}
