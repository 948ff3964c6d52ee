//! `/v1/admin/…`: the operator's companies, their keys, and the providers.

pub mod companies;
pub mod keys;
pub mod providers;
pub mod settings;
