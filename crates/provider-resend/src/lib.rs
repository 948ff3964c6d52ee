//! Resend as a provider.
//!
//! `config` says what a key and an endpoint must look like, `payload` makes an email into the JSON of `POST /emails`,
//! `eml` does the same for an .eml that was handed in, `send` makes the call, and `errors` is the one table that makes
//! Resend's answers ours.

mod config;
mod eml;
mod errors;
mod payload;
mod send;

pub use config::{InvalidResendConfig, ResendConfig};
pub use send::{ResendProvider, UnusableClient};
