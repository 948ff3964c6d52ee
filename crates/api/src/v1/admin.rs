//! `/v1/admin/…`: the operator's companies and their keys.

pub mod companies;
pub mod keys;
pub mod settings;
