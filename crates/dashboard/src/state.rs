//! What every page works with, made once at start.

use std::ops::Deref;
use std::sync::Arc;

use api::ApiState;
use api::inside::Inside;
use model::Secret;

use crate::assets::Assets;
use crate::live::Hub;
use crate::sessions::{Sessions, Tries};

/// What the operator decides about the dashboard. Whether there is a login is the API's admin token.
#[derive(Debug, Clone, Default)]
pub struct DashboardSettings {
    /// Where browsers find it, such as `https://mail.example.com`; for a proxy that changes the Host header, and for
    /// cookies that only travel over TLS.
    pub public_url: Option<String>,
    /// The key that `posthaste dev` prints anyway, for the line that teaches to send: its company's name and the key.
    pub dev_key: Option<(String, Secret<String>)>,
}

impl DashboardSettings {
    pub fn is_https(&self) -> bool {
        self.public_url.as_ref().is_some_and(|url| url.starts_with("https://"))
    }
}

/// Shared by all requests; cheap to clone.
#[derive(Clone)]
pub struct Ui(Arc<Shared>);

pub struct Shared {
    pub inside: Inside,
    pub settings: DashboardSettings,
    pub sessions: Sessions,
    pub tries: Tries,
    pub assets: Assets,
    pub hub: Hub,
}

impl Ui {
    pub fn new(state: ApiState, settings: DashboardSettings) -> Self {
        Self(Arc::new(Shared {
            inside: Inside::new(state),
            settings,
            sessions: Sessions::default(),
            tries: Tries::default(),
            assets: Assets::new(),
            hub: Hub::default(),
        }))
    }
}

impl Deref for Ui {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
