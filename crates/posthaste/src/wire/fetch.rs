//! Fetching what a signed webhook names: certificates and confirmations, from hosts that were found trustworthy before.
//! No redirects, verified TLS, bounded in time and size.

use std::time::Duration;

use api::{Fetch, NotFetched};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::OnceCell;

const TIMEOUT: Duration = Duration::from_secs(10);
/// A certificate has two kilobytes; a confirmation is answered with a few lines.
const BYTES_MAX: usize = 64 * 1024;

/// Its client is made when it is first needed: it holds the machine's certificates, which take up megabytes.
#[derive(Default)]
pub struct WebFetch {
    client: OnceCell<reqwest::Client>,
}

impl WebFetch {
    async fn client(&self) -> Result<&reqwest::Client, NotFetched> {
        let make = || async {
            reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .timeout(TIMEOUT)
                .no_proxy()
                .user_agent(concat!("posthaste/", env!("CARGO_PKG_VERSION")))
                .build()
                .map_err(|error| NotFetched(error.to_string()))
        };
        self.client.get_or_try_init(make).await
    }
}

#[async_trait]
impl Fetch for WebFetch {
    async fn get(&self, url: &str) -> Result<Bytes, NotFetched> {
        let failed = |error: reqwest::Error| NotFetched(error.without_url().to_string());
        let mut response = self.client().await?.get(url).send().await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(NotFetched(format!("it answered {}", response.status().as_u16())));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > BYTES_MAX {
                return Err(NotFetched("the answer is too long".into()));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.into())
    }
}
