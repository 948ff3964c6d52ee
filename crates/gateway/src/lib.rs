//! The life of an email, from acceptance to its recorded end. Knows the ports, never a back-end.
//!
//! An email walks through these files in this order: `accept` (check, store, offer), `worker` (claim loop),
//! `attempt` (one attempt, start to recorded end), `validate` (the four validations), `conclude` (result to
//! verdict, pure). `sweep` repairs what crashes leave behind and expires what is too old, `intake` checks what
//! was accepted unchecked, `replay` takes dead letters back, `alerts` tells admins, `reputation` pauses who harms the others, `lookup` reads for the API. Beside them: `route` (which
//! provider, which sender), `gates` (whether a provider is open and how fast it may go; `health` has the rules,
//! `standing` tells people), `lineup` (whose turn it is among the routes), `flight` (an attempt as its worker sees it),
//! `caution` (emails that may have brought a worker down), `company_cache`,
//! `suppressions` (who is not to be written to), `templates`, `sandbox` (reports that are
//! played), `observe` (every metric, named once), `trace` (spans of the path, for OpenTelemetry),
//! `steady` (what time it is when the clock was set), `keys` (who calls), `documents` (CPF and CNPJ under lock),
//! `cursors` (where a list goes on, told to nobody).

pub mod accept;
pub mod addressees;
pub mod alerts;
pub mod attempt;
pub mod caution;
pub mod company_cache;
pub mod conclude;
pub mod cursors;
pub mod documents;
pub mod flight;
pub mod gates;
pub mod health;
pub mod intake;
pub mod keys;
pub mod lineup;
pub mod lookup;
pub mod observe;
pub mod replay;
pub mod reputation;
pub mod route;
pub mod sandbox;
pub mod standing;
pub mod steady;
pub mod suppressions;
pub mod sweep;
pub mod templates;
#[cfg(test)]
mod testing;
pub mod trace;
pub mod validate;
pub mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{Address, Clock, RetryPolicy};
use provider::Provider;
use queue::Queue;
use store::{Retention, Store};

use crate::alerts::AlertSettings;
use crate::reputation::ReputationLimits;
use crate::suppressions::SuppressionList;
use crate::templates::TemplateShelf;
use crate::trace::Tracer;

/// The ports and settings that everything here works with.
#[derive(Clone)]
pub struct Gateway {
    pub store: Arc<dyn Store>,
    pub queue: Arc<dyn Queue>,
    /// By the name the configuration gives them. `capture` is always there.
    pub providers: Arc<BTreeMap<String, Arc<dyn Provider>>>,
    pub clock: Arc<dyn Clock>,
    /// A random number from -1 to 1, for jitter; tests give their own.
    pub dice: Arc<dyn Fn() -> f64 + Send + Sync>,
    pub settings: Arc<Settings>,
    pub suppressions: Arc<SuppressionList>,
    pub templates: Arc<TemplateShelf>,
    /// Off unless the operator names a collector.
    pub tracer: Tracer,
}

/// The name of the provider that keeps mail instead of sending it.
pub const CAPTURE: &str = "capture";

/// What the operator decides. Made once at start from the configuration, already checked.
#[derive(Debug, Clone)]
pub struct Settings {
    pub retry_policies: BTreeMap<String, RetryPolicy>,
    pub default_retry_policy: String,
    /// Names of providers, in order, for companies without a route of their own.
    pub default_route: Vec<String>,
    /// How long an email may wait before it is given up, unless it says otherwise.
    pub ttl: Duration,
    pub worker_concurrency: u32,
    pub lease: Duration,
    pub retention: Retention,
    pub guard: EnvironmentGuard,
    /// How many emails per second a provider is given, where the operator says so.
    pub provider_rates: BTreeMap<String, u32>,
    pub alerts: AlertSettings,
    /// `None` judges nobody.
    pub reputation: Option<ReputationLimits>,
}

/// Where mail may go in this environment.
#[derive(Debug, Clone, PartialEq)]
pub enum EnvironmentGuard {
    /// Production: mail goes where it is addressed.
    Open,
    /// Everything goes into the capture mailbox.
    Capture,
    /// Everything goes to this one address.
    Redirect(Address),
    /// These addresses (`a@b.com`) and domains (`@b.com`) are sent to; the rest is captured.
    Allow(Vec<String>),
}
