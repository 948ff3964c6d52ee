//! `/v1/admin/…`: the operator's companies, their keys, the providers, and what these reported.

pub mod companies;
pub mod keys;
pub mod providers;
pub mod reports;
pub mod settings;
