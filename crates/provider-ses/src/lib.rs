//! Amazon SES as a provider, by its v2 API.
//!
//! `config` says what region, endpoint and configuration set must look like, `request` makes an email into a SendEmail,
//! `send` makes the calls, `account` reads what AWS allows the account, and `errors` is the one table that makes SES's
//! answers ours. How calls to AWS are signed and made is the crate `aws`.

mod account;
mod config;
mod errors;
mod request;
mod send;
mod table;

pub use account::{Identity, identity_names};
pub use aws::Credentials;
pub use config::{InvalidSesConfig, SesConfig};
pub use send::SesProvider;
