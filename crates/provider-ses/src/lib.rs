//! Amazon SES as a provider, by its v2 API.
//!
//! `config` says what region, endpoint and configuration set must look like, `client` is the AWS SDK as we want it,
//! `request` makes an email into a SendEmail, `send` makes the calls, `account` reads what AWS allows the account, and
//! `errors` is the one table that makes SES's answers ours.

mod account;
mod client;
mod config;
mod errors;
mod request;
mod send;
mod table;

pub use account::{Identity, identity_names};
pub use aws_sdk_sesv2::config::Credentials;
pub use config::{InvalidSesConfig, SesConfig};
pub use send::SesProvider;
