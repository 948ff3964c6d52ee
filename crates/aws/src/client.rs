//! One service of AWS in one region, and the calls to it. Start reading here.
//!
//! Everything is looked for when the first call is made, since asking the machine for its region may take seconds
//! where there is nobody to answer. A call is made once: who wants it tried again decides that above.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use model::Clock;
use reqwest::Method;
use tokio::time::timeout;
use url::Url;

use crate::answer::Answer;
use crate::chain::Search;
use crate::credentials::Credentials;
use crate::endpoint::{self, Service};
use crate::environment::Environment;
use crate::failure::{Failure, Sent};
use crate::keeper::Keeper;
use crate::settings::Settings;
use crate::sign::{Scope, Unsigned, sign};
use crate::turns::Turns;
use crate::{http, region};

/// What there is to say about calls to one service.
#[derive(Debug, Clone)]
pub struct Config {
    pub service: Service,
    /// Else what AWS's own settings say, or the machine.
    pub region: Option<String>,
    /// Else what AWS's own settings say, or the service's own.
    pub endpoint: Option<Url>,
    /// Else they are found by AWS's chain.
    pub credentials: Option<Credentials>,
    /// For the whole call.
    pub timeout: Duration,
    /// For the way to the server: name, TCP and TLS.
    pub connect_timeout: Duration,
    /// More of an answer is not read.
    pub answer_bytes_max: usize,
}

pub struct Request<'x> {
    pub method: Method,
    /// Encoded, and without a query.
    pub path: &'x str,
    /// What the service wants to be told beside the signature, by names in small letters: `content-type`,
    /// `x-amz-target`.
    pub headers: &'x [(&'static str, &'x str)],
    pub body: Vec<u8>,
}

#[derive(Debug)]
pub struct Client {
    config: Config,
    environment: Environment,
    clock: Arc<dyn Clock>,
    place: OnceLock<Place>,
    place_turns: Turns,
    keeper: Keeper,
}

/// Where calls go.
#[derive(Debug)]
struct Place {
    http: reqwest::Client,
    region: String,
    endpoint: Url,
}

impl Client {
    pub fn new(config: Config, environment: Environment, clock: Arc<dyn Clock>) -> Self {
        let (place, place_turns) = (OnceLock::new(), Turns::default());
        Self { config, environment, clock, place, place_turns, keeper: Keeper::default() }
    }

    /// One call, within its time.
    pub async fn call(&self, request: Request<'_>) -> Result<Answer, Failure> {
        let is_out = AtomicBool::new(false);
        let answered = timeout(self.config.timeout, self.exchange(request, &is_out)).await;
        answered.unwrap_or_else(|_| {
            let sent = if is_out.load(Ordering::SeqCst) { Sent::Perhaps } else { Sent::Nothing };
            Err(Failure::TimedOut(sent))
        })
    }

    async fn exchange(&self, request: Request<'_>, is_out: &AtomicBool) -> Result<Answer, Failure> {
        let place = self.place().await?;
        let credentials = self.credentials(place).await?;
        let request = self.signed(request, place, &credentials)?;
        is_out.store(true, Ordering::SeqCst);
        let response = place.http.execute(request).await.map_err(http::failure)?;
        let answer = Answer::read(response, self.config.answer_bytes_max).await;
        if answer.refuses_credentials() {
            self.keeper.refused(&credentials);
        }
        Ok(answer)
    }

    /// A failure is not kept: the next call looks again, though not one that waited meanwhile.
    async fn place(&self) -> Result<&Place, Failure> {
        if let Some(place) = self.place.get() {
            return Ok(place);
        }
        let turn = self.place_turns.wait().await;
        if let Some(place) = self.place.get() {
            return Ok(place);
        }
        if let Some(failure) = turn.shared() {
            return Err(failure);
        }
        let found = self.find_place().await;
        turn.end(found.map(|place| self.place.get_or_init(|| place)))
    }

    async fn find_place(&self) -> Result<Place, Failure> {
        let http = http::client(self.config.connect_timeout)?;
        let settings = Settings::load(&self.environment).await;
        let region = region::find(self.config.region.as_deref(), &settings, &http).await;
        let region = region.ok_or(Failure::NoRegion)?;
        let endpoint = match &self.config.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => endpoint::find(&self.config.service, &region, &settings)?,
        };
        Ok(Place { http, region, endpoint })
    }

    async fn credentials(&self, place: &Place) -> Result<Arc<Credentials>, Failure> {
        // These are what somebody wrote into the configuration: there are no others to be found.
        if let Some(given) = &self.config.credentials {
            return Ok(Arc::new(given.clone()));
        }
        let find = || async {
            let settings = Settings::load(&self.environment).await;
            let now = self.clock.now();
            Search { settings: &settings, region: &place.region, http: &place.http, now }.run().await
        };
        self.keeper.get(&*self.clock, find).await
    }

    fn signed(
        &self,
        request: Request<'_>,
        place: &Place,
        credentials: &Credentials,
    ) -> Result<reqwest::Request, Failure> {
        let url = endpoint::below(&place.endpoint, request.path);
        let unsigned = Unsigned {
            method: request.method.as_str(),
            host: &host(&url),
            path: url.path(),
            headers: request.headers,
            body: &request.body,
        };
        let scope = Scope { region: &place.region, service: self.config.service.signing_name };
        let headers = sign(&unsigned, credentials, scope, self.clock.now())?;
        let mut signed = reqwest::Request::new(request.method, url);
        *signed.headers_mut() = headers;
        if !request.body.is_empty() {
            *signed.body_mut() = Some(request.body.into());
        }
        Ok(signed)
    }
}

/// As the header has it: with the port, unless it is the usual one.
pub fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}
