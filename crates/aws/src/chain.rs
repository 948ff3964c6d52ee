//! The usual way to credentials, link by link: environment, profile, web identity, container, machine. The first that
//! has any counts; one that is set up wrongly or does not answer ends the search.

mod container;
pub mod machine;
mod process;
mod profile;
mod sts;

use model::Timestamp;
use reqwest::Client;

use crate::credentials::Credentials;
use crate::failure::{Failure, misconfigured, none_found};
use crate::settings::Settings;
use profile::{Base, Plan};
use sts::Role;

/// More of an answer with credentials is not read; they have one or two thousand bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Everything a search needs.
#[derive(Debug, Clone, Copy)]
pub struct Search<'x> {
    pub settings: &'x Settings,
    pub region: &'x str,
    pub http: &'x Client,
    pub now: Timestamp,
}

impl Search<'_> {
    pub async fn run(&self) -> Result<Credentials, Failure> {
        if let Some(found) = self.environment() {
            return Ok(found);
        }
        if let Some(found) = self.profile().await? {
            return Ok(found);
        }
        if let Some(found) = self.web_identity().await? {
            return Ok(found);
        }
        if let Some(found) = container::credentials(self.settings, self.http).await? {
            return Ok(found);
        }
        machine::credentials(self.settings, self.http).await
    }

    fn environment(&self) -> Option<Credentials> {
        let environment = &self.settings.environment;
        let id = environment.get("AWS_ACCESS_KEY_ID")?;
        let found = Credentials::new(id, environment.get("AWS_SECRET_ACCESS_KEY")?);
        Some(match environment.get("AWS_SESSION_TOKEN") {
            Some(token) => found.with_session_token(token),
            None => found,
        })
    }

    async fn profile(&self) -> Result<Option<Credentials>, Failure> {
        let profiles = self.settings.profiles.as_ref().map_err(misconfigured)?;
        let Some(Plan { base, roles }) = profile::plan(profiles).map_err(misconfigured)? else {
            return Ok(None);
        };
        let mut credentials = self.base(base).await?;
        for role in roles {
            credentials = sts::assume(self, &role, &credentials).await?;
        }
        Ok(Some(credentials))
    }

    async fn base(&self, base: Base<'_>) -> Result<Credentials, Failure> {
        let absent = || none_found("the profile's credential_source has no credentials");
        match base {
            Base::Keys(credentials) => Ok(credentials),
            Base::Process(command) => process::credentials(command).await,
            Base::WebIdentity(role, token_file) => sts::assume_by_token(self, &role, token_file).await,
            Base::Environment => self.environment().ok_or_else(absent),
            Base::Container => container::credentials(self.settings, self.http).await?.ok_or_else(absent),
            Base::Machine => machine::credentials(self.settings, self.http).await,
        }
    }

    async fn web_identity(&self) -> Result<Option<Credentials>, Failure> {
        let environment = &self.settings.environment;
        let token_file = environment.get("AWS_WEB_IDENTITY_TOKEN_FILE");
        let (Some(token_file), Some(arn)) = (token_file, environment.get("AWS_ROLE_ARN")) else {
            return Ok(None);
        };
        let session_name = environment.get("AWS_ROLE_SESSION_NAME");
        let role = Role { arn, session_name, external_id: None };
        sts::assume_by_token(self, &role, token_file).await.map(Some)
    }
}

#[cfg(test)]
mod tests;
