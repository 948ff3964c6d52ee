//! Any SMTP server as a provider.
//!
//! `config` says what an address such as `smtp://user:pass@host:587` means, `wire` is the byte stream (plain or TLS)
//! under the SMTP client, `connect` opens a connection, `pool` keeps them, `send` hands one email over, `receipt` reads
//! the server's id for it, and `errors` is the one table that makes the server's answers ours.

mod config;
mod connect;
mod errors;
mod pool;
mod receipt;
mod send;
mod wire;

pub use config::{Credentials, InvalidSmtpUrl, SmtpConfig, Tls};
pub use connect::UnusableConfig;
pub use send::SmtpProvider;
