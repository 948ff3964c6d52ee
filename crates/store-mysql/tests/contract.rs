//! MySQL, or MariaDB, keeps every law of the store: each in a database of its own.

mod support;

use support::fresh;

store::store_contract!(fresh());
