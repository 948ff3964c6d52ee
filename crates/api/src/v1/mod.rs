//! The calls of version 1, one file per area. Each handler reads, asks the gateway, and shapes the answer.

pub mod admin;
pub mod alerts;
pub mod answer;
pub mod attachments;
pub mod copies;
pub mod cursor;
pub mod dead_letters;
pub mod draft;
pub mod email_json;
pub mod emails;
pub mod entities;
pub mod params;
pub mod raw;
pub mod recipient;
pub mod recipients;
pub mod send;
pub mod suppressions;
pub mod templates;
pub mod url;
pub mod webhooks;

#[cfg(test)]
mod anything;
