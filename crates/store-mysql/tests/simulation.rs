//! MySQL, or MariaDB, played against the model of the store, seed by seed: one database per test, emptied before each
//! seed.

mod support;

use std::ops::Deref;

use store::Upkeep as _;
use store_mysql::MysqlStore;
use support::{Database, run};
use tokio::sync::OnceCell;

/// About a minute on two cores; POSTHASTE_SIM_SEEDS asks for more.
const SEEDS: u64 = 24;

/// Everything the store writes to.
const TABLES: &str = "meta, api_keys, companies, recipients, email_outbox, email_queue, email_intake, email_tags, \
    contents, events, idempotency_keys, company_days, company_rates, provider_notes, status_counts, reports, \
    recipient_states, suppressions, address_failures, failure_locks, problems, alerts, templates, template_names, \
    day_tallies, entity_tallies, entity_recipients, tally_notes, provider_messages";

/// The database of this process. Nothing drops a static: it goes with the server.
static DATABASE: OnceCell<Database> = OnceCell::const_new();

/// Closes behind itself, so that seeds do not pile up connections.
struct Played(Option<MysqlStore>);

impl Deref for Played {
    type Target = MysqlStore;

    fn deref(&self) -> &MysqlStore {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        if let Some(store) = self.0.take() {
            tokio::spawn(async move { store.close().await });
        }
    }
}

async fn emptied() -> Played {
    let database = DATABASE.get_or_init(Database::new).await;
    let store = database.open().await;
    let mut connection = database.connect().await;
    // Faster than TRUNCATE for a few rows.
    for table in TABLES.split(", ") {
        run(&mut connection, &format!("DELETE FROM {table}")).await;
    }
    Played(Some(store))
}

store::store_simulation!(emptied(), SEEDS);
