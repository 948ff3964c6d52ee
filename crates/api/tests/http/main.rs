//! The whole API over the real router and the real SQLite store. Every answer that passes through here is held
//! against the OpenAPI document: its status must be described, its body must fit the schema.

mod admin;
mod bad_input;
mod dead_letters;
mod emails;
mod idempotency;
mod isolation;
mod schema;
mod sending;
mod serving;
mod system;
mod world;
