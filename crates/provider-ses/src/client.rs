//! The AWS SDK as we want it: no retries of its own, bounded in time, and loaded when the first call is made, since
//! asking the machine for its region may take seconds where there is nobody to answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_sdk_sesv2::Client;
use aws_sdk_sesv2::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_sesv2::config::retry::RetryConfig;
use aws_sdk_sesv2::config::timeout::TimeoutConfig;
use aws_sdk_sesv2::config::{
    ConfigBag, Credentials, IdentityCache, Intercept, Region, RuntimeComponents,
    StalledStreamProtectionConfig,
};
use aws_sdk_sesv2::error::BoxError;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::config::SesConfig;
use crate::errors::Mishap;

/// For reading AWS's files and, where no region is set, asking the machine for it.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// For finding credentials, which may mean a call to STS or to the machine. It is part of the time a call may take.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(10);

/// The client, once there is one.
#[derive(Debug)]
pub struct LazyClient {
    config: SesConfig,
    credentials: Option<Credentials>,
    client: OnceCell<Client>,
}

impl LazyClient {
    pub fn new(config: SesConfig, credentials: Option<Credentials>) -> Self {
        Self { config, credentials, client: OnceCell::new() }
    }

    pub fn config(&self) -> &SesConfig {
        &self.config
    }

    /// A failure is not kept: the next call tries again.
    pub async fn get(&self) -> Result<&Client, Mishap> {
        self.client.get_or_try_init(|| self.load()).await
    }

    async fn load(&self) -> Result<Client, Mishap> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = &self.config.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(endpoint) = &self.config.endpoint {
            loader = loader.endpoint_url(endpoint.as_str());
        }
        if let Some(credentials) = &self.credentials {
            loader = loader.credentials_provider(credentials.clone());
        }
        let shared = timeout(LOAD_TIMEOUT, loader.load()).await.map_err(|_| Mishap::NoRegion)?;
        if shared.region().is_none() {
            return Err(Mishap::NoRegion);
        }
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(self.config.connect_timeout)
            .operation_timeout(self.config.timeout)
            .build();
        let config = aws_sdk_sesv2::config::Builder::from(&shared)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .identity_cache(IdentityCache::lazy().load_timeout(CREDENTIALS_TIMEOUT).build())
            // The time-out of the whole call is enough.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .build();
        Ok(Client::from_conf(config))
    }
}

/// Whether a call has come so far that its request may be out: credentials are found, it is signed, and what is left
/// is the connection.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<AtomicBool>);

impl Progress {
    pub fn is_out(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Intercept for Progress {
    fn name(&self) -> &'static str {
        "Progress"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.store(true, Ordering::SeqCst);
        Ok(())
    }
}
