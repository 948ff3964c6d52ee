//! Signed calls to AWS, for whatever speaks to one of its services.
//!
//! `client` makes a call and starts the story: `region` and `endpoint` say where it goes, `keeper` has the credentials
//! that `chain` found (`turns` lets one call look at a time), `sign` signs it (Signature Version 4), `http` has the
//! connections, `answer` reads what came back and `failure` says what went wrong before that. `environment` and
//! `profiles` are AWS's own settings, `settings` is both of them. What a service wants to be told and what its errors
//! mean is no part of this.

mod answer;
mod chain;
mod client;
mod credentials;
mod endpoint;
mod environment;
mod failure;
mod http;
mod keeper;
mod profiles;
mod region;
mod settings;
mod sign;
mod turns;

pub use answer::{Answer, Refusal};
pub use client::{Client, Config, Request};
pub use credentials::Credentials;
pub use endpoint::Service;
pub use environment::Environment;
pub use failure::{Failure, Lack, Sent};
pub use region::is_region;
pub use reqwest::Method;
pub use sign::encode;
