//! The whole API over the real router and the real SQLite store. Every answer that passes through here is held
//! against the OpenAPI document: its status must be described, its body must fit the schema.

mod admin;
mod alerts;
mod bad_input;
mod copies;
mod dead_letters;
mod dice;
mod emails;
mod entities;
mod hooks;
mod idempotency;
mod isolation;
mod privacy;
mod recipients;
mod reports_model;
mod schema;
mod sending;
mod serving;
mod strangers;
mod suppressions;
mod system;
mod templates;
mod webhooks;
mod world;
