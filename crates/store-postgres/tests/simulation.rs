//! PostgreSQL played against the model of the store, seed by seed.

mod support;

use support::fresh;

store::store_simulation!(fresh());
